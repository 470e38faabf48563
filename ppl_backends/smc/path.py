"""Tempering paths γ_β(x) = exp{base(x) + β·increment(x)}, β from 0 to 1.

From the prior the base is log p(θ) and the increment log L(θ); from a Gaussian q (Chopin & Ridgway 2017, section 4.4) the
base is log q and the increment log p(θ)L(θ) − log q(θ). Both ends are normalised or sampled exactly, so the product of the
mean incremental weights estimates the evidence.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.kernels.protocol import Density
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.numerics.population import Population, concatenate
from ppl_backends.smc.core import Start
from ppl_backends.smc.schedule import Schedule
from ppl_backends.targets.integral import PriorIntegral, stated_integral
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation


@dataclass(frozen=True)
class PathState(Population):
    """Points with both parts of the path evaluated; ``log_density`` and ``gradient`` are those at ``beta``."""

    base: Array
    increment: Array
    base_gradient: Array | None
    increment_gradient: Array | None
    beta: float

    @property
    def log_density(self) -> Array:
        """Return log γ_β ``(n,)``."""
        return self.base if self.beta == 0 else self.base + self.beta * self.increment

    @property
    def gradient(self) -> Array:
        """Return ∇ log γ_β ``(n, dim)``."""
        assert self.base_gradient is not None
        assert self.increment_gradient is not None
        return self.base_gradient + self.beta * self.increment_gradient

    def at(self, beta: float) -> PathState:
        """Return the same points at another β."""
        return replace(self, beta=beta)


class Power(NamedTuple):
    """A stage of tempering: β, and the step from the stage before it."""

    beta: float
    step: float

    @property
    def position(self) -> float:
        """Return the progress along the path, from 0 to 1."""
        return self.beta


class TemperingPath:
    """Powers β of an increment; subclasses define the start and :meth:`evaluate`.

    ``reference`` is a dense Gaussian near the targets on the path. ``approximation`` is the fitted start of the path,
    if it has one, and ``tails`` its mixture with Student t's. ``integral`` is the integral of the prior as written, if
    known. ``draws_are_independent`` is True if the start is drawn directly, not by a separate run. ``uses_gradient``
    says whether moves do, and ``metric`` is one of :data:`~ppl_backends.kernels.metric.METRICS`.
    """

    description: str
    reference: Gaussian | None = None
    approximation: Any = None
    tails: Any = None
    integral: PriorIntegral | None = None
    draws_are_independent: bool = True
    uses_gradient: bool = False
    metric: str = "dense"

    def __init__(self, target: BaseTarget) -> None:
        self.target = target

    @property
    def origin(self) -> str:
        """Return the description of the start without that of its tails, which a later path may have too."""
        return self.description if self.approximation is None else str(self.approximation.method)

    def for_moves(self, uses_gradient: bool, metric: str = "dense") -> Self:
        """Return the same path for a kernel with or without gradients, and a metric of the given kind."""
        changed = copy.copy(self)
        changed.uses_gradient, changed.metric = uses_gradient, metric
        return changed

    def draw(self, n: int, rng: np.random.Generator) -> Start:
        """Draw points of β = 0, which are the ``population``."""
        raise NotImplementedError

    def start(self, n: int, rng: np.random.Generator) -> Start:
        """Draw particles of β = 0."""
        drawn = self.draw(n, rng)
        return drawn._replace(population=self.particles(drawn.population, 0.0, False, rng))

    def particles(self, x: Array, beta: float, gradient: bool, rng: np.random.Generator) -> PathState:
        """Return particles at the points; estimates draw from ``rng``, and each is kept with its point."""
        return self.evaluate(x, beta, gradient)

    def evaluate(self, x: Array, beta: float, gradient: bool) -> PathState:
        """Return both parts at the points."""
        raise NotImplementedError

    def log_density(self, x: Array) -> Array:
        """Return the log density ``(n,)`` at β = 1."""
        return self.evaluate(x, 1.0, False).log_density

    def next(self, population: Any, weights: Array | None, schedule: Schedule) -> tuple[Any, Array]:
        """Return the next β, and the log weights (β' − β)·increment."""
        beta = schedule.next(population.increment, population.beta, weights)
        step = beta - population.beta
        return Power(beta, step), step * population.increment

    def is_last(self, stage: Any) -> bool:
        """Return whether β = 1."""
        return stage is not None and stage.beta == 1.0

    def extend(self, population: Any, stage: Any, rng: np.random.Generator) -> Any:
        """Return the particles at another β."""
        return population.at(stage.beta)

    def with_gradients(self, population: Any, stage: Any, rng: np.random.Generator, rows: int | None = None) -> Any:
        """Return the particles with the gradients that their kernel needs; draws of the start have none.

        They are evaluated ``rows`` at a time. A program is compiled for every number of points, so this is the number of
        points that moves evaluate.
        """
        if not self.uses_gradient or population.base_gradient is not None:
            return population
        x, density = population.x, self.density(stage)
        rows = rows or len(x)
        return concatenate([density(x[k : k + rows], rng) for k in range(0, len(x), rows)])

    def density(self, stage: Any) -> Density[PathState]:
        """Return the map from points to particles of π_β."""
        return lambda x, rng: self.particles(x, stage.beta, self.uses_gradient, rng)

    def end_log_density(self, population: PathState) -> Array | None:
        """Return the log density ``(n,)`` of the path's end, for the search for lost modes; None if there is no search."""
        return population.at(1.0).log_density

    def ahead(self, population: PathState) -> tuple[Array, float]:
        """Return the increments, which give the weights of the next steps, and β."""
        return population.increment, population.beta

    def renew(self, population: PathState, density: Density[PathState], rng: np.random.Generator) -> PathState:
        """Propose a draw of the start to every particle if the start has heavy tails, where local moves are slow.

        On a path q^{1−β}p^β the ratio of independent Metropolis–Hastings is that of (p/q)^β.
        """
        if self.tails is None:
            return population
        fresh = density(self.tails.sample(len(population.x), rng), rng)
        accepted = np.log(rng.random(len(fresh.x))) < population.beta * (fresh.increment - population.increment)
        return population.where(accepted, fresh)


class PriorPath(TemperingPath):
    """p(θ) L(θ)^β from draws of the prior.

    If the likelihood is estimated, without bias as L̂(θ, u) from random numbers u, particles are pairs (θ, u) under
    p(θ) p(u) L̂(θ, u)^β, whose marginal of θ at β = 1 is the posterior (Andrieu & Roberts 2009).
    """

    description = "prior"

    def __init__(self, target: BaseTarget) -> None:
        if not target.has_split:
            raise ModelError(f"{target.label}: prior and likelihood cannot be separated; use initial='laplace'")
        super().__init__(target)
        self.integral: PriorIntegral = stated_integral(target) or PriorIntegral(0.0)

    def draw(self, n: int, rng: np.random.Generator) -> Start:
        """Draw from the prior, whose density as written may not integrate to one (``ordered``: 1/K!)."""
        return Start(self.target.sample_prior(n, rng), self.integral.log_integral)

    def particles(self, x: Array, beta: float, gradient: bool, rng: np.random.Generator) -> PathState:
        if not self.target.is_estimated:
            return self.evaluate(x, beta, gradient)
        return PathState(
            x, self.target.evaluate_prior(x)[0], self.target.log_likelihood_estimate(x, rng), None, None, beta
        )

    def evaluate(self, x: Array, beta: float, gradient: bool) -> PathState:
        """Return base log p(θ), increment log L(θ)."""
        parts = self.target.evaluate(x, gradient)
        assert isinstance(parts, Evaluation)
        slopes = parts.log_prior_gradient, parts.log_likelihood_gradient
        return PathState(x, parts.log_prior, parts.log_likelihood, *slopes, beta)


class BridgePath(TemperingPath):
    """q(θ)^{1−β} {p(θ)L(θ)}^β from draws of an approximation; q is the approximation, or its mixture ``tails``."""

    def __init__(self, target: BaseTarget, approximation: Any, tails: Any = None) -> None:
        if approximation.dim != target.dim:
            raise ModelError(
                f"initial: the approximation has dimension {approximation.dim}, {target.label} has {target.dim}"
            )
        super().__init__(target)
        self.approximation, self.tails = approximation, tails
        self.q = approximation if tails is None else tails
        self.description = approximation.method
        if tails is not None:
            self.description += ", with Student tails"
        dense = approximation.representation in ("dense", "low_rank")
        self.reference = Gaussian(approximation.mean, approximation.cholesky) if dense else None

    def draw(self, n: int, rng: np.random.Generator) -> Start:
        return Start(np.asarray(self.q.sample(n, rng), dtype=np.float64))

    def evaluate(self, x: Array, beta: float, gradient: bool) -> PathState:
        """Return base log q, increment log joint − log q."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # points far out in the tails of q
            if not gradient:
                base = self.q.log_density(x)
                return PathState(x, base, self.target.log_density(x) - base, None, None, beta)
            joint, joint_gradient = self.target.log_density_and_gradient(x)
            base, base_gradient = self.q.log_density_and_gradient(x)
            return PathState(x, base, joint - base, base_gradient, joint_gradient - base_gradient, beta)
