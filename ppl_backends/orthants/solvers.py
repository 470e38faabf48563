"""Methods for the probability of one rectangle, for any multiple of its bounds.

A solver gives independent estimates of P(r lower ≤ X ≤ r upper), as logs, from seeds that do not depend on r. The
Gaussian case is r = 1; the Student case is an integral over r with common random numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import logsumexp

from ppl_backends.numerics.nets import sobol
from ppl_backends.numerics.weights import effective_sample_size, log_mean_exp
from ppl_backends.orthants import closed
from ppl_backends.orthants.chain import Chain, ChainPath
from ppl_backends.orthants.ep import dense_ep, factor_ep
from ppl_backends.orthants.intervals import Array, log_interval
from ppl_backends.orthants.low_rank import Integrand
from ppl_backends.orthants.moves import MOVES
from ppl_backends.orthants.ordering import Rectangle
from ppl_backends.orthants.path import CoordinatePath, Particles, sequential
from ppl_backends.orthants.problem import Problem
from ppl_backends.orthants.tilt import Tilt, no_tilt, saddle_point, weigh

LEAST_EFFICIENCY = 0.1  # below which a few scrambles of a net underestimate their error
LARGEST_SPREAD = 0.7  # sd of log P between runs of SMC, above which their mean is not near normal


class Runs(NamedTuple):
    """Independent estimates of log P ``(replicates,)``, one if it is exact, with efficiency and reasons for distrust."""

    log_p: Array
    efficiency: float
    reasons: tuple[str, ...] = ()


class Solver(Protocol):
    """A method for P(r lower ≤ X ≤ r upper)."""

    @property
    def name(self) -> str:
        """Name of the method."""

    def guess(self, radius: float) -> float:
        """Return a smooth guess of log P."""

    def run(self, radius: float, seeds: list[np.random.SeedSequence]) -> Runs:
        """Return one estimate per seed."""


def scramble(n: int, dim: int, seed: np.random.SeedSequence) -> Array:
    """Return ``n`` scrambled Sobol points ``(n, dim)``, none of them on an edge."""
    # Sobol spawns from a seed sequence, so use a fresh one: the same seed must give the same points again.
    points = sobol(dim, np.random.default_rng(seed.generate_state(4))).random(n)
    return np.clip(points, 1e-16, 1 - 1e-16)


@dataclass(frozen=True)
class Closed:
    """Independent variables, two variables, or several that are multiples of one."""

    problem: Problem
    rectangle: Rectangle | None = None
    name = "closed_form"

    def guess(self, radius: float) -> float:
        """Return log P."""
        problem = self.problem
        if self.rectangle is not None:
            return float(log_interval(radius * self.rectangle.lower[:1], radius * self.rectangle.upper[:1])[0])
        lower, upper = radius * problem.lower, radius * problem.upper
        if problem.dim == 2 and problem.cov[0, 1] != 0:
            return closed.bivariate(problem.cov, lower, upper)
        return closed.independent(problem.variance, lower, upper)

    def run(self, radius: float, seeds: list[np.random.SeedSequence]) -> Runs:
        """Return log P."""
        return Runs(np.array([self.guess(radius)]), 1.0)


@dataclass(frozen=True)
class Ep:
    """Expectation propagation: an approximation without an error."""

    problem: Problem
    name = "ep"

    def run(self, radius: float, seeds: list[np.random.SeedSequence]) -> Runs:
        """Return EP's log P."""
        problem = self.problem
        lower, upper = radius * problem.lower, radius * problem.upper
        if problem.loadings is not None and problem.noise is not None:
            fit = factor_ep(problem.loadings, problem.noise, lower, upper)[0]
        else:
            fit = dense_ep(problem.cov, lower, upper)
        reasons = ["an approximation: its error is not estimated"]
        reasons += [] if fit.converged else ["EP did not converge"]
        return Runs(np.array([fit.log_p]), np.nan, tuple(reasons))

    def guess(self, radius: float) -> float:
        """Return EP's log P."""
        return float(self.run(radius, []).log_p[0])


