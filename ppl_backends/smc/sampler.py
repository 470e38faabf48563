"""Adaptive tempering SMC: one run over one path.

Del Moral, Doucet & Jasra (2006); the adaptive ladder and its use from a fast approximation follow Chopin & Ridgway (2017,
Algorithm 4) and Buchholz (2018, Algorithm 12). Each stage reweights to the next exponent, resamples, and moves at the new
exponent, so the last particles have been moved at λ = 1 and are equally weighted. Where the start is already so good that
the first step reaches λ = 1 with weights of light tail, the run *is* importance sampling: no move is made and the weighted
points are kept.

A run between two temperatures is a value, :class:`Progress`: :func:`advance` makes the next one from it. What is saved,
resumed, interrupted or cut short is always such a value, and with the generator's state in it the rest follows to the bit.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.importance.weights import (
    effective_sample_size,
    normalised_weights,
    pareto_k,
    systematic_resampling,
    tail_share,
)
from ppl_backends.mcmc.kernels import Kernel
from ppl_backends.smc.evidence import LineageVariance, PathSampling
from ppl_backends.smc.ladder import Rung
from ppl_backends.smc.moves import MoveSettings, MoveSummary, move_particles
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.smc.schedule import next_exponent
from ppl_backends.targets.protocol import Array, explain_point

__all__ = ["Progress", "SMCRun", "Stage", "Store", "advance", "run_tempering"]

_MAX_STAGES = 1000
_LIGHT_TAIL = 0.5  # Pareto k below which the weights have a variance
_NEGLIGIBLE_TAIL = 0.02


@dataclass(frozen=True)
class Stage:
    """One temperature of the ladder.

    Attributes
    ----------
    exponent : float
        λ reached.
    log_evidence : float
        Running log evidence at λ.
    ess : float
        Effective sample size of the incremental weights.
    mean, sd : ndarray (dim,)
        Weighted moments of the particles at λ.
    n_lineages : int
        Initial particles with descendants after resampling.
    moves : MoveSummary or None
        None where the run was a single importance step.
    seconds : float
        Since the run began.
    """

    exponent: float
    log_evidence: float
    ess: float
    mean: Array
    sd: Array
    n_lineages: int
    moves: MoveSummary | None
    seconds: float


@dataclass(frozen=True)
class Progress:
    """A run between two temperatures: all that the next one needs, and what a checkpoint holds.

    Attributes
    ----------
    state : PathState
        Equally weighted particles ``(n, dim)`` at the exponent reached, siblings adjacent.
    rng : numpy.random.Generator
    lineage : LineageVariance
        Initial particle each descends from, and the variance of the log evidence that follows.
    path_sampling : PathSampling
        The log evidence by path sampling.
    scale : float
        Of the kernel.
    log_evidence : float
        Includes ``log_normalizer``.
    log_normalizer : float
        Log of the integral of the path's base, as the start estimated it.
    stages : tuple of Stage
    start_stages : sequence of Stage
        Ladder of the run that drew the start, where one did.
    weighted : tuple of (points (n, dim), log weights (n,)) or None
        The weighted points of a run that was one importance step.
    ladder : tuple of Rung or None
        The particles at every exponent, where they are kept.
    seconds : float
    """

    state: PathState
    rng: np.random.Generator
    lineage: LineageVariance
    path_sampling: PathSampling
    scale: float
    log_evidence: float
    log_normalizer: float
    stages: tuple[Stage, ...] = ()
    start_stages: Sequence[Stage] = ()
    weighted: tuple[Array, Array] | None = None
    ladder: tuple[Rung, ...] | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class SMCRun(Progress):
    """What one run leaves.

    Attributes
    ----------
    interrupted : bool
        Whether Ctrl-C ended it.
    """

    interrupted: bool = False

    @property
    def complete(self) -> bool:
        """Whether λ = 1 was reached."""
        return self.state.exponent == 1.0

    @property
    def x(self) -> Array:
        """The particles ``(n, dim)``."""
        return self.state.x

    @property
    def log_density(self) -> Array:
        """Log γ of the particles at the last exponent ``(n,)``."""
        return self.state.log_density


class Store(Protocol):
    """Where a run is kept between temperatures."""

    def load(self) -> Progress | None:
        """The run as last saved, if it ever was."""
        ...

    def save(self, progress: Progress) -> None:
        """Keep the run."""
        ...


def run_tempering(
    path: TemperingPath,
    kernel: Kernel,
    n: int,
    rng: np.random.Generator,
    *,
    ess_fraction: float = 0.5,
    moves: MoveSettings | None = None,
    max_time: float | None = None,
    report: Callable[[Stage], None] | None = None,
    keep_ladder: bool = False,
    store: Store | None = None,
) -> SMCRun:
    """Run ``n`` particles along ``path``.

    Parameters
    ----------
    path : TemperingPath
    kernel : Kernel
    n : int
        Number of particles.
    rng : numpy.random.Generator
    ess_fraction : float
        ESS that each reweighting keeps, as a share of ``n``.
    moves : MoveSettings, optional
    max_time : float, optional
        Seconds after which no further stage is begun, one being done in any case; the run is then incomplete.
    report : callable, optional
        Called with every finished stage.
    keep_ladder : bool
        Whether to keep the particles at every exponent.
    store : Store, optional
        Where the run is saved after every stage; one found there is continued.

    Notes
    -----
    Ctrl-C after the first stage ends the run at the last finished one.
    """
    clock = time.perf_counter()
    moves = moves or MoveSettings()
    progress = store.load() if store else None
    if progress is None:
        settings: dict[str, Any] = {"ess_fraction": ess_fraction, "moves": moves, "max_time": max_time}
        progress = _begin(path, kernel, n, rng, settings, keep_ladder)
    before, already, interrupted = progress.seconds, len(progress.stages), False
    while progress.state.exponent < 1.0 and len(progress.stages) < _MAX_STAGES:
        seconds = time.perf_counter() - clock
        if len(progress.stages) > already and max_time is not None and seconds > max_time:
            break
        try:
            progress = advance(replace(progress, seconds=before + seconds), path, kernel, ess_fraction, moves)
            if store:
                store.save(progress)
            if report is not None:
                report(progress.stages[-1])
        except KeyboardInterrupt:
            if not progress.stages:
                raise
            interrupted = True
            break
    return SMCRun(**vars(progress), interrupted=interrupted)


def _begin(
    path: TemperingPath,
    kernel: Kernel,
    n: int,
    rng: np.random.Generator,
    settings: dict[str, Any],
    keep_ladder: bool,
) -> Progress:
    """Particles at λ = 0."""
    start = path.start(n, rng, lambda inner, size, generator: run_tempering(inner, kernel, size, generator, **settings))
    state = path.evaluate(start.x, 0.0, kernel.uses_gradient)
    _check_start(path, state)
    return Progress(
        state=state,
        rng=rng,
        lineage=start.lineage,
        path_sampling=PathSampling(n, start.log_normalizer),
        scale=kernel.initial_scale(state.x.shape[1]),
        log_evidence=start.log_normalizer,
        log_normalizer=start.log_normalizer,
        start_stages=start.stages,
        ladder=(Rung.of(state, start.log_normalizer),) if keep_ladder else None,
    )


def advance(run: Progress, path: TemperingPath, kernel: Kernel, ess_fraction: float, moves: MoveSettings) -> Progress:
    """One temperature: reweight, resample, move; ``run`` itself stays as it is, but for its generator."""
    clock = time.perf_counter()
    before, n = run.state, len(run.state.x)
    lineage, path_sampling = copy.deepcopy((run.lineage, run.path_sampling))
    exponent = next_exponent(before.increment, before.exponent, ess_fraction)
    step = exponent - before.exponent
    log_weights = step * before.increment
    weights, log_mean = normalised_weights(log_weights)
    log_evidence = run.log_evidence + log_mean
    path_sampling.forward(log_weights, lineage)
    lineage.reweight(weights)
    ancestors = systematic_resampling(weights, n, run.rng)
    lineage.resample(ancestors)
    state, summary, scale, weighted = before.take(ancestors).at(exponent), None, run.scale, None
    if exponent == 1.0 and not run.stages and _weights_are_enough(log_weights):
        weighted, path_sampling = (before.x, log_weights), PathSampling(n, log_evidence)
        rung = Rung.of(before.at(exponent), log_evidence, np.log(np.maximum(weights, 1e-300)))
    else:
        state, summary = move_particles(state, path, kernel, scale, moves, run.rng)
        scale = summary.scale
        path_sampling.backward(step * state.increment, lineage)
        rung = Rung.of(state, log_evidence)
    seconds = run.seconds + time.perf_counter() - clock
    ess, (mean, sd) = effective_sample_size(log_weights), _moments(before.x, weights)
    stage = Stage(exponent, log_evidence, ess, mean, sd, lineage.n_lineages, summary, seconds)
    return replace(
        run,
        state=state,
        lineage=lineage,
        path_sampling=path_sampling,
        scale=scale,
        log_evidence=log_evidence,
        stages=(*run.stages, stage),
        weighted=weighted,
        ladder=None if run.ladder is None else (*run.ladder, rung),
        seconds=seconds,
    )


def _weights_are_enough(log_weights: Array) -> bool:
    """Whether one importance step needs no move after it: its weights have a light tail, or next to nothing in it.

    The ESS alone does not tell: where weights are heavy-tailed it looks best in the very runs that missed the tail.
    """
    return pareto_k(log_weights) <= _LIGHT_TAIL or tail_share(log_weights) <= _NEGLIGIBLE_TAIL


def _moments(x: Array, weights: Array) -> tuple[Array, Array]:
    """Weighted mean and standard deviation per coordinate."""
    mean = weights @ x
    return mean, np.sqrt(weights @ (x - mean) ** 2)


def _check_start(path: TemperingPath, state: PathState) -> None:
    """Refuse a start with no point inside the support, saying what is in the way."""
    if np.any(state.increment > -np.inf):
        return
    said = explain_point(path.target, state.x[0])
    reason = f": {said}" if said else ""
    raise ModelError(
        f"{path.target.label}: the log density is -inf or NaN at all {len(state.x)} starting points "
        f"drawn from the {path.description}{reason}; check the data against the model's support"
    )
