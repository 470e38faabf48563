r"""Particle marginal Metropolis–Hastings: the likelihood estimate is a particle filter's (Andrieu, Doucet & Holenstein 2010).

The chain's record stores the filter by its seed: every number that the filter drew is a function of the seed and of
the row of data, so that the states of a draw can be computed again later
(:func:`~ppl_backends.kernels.particle.paths.replayed`). All chains move as one batch, with one call of the filter for
all of their proposals.

The correlated form (Deligiannidis, Doucet & Pitt 2018) stores the filter's normal numbers u instead of the seed. A
proposal moves the parameters, and a stretch of the rows gets fresh numbers (blocks instead of an autoregression: Tran,
Kohn, Quiroz & Villani 2016), so that the errors of the two estimates in the ratio are correlated. Every proposal draws
the length of the stretch anew, with a share of the rows that is log-uniform between 1 − ρ and 1. So for any ρ a few
proposals renew every number. The filter sorts its particles before it resamples them, so that equal numbers choose
nearby particles; otherwise the first resampling would destroy the correlation. Because particles are sorted, the
numbers of a row may come from a lattice (:mod:`~ppl_backends.targets.state_space.lattice`), which makes the estimates
several times as precise.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtr

from ppl_backends.errors import PriorSamplingError
from ppl_backends.kernels.adaptation import Adaptation
from ppl_backends.kernels.algorithm import ChainState
from ppl_backends.kernels.metric import ChainMetric
from ppl_backends.kernels.particle.filters import compiled
from ppl_backends.kernels.protocol import KernelInfo, KernelParameters, accept, column
from ppl_backends.kernels.pseudo_marginal import (
    INDEPENDENT_ESTIMATES,
    REPLICATES,
    EstimatedDensity,
    EstimatedMetropolis,
    EstimatedPoints,
    Precision,
    PseudoMarginalKernel,
)
from ppl_backends.kernels.streams import each
from ppl_backends.targets.conditional import ConditionalTarget
from ppl_backends.targets.protocol import Array, BaseTarget
from ppl_backends.targets.state_space.compiled import CompiledFilter
from ppl_backends.targets.state_space.lattice import lattice_normals

ACCEPTANCE = 0.3  # of a random walk in few dimensions
MOST_NOISE = 8.0  # for which an acceptance rate is derived
INDEPENDENT, TAILS = 0.5, 5.0  # share of independent proposals, and their degrees of freedom
CORRELATION = 0.99  # of the automatic choice
# The variance is that of log ratios, mean over stretches; it falls faster with the points of a lattice.
CORRELATED = Precision(variance=0.5, power=1.5, saves=False)
CANDIDATES, LEFT = 64, 4.0  # candidate starting points of either kind, and their effective number


class FilterEstimator:
    """Likelihood estimates by a particle filter, of all points at once.

    Parameters
    ----------
    target : BaseTarget, or a block of one
        A target with ``state_space``.
    particle_filter : Filter
    correlation : float or "auto"
        ρ. Above 0, the filter is a function of normal numbers that are part of the chain's state. "auto" is 0.99 if
        states are scalars and Numba compiles the filter, else 0.
    """

    def __init__(self, target: BaseTarget, particle_filter: Any, correlation: Any) -> None:
        self._target, self._series = target, target.full.state_space
        made = compiled(particle_filter, self._parameters(np.zeros((1, target.dim))))
        sorts_numbers = isinstance(made, CompiledFilter) and made.state_dim == 1
        if correlation == "auto":
            correlation = CORRELATION if sorts_numbers else 0.0
        self.correlation, self.correlated = float(correlation), correlation > 0
        self.filter = particle_filter if self.correlated and not sorts_numbers else made  # Hilbert's curve needs JAX
        self.n_rows, self._n_normals = particle_filter.n_rows, particle_filter.model.n_normals
        self.n_normals = 1 if self.correlated else None  # marks correlated estimates
        self.one_by_one = self.filter is not particle_filter  # fewer filters take less time; JAX runs whole batches

    def why_zero(self, x: Array) -> str:
        """Return which row no particle explains at a point ``(dim,)``; empty if all have a positive density."""
        return self._target.full.explain(self._target.embed(x[None])[0])

    def numbers(self, n: int, n_particles: int, rng: Any) -> NDArray:
        """Return the random inputs of the filters of ``n`` points: seeds ``(n,)``, or normals ``(n, rows, k)``."""
        if not self.correlated:
            return seeds_from(rng, n)
        return np.stack([self.normals(self.n_rows, n_particles, own) for own in each(rng, n)])

    def normals(self, n_rows: int, n_particles: int, rng: np.random.Generator) -> Array:
        """Return the normals ``(n_rows, k)`` of some rows of one filter."""
        return lattice_normals(rng.standard_normal((n_rows, self._n_normals + 1)), n_particles)

    def __call__(self, x: Array, n_particles: int, noise: Array) -> Array:
        """Return the log estimates at points ``(n, dim)``."""
        filters: Any = self.filter
        if not self.correlated:
            return np.asarray(filters.run(self._parameters(x), n_particles, noise))
        return np.asarray(filters.run_with_normals(self._parameters(x), n_particles, noise.reshape(len(x), -1)))

    def _parameters(self, x: Array) -> dict[str, Array]:
        found: dict[str, Array] = self._series.parameters_at(self._target.embed(x))
        return found


def seeds_from(rng: Any, n: int) -> NDArray[np.uint64]:
    """Return the seed of a filter for each of ``n`` points ``(n,)``, from each point's generator."""
    return np.array([own.integers(0, 2**64, dtype=np.uint64) for own in each(rng, n)])


