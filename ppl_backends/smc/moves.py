"""Moving particles at one temperature: how many steps, and at which scale.

The number of moves follows Buchholz (2018), Algorithm 14: after each move the correlation across particles of z_j + z_j²
with its value before the move is multiplied into a running product per coordinate, and moves go on while any product is
above 0.1. (The algorithm lets a tenth of the coordinates lag; the laggard is often the one scale that the others hang on.)

Coordinates alone stop too early for the evidence, whose error comes from the incremental weights: on the Pima logistic
regression from the prior the rule stops after 4 Langevin moves, when the weights still remember their particles with a
correlation of 0.2 to 0.4, and the log evidence is low by 0.2 on average. So moves also go on until the log weights, and the
weights of the step to come, have a correlation below 0.1 with those before the moves.

How long the steps are, and how many a trajectory has, is the business of :mod:`~ppl_backends.kernels.tuning`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ppl_backends.importance.outside import OutsidePoints
from ppl_backends.kernels.metric import AnyMetric, cross_fitted_metric
from ppl_backends.kernels.population import concatenate
from ppl_backends.kernels.protocol import Kernel, KernelInfo
from ppl_backends.kernels.tuning import KernelTuning, Parameters, StepParameters, Uneven, move_once
from ppl_backends.smc.mixing import WeightAutocorrelation, correlation_left, modes
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.targets.protocol import Array

__all__ = [
    "MoveSettings",
    "MoveSummary",
    "PlannedMoves",
    "extend_chains",
    "follow_plan",
    "move_particles",
    "share_of_divergent",
]

_CORRELATION_LEFT = 0.1  # α' of Algorithm 14
_DIVERGED = 20.0  # energy error of a trajectory
# Energy error of a trajectory with a step that is too long for its place, and the share of such from which steps are uneven.
# Of a Gaussian's trajectories with an acceptance rate of 0.9 next to none has so much.
_TOO_LONG, _MANY_TOO_LONG = 3.0, 0.002
# Share of trajectories that diverge from which a quarter of the step is too long as well, and no help.
_MANY_DIVERGE = 0.002


@dataclass(frozen=True)
class MoveSettings:
    """Floor and cap of the number of moves per temperature."""

    minimum: int = 1
    maximum: int = 100


@dataclass(frozen=True)
class MoveSummary:
    """Figures of the moves at one temperature.

    Attributes
    ----------
    n_moves : int
    acceptance : float
        Mean acceptance probability.
    scale : float
        Step of the last move; the median, where each particle has its own.
    correlation : float
        The autocorrelation left: the larger of the correlation of the weights with those before the moves and the largest
        running product over coordinates.
    squared_jump : float
        Mean squared jumping distance per coordinate and move, in units of the posterior's variance.
    gradients : float
        Evaluations of the density per particle kept.
    stuck : float
        Share of particles that never moved.
    noise : float
        Two standard errors of a correlation over so many particles.
    n_modes : int
        Separated modes in which the moves began; correlations are within them.
    divergent : float
        Share of the trajectories whose energy error is above 20, and finite; 0 for kernels that have none.
    undefined : float
        Share of the moves that met, among the particles, a density that is NaN or +inf.
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


@dataclass(frozen=True)
class PlannedMoves:
    """The moves of one temperature, decided beforehand.

    Attributes
    ----------
    metric : Gaussian or SplitMetric
    scales : tuple of float, StepParameters, CycleParameters or Uneven
        One per move.
    """

    metric: AnyMetric
    scales: tuple[Parameters, ...]


