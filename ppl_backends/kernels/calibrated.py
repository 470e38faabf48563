r"""Densities of targets for kernels that an approximation q of the posterior calibrates (Chopin & Ridgway 2017, section 4).

The covariance Σ of the proposals is q's. For a block a of the coordinates, with the others b fixed, it is the
conditional covariance (Λ_aa)⁻¹ with Λ = Σ⁻¹. The independence sampler uses q itself as proposal, or the conditional
q(a | b) for a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.kernels.adaptation import Adaptation
from ppl_backends.kernels.algorithm import Algorithm
from ppl_backends.kernels.independent import Independent, Weighed
from ppl_backends.kernels.protocol import Kernel, KernelParameters
from ppl_backends.kernels.streams import each
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.numerics.population import Population
from ppl_backends.targets.protocol import Array, BaseTarget


@dataclass(frozen=True)
class Evaluated(Population):
    """Points with their log density, in the form that kernels use."""

    log_density: Array
    gradient: Array | None


def calibrated(
    target: BaseTarget,
    kernel: Kernel,
    approximation: Any,
    *,
    adapt: bool,
    scale: float | None = None,
    target_acceptance: float | None = None,
    metric: str | None = None,
) -> Algorithm:
    """Return a kernel on a target, or on a block of one, whose metric is an approximation's covariance.

    Parameters
    ----------
    target : BaseTarget
        Target of a block, if only a block moves.
    kernel : Kernel
    approximation
        Approximation of the full target.
    adapt : bool
        Whether to adapt the step size to ``target_acceptance`` during tuning.
    scale : float, optional
        Initial step size; the kernel's calibrated one by default.
    target_acceptance : float, optional
        The kernel's by default.
    metric : {"diagonal", "dense", None}
        What tuning estimates of the covariance in coordinates that the approximation whitens; nothing for a block.
    """
    if kernel.uses_gradient and not target.has_gradient:
        raise ModelError(f"{kernel.name} needs gradients and {target.label} has none; use RandomWalk")
    scale = kernel.initial_scale(target.dim) if scale is None else float(scale)
    rate = kernel.target_acceptance if target_acceptance is None else float(target_acceptance)
    shape, learn = block_gaussian(target, approximation), None if len(target.others) else metric
    adaptation = Adaptation.begin(shape, scale, rate, kernel.largest_scale, learn)
    parameters = adaptation.parameters if adapt else KernelParameters(shape, scale)
    return Algorithm(kernel, TargetDensity(target, Proposals(target, approximation), parameters, kernel.uses_gradient))


def independence_sampler(target: BaseTarget, approximation: Any) -> Algorithm:
    """Return the independence sampler with proposals from an approximation q, or from q(a | b) for a block."""
    proposals = Proposals(target, approximation)
    return Algorithm(
        Independent(proposals), WeighedDensity(target, proposals, KernelParameters(Gaussian(0.0, np.ones(1)), 1.0))
    )


class TargetDensity:
    """A target for chains.

    Parameters
    ----------
    target : BaseTarget
    proposals : Proposals
        Distribution of starting points.
    parameters : KernelParameters
    gradient : bool
    """

    def __init__(
        self, target: BaseTarget, proposals: Proposals, parameters: KernelParameters, gradient: bool = False
    ) -> None:
        self.target, self.dim, self._proposals, self._gradient = target, target.dim, proposals, gradient
        self._parameters = parameters

    def __call__(self, x: Array, rng: Any) -> Any:
        """Return the points with their log density, and its gradient if the kernel uses it."""
        if self._gradient:
            return Evaluated(x, *self.target.log_density_and_gradient(x))
        return Evaluated(x, self.target.log_density(x), None)

    def initial_point(self, rng: np.random.Generator) -> Array:
        """Return a draw of q, or of the conditional q(a | b)."""
        return self._proposals.sample(1, rng)[0]

    def parameters(self) -> KernelParameters:
        """Return the calibrated parameters."""
        return self._parameters

    def start(self, x: Array, rng: Any) -> Any:
        """Return the points with their density if it is positive; raise ModelError otherwise."""
        population = self(x, rng)
        if not np.isfinite(population.log_density).all():
            raise ModelError(f"{self.target.label}: the log density is not finite at the starting point")
        return population

    def refresh(self, population: Any, rng: Any) -> Any:
        """Return the same points with the density evaluated again."""
        return self(population.x, rng)


class WeighedDensity(TargetDensity):
    """A target for chains, with the density of the proposals; for a block, q(a | b) changes with b."""

    def __call__(self, x: Array, rng: Any) -> Weighed:
        return Weighed(x, self.target.log_density(x), self._proposals.log_density(x))


class Proposals:
    """The approximation q, or the Gaussian q(a | b) for a block.

    Parameters
    ----------
    target : BaseTarget
    approximation
        Approximation of the full target.
    """

    def __init__(self, target: BaseTarget, approximation: Any) -> None:
        self._target, self._q = target, approximation

    @property
    def _proposal(self) -> Any:
        """Return q, or q(a | b) at the current value of b."""
        return block_gaussian(self._target, self._q) if len(self._target.others) else self._q

    def sample(self, n: int, rng: Any) -> Array:
        """Return ``n`` draws ``(n, dim)``."""
        q = self._proposal
        return np.concatenate([q.sample(1, own) for own in each(rng, n)])

    def log_density(self, x: Array) -> Array:
        """Return log q ``(n,)``."""
        log_q: Array = self._proposal.log_density(x)
        return log_q


def block_gaussian(target: BaseTarget, approximation: Any) -> Gaussian:
    """Return the Gaussian with q's mean and covariance over all coordinates, or over a block given the current others."""
    q: Gaussian = approximation.gaussian
    if len(target.others):
        return q.conditional(target.others, target.point[target.others], target.free)
    return q