def rest_of(target: BaseTarget) -> BaseTarget:
    """Return all terms of a target except those of its series, on the same coordinates."""
    full: Any = target.full
    rest: BaseTarget = full.rest if full is target else ConditionalTarget(full.rest, target.free, target.point)
    return rest


def grid(n: int) -> int:
    """Return the smallest of 4, 6, 8, 12, 16, 24, … that is at least ``n``; each number of particles needs a compilation.

    Examples
    --------
    >>> [grid(n) for n in (1, 5, 9, 100)]
    [4, 6, 12, 128]
    """
    power = 4
    while power < n:
        if n <= power + power // 2:
            return power + power // 2
        power *= 2
    return power


class FilteredDensity(EstimatedDensity):
    """A state-space model with its likelihood estimated by particle filters, in one call for all points."""

    fewest, most_at_start, most = 32, 256, 16384

    def beside(self, points: EstimatedPoints, x: Array, rng: Any) -> EstimatedPoints:
        """Return proposals ``(n, dim)`` with separate filters; none is run outside the support of the prior."""
        log_rest = self.target.log_density(x)
        inside = np.isfinite(log_rest)
        run = inside if self.estimator.one_by_one else np.full(len(x), True)
        noise = self.moved(points.noise, points.n_estimates, rng)
        estimate = np.full(len(x), -np.inf)
        if inside.any():
            found = self.estimator(np.where(inside[:, None], x, points.x)[run], points.n_estimates, noise[run])
            estimate[inside] = found[inside[run]]
        return replace(points, x=x, log_rest=log_rest, estimate=estimate, noise=noise)

    def why_zero(self, x: Array) -> str:
        """Return which row no particle explains at a point ``(dim,)``."""
        return f": {self.estimator.why_zero(x)}"

    def moved(self, noise: Any, n_particles: int, rng: Any) -> Array:
        """Return a proposal's numbers: fresh seeds, or the current numbers with fresh ones in a stretch of rows.

        Rows are on a circle: the first follows the last.
        """
        if not self.estimator.correlated:
            return self.estimator.numbers(len(noise), n_particles, rng)
        noise, n_rows = noise.copy(), self.estimator.n_rows
        for i, own in enumerate(each(rng, len(noise))):
            length = int(np.ceil(n_rows * (1.0 - self.correlation) ** own.random()))
            stretch = (own.integers(n_rows) + np.arange(length)) % n_rows
            noise[i, stretch] = self.estimator.normals(length, n_particles, own)
        return noise

    def initial_point(self, rng: np.random.Generator) -> Array | None:
        """Return one of many points, dispersed ones and draws of the prior, by a power of its estimated posterior.

        The power leaves an effective number of points, so that chains start apart from each other.
        """
        full = self.target.full
        if len(self.target.others):
            return None  # a block starts with the other coordinates
        x = full.initial_points(CANDIDATES, rng)
        with suppress(PriorSamplingError):
            x = np.concatenate([x, full.sample_prior(CANDIDATES, rng)])
        n = self.n_first or self.fewest
        value = self.target.log_density(x) + self.estimator(x, n, self.estimator.numbers(len(x), n, rng))
        value = np.where(np.isnan(value), -np.inf, value)
        if not np.isfinite(value).any():
            return None
        return x[rng.choice(len(x), p=_tempered(value, LEFT))]

    def fresh(self, points: EstimatedPoints, rng: Any) -> EstimatedPoints:
        """Return the points with fresh filters, the first of a few with a positive estimate; unchanged if there is none."""
        estimate, noise = np.full(len(points.x), -np.inf), None
        for _ in range(REPLICATES):
            numbers = self.estimator.numbers(len(points.x), points.n_estimates, rng)
            found, zero = self.estimator(points.x, points.n_estimates, numbers), ~np.isfinite(estimate)
            noise = numbers if noise is None else np.where(zero.reshape(-1, *[1] * (numbers.ndim - 1)), numbers, noise)
            estimate = np.where(zero, found, estimate)
            if np.isfinite(estimate).all():
                return replace(points, estimate=estimate, noise=noise)
        return points

    def measured(self, points: EstimatedPoints, rng: Any) -> EstimatedPoints:
        """Return points with the median over chains of the variance of the log estimate, or of near ones' difference."""
        values = np.empty((REPLICATES, len(points.x)))
        for i in range(REPLICATES):
            noise = self.estimator.numbers(len(points.x), points.n_estimates, rng)
            values[i] = self.estimator(points.x, points.n_estimates, noise)
            if self.estimator.correlated:
                near = self.moved(noise, points.n_estimates, rng)
                with np.errstate(invalid="ignore"):  # both may be −inf
                    values[i] -= self.estimator(points.x, points.n_estimates, near)
        with np.errstate(invalid="ignore"):
            variance = (values**2).mean(axis=0) if self.estimator.correlated else values.var(axis=0, ddof=1)
        return replace(points, variance=float(np.median(np.where(np.isnan(variance), np.inf, variance))))

    def rounded(self, n: int) -> int:
        """Return a number of particles that is near ``n`` and at least ``n``."""
        return grid(n)


