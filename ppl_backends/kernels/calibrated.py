r"""Metropolis–Hastings calibrated by an approximation q of the posterior (Chopin & Ridgway 2017, section 4).

The covariance Σ of the proposals is q's. For a block a of the coordinates, the others b held, it is the conditional one,
(Λ_aa)⁻¹ with Λ = Σ⁻¹. Whoever trusts q more lets it propose: the independence sampler draws from q itself, or from the
conditional q(a | b) for a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular

from ppl_backends.errors import ModelError
from ppl_backends.kernels.adaptation import DualAveraging
from ppl_backends.kernels.algorithm import COMMON_STATS, Statistics
from ppl_backends.kernels.metric import AnyMetric, Metric
from ppl_backends.kernels.metropolis import Kernel, KernelInfo, S, leapfrog, trajectory
from ppl_backends.kernels.population import Population
from ppl_backends.targets.conditional import ConditionalTarget
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["Calibrated", "IndependentProposal", "PathHmc", "block_gaussian"]


@dataclass(frozen=True)
class Evaluated(Population):
    """Points with their log density, as kernels move them."""

    log_density: Array
    gradient: Array


class CalibratedState(NamedTuple):
    """One chain: its point and the step size that it adapts."""

    point: Evaluated
    adaptation: DualAveraging

    @property
    def x(self) -> Array:
        """The point ``(dim,)``."""
        return self.point.x[0]


class Calibrated:
    """A kernel whose metric is an approximation's covariance.

    Parameters
    ----------
    target : BaseTarget
        A :class:`ConditionalTarget` for a block.
    kernel : Kernel
    approximation
        Of the full target.
    adapt : bool
        Whether the step size is adapted to ``target_acceptance`` while tuning.
    scale : float, optional
        Step size to begin with, the kernel's calibrated one by default.
    target_acceptance : float, optional
        The kernel's by default.
    """

    approximate = False
    stats: ClassVar[dict[str, type]] = {**COMMON_STATS, "accepted": bool, "scaling": float, "n_steps": int}

    def __init__(
        self,
        target: BaseTarget,
        kernel: Kernel,
        approximation: Any,
        *,
        adapt: bool,
        scale: float | None = None,
        target_acceptance: float | None = None,
    ) -> None:
        if kernel.uses_gradient and not target.has_gradient:
            raise ModelError(f"{kernel.name} needs gradients and {target.label} has none; use RandomWalk")
        self.name, self.dim = kernel.name, target.dim
        self._target, self._kernel, self._q, self._adapt = target, kernel, approximation, adapt
        self._scale = kernel.initial_scale(target.dim) if scale is None else float(scale)
        self._rate = kernel.target_acceptance if target_acceptance is None else float(target_acceptance)
        self._metric = Metric(block_gaussian(target, approximation).factor)

    def initial_point(self, rng: np.random.Generator) -> Array:
        """A draw of q, or of the conditional q(a | b)."""
        return draw(self._target, self._q, rng)

    def _evaluate(self, x: Array) -> Evaluated:
        if self._kernel.uses_gradient:
            return Evaluated(x, *self._target.log_density_and_gradient(x))
        return Evaluated(x, self._target.log_density(x), np.zeros_like(x))

    def start(self, x: Array, rng: np.random.Generator) -> CalibratedState:
        """The state at ``x``, with the calibrated step size."""
        return CalibratedState(
            require_finite(self._evaluate(x[None]), self._target), DualAveraging.begin(self._scale, self._rate)
        )

    def refresh(self, state: CalibratedState, rng: np.random.Generator) -> CalibratedState:
        """The density anew at the same point."""
        return state._replace(point=self._evaluate(state.point.x))

    def step(self, state: CalibratedState, rng: np.random.Generator, tune: bool) -> tuple[CalibratedState, Statistics]:
        """One move."""
        adaptation = state.adaptation
        scale = adaptation.scale if tune and self._adapt else adaptation.average
        moved, info = self._kernel.step(rng, state.point, self._evaluate, scale, self._metric)
        accept = float(info.acceptance[0])
        if tune and self._adapt:
            adaptation = adaptation.update(accept)
        stats = {
            "accept": accept,
            "approximate": 0,
            "tune": tune,
            "accepted": bool((moved.x != state.point.x).any()),
            "scaling": scale,
            "n_steps": int(info.gradients),
        }
        return CalibratedState(moved, adaptation), stats


class PathHmc:
    """Hamiltonian Monte Carlo with trajectories of a fixed length εL in whitened coordinates (Neal 2011).

    Parameters
    ----------
    length : float
        εL; L is rounded up and ε kept. Jittered by ±20 %, so that trajectories do not close.
    max_steps : int
    """

    name = "hmc"
    uses_gradient = True
    target_acceptance = 0.65
    largest_scale = np.inf

    def __init__(self, length: float = 1.0, max_steps: int = 100) -> None:
        self.length, self.max_steps = length, max_steps

    def initial_scale(self, dim: int) -> float:
        """1.2 / dim^(1/4), at most the length of a trajectory."""
        return min(1.2 / dim**0.25, self.length)

    def step(
        self,
        rng: np.random.Generator,
        state: S,
        evaluate: Callable[[Array], S],
        scale: float | Array,
        metric: AnyMetric,
    ) -> tuple[S, KernelInfo]:
        """One trajectory."""
        h = float(scale) * rng.uniform(0.8, 1.2)
        n_steps = int(np.clip(np.ceil(self.length / float(scale)), 1, self.max_steps))
        return trajectory(rng, state, evaluate, h, leapfrog(n_steps), metric, lambda gradient: gradient)


class IndependentState(NamedTuple):
    """One chain of the independence sampler: its point, log density there, and that of q."""

    x: Array
    log_density: float
    log_q: float


class IndependentProposal:
    """Metropolis–Hastings with proposals from the approximation, or from its conditional for a block.

    Parameters
    ----------
    target : BaseTarget
    approximation
        Of the full target.
    """

    name, approximate = "independent", False
    stats: ClassVar[dict[str, type]] = {**COMMON_STATS, "accepted": bool, "log_weight": float}

    def __init__(self, target: BaseTarget, approximation: Any) -> None:
        self.dim, self._target, self._q = target.dim, target, approximation

    def initial_point(self, rng: np.random.Generator) -> Array:
        """A draw of q."""
        return draw(self._target, self._q, rng)

    def start(self, x: Array, rng: np.random.Generator) -> IndependentState:
        """The state at ``x``."""
        state = self._at(x)
        if not np.isfinite(state.log_density):
            raise ModelError(f"{self._target.label}: the log density is not finite at the starting point")
        return state

    def _at(self, x: Array) -> IndependentState:
        if isinstance(self._target, ConditionalTarget):
            log_q = block_gaussian(self._target, self._q).log_density(x)
        else:
            log_q = float(self._q.log_density(x[None])[0])
        return IndependentState(x, float(self._target.log_density(x[None])[0]), log_q)

    def refresh(self, state: IndependentState, rng: np.random.Generator) -> IndependentState:
        """Both densities anew: the conditional q(a | b) has moved with b."""
        return self._at(state.x)

    def step(
        self, state: IndependentState, rng: np.random.Generator, tune: bool
    ) -> tuple[IndependentState, Statistics]:
        """One proposal."""
        proposal = self._at(draw(self._target, self._q, rng))
        weight = proposal.log_density - proposal.log_q
        log_ratio = weight - (state.log_density - state.log_q)
        accept = float(np.exp(min(log_ratio, 0.0))) if np.isfinite(log_ratio) else 0.0
        accepted = bool(rng.random() < accept)
        stats = {"accept": accept, "approximate": 0, "tune": tune, "accepted": accepted, "log_weight": float(weight)}
        return proposal if accepted else state, stats


class BlockGaussian(NamedTuple):
    """A Gaussian over the coordinates that move: its mean and the lower factor of its covariance (or sds)."""

    mean: Array
    factor: Array

    def draw(self, rng: np.random.Generator) -> Array:
        """One point."""
        z = rng.standard_normal(len(self.mean))
        return self.mean + (self.factor @ z if self.factor.ndim == 2 else self.factor * z)

    def log_density(self, x: Array) -> float:
        """Normalised."""
        if self.factor.ndim == 1:
            z, log_det = (x - self.mean) / self.factor, float(np.log(self.factor).sum())
        else:
            z = solve_triangular(self.factor, x - self.mean, lower=True, check_finite=False)
            log_det = float(np.log(np.diagonal(self.factor)).sum())
        return float(-0.5 * z @ z) - log_det - 0.5 * len(x) * float(np.log(2 * np.pi))


def block_gaussian(target: BaseTarget, approximation: Any) -> BlockGaussian:
    """The Gaussian with q's mean and covariance over all coordinates, or over a block given where the others are."""
    mean = np.asarray(approximation.mean)
    if getattr(approximation, "representation", "") == "diagonal":
        sd = np.asarray(approximation.cholesky)
        if isinstance(target, ConditionalTarget):
            return BlockGaussian(mean[target.free], sd[target.free])
        return BlockGaussian(mean, sd)
    cov = np.asarray(approximation.cov)
    if not isinstance(target, ConditionalTarget):
        return BlockGaussian(mean, np.linalg.cholesky(cov))
    a, b = target.free, target.others
    gain = cho_solve(cho_factor(cov[np.ix_(b, b)]), cov[np.ix_(b, a)]).T
    centre = mean[a] + gain @ (target.point[b] - mean[b])
    return BlockGaussian(centre, np.linalg.cholesky(cov[np.ix_(a, a)] - gain @ cov[np.ix_(b, a)]))


def draw(target: BaseTarget, approximation: Any, rng: np.random.Generator) -> Array:
    """One draw ``(dim,)`` of q, or of q(a | b) for a block."""
    if isinstance(target, ConditionalTarget):
        return block_gaussian(target, approximation).draw(rng)
    x: Array = approximation.sample(1, rng)[0]
    return x


def require_finite(point: Evaluated, target: BaseTarget) -> Evaluated:
    """The point, if its density is positive."""
    if not np.isfinite(point.log_density[0]):
        raise ModelError(f"{target.label}: the log density is not finite at the starting point")
    return point
