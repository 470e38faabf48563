"""Importance sampling ABC: evidence and means with standard errors, and the number of data sets of each point.

Var Ẑ is a sum of two parts. The part from the points is O(1/N) for random points and o(1/N) for scrambled nets. The
part from the simulator given the points is N⁻² Σ (p/q)² Var(L̂ₙ) (Buchholz & Chopin 2019, equations 3.6–3.8). With
nets and M ≥ 2 the second part is sufficient to first order, and one run estimates it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.stats import f as f_distribution

from ppl_backends.simulators.abc.kernels import log_kernel
from ppl_backends.simulators.abc.stages import Stage, Weights
from ppl_backends.targets.protocol import Array

__all__ = ["AbcEvidence", "allocate", "estimate", "mean_with_error", "smoothed_moments"]

LARGEST_DOUBT = 0.1  # level at which the spread of scrambles contradicts the single-run formula
NEIGHBOURS = 8
HITS_NEARBY = 3  # hits from which moments at a point are estimated
REACH = 2.0  # multiple of the distance to a point's last neighbour within which it counts as a neighbour itself
STRATA = 8  # of p/q, within which the variance of K is estimated
SHRINKAGE = 4.0  # weight of equal numbers, in points of the pilot with hits
LARGEST_ALLOCATION = 10  # times the mean number of data sets of a point


class AbcEvidence(NamedTuple):
    """log E[K] under the prior.

    Attributes
    ----------
    log_evidence : float
    standard_error : float
        Relative standard error of the evidence.
    df : float
        Degrees of freedom of the standard error; infinite if it comes from many points.
    source : {"single run", "scrambles", "weights"}
        Source of the standard error: equation (3.8), the spread of chains, or independent points.
    """

    log_evidence: float
    standard_error: float
    df: float
    source: str


def estimate(stage: Stage, weights: Weights, qmc: bool) -> AbcEvidence:
    """Return the evidence of a stage with its standard error.

    For nets it is that of equation (3.8), or the spread of independent scrambles if that is larger: the points' share
    of the variance is of lower order, but not zero. If the two contradict each other, it has the few degrees of
    freedom of the spread.
    """
    w = weights.weight
    mean = w.mean()
    if not mean > 0:
        return AbcEvidence(-np.inf, np.nan, np.nan, "weights")
    log_evidence = float(np.log(mean) + weights.log_scale)
    source, variance, df = _variance(stage, weights, w, qmc)
    return AbcEvidence(log_evidence, float(np.sqrt(variance) / mean), df, source)


def mean_with_error(stage: Stage, weights: Weights, values: Array, qmc: bool) -> tuple[Array, Array, Array]:
    """Return posterior means, standard errors and standard deviations of values ``(n, ...)``.

    The error is that of Σ wₙ(φₙ − φ̂) / Σ wₙ, computed as for an evidence with weights wₙ(φₙ − φ̂). In the thesis'
    formula p²/q must be (p/q)², because points are drawn from q.
    """
    n, w = len(values), weights.weight
    flat = np.asarray(values, dtype=np.float64).reshape(n, -1)
    share = w / w.sum()
    used = share > 0
    mean = share[used] @ flat[used]
    sd = np.sqrt(share[used] @ (flat[used] - mean) ** 2)
    apart = np.where(used[:, None], flat - mean, 0.0)
    errors = [np.sqrt(_variance(stage, weights, w * column, qmc, column)[1]) / w.mean() for column in apart.T]
    shape = np.shape(values)[1:]
    return mean.reshape(shape), np.reshape(errors, shape), sd.reshape(shape)


def _variance(
    stage: Stage, weights: Weights, terms: Array, qmc: bool, factor: Array | float = 1.0
) -> tuple[str, float, float]:
    """Return source, variance and degrees of freedom of the mean of ``terms`` ``(n,)``, which are w times a factor."""
    n = len(terms)
    independent = float(np.var(terms, ddof=1) / n) if n > 1 else np.nan
    within = np.sum((weights.ratio * factor) ** 2 * weights.variance) / n**2
    single = qmc and stage.complete and np.isfinite(within) and within > 0
    labels = np.unique(stage.chain)
    if not qmc or not stage.complete or (len(labels) < 2 and not single):
        return "weights", independent, np.inf
    if len(labels) < 2:
        return "single run", float(within), np.inf
    means = np.array([terms[stage.chain == label].mean() for label in labels])
    spread, df = float(means.var(ddof=1) / len(labels)), len(labels) - 1.0
    if not single:
        return "scrambles", spread, df
    if f_distribution.sf(spread / within, df, n) > LARGEST_DOUBT:
        return "single run", float(max(within, spread)), np.inf
    return "scrambles", spread, df


def smoothed_moments(stage: Stage, kernel: str, epsilon: float) -> tuple[Array, Array]:
    """Return E[K | θ] and E[K² | θ] ``(n,)``, up to the same power of a factor, as means over the nearest points.

    If hits are rare, a point's few data sets contain little information, and the mean root of their mean square is the
    probability of a hit, not its root.
    """
    alive = stage.log_ratio > -np.inf
    counts, ends = stage.block.counts, np.cumsum(stage.block.counts)
    logs = log_kernel(kernel, stage.block.distances, epsilon)
    value = np.exp(logs - max(logs.max(initial=-np.inf), -1e300))
    moments = np.stack([np.add.reduceat(v, ends - counts) / counts for v in (value, value**2)])
    n = int(alive.sum())
    rate = value.sum() ** 2 / max(np.sum(value**2), 1e-300) / max(n, 1)  # hits per point
    k = int(np.clip(HITS_NEARBY / max(rate, 1e-9), NEIGHBOURS, n // 10))
    if n > 2 * NEIGHBOURS:
        known = _standardised(stage.x[alive])
        apart, near = cKDTree(known).query(known, k=max(k, 2))
        mutual = apart <= REACH * apart[near, -1]  # an isolated point is not a neighbour of its nearest points
        share = mutual / mutual.sum(axis=1, keepdims=True)
        moments[:, alive] = np.einsum("pnk,nk->pn", moments[:, alive][:, near], share)
    return moments[0], moments[1]


def _standardised(x: Array) -> Array:
    """Return points in units of their spread between quartiles."""
    low, centre, high = np.quantile(x, [0.25, 0.5, 0.75], axis=0)
    return (x - centre) / np.where(high > low, high - low, 1.0)


def allocate(pilot: Array, variance: Array, log_ratio: Array, mean: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return numbers of data sets for new points, in proportion to (p/q)√Var(K | θ) in a pilot (Neyman allocation).

    The variance is estimated in strata of p/q, to which the proposal was fitted, because a few near hits are more
    informative about all points of one density than about a neighbourhood. A stratum is shrunk towards equal numbers,
    so that a stratum without hits in the pilot still gets data sets. Numbers depend on the pilot and on the points,
    not on the data simulated at them, so there is no bias. Every point has at least two data sets, which single-run
    errors need, and at most ten times the mean.

    Parameters
    ----------
    pilot : ndarray (m,)
        Log p/q of the new proposal at the pilot's points; ``-inf`` if nothing was simulated.
    variance : ndarray (m,)
        Unbiased estimates of Var(K | θ) there, up to a factor.
    log_ratio : ndarray (n,)
        Log p/q at the new points.
    mean : int
        Mean number of data sets per point.
    rng : numpy.random.Generator
    """
    counts = np.full(len(log_ratio), mean, dtype=np.intp)
    alive, known = log_ratio > -np.inf, np.flatnonzero(pilot > -np.inf)
    if mean <= 2 or not alive.any() or not variance[known].any():
        return counts
    order = known[np.argsort(pilot[known])]
    term = np.exp(2 * (pilot[order] - pilot[order].max())) * variance[order]
    strata = [part for part in np.array_split(np.arange(len(order)), STRATA) if len(part)]
    stratum = np.searchsorted([pilot[order[part[0]]] for part in strata[1:]], log_ratio[alive])
    total, size = np.array([(term[part].sum(), len(part)) for part in strata]).T
    everywhere = np.bincount(stratum, minlength=len(strata)) @ (total / size) / alive.sum()
    added = SHRINKAGE * len(order) * np.sum(term**2) / term.sum() ** 2
    wish = np.sqrt((total + added * everywhere) / (size + added))[stratum]
    extra = np.minimum((mean - 2) * wish / wish.mean(), LARGEST_ALLOCATION * mean)
    counts[alive] = 2 + np.floor(extra + rng.random(len(extra)))
    return counts