class ParticleMetropolisKernel(PseudoMarginalKernel):
    """Proposals with separate filters: random-walk proposals, or half of them independent of the current point.

    A chain that waits for an estimate as large as its current one waits equally long for any proposal, so accepted
    proposals should be far away. Independent proposals are Student t with the learnt centre and shape. Errors of
    correlated filters are correlated there too, because the error of the log likelihood changes little over the width
    of a posterior.
    """

    name = "particle Metropolis"
    estimates = "particles"
    stats = MappingProxyType(
        {"scaling": float, "n_particles": int, "estimate_variance": float, "estimate": float, "seed": int}
    )

    def step(self, rng: Any, population: Any, density: Any, parameters: KernelParameters) -> tuple[Any, KernelInfo]:
        """Move every chain once."""
        metric, n = parameters.metric, len(population.x)
        if not isinstance(metric, ChainMetric):
            return super().step(rng, population, density, parameters)
        far = rng.random(n) < INDEPENDENT
        z, precision = rng.standard_normal(population.x.shape), gammaincinv(TAILS / 2, rng.random(n)) / (TAILS / 2)
        jump, drawn = column(parameters.scale) * z, z / np.sqrt(precision)[:, None]
        x = np.where(far[:, None], metric.place(drawn), population.x + metric.colour(jump))
        proposal = density.beside(population, x, rng)
        back = np.where(far, _log_student(metric.whiten(population.x)) - _log_student(drawn), 0.0)
        ratio = self.log_ratio(population, proposal) + back
        return accept(rng, population, proposal, ratio, np.where(far, np.nan, (jump**2).sum(axis=1)))

    def adapt(self, parameters: Any, info: KernelInfo, population: Any = None) -> Any:
        """Return parameters that follow the acceptance of the random walk, during tuning."""
        walked = ~np.isnan(info.squared_jump)
        rate = info.acceptance[walked].mean() if walked.any() else parameters.adaptation.step.target
        return super().adapt(parameters, info._replace(acceptance=rate), population)

    def statistics(self, before: Any, after: Any, parameters: KernelParameters, info: KernelInfo) -> Mapping[str, Any]:
        """Return the scale, the filters' size and variance, and the estimate and the seed of the current filter."""
        return {
            "scaling": parameters.scale,
            "n_particles": before.n_estimates,
            "estimate_variance": before.variance,
            "estimate": after.estimate,
            "seed": after.noise.view(np.int64) if after.noise.ndim == 1 else 0,
        }