def move_particles(
    state: PathState,
    path: TemperingPath,
    kernel: Kernel,
    tuning: KernelTuning,
    settings: MoveSettings,
    rng: np.random.Generator,
) -> tuple[PathState, MoveSummary, KernelTuning, tuple[Parameters, ...]]:
    """Move every particle until the autocorrelation with where it was is gone, or the cap is met.

    Parameters
    ----------
    state : PathState
        Resampled particles, read at the beta to keep invariant.
    path : TemperingPath
    kernel : Kernel
    tuning : KernelTuning
        As the last temperature left it.
    settings : MoveSettings
    rng : numpy.random.Generator

    Returns
    -------
    state : PathState
    summary : MoveSummary
    tuning : KernelTuning
    scales : tuple of float, StepParameters, CycleParameters or Uneven
        The parameters of every move.
    """
    mover = _Mover(state, path, kernel, cross_fitted_metric(state.x, path.reference), rng, tuning)
    mover.prepare()
    while len(mover.scales) < settings.maximum:
        mover.move()
        if len(mover.scales) >= settings.minimum and mover.mixed:
            break
    return mover.state, mover.summary(), mover.tuning, tuple(mover.scales)


def follow_plan(
    state: PathState,
    path: TemperingPath,
    kernel: Kernel,
    plan: PlannedMoves,
    tuning: KernelTuning,
    rng: np.random.Generator,
) -> tuple[PathState, MoveSummary]:
    """Make the moves of a plan, whatever they achieve: the kernel does not depend on the particles it moves."""
    mover = _Mover(state, path, kernel, plan.metric, rng, tuning)
    for scale in _shuffled(plan.scales, rng):
        mover.move(scale)
    return mover.state, mover.summary()


def _shuffled(scales: tuple[Parameters, ...], rng: np.random.Generator) -> tuple[Parameters, ...]:
    """Planned parameters; where each particle has its own, dealt anew: resampled particles have an order."""
    if not isinstance(scales[0], StepParameters):
        return scales
    order = rng.permutation(len(scales[0].scale))
    return tuple(pairs.take(order) if isinstance(pairs, StepParameters) else pairs for pairs in scales)


def extend_chains(
    state: PathState,
    path: TemperingPath,
    kernel: Kernel,
    tuning: KernelTuning,
    length: int,
    settings: MoveSettings,
    plan: PlannedMoves,
    rng: np.random.Generator,
) -> tuple[PathState, MoveSummary, KernelTuning, tuple[Parameters, ...]]:
    """Waste-free moves (Dau & Chopin 2022): from every particle a chain, of which ``length`` states are kept.

    Where a chain of that length still remembers where it began, every other state is dropped and it goes on, twice as far,
    until it has mixed or the next doubling would exceed the cap. Where the chain has to have more moves than states, it
    begins with so many between two states kept.

    Parameters
    ----------
    state : PathState
        The first states of the chains.
    path : TemperingPath
    kernel : Kernel
    tuning : KernelTuning
        As the last temperature left it.
    length : int
    settings : MoveSettings
    plan : PlannedMoves
        The metric; and the parameters of all moves, where these are planned.
    rng : numpy.random.Generator

    Returns
    -------
    state : PathState
        All states kept, those of a chain adjacent.
    summary : MoveSummary
    tuning : KernelTuning
    scales : tuple of float, StepParameters, CycleParameters or Uneven
        The parameters of every move.
    """
    mover = _Mover(state, path, kernel, plan.metric, rng, tuning)
    planned = _shuffled(plan.scales, rng) if plan.scales else None
    if planned is None:
        mover.prepare()
    stride = len(planned) // (length - 1) if planned else -(-settings.minimum // (length - 1))
    states = [state]
    while True:
        done = len(mover.scales)
        mover.move(planned[done] if planned else None)
        if (done + 1) % stride == 0:
            states.append(mover.state)
        if len(states) == length:
            if planned or mover.mixed or 2 * (done + 1) > settings.maximum:
                break
            states, stride = states[::2], 2 * stride
    by_chain = np.arange(length * len(state.x)).reshape(length, -1).T.ravel()
    summary = mover.summary()
    summary = replace(summary, gradients=summary.gradients / length)
    return concatenate(states).take(by_chain), summary, mover.tuning, tuple(mover.scales)


def share_of_divergent(info: KernelInfo, energy_error: float = _DIVERGED) -> float:
    """Return the share of trajectories that went astray; those that left the support are no sign of too long a step."""
    return float(np.mean(info.divergent(energy_error)))


