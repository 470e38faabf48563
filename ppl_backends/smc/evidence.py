r"""Variance of a log evidence, from one run's lineages, and over several runs.

One run. With G_t^i the incremental weight of particle i at stage t over its mean, log Ẑ − log Z ≈ Σ_t (1/N) Σ_i (G_t^i
− 1). Particles that descend from different initial particles are independent. So with E_t^i the initial ancestor of
particle i, the contributions U_e = Σ_t Σ_{i: E_t^i = e} (G_t^i − 1) give the variance N⁻² Σ_e U_e² (Chan & Lai 2013;
Lee & Whiteley 2018). Grouping by lineage includes the correlation between copies of a particle, and the correlation
between stages that a slowly mixing kernel leaves. Systematic resampling adds no noise to first order, so its term is
left out; its effect is in the counts of each lineage.

A cross-check. Path sampling writes log Z as the integral over β of E_β[increment] (Gelman & Meng 1998). Between two
betas the integrand is estimated from the particles of the nearer one, reweighted; the integral is then log
mean_t{exp(Δ·increment/2)} − log mean_{t+1}{exp(−Δ·increment/2)}, whose second half uses the particles *after* their
moves. Its difference from log Ẑ has mean zero if the kernels leave their targets invariant and mix, and a variance
from the same lineages.

Several runs. The evidence is the mean of the runs' evidences. Its error pools the single-run variances with the spread
of the runs. If the spread is too large for the single-run error (an F test), only the spread is used, with its few
degrees of freedom. The error of a posterior mean, and thus of the share of a mode, is computed in the same way
(:func:`ess_of_means`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.stats import f as f_distribution

from ppl_backends.numerics.bridge import degrees_of_freedom
from ppl_backends.numerics.weights import OUTER, effective_sample_size, log_mean_exp, normalised_weights, pareto_k
from ppl_backends.targets.protocol import Array, Index

# A single-run variance counts for at most this many degrees of freedom, so that the spread between runs has influence.
_MAX_SINGLE_RUN_DF = 10.0
# Spread of log evidences, squared, that rounding explains.
_ROUNDING = 1e-12
# Pareto k of a coordinate's distance from its mean, above which it has no variance.
_LARGEST_K_OF_VARIANCE = 0.5
# Probability that any point is repeated so often.
_BY_CHANCE = 0.01
# Level of the test that the spread between runs exceeds the single-run error.
_SPREAD_LEVEL = 0.005


class LineageVariance:
    """Accumulate U_e over the stages of one run of ``n`` particles."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.contribution = np.zeros(n)
        self.ancestor = np.arange(n)

    def reweighted(self, weights: Array, before: Array | None = None) -> LineageVariance:
        """Return a copy with a stage that changes normalised weights ``before``, by default equal, to ``weights``."""
        carried = copy.copy(self)
        added = self.by_lineage(self.n * (weights - (1.0 / self.n if before is None else before)))
        carried.contribution = self.contribution + added
        return carried

    def by_lineage(self, values: Array) -> Array:
        """Return sums ``(n,)`` of the particles' values over the descendants of each initial particle."""
        return np.bincount(self.ancestor, values, minlength=self.n).astype(np.float64)

    def resampled(self, parents: Index) -> LineageVariance:
        """Return a copy with the ancestors of the new particles."""
        carried = copy.copy(self)
        carried.ancestor = self.ancestor[parents]
        return carried

    @property
    def n_lineages(self) -> int:
        """Return the number of initial particles that still have descendants."""
        return len(np.unique(self.ancestor))

    @property
    def variance(self) -> float:
        """Return the estimated variance of log Ẑ."""
        return float((self.contribution**2).sum() / self.n**2)

    @property
    def df(self) -> float:
        """Return the degrees of freedom of :attr:`variance`: 3(ΣU²)²/ΣU⁴, which is n for n equal Gaussian terms."""
        return float(degrees_of_freedom(self.contribution))


