r"""Bridge sampling: the integral Z of a density γ from points of γ/Z and points of a normalised density q.

Between n₁ points of γ/Z and n₂ of q, Z solves

    Z = [mean over q of γ / (s₁γ + s₂Zq)] / [mean over points of q / (s₁γ + s₂Zq)] · Z,   s₁ = n₁/(n₁ + n₂) = 1 − s₂,

in which both ratios are bounded (Meng & Wong 1996): no tail of either density spoils it, only a lack of overlap, and that
shows in the error, which is that of Frühwirth-Schnatter (2004).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from ppl_backends.numerics.arrays import Array, Index

_ITERATIONS = 1000
_EXACT = 1e-9


class BridgeEstimate(NamedTuple):
    """Log integral by one bridge; ``df`` are the degrees of freedom of its ``variance``."""

    log_evidence: float
    variance: float
    df: float


def bridge(log_ratio: Array, log_ratio_proposed: Array, ancestor: Index) -> BridgeEstimate:
    """Estimate by bridge sampling between points of γ/Z and independent points of a normalised q, from log γ − log q at both.

    Points of γ/Z with different ``ancestor``, a label below n, are independent.
    """
    n = float(len(log_ratio))
    log_z = _solve(log_ratio, log_ratio_proposed, n, float(np.median(log_ratio)))
    # That weights the points as if they were independent; once more with what they are worth.
    drawn, _ = _terms(log_ratio, log_ratio_proposed, n, log_z)
    square, grouped = (drawn**2).sum(), (np.bincount(ancestor, drawn) ** 2).sum()
    worth = n * float(np.clip(square / grouped, 1.0 / n, 1.0)) if grouped > 0 else n
    log_z = _solve(log_ratio, log_ratio_proposed, worth, log_z)
    drawn, proposed = _terms(log_ratio, log_ratio_proposed, worth, log_z)
    terms = np.concatenate([2.0**0.5 * np.bincount(ancestor, drawn), proposed])
    square, fourth = float((terms**2).sum()), float((terms**4).sum())
    return BridgeEstimate(log_z, square, 3.0 * square**2 / fourth if fourth > 0 else 1.0)


def _summands(log_ratio: Array, log_ratio_proposed: Array, worth: float, log_z: float) -> tuple[Array, Array]:
    """Return logs of Zq / (s₁γ + s₂Zq) at the points and of γ / (s₁γ + s₂Zq) at those of q, Z in common left out."""
    total = worth + len(log_ratio_proposed)
    log_share, log_rest = np.log(worth / total), np.log(len(log_ratio_proposed) / total)
    at_points = -np.logaddexp(log_share + log_ratio, log_rest + log_z)
    return at_points, log_ratio_proposed - np.logaddexp(log_share + log_ratio_proposed, log_rest + log_z)


def _solve(log_ratio: Array, log_ratio_proposed: Array, worth: float, log_z: float) -> float:
    """Return the fixed point, from ``log_z`` on."""
    size = np.log(len(log_ratio)) - np.log(len(log_ratio_proposed))
    for _ in range(_ITERATIONS):
        at_points, at_proposed = _summands(log_ratio, log_ratio_proposed, worth, log_z)
        before, log_z = log_z, float(logsumexp(at_proposed) - logsumexp(at_points) + size)
        if not abs(log_z - before) > _EXACT:
            break
    return log_z


def _terms(log_ratio: Array, log_ratio_proposed: Array, worth: float, log_z: float) -> tuple[Array, Array]:
    """Return what every point, and every point of q, adds to the error of log Z."""
    at_points, at_proposed = _summands(log_ratio, log_ratio_proposed, worth, log_z)
    one, other = (np.exp(logs - logsumexp(logs)) - 1.0 / len(logs) for logs in (at_points, at_proposed))
    return one, other
