"""Expectation propagation for rectangles: sites a_i ≤ x_i + noise ≤ b_i on a Gaussian (Cunningham, Hennig &
Lacoste-Julien 2011), all sites updated at once.

The same loop is used for two Gaussians: X itself in d dimensions, without noise, and k factors f with x = Λ f and
diagonal noise. Both have the same fixed points, because the sites depend on the same marginals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from ppl_backends.orthants.intervals import Array, moments

STEP = 0.8  # of each update
MOST_SWEEPS = 200
TOLERANCE = 1e-9

Marginals = Callable[[Array, Array], tuple[Array, Array, float]]


@dataclass(frozen=True)
class SiteFit:
    """Sites exp(−½ τ x² + ν x) of a rectangle at the end of EP.

    Attributes
    ----------
    log_p : float
    precision, shift : ndarray (dim,)
        τ and ν.
    converged : bool
    """

    log_p: float
    precision: Array = field(repr=False)
    shift: Array = field(repr=False)
    converged: bool


def dense_ep(cov: Array, lower: Array, upper: Array) -> SiteFit:
    """Return EP's approximation of P(lower ≤ X ≤ upper), X ~ N(0, ``cov``)."""

    def marginals(precision: Array, shift: Array) -> tuple[Array, Array, float]:
        # (Σ⁻¹ + T)⁻¹ = Σ − Σ T^½ B⁻¹ T^½ Σ, B = I + T^½ Σ T^½ (Rasmussen & Williams 2006, section 3.6)
        root = np.sqrt(precision)
        b = root[:, None] * cov * root
        b[np.diag_indices(len(b))] += 1.0
        factor = np.linalg.cholesky(b)
        part = solve_triangular(factor, root[:, None] * cov, lower=True, check_finite=False)
        mean = cov @ shift - part.T @ (part @ shift)
        log_normaliser = 0.5 * shift @ mean - np.log(np.diag(factor)).sum()
        return mean, np.diag(cov) - (part**2).sum(axis=0), log_normaliser

    return _propagate(lower, upper, np.zeros(len(cov)), marginals)


def factor_ep(loadings: Array, noise: Array, lower: Array, upper: Array) -> tuple[SiteFit, Array, Array]:
    """Return the same for X = Λ f + noise, and mean and covariance of the factors f."""

    def posterior(precision: Array, shift: Array) -> tuple[Array, Array, float]:
        q = (loadings.T * precision) @ loadings
        q[np.diag_indices(len(q))] += 1.0
        factor = cho_factor(q, lower=True)
        cov = cho_solve(factor, np.eye(len(q)))
        return cov @ (loadings.T @ shift), cov, float(np.log(np.diag(factor[0])).sum())

    def marginals(precision: Array, shift: Array) -> tuple[Array, Array, float]:
        mean, cov, half_log_det = posterior(precision, shift)
        at = loadings @ mean
        return at, ((loadings @ cov) * loadings).sum(axis=1), float(0.5 * shift @ at - half_log_det)

    sites = _propagate(lower, upper, noise, marginals)
    mean, cov, _ = posterior(sites.precision, sites.shift)
    return sites, mean, cov


def _propagate(lower: Array, upper: Array, noise: Array, marginals: Marginals) -> SiteFit:
    """Update all sites until log P settles."""
    precision, shift = np.zeros(len(lower)), np.zeros(len(lower))
    log_p, converged = np.inf, False
    for _ in range(MOST_SWEEPS):
        mean, variance, log_normaliser = marginals(precision, shift)
        cavity = 1 / np.maximum(1 / variance - precision, 1e-12)
        centre = cavity * (mean / variance - shift)
        scale = np.sqrt(cavity + noise)
        site = moments((lower - centre) / scale, (upper - centre) / scale)
        # Contribution of the sites under their cavities, so that each gives its exact mass.
        spread = 1 + precision * cavity
        taken = -0.5 * np.log(spread) + (
            shift * centre + 0.5 * shift**2 * cavity - 0.5 * precision * centre**2
        ) / spread  # fmt: skip
        before, log_p = log_p, float(log_normaliser + (site.log_p - taken).sum())
        if abs(log_p - before) <= TOLERANCE * (1 + abs(log_p)):
            converged = True
            break
        shrink = (1 - site.variance) / scale**2
        left = np.maximum(1 - cavity * shrink, 1e-15)
        precision = precision + STEP * (shrink / left - precision)
        shift = shift + STEP * ((site.mean / scale + centre * shrink) / left - shift)
    return SiteFit(log_p, precision, shift, converged)
