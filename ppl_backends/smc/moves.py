"""Moving particles at one temperature: how many steps, and at which scale.

The number of moves follows Buchholz (2018), Algorithm 14: after each move the correlation across particles of z_j + z_j²
with its value before the move is multiplied into a running product per coordinate, and moves go on while any product is
above 0.1. (The algorithm lets a tenth of the coordinates lag; the laggard is often the one scale that the others hang on.)

Coordinates alone stop too early for the evidence, whose error comes from the incremental weights: on the Pima logistic
regression from the prior the rule stops after 4 Langevin moves, when the weights still remember their particles with a
correlation of 0.2 to 0.4, and the log evidence is low by 0.2 on average. So moves also go on until the log weights, and the
weights of the step to come, have a correlation below 0.1 with those before the moves.

The scale follows the acceptance rate after every move; with thousands of particles one move measures that rate to about one
per cent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppl_backends.mcmc.kernels import Kernel
from ppl_backends.mcmc.metric import cross_fitted_metric
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.smc.schedule import next_exponent
from ppl_backends.targets.protocol import Array

__all__ = ["MoveSettings", "MoveSummary", "move_particles"]

_CORRELATION_LEFT = 0.1  # α' of Algorithm 14
_GAIN = 1.5  # change of log scale per unit of acceptance above target; about the inverse slope of the acceptance curve


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
        Scale after the last move.
    correlation : float
        What is left of the memory: the larger of the weights' correlation with those before the moves and of the largest
        running product over coordinates.
    squared_jump : float
        Mean squared jumping distance per coordinate and move, in units of the posterior's variance.
    gradients : int
        Evaluations of the density per particle.
    stuck : float
        Share of particles that never moved.
    """

    n_moves: int
    acceptance: float
    scale: float
    correlation: float
    squared_jump: float
    gradients: int
    stuck: float


def move_particles(
    state: PathState,
    path: TemperingPath,
    kernel: Kernel,
    scale: float,
    settings: MoveSettings,
    rng: np.random.Generator,
) -> tuple[PathState, MoveSummary]:
    """Move every particle until the memory of where it was is gone, or the cap is met.

    Parameters
    ----------
    state : PathState
        Resampled particles, read at the exponent to keep invariant.
    path : TemperingPath
    kernel : Kernel
    scale : float
        Of the kernel, as the last temperature left it.
    settings : MoveSettings
    rng : numpy.random.Generator
    """
    metric = cross_fitted_metric(state.x)

    def evaluate(x: Array) -> PathState:
        return path.evaluate(x, state.exponent, kernel.uses_gradient)

    start, memory = state.x, _WeightMemory(state)
    product = np.ones(start.shape[1])
    acceptance, jumps, gradients, left = [], [], 0, 1.0
    for n_moves in range(1, settings.maximum + 1):
        before = state.x
        state, info = kernel.step(rng, state, evaluate, scale, metric)
        rate = float(info.acceptance.mean())
        scale *= float(np.exp(_GAIN * (rate - kernel.target_acceptance)))
        acceptance.append(rate)
        jumps.append(float((info.acceptance * info.squared_jump).mean()) / start.shape[1])
        gradients += info.gradients
        product *= _correlation(before, state.x)
        left = max(float(product.max()), memory.left(state))
        if n_moves >= settings.minimum and left < max(_CORRELATION_LEFT, memory.noise):
            break
    stuck = float(np.mean((state.x == start).all(axis=1)))
    summary = MoveSummary(n_moves, float(np.mean(acceptance)), scale, left, float(np.mean(jumps)), gradients, stuck)
    return state, summary


class _WeightMemory:
    """Correlation of the incremental weights with what they were before the moves.

    The step to come is taken from the particles before the moves; at λ = 1, where none comes, only log weights are compared.
    """

    def __init__(self, state: PathState) -> None:
        self.noise = 2.0 / np.sqrt(len(state.x))  # two standard errors of a correlation that is zero
        self.low, self.high = np.quantile(state.increment, [0.001, 0.999])
        self.step = 0.0
        if state.exponent < 1.0:
            self.step = next_exponent(state.increment, state.exponent, 0.5) - state.exponent
        self.before = self._functions(state)

    def _functions(self, state: PathState) -> Array:
        """Log weights and weights as columns, centred and of length one."""
        log_weight = np.clip(state.increment, self.low, self.high)
        columns = np.stack([log_weight, np.exp(self.step * (log_weight - self.high))], axis=1)
        columns -= columns.mean(axis=0)
        return columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)

    def left(self, state: PathState) -> float:
        """The larger of the two correlations with the state before the moves."""
        return float((self.before * self._functions(state)).sum(axis=0).max())


def _correlation(before: Array, after: Array) -> Array:
    """Correlation over particles of z + z² before and after a move, per coordinate, with z robustly standardised."""
    low, centre, high = np.quantile(before, [0.158655, 0.5, 0.841345], axis=0)
    width = np.where(high > low, 0.5 * (high - low), 1.0)
    old, new = (np.clip((x - centre) / width, -5.0, 5.0) for x in (before, after))
    old, new = old + old**2, new + new**2
    old, new = old - old.mean(axis=0), new - new.mean(axis=0)
    norm = np.sqrt((old**2).sum(axis=0) * (new**2).sum(axis=0))
    return np.clip((old * new).sum(axis=0) / np.maximum(norm, 1e-300), 0.0, 1.0)
