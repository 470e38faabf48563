"""Adaptive tempering: one run over one path of powers, assembled from its parts.

The adaptive ladder and its use from a fast approximation follow Chopin & Ridgway (2017, Algorithm 4) and Buchholz (2018,
Algorithm 12); the loop is that of :mod:`~ppl_backends.smc.core`. The last particles have been moved at β = 1 and have equal
weights. If the start is so good that the first step reaches β = 1 with light-tailed weights, the run *is*
importance sampling: no move is made and the weighted points are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.approximations.lost_mode import can_be_sought
from ppl_backends.errors import ModelError, PriorSamplingError
from ppl_backends.kernels.protocol import Kernel
from ppl_backends.kernels.tuning import FirstPairs, make_tuning
from ppl_backends.numerics.weights import NEGLIGIBLE_TAIL, normalised_weights, pareto_k, tail_share
from ppl_backends.smc.bridge_sampling import Sample, bridge_evidence
from ppl_backends.smc.checkpoint import ChainStore
from ppl_backends.smc.core import Parts, SMCState, StageCutOff, Start, Watch, begin, run_smc
from ppl_backends.smc.endless import EndlessWatch
from ppl_backends.smc.evidence import PathSampling, evidence_of_runs
from ppl_backends.smc.health import agrees, is_correlated, may_replace
from ppl_backends.smc.jumps import DensityJumpsError, density_jumps
from ppl_backends.smc.ladder import StageParticles
from ppl_backends.smc.moves import MoveSettings, Pilot, Planned, UntilMixed, WasteFree, stay
from ppl_backends.smc.path import BridgePath, PriorPath, TemperingPath
from ppl_backends.smc.records import Ladder, Plan, SMCResult, Visited, WeightedPoints, stage_figures
from ppl_backends.smc.rounding import collapse, noise_at
from ppl_backends.smc.schedule import RESAMPLE_BELOW, Resampling, Schedule
from ppl_backends.smc.start import StartFigures, cauchy_around, check_proper, start_inside
from ppl_backends.targets.protocol import BaseTarget

_MAX_STAGES = 1000
_OUT_OF_TIME = "out of time"
_LIGHT_TAIL = 0.5  # Pareto k below which the weights have a finite variance
_FEWEST = 50  # particles to which the density of a bridge is fitted
_EXTRA_MOVES = 0.125  # of the last stage, as a share of those of all earlier stages
# Of a second run: the relative ESS of a step, the factor for the number of chains, and the least number of states per chain.
_FINER_SHARE, _MORE_CHAINS, _SHORTEST = 0.9, 4, 2


class Settings(NamedTuple):
    """Settings of a run; with ``len_chain``, moves are waste-free chains of that many states.

    An ``unbiased`` run is made twice, the second time with the decisions of the first: betas and moves then do not
    depend on the particles, and the evidence (not its log) is unbiased. After ``max_time`` seconds the run ends, within a
    stage too, except in the first that it makes. If the run ``finds_jumps`` of the log density where its moves do not mix,
    it raises an error.
    """

    schedule: Schedule = Schedule()
    moves: MoveSettings = MoveSettings()
    len_chain: int | None = None
    tuning: str | FirstPairs = "acceptance"
    metric: str = "dense"
    unbiased: bool = False
    keep_ladder: bool = False
    max_time: float | None = None
    finds_jumps: bool = False

    def finer(self) -> Settings:
        """Return the settings of a second run if the first was too coarse and its ladder was chosen automatically.

        If a mode has little mass where modes separate, few chains are in it, and a step that keeps half of the
        particles may lose them; at the end means depend on few lineages. So the second run starts four times as many
        chains, with as many moves each, and every step keeps an ESS of nine tenths of the particles.
        """
        changed, length, moves = self._replace(schedule=Schedule(fraction=_FINER_SHARE)), self.len_chain, self.moves
        if length is None:
            return changed
        moves = replace(moves, minimum=min(max(moves.minimum, length - 1), moves.maximum))
        return changed._replace(len_chain=max(_SHORTEST, length // _MORE_CHAINS), moves=moves)


def run_tempering(
    path: TemperingPath,
    kernel: Kernel,
    n: int,
    rng: np.random.Generator,
    *,
    report: Callable[[SMCState], None] | None = None,
    store: ChainStore | None = None,
    **settings: Any,
) -> SMCResult:
    """Run ``n`` particles along ``path``, with fields of :class:`Settings` as ``settings``.

    ``report`` is called after every stage. A ``store`` saves the run then; a saved run in it is continued. After the
    first stage, Ctrl-C ends the run at the last finished stage.
    """
    how = Settings(**settings)
    path = path.for_moves(kernel.uses_gradient, how.metric)
    run = store.load() if store else None
    if run is None:
        run = _begin(path, kernel, n, rng, how)
    watch = Watcher(how.max_time, report, store, path, how.finds_jumps)
    while True:
        run, ended = run_smc(run, path, _parts(run, path, kernel, n, how), watch)
        plan = run.records.get("plan")
        if ended or not (isinstance(plan, Plan) and plan.pilot):
            return SMCResult.of(run, ended)
        watch.restart()
        run = replace(_begin(path, kernel, n, run.rng, how, run), seconds=run.seconds)


def move_again(
    path: TemperingPath,
    kernel: Kernel,
    n: int,
    run: SMCResult,
    *,
    report: Callable[[SMCState], None] | None = None,
    store: ChainStore | None = None,
    **settings: Any,
) -> SMCResult:
    """Return a finished run whose last stage has further moves, those of other ``settings``."""
    how = Settings(**settings)
    path = path.for_moves(kernel.uses_gradient, how.metric)
    parts, watch = _parts(run, path, kernel, n, how), Watcher(how.max_time, report, store)
    done, ended = run_smc(replace(run, stage=None), path, parts, watch)
    stages = run.stages if ended else (*run.stages[:-1], run.stages[-1].moved_again(done.stages[-1]))
    return SMCResult.of(replace(done, stages=stages, records=run.records), ended)


def _begin(
    path: TemperingPath,
    kernel: Kernel,
    n: int,
    rng: np.random.Generator,
    how: Settings,
    pilot: SMCState | None = None,
) -> SMCState:
    """Return a run at β = 0: with a pilot's plan, as a pilot, or without either."""
    start = start_inside(path, n, rng, None if pilot is None else pilot.start.n_draws)
    moved = n if how.len_chain is None else -(-n // how.len_chain)
    tuning = make_tuning(how.tuning, kernel, moved, path.target.dim, rng)
    records: dict[str, Any] = {
        "path_sampling": PathSampling(start.log_normalizer, np.zeros(n)),
        "weighted": WeightedPoints(),
    }
    if can_be_sought(path.target):
        records["visited"] = Visited.of(np.empty((0, path.target.dim)), np.empty(0))
    if how.unbiased:
        records["plan"] = Plan() if pilot is None else replace(pilot.records["plan"], pilot=False)
    if how.keep_ladder and (pilot is not None or not how.unbiased):
        records["ladder"] = Ladder((StageParticles.of(start.population, start.log_normalizer),))
    return begin(start, rng, tuning, records)


def _parts(run: SMCState, path: TemperingPath, kernel: Kernel, n: int, how: Settings) -> Parts:
    """Return the parts of the run."""
    schedule, length, plan = replace(how.schedule, len_chain=how.len_chain or 1), how.len_chain, run.records.get("plan")
    resample = Resampling(n, RESAMPLE_BELOW if how.schedule.kind == "cess" else np.inf)
    if length is not None:
        resample = Resampling(-(-n // length))
    moves: Any = UntilMixed(kernel, how.moves) if length is None else WasteFree(kernel, how.moves, length, _EXTRA_MOVES)
    if isinstance(plan, Plan) and not plan.pilot:
        schedule, moves = Schedule("fixed", betas=tuple(plan.moves)), Planned(kernel, plan.moves, length or 1)
        enough = None in plan.moves.values()
    else:
        enough = not run.stages and _is_enough(run, path, schedule)
    if enough:
        return Parts(schedule, Resampling(n), stay, stage_figures)
    return Parts(schedule, resample, Pilot(moves) if isinstance(plan, Plan) and plan.pilot else moves, stage_figures)


def _is_enough(run: SMCState, path: TemperingPath, schedule: Schedule) -> bool:
    """Return whether one importance step reaches β = 1 and no move is needed after it.

    Its draws must not be copies of a few points, and its weights must have a light tail, or a negligible share in the
    tail. The ESS is not sufficient: with heavy-tailed weights it is largest in the runs that missed the tail.
    """
    stage, log_weights = path.next(run.population, run.weights, schedule.after(run))
    if not path.is_last(stage):
        return False
    by_lineage = run.lineage.by_lineage(normalised_weights(log_weights)[0])
    if 1.0 / float((by_lineage**2).sum()) < schedule.least_share * len(by_lineage):
        return False
    return pareto_k(log_weights) <= _LIGHT_TAIL or tail_share(log_weights) <= NEGLIGIBLE_TAIL


class Watcher(Watch):
    """Watch a run: its time, its number of stages, its rounding errors along a ``path``, and its observers.

    Time is never up before one more stage is finished, so that repeated calls with a checkpoint reach the end.
    """

    def __init__(
        self,
        max_time: float | None,
        report: Callable[[SMCState], None] | None = None,
        store: ChainStore | None = None,
        path: TemperingPath | None = None,
        finds_jumps: bool = False,
    ) -> None:
        self._path, self._finds_jumps = path, finds_jumps
        self._endless = None if path is None else EndlessWatch(path.target)
        self._start, self._has_advanced = time.perf_counter(), False
        self._most, self._report, self._store = max_time, report, store

    def restart(self) -> None:
        """Start another run in the remaining time."""
        self._has_advanced = False

    def stops(self, run: SMCState) -> str:
        """Return why the run stops; empty if it continues."""
        if len(run.stages) >= _MAX_STAGES:
            return "out of temperatures"
        names = () if self._path is None else self._path.target.names
        if spoiled := collapse(run.population.x, names) or self._noise(run) or self._rise(run):
            if not run.stages and self._path is not None:
                raise ModelError(
                    f"{self._path.target.label}: no run can start from the {self._path.description}: {spoiled}"
                )
            return spoiled
        return _OUT_OF_TIME if self._is_late else ""

    def check(self) -> None:
        """End the run within a stage if its time is up."""
        if self._is_late:
            raise StageCutOff(_OUT_OF_TIME)

    @property
    def _is_late(self) -> bool:
        return self._has_advanced and self._most is not None and time.perf_counter() - self._start > self._most

    def _noise(self, run: SMCState) -> str:
        """Return where the log density of the last temperature is rounding error, if it is."""
        path = self._path
        if path is None or path.target.is_estimated or not run.stages:
            return ""
        increment, beta = path.ahead(run.population)
        return noise_at(
            lambda x: path.evaluate(x, beta, False).log_density, run.population.x, increment, path.target.names
        )

    def _rise(self, run: SMCState) -> str:
        """Return along which coordinate the posterior is improper, if the particles show it."""
        return "" if self._endless is None else self._endless.reason(run.population.x, run.population.log_density)

    def see(self, run: SMCState) -> None:
        """Save and report a stage; raise an error if its moves did not mix because the log density jumps."""
        path = self._path if self._finds_jumps and _moved_without_mixing(run) else None
        if path is not None and density_jumps(path, run.population.x, run.population.beta):
            raise DensityJumpsError
        self._has_advanced = True
        if self._store:
            self._store.save(run)
        if self._report is not None:
            self._report(run)


def _moved_without_mixing(run: SMCState) -> bool:
    moves = run.stages[-1].moves
    return moves is not None and is_correlated(moves)


class SampledPriorPath(PriorPath):
    """p(θ) L(θ)^β if the prior is only a density: a separate run, from Cauchy variables, draws from it.

    Its settings are those of :func:`run_tempering`, except that chains are not waste-free and given betas are not used.
    """

    draws_are_independent = False
    description = "prior, sampled by a run of its own"

    def __init__(self, target: BaseTarget, prior: BaseTarget, kernel: Kernel, **settings: Any) -> None:
        super().__init__(target)
        check_proper(target)
        self.prior, self.kernel = BridgePath(prior, cauchy_around(prior)), kernel
        how = Settings(**settings)
        self.how = how._replace(schedule=how.schedule.from_start(), len_chain=None, keep_ladder=False)

    def draw(self, n: int, rng: np.random.Generator) -> Start:
        """Draw the prior by tempering, and return its log normaliser too."""
        drawn = run_tempering(self.prior, self.kernel, n, rng, **self.how._asdict())
        if not drawn.complete:
            raise PriorSamplingError(f"{self.target.label}: the prior was not reached in time; use initial='laplace'")
        integral, variance, df = self._integral(drawn, rng)
        figures = StartFigures(integral, variance, df, drawn.stages)
        return Start(drawn.x, integral, drawn.lineage, figures)

    def _integral(self, drawn: SMCResult, rng: np.random.Generator) -> tuple[float, float, float]:
        """Return the log integral of the prior with its variance and degrees of freedom.

        A bridge from the last particles replaces that of tempering if it is precise, and is more precise or contradicts
        tempering: along a funnel the particles lag behind, and the integral of tempering is too small.
        """
        tempering = evidence_of_runs([drawn])
        kept = drawn.log_evidence, drawn.lineage.variance, drawn.lineage.df
        few = len(drawn.x) < _FEWEST
        samples = [] if few or self.how.unbiased else last_particles(self.prior, [drawn])
        bridge = bridge_evidence(samples, self.prior.log_density, rng.spawn(1)[0]) if samples else None
        if bridge is None or not may_replace(tempering, bridge):
            return kept
        if bridge.standard_error > tempering.standard_error and agrees(tempering, bridge):
            return kept
        return bridge.log_evidence, bridge.standard_error**2, bridge.df


def last_particles(path: TemperingPath, runs: Sequence[SMCResult]) -> list[Sample]:
    """Return the last particles of every run; none where they were not moved or have estimates of the likelihood."""
    if path.target.is_estimated or not all(run.complete and run.weighted is None for run in runs):
        return []
    non_centred = any(run.stages[-1].moves is not None and run.stages[-1].moves.non_centred for run in runs)
    return [
        Sample(
            run.x,
            run.log_density,
            run.lineage.ancestor,
            path.evaluate(run.x, 1.0, True).gradient if non_centred else None,
        )
        for run in runs
    ]
