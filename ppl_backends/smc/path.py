"""Tempering paths γ_β(x) = exp{base(x) + β·increment(x)}, β from 0 to 1.

From the prior the base is log p(θ) and the increment log L(θ); from a Gaussian q (Chopin & Ridgway 2017, section 4.4) the
base is log q and the increment log p(θ)L(θ) − log q(θ). Both ends are normalised or sampled exactly, so the product of the
mean incremental weights estimates the evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ppl_backends.errors import ModelError, PriorSamplingError
from ppl_backends.importance.proposals import StudentMixture
from ppl_backends.kernels.population import Population
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.smc.evidence import LineageVariance
from ppl_backends.smc.start import Start, cauchy_around, check_proper
from ppl_backends.targets.integral import PriorIntegral, stated_integral
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation

RunPath = Callable[..., Any]
"""Runs a path: ``(path, n, rng)`` to an object with x, log_evidence, lineage and complete."""

__all__ = ["BridgePath", "PathState", "PriorPath", "SampledPriorPath", "TemperingPath"]


@dataclass(frozen=True)
class PathState(Population):
    """Points with both parts of the path evaluated there, read at ``beta``.

    Attributes
    ----------
    x : ndarray (n, dim)
    base, increment : ndarray (n,)
    base_gradient, increment_gradient : ndarray (n, dim) or None
    beta : float
        β at which ``log_density`` and ``gradient`` are read.
    """

    base: Array
    increment: Array
    base_gradient: Array | None
    increment_gradient: Array | None
    beta: float

    @property
    def log_density(self) -> Array:
        """Log γ_β ``(n,)``."""
        return self.base if self.beta == 0 else self.base + self.beta * self.increment

    @property
    def gradient(self) -> Array:
        """∇ log γ_β ``(n, dim)``."""
        assert self.base_gradient is not None
        assert self.increment_gradient is not None
        return self.base_gradient + self.beta * self.increment_gradient

    def at(self, beta: float) -> PathState:
        """The same points read at another β."""
        return replace(self, beta=beta)


class TemperingPath(Protocol):
    """What the sampler needs of a path."""

    target: BaseTarget
    description: str
    reference: Gaussian | None
    """A dense metric near to those of the targets on the way, where there is one."""
    tails: StudentMixture | None
    """The start, where it has tails from which particles on the way are proposed anew."""

    def start(self, n: int, rng: np.random.Generator, run: RunPath) -> Start:
        """Particles at β = 0; ``run`` runs a path of its own where drawing them takes one."""
        ...

    def evaluate(self, x: Array, beta: float, gradient: bool) -> PathState:
        """Both parts at the points."""
        ...


class PriorPath:
    """p(θ) L(θ)^β from draws of the prior.

    Attributes
    ----------
    integral : PriorIntegral
        Of the prior as written, where the target knows it.
    """

    description = "prior"
    reference: Gaussian | None = None
    tails: StudentMixture | None = None

    def __init__(self, target: BaseTarget) -> None:
        if not target.has_split:
            raise ModelError(f"{target.label}: prior and likelihood are not known apart; use initial='laplace'")
        self.target = target
        self.integral = stated_integral(target) or PriorIntegral(0.0)

    def start(self, n: int, rng: np.random.Generator, run: RunPath) -> Start:
        """Independent draws of the prior, whose density as written may not integrate to one (``ordered``: 1/K!).

        All runs share the log integral; its error is added to that of their mean.
        """
        return Start(self.target.sample_prior(n, rng), self.integral.log_integral, LineageVariance(n))

    def evaluate(self, x: Array, beta: float, gradient: bool) -> PathState:
        """Base log p(θ), increment log L(θ)."""
        parts = self.target.evaluate(x, gradient)
        assert isinstance(parts, Evaluation)
        return PathState(
            x,
            parts.log_prior,
            parts.log_likelihood,
            parts.log_prior_gradient,
            parts.log_likelihood_gradient,
            beta,
        )


class SampledPriorPath(PriorPath):
    """p(θ) L(θ)^β where the prior is only a density: a run of its own, from Cauchy variables, draws it."""

    def __init__(self, target: BaseTarget, prior: BaseTarget) -> None:
        super().__init__(target)
        check_proper(target)
        self.prior = BridgePath(prior, cauchy_around(prior))

    def start(self, n: int, rng: np.random.Generator, run: RunPath) -> Start:
        """Draws of the prior by tempering, with the log normaliser that this gives."""
        drawn = run(self.prior, n, rng)
        if not drawn.complete:
            raise PriorSamplingError(f"{self.target.label}: the prior was not reached in time; use initial='laplace'")
        return Start(drawn.x, drawn.log_evidence, drawn.lineage, drawn.stages)


class BridgePath:
    """q(θ)^{1−β} {p(θ)L(θ)}^β from draws of an approximation, or of a density q made from it.

    Parameters
    ----------
    target : BaseTarget
    approximation : approximation
    tails : StudentMixture, optional
        q, where it is not the approximation itself.
    """

    def __init__(self, target: BaseTarget, approximation: Any, tails: StudentMixture | None = None) -> None:
        if approximation.dim != target.dim:
            raise ModelError(
                f"initial: the approximation has dimension {approximation.dim}, {target.label} has {target.dim}"
            )
        self.target, self.approximation = target, approximation
        self.q, self.tails = approximation if tails is None else tails, tails
        self.description = approximation.method
        if tails is not None:
            self.description += ", with Student tails"
        dense = approximation.representation in ("dense", "low_rank")
        self.reference = Gaussian(approximation.mean, approximation.cholesky) if dense else None

    def start(self, n: int, rng: np.random.Generator, run: RunPath) -> Start:
        """Independent draws of q."""
        x = np.asarray(self.q.sample(n, rng), dtype=np.float64)
        return Start(x, 0.0, LineageVariance(n))

    def evaluate(self, x: Array, beta: float, gradient: bool) -> PathState:
        """Base log q, increment log joint − log q."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # points far out in the tails of q
            if not gradient:
                base = self.q.log_density(x)
                return PathState(x, base, self.target.log_density(x) - base, None, None, beta)
            joint, joint_gradient = self.target.log_density_and_gradient(x)
            base, base_gradient = self.q.log_density_and_gradient(x)
            return PathState(x, base, joint - base, base_gradient, joint_gradient - base_gradient, beta)
