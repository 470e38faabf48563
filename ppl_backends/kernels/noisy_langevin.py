r"""Noisy Langevin: θ' = θ + (Σ/2) ĝ + N(0, Σ), never rejected (Alquier, Friel, Everitt & Boland 2016).

ĝ = ∇ log p(θ) + ∇ log f(y | θ) − mean of ∇ log f(u | θ) over N draws u at θ. There is no decision, so that the step Σ is the
bias: it vanishes with Σ and hardly depends on N. Σ is a share of the posterior's covariance, which is learnt while tuning
by exchange moves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.kernels.algorithm import Statistics
from ppl_backends.kernels.exchange import FIRST_CHECKS, Exchange, ExchangeState
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["NoisyLangevin"]


class NoisyLangevin(Exchange):
    """Unadjusted Langevin with an estimated gradient; exchange while tuning.

    Parameters
    ----------
    target : UnnormalizedTarget, or a block of one
    step_size : float
        Σ is this share of the posterior's covariance.
    **options
        See :class:`~ppl_backends.kernels.exchange.AuxiliaryVariableMethod`; ``n_draws`` estimate each gradient.
    """

    def __init__(self, target: BaseTarget, *, step_size: float = 0.02, n_draws: int = 10, **options: Any) -> None:
        super().__init__(target, n_draws=n_draws, **options)
        if not (np.isfinite(step_size) and step_size > 0):
            raise ModelError(f"step_size={step_size!r}: expected a positive number")
        self.name, self.step_size = "noisy Langevin", float(step_size)
        if not self._checked:
            self._checked = True
            self.stats = {**self.stats, "acceptance_error": float}
        self._model.require_gradient()

    @property
    def attributes(self) -> dict[str, Any]:
        """What results say of the run."""
        return {**super().attributes, "step_size": self.step_size}

    def step(self, state: ExchangeState, rng: np.random.Generator, tune: bool) -> tuple[ExchangeState, Statistics]:
        """One Langevin step, or an exchange move while tuning."""
        if tune:
            return super().step(state, rng, tune)
        self._require_tuning(state, tune)
        factor = np.sqrt(self.step_size) * state.tuning.factor
        draws = self._model.simulate(state.x, self.n_draws, rng)
        before, gradient = self._gradient(state.x, draws)
        z = rng.standard_normal(self.dim)
        x = state.x + factor @ (0.5 * factor.T @ gradient + z)
        after, _ = self._model.log_prior_and_gradient(x)
        moved = bool(np.isfinite(after))  # a step out of the support is not made
        error = float("nan")
        if moved and (state.n_steps % self._check_every == 0 or len(state.checks) < FIRST_CHECKS):
            back = self._gradient(x, self._model.simulate(x, self.n_draws, rng))[1]
            reverse = z + 0.5 * factor.T @ (gradient + back)
            error = 1.0 - self._metropolis(state.x, x, after - before + 0.5 * (z @ z - reverse @ reverse), rng)
            state = state._replace(checks=(*state.checks, error))
        if len(state.checks) >= FIRST_CHECKS:
            self._warn(state, [])
        stats = {"accept": float(moved), "approximate": 1, "tune": tune, "accepted": moved}
        stats |= {"scaling": self.step_size**0.5, "acceptance_error": error}
        return state._replace(x=x if moved else state.x, n_steps=state.n_steps + 1), stats

    def _acceptance_pair(self, state: ExchangeState, rng: np.random.Generator) -> tuple[float, float]:
        """One, and what Metropolis–Hastings would have made of the step."""
        _, stats = self.step(state, rng, False)
        return 1.0, 1.0 - stats["acceptance_error"] if stats["accepted"] else 1.0

    def _gradient(self, x: Array, draws: Any) -> tuple[float, Array]:
        """Log density of the tractable terms, and the estimated gradient of the log posterior."""
        prior, slope = self._model.log_prior_and_gradient(x)
        return prior, slope + self.power * (self._model.observed_score(x) - self._model.mean_score(x, draws))

    def _metropolis(self, x: Array, t: Array, log_ratio: float, rng: np.random.Generator) -> float:
        """The probability with which Metropolis–Hastings would have accepted the step."""
        draws = self._model.simulate(t, self._n_reference, rng)
        log_ratio += self.power * self._model.log_likelihood_ratio(x, t, draws)
        return float(np.exp(min(log_ratio, 0.0))) if not np.isnan(log_ratio) else 0.0
