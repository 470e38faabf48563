"""What EP leaves out, to second order: how the non-Gaussian shapes of two tilted distributions act on each other.

EP's evidence misses the factor E_q[∏ᵢ tᵢ/t̃ᵢ]. Its first term in an expansion by pairs of sites is

    ½ Σ_{i≠j} Σ_{l=3,4} κ_l(i) κ_l(j) ρᵢⱼˡ / l!,

with κ the standardised cumulants of the tilted distributions and ρ the correlation of the two predictors under EP's
Gaussian (Opper, Paquet & Winther 2013, Perturbative corrections for approximate inference in Gaussian latent variable
models). Cumulants are differences of tilted variances in the cavity's mean: no new integrals are needed.

Where single sites have several modes and act on each other, the terms are large and EP's own moments are off as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.approximations.ep.moments import tilted_moments
from ppl_backends.targets.factors.sites import Array

if TYPE_CHECKING:
    from ppl_backends.approximations.ep.result import EPApproximation

__all__ = ["SecondOrder", "second_order"]

STEP = 0.3  # of the cavity's mean, in units that move the tilted mean by about as many standard deviations
MOST_SITES = 1000  # those with the largest cumulants


class SecondOrder(NamedTuple):
    """Second-order terms of the log evidence.

    Attributes
    ----------
    value : float
        Their sum, to be added to EP's log evidence.
    size : float
        The sum of their absolute values.
    kurtosis : float
        The largest excess kurtosis of a site that takes part.
    """

    value: float
    size: float
    kurtosis: float


def second_order(approximation: EPApproximation, rows: NDArray[np.integer] | None = None) -> SecondOrder:
    """Second-order terms of the pairs among ``rows``, all sites by default."""
    sites, factors = approximation.sites, approximation.factors
    assert factors is not None
    usable = ~sites.failed & (sites.variance > 0)
    rows = np.flatnonzero(usable) if rows is None else rows[usable[rows]]
    if not len(rows):
        return SecondOrder(0.0, 0.0, 0.0)
    skewness, kurtosis = _cumulants(approximation, rows)
    order = np.argsort(-(np.abs(skewness) + np.abs(kurtosis)), kind="stable")[:MOST_SITES]
    skewness, kurtosis, factor = skewness[order], kurtosis[order], approximation.cholesky
    design = factors.design[rows[order]]
    spread = np.asarray(design @ factor if factor.ndim == 2 else design @ np.diag(factor))
    spread /= np.sqrt(np.einsum("nd,nd->n", spread, spread))[:, None]
    correlation = spread @ spread.T
    np.fill_diagonal(correlation, 0.0)
    terms = np.outer(skewness, skewness) * correlation**3 / 12, np.outer(kurtosis, kurtosis) * correlation**4 / 48
    size = float(sum(np.abs(term).sum() for term in terms))
    return SecondOrder(float(sum(term.sum() for term in terms)), size, float(np.abs(kurtosis).max()))


@np.errstate(all="ignore")
def _cumulants(approximation: EPApproximation, rows: NDArray[np.integer]) -> tuple[Array, Array]:
    """Skewness and excess kurtosis of the tilted distributions of the sites ``rows``; 0 where they are not found."""
    sites, factors = approximation.sites, approximation.factors
    assert factors is not None
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
