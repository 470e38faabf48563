"""The coordinates of a rectangle as a path for the SMC loop (Ridgway 2015, algorithm 12): the space grows stage by stage.

Without resampling this is GHK, or minimax tilting under a tilt, to the last digit; with resampling the variance of the
weights stops growing. One stage draws coordinates until the weights are uneven, and at most a panel of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ppl_backends.numerics.population import Population
from ppl_backends.numerics.weights import systematic_resampling
from ppl_backends.orthants.intervals import Array
from ppl_backends.orthants.moves import Move, move
from ppl_backends.orthants.ordering import Rectangle
from ppl_backends.orthants.tilt import PANEL, Tilt, extend
from ppl_backends.smc.core import Moved, Parts, Resampled, SMCState, Start, Step, Watch, begin, run_smc
from ppl_backends.smc.evidence import log_relative
from ppl_backends.smc.moves import stay
from ppl_backends.smc.schedule import RESAMPLE_BELOW


class NoneInside(Exception):
    """Raised if no particle is inside the bounds."""


@dataclass(frozen=True)
class PartlyDrawn(Population):
    """Particles of which the first ``drawn`` columns of ``x`` are drawn; the others are reserved for later stages."""

    drawn: int = 0

    def take(self, index: Any) -> Self:
        """Return the points ``index``; columns stay contiguous."""
        return replace(self, x=self.x.T[:, index].T)


@dataclass(frozen=True)
class WhenUneven:
    """Resample particles if ESS / n falls below a share, but not after the last coordinate."""

    below: float = RESAMPLE_BELOW

    def after(self, run: SMCState) -> WhenUneven:
        """Return the schedule of the next step."""
        return self

    def shorter(self, done: SMCState, path: Any) -> None:
        """Return None: no stage is repeated."""

    def resample(self, weights: Array, is_last: bool, rng: np.random.Generator) -> NDArray[np.intp] | None:
        """Return the parents, or None if the weights are even."""
        if is_last or not self.uneven(weights):
            return None
        return systematic_resampling(weights, len(weights), rng)

    def uneven(self, weights: Array) -> bool:
        """Return whether the ESS of weights, normalised or not, is too small."""
        return bool(weights.sum() ** 2 < self.below * len(weights) * (weights @ weights))


class CoordinatePath:
    """The path on which all coordinates of every particle are kept, for moves and for draws.

    Parameters
    ----------
    rectangle : Rectangle
    tilt : Tilt
    uniforms : ndarray (rank, n)
        Uniform numbers from which the coordinates are made: a separate scramble of a net for each run, or independent ones.
    """

    def __init__(self, rectangle: Rectangle, tilt: Tilt, uniforms: Array) -> None:
        self.rectangle, self.tilt, self.uniforms = rectangle, tilt, uniforms

    def start(self, n: int, rng: np.random.Generator) -> Start:
        """Return particles before the first coordinate."""
        return Start(PartlyDrawn(np.empty((self.rectangle.rank, n)).T))

    def next(self, population: PartlyDrawn, weights: Array | None, schedule: WhenUneven) -> tuple[int, Array]:
        """Draw coordinates until the weights are uneven; return their number and the log incremental weights."""
        first = population.drawn
        draw = self.drawing(population)
        before, log_weights = log_relative(weights), np.zeros(len(population.x))
        for k in range(first, min(first + PANEL, self.rectangle.rank)):
            log_weights += draw(k)
            highest = float((log_weights + before).max())
            if highest == -np.inf:
                raise NoneInside
            if schedule.uneven(np.exp(log_weights + before - highest)):
                break
        return k + 1, log_weights

    def drawing(self, population: PartlyDrawn) -> Callable[[int], Array]:
        """Return the function that draws coordinate k into its column and returns the logs of its weights."""
        z, rows, first = population.x.T, self.rectangle.rows, population.drawn
        offsets = rows[first : first + PANEL, :first] @ z[:first]

        def draw(k: int) -> Array:
            offset = offsets[k - first] + rows[k, first:k] @ z[first:k]
            z[k], log_increments = extend(self.rectangle, self.tilt, k, offset, z, self.uniforms[k])
            return log_increments

        return draw

    def is_last(self, stage: int | None) -> bool:
        """Return whether every coordinate is drawn."""
        return stage == self.rectangle.rank

    def extend(self, population: PartlyDrawn, stage: int, rng: np.random.Generator) -> PartlyDrawn:
        """Return the particles with the coordinates of the stage."""
        return replace(population, drawn=stage)


@dataclass(frozen=True)
class MoveResampled:
    """Move coordinates once after each resampling, whatever the effect, so that estimates are unbiased."""

    kernel: Move

    def __call__(self, drawn: Resampled, path: CoordinatePath, tuning: Any, rng: np.random.Generator) -> Moved:
        """Move particles that were resampled; they are a copy of their parents and can be overwritten."""
        if drawn.particles.x is not drawn.before.x:
            k = drawn.stage
            move(rng, path.rectangle, path.tilt, k, drawn.particles.x.T[:k], self.kernel)
        return Moved(drawn.particles, drawn.parents)


@dataclass(frozen=True)
class Particles:
    """Weighted particles at the end of one run.

    Attributes
    ----------
    z : ndarray (rank, n)
    weights : ndarray (n,)
        Normalised.
    log_p : float
        The log of an unbiased estimate of P.
    lineage : ndarray (n,)
        Index of the initial particle from which each descends.
    resampled : tuple of int
        Numbers of coordinates after which particles were resampled.
    """

    z: Array = field(repr=False)
    weights: Array = field(repr=False)
    log_p: float
    lineage: NDArray[np.intp] = field(repr=False)
    resampled: tuple[int, ...]


def sequential(
    path: Any, rng: np.random.Generator, kernel: Move | None = None, *, below: float = RESAMPLE_BELOW
) -> Particles:
    """Run SMC over the coordinates of a path; without a kernel particles are resampled and not moved."""
    n = path.uniforms.shape[1]
    schedule = WhenUneven(below)
    moves = stay if kernel is None else MoveResampled(kernel)
    run = begin(path.start(n, rng), rng)
    try:
        run, _ = run_smc(run, path, Parts(schedule, schedule.resample, moves, _resampled), Watch())
    except NoneInside:
        return Particles(run.population.x.T, np.full(n, 1 / n), -np.inf, np.arange(n), ())
    if not path.is_last(run.stage):
        raise KeyboardInterrupt
    weights = np.full(n, 1 / n) if run.weights is None else run.weights
    return Particles(
        run.population.x.T, weights, run.log_evidence, run.lineage.ancestor, tuple(k for k in run.stages if k)
    )


def _resampled(step: Step) -> int:
    """Return the number of coordinates at which particles were resampled, else 0."""
    return int(step.after.stage) if step.after.weights is None else 0