@dataclass(frozen=True)
class LowRank:
    """Few factors, integrated by points of a Student proposal."""

    integrand: Integrand
    n: int
    name = "low_rank"

    def guess(self, radius: float) -> float:
        """Return EP's log P."""
        return self.integrand.scaled(radius).ep_log_p

    def run(self, radius: float, seeds: list[np.random.SeedSequence]) -> Runs:
        """Return one estimate per scramble."""
        points = [scramble(self.n, self.integrand.loadings.shape[1], seed) for seed in seeds]
        return _from_weights(self.integrand.scaled(radius).log_weights(points))


@dataclass(frozen=True)
class Net:
    """Scrambled Sobol points one coordinate after the other: minimax tilting, or GHK without a tilt."""

    rectangle: Rectangle
    n: int
    tilted: bool = True

    @property
    def name(self) -> str:
        """Return ``"tilting"`` or ``"ghk"``."""
        return "tilting" if self.tilted else "ghk"

    @cached_property
    def tilt(self) -> Tilt:
        """Return the tilt for the unscaled bounds."""
        return saddle_point(self.rectangle)

    def _tilt(self, radius: float) -> Tilt:
        if not self.tilted:
            return no_tilt(self.rectangle)
        return self.tilt if radius == 1.0 else saddle_point(self.rectangle.scaled(radius))

    def guess(self, radius: float) -> float:
        """Return the bound of log P at the saddle point."""
        return saddle_point(self.rectangle.scaled(radius)).log_bound

    def run(self, radius: float, seeds: list[np.random.SeedSequence]) -> Runs:
        """Return one estimate per scramble."""
        rectangle, tilt = self.rectangle.scaled(radius), self._tilt(radius)
        weights = [weigh(rectangle, tilt, scramble(self.n, rectangle.rank, seed).T)[1] for seed in seeds]
        return _from_weights(np.array(weights))


@dataclass(frozen=True)
class Sequential:
    """Runs of SMC over the coordinates: tilted, plain (Ridgway), or of a chain (a particle filter)."""

    rectangle: Rectangle
    n: int
    name: str
    kernel: str = "gibbs"
    chain: Chain | None = None

    def guess(self, radius: float) -> float:
        """Return the bound of log P at the saddle point."""
        return saddle_point(self.rectangle.scaled(radius)).log_bound

    def particles(self, radius: float, seeds: list[np.random.SeedSequence]) -> list[Particles]:
        """Return the particles of one run per seed."""
        rectangle = self.rectangle.scaled(radius)
        tilt = no_tilt(rectangle) if self.name == "ridgway" else saddle_point(rectangle)
        return [self._particles(rectangle, tilt, seed) for seed in seeds]

    def _particles(self, rectangle: Rectangle, tilt: Tilt, seed: np.random.SeedSequence) -> Particles:
        uniforms = np.ascontiguousarray(scramble(self.n, rectangle.rank, seed).T)
        rng = np.random.default_rng(seed.generate_state(5))
        if self.chain is not None:
            return sequential(ChainPath(rectangle, self.chain, tilt, uniforms), rng)
        return sequential(CoordinatePath(rectangle, tilt, uniforms), rng, MOVES[self.kernel])

    def run(self, radius: float, seeds: list[np.random.SeedSequence]) -> Runs:
        """Return one estimate per seed."""
        return self.judge(np.array([run.log_p for run in self.particles(radius, seeds)]))

    def judge(self, log_p: Array) -> Runs:
        """Return estimates of runs with reasons for distrust from their spread."""
        if not np.isfinite(log_p).any():
            return Runs(log_p, 0.0, ("no particle is left inside the bounds",))
        relative = np.exp(log_p - logsumexp(log_p) + np.log(len(log_p)))
        spread = float(relative.std(ddof=1)) if len(log_p) > 1 else np.inf
        reasons = () if spread <= LARGEST_SPREAD else (f"estimates of runs differ by {spread:.2g} of P",)
        return Runs(log_p, 1 / (1 + self.n * spread**2), reasons)


def _from_weights(log_w: Array) -> Runs:
    """Return the estimates of replicates from their log weights ``(replicates, n)``."""
    efficiency = effective_sample_size(log_w.ravel()) / log_w.size
    reasons: tuple[str, ...] = ()
    if not efficiency >= LEAST_EFFICIENCY:
        reasons = (f"efficiency {efficiency:.2g} is below {LEAST_EFFICIENCY:g}: the standard error may be too small",)
    return Runs(log_mean_exp(log_w, axis=1), efficiency, reasons)