@dataclass(frozen=True)
class PathSampling:
    """Log evidence of one run by path sampling; ``difference`` ``(n,)`` are lineages' contributions to log Ẑ minus it."""

    log_evidence: float
    difference: Array

    def after(self, step: Any) -> PathSampling:
        """Add a :class:`~ppl_backends.smc.core.Step` along a path with an ``increment``.

        Particles before the step estimate its first half, the moved ones the second; after an importance step there is none.
        """
        before, after = step.before, step.after
        if step.moved.summary is None:
            return PathSampling(after.log_evidence, np.zeros_like(self.difference))
        n, relative = len(step.weights), log_relative(before.weights)
        whole, _ = normalised_weights(step.log_weights + relative)
        half, forward = normalised_weights(0.5 * step.log_weights + relative)
        difference = self.difference + before.lineage.by_lineage(n * (whole - half))
        back = -0.5 * (after.stage.step * after.population.increment)
        half, backward = normalised_weights(back + log_relative(after.weights))
        now = 1.0 / n if after.weights is None else after.weights
        difference = difference + after.lineage.by_lineage(n * (half - now))
        return PathSampling(self.log_evidence + forward - backward, difference)

    @property
    def variance_of_difference(self) -> float:
        """Return the estimated variance of log Ẑ minus this log evidence."""
        return float((self.difference**2).sum() / len(self.difference) ** 2)


def log_relative(weights: Array | None) -> Array | float:
    """Return logs of normalised weights scaled to mean one; 0 for None, which means equal weights."""
    if weights is None:
        return 0.0
    with np.errstate(divide="ignore"):
        logs: Array = np.log(len(weights) * weights)
    return logs


class EvidenceEstimate(NamedTuple):
    """Log evidence of several runs; ``df`` are degrees of freedom of its standard error, for intervals by Student's t.

    ``spread`` is the standard deviation of the runs' log evidences, NaN for one run; if ``runs_disagree``, it is
    larger than the single-run errors explain.
    """

    log_evidence: float
    standard_error: float
    df: float
    runs_disagree: bool
    spread: float

    @property
    def reasons(self) -> list[str]:
        """Return the reason not to trust runs that disagree, if they do."""
        if not self.runs_disagree:
            return []
        return [
            f"the chains' log evidences have a standard deviation of {self.spread:.2f}, more than the error that each chain "
            "reports: increase draws"
        ]


def combine_evidence(log_evidence: Array, variance: Array, df: Array) -> EvidenceEstimate:
    """Pool runs ``(runs,)``: return the log of the mean evidence and its standard error."""
    runs = len(log_evidence)
    combined = float(log_mean_exp(log_evidence))
    pooled, total_df, disagree = (float(figure) for figure in _pooled(log_evidence, variance, df))
    spread = float(np.std(log_evidence, ddof=1)) if runs > 1 else float("nan")
    return EvidenceEstimate(combined, (pooled / runs) ** 0.5, total_df, bool(disagree), spread)


def evidence_of_runs(runs: Sequence[Any]) -> EvidenceEstimate:
    """Return the evidence of independent runs of SMC, states or results, from their lineages."""
    return combine_evidence(*np.array([(run.log_evidence, run.lineage.variance, run.lineage.df) for run in runs]).T)


def _pooled(values: Array, variance: Array, df: Array) -> tuple[Array, Array, Array]:
    """Return the variance of one run, its degrees of freedom, and whether the runs disagree, from figures ``(runs, ...)``."""
    runs = len(values)
    single = variance.mean(axis=0)
    single_df = np.minimum(df.sum(axis=0), _MAX_SINGLE_RUN_DF * runs)
    if runs == 1:
        return single, single_df, np.zeros(single.shape, dtype=bool)
    between = values.var(axis=0, ddof=1)
    disagree = between > np.maximum(single * f_distribution.isf(_SPREAD_LEVEL, runs - 1, single_df), _ROUNDING)
    both = single_df + runs - 1
    pooled = (single_df * single + (runs - 1) * between) / both
    return np.where(disagree, between, pooled), np.where(disagree, runs - 1.0, both), disagree


