"""Second-order corrections of EP: the interaction of the non-Gaussian shapes of two tilted distributions.

EP's evidence lacks the factor E_q[∏ᵢ tᵢ/t̃ᵢ]. Its first term in an expansion by pairs of sites is

    ½ Σ_{i≠j} Σ_{l=3,4} κ_l(i) κ_l(j) ρᵢⱼˡ / l!,

with κ the standardised cumulants of the tilted distributions and ρ the correlation of the two predictors under EP's
Gaussian (Opper, Paquet & Winther 2013, Perturbative corrections for approximate inference in Gaussian latent variable
models). Cumulants are differences of tilted variances in the cavity's mean: no new integrals are needed.

If single sites have several modes and interact, the terms are large and EP's moments have errors as well. The same
expansion, with a source for θ, estimates them: to second order the posterior's covariance differs from EP's by

    Σ_{i≠j} aᵢ aⱼᵀ (κ₃(i) κ₃(j) ρ²/2 + κ₄(i) κ₄(j) ρ³/6),

where aᵢ is the covariance of θ with a predictor, over the predictor's standard deviation. Terms of a site with itself
vanish, because EP matches its moments. (For means, terms of third order are as large as those of second.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.approximations.ep.moments import tilted_moments
from ppl_backends.approximations.ep.shards import EPSites
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.targets.factors.factorisation import Factors
from ppl_backends.targets.factors.sites import Array

STEP = 0.3  # of the cavity's mean, in units that move the tilted mean by about as many standard deviations
MOST_SITES = 1000  # number of sites used, those with the largest cumulants


class SecondOrder(NamedTuple):
    """Second-order terms of the log evidence: sum, sum of sizes, and the largest excess kurtosis of a site."""

    value: float
    size: float
    kurtosis: float


class Pairs(NamedTuple):
    """The least Gaussian sites ``rows``: cumulants ``(m,)``, correlations ``(m, m)``, 0 on the diagonal, unit rows aᵢᵀL."""

    rows: NDArray[np.integer]
    skewness: Array
    kurtosis: Array
    correlation: Array
    directions: Array

    def reach(self, q: Gaussian) -> Array:
        """Return the correlations of the coordinates with the predictors ``(d, m)``."""
        reach = q.factor @ self.directions.T if q.factor.ndim == 2 else q.factor[:, None] * self.directions.T
        return np.asarray(reach / q.sd[:, None])


def second_order(pairs: Pairs | None) -> SecondOrder:
    """Return second-order terms of pairs of sites."""
    if pairs is None:
        return SecondOrder(0.0, 0.0, 0.0)
    _, skewness, kurtosis, correlation, _ = pairs
    cube = correlation * correlation * correlation
    terms = np.outer(skewness / 12, skewness) * cube, np.outer(kurtosis / 48, kurtosis) * (cube * correlation)
    size = float(sum(np.abs(term).sum() for term in terms))
    return SecondOrder(float(sum(term.sum() for term in terms)), size, float(np.abs(kurtosis).max()))


def sd_errors(q: Gaussian, sites: EPSites, factors: Factors) -> Array:
    """Return the relative errors of EP's standard deviations to second order, exact / EP − 1 ``(d,)``."""
    pairs = pairs_of(q, sites, factors)
    if pairs is None:
        return np.zeros(q.dim)
    _, skewness, kurtosis, correlation, _ = pairs
    reach = pairs.reach(q)
    square = correlation * correlation
    weights = np.outer(0.5 * skewness, skewness)
    weights += np.outer(kurtosis / 6, kurtosis) * correlation
    weights *= square
    ratio = np.einsum("dm,dm->d", reach @ weights, reach)
    return np.asarray(np.sqrt(np.maximum(1 + ratio, 0.0)) - 1)


def pairs_of(q: Gaussian, sites: EPSites, factors: Factors, rows: NDArray[np.integer] | None = None) -> Pairs | None:
    """Return the pairs among ``rows``, all sites by default; None if there are none."""
    usable = ~sites.failed & (sites.variance > 0)
    rows = np.flatnonzero(usable) if rows is None else rows[usable[rows]]
    if not len(rows):
        return None
    skewness, kurtosis = _cumulants(sites, factors, rows)
    order = np.argsort(-(np.abs(skewness) + np.abs(kurtosis)), kind="stable")[:MOST_SITES]
    spread = np.asarray(factors.design[rows[order]] @ (q.factor if q.factor.ndim == 2 else np.diag(q.factor)))
    spread /= np.sqrt(np.einsum("nd,nd->n", spread, spread))[:, None]
    correlation = spread @ spread.T
    np.fill_diagonal(correlation, 0.0)
    return Pairs(rows[order], skewness[order], kurtosis[order], correlation, spread)


@np.errstate(all="ignore")
def _cumulants(sites: EPSites, factors: Factors, rows: NDArray[np.integer]) -> tuple[Array, Array]:
    """Return skewness and excess kurtosis of the tilted distributions of the sites ``rows``; 0 if they are not found."""
    variance, cavity_variance = sites.variance[rows], sites.cavity_variance[rows]
    sd = np.sqrt(variance)
    below, here, above = (
        tilted_moments(
            factors.sites,
            sites.cavity_mean[rows] + step * cavity_variance / sd,
            cavity_variance,
            sites.mean[rows] + step * sd,
            variance,
            sites.level[rows],
            rows=rows,
        ).variance
        for step in (-STEP, 0.0, STEP)
    )
    skewness, kurtosis = (above - below) / (2 * STEP * here), (above - 2 * here + below) / (STEP**2 * here)
    found = np.isfinite(skewness) & np.isfinite(kurtosis)
    return np.where(found, skewness, 0.0), np.where(found, kurtosis, 0.0)
