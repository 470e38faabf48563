"""Records of a run: figures of its stages, the plan of a pilot, the ladder, and the final state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ppl_backends.smc.core import SMCState, Step
from ppl_backends.smc.evidence import PathSampling
from ppl_backends.smc.ladder import StageParticles
from ppl_backends.smc.moves import MoveSummary, PlannedMoves
from ppl_backends.targets.protocol import Array

_VISITED, _VISITED_FIRST = 32, 256  # particles kept of every stage, and of the start, which is the widest


@dataclass(frozen=True)
class Stage:
    """One temperature of the ladder; ``mean`` and ``sd`` ``(dim,)`` are weighted, ``ess`` is of the incremental weights.

    ``n_lineages`` counts initial particles with descendants, ``n_distinct`` different particles after the moves, and
    ``seconds`` is the time since the run began. ``moves`` is None if the run was a single importance step.
    """

    beta: float
    log_evidence: float
    ess: float
    mean: Array
    sd: Array
    n_lineages: int
    moves: MoveSummary | None
    seconds: float
    n_distinct: int = 0

    def moved_again(self, later: Stage) -> Stage:
        """Return the figures of this stage with the moves of a ``later`` one at the same temperature."""
        assert self.moves is not None
        assert later.moves is not None
        moves = replace(later.moves, gradients=self.moves.gradients + later.moves.gradients)
        return replace(later, moves=moves, ess=self.ess, mean=self.mean, sd=self.sd)


def stage_figures(step: Step) -> Stage:
    """Return the figures of a stage."""
    x, after = step.before.population.x, step.after
    mean = step.weights @ x
    sd = np.sqrt(step.weights @ (x - mean) ** 2)
    distinct = len(np.unique(after.population.x[:, 0]))  # a move changes every coordinate
    reached = after.stage.position, after.log_evidence, float(after.ess or 0.0)
    return Stage(*reached, mean, sd, after.lineage.n_lineages, step.moved.summary, after.seconds, distinct)


@dataclass(frozen=True)
class Plan:
    """Decisions of a pilot run for its main run, stage by stage: betas and moves.

    Moves are None if the pilot made none; ``pilot`` is True for the pilot run, whose evidence is not reported.
    """

    stages: tuple[tuple[float, PlannedMoves | None], ...] = ()
    pilot: bool = True

    @property
    def moves(self) -> dict[float, PlannedMoves | None]:
        """Return the moves by beta, in order."""
        return dict(self.stages)

    def after(self, step: Step) -> Plan:
        """Add a stage of the pilot."""
        planned = (step.after.stage.beta, step.moved.decided)
        return replace(self, stages=(*self.stages, planned)) if self.pilot else self


@dataclass(frozen=True)
class Ladder:
    """The particles at every beta."""

    stages: tuple[StageParticles, ...]

    def after(self, step: Step) -> Ladder:
        """Add the particles of a stage; after an importance step, add the weighted points."""
        after, weights, state = step.after, step.after.weights, step.after.population
        if step.moved.summary is None:
            weights, state = step.weights, step.before.population.at(after.stage.beta)
        return Ladder((*self.stages, StageParticles.of(state, after.log_evidence, weights)))


@dataclass(frozen=True)
class WeightedPoints:
    """Points ``(n, dim)`` and log weights ``(n,)`` of a run of one step, and whether no particle moved after it."""

    points: tuple[Array, Array] | None = None
    stayed: bool = False

    def after(self, step: Step) -> WeightedPoints:
        """Return the points before the first step, with their weights; None after a second step."""
        if step.before.stages:
            return WeightedPoints()
        return WeightedPoints((step.before.population.x, step.log_weights), step.moved.summary is None)


@dataclass(frozen=True)
class Visited:
    """Some particles of every stage before its moves, and notable points ``(m, dim)`` that the moves evaluated.

    ``log_density`` ``(m,)`` is that of the path's end. A narrow mode is looked for along vectors ``ahead`` ``(m, 2, dim)``
    that are not zero.
    """

    x: Array
    log_density: Array
    ahead: Array

    @classmethod
    def of(cls, x: Array, log_density: Array) -> Visited:
        """Return points with nothing ahead of them."""
        return cls(x, log_density, np.zeros((len(x), 2, x.shape[1])))

    def after(self, step: Step) -> Visited:
        """Add the particles at the beginning of a stage."""
        state = step.before.population
        most = _VISITED if len(self.x) else _VISITED_FIRST
        rows = np.linspace(0, len(state.x) - 1, min(most, len(state.x))).astype(np.intp)
        ends = state.take(rows).at(1.0)
        parts = [self, Visited.of(ends.x, ends.log_density)]
        return joined(parts if step.moved.densest is None else [*parts, step.moved.densest])


def joined(parts: Sequence[Any]) -> Visited:
    """Return the points of several records."""
    return Visited(*(np.concatenate([getattr(part, key.name) for part in parts]) for key in fields(Visited)))


@dataclass(frozen=True)
class SMCResult(SMCState):
    """Result of one run; ``ended`` is the reason for its end, empty at the end of its path."""

    ended: str = ""

    @classmethod
    def of(cls, run: SMCState, ended: str = "") -> SMCResult:
        """Return the result for a state."""
        return cls(**(vars(run) | {"ended": ended}))

    @property
    def complete(self) -> bool:
        """Return whether the run reached the end of the path."""
        return not self.ended

    @property
    def interrupted(self) -> bool:
        """Return whether Ctrl-C ended the run."""
        return self.ended == "interrupted"

    @property
    def x(self) -> Array:
        """Return the particles ``(n, dim)``."""
        x: Array = self.population.x
        return x

    @property
    def log_density(self) -> Array:
        """Return log γ of the particles at the last beta ``(n,)``."""
        log_density: Array = self.population.log_density
        return log_density

    @property
    def path_sampling(self) -> PathSampling:
        """Return the log evidence by path sampling."""
        return self.records["path_sampling"]

    @property
    def weighted(self) -> tuple[Array, Array] | None:
        """Return points ``(n, dim)`` and log weights ``(n,)`` of a run that was one importance step, without moves."""
        return self._only_step.points if self._only_step.stayed else None

    @property
    def only_weights(self) -> Array | None:
        """Return the log weights ``(n,)`` of a run of one step."""
        points = self._only_step.points
        return None if points is None else points[1]

    @property
    def _only_step(self) -> WeightedPoints:
        return self.records.get("weighted", WeightedPoints())

    @property
    def visited(self) -> Visited:
        """Return particles of all stages."""
        return self.records["visited"]

    @property
    def ladder(self) -> tuple[StageParticles, ...] | None:
        """Return the particles at every beta, if they were kept."""
        return self.records["ladder"].stages if "ladder" in self.records else None

    @property
    def non_centred(self) -> list[int]:
        """Return how many coordinates the moves of each stage standardised, of those stages that made moves."""
        return [stage.moves.non_centred for stage in self.stages if stage.moves is not None]

    @property
    def scale(self) -> float:
        """Return the step size of the last moves."""
        return next(stage.moves.scale for stage in reversed(self.stages) if stage.moves is not None)
