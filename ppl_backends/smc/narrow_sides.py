"""Posterior mass that the last particles miss on narrow sides, from moves of the particles there alone.

If trajectories diverge with a quarter of the step too, moves of all particles cannot tell whether a neck is missed. Particles
beyond a quantile of a coordinate, or of a direction that scales others in the change of variables, are then moved among
themselves. Ends on the other side of the quantile are rejected, so the moves leave the posterior restricted to that side
invariant. They use coordinates and a metric of these particles only, renewed as they spread, which fit the neck, so that
particles enter it. If energy errors are smaller in the change of variables of the run, they use that. Let the side have a
share p of the particles, half of them beyond their median, and let a share b be beyond it after the moves. The near half
represents its mass p/2, so the mass of the far half is p/2 · b/(1 − b), and the particles missed

    p/2 · (b/(1 − b) − 1).

Particles that represent the posterior have it by chance too: the shares of the two halves differ by their sampling error.

If trajectories diverge there as well, the same is done for a quarter of that side, and the masses are added. A mass
below zero means that too many particles are in the neck.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import comb
from scipy.stats import binom

from ppl_backends.kernels.noncentring import AnyNonCentring
from ppl_backends.kernels.protocol import Kernel, KernelInfo
from ppl_backends.smc.coordinates import Coordinates, changed_coordinates, coordinates_of
from ppl_backends.smc.moves import DIVERGED, energy_error_of
from ppl_backends.smc.necks import MissedMass
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.targets.protocol import Array

_SHARES, _NEXT = (0.04, 0.16), 0.25
_MOST_SIDES, _COVERED = 3, 0.75  # sides, and the share of diverging trajectories that start on them
_BY_CHANCE = 0.01  # probability that so many of the different points are on any sides
_FEWEST_POINTS, _POINTS = 50, 600  # different ones on a side, and all that are moved, with copies
_MOVES, _LEFT_OUT, _ADAPTED = 16, 8, 4  # moves, the first of them, which do not count, and those with the same metric
_BLOCKS, _PARTS = 20, 100  # of moved points, and of all particles
_LARGE = 5.0  # energy error; larger ones count as such
_NEGLIGIBLE = 0.0002  # share of diverging trajectories, of all particles


class Side(NamedTuple):
    """Points x with a'x above a quantile, which are a share of all."""

    direction: Array
    share: float

    def bound(self, x: Array) -> float:
        """Return the quantile of a'x beyond which points are on this side."""
        return float(np.quantile(self(x), 1.0 - self.share))

    def __call__(self, points: Array) -> Array:
        """Return a'x of points; larger values are further out."""
        return np.asarray(points @ self.direction)

    def points(self, x: Array) -> Array:
        """Return those of the points that are on this side."""
        return x[self(x) >= self.bound(x)]

    def is_along(self, other: Side) -> bool:
        """Return whether both sides are beyond quantiles of the same a'x."""
        return np.array_equal(self.direction, other.direction)

    def noise(self, x: Array) -> float:
        """Return the standard error of the share of particles in the outer half less that in the inner half.

        It comes from blocks of adjacent particles, since the states of a chain are adjacent.
        """
        along = self(x)
        bound = self.bound(x)
        halves = np.sign(along - np.median(along[along >= bound])) * (along >= bound)
        blocks = [block.mean() for block in np.array_split(halves, min(_PARTS, len(x)))]
        return float(np.std(blocks, ddof=1)) / len(blocks) ** 0.5

    def is_empty(self, x: Array) -> bool:
        """Return whether too few different points are on this side."""
        return len(np.unique(self.points(x), axis=0)) < _FEWEST_POINTS


class Moves(NamedTuple):
    """Moves of the last particles: a kernel and its step size, and the change of variables of the run."""

    path: TemperingPath
    kernel: Kernel
    scale: float
    change: AnyNonCentring | None = None

    def density(self, points: Array, rng: np.random.Generator) -> PathState:
        """Return the posterior density and its gradients at points."""
        return self.path.evaluate(points, 1.0, True)

    def step(
        self, coordinates: Coordinates, state: PathState, rng: np.random.Generator
    ) -> tuple[PathState, KernelInfo]:
        """Move every point once."""
        return coordinates.move(self.kernel, rng, state, self.density, self.scale)

    def coordinates_of(self, state: PathState, rng: np.random.Generator) -> Coordinates:
        """Return coordinates computed from the points, or those of the run if energy errors are smaller with these."""
        own = coordinates_of(state, self.path)
        if self.change is None:
            return own
        both = own, changed_coordinates(state, self.path, self.change)
        errors = [np.minimum(energy_error_of(self.step(one, state, rng)[1]), _LARGE).mean() for one in both]
        return both[int(np.argmin(errors))]

    def directions(self, dim: int) -> Array:
        """Return the coordinates, and directions that scale others in the change of variables, as rows."""
        if self.change is None or self.change.axes is None:
            return np.eye(dim)
        return np.concatenate([np.eye(dim), self.change.directions])


