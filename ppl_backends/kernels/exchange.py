r"""Metropolis–Hastings for likelihoods with an unknown normalising constant, by auxiliary data drawn from the model.

The posterior p(θ) f(y | θ) / Z(θ) has an acceptance ratio that contains Z(θ) / Z(θ'). A data set y' drawn at the proposal
θ' gives f(y' | θ) / f(y' | θ') in its place, an unbiased estimate of that ratio. With one draw this is the **exchange
algorithm** (Murray, Ghahramani & MacKay 2006), which leaves the posterior invariant as long as y' follows the model exactly.
With the mean over N draws it is **noisy exchange** (Alquier, Friel, Everitt & Boland 2016): nearer to ordinary
Metropolis–Hastings the larger N, and not exact for any N > 1. Both take a random-walk proposal. **MALA exchange** moves
along an estimate of the gradient, ∇ log p(θ) + ∇ log f(y | θ) − mean of ∇ log f(u | θ) over draws u; these are part of the
state, so that it is exact under the same conditions.

With a power α the ratio of likelihoods, its estimated part included, is raised to α; this is not exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.kernels.algorithm import COMMON_STATS, Statistics
from ppl_backends.kernels.covariance import AdaptiveProposal, as_covariance
from ppl_backends.kernels.doubly_intractable import DoublyIntractable
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["AuxiliaryVariableMethod", "Exchange", "MalaExchange"]

FEWEST_REFERENCE_DRAWS = 100
FIRST_CHECKS = 8  # at the first draw, for the warning


class ExchangeState(NamedTuple):
    """One chain.

    Attributes
    ----------
    x : ndarray (dim,)
    tuning : AdaptiveProposal
        Shape and scale of the proposals.
    score : ndarray (dim,) or None
        Mean of ∇ log f(u | x) over the draws u kept with the point; for Langevin proposals.
    n_steps : int
    checks : tuple of float
        Differences |a − â| found since tuning ended.
    """

    x: Array
    tuning: AdaptiveProposal
    score: Array | None
    n_steps: int
    checks: tuple[float, ...]


class Proposal(NamedTuple):
    """A move that waits for its decision.

    Attributes
    ----------
    x : ndarray (dim,)
    log_ratio : float
        Of the tractable terms and the proposal densities; -inf rejects.
    draws : array (n, ...)
        Auxiliary data at ``x`` for the ratio of normalising constants.
    score : ndarray (dim,) or None
    """

    x: Array
    log_ratio: float
    draws: NDArray
    score: Array | None


class AuxiliaryVariableMethod:
    """What all steps with auxiliary data share: options, adaptation, the estimate of E|a − â|, and the warning.

    Parameters
    ----------
    target : UnnormalizedTarget, or a block of one
    n_draws : int
        Draws N that estimate a ratio of normalising constants.
    power : float
        α of the tempered posterior.
    covariance : array (dim, dim), optional
        Of the posterior, or a guess: the proposals' shape. By default it is learnt while tuning.
    """

    batched = False
    name = "auxiliary variable method"
    target_acceptance = 0.25

    def __init__(self, target: BaseTarget, *, n_draws: int = 1, power: float = 1.0, covariance: Any = None) -> None:
        self._model = DoublyIntractable(target)
        self.dim = self._model.dim
        self.n_draws, self.power = n_draws, power
        self._covariance = as_covariance(covariance, self.dim)
        self._n_reference = max(20 * self.n_draws, FEWEST_REFERENCE_DRAWS)
        self._check_every = -(-10 * self._n_reference // self.n_draws)  # a tenth of the draws
        self._checked = self.n_draws > 1 or self.power != 1
        self._warned = False
        self.stats: Mapping[str, type] = {**COMMON_STATS, "accepted": bool, "scaling": float}
        if self._checked:
            self.stats = {**self.stats, "acceptance_error": float}

    @property
    def approximate(self) -> bool:
        """Exact with one draw from an exact simulator and power one."""
        return bool(self._checked or not self._model.exact)

    @property
    def attributes(self) -> dict[str, Any]:
        """What results say of the run."""
        return {"n_draws": self.n_draws, "power": self.power, "simulator_exact": int(self._model.exact)}

    def initial_point(self, rng: np.random.Generator) -> Array | None:
        """Left to the target."""
        return None

    def initial_scale(self) -> float:
        """Of the proposal, in standard deviations of the posterior."""
        return 2.38 / self.dim**0.5

    def start(self, x: Array, rng: np.random.Generator) -> ExchangeState:
        """The state at ``x``; nothing is adapted yet."""
        self._model.require_density(x)
        tuning = AdaptiveProposal.begin(self._covariance, self.dim, self.initial_scale(), self.target_acceptance)
        return ExchangeState(np.array(x, dtype=np.float64), tuning, None, 0, ())

    def refresh(self, state: ExchangeState, rng: np.random.Generator) -> ExchangeState:
        """Nothing to do: densities are evaluated anew at every step, and draws at the point stay draws at the point."""
        return state

    def step(self, state: ExchangeState, rng: np.random.Generator, tune: bool) -> tuple[ExchangeState, Statistics]:
        """One proposal, decided by auxiliary data."""
        self._require_tuning(state, tune)
        scale = state.tuning.scale(tune)
        proposal = self._propose(state, scale, rng)
        accept = self._acceptance(state.x, proposal)
        accepted = bool(rng.random() < accept)
        error = self._acceptance_error(state, proposal, accept, rng, tune)
        if not np.isnan(error):
            state = state._replace(checks=(*state.checks, error))
        if not tune and not self._warned:
            self._warn(state, [self._fresh_error(state, scale, rng) for _ in range(FIRST_CHECKS)])
        stats = {"accept": accept, "approximate": int(self.approximate), "tune": tune, "accepted": accepted}
        stats["scaling"] = scale
        if self._checked:
            stats["acceptance_error"] = error
        return self._moved(state, proposal if accepted else None, accept, tune), stats

    def _require_tuning(self, state: ExchangeState, tune: bool) -> None:
        """Refuse to draw with proposals that nothing is known of."""
        if not tune and state.n_steps == 0 and self._covariance is None:
            raise ModelError(f"{self.name} learns its proposals while tuning: with tune=0 give covariance=")

    def _propose(self, state: ExchangeState, scale: float, rng: np.random.Generator) -> Proposal:
        """A point, and auxiliary data there."""
        raise NotImplementedError

    def _acceptance(self, x: Array, proposal: Proposal) -> float:
        """min{1, ratio} with the ratio of normalising constants estimated by the proposal's draws."""
        if not np.isfinite(proposal.log_ratio):
            return 0.0
        log_ratio = proposal.log_ratio + self.power * self._model.log_likelihood_ratio(x, proposal.x, proposal.draws)
        return float(np.exp(min(log_ratio, 0.0))) if not np.isnan(log_ratio) else 0.0

    def _acceptance_error(
        self, state: ExchangeState, proposal: Proposal, accept: float, rng: np.random.Generator, tune: bool
    ) -> float:
        """|a − â| against at least 20 N draws, now and then; NaN otherwise."""
        if tune or not self._checked or (state.n_steps % self._check_every and state.checks):
            return float("nan")
        return abs(self.reference_acceptance(state.x, proposal, rng) - accept)

    def _fresh_error(self, state: ExchangeState, scale: float, rng: np.random.Generator) -> float:
        """|a − â| for another proposal from the same point."""
        if not self._checked:
            return float("nan")
        proposal = self._propose(state, scale, rng)
        return abs(self.reference_acceptance(state.x, proposal, rng) - self._acceptance(state.x, proposal))

    def reference_acceptance(self, x: Array, proposal: Proposal, rng: np.random.Generator) -> float:
        """The acceptance probability of the same proposal, estimated by at least 20 N draws."""
        if not np.isfinite(proposal.log_ratio):
            return 0.0
        return self._acceptance(x, proposal._replace(draws=self._model.simulate(proposal.x, self._n_reference, rng)))

    def acceptance_pairs(self, points: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Acceptance ``(k,)`` of a move from each of ``points`` ``(k, dim)``, as estimated and by at least 20 N draws."""
        if not self._checked:
            raise ModelError(f"{self.name} is exact given exact draws: it has no estimated acceptance to check")
        pairs = [self._acceptance_pair(state, rng) for state in self._tuned(points, rng)]
        estimated, reference = np.array(pairs).T
        return estimated, reference

    def _acceptance_pair(self, state: ExchangeState, rng: np.random.Generator) -> tuple[float, float]:
        proposal = self._propose(state, self.initial_scale(), rng)
        return self._acceptance(state.x, proposal), self.reference_acceptance(state.x, proposal, rng)

    def _tuned(self, points: Array, rng: np.random.Generator) -> list[ExchangeState]:
        """States at draws of the posterior, with proposals of their covariance."""
        covariance = self._covariance
        if covariance is None:
            share = len(points) / (len(points) + 5.0)
            spread = np.atleast_2d(np.cov(points.T))
            covariance = share * spread + (1 - share) * np.diag(np.diagonal(spread))
        tuning = AdaptiveProposal.begin(covariance, self.dim, self.initial_scale(), self.target_acceptance)
        return [self.start(x, rng)._replace(tuning=tuning, n_steps=1) for x in points]

    def _moved(self, state: ExchangeState, to: Proposal | None, accept: float, tune: bool) -> ExchangeState:
        """The next state, with one step of adaptation while tuning."""
        if to is not None:
            state = state._replace(x=to.x, score=to.score)
        state = state._replace(n_steps=state.n_steps + 1)
        return state._replace(tuning=state.tuning.update(state.x, accept)) if tune else state

    def _warn(self, state: ExchangeState, errors: list[float]) -> None:
        """Say once that the run is approximate, and how far that goes."""
        if self._warned or not self.approximate:
            return
        self._warned = True
        reasons = self._reasons([*state.checks, *errors])
        warnings.warn(f"{self.name} is approximate: {'; '.join(reasons)}", SamplerWarning, stacklevel=2)

    def _reasons(self, errors: list[float]) -> list[str]:
        reasons = []
        if self._checked:
            reasons.append(
                f"E|a - â| is about {np.mean(errors):.2f} (± {np.std(errors) / len(errors) ** 0.5:.2f}; along the run: "
                "acceptance_error in sample_stats), which bounds the distance to the posterior up to a constant of the "
                "chain's mixing"
            )
        if not self._model.exact:
            reasons.append(
                f"the simulator of '{self._model.likelihood_name}' is not declared exact: if it is a Markov chain, compare "
                "runs from opposite starts (simulator.equilibration) at draws of the posterior"
            )
        return reasons


class Exchange(AuxiliaryVariableMethod):
    """Random-walk exchange, and noisy exchange for ``n_draws`` above one."""

    def __init__(self, target: BaseTarget, **options: Any) -> None:
        super().__init__(target, **options)
        self.name = "exchange" if self.n_draws == 1 else "noisy exchange"

    def _propose(self, state: ExchangeState, scale: float, rng: np.random.Generator) -> Proposal:
        x = state.x + scale * state.tuning.factor @ rng.standard_normal(self.dim)
        before, after = self._model.log_prior(np.stack([state.x, x]))
        if not np.isfinite(after):
            return Proposal(x, -np.inf, np.empty(0), None)
        return Proposal(x, after - before, self._model.simulate(x, self.n_draws, rng), None)


class MalaExchange(AuxiliaryVariableMethod):
    """Langevin proposals with an estimated gradient, decided by exchange.

    Parameters
    ----------
    target : UnnormalizedTarget, or a block of one
    n_gradient_draws : int or None
        Draws that estimate a gradient, apart from the ``n_draws`` that estimate a ratio: as part of the state they keep the
        step exact for ``n_draws=1``. None uses the same draws for both, as the noisy form does.
    **options
        See :class:`AuxiliaryVariableMethod`.
    """

    target_acceptance = 0.4

    def __init__(self, target: BaseTarget, *, n_gradient_draws: int | None = 10, **options: Any) -> None:
        super().__init__(target, **options)
        self.name = "MALA exchange" if n_gradient_draws is not None else "noisy MALA exchange"
        self.n_gradient_draws = n_gradient_draws
        if self.n_gradient_draws is None and not self._checked:
            self._checked = True  # one draw that serves both ends is not exact either
            self.stats = {**self.stats, "acceptance_error": float}
        self._model.require_gradient()

    def initial_scale(self) -> float:
        """1.65 / dim^(1/6)."""
        return 1.65 / self.dim ** (1.0 / 6.0)

    def start(self, x: Array, rng: np.random.Generator) -> ExchangeState:
        """The state at ``x``, with draws for its gradient."""
        draws = self._model.simulate(x, self.n_gradient_draws or self.n_draws, rng)
        return super().start(x, rng)._replace(score=self._model.mean_score(x, draws))

    def _propose(self, state: ExchangeState, scale: float, rng: np.random.Generator) -> Proposal:
        factor = state.tuning.factor
        prior, slope = self._model.log_prior_and_gradient(state.x)
        assert state.score is not None
        gradient = slope + self.power * (self._model.observed_score(state.x) - state.score)
        z = rng.standard_normal(self.dim)
        drift = _cut(factor.T @ gradient, scale)
        x = state.x + factor @ (0.5 * scale**2 * drift + scale * z)
        after, slope = self._model.log_prior_and_gradient(x)
        if not np.isfinite(after):
            return Proposal(x, -np.inf, np.empty(0), None)
        draws = self._model.simulate(x, self.n_draws + (self.n_gradient_draws or 0), rng)
        score = self._model.mean_score(x, draws if self.n_gradient_draws is None else draws[self.n_draws :])
        gradient = slope + self.power * (self._model.observed_score(x) - score)
        back = z + 0.5 * scale * (drift + _cut(factor.T @ gradient, scale))
        log_ratio = after - prior + 0.5 * (z @ z - back @ back)
        return Proposal(x, float(log_ratio), draws[: self.n_draws], score)


def _cut(gradient: Array, scale: float) -> Array:
    """A whitened gradient, shortened so that its drift (h²/2)|g| is at most the length h√d of the noise."""
    longest = 2.0 * len(gradient) ** 0.5 / scale
    return gradient * min(1.0, longest / max(float(np.linalg.norm(gradient)), 1e-300))
