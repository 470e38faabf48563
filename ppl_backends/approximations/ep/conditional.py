"""Errors of EP that show given one quantity at a time: a predictor or coordinate, or the component of a mixture.

With ε_i = (tᵢ/t̃ᵢ) scaled to mean one under q, the posterior is q ∏ εᵢ. Given one quantity that the approximation has right
by itself, each E[εᵢ] is one more tilted normaliser, and their product corrects its distribution to all orders in pairs of
sites, where the expansion of :mod:`.correction` takes the first. The product is also right if the posterior has several
modes, whose tilted distributions need not have large cumulants. Draws of q can miss a mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from scipy.special import logsumexp

from ppl_backends.approximations.ep.correction import Pairs
from ppl_backends.approximations.ep.marginals import log_expectations
from ppl_backends.approximations.ep.shards import EPSites
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.targets.factors.factorisation import Factors
from ppl_backends.targets.factors.families import NormalMixture
from ppl_backends.targets.factors.sites import Array, plain

FEWEST, PAIRS = 8, 1500  # number of quantities that are corrected, and of pairs of one with a site
SITES = 200  # largest number of sites that correct one
WEAK, SLIGHT = 1e-4, 0.05  # cumulants times correlations: of a site that does not matter, and of all that hardly do
HALF_WIDTH, GRID, FINE = 6.0, 21, 241  # standard deviations, and points
UNRESOLVED = 0.05  # error of a standard deviation on the grid
FINEST = 2  # level of quadrature: panels cost too much here
MIXTURES = 200  # largest number whose shares are corrected, those that are least certain
CERTAIN, UNCORRELATED = 1e-3, 0.01


class SDRatio(NamedTuple):
    """A corrected standard deviation over EP's, and whose it is: a site's predictor, or else a coordinate."""

    ratio: float
    site: int | None
    coordinate: int | None


def worst_sd_ratio(q: Gaussian, sites: EPSites, factors: Factors, pairs: Pairs) -> SDRatio:
    """Return the corrected standard deviation that is farthest from EP's, among predictors and coordinates.

    Only those are tried that sites with large cumulants bear upon most, and none if all such sites bear upon all slightly.
    """
    m = len(pairs.rows)
    towards = np.vstack([pairs.correlation, pairs.reach(q)])
    size, of_site = np.abs(towards), np.abs(pairs.skewness) / 6
    bearing = size * size * size * (of_site + np.abs(pairs.kurtosis) / 24 * size)
    total = bearing.sum(axis=1)
    if total.max() < SLIGHT:
        return SDRatio(1.0, None, None)
    total[:m] += of_site + np.abs(pairs.kurtosis) / 24
    tried = np.argsort(-total, kind="stable")[: max(FEWEST, PAIRS // m)]
    own = np.flatnonzero(tried < m)
    towards[tried[own], tried[own]], bearing[tried[own], tried[own]] = 1.0, np.inf
    sets = [np.argsort(-row, kind="stable")[:SITES] for row in bearing[tried]]
    sets = [at[row[at] > WEAK] for at, row in zip(sets, bearing[tried], strict=True)]
    found = _sd_ratios(
        sites, factors, pairs.rows, [towards[k][at] for k, at in zip(tried, sets, strict=True)], sets, own
    )
    worst = int(np.argmax(np.abs(np.log(found))))
    k = int(tried[worst])
    return SDRatio(float(found[worst]), int(pairs.rows[k]) if k < m else None, None if k < m else k - m)


def _sd_ratios(
    sites: EPSites,
    factors: Factors,
    rows: NDArray[np.integer],
    correlations: Sequence[Array],
    sets: Sequence[NDArray[np.integer]],
    own: NDArray[np.integer],
) -> Array:
    """Return corrected sds over EP's of quantities with such correlations with sets of ``rows``; 1 where not resolved.

    The first in the set of a quantity in ``own`` is its own site. With only this site EP's sd is exact: that checks the grid.
    """
    at, correlation = rows[np.concatenate(sets)], np.concatenate(correlations)
    z, fine = np.linspace(-HALF_WIDTH, HALF_WIDTH, GRID), np.linspace(-HALF_WIDTH, HALF_WIDTH, FINE)
    variance = np.maximum(1 - correlation**2, 1e-10) * sites.variance[at]
    centred = z[:, None] * (correlation * np.sqrt(sites.variance[at]))
    terms = log_expectations(sites, factors, at, centred, variance, np.minimum(sites.level[at], FINEST))
    terms = np.where(np.isfinite(terms).all(axis=0), terms, 0.0)

    def sds(log_corrections: Array) -> Array:
        log_density = CubicSpline(z, log_corrections)(fine) - 0.5 * fine[:, None] ** 2
        density = np.exp(log_density - log_density.max(axis=0))
        density /= density.sum(axis=0)
        return np.sqrt((density * (fine[:, None] - fine @ density) ** 2).sum(axis=0))

    ends = np.cumsum([0, *map(len, sets)])
    found = sds(np.stack([terms[:, a:b].sum(axis=1) for a, b in pairwise(ends)], axis=1))
    if len(own):
        alone = sds(terms[:, ends[own]])
        found[own] = np.where(np.abs(alone - 1) < UNRESOLVED, found[own], 1.0)
    return np.where(found > 0, found, 1.0)


def share_errors(q: Gaussian, sites: EPSites, factors: Factors, rows: NDArray[np.integer]) -> float:
    """Return the largest correction of a component's probability, of mixtures of normals among the sites ``rows``."""
    worst, spread = 0.0, np.asarray(factors.design[rows] @ square_factor(q))
    for family, columns, own in factors.sites.pieces(None):
        family = plain(family)
        if not isinstance(family, NormalMixture):
            continue
        at = np.arange(factors.n_sites)[columns]
        parts = family.components(sites.cavity_mean[at], sites.cavity_variance[at], own)
        unsure = parts.shares.max(axis=1)
        chosen = np.argsort(unsure, kind="stable")[:MIXTURES]
        chosen = chosen[(unsure[chosen] < 1 - CERTAIN) & ~sites.failed[at[chosen]]]
        for k in chosen:
            part = (parts.shares[k], parts.means[k] - sites.mean[at[k]], parts.variances[k])
            covariance = spread @ np.asarray(factors.design[at[[k]]] @ square_factor(q))[0]
            worst = max(worst, _share_error(sites, factors, int(at[k]), rows, covariance, *part))
    return worst


