"""Moves of particles at one temperature: the number of moves, and their records.

The number of moves follows Buchholz (2018), Algorithm 14: after each move the correlation across particles of z_j +
z_j² with its value before the move is multiplied into a running product per coordinate, and moves continue while any
product is above 0.1. (The algorithm ignores a tenth of the coordinates, but the slowest is often a scale on which the
others depend.)

For the evidence, whose error comes from the incremental weights, this rule stops too early. On the Pima logistic
regression from the prior it stops after 4 Langevin moves, when the weights still have an autocorrelation of 0.2 to
0.4, and the log evidence is low by 0.2 on average. So moves also continue until the log weights, and the weights of
the next step, have a correlation below 0.1 with those before the moves.

:mod:`~ppl_backends.kernels.tuning` chooses step sizes and numbers of steps per trajectory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ppl_backends.approximations.densest import Densest
from ppl_backends.approximations.lost_mode import can_be_sought
from ppl_backends.errors import ModelError
from ppl_backends.importance.outside import OutsidePoints
from ppl_backends.kernels.protocol import Kernel, KernelInfo
from ppl_backends.kernels.tuning import KernelTuning, Parameters, StepParameters, Uneven
from ppl_backends.numerics.gaps import modes_along_axes
from ppl_backends.numerics.population import concatenate
from ppl_backends.smc.coordinates import Coordinates, coordinates_of, coordinates_of_chains, planned_coordinates
from ppl_backends.smc.core import Moved, Resampled
from ppl_backends.smc.mixing import WeightAutocorrelation, correlation_left
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.targets.protocol import Array

CORRELATION_LEFT = 0.1  # α' of Algorithm 14
DIVERGED = 20.0  # energy error of a trajectory
# Energy error of a trajectory with a locally too long step, and the share of such trajectories above which steps are uneven.
# Almost no trajectory of a Gaussian at an acceptance rate of 0.9 has such an error.
_TOO_LONG, _MANY_TOO_LONG = 3.0, 0.002
# Share of diverging trajectories above which a quarter of the step is too long as well and does not help.
_MANY_DIVERGE = 0.002
_SMALLEST_MODE = 0.05  # share of the particles in a mode within which correlations are measured


@dataclass(frozen=True)
class MoveSettings:
    """Smallest and largest number of moves per temperature."""

    minimum: int = 1
    maximum: int = 100


def move_settings(min_moves: int, max_moves: int) -> MoveSettings:
    """Return the given bounds, or raise ModelError if they are inconsistent."""
    if min_moves > max_moves:
        raise ModelError(f"min_moves={min_moves!r}, max_moves={max_moves!r}: expected min_moves <= max_moves")
    return MoveSettings(min_moves, max_moves)


@dataclass(frozen=True)
class MoveSummary:
    """Figures of the moves at one temperature.

    ``scale`` is the (median) step of the last move, ``squared_jump`` per coordinate and move in units of the variance,
    ``gradients`` evaluations per particle, ``correlation`` what is left of weights and coordinates before the moves,
    within ``n_modes`` modes, ``noise`` two standard errors of it, ``divergent`` the share of energy errors above 20, and
    ``non_centred`` the number of coordinates that were standardised by others, ``evaluations`` those of one move.
    """

    n_moves: int
    acceptance: float
    scale: float
    correlation: float
    squared_jump: float
    gradients: float
    stuck: float
    noise: float = 0.0
    n_modes: int = 1
    divergent: float = 0.0
    undefined: float = 0.0
    non_centred: int = 0
    evaluations: float = 0.0


@dataclass(frozen=True)
class PlannedMoves:
    """The moves of one temperature, decided beforehand: their coordinates, and the parameters of every move."""

    coordinates: Coordinates
    scales: tuple[Parameters, ...]


@dataclass(frozen=True)
class UntilMixed:
    """Move every particle until its autocorrelation is low, or the largest number of moves is reached."""

    kernel: Kernel
    settings: MoveSettings

    def __call__(self, drawn: Resampled, path: TemperingPath, tuning: KernelTuning, rng: np.random.Generator) -> Moved:
        """Move the particles, all of which were resampled."""
        drawn = drawn._replace(particles=path.with_gradients(drawn.particles, drawn.stage, rng))
        walk = _Walk(drawn, path, self.kernel, coordinates_of(drawn.particles, path), tuning, rng)
        walk.prepare()
        while len(walk.scales) < self.settings.maximum:
            walk.move()
            if len(walk.scales) >= self.settings.minimum and walk.mixed:
                break
        return walk.result()


@dataclass(frozen=True)
class WasteFree:
    """Start a chain from every particle and keep ``length`` of its states (Dau & Chopin 2022, Algorithm 2).

    A chain of that length that has not mixed drops every other state and continues to twice its length, until it has
    mixed or the next doubling would exceed the largest number. States of the last stage are the result. So chains that have
    mixed continue there as well if successive states correlate, as long as this adds at most a share ``extra`` of the moves
    of all earlier stages.
    """

    kernel: Kernel
    settings: MoveSettings
    length: int
    extra: float = 0.0

    def __call__(self, drawn: Resampled, path: TemperingPath, tuning: KernelTuning, rng: np.random.Generator) -> Moved:
        """Move the particles, one for every chain."""
        coordinates = coordinates_of_chains(drawn, self.length, path, rng)
        walk = _Walk(drawn, path, self.kernel, coordinates, tuning, rng)
        walk.prepare()
        stride = -(-self.settings.minimum // (self.length - 1))
        affordable = 1.0 + self.extra * drawn.n_earlier if path.is_last(drawn.stage) else 0.0
        most, states = affordable * stride * (self.length - 1), [walk.state]
        while True:
            walk.move()
            done = len(walk.scales)
            if done % stride == 0:
                states.append(walk.state)
            if len(states) == self.length:
                enough = walk.mixed and (2 * done > most or walk.lag_correlation**stride < CORRELATION_LEFT)
                if enough or 2 * done > self.settings.maximum:
                    return walk.result(states)
                states, stride = states[::2], 2 * stride


@dataclass(frozen=True)
class Pilot:
    """Moves whose number, parameters and metric are recorded for a second run."""

    moves: UntilMixed | WasteFree

    def __call__(self, drawn: Resampled, path: TemperingPath, tuning: KernelTuning, rng: np.random.Generator) -> Moved:
        """Move the particles."""
        moved = self.moves(drawn, path, tuning, rng)
        decided: PlannedMoves = moved.decided
        coordinates = planned_coordinates(drawn, path, rng, decided.coordinates.tails)
        return moved._replace(decided=replace(decided, coordinates=coordinates))


@dataclass(frozen=True)
class Planned:
    """The moves of a plan, by beta, regardless of their effect: the kernel does not depend on the particles it moves."""

    kernel: Kernel
    plan: Mapping[float, PlannedMoves | None]
    length: int

    def __call__(self, drawn: Resampled, path: TemperingPath, tuning: KernelTuning, rng: np.random.Generator) -> Moved:
        """Move the particles."""
        planned = self.plan[drawn.stage.beta]
        assert planned is not None
        walk = _Walk(drawn, path, self.kernel, planned.coordinates, tuning, rng)
        stride, states = len(planned.scales) // max(1, self.length - 1), [walk.state]
        for done, scale in enumerate(_shuffled(planned.scales, rng), 1):
            walk.move(scale)
            if done % stride == 0:
                states.append(walk.state)
        return walk.result(states if self.length > 1 else None)


def stay(drawn: Resampled, path: TemperingPath, tuning: KernelTuning, rng: np.random.Generator) -> Moved:
    """Return the particles unmoved, as after one importance step."""
    return Moved(drawn.particles, drawn.parents, tuning)


def _shuffled(scales: tuple[Parameters, ...], rng: np.random.Generator) -> tuple[Parameters, ...]:
    """Return planned parameters; permute them if each particle has its own, because resampled particles are ordered."""
    if not isinstance(scales[0], StepParameters):
        return scales
    order = rng.permutation(len(scales[0].scale))
    return tuple(pairs.take(order) if isinstance(pairs, StepParameters) else pairs for pairs in scales)


def share_of_divergent(info: KernelInfo, energy_error: float = DIVERGED) -> float:
    """Return the share of divergent trajectories; those that left the support do not count."""
    return float(np.mean(info.divergent(energy_error)))


def energy_error_of(info: KernelInfo) -> Array:
    """Return the absolute energy error ``(n,)`` of every trajectory; infinite if it left the support."""
    return np.abs(np.nan_to_num(info.log_ratio, posinf=0.0, neginf=-np.inf))


class _Walk:
    """Moves of the particles of one stage, with a record of their effect."""

    def __init__(
        self,
        drawn: Resampled,
        path: TemperingPath,
        kernel: Kernel,
        coordinates: Coordinates,
        tuning: KernelTuning,
        rng: np.random.Generator,
    ) -> None:
        self.drawn, self.path, self.kernel, self.coordinates, self.rng = drawn, path, kernel, coordinates, rng
        self.state = path.with_gradients(drawn.particles, drawn.stage, rng)
        self.tuning, self.density = tuning, path.density(drawn.stage)
        self.start = self.state.x
        self.modes, self.outside = modes_along_axes(self.start, _SMALLEST_MODE), OutsidePoints(self.start)
        self.densest, self.searched = Densest(coordinates.gaussian_of(self.start)), can_be_sought(path.target)
        self.evaluated = list[tuple[Array, Array, Array]]()
        self.weights = WeightAutocorrelation(*path.ahead(self.state), self.modes)
        self.product = np.ones(self.start.shape[1])
        self.scales: list[Parameters] = []
        self.acceptance: list[float] = []
        self.jumps: list[float] = []
        self.divergent: list[float] = []
        self.too_long: list[float] = []
        self.gradients, self.left = 0.0, 1.0

    def _evaluate(self, x: Array, rng: np.random.Generator) -> PathState:
        self.drawn.check()
        found = self.density(x, rng)
        self.outside.see(x, found.log_density)
        end = self.path.end_log_density(found) if self.searched else None
        if end is not None:
            self.densest.see(x, end)
            if self.path.uses_gradient:
                self.evaluated.append((x, end, found.gradient))
        return found

    def _step(self, parameters: Parameters) -> tuple[PathState, KernelInfo]:
        moved, info = self.coordinates.move(self.kernel, self.rng, self.state, self._evaluate, parameters)
        self.gradients += float(info.evaluations.mean())
        return moved, info

    def prepare(self) -> None:
        """Tune for this temperature; make a trial move if the tuning uses one."""
        self.tuning = self.tuning.prepare(lambda tried: self._step(tried)[1], len(self.state.x), self.rng)

    def move(self, parameters: Parameters | None = None) -> None:
        """Move every particle once, with the tuned or the given parameters."""
        before, used = self.state, self._parameters() if parameters is None else parameters
        moved, info = self._step(used)
        if self.evaluated:
            self.densest.see_gradients(*map(np.concatenate, zip(*self.evaluated, strict=True)))
            self.evaluated.clear()
        self.state = self.path.renew(moved, self._evaluate, self.rng)
        self.gradients += self.state is not moved
        if self.coordinates.tails is not None:
            self.gradients += 1
            self.state, useful = self.coordinates.jump(self.rng, self.state, self._evaluate)
            if parameters is None and not useful:
                self.coordinates = replace(self.coordinates, tails=None)
        if parameters is None:
            self.tuning = self.tuning.learn(info, first=not self.scales)
        self.scales.append(used)
        self.acceptance.append(float(info.acceptance.mean()))
        if self.kernel.has_lengths:
            self.divergent.append(share_of_divergent(info))
            self.too_long.append(share_of_divergent(info, _TOO_LONG))
        self.jumps.append(float((info.acceptance * info.squared_jump).mean()) / before.x.shape[1])
        self.product *= correlation_left(before.x, self.state.x, self.modes)
        self.left = max(float(self.product.max()), self.weights.left(self.path.ahead(self.state)[0]))

    def _parameters(self) -> Parameters:
        """Return the parameters of the next move; steps are shorter if the tuned step is locally too long."""
        tuned = self.tuning.parameters()
        if not isinstance(tuned, float) or not self.too_long:
            return tuned
        uneven = np.mean(self.too_long) > _MANY_TOO_LONG and np.mean(self.divergent) < _MANY_DIVERGE
        return Uneven(tuned) if uneven else tuned

    @property
    def mixed(self) -> bool:
        """Return whether a sample of the particles no longer correlates with its positions before the moves."""
        return self.left < max(CORRELATION_LEFT, self.weights.noise)

    @property
    def lag_correlation(self) -> float:
        """Return the correlation of positions before and after a move, on average over coordinates and moves."""
        return max(0.0, 1.0 - 0.5 * float(np.mean(self.jumps)))

    def result(self, states: Sequence[PathState] | None = None) -> Moved:
        """Return the current particles; or all ``states`` of the chains, with those of a chain adjacent."""
        decided = PlannedMoves(self.coordinates, tuple(self.scales))
        if states is None:
            return Moved(self.state, self.drawn.parents, self.tuning, self._summary(1), decided, self.densest)
        # If the length does not divide n, some states of the last chain are left out.
        n, length = len(self.drawn.weights), len(states)
        by_chain = np.arange(length * len(self.start)).reshape(length, -1).T.ravel()[:n]
        parents = np.repeat(self.drawn.parents, length)[:n]
        particles = concatenate(states).take(by_chain)
        return Moved(particles, parents, self.tuning, self._summary(length), decided, self.densest)

    def _summary(self, length: int) -> MoveSummary:
        last = self.scales[-1]
        return MoveSummary(
            len(self.scales),
            float(np.mean(self.acceptance)),
            last if isinstance(last, float) else float(np.median(last.scale)),
            self.left,
            float(np.mean(self.jumps)),
            self.gradients / length,
            float(np.mean((self.state.x == self.start).all(axis=1))),
            self.weights.noise,
            int(self.modes.max()) + 1,
            float(np.mean(self.divergent or [0.0])),
            min(1.0, self.outside.n_undefined(self.path.target) / (len(self.scales) * len(self.state.x))),
            self.coordinates.n_non_centred,
            self.gradients / len(self.scales),
        )
