"""Hamiltonian Monte Carlo: L steps of length h, mass Σ⁻¹ (Neal 2011; Buchholz 2018, Algorithm 15).

In whitened coordinates the mass is the identity: p ← p + (h/2) g, then L times y ← y + h p with p ← p + h g between, and
a last p ← p + (h/2) g; accepted with probability min{1, exp(−ΔE)}, E = −log π + |p|²/2. (The thesis prints both the sign
and max for min.) The force is cut as in :mod:`~ppl_backends.kernels.mala`: any force that depends on the position alone
leaves the scheme reversible and volume preserving.

Those are leapfrog's kicks. Steps that are integrated in pairs (Blanes, Casas & Sanz-Serna 2014) are leapfrog steps whose
kicks are longer and shorter by turns, by 15 %. On a standard normal the mean energy error is 5 times smaller at h = 0.3,
20 times at 0.7 and 70 times at 1, so that many more dimensions take the same step; the scheme becomes unstable at h =
1.3, where leapfrog does at 2.

How far a trajectory goes is a part of its own, :class:`QuarterPeriod` or :class:`FixedLength`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

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
from ppl_backends.targets.protocol import Array, Index

__all__ = ["LEAPFROG", "PAIRS", "FixedLength", "Hmc", "Path", "QuarterPeriod", "Trajectory", "kick"]

LEAPFROG = 0.5  # share of a step for which the force acts at both ends
PAIRS = 2 * 0.21178
_SHARES = (0.35, 0.65)  # of half a period
_MOST_PAIRS = 50


class Trajectory(NamedTuple):
    """What a trajectory is made of.

    Attributes
    ----------
    h : ndarray (n, 1) or (1, 1)
        Length of a step.
    n_steps : int or ndarray (n,)
    outer : float
        Share of a step for which the force acts before the first step and after the last: ``LEAPFROG`` or ``PAIRS``.
    """

    h: Array
    n_steps: int | Index
    outer: float


def kick(k: int, n_steps: Any, outer: float) -> Any:
    """Return the share of a step for which the force acts after step ``k`` of ``n_steps`` (None: of more than k).

    It reads the same from either end, for an even number of steps in pairs, so that the trajectory is reversible.
    """
    inner = outer if k == 0 else 2.0 * (1.0 - outer) if k % 2 else 2.0 * outer
    if n_steps is None or isinstance(n_steps, int):
        return outer if n_steps == k else inner
    return np.where(n_steps == k, outer, inner)


class Path(Protocol):
    """How far trajectories go."""

    target_acceptance: float
    largest_scale: float

    def first_scale(self, scale: float) -> float:
        """Return the first step where theory's is ``scale``."""
        ...

    def draw(self, rng: np.random.Generator, scale: float | Array) -> Trajectory:
        """Return the trajectories of one move, whose steps have about the length ``scale``."""
        ...


class QuarterPeriod:
    """About a quarter of a period.

    Where Σ is the target's covariance a quarter of a period, hL = π/2, gives independent points, so L follows from h. The
    length is drawn anew at every step, the same for all points, which keeps trajectories from closing: from 0.35 π to
    0.65 π, over which the correlation of a coordinate with its start, cos hL, and that of its square, cos² hL, are next to
    nothing on average (0 and 0.07). It is covered by as few pairs of steps no longer than ``scale`` as do; where points have
    steps of their own, those with shorter ones go less far.
    """

    target_acceptance = 0.9
    largest_scale = 0.5 * np.pi * _SHARES[1]  # one pair of steps for every length

    def first_scale(self, scale: float) -> float:
        """Return it as it is."""
        return scale

    def draw(self, rng: np.random.Generator, scale: float | Array) -> Trajectory:
        """Return pairs of steps."""
        h = column(scale)
        share, longest = rng.uniform(*_SHARES), float(np.max(h))
        n_steps = Hmc.n_steps(longest, share)
        return Trajectory(h * min(1.0, np.pi * share / (n_steps * longest)), n_steps, PAIRS)


class FixedLength:
    """Trajectories of the length εL that was asked for, on average, by leapfrog steps.

    L is ``length`` / ε rounded up or down at random, in proportion, so that ε stays the step that has its acceptance rate.
    Steps are jittered by ±20 %, so that trajectories do not close.

    Parameters
    ----------
    length : float
        In whitened coordinates.
    max_steps : int
    """

    target_acceptance = 0.8

    def __init__(self, length: float = 1.8, max_steps: int = 100) -> None:
        self.length, self.max_steps, self.largest_scale = length, max_steps, length

    def first_scale(self, scale: float) -> float:
        """Return it, at most the length of a trajectory."""
        return min(scale, self.length)

    def draw(self, rng: np.random.Generator, scale: float | Array) -> Trajectory:
        """Return leapfrog steps, every point its own."""
        scale = np.reshape(scale, -1)
        h = scale * rng.uniform(0.8, 1.2, len(scale))
        n_steps = (self.length / scale + rng.random(len(scale))).astype(np.intp)
        return Trajectory(h[:, None], np.minimum(np.maximum(n_steps, 1), self.max_steps), LEAPFROG)