def missed_mass(moves: Moves, x: Array, sides: Sequence[Side], rng: np.random.Generator) -> MissedMass:
    """Return the mass that particles ``x`` miss on sides; too much mass on a side counts like too little."""
    found = [_on(moves, x, side, rng) for side in sides]
    masses, errors, noises, divergent = np.array(found).T
    error, noise = np.hypot.reduce(errors), np.hypot.reduce(noises)
    return MissedMass(float(np.abs(masses).sum()), float(error), float(noise), float(divergent.sum()))


def side_along(coordinate: int, upwards: bool, dim: int) -> Side:
    """Return the narrowest side of a coordinate."""
    return Side((1.0 if upwards else -1.0) * np.eye(dim)[coordinate], _SHARES[0])


def narrow_sides(x: Array, failed: Sequence[Array], directions: Array) -> list[Side]:
    """Return the narrowest few sides on which most trajectories that failed started; none if there are no such sides.

    ``failed`` are sets of starts; the first that lies on a few sides is used. The sides are along either sign of
    ``directions`` ``(k, dim)``.
    """
    candidates = [
        [Side(sign * direction, share) for direction in directions for sign in (-1.0, 1.0)] for share in _SHARES
    ]
    chosen = (_covering(x, points, sides) for points in failed for sides in candidates)
    return next(filter(None, chosen), [])


def _covering(x: Array, failed: Array, candidates: Sequence[Side]) -> list[Side]:
    """Return a few of the sides on which most points ``failed`` are, which is not by chance; none if there are no such."""
    points, times = np.unique(failed, axis=0, return_counts=True)
    beyond = np.stack([side(points) >= side.bound(x) for side in candidates])
    left = np.ones(len(points), bool)
    chosen: list[Side] = []
    while left @ times > (1.0 - _COVERED) * times.sum() and len(chosen) < _MOST_SIDES:
        best = int(np.argmax((beyond & left) @ times))
        chosen.append(candidates[best])
        left &= ~beyond[best]
    choices = comb(len(candidates), len(chosen))
    by_chance = choices * binom.sf((~left).sum() - 1, len(points), sum(side.share for side in chosen))
    covered = left @ times <= (1.0 - _COVERED) * times.sum() and by_chance < _BY_CHANCE
    return chosen if covered and not any(side.is_empty(x) for side in chosen) else []


def _on(moves: Moves, x: Array, side: Side, rng: np.random.Generator) -> MissedMass:
    """Return the mass missed in the outer half of a side, and of narrower ones while trajectories diverge."""
    mass, error, noise = 0.0, 0.0, 0.0
    while True:
        found, own_error, divergent = _outer_half(moves, side.points(x), side, rng)
        mass, error, noise = mass + found, float(np.hypot(error, own_error)), float(np.hypot(noise, side.noise(x)))
        side = side._replace(share=_NEXT * side.share)
        if divergent <= _NEGLIGIBLE or side.is_empty(x):
            return MissedMass(mass, error, noise, divergent)


def _outer_half(moves: Moves, x: Array, side: Side, rng: np.random.Generator) -> tuple[float, float, float]:
    """Return the mass missed beyond the median of points on a side, its error by the moves, and the share that diverges."""
    bound, middle = float(side(x).min()), float(np.median(side(x)))
    state = moves.density(np.repeat(x, -(-_POINTS // len(x)), axis=0), rng)
    beyond, divergent = np.zeros(len(state.x)), []
    for k in range(_MOVES):
        if k % _ADAPTED == 0:
            coordinates = moves.coordinates_of(state, rng)
        moved, info = moves.step(coordinates, state, rng)
        state = state.where(side(moved.x) >= bound, moved)
        divergent.append(np.mean(~(info.log_ratio > -DIVERGED)))
        beyond += (side(state.x) > middle) * (k >= _LEFT_OUT)
    far = beyond / (_MOVES - _LEFT_OUT)
    blocks = [block.mean() for block in np.array_split(far, min(_BLOCKS, len(far)))]
    error = float(np.std(blocks, ddof=1)) / len(blocks) ** 0.5
    before, b = float((side(x) > middle).mean()), float(np.clip(far.mean(), 0.01, 0.99))
    near = side.share * (1.0 - before)
    mass = near * b / (1.0 - b) - side.share * before
    return mass, near * error / (1.0 - b) ** 2, side.share * float(np.mean(divergent))