class _Mover:
    """Moves particles, with a record of what the moves did."""

    def __init__(
        self,
        state: PathState,
        path: TemperingPath,
        kernel: Kernel,
        metric: AnyMetric,
        rng: np.random.Generator,
        tuning: KernelTuning,
    ) -> None:
        self.state, self.path, self.kernel, self.metric, self.rng = state, path, kernel, metric, rng
        self.tuning, self.start, self.modes = tuning, state.x, modes(state.x)
        self.weights = WeightAutocorrelation(state, self.modes)
        self.product = np.ones(state.x.shape[1])
        self.scales: list[Parameters] = []
        self.acceptance: list[float] = []
        self.jumps: list[float] = []
        self.divergent: list[float] = []
        self.too_long: list[float] = []
        self.gradients, self.left = 0.0, 1.0
        self.outside = OutsidePoints(state.x)

    def _evaluate(self, x: Array, rng: np.random.Generator) -> PathState:
        found = self.path.evaluate(x, self.state.beta, self.kernel.uses_gradient)
        self.outside.see(x, found.log_density)
        return found

    def _step(self, parameters: Parameters) -> tuple[PathState, KernelInfo]:
        moved, info = move_once(self.kernel, self.rng, self.state, self._evaluate, parameters, self.metric)
        self.gradients += float(info.evaluations.mean())
        return moved, info

    def prepare(self) -> None:
        """Tune for this temperature, by a trial where the tuning makes one."""
        self.tuning = self.tuning.prepare(lambda tried: self._step(tried)[1], len(self.state.x), self.rng)

    def move(self, parameters: Parameters | None = None) -> None:
        """Move every particle once, as the tuning says or as given."""
        before, used = self.state, self._parameters() if parameters is None else parameters
        self.state, info = self._step(used)
        self._renew()
        if parameters is None:
            self.tuning = self.tuning.learn(info, first=not self.scales)
        self.scales.append(used)
        self.acceptance.append(float(info.acceptance.mean()))
        if self.kernel.has_lengths:
            self.divergent.append(share_of_divergent(info))
            self.too_long.append(share_of_divergent(info, _TOO_LONG))
        self.jumps.append(float((info.acceptance * info.squared_jump).mean()) / before.x.shape[1])
        self.product *= correlation_left(before.x, self.state.x, self.modes)
        self.left = max(float(self.product.max()), self.weights.left(self.state))

    def _parameters(self) -> Parameters:
        """Of the next move: those of the tuning, with shorter steps among them where its step is too long in places."""
        tuned = self.tuning.parameters()
        if not isinstance(tuned, float) or not self.too_long:
            return tuned
        uneven = np.mean(self.too_long) > _MANY_TOO_LONG and np.mean(self.divergent) < _MANY_DIVERGE
        return Uneven(tuned) if uneven else tuned

    def _renew(self) -> None:
        """Propose to every particle a draw of the start, where that has tails: local moves come back from far out slowly.

        Of a path q^{1−β}p^β the ratio of independent Metropolis–Hastings is that of (p/q)^β.
        """
        if self.path.tails is None:
            return
        n, beta = len(self.state.x), self.state.beta
        fresh = self._evaluate(self.path.tails.sample(n, self.rng), self.rng)
        self.gradients += 1.0
        accepted = np.log(self.rng.random(n)) < beta * (fresh.increment - self.state.increment)
        self.state = self.state.where(accepted, fresh)

    @property
    def mixed(self) -> bool:
        """Whether nothing ties the particles to where they were, as far as so many of them can tell."""
        return self.left < max(_CORRELATION_LEFT, self.weights.noise)

    def summary(self) -> MoveSummary:
        """The figures so far."""
        last = self.scales[-1]
        return MoveSummary(
            len(self.scales),
            float(np.mean(self.acceptance)),
            last if isinstance(last, float) else float(np.median(last.scale)),
            self.left,
            float(np.mean(self.jumps)),
            self.gradients,
            float(np.mean((self.state.x == self.start).all(axis=1))),
            self.weights.noise,
            int(self.modes.max()) + 1,
            float(np.mean(self.divergent or [0.0])),
            min(1.0, self.outside.n_undefined(self.path.target) / (len(self.scales) * len(self.state.x))),
        )
