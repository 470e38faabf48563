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

__all__ = ["BridgeEstimate", "bridge"]


_ITERATIONS = 1000
_EXACT = 1e-9


class BridgeEstimate(NamedTuple):
    """Log integral by one bridge.

    Attributes
    ----------
    log_evidence : float
    variance : float
    df : float
        Degrees of freedom of ``variance``.
    """

    log_evidence: float
    variance: float
    df: float


def bridge(log_ratio: Array, log_ratio_proposed: Array, ancestor: Index) -> BridgeEstimate:
    """Bridge sampling between points of γ/Z and independent points of a normalised q.

    Parameters
    ----------
    log_ratio : ndarray (n,)
        log γ − log q at points of γ/Z.
    log_ratio_proposed : ndarray (m,)
        The same at points of q.
    ancestor : ndarray (n,)
        Label below n: points of γ/Z with different ones are independent.

    Examples
    --------
    >>> import numpy as np
    >>> x, y = np.random.default_rng(1).standard_normal((2, 4000))
    >>> def log_ratio(z):  # of e² N(0.1, 1) to N(0, 1)
    ...     return 2.0 + 0.1 * z - 0.005
    >>> found = bridge(log_ratio(0.1 + x), log_ratio(y), np.arange(4000))
    >>> bool(abs(found.log_evidence - 2.0) < 0.01)
    True
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
    """Logs of Zq / (s₁γ + s₂Zq) at the points and of γ / (s₁γ + s₂Zq) at those of q, Z in common left out."""
    total = worth + len(log_ratio_proposed)
    log_share, log_rest = np.log(worth / total), np.log(len(log_ratio_proposed) / total)
    at_points = -np.logaddexp(log_share + log_ratio, log_rest + log_z)
    return at_points, log_ratio_proposed - np.logaddexp(log_share + log_ratio_proposed, log_rest + log_z)


def _solve(log_ratio: Array, log_ratio_proposed: Array, worth: float, log_z: float) -> float:
    """The fixed point, from ``log_z`` on."""
    size = np.log(len(log_ratio)) - np.log(len(log_ratio_proposed))
    for _ in range(_ITERATIONS):
        at_points, at_proposed = _summands(log_ratio, log_ratio_proposed, worth, log_z)
        before, log_z = log_z, float(logsumexp(at_proposed) - logsumexp(at_points) + size)
        if not abs(log_z - before) > _EXACT:
            break
    return log_z


def _terms(log_ratio: Array, log_ratio_proposed: Array, worth: float, log_z: float) -> tuple[Array, Array]:
    """What every point, and every point of q, adds to the error of log Z."""
    at_points, at_proposed = _summands(log_ratio, log_ratio_proposed, worth, log_z)
    one, other = (np.exp(logs - logsumexp(logs)) - 1.0 / len(logs) for logs in (at_points, at_proposed))
    return one, other