class Hmc(Kernel):
    """Hamiltonian Monte Carlo.

    Parameters
    ----------
    path : Path, optional
        A quarter of a period by default.
    """

    name = "hmc"
    uses_gradient = True
    has_lengths = True

    def __init__(self, path: Path | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.path: Path = QuarterPeriod() if path is None else path
        self.target_acceptance, self.largest_scale = self.path.target_acceptance, self.path.largest_scale

    def initial_scale(self, dim: int) -> float:
        """Return 1.2 / dim^(1/4)."""
        return self.path.first_scale(float(1.2 / dim**0.25))

    @staticmethod
    def n_steps(scale: float, share: float = 0.5) -> int:
        """Return the number of steps no longer than ``scale`` that cover a share of half a period, in pairs."""
        return 2 * int(np.clip(np.ceil(np.pi * share / (2.0 * scale)), 1, _MOST_PAIRS))

    def step(
        self, rng: np.random.Generator, population: S, density: Density[S], parameters: KernelParameters
    ) -> tuple[S, KernelInfo]:
        """Make one trajectory for every point, of its own step and number of steps where the parameters have such."""
        if parameters.n_steps is None:
            drawn = self.path.draw(rng, parameters.scale)
        else:
            drawn = Trajectory(column(parameters.scale), parameters.n_steps, LEAPFROG)
        with np.errstate(over="ignore", invalid="ignore"):  # of a trajectory that diverges, which is rejected
            return self.trajectory(rng, population, density, drawn, parameters)

    def trajectory(
        self,
        rng: np.random.Generator,
        population: S,
        density: Density[S],
        drawn: Trajectory,
        parameters: KernelParameters,
    ) -> tuple[S, KernelInfo]:
        """Integrate from every point with a new momentum, and accept the ends or not; step k moves the points with L ≥ k.

        A step that would leave the support is not made, and turns the momentum round instead (the guided walk of Gustafson
        1998): (y, p) ↦ (y + hp, p) where the end is inside and (y, −p) elsewhere is a bijection that preserves volume and
        that reversing p inverts, as the plain step is. Such steps count as rejected in the acceptance, so that tuning
        shortens them.
        """
        n, metric, outer, h = len(population.x), parameters.metric, drawn.outer, drawn.h
        lengths = np.atleast_1d(drawn.n_steps)
        longest = int(lengths.max())
        together = len(lengths) == 1 or int(lengths.min()) == longest
        if not together:
            h = h + np.zeros((n, 1))
        stops = {longest} if together else set(lengths.tolist())
        start = self._normals(rng, population.x.shape)
        p = start + outer * h * cut(metric.whiten_gradient(population.gradient), h)
        rows, ends, here = np.arange(n), population, population
        jump, turned = np.zeros_like(start), np.zeros(n)
        momentum, whole_jump, turns = (start, jump, turned) if together else (start.copy(), jump.copy(), turned.copy())
        for k in range(1, longest + 1):
            move = h * p
            ahead = density(here.x + metric.colour(move), rng)
            outside = ahead.log_density == -np.inf
            if np.count_nonzero(outside):
                ahead, turned = ahead.where(outside, here), turned + outside
                move[outside], p[outside] = 0.0, -p[outside]
            here, jump = ahead, jump + move
            share = kick(k, longest if together else lengths[:, None] if k in stops else None, outer)
            p = p + share * h * cut(metric.whiten_gradient(here.gradient), h)
            if k not in stops:
                continue
            if together:
                momentum, whole_jump, turns, ends = p, jump, turned, here
                break
            last = lengths == k
            done, going = rows[last], ~last
            momentum[done], whole_jump[done], turns[done] = p[last], jump[last], turned[last]
            ends = ends.scatter(done, here.take(last))
            if going.any():
                rows, here, p, h = rows[going], here.take(going), p[going], h[going]
                jump, turned, lengths = jump[going], turned[going], lengths[going]
                metric = parameters.metric.take(rows, n)
        log_ratio = self.log_ratio(population, ends) + 0.5 * (squares(start) - squares(momentum))
        evaluations = drawn.n_steps + np.zeros(n)
        moved, info = accept(rng, population, ends, log_ratio, squares(whole_jump), evaluations)
        if not np.count_nonzero(turns):
            return moved, info
        return moved, info._replace(acceptance=info.acceptance * (1.0 - turns / evaluations))