def sums_by_lineage(values: Array, ancestor: Index) -> Array:
    """Return the sums of rows ``(n, k)`` over the particles of every lineage; different lineages are independent."""
    _, lineage = np.unique(ancestor, return_inverse=True)
    n = len(lineage)
    return sparse.csr_matrix((np.ones(n), (lineage, np.arange(n)))) @ values


def effective_lineages(ancestor: Index) -> float:
    """Return the effective number of independent lineages among particles that descend from these."""
    _, members = np.unique(ancestor, return_counts=True)
    return effective_sample_size(np.log(members))


Columns = Sequence[tuple[Array, Index]]
"""For every run, values ``(n, k)`` of its particles, and the lineage of each."""


def variance_of_means(samples: Columns) -> Array:
    """Return the variance ``(dim,)`` of the mean over all runs, from lineages within runs and the spread between them."""
    means, variance, df = [], [], []
    for x, ancestor in samples:
        by_lineage = sums_by_lineage(x - x.mean(axis=0), ancestor)
        means.append(x.mean(axis=0))
        variance.append((by_lineage**2).sum(axis=0) / len(x) ** 2)
        df.append(degrees_of_freedom(by_lineage))
    pooled, _, _ = _pooled(np.stack(means), np.stack(variance), np.stack(df))
    found: Array = np.maximum(pooled / len(samples), 1e-300)
    return found


def ess_of_means(samples: Columns, variance: Callable[[Columns], Array] = variance_of_means) -> Array:
    """Return the effective number of draws ``(dim,)`` of each coordinate's mean over all runs.

    It uses lineages within runs and the spread between runs, because the lineages of a run that lost a mode do not show it.
    """
    total = np.concatenate([x for x, _ in samples]).var(axis=0)
    ess: Array = total / variance(samples)
    return np.where(total > 0, ess, np.inf)


def precision_of_sds(samples: Columns, variance: Callable[[Columns], Array] = variance_of_means) -> Array:
    """Return (sd / standard error of the sd)² of each coordinate over all runs ``(dim,)``.

    It is comparable to :func:`ess_of_means`, the same figure for a mean, but much smaller if a small mode at a
    distance determines the sd. Coordinates are cut at their outer per cent, so that the figure exists with heavy tails
    too.
    """
    pooled = np.concatenate([x for x, _ in samples])
    low, high = np.quantile(pooled, [OUTER, 1 - OUTER], axis=0)
    centre = np.clip(pooled, low, high).mean(axis=0)
    squares = [((np.clip(x, low, high) - centre) ** 2, ancestor) for x, ancestor in samples]
    total = np.concatenate([square for square, _ in squares]).mean(axis=0)
    # d sd / sd = d variance / (2 variance)
    precision: Array = 4 * total**2 / variance(squares)
    return np.where(total > 0, precision, np.inf)


def precision_of_stuck_points(samples: Sequence[Array]) -> Array:
    """Return (sd / standard error of the sd)² ``(dim,)``, where the error is only that of points that do not move.

    A chain that never moves repeats its point. If the point is far out, its copies may be a third of the variance, but
    :func:`precision_of_sds` cuts coordinates off there. A point is stuck if it is repeated more often than rejections
    anywhere explain. Coordinates whose tails have no variance do not count.
    """
    x = np.concatenate(samples)
    is_new = np.concatenate([np.r_[True, (own[1:] != own[:-1]).any(axis=1)] for own in samples])
    point = np.cumsum(is_new) - 1
    times, rejected = np.bincount(point), 1.0 - is_new.mean()
    stuck = np.flatnonzero(rejected ** (times - 1.0) * len(times) < _BY_CHANCE)
    squares = (x - x.mean(axis=0)) ** 2
    error = ((times[stuck, None] * squares[is_new][stuck]) ** 2).sum(axis=0) / len(x) ** 2
    found = 4 * squares.mean(axis=0) ** 2 / np.where(error > 0, error, np.nan)
    precision: Array = np.nan_to_num(found, nan=np.inf)
    for column in np.flatnonzero(precision < len(x)):
        if pareto_k(0.5 * np.log(squares[is_new, column] + 1e-300)) > _LARGEST_K_OF_VARIANCE:
            precision[column] = np.inf
    return precision
