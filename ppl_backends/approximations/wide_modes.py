"""Wide modes that weighted points of a posterior miss: mass around them, where their approximation is too narrow.

A climb that begins anywhere can end in a narrow mode within a wide one, which has no maximum of its own. Weights of draws of
the narrow Gaussian are equal then, and do not show the rest. In d dimensions a mode W times as wide is denser than the
narrow one beyond √(2d log W) standard deviations of it, about, where none of its draws are.

Draws of N(c, s²Σ) at scales s from √2 to 64, with centre c and covariance Σ of the points, are weighed together (Veach and
Guibas 1995); those outside of the points' own ellipsoid tell how wide the rest is. A Gaussian of that width then measures
its mass by importance sampling. It is missed if it is more than twice the mass of the weighted points out there.

References: E. Veach and L. Guibas (1995), Optimally combining sampling techniques for Monte Carlo rendering, SIGGRAPH 95.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError
from scipy.special import logsumexp

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.modes import beyond
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.numerics.weights import effective_sample_size, normalised_weights
from ppl_backends.targets.protocol import Array

_SCALES = 2.0 ** np.arange(0.5, 6.5, 0.5)
_DRAWS = 2048
_ENOUGH = 200.0  # effective draws at many scales, from which on no Gaussian is needed
_FEWEST = 20.0  # effective draws, below which a mass is not known
_MANY = 10  # effective draws a coordinate, from which on a covariance of its own is taken


def mass_around(
    log_density: Callable[[Array], Array], points: Array, rows: int, rng: np.random.Generator
) -> tuple[float, GaussianApproximation, GaussianApproximation] | None:
    """Return the log of the mass outside of the points' ellipsoid, a Gaussian there, and that of the points ``(n, dim)``.

    ``log_density`` is called with ``rows`` points at once. None where the points have no covariance, or where few draws
    decide the mass.
    """
    try:
        own = GaussianApproximation(points.mean(axis=0), np.atleast_2d(np.cov(points.T)))
        scaled = _at_many_scales(log_density, own, rows, rng)
        if not scaled.effective:
            return None
        around = _around(own, scaled)
    except (LinAlgError, ValueError):
        return None
    found = _from(around, log_density, own, rows, rng)
    return (found.log_mass, around, own) if found.effective >= _FEWEST else None


def draws_outside(
    log_density: Callable[[Array], Array], own: GaussianApproximation, rows: int, rng: np.random.Generator
) -> Outside | None:
    """Return weighted draws outside of a dense Gaussian's ellipsoid; None where few of them decide the mass there.

    They are those at many scales, which suit heavy tails, or those of a Gaussian that they lead to.
    """
    scaled = _at_many_scales(log_density, own, rows, rng)
    if 0 < scaled.effective < _ENOUGH:
        with suppress(LinAlgError, ValueError):  # the draws have no covariance
            led_to = _from(_around(own, scaled), log_density, own, rows, rng)
            scaled = max(scaled, led_to, key=lambda one: one.effective)
    return scaled if scaled.effective >= _FEWEST else None


class Outside(NamedTuple):
    """Draws ``(n, dim)`` and their log weights ``(n,)``, whose mean is the mass outside of an ellipsoid."""

    x: Array
    log_weights: Array

    @property
    def log_mass(self) -> float:
        """Return the log of the mass outside."""
        return normalised_weights(self.log_weights)[1]

    @property
    def effective(self) -> float:
        """Return the effective number of draws."""
        return effective_sample_size(self.log_weights)

    @property
    def weights(self) -> Array:
        """Return the weights ``(n,)``, whose sum is one."""
        return normalised_weights(self.log_weights)[0]


def _at_many_scales(
    log_density: Callable[[Array], Array], own: GaussianApproximation, rows: int, rng: np.random.Generator
) -> Outside:
    """Return draws at scales from √2 to 64 of a Gaussian, weighed by the density of all of them together."""
    dim, n = own.dim, -(-_DRAWS // rows) * rows
    z = rng.standard_normal((n, dim)) * _SCALES[np.arange(n) % len(_SCALES), None]
    square = (z**2).sum(axis=1)
    log_q = logsumexp(-0.5 * square / _SCALES[:, None] ** 2 - dim * np.log(_SCALES)[:, None], axis=0) - np.log(
        len(_SCALES)
    )
    constant = 0.5 * dim * LOG_2PI + np.log(np.diagonal(own.cholesky)).sum()
    x = own.mean + z @ own.cholesky.T
    return Outside(x, _outside(log_density, x, own, rows) - log_q + constant)


def _from(
    around: GaussianApproximation,
    log_density: Callable[[Array], Array],
    own: GaussianApproximation,
    rows: int,
    rng: np.random.Generator,
) -> Outside:
    """Return draws of a Gaussian, weighed outside of the ellipsoid of another."""
    x = around.sample(-(-_DRAWS // rows) * rows, rng)
    return Outside(x, _outside(log_density, x, own, rows) - around.log_density(x))


def _outside(log_density: Callable[[Array], Array], x: Array, own: GaussianApproximation, rows: int) -> Array:
    """Return the log density outside of an ellipsoid, and zero density within it."""
    return np.where(beyond(x, own), in_blocks(log_density, x, rows), -np.inf)


def _around(own: GaussianApproximation, scaled: Outside) -> GaussianApproximation:
    """Return the Gaussian of weighted draws, or one that only differs in scale from the points' own."""
    dim, x, weights = len(own.mean), scaled.x, scaled.weights
    if 1.0 / (weights @ weights) > _MANY * dim:
        return weighted_gaussian(x, weights)
    return GaussianApproximation(own.mean, float(weights @ (own.whiten(x) ** 2).sum(axis=1)) / dim * own.cov)


def weighted_gaussian(x: Array, weights: Array, widening: float = 1.0) -> GaussianApproximation:
    """Return the Gaussian with the moments of points ``(n, dim)`` of weights ``(n,)``, its covariance widened."""
    mean = weights @ x
    return GaussianApproximation(mean, widening * np.atleast_2d(((x - mean).T * weights) @ (x - mean)))


def in_blocks(log_density: Callable[[Array], Array], x: Array, rows: int) -> Array:
    """Return the log density at points ``(n, dim)``, zero density where it is not a number, from calls of ``rows`` points."""
    if not len(x):
        return np.empty(0)
    calls = -(-len(x) // rows)
    padded = np.concatenate([x, np.repeat(x[-1:], calls * rows - len(x), axis=0)])
    value = np.concatenate([log_density(block) for block in np.split(padded, calls)])[: len(x)]
    return np.where(value < np.inf, value, -np.inf)
