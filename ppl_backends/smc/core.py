r"""Sequential Monte Carlo: weight, resample, move.

A population of particles follows a path of distributions π₀, π₁, …, π_T. The first can be sampled; the last is the
target (Del Moral, Doucet & Jasra 2006, section 3.1; Chopin & Ridgway 2017, Algorithm 4). One stage, :func:`smc_step`,
does

1. *weight*: every particle's weight is multiplied by w_t = γ_t / γ_{t−1}, and the evidence by the mean of w_t;
2. *resample*: particles are drawn in proportion to their weights, all of them, few that begin chains (Dau & Chopin 2022,
   Algorithm 2), or none while the weights are even;
3. *move*: a kernel that leaves π_t invariant moves them.

Only the path depends on what a particle is: a point with its densities, a subset of {0, 1}^p, a parameter with a
simulated data set. Populations are records of arrays (:mod:`~ppl_backends.numerics.population`), and this module uses
none of their fields. The size of a step, resampling, moves and records are parts that the caller provides.

A run between two stages is a value, :class:`SMCState`, and :func:`smc_step` makes the next one from it. A run that is
saved, resumed, interrupted or stopped early is always such a value. It includes the generator's state, so that the
rest of the run is reproducible to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from ppl_backends.kernels.protocol import Density
from ppl_backends.numerics.weights import normalised_weights
from ppl_backends.smc.evidence import LineageVariance, log_relative
from ppl_backends.targets.protocol import Array, Index


def _never() -> None:
    """Let a stage go on."""


class StageCutOff(Exception):
    """The end of a run within a stage, which is thrown away; the message is the reason."""


def run_smc(run: SMCState, path: Path, parts: Parts, watch: Watch) -> tuple[SMCState, str]:
    """Run to the last stage, or until ``watch`` or Ctrl-C stops the run; return the reason, "" for the last stage."""
    while not path.is_last(run.stage):
        try:
            if reason := watch.stops(run):
                return run, reason
            run = smc_step(run, path, parts, watch.check)
            watch.see(run)
        except StageCutOff as cut:
            return run, str(cut)
        except KeyboardInterrupt:
            if not run.stages:
                raise
            return run, "interrupted"
    return run, ""


def smc_step(run: SMCState, path: Path, parts: Parts, check: Callable[[], None] = _never) -> SMCState:
    """Make one stage; ``run`` itself stays unchanged, except for its generator.

    If the resulting particles require much shorter steps, the stage is repeated with a shorter step. Moves call ``check``.
    """
    schedule = parts.schedule.after(run)
    while schedule is not None:
        done = _one_step(run, path, parts, schedule, check)
        schedule = schedule.shorter(done, path)
    return done


def _one_step(run: SMCState, path: Path, parts: Parts, schedule: Any, check: Callable[[], None]) -> SMCState:
    clock, n = time.perf_counter(), len(run.population.x)

    # 1. Weight
    stage, log_weights = path.next(run.population, run.weights, schedule)
    weights, log_mean = normalised_weights(log_weights + log_relative(run.weights))
    lineage = run.lineage.reweighted(weights, run.weights)

    # 2. Resample
    drawn = parts.resample(weights, path.is_last(stage), run.rng)
    parents = np.arange(n) if drawn is None else drawn
    kept = run.population if drawn is None else run.population.take(drawn)
    particles = path.extend(kept, stage, run.rng)

    # 3. Move
    resampled = Resampled(run.population, weights, parents, particles, stage, len(run.stages), check)
    moved = parts.move(resampled, path, run.tuning, run.rng)

    done = replace(
        run,
        population=moved.population,
        stage=stage,
        weights=weights if drawn is None else None,
        log_evidence=run.log_evidence + log_mean,
        lineage=lineage.resampled(moved.parents),
        tuning=moved.tuning,
        ess=1.0 / float((weights**2).sum()),
        n_inside=int(np.count_nonzero(log_weights > -np.inf)),
        seconds=run.seconds + time.perf_counter() - clock,
    )
    step = Step(run, done, log_weights, weights, moved)
    records = {name: record.after(step) for name, record in run.records.items()}
    return replace(done, stages=(*run.stages, parts.figures(step)), records=records)


def begin(
    start: Start, rng: np.random.Generator, tuning: Any = None, records: Mapping[str, Any] | None = None
) -> SMCState:
    """Return a run before its first stage."""
    lineage = start.lineage or LineageVariance(len(start.population.x))
    return SMCState(start.population, rng, lineage, start.log_normalizer, start.figures, tuning, records or {})


class Start(NamedTuple):
    """Start of a path: equally weighted particles, and the log of the integral of γ₀ or its estimate.

    ``lineage`` says which particles depend on each other, and the error of that log; by default particles are
    independent. ``figures`` are kept for later.
    """

    population: Any
    log_normalizer: float = 0.0
    lineage: LineageVariance | None = None
    figures: Any = None


@dataclass(frozen=True)
class SMCState:
    """A run between two stages: the input of the next stage, and the content of a checkpoint.

    Copies of one particle are adjacent in the ``population``. ``weights`` are normalised, and None if equal.
    ``lineage`` holds the initial particle that each descends from. ``records`` are objects whose ``after(step)``
    returns the object with one more stage. ``ess`` and ``n_inside`` (the number of particles of positive weight) are
    those of the last step.
    """

    population: Any
    rng: np.random.Generator
    lineage: LineageVariance
    log_evidence: float
    start: Any = None
    tuning: Any = None
    records: Mapping[str, Any] = field(default_factory=dict)
    stage: Any = None
    stages: tuple[Any, ...] = ()
    weights: Array | None = None
    ess: float | None = None
    n_inside: int = 0
    seconds: float = 0.0


class Resampled(NamedTuple):
    """The ``particles`` to be moved at a stage, their ``parents`` before resampling, and the parents' weights.

    ``n_earlier`` is the number of stages before it. Moves call ``check`` before every evaluation; it raises
    :class:`StageCutOff` where time is up.
    """

    before: Any
    weights: Array
    parents: Index
    particles: Any
    stage: Any
    n_earlier: int = 0
    check: Callable[[], None] = _never


class Moved(NamedTuple):
    """The ``n`` particles of a stage, and the particle before resampling from which each comes.

    ``tuning`` is the adapted state of the kernel, ``summary`` its figures (None without moves), ``decided`` what a
    repeated run needs to make the same decisions, and ``densest`` notable points evaluated.
    """

    population: Any
    parents: Index
    tuning: Any = None
    summary: Any = None
    decided: Any = None
    densest: Any = None


class Step(NamedTuple):
    """A finished stage: incremental log weights, and normalised weights before resampling, for records."""

    before: SMCState
    after: SMCState
    log_weights: Array
    weights: Array
    moved: Moved


class Path(Protocol):
    """A sequence of distributions."""

    def start(self, n: int, rng: np.random.Generator) -> Start:
        """Draw ``n`` particles of the first one."""
        ...

    def next(self, population: Any, weights: Array | None, schedule: Any) -> tuple[Any, Array]:
        """Return the next stage and its incremental log weights ``(n,)``."""
        ...

    def is_last(self, stage: Any) -> bool:
        """Return whether the path ends at a stage, or before the first one (None)."""
        ...

    def extend(self, population: Any, stage: Any, rng: np.random.Generator) -> Any:
        """Return resampled particles as particles of the stage: evaluated there, or with the new dimensions of the space."""
        ...

    def density(self, stage: Any) -> Density[Any]:
        """Return the map from points ``(n, dim)`` and a generator to particles of the stage, which kernels use."""
        ...


class Watch:
    """Observers of a run: a clock, a progress bar, a file. These do nothing."""

    def stops(self, run: SMCState) -> str:
        """Return why the run stops between two stages; empty if it continues."""
        return ""

    def check(self) -> None:
        """Raise :class:`StageCutOff` if the run is to end within a stage."""

    def see(self, run: SMCState) -> None:
        """Record a finished stage."""


class Parts(NamedTuple):
    """Parts of a run.

    Attributes
    ----------
    schedule : object
        Controls the size of a step; the path reads it. ``after(run)`` is the schedule of the next step, and
        ``shorter(done, path)`` that of a shorter step that replaces the last one; None if the last step is kept.
    resample : callable
        Function of normalised weights, whether the stage is the last, and a generator; returns parents, or None for no
        resampling.
    move : callable
        Function of :class:`Resampled`, the path, the tuning so far, and a generator; returns :class:`Moved`.
    figures : callable
        Function of :class:`Step`; returns the figures that are kept in ``stages``.
    """

    schedule: Any
    resample: Callable[[Array, bool, np.random.Generator], Index | None]
    move: Callable[[Resampled, Any, Any, np.random.Generator], Moved]
    figures: Callable[[Step], Any]
