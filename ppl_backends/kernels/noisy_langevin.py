r"""Noisy Langevin: θ' = θ + (Σ/2) ĝ + N(0, Σ), never rejected (Alquier, Friel, Everitt & Boland 2016).

ĝ = ∇ log p(θ) + ∇ log f(y | θ) − mean of ∇ log f(u | θ) over N draws u at θ. There is no acceptance step, so the step
Σ determines the bias: it vanishes with Σ and hardly depends on N. Σ is a share of the posterior's covariance, which
exchange moves estimate during tuning.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.kernels.algorithm import ChainState, Statistics
from ppl_backends.kernels.exchange import (
    AuxiliaryDensity,
    AuxiliaryVariableMethod,
    exchange,
    proposals,
    tractable_ratio,
)
from ppl_backends.kernels.protocol import Density, Kernel, KernelInfo, KernelParameters, S
from ppl_backends.kernels.random_walk import RandomWalk
from ppl_backends.targets.protocol import Array, BaseTarget


class UnadjustedLangevin(Kernel):
    """Make Langevin steps that stay inside the support."""

    name = "noisy Langevin"
    uses_gradient, exact = True, False

    def step(
        self, rng: np.random.Generator, population: S, density: Density[S], parameters: KernelParameters
    ) -> tuple[S, KernelInfo]:
        """Move every point; the log ratio is that of Metropolis–Hastings, which is not used."""
        h, metric = parameters.scale, parameters.metric
        z = rng.standard_normal(population.x.shape)
        drift = 0.5 * h * metric.whiten_gradient(population.gradient)
        proposal = density(population.x + metric.colour(h * (drift + z)), rng)
        back = z + drift + 0.5 * h * metric.whiten_gradient(proposal.gradient)
        moved = np.isfinite(proposal.log_density)
        log_ratio = self.log_ratio(population, proposal) + 0.5 * ((z**2).sum(axis=1) - (back**2).sum(axis=1))
        jump = ((h * (drift + z)) ** 2).sum(axis=1)
        info = KernelInfo(moved.astype(np.float64), moved, jump, np.ones(len(z)), log_ratio)
        return population.where(moved, proposal), info


class NoisyLangevin(AuxiliaryVariableMethod):
    """Unadjusted Langevin with an estimated gradient; exchange during tuning.

    Parameters
    ----------
    target : UnnormalizedTarget, or a block of one
    step_size : float
        Σ is this share of the posterior's covariance.
    n_draws : int
        Draws that estimate each gradient.
    power, covariance
        See :func:`~ppl_backends.kernels.exchange.exchange`.
    """

    def __init__(
        self,
        target: BaseTarget,
        *,
        step_size: float = 0.02,
        n_draws: int = 10,
        power: float = 1.0,
        covariance: Any = None,
    ) -> None:
        if not (np.isfinite(step_size) and step_size > 0):
            raise ModelError(f"step_size={step_size!r}: expected a positive number")
        tuning = proposals(target, RandomWalk, 0.25, covariance)
        density = AuxiliaryDensity(target, n_draws, None, power, tuning)
        super().__init__("noisy Langevin", UnadjustedLangevin(log_ratio=tractable_ratio), density, estimated=True)
        self._exchange = exchange(target, n_draws=n_draws, power=power, covariance=covariance)
        self._scale = float(step_size) ** 0.5
        self.attributes["step_size"] = float(step_size)

    def start(self, x: Array, rng: Any) -> ChainState:
        return self._exchange.start(x, rng)

    def step(self, state: ChainState, rng: Any, tune: bool) -> tuple[ChainState, Statistics]:
        """Make one Langevin step, or an exchange move during tuning."""
        if tune:
            after, stats = self._exchange.step(state, rng, tune)
            return after, stats | {"acceptance_error": float("nan")}
        return super().step(self._ready(state, rng), rng, tune)

    def _ready(self, state: ChainState, rng: Any) -> ChainState:
        """Return the state with a gradient at its point, and steps of the given size."""
        population, parameters = state.population, state.parameters.settled()
        if population.gradient is None:
            population = self.density.start(population.x, rng)
        return state._replace(population=population, parameters=parameters._replace(scale=self._scale, adaptation=None))

    def _acceptance_pair(self, state: ChainState, rng: np.random.Generator) -> tuple[float, float]:
        return super()._acceptance_pair(self._ready(state, rng), rng)
