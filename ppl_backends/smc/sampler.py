"""Adaptive tempering SMC: one run over one path.

Del Moral, Doucet & Jasra (2006); the adaptive ladder and its use from a fast approximation follow Chopin & Ridgway (2017,
Algorithm 4) and Buchholz (2018, Algorithm 12). Each stage reweights to the next beta, resamples, and moves at the new
beta, so the last particles have been moved at β = 1 and are equally weighted. Where the start is already so good that
the first step reaches β = 1 with weights of light tail, the run *is* importance sampling: no move is made and the weighted
points are kept.

A run between two temperatures is a value, :class:`SMCState`: :func:`advance` makes the next one from it. What is saved,
resumed, interrupted or cut short is always such a value, and with the generator's state in it the rest follows to the bit.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.kernels.metric import cross_fitted_metric, metric_from_points
from ppl_backends.kernels.protocol import Kernel
from ppl_backends.kernels.tuning import KernelTuning, acceptance_tuning, make_tuning
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.numerics.weights import (
    normalised_weights,
    pareto_k,
    systematic_resampling,
    tail_share,
)
from ppl_backends.smc.evidence import PathSampling
from ppl_backends.smc.ladder import StageParticles
from ppl_backends.smc.moves import (
    MoveSettings,
    MoveSummary,
    PlannedMoves,
    extend_chains,
    follow_plan,
    move_particles,
)
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.smc.records import PlannedStage, SMCResult, SMCState, Stage, Store
from ppl_backends.smc.schedule import Schedule
from ppl_backends.smc.support import start_inside
from ppl_backends.targets.protocol import Array, Index

__all__ = ["SMCResult", "SMCState", "Stage", "Store", "advance", "run_tempering"]

_MAX_STAGES = 1000
_LIGHT_TAIL = 0.5  # Pareto k below which the weights have a variance
_NEGLIGIBLE_TAIL = 0.02


def run_tempering(
    path: TemperingPath,
    kernel: Kernel,
    n: int,
    rng: np.random.Generator,
    *,
    moves: MoveSettings | None = None,
    max_time: float | None = None,
    report: Callable[[Stage], None] | None = None,
    schedule: Schedule | None = None,
    len_chain: int | None = None,
    tuning: str = "acceptance",
    unbiased: bool = False,
    keep_ladder: bool = False,
    store: Store | None = None,
) -> SMCResult:
    """Run ``n`` particles along ``path``.

    Parameters
    ----------
    path : TemperingPath
    kernel : Kernel
    n : int
        Number of particles.
    rng : numpy.random.Generator
    moves : MoveSettings, optional
    max_time : float, optional
        Seconds after which no further stage is begun, one being done in any case; the run is then incomplete.
    report : callable, optional
        Called with every finished stage.
    schedule : Schedule, optional
        By the ESS of each reweighting, as :func:`~ppl_backends.smc.schedule.share_to_keep` has it, by default.
    len_chain : int, optional
        Waste-free moves: ``n / len_chain`` particles are resampled, and of a chain from each so many states are kept.
    tuning : {"acceptance", "ft", "pr"}
        How the kernel's parameters are found; see :mod:`~ppl_backends.kernels.tuning`.
    unbiased : bool
        Whether to run twice, the second time as the first decided: betas, number and scale of the moves and their
        metric no longer depend on the particles, and the evidence (not its log) has no bias.
    keep_ladder : bool
        Whether to keep the particles at every beta.
    store : Store, optional
        Where the run is saved after every stage; one found there is continued.

    Notes
    -----
    Ctrl-C after the first stage ends the run at the last finished one.
    """
    schedule, moves = schedule or Schedule(), moves or MoveSettings()

    def run_inner(inner: TemperingPath, size: int, generator: np.random.Generator) -> SMCResult:
        return run_tempering(
            inner,
            kernel,
            size,
            generator,
            schedule=schedule.from_start(),
            moves=moves,
            max_time=max_time,
            tuning=tuning,
            unbiased=unbiased,
        )

    def begin(generator: np.random.Generator, pilot: bool, n_draws: int | None = None) -> SMCState:
        began = _begin(path, kernel, n, generator, run_inner, keep_ladder and not pilot, pilot, n_draws)
        moved = n if len_chain is None else -(-n // len_chain)
        return replace(began, tuning=make_tuning(tuning, kernel, moved, path.target.dim, generator))

    progress = store.load() if store else None
    if progress is None:
        progress = begin(rng, pilot=unbiased)
    clock = _Clock(progress.seconds, max_time)
    while True:
        progress, stopped = _climb(progress, clock, store, report, (path, kernel, schedule, moves, len_chain))
        if stopped or not progress.pilot:
            return SMCResult(**vars(progress), interrupted=stopped == "interrupted")
        again = begin(progress.rng, pilot=False, n_draws=progress.n_start_draws)
        progress = replace(again, plan=progress.plan, seconds=clock.seconds)


class _Clock:
    """Seconds of a run, those before it was resumed included."""

    def __init__(self, before: float, most: float | None) -> None:
        self._start, self._before, self._most = time.perf_counter(), before, most

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return self._before + time.perf_counter() - self._start

    @property
    def is_up(self) -> bool:
        """Whether this call has used its time."""
        return self._most is not None and time.perf_counter() - self._start > self._most


def _climb(
    progress: SMCState,
    clock: _Clock,
    store: Store | None,
    report: Callable[[Stage], None] | None,
    how: tuple[TemperingPath, Kernel, Schedule, MoveSettings, int | None],
) -> tuple[SMCState, str]:
    """Go on to β = 1, or to where the time or the user ends it; and which of these it was."""
    already = len(progress.stages)
    while progress.state.beta < 1.0 and len(progress.stages) < _MAX_STAGES:
        if len(progress.stages) > already and clock.is_up:
            return progress, "out of time"
        try:
            progress = advance(replace(progress, seconds=clock.seconds), *how)
            if store:
                store.save(progress)
            if report is not None:
                report(progress.stages[-1])
        except KeyboardInterrupt:
            if not progress.stages:
                raise
            return progress, "interrupted"
    return progress, "" if progress.state.beta == 1.0 else "out of temperatures"


def _begin(
    path: TemperingPath,
    kernel: Kernel,
    n: int,
    rng: np.random.Generator,
    run_inner: Callable[..., SMCResult],
    keep_ladder: bool,
    pilot: bool,
    n_draws: int | None,
) -> SMCState:
    """Particles at β = 0; ``n_draws`` of the start where a pilot decided their number."""
    start, inside = start_inside(path, n, rng, run_inner, n_draws)
    state, log_evidence = inside.state, start.log_normalizer + inside.log_share
    _check_start(path, state, inside.n_draws)
    return SMCState(
        state=state,
        rng=rng,
        lineage=inside.lineage,
        path_sampling=PathSampling(n, log_evidence),
        scale=kernel.initial_scale(state.x.shape[1]),
        log_evidence=log_evidence,
        log_normalizer=start.log_normalizer,
        normalizer_variance=start.lineage.variance,
        normalizer_df=start.lineage.df,
        start_stages=start.stages,
        start_undefined=inside.undefined,
        n_start_draws=inside.n_draws,
        plan=() if pilot else None,
        pilot=pilot,
        ladder=(StageParticles.of(state, log_evidence),) if keep_ladder else None,
    )


def advance(
    run: SMCState,
    path: TemperingPath,
    kernel: Kernel,
    schedule: Schedule,
    moves: MoveSettings,
    len_chain: int | None = None,
) -> SMCState:
    """One temperature: reweight, resample, move; ``run`` itself stays as it is, but for its generator.

    Where the particles that it leads to ask for much shorter steps, it is done again by a shorter step.
    """
    inside = max(1, int(np.count_nonzero(run.state.increment > -np.inf)))  # no step keeps more
    least = None
    while True:
        done = _one_step(run, path, kernel, schedule, moves, len_chain, least)
        if run.plan is not None and not run.pilot:
            return done
        least = schedule.share_before(done.state, done.stages[-1].ess / inside, len_chain or 1)
        if least is None:
            return done


def _one_step(
    run: SMCState,
    path: TemperingPath,
    kernel: Kernel,
    schedule: Schedule,
    moves: MoveSettings,
    len_chain: int | None,
    least_share: float | None,
) -> SMCState:
    """One temperature by a step that keeps ``least_share`` of the particles, or as many as the schedule says."""
    clock = time.perf_counter()
    before, n = run.state, len(run.state.x)
    planned = run.plan[len(run.stages)] if run.plan is not None and not run.pilot else None
    lineage, path_sampling = copy.deepcopy(run.lineage), copy.deepcopy(run.path_sampling)

    if planned:
        beta = planned.beta
    else:
        last = run.stages[-1].ess / n if before.beta > 0 else schedule.least_share if run.stages else None
        beta = schedule.next(before, run.weights, len_chain or 1, last, least_share)
    step = beta - before.beta
    log_weights = step * before.increment
    weights, log_mean = normalised_weights(log_weights if run.weights is None else log_weights + _log(n * run.weights))
    log_evidence = run.log_evidence + log_mean
    path_sampling.forward(log_weights, lineage, run.weights)
    lineage.reweight(weights, run.weights)

    enough = beta == 1.0 and not run.stages
    if enough and not planned:
        enough = _weights_are_enough(log_weights, lineage.by_lineage(weights), schedule.least_share)
    if enough and (planned is None or planned.moves is None):
        parents = systematic_resampling(weights, n, run.rng)
        moved = MoveResult(before.take(parents).at(beta), parents, None, None, run.tuning, None)
        weighted, path_sampling = (before.x, log_weights), PathSampling(n, log_evidence)
        rung = StageParticles.of(before.at(beta), log_evidence, _log(n * weights))
    else:
        planned_moves = planned.moves if planned else None
        moved = _resample_and_move(run, weights, beta, path, kernel, schedule, moves, len_chain, planned_moves)
        weighted = None
        path_sampling.backward(step * moved.state.increment, lineage.resampled(moved.parents), moved.weights)
        rung = StageParticles.of(moved.state, log_evidence, None if moved.weights is None else _log(n * moved.weights))
    lineage = lineage.resampled(moved.parents)

    seconds = run.seconds + time.perf_counter() - clock
    ess, (mean, sd) = 1.0 / float((weights**2).sum()), _moments(before.x, weights)
    distinct = len(np.unique(moved.state.x[:, 0]))  # a move changes every coordinate
    stage = Stage(beta, log_evidence, ess, mean, sd, lineage.n_lineages, moved.summary, seconds, distinct)
    return replace(
        run,
        state=moved.state,
        lineage=lineage,
        path_sampling=path_sampling,
        scale=moved.summary.scale if moved.summary else run.scale,
        tuning=moved.tuning,
        log_evidence=log_evidence,
        stages=(*run.stages, stage),
        weights=moved.weights,
        weighted=weighted,
        plan=(*(run.plan or ()), PlannedStage(beta, moved.decided)) if run.pilot else run.plan,
        ladder=None if run.ladder is None else (*run.ladder, rung),
        seconds=seconds,
    )


class MoveResult(NamedTuple):
    """Particles after resampling and moves.

    Attributes
    ----------
    state : PathState
    parents : ndarray (n,)
        Particle before the resampling that each comes from.
    weights : ndarray (n,) or None
        Normalised, where there was no resampling.
    summary : MoveSummary or None
    tuning : KernelTuning or None
    decided : PlannedMoves or None
        The moves of a pilot run, for the run that it is the pilot of.
    """

    state: PathState
    parents: Index
    weights: Array | None
    summary: MoveSummary | None
    tuning: KernelTuning | None
    decided: PlannedMoves | None


def _resample_and_move(
    run: SMCState,
    weights: Array,
    beta: float,
    path: TemperingPath,
    kernel: Kernel,
    schedule: Schedule,
    moves: MoveSettings,
    len_chain: int | None,
    planned: PlannedMoves | None,
) -> MoveResult:
    """Particles of ``beta`` that were moved there."""
    before, rng, n = run.state, run.rng, len(weights)
    tuning = run.tuning or acceptance_tuning(kernel, run.scale, before.x.shape[1])
    if len_chain is not None:
        parents = systematic_resampling(weights, -(-n // len_chain), rng)
        state = _at(before.take(parents), beta, path, kernel)
        plan, decided = planned or _chain_metric(before.x, weights, parents, len_chain, path.reference, rng), None
        state, summary, tuning, used = extend_chains(state, path, kernel, tuning, len_chain, moves, plan, rng)
        if run.pilot:
            decided = PlannedMoves(
                metric_from_points(before.x[systematic_resampling(weights, n, rng)], path.reference), used
            )
        state = state.take(
            np.arange(n)
        )  # where the length does not divide n, some states of the last chain are left out
        return MoveResult(state, np.repeat(parents, len_chain)[:n], None, summary, tuning, decided)
    resample = schedule.resamples(weights, beta)
    parents = systematic_resampling(weights, n, rng) if resample else np.arange(n)
    state, decided = _at(before.take(parents), beta, path, kernel), None
    if planned is not None:
        state, summary = follow_plan(state, path, kernel, planned, tuning, rng)
    else:
        metric = metric_from_points(state.x, path.reference) if run.pilot else None
        state, summary, tuning, used = move_particles(state, path, kernel, tuning, moves, rng)
        decided = PlannedMoves(metric, used) if metric is not None else None
    return MoveResult(state, parents, None if resample else weights, summary, tuning, decided)


def _at(state: PathState, beta: float, path: TemperingPath, kernel: Kernel) -> PathState:
    """The particles at an beta, with gradients where the kernel needs them: draws of the start come without."""
    if kernel.uses_gradient and state.base_gradient is None:
        return path.evaluate(state.x, beta, True)
    return state.at(beta)


def _chain_metric(
    x: Array, weights: Array, parents: Index, len_chain: int, reference: Gaussian | None, rng: np.random.Generator
) -> PlannedMoves:
    """The metric of waste-free chains, with no move planned: of all weighted particles, since few of them begin a chain.

    The halves part between two of the last chains, where about half of the weight is on either side. A point whose own
    chain is in its metric would be moved by a metric that it stretches; in as many dimensions as there are points it then
    stays where it is, for good.
    """
    drawn = systematic_resampling(weights, len(x), rng)
    edges = np.arange(0, len(x), len_chain)
    halves = np.searchsorted(drawn, edges)
    nearest = int(np.argmin(np.abs(halves - len(x) // 2)))
    if not 0.25 < halves[nearest] / len(x) < 0.75:
        return PlannedMoves(cross_fitted_metric(x[drawn], reference), ())
    n_first = np.searchsorted(parents, edges[nearest])
    return PlannedMoves(cross_fitted_metric(x[drawn], reference, int(halves[nearest]), int(n_first)), ())


def _log(values: Array) -> Array:
    """Logarithm, −inf at zero."""
    with np.errstate(divide="ignore"):
        return np.log(values)


def _weights_are_enough(log_weights: Array, by_lineage: Array, fraction: float) -> bool:
    """Return whether one importance step needs no move after it.

    Its draws must not be copies of a few points: the ESS of all independent initial points, those of weight zero included,
    keeps the share that every step is to keep. And its weights have a light tail, or next to nothing in it; the ESS alone
    does not tell, since with heavy-tailed weights it looks best in the very runs that missed the tail.
    """
    if 1.0 / float((by_lineage**2).sum()) < fraction * len(by_lineage):
        return False
    return pareto_k(log_weights) <= _LIGHT_TAIL or tail_share(log_weights) <= _NEGLIGIBLE_TAIL


def _moments(x: Array, weights: Array) -> tuple[Array, Array]:
    """Weighted mean and standard deviation per coordinate."""
    mean = weights @ x
    return mean, np.sqrt(weights @ (x - mean) ** 2)


def _check_start(path: TemperingPath, state: PathState, n_draws: int) -> None:
    """Refuse a start with no point inside the support, saying what is in the way."""
    if np.any(state.increment > -np.inf):
        return
    said = path.target.explain(state.x[0])
    reason = f": {said}" if said else ""
    raise ModelError(
        f"{path.target.label}: the log density is -inf or NaN at all {n_draws} starting points "
        f"drawn from the {path.description}{reason}; check the data against the model's support"
    )