class ParticleMetropolis(EstimatedMetropolis):
    """Random-walk Metropolis–Hastings on a particle filter's estimate of the likelihood. Exact.

    Parameters
    ----------
    target : BaseTarget, or a block of one
        A target with ``state_space``; its log density contains all terms but the likelihood of the series.
    particle_filter : Filter
    n_particles : int or "auto"
        N_x; "auto" chooses it at the start and during tuning.
    correlation : float or "auto"
        The largest share of rows whose normal numbers a proposal keeps, ρ; 0 for fresh filters. "auto" is 0.99 if
        states are numbers and Numba compiles the filter, else 0.
    covariance : array (dim, dim), optional
        Shape of the proposals; learnt during tuning by default.
    """

    def __init__(
        self,
        target: BaseTarget,
        particle_filter: Any,
        *,
        n_particles: Any = "auto",
        correlation: Any = "auto",
        covariance: Any = None,
    ) -> None:
        kernel, estimator = ParticleMetropolisKernel(), FilterEstimator(target, particle_filter, correlation)
        scale, rate = kernel.initial_scale(target.dim), kernel.target_acceptance
        tuning = Adaptation.of_covariance(covariance, target.dim, scale, rate, pooled=True)
        first = None if n_particles == "auto" else n_particles
        wanted = CORRELATED if estimator.correlated else INDEPENDENT_ESTIMATES
        density = FilteredDensity(rest_of(target), estimator, estimator.correlation, first, tuning, wanted)
        super().__init__(kernel, density, "take a guided filter (proposal=), or a correlated one (correlation=0.99)")
        self.attributes = {
            "correlation": estimator.correlation,
            "filter": particle_filter.method,
            "compiled_by": "numba" if estimator.one_by_one else "jax",
        }

    def start(self, x: Array, rng: Any) -> ChainState:
        """Return the state at ``x`` ``(n, dim)``, with the acceptance rate that such filters allow."""
        return self._aimed(super().start(x, rng))

    def checked(self, state: ChainState, rng: Any) -> ChainState:
        """Return the state with a sufficient number of particles, and the acceptance rate that they allow."""
        return self._aimed(super().checked(state, rng))

    def _aimed(self, state: ChainState) -> ChainState:
        """Return the state with proposals that target the acceptance rate of a good random walk under the filters' noise.

        Log ratios whose noise has variance s² reduce the acceptance rate by a factor 2Φ(−s/2) (Doucet, Pitt,
        Deligiannidis & Kohn 2015); s² is twice the variance of one estimate if estimates are independent.
        """
        noise = min(state.population.variance, MOST_NOISE) * (1.0 if self.density.estimator.correlated else 2.0)
        adaptation = state.parameters.adaptation
        step = adaptation.step._replace(target=float(ACCEPTANCE * 2.0 * ndtr(-0.5 * np.sqrt(noise))))
        return state._replace(parameters=state.parameters._replace(adaptation=adaptation._replace(step=step)))


def _log_student(y: Array) -> Array:
    """Return the log density of Student t vectors ``(n, dim)``, up to a constant ``(n,)``."""
    return np.asarray(-0.5 * (TAILS + y.shape[1]) * np.log1p((y**2).sum(axis=1) / TAILS))


def _tempered(value: Array, ess: float) -> Array:
    """Return weights ``(n,)`` in proportion to the largest power ≤ 1 of exp(``value``) with this effective sample size."""
    power = 1.0
    while True:
        weights = np.exp(power * (value - value.max()))
        weights /= weights.sum()
        if 1.0 / (weights**2).sum() >= min(ess, 0.5 * np.isfinite(value).sum()):
            return weights
        power *= 0.8
