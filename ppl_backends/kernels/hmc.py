"""Hamiltonian Monte Carlo: L steps of length h, mass Σ⁻¹ (Neal 2011; Buchholz 2018, Algorithm 15).

In whitened coordinates the mass is the identity, and a move makes, with g = ∇log π and E = −log π + |p|²/2:

    p ~ N(0, I)                                       (1)
    p ← p + κ₀ h g(y)                                 (2)
    k = 1, …, L:  y ← y + h p,  p ← p + κₖ h g(y)     (3)
    accept (y, p) with min{1, exp(−ΔE)}               (4)

(The thesis has the wrong sign, and max in place of min.) Leapfrog's kicks are κ = ½, 1, …, 1, ½. Steps that are
integrated in pairs (Blanes, Casas & Sanz-Serna 2014) have κ = a, 2(1 − a), 2a, …, a with a = 0.42356. On a standard
normal their mean energy error is 5 times smaller at h = 0.3, 20 times at 0.7 and 70 times at 1, so that many more
dimensions allow the same step; the scheme becomes unstable at h = 1.3, leapfrog at 2. The force g is cut as in
:mod:`~ppl_backends.kernels.mala`: with any force that depends only on the position, the scheme is reversible and
volume preserving.

If Σ is the target's covariance, a quarter of a period, hL = π/2, gives independent points. Every move draws the length
anew, up to 30 % shorter or longer, which prevents periodic trajectories. Over that range the correlation of a
coordinate with its start, cos hL, and that of its square, cos² hL, average nearly to zero (0 and 0.07).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.kernels.metric import AnyMetric
from ppl_backends.kernels.protocol import (
    Density,
    Kernel,
    KernelInfo,
    KernelParameters,
    S,
    accept,
    column,
    cut,
    squares,
)
from ppl_backends.numerics.population import Population
from ppl_backends.targets.protocol import Array, Index

LEAPFROG = 0.5  # κ₀
PAIRS = 2 * 0.21178
SHORTEST, LONGEST = 0.7, 1.3  # trajectories, as shares of their mean length
# Change of the log density in a step, and its ratio to that by the slopes, above which the step crosses a jump.
_JUMP, _STEEPER = 1e4, 10.0


class Trajectory(NamedTuple):
    """The step size ``(n, 1)`` or ``(1, 1)``, the number of steps, an integer or ``(n,)``, and κ₀."""

    h: Array
    n_steps: int | Index
    outer: float


@dataclass(frozen=True)
class Flight(Population):
    """Points on their trajectories.

    Attributes
    ----------
    x : ndarray (n, dim)
        y minus its start.
    here : Population
    p : ndarray (n, dim)
    h : ndarray (n, 1)
    n_steps, row : ndarray (n,) of int
        L, and the index of the point in the population.
    turned : ndarray (n,)
        Number of steps that were not made.
    """

    here: Any
    p: Array
    h: Array
    n_steps: Index
    row: Index
    turned: Array


def kick(k: int, outer: float) -> float:
    """Return κₖ of a trajectory that continues after step k; at the last step it is ``outer`` again."""
    return outer if k == 0 else 2.0 * (1.0 - outer) if k % 2 else 2.0 * outer


class Hmc(Kernel):
    """Hamiltonian Monte Carlo.

    Parameters
    ----------
    length : float
        Mean length hL of a trajectory in whitened coordinates.
    max_steps : int
        At least 2.
    """

    name = "hmc"
    uses_gradient = True
    has_lengths = True
    target_acceptance = 0.9

    def __init__(self, length: float = 0.5 * np.pi, max_steps: int = 100, **options: Any) -> None:
        super().__init__(**options)
        self.length, self.most_pairs = length, max(1, max_steps // 2)
        self.largest_scale = 0.5 * LONGEST * length  # one pair of steps for every length

    def initial_scale(self, dim: int) -> float:
        return float(1.2 / dim**0.25)

    def n_steps(self, scale: Any, length: Any = None) -> Any:
        """Return the even number of steps no longer than ``scale`` that cover a length, by default the mean length."""
        pairs = np.ceil((self.length if length is None else length) / (2.0 * scale))
        return 2 * np.minimum(np.maximum(pairs, 1.0), self.most_pairs).astype(np.intp)

    def draw(self, rng: np.random.Generator, scale: float | Array, n: int) -> Trajectory:
        """Return trajectories with one length for all points of a population, and separate lengths for chains.

        Points with shorter steps than others of the population have shorter trajectories.
        """
        h, half_period = column(scale), self.length / np.pi
        ends = SHORTEST * half_period, LONGEST * half_period
        length = np.pi * (rng.uniform(*ends) if self.balanced else rng.uniform(*ends, n))
        longest = float(np.max(h)) if self.balanced else h[:, 0]
        n_steps = self.n_steps(longest, length)
        return Trajectory(h * np.reshape(np.minimum(1.0, length / (n_steps * longest)), (-1, 1)), n_steps, PAIRS)

    def step(
        self, rng: np.random.Generator, population: S, density: Density[S], parameters: KernelParameters
    ) -> tuple[S, KernelInfo]:
        """Make one trajectory for every point, with its own step and number of steps if the parameters have them."""
        if parameters.n_steps is None:
            drawn = self.draw(rng, parameters.scale, len(population.x))
        else:
            drawn = Trajectory(column(parameters.scale), parameters.n_steps, LEAPFROG)
        with np.errstate(over="ignore", invalid="ignore"):  # diverging trajectories are rejected
            return self.trajectory(rng, population, density, drawn, parameters)

    def trajectory(
        self,
        rng: np.random.Generator,
        population: S,
        density: Density[S],
        drawn: Trajectory,
        parameters: KernelParameters,
    ) -> tuple[S, KernelInfo]:
        """Integrate from every point with a new momentum, and accept or reject the ends; step k moves points with L ≥ k.

        Steps that :func:`leap` did not make count as rejected in the acceptance, so that tuning shortens them.
        """
        n, metric = len(population.x), parameters.metric
        steps = drawn.n_steps + np.zeros(n, dtype=np.intp)
        start = self._normals(rng, population.x.shape)  # (1)
        h = drawn.h + np.zeros((n, 1))
        p = start + kick(0, drawn.outer) * h * cut(metric.whiten_gradient(population.gradient), h)  # (2)
        end = flight = Flight(np.zeros_like(start), population, p, h, steps, np.arange(n), np.zeros(n))
        for k in range(1, int(steps.max()) + 1):
            last = flight.n_steps == k
            n_last = np.count_nonzero(last)
            share: Any = drawn.outer if n_last == n else kick(k, drawn.outer)
            if 0 < n_last < n:
                share = np.where(last[:, None], drawn.outer, share)
            flight = leap(rng, flight, density, metric, share)  # (3)
            if n_last == n:
                end = flight
            elif n_last:
                end, flight = end.scatter(flight.row[last], flight.take(last)), flight.take(~last)
                metric = parameters.metric.take(flight.row, n)
        log_ratio = self.log_ratio(population, end.here) + 0.5 * (squares(start) - squares(end.p))
        moved, info = accept(rng, population, end.here, log_ratio, squares(end.x), steps.astype(np.float64))  # (4)
        if not end.turned.any():
            return moved, info
        return moved, info._replace(acceptance=info.acceptance * (1.0 - end.turned / steps))


def across_jump(before: Any, after: Any, move: Array, metric: AnyMetric) -> NDArray[np.bool_]:
    """Return which steps ``move`` ``(n, dim)``, in whitened coordinates, cross a jump of the log density.

    It changes by far more than slopes at both ends allow, as where a constraint is written as a large negative number. Both
    directions of a step give the same result.
    """
    change = np.abs(after.log_density - before.log_density)
    crossed: NDArray[np.bool_] = change > _JUMP
    if crossed.any():
        slopes = [np.sqrt(squares(metric.whiten_gradient(state.gradient))) for state in (before, after)]
        crossed &= change > _STEEPER * np.sqrt(squares(move)) * np.maximum(*slopes)
    return crossed


def leap(rng: Any, flight: Flight, density: Any, metric: AnyMetric, share: Any) -> Flight:
    """Make one step of all points, with that share of the force after it.

    A step that would leave the support, or cross a jump, is not made, and the momentum is reversed instead (the guided walk
    of Gustafson 1998). The map (y, p) ↦ (y + hp, p) if the end is inside and (y, −p) otherwise is a bijection that preserves
    volume, and reversing p inverts it, as for the plain step.
    """
    h, p, turned = flight.h, flight.p, flight.turned
    move = h * p
    here = flight.here.renewed(density(flight.here.x + metric.colour(move), rng))
    outside = (here.log_density == -np.inf) | across_jump(flight.here, here, move, metric)
    if outside.any():
        here, turned, p = here.where(outside, flight.here), turned + outside, p.copy()
        move[outside], p[outside] = 0.0, -p[outside]
    p = p + share * h * cut(metric.whiten_gradient(here.gradient), h)
    return Flight(flight.x + move, here, p, h, flight.n_steps, flight.row, turned)