def _share_error(
    sites: EPSites,
    factors: Factors,
    site: int,
    rows: NDArray[np.integer],
    covariance: Array,
    shares: Array,
    moved: Array,
    within: Array,
) -> float:
    """Return by how much the other sites ``rows`` change the ``shares`` of components of one site's tilted distribution.

    The components move the predictor's mean from that under q, and give it the variances ``within``; ``(k,)`` each. The
    predictors of ``rows`` have such a ``covariance`` with it.
    """
    slope = covariance / sites.variance[site]
    correlation = np.abs(covariance) / np.sqrt(sites.variance[site] * np.maximum(sites.variance[rows], 1e-300))
    correlation[(rows == site) | sites.failed[rows]] = 0.0
    near = np.argsort(-correlation, kind="stable")[:SITES]
    near = near[correlation[near] > UNCORRELATED]
    others, slope = rows[near], slope[near]
    variance = sites.variance[others] + slope**2 * (within - sites.variance[site])[:, None]
    level = np.minimum(sites.level[others], FINEST)
    terms = log_expectations(sites, factors, others, moved[:, None] * slope, variance, level)
    found = np.isfinite(terms).all(axis=0)
    log_shares = np.log(np.maximum(shares, 1e-300)) + terms[:, found].sum(axis=1)
    return float(np.abs(np.exp(log_shares - logsumexp(log_shares)) - shares).max())


def square_factor(q: Gaussian) -> Array:
    """Return the factor of the covariance as a matrix."""
    return q.factor if q.factor.ndim == 2 else np.diag(q.factor)
