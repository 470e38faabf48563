r"""The path over a series whose particles each carry a filter: SMC² (Chopin, Jacob & Papaspiliopoulos 2013).

As over rows, the path is p(θ | y_{1:t}) for t = 0 … n, but the likelihood of the next row is an estimate by a particle
filter with N_x particles, one filter for every θ. The weights are unbiased for any N_x ≥ 1, and so is the evidence:
the path is exact on the space of θ with all variables that its filter drew.

N_x is too small if the log of the estimate varies much. Pairs of fresh filters measure this variance after the moves,
at the current θ. (The estimates that particles carry were selected for being large, and acceptance rates also depend
on the proposals.) Filters grow around paths of states (:mod:`~ppl_backends.smc.regeneration`), or by an exchange: a
stage that adds no rows and is an importance step with weights L̂'(θ)/L̂(θ), which count in the evidence like those of
the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from ppl_backends.errors import ModelError
from ppl_backends.kernels.particle.filters import filter_of
from ppl_backends.kernels.particle.metropolis import grid
from ppl_backends.kernels.particle.narrow import narrow_proposal
from ppl_backends.kernels.particle.regeneration import Filters, KeptPaths, around, no_paths, paths_out_of
from ppl_backends.kernels.protocol import Density, Kernel
from ppl_backends.results.inference_data import group
from ppl_backends.smc.core import Moved, Resampled, SMCState, Start, Step
from ppl_backends.smc.evidence import PathSampling
from ppl_backends.smc.moves import MoveSettings, UntilMixed
from ppl_backends.smc.path import PriorPath, TemperingPath
from ppl_backends.smc.regeneration import RegeneratingMoves
from ppl_backends.smc.rows import Block, Rows, RowsPath, RowState
from ppl_backends.smc.schedule import Schedule
from ppl_backends.targets.integral import PriorIntegral, stated_integral
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation
from ppl_backends.targets.state_space.filter import FilterState, Seeds, draw_seeds

_REPLAYED = 8  # filters of a result
_LOSSY = 4.0  # variance of log estimates above which an exchange leaves few particles
_MEDIAN_OF_SQUARE = 0.4549364  # of a standard normal variable


class Growth(NamedTuple):
    """Numbers of particles of a filter.

    Attributes
    ----------
    first : int
        N_x at the start.
    variance : float
        τ, the target variance of the log estimate for larger filters.
    above : float
        Multiple of τ: the measured variance above which filters grow; infinite for filters of one size.
    below : float
        Multiple of τ: the measured variance below which filters that have grown shrink, if that takes no weights.
    most : int
        Largest N_x.
    """

    first: int = 32
    variance: float = 1.0
    above: float = 1.5
    below: float = 0.25
    most: int = 16384

    def wanted(self, n_particles: int, measured: float, without_weights: bool = False) -> int:
        """Return the next N_x: N_x σ² / τ if σ² is too large, or too small and a change leaves weights alone."""
        noise = measured / self.variance
        if noise > self.above:
            factor = min(noise, 16.0)  # if no two filters agree, σ² itself is not known
            return min(self.most, grid(int(np.ceil(n_particles * factor))))
        if without_weights and noise < self.below:
            return min(n_particles, max(self.first, grid(int(np.ceil(n_particles * noise)))))
        return n_particles


@dataclass(frozen=True)
class FilterParticles(RowState):
    """Particles of p(θ | y_{1:first}) ℓ̂(θ; y_{first+1:stop})^β with their filters, which have seen ``stop`` rows.

    Attributes
    ----------
    filter : FilterState
    fresh : ndarray (n,)
        Seeds of the filters that may replace them.
    n_particles : int
        N_x.
    wanted : int
        N_x that the next filters should have.
    variance : float
        Variance of the log estimate, as last measured.
    kept : KeptPaths or None
        The paths around which the filters were drawn, if moves regenerate filters.
    """

    filter: Any
    fresh: Any
    n_particles: int
    wanted: int
    variance: float
    kept: Any = None


class FilterPath(RowsPath):
    """The rows of a series in their order, from the prior, with filters for their likelihood.

    Parameters
    ----------
    target : BaseTarget
        A target with ``state_space``.
    prior : PriorPath
        Draws the particles before any data.
    particle_filter : Filter
    growth : Growth
    regenerates : {"", "gibbs", "partial", "growth"}
        Whether moves end with new filters around paths from the old filters: after sweeps of particle Gibbs, after
        steps of particle Metropolis, or only if filters are to grow or shrink; with "" filters that are to grow are
        exchanged.
    """

    def __init__(
        self, target: BaseTarget, prior: PriorPath, particle_filter: Any, growth: Growth, regenerates: str = ""
    ) -> None:
        TemperingPath.__init__(self, target)
        self.regenerates, self.filters = regenerates, Filters.of(particle_filter, regenerates == "gibbs")
        self.rest, self.prior, self.filter, self.growth = target.rest, prior, particle_filter, growth
        self.n, self.parameters_at = particle_filter.n_rows, target.state_space.parameters_at
        self.attributes = {
            "method": "SMC²",
            "filter": particle_filter.method,
            "filters_grow": int(np.isfinite(growth.above)),
            "filters_regenerate": regenerates,
        }
        self.integral = stated_integral(self.rest) or PriorIntegral(0.0)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as target and settings; unpickling builds the filter again."""
        return _path_again, (type(self), self.target, self.prior, self.filter.method, self.growth, self.regenerates)

    def start(self, n: int, rng: np.random.Generator) -> Start:
        """Draw particles from the prior, each with an empty filter."""
        drawn = self.prior.draw(n, rng)
        return drawn._replace(population=self._with_filters(drawn.population, self.all_of(0), rng))

    def all_of(self, rows: int) -> Any:
        """Return the stage with the first ``rows`` rows."""
        return Rows(rows, rows, 1.0, 0.0, self.n, None, self.growth.first)

    def next(self, population: Any, weights: Array | None, schedule: Schedule) -> tuple[Rows, Array]:
        """Add the next rows, or a further fraction of a row that is tempered, or exchange the filters."""
        if population.beta == 1.0 and population.wanted != population.n_particles:
            return self._exchange(population)
        stage, log_weights = super().next(population, weights, schedule)
        return stage._replace(n_particles=population.n_particles), log_weights

    def impossible(self, row: int) -> str:
        """Return what is wrong if no filter of any particle explains a row."""
        said = self.target.state_space.zero_row(row, "in every filter of all parameters")
        return f"{said}; raise n_particles or draws, or give a proposal="

    def next_block(self, population: Any, least_share: float) -> Block:
        """Return the rows to add; filters process them one by one."""
        n, seen = len(population.x), population.stop
        parameters = self.parameters_at(population.x)
        state, increment = population.filter, self._others(population.x) if seen == 0 else np.zeros(n)
        before = float(logsumexp(increment))
        log_others, scores, stop = before - float(np.log(n)), list[float](), seen
        while stop < self.n:
            state, row = self.filter.advance(parameters, state, stop, 1)
            cumulative = increment + row[:, 0]
            total = float(logsumexp(cumulative))
            with np.errstate(invalid="ignore"):  # no filter may explain the row
                low = not np.exp(2.0 * total - logsumexp(2.0 * cumulative)) >= least_share * n
                gained = np.subtract(total, before)
            if low and scores:
                break
            increment, stop = cumulative, stop + 1
            scores.append(float(gained))
            before = total
            if low:
                break
        return Block(stop, increment, np.array(scores), log_others)

    def _exchange(self, population: FilterParticles) -> tuple[Rows, Array]:
        """Return the stage with larger filters, and the ratio of their likelihood estimates to the old ones."""
        rows, size = population.stop, population.wanted
        new = self._filters(population.x, rows, size, population.fresh).log_likelihood
        log_ratio = _difference(new, population.filter.log_likelihood)
        block = Block(rows, log_ratio, np.empty(0), 0.0)
        return Rows(rows, rows, 1.0, 0.0, self.n, block, size), log_ratio

    def extend(self, population: Any, stage: Any, rng: np.random.Generator) -> Any:
        """Return the particles with their filters run over the rows of a new block, or with larger filters."""
        if stage.block is None:
            return replace(population, beta=stage.beta)
        if is_exchange(stage):
            filters = self._filters(population.x, stage.stop, stage.n_particles, population.fresh)
            changed = replace(population, filter=filters, n_particles=stage.n_particles)
            return self.with_parts(changed, stage, filters.log_likelihood)
        parameters = self.parameters_at(population.x)
        filters, _ = self.filter.advance(parameters, population.filter, stage.first, stage.stop - stage.first)
        return self.with_parts(replace(population, filter=filters), stage, population.filter.log_likelihood)

    def density(self, stage: Any) -> Density[Any]:
        """Return the map from points to particles of the stage, with fresh filters that use only its rows."""
        return lambda x, rng: self._with_filters(x, stage, rng)

    def _with_filters(self, x: Array, stage: Rows, rng: np.random.Generator) -> FilterParticles:
        """Return the points with fresh filters."""
        n, nothing = len(x), np.zeros(len(x))
        filters = self._filters(x, stage.first, stage.n_particles, draw_seeds(rng, n))
        before = filters.log_likelihood
        if stage.stop > stage.first:
            filters, _ = self.filter.advance(self.parameters_at(x), filters, stage.first, stage.stop - stage.first)
        rows = stage.first, stage.stop, filters, draw_seeds(rng, n), stage.n_particles, stage.n_particles, np.nan
        kept = no_paths(self.filter, self.parameters_at(x), n) if self.regenerates else None
        return self.with_parts(FilterParticles(x, nothing, nothing, None, None, 1.0, *rows, kept), stage, before)

    def _filters(self, x: Array, rows: int, n_particles: int, seeds: Seeds) -> Any:
        """Return filters that have processed this many rows."""
        parameters = self.parameters_at(x)
        return self.filter.advance(parameters, self.filter.start(parameters, n_particles, seeds), 0, rows)[0]

    def with_parts(self, population: FilterParticles, stage: Rows, before: Array) -> FilterParticles:
        """Return the particles at the stage, from their filters and the log likelihood of the rows ``before`` its block.

        Before the first row, other observed variables and Potentials count as part of the increment.
        """
        base = self.target.evaluate_prior(population.x)[0]
        increment = _difference(population.filter.log_likelihood, before)
        others = self._others(population.x)
        if stage.first:
            base = base + before + others
        else:
            increment = increment + others
        rows: dict[str, Any] = {"beta": stage.beta, "first": stage.first, "stop": stage.stop}
        return replace(population, base=base, increment=increment, **rows)

    def _others(self, x: Array) -> Array:
        """Return the log likelihood ``(n,)`` of all observed variables except the series."""
        parts = self.rest.evaluate(x)
        return parts.log_likelihood if isinstance(parts, Evaluation) else np.zeros(len(x))

    def moves(self, kernel: Kernel, settings: MoveSettings) -> Any:
        """Return the moves of a stage, followed by a measurement of the filters."""
        metropolis = _MeasuredMoves(UntilMixed(kernel, settings))
        return RegeneratingMoves(metropolis, settings, self.regenerates) if self.regenerates else metropolis

    def records(self, log_evidence: float, n: int) -> dict[str, Any]:
        """Return the records of a run other than its rows."""
        return {
            "path_sampling": WithoutExchanges(log_evidence, np.zeros(n)),
            "filters": FilterSizes((self.growth.first,), (np.nan,)),
        }

    def stage_figures(self, runs: Sequence[SMCState]) -> dict[str, list[Sequence[float]]]:
        """Return the rows, and the size of the filters and their variance, at every stage."""
        sizes = [run.records["filters"] for run in runs]
        figures = {
            "n_particles": [each.n_particles for each in sizes],
            "estimate_variance": [e.variance for e in sizes],
        }
        return super().stage_figures(runs) | figures

    def kept(self, runs: Sequence[SMCState]) -> dict[str, Any]:
        """Return the filters, padded to the largest."""
        populations = [run.population for run in runs]
        most = max(each.n_particles for each in populations)

        def padded(values: Array) -> Array:
            table = np.full((values.shape[0], most, *values.shape[2:]), np.nan)
            table[:, : values.shape[1]] = values
            return table

        states = np.stack([padded(each.filter.x) for each in populations])
        own = ("chain", "draw", "particle", "state")[: states.ndim]
        return {
            "filter_state": (own, states),
            "filter_log_weight": (own[:3], np.stack([padded(each.filter.log_weights) for each in populations])),
            "filter_log_likelihood": (own[:2], np.stack([each.filter.log_likelihood for each in populations])),
            "filter_seed": (own[:2], np.stack([each.filter.seeds.view(np.int64) for each in populations])),
            "fresh_seed": (own[:2], np.stack([each.fresh.view(np.int64) for each in populations])),
            "n_particles": (own[:1], np.array([each.n_particles for each in populations])),
            "wanted": (own[:1], np.array([each.wanted for each in populations])),
            "estimate_variance": (own[:1], np.array([each.variance for each in populations])),
            **(self._kept_paths(populations) if self.regenerates else {}),
        }

    def _kept_paths(self, populations: Sequence[FilterParticles]) -> dict[str, Any]:
        paths = np.stack([each.kept.x for each in populations])
        own = ("chain", "draw", "row", "state")[: paths.ndim]
        return {
            "path": (own, paths),
            "path_log_g": (own[:3], np.stack([each.kept.log_g for each in populations])),
            "path_rows": (own[:2], np.stack([each.kept.rows for each in populations])),
            "path_seed": (own[:2], np.stack([each.kept.seeds.view(np.int64) for each in populations])),
        }

    def again(self, x: Array, rows: int, points: Any, chain: int) -> FilterParticles:
        """Return the particles of a result's chain with the filters that they had."""
        found = {name: variable.values[chain] for name, variable in points.data_vars.items()}
        size = int(found["n_particles"])
        seeds, estimates = found["filter_seed"].view(np.uint64).copy(), found["filter_log_likelihood"].copy()
        kept = None
        if self.regenerates:
            path, log_g = self._longer(found["path"]), self._longer(found["path_log_g"])
            kept = KeptPaths(path, log_g, found["path_rows"], found["path_seed"].view(np.uint64))
        # The first few filters, replayed on the present rows, show whether these are the rows of the result.
        few = slice(0, _REPLAYED)
        estimates[few] = self._replayed(x[few], rows, size, seeds[few], kept and kept.take(few))
        filters = FilterState(
            np.ascontiguousarray(found["filter_state"][:, :size]),
            np.ascontiguousarray(found["filter_log_weight"][:, :size]),
            estimates,
            seeds,
        )
        nothing, fresh = np.zeros(len(x)), found["fresh_seed"].view(np.uint64)
        more = filters, fresh, size, int(found["wanted"]), float(found["estimate_variance"]), kept
        population = FilterParticles(x, nothing, nothing, None, None, 1.0, rows, rows, *more)
        return self.with_parts(population, self.all_of(rows), filters.log_likelihood)

    def _longer(self, paths: Array) -> Array:
        """Return values of paths with zeros for the new rows."""
        longer = np.zeros((len(paths), self.n, *paths.shape[2:]))
        longer[:, : paths.shape[1]] = paths
        return longer

    def _replayed(self, x: Array, rows: int, size: int, seeds: Seeds, kept: KeptPaths | None) -> Array:
        """Return log likelihoods of the rows by recomputed filters."""
        found = self._filters(x, rows, size, seeds).log_likelihood.copy()
        if kept is None:
            return found
        for first in np.unique(kept.rows[kept.rows > 0]):
            place = np.flatnonzero(kept.rows == first)
            values, own = self.parameters_at(x[place]), kept.take(place)
            filters, _ = around(self.filters, values, own, int(first), size, seeds[place])
            found[place] = self.filter.advance(values, filters, int(first), rows - int(first))[0].log_likelihood
        return found

    def paths_of(self, population: FilterParticles, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return a path ``(n, n_rows of the data[, d])`` from the filter of each particle, and its log weights."""
        n, values = len(population.x), self.parameters_at(population.x)
        kept = no_paths(self.filter, values, n) if population.kept is None else population.kept
        return paths_out_of(self.filters, values, population.filter, kept, population.stop, draw_seeds(rng, n))

    def reasons(self, runs: Sequence[SMCState]) -> list[str]:
        """Return reasons for distrust if the proposal is too narrow, or filters with noisy estimates were exchanged."""
        narrow = narrow_proposal(self.filter, self.parameters_at(runs[0].population.x))
        if narrow or self.regenerates:
            return [narrow] * bool(narrow)
        found = []
        for run in runs:
            sizes, rows = run.records["filters"], run.records["rows"].rows
            steps = zip(sizes.n_particles, sizes.n_particles[1:], sizes.variance, rows, strict=False)
            found += [(variance, old, int(row)) for old, new, variance, row in steps if new > old and variance > _LOSSY]
        if not found:
            return []
        variance, old, row = max(found)
        most = max(run.records["filters"].n_particles[-1] for run in runs)
        return [
            f"filters of {old} particles were exchanged for larger ones after row {row}, where their log estimates had "
            f"variance {variance:.1f}, so most draws lost their weight: use moves='auto', which makes filters larger without "
            f"weights, or n_particles={most} or more"
        ]

    def causes(self, runs: Sequence[SMCState]) -> list[str]:
        """Return the filters as the cause of distrust if their log estimates are noisy at the draws of a run."""
        populations = [run.population for run in runs]
        found = [
            (self._variance(each, np.random.default_rng(each.fresh)), each.n_particles)
            for each in populations
            if each.stop
        ]
        if not found or max(found)[0] <= _LOSSY:
            return []
        variance, size = max(found)
        return [
            f"log estimates of {size} particles have variance {variance:.1f} at the draws, so filters are the likely cause: "
            "give the model a proposal=, or raise n_particles until it is near one"
        ]

    def states_of(self, runs: Sequence[SMCState], rng: np.random.Generator) -> Array:
        """Return paths of states from the filters of all runs ``(chain, draw, n_rows[, d])``, NaN after the rows seen."""
        found = []
        for run in runs:
            found.append(self.paths_of(run.population, rng)[0])
            found[-1][:, run.population.stop :] = np.nan
        return np.stack(found)

    def regenerated(
        self, population: FilterParticles, paths: tuple[Array, Array], rng: np.random.Generator
    ) -> FilterParticles:
        """Return the particles at the end of a block of rows, with filters of the wanted size around paths."""
        n, stop, size = len(population.x), population.stop, population.wanted
        kept = KeptPaths(*paths, np.full(n, stop), draw_seeds(rng, n))
        values, seeds = self.parameters_at(population.x), draw_seeds(rng, n)
        filters, increments = around(self.filters, values, kept, stop, size, seeds)
        changed = replace(population, filter=filters, n_particles=size, kept=kept)
        stage = Rows(population.first, stop, 1.0, 0.0, self.n)
        return self.with_parts(changed, stage, increments[:, : population.first].sum(axis=1))

    def measured(self, population: FilterParticles, rng: np.random.Generator) -> FilterParticles:
        """Return the particles with the variance of the log estimate, and new N_x that it asks for."""
        if not np.isfinite(self.growth.above):
            return population
        variance = self._variance(population, rng)
        wanted = self.growth.wanted(population.n_particles, variance, bool(self.regenerates))
        return replace(population, fresh=draw_seeds(rng, len(population.x)), wanted=wanted, variance=variance)

    def _variance(self, population: FilterParticles, rng: np.random.Generator) -> float:
        """Return the variance of the log estimate, from pairs of fresh filters at every second θ.

        It uses the median of the squared differences, because the differences at a few θ where filters fail are unbounded.
        """
        n, half = len(population.x), len(population.x) // 2
        chosen = np.concatenate([np.tile(2 * np.arange(half), 2), np.zeros(n - 2 * half, dtype=np.intp)])
        filters = self._filters(population.x[chosen], population.stop, population.n_particles, draw_seeds(rng, n))
        estimates = filters.log_likelihood
        with np.errstate(invalid="ignore"):
            square = (estimates[:half] - estimates[half : 2 * half]) ** 2
        return float(np.median(np.where(np.isnan(square), np.inf, square))) / (2.0 * _MEDIAN_OF_SQUARE)


def _path_again(
    kind: type[FilterPath], target: BaseTarget, prior: PriorPath, method: str, growth: Growth, regenerates: str
) -> FilterPath:
    return kind(target, prior, filter_of(target, method), growth, regenerates)


def is_exchange(stage: Rows) -> bool:
    """Return whether the stage added no rows but exchanged filters."""
    return stage.block is not None and not len(stage.block.log_scores)


def filter_path(target: BaseTarget, prior: PriorPath, idata: Any) -> FilterPath:
    """Return the path along which a result of SMC² continues."""
    if target.state_space is None:
        raise ModelError(f"update_smc: the result is of a state-space model, and {target.label} has none")
    attrs, points = group(idata, "posterior").attrs, group(idata, "unconstrained_posterior")
    size = int(points["n_particles"].values.max())
    growth = Growth(size) if attrs["filters_grow"] else Growth(size, above=np.inf)
    return FilterPath(target, prior, filter_of(target, attrs["filter"]), growth, attrs["filters_regenerate"])


def _difference(after: Array, before: Array) -> Array:
    """Return ``after − before``, or −inf where either is −inf."""
    with np.errstate(invalid="ignore"):
        found: Array = after - before
    return np.where(np.isnan(found), -np.inf, found)


@dataclass(frozen=True)
class _MeasuredMoves:
    """Moves, and a measurement of the filters at the end of a block of rows."""

    moves: Any

    def __call__(self, drawn: Resampled, path: FilterPath, tuning: Any, rng: np.random.Generator) -> Moved:
        """Move the particles."""
        moved = self.moves(drawn, path, tuning, rng)
        if drawn.stage.beta < 1.0 or path.is_last(drawn.stage):
            return moved
        return moved._replace(population=path.measured(moved.population, rng))


class FilterSizes(NamedTuple):
    """N_x of every stage, and the variance of the log estimate after its moves; NaN if it was not measured."""

    n_particles: tuple[int, ...]
    variance: tuple[float, ...]

    def after(self, step: Step) -> FilterSizes:
        """Add a stage."""
        population = step.after.population
        return FilterSizes((*self.n_particles, population.n_particles), (*self.variance, population.variance))


@dataclass(frozen=True)
class WithoutExchanges(PathSampling):
    """Path sampling over the rows; for an exchange, which has no increment at other points, it uses the weights."""

    def after(self, step: Step) -> PathSampling:
        """Add a stage."""
        if not is_exchange(step.after.stage):
            found = super().after(step)
            return WithoutExchanges(found.log_evidence, found.difference)
        gained = step.after.log_evidence - step.before.log_evidence
        return WithoutExchanges(self.log_evidence + gained, self.difference)
