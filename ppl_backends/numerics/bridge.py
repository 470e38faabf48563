r"""Bridge sampling: the integral Z of a density γ from points of γ/Z and points of a normalised density q.

Between n₁ points of γ/Z and n₂ of q, Z solves

    Z = [mean over q of γ / (s₁γ + s₂Zq)] / [mean over points of q / (s₁γ + s₂Zq)] · Z,   s₁ = n₁/(n₁ + n₂) = 1 − s₂,

in which both ratios are bounded (Meng & Wong 1996). Heavy tails of either density do no harm, only a lack of overlap
does, which shows in the error of Frühwirth-Schnatter (2004).
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


class OptimalBridge(NamedTuple):
    """The bridge between points of γ/Z with effective sample size ``worth`` and ``n_proposed`` points of q."""

    log_evidence: float
    worth: float
    n_proposed: int

    def at_points(self, log_ratio: Array) -> Array:
        """Return logs of Zq / (s₁γ + s₂Zq), without a common factor Z, from log γ − log q at any number of points."""
        return -np.logaddexp(self._log_share(self.worth) + log_ratio, self._log_rest)

    def at_proposed(self, log_ratio: Array) -> Array:
        """Return logs of γ / (s₁γ + s₂Zq) from log γ − log q."""
        return log_ratio - np.logaddexp(self._log_share(self.worth) + log_ratio, self._log_rest)

    @property
    def _log_rest(self) -> float:
        return self._log_share(self.n_proposed) + self.log_evidence

    def _log_share(self, n: float) -> float:
        return float(np.log(n / (self.worth + self.n_proposed)))


def optimal_bridge(
    log_ratio: Array, log_ratio_proposed: Array, worth: float, log_z: float | None = None
) -> OptimalBridge:
    """Solve for the integral from log γ − log q at points of γ/Z and at points of q, from ``log_z`` on."""
    log_z = float(np.median(log_ratio)) if log_z is None else log_z
    found = OptimalBridge(log_z, worth, len(log_ratio_proposed))
    size = np.log(len(log_ratio)) - np.log(len(log_ratio_proposed))
    for _ in range(_ITERATIONS):
        at_points, at_proposed = found.at_points(log_ratio), found.at_proposed(log_ratio_proposed)
        before = found.log_evidence
        found = found._replace(log_evidence=float(logsumexp(at_proposed) - logsumexp(at_points) + size))
        if not abs(found.log_evidence - before) > _EXACT:
            break
    return found


def centred_shares(logs: Array) -> Array:
    """Return each term's contribution ``(n,)`` to the relative error of the mean, from the terms' logs."""
    shares: Array = np.exp(logs - logsumexp(logs)) - 1.0 / logs.size
    return shares


def bridge(log_ratio: Array, log_ratio_proposed: Array, ancestor: Index) -> BridgeEstimate:
    """Estimate by bridge sampling between points of γ/Z and independent points of a normalised q, from log γ − log q at both.

    Points of γ/Z with different ``ancestor``, a label below n, are independent.
    """
    n = float(len(log_ratio))
    found = optimal_bridge(log_ratio, log_ratio_proposed, n)
    # This weights the points as if they were independent; repeat with their effective sample size.
    drawn = centred_shares(found.at_points(log_ratio))
    square, grouped = (drawn**2).sum(), (np.bincount(ancestor, drawn) ** 2).sum()
    worth = n * float(np.clip(square / grouped, 1.0 / n, 1.0)) if grouped > 0 else n
    found = optimal_bridge(log_ratio, log_ratio_proposed, worth, found.log_evidence)
    drawn = centred_shares(found.at_points(log_ratio))
    terms = np.concatenate(
        [2.0**0.5 * np.bincount(ancestor, drawn), centred_shares(found.at_proposed(log_ratio_proposed))]
    )
    variance = float((terms**2).sum())
    return BridgeEstimate(found.log_evidence, variance, float(degrees_of_freedom(terms)))


def degrees_of_freedom(terms: Array) -> Array:
    """Return 3(Σt²)²/Σt⁴ over the first axis: the number of terms if they are equal Gaussians, 1 if all are zero."""
    fourth = (terms**4).sum(axis=0)
    df: Array = np.where(fourth == 0, 1.0, 3.0 * (terms**2).sum(axis=0) ** 2 / np.where(fourth == 0, 1.0, fourth))
    return df
