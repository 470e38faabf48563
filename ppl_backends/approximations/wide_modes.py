"""Wide modes that weighted points of a posterior miss: mass around them, where their approximation is too narrow.

A climb that begins anywhere can end in a narrow mode within a wide one, which has no maximum of its own. Weights of draws of
the narrow Gaussian are equal then, and tell nothing of the rest. In d dimensions a mode W times as wide is denser than the
narrow one beyond √(2d log W) standard deviations of it, about, where none of its draws are.

Draws of N(c, s²Σ) at scales s from √2 to 64, with centre c and covariance Σ of the points, are weighed together (Veach and
Guibas 1995); those outside of the points' own ellipsoid tell how wide the rest is. A Gaussian of that width then measures
its mass by importance sampling. It is missed if it is more than twice the mass of the weighted points out there.

References: E. Veach and L. Guibas (1995), Optimally combining sampling techniques for Monte Carlo rendering, SIGGRAPH 95.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import LinAlgError
from scipy.special import logsumexp

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.modes import beyond
from ppl_backends.numerics.weights import effective_sample_size
from ppl_backends.targets.protocol import Array

_SCALES = 2.0 ** np.arange(0.5, 6.5, 0.5)
_DRAWS = 2048
_FEWEST = 20.0  # effective draws, below which a mass is not known
_MANY = 10  # effective draws a coordinate, from which on a covariance of its own is taken


def mass_around(
    log_density: Callable[[Array], Array], points: Array, rows: int, rng: np.random.Generator
) -> tuple[float, GaussianApproximation, GaussianApproximation] | None:
    """Return the log of the mass outside of the points' ellipsoid, a Gaussian there, and that of the points ``(n, dim)``.

    ``log_density`` is called with ``rows`` points at once. None where the points have no covariance, or where few draws
    decide the mass.
    """
    dim = points.shape[1]
    try:
        own = GaussianApproximation(points.mean(axis=0), np.atleast_2d(np.cov(points.T)))
    except (LinAlgError, ValueError):
        return None
    n = -(-_DRAWS // rows) * rows
    z = rng.standard_normal((n, dim)) * _SCALES[np.arange(n) % len(_SCALES), None]
    square = (z**2).sum(axis=1)
    log_q = logsumexp(-0.5 * square / _SCALES[:, None] ** 2 - dim * np.log(_SCALES)[:, None], axis=0)
    x = own.mean + z @ own.cholesky.T
    log_weights = _outside(log_density, x, own, rows) - log_q
    if not np.isfinite(log_weights).any():
        return None
    weights = np.exp(log_weights - logsumexp(log_weights))
    around = _around(own, x, weights, float(weights @ square) / dim)
    x = around.sample(n, rng)
    log_weights = _outside(log_density, x, own, rows) - around.log_density(x)
    if not np.isfinite(log_weights).any() or effective_sample_size(log_weights) < _FEWEST:
        return None
    return float(logsumexp(log_weights) - np.log(n)), around, own


def _outside(log_density: Callable[[Array], Array], x: Array, own: GaussianApproximation, rows: int) -> Array:
    """Return the log density outside of an ellipsoid, and zero density within it."""
    value = np.concatenate([log_density(block) for block in np.split(x, len(x) // rows)])
    return np.where(beyond(x, own) & (value < np.inf), value, -np.inf)


def _around(own: GaussianApproximation, x: Array, weights: Array, scale: float) -> GaussianApproximation:
    """Return the Gaussian of weighted draws, or one that only differs in ``scale``, squared, from the points' own."""
    dim = len(own.mean)
    if 1.0 / (weights @ weights) > _MANY * dim:
        mean = weights @ x
        return GaussianApproximation(mean, np.atleast_2d(((x - mean).T * weights) @ (x - mean)))
    return GaussianApproximation(own.mean, scale * own.cov)
