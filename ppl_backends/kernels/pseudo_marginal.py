r"""Pseudo-marginal Metropolis–Hastings: an unbiased estimate in place of the likelihood (Andrieu & Roberts 2009).

The estimate L̂(θ) is kept with its point until a proposal is accepted; the pair (θ, L̂) then has a law whose marginal is the
exact posterior, for any unbiased L̂ that is not negative. The noisier log L̂ is, the longer chains stick: N estimates are
averaged until its variance is about one, where an effective draw costs least (Doucet, Pitt, Deligiannidis & Kohn 2015).

Where L̂ is a function of standard normal numbers u, the proposal may keep most of them, u' = ρu + √(1 − ρ²) ε: numerator and
denominator of the ratio then err alike, and fewer estimates suffice (Deligiannidis, Doucet & Pitt 2018).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.kernels.algorithm import COMMON_STATS, Statistics
from ppl_backends.kernels.covariance import AdaptiveProposal, as_covariance
from ppl_backends.targets.conditional import ConditionalTarget
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["LikelihoodEstimator", "PseudoMarginal"]

REPLICATES = 40  # that measure the variance of an estimate
TOO_NOISY, TOO_FINE = 1.5, 0.5
FIRST_CHECK = 25  # steps of tuning; then 50, 100, 200, ...
MOST_AT_START, MOST_ESTIMATES = 64, 4096
ALARM = 4.0


class _Values(dict[str, Array]):
    """What the estimator sees, with one clear line for what it does not."""

    def __missing__(self, name: str) -> Array:
        raise ModelError(
            f"log_likelihood_estimate asks for {name!r}: it sees {', '.join(self) or 'nothing'}, which are the model's "
            "variables that follow from those that the step moves"
        )


class LikelihoodEstimator:
    """The mean of N unbiased likelihood estimates at a point.

    Parameters
    ----------
    target : BaseTarget, or a block of one
        Of a block the estimator sees those variables only that follow from the block's: the others may move without it.
    function : callable, optional
        ``(values, rng) -> (n,)`` or, with ``n_normals``, ``(values, u) -> (n,)`` for ``u`` ``(n, n_normals)``: logs of
        independent estimates at ``n`` points, given as ``target.constrain`` gives them. By default the target's own
        ``log_likelihood_estimate(x, rng)``, which takes unconstrained points ``(n, dim)``.
    n_normals : int, optional
    """

    def __init__(self, target: BaseTarget, function: Callable | None, n_normals: int | None) -> None:
        self._target, self._block = target, target if isinstance(target, ConditionalTarget) else None
        full = target.full if isinstance(target, ConditionalTarget) else target
        own = full.log_likelihood_estimate
        if function is None and (own is None or self._block is not None):
            raise ModelError(
                f"{full.label} has no log_likelihood_estimate: give an unbiased estimator of the likelihood, "
                "PseudoMarginal(log_likelihood_estimate=...)"
            )
        self._function, self._own, self.n_normals = function, own, n_normals
        self._visible = None if self._block is None else _following(self._block)

    def normals(self, n: int, rng: np.random.Generator) -> Array | None:
        """Fresh numbers ``(n, n_normals)``, or None where the estimator draws its own."""
        return None if self.n_normals is None else rng.standard_normal((n, self.n_normals))

    def __call__(self, x: Array, n: int, noise: Any) -> float:
        """Log of the mean of ``n`` estimates at ``x`` ``(dim,)``; ``noise`` is a generator or ``(n, n_normals)``."""
        with np.errstate(divide="ignore", under="ignore"):  # an estimate may be zero
            if self._function is None:
                logs = self._own(np.repeat(x[None], n, axis=0), noise)
            else:
                logs = self._function(self._values(x, n), noise)
        logs = np.asarray(logs, dtype=np.float64)
        if logs.shape != (n,):
            raise ModelError(f"log_likelihood_estimate returned shape {logs.shape} for {n} points; expected ({n},)")
        if np.isnan(logs).any() or (logs == np.inf).any():
            raise ModelError("log_likelihood_estimate returned NaN or +inf: expected logs of finite estimates")
        return float(np.logaddexp.reduce(logs) - np.log(n))

    def _values(self, x: Array, n: int) -> _Values:
        """The variables at ``n`` copies of the point."""
        found = _constrained(self._target, x)
        names = found if self._visible is None else self._visible
        return _Values({name: np.repeat(found[name], n, axis=0) for name in names})


def _constrained(target: BaseTarget, x: Array) -> dict[str, Array]:
    """Model space at one point of a target or of a block."""
    if isinstance(target, ConditionalTarget):
        return target.full.constrain(target.embed(x))
    return target.constrain(x[None])


def _following(block: ConditionalTarget) -> tuple[str, ...]:
    """Names of the variables whose values stay the same wherever the other coordinates are."""
    rng, points = np.random.default_rng(0), np.tile(block.point, (8, 1))
    points[1:, block.others] += rng.standard_normal((7, len(block.others)))
    return tuple(
        name for name, value in block.full.constrain(points).items() if all(np.array_equal(value[0], v) for v in value)
    )


class PseudoMarginalState(NamedTuple):
    """One chain: its point, the estimate kept with it, and what the estimate was made of.

    Attributes
    ----------
    x : ndarray (dim,)
    log_rest : float
        All other terms of the log density.
    estimate : float
        Log of the likelihood estimate.
    noise : ndarray (n_estimates, n_normals) or None
    n_estimates : int
        N.
    variance : float
        Of the log estimate, or of half the difference between correlated ones, as last measured.
    tuning : AdaptiveProposal
    n_steps : int
    """

    x: Array
    log_rest: float
    estimate: float
    noise: Array | None
    n_estimates: int
    variance: float
    tuning: AdaptiveProposal
    n_steps: int


class PseudoMarginal:
    """Random-walk pseudo-marginal Metropolis–Hastings. Exact for unbiased estimators.

    Parameters
    ----------
    target : BaseTarget, or a block of one
        Its log density holds all terms but the estimated likelihood.
    log_likelihood_estimate : callable, optional
        See :class:`LikelihoodEstimator`.
    n_estimates : int or "auto"
        N; "auto" finds it at the start and while tuning.
    n_normals : int, optional
        Numbers that one estimate is a function of.
    correlation : float
        ρ, with ``n_normals``.
    covariance : array (dim, dim), optional
        Shape of the proposals; learnt while tuning by default.
    """

    batched = False
    name, approximate = "pseudo-marginal", False
    target_acceptance = 0.2
    stats: ClassVar[Mapping[str, type]] = {
        **COMMON_STATS,
        "accepted": bool,
        "scaling": float,
        "n_estimates": int,
        "estimate_variance": float,
    }

    def __init__(
        self,
        target: BaseTarget,
        *,
        log_likelihood_estimate: Callable | None = None,
        n_estimates: Any = "auto",
        n_normals: int | None = None,
        correlation: float = 0.99,
        covariance: Any = None,
    ) -> None:
        self._target, self.dim = target, target.dim
        self._estimate = LikelihoodEstimator(target, log_likelihood_estimate, n_normals)
        self._auto = n_estimates == "auto"
        self._n_first = 1 if self._auto else n_estimates
        self._correlation = correlation
        self._covariance = as_covariance(covariance, self.dim)
        self._warned = False

    @property
    def attributes(self) -> dict[str, Any]:
        """What results say of the run."""
        correlated = self._estimate.n_normals is not None
        return {"n_normals": self._estimate.n_normals or 0, "correlation": self._correlation if correlated else 0.0}

    def initial_point(self, rng: np.random.Generator) -> Array | None:
        """Left to the target."""
        return None

    def start(self, x: Array, rng: np.random.Generator) -> PseudoMarginalState:
        """The state at ``x``; N is found there."""
        x = np.array(x, dtype=np.float64)
        log_rest = float(self._target.log_density(x[None])[0])
        if not np.isfinite(log_rest):
            raise ModelError(f"{self._target.label}: the log density is not finite at the starting point")
        tuning = AdaptiveProposal.begin(self._covariance, self.dim, 2.38 / self.dim**0.5, self.target_acceptance)
        first = PseudoMarginalState(x, log_rest, -np.inf, None, self._n_first, np.nan, tuning, 0)
        state = (
            self._with_enough(first, rng, MOST_AT_START) if self._auto else self._measured(self._fresh(first, rng), rng)
        )
        if not np.isfinite(state.estimate):
            raise ModelError(
                f"every likelihood estimate at the starting point {np.round(x, 3)} is zero: start elsewhere (initvals=)"
            )
        return state

    def refresh(self, state: PseudoMarginalState, rng: np.random.Generator) -> PseudoMarginalState:
        """The log density anew after other coordinates moved; the estimate does not depend on them."""
        return state._replace(log_rest=float(self._target.log_density(state.x[None])[0]))

    def step(
        self, state: PseudoMarginalState, rng: np.random.Generator, tune: bool
    ) -> tuple[PseudoMarginalState, Statistics]:
        """One proposal with an estimate of its own; the present estimate is kept."""
        if not tune and state.n_steps == 0 and self._covariance is None:
            raise ModelError(f"{self.name} learns its proposals while tuning: with tune=0 give covariance=")
        if tune and self._auto and _is_check(state.n_steps):
            state = self._with_enough(state, rng, MOST_ESTIMATES)
        scale = state.tuning.scale(tune)
        x = state.x + scale * state.tuning.factor @ rng.standard_normal(self.dim)
        proposal, accept = state._replace(x=x, log_rest=float(self._target.log_density(x[None])[0])), 0.0
        if np.isfinite(proposal.log_rest):
            noise = self._moved_noise(state, rng)
            proposal = proposal._replace(estimate=self._evaluate(proposal, noise, rng), noise=noise)
            gain = proposal.log_rest + proposal.estimate - state.log_rest - state.estimate
            accept = float(np.exp(min(0.0, gain)))
        accepted = bool(rng.random() < accept)
        stats = {"accept": accept, "approximate": 0, "tune": tune, "accepted": accepted, "scaling": scale}
        stats |= {"n_estimates": state.n_estimates, "estimate_variance": state.variance}
        state = proposal if accepted else state
        if tune:
            state = state._replace(tuning=state.tuning.update(state.x, accept))
        return state._replace(n_steps=state.n_steps + 1), stats

    # -- estimates ---------------------------------------------------------------------------------------------------

    def _evaluate(self, state: PseudoMarginalState, noise: Array | None, rng: np.random.Generator) -> float:
        """Log of an estimate at the state's point."""
        return self._estimate(state.x, state.n_estimates, rng if noise is None else noise)

    def _moved_noise(self, state: PseudoMarginalState, rng: np.random.Generator) -> Array | None:
        """The proposal's numbers: an AR(1) step from the present ones."""
        fresh = self._estimate.normals(state.n_estimates, rng)
        if fresh is None or state.noise is None:
            return fresh
        return self._correlation * state.noise + np.sqrt(1 - self._correlation**2) * fresh

    def _fresh(self, state: PseudoMarginalState, rng: np.random.Generator) -> PseudoMarginalState:
        """With a fresh estimate at its point, the first of a few that is not zero; unchanged if all are."""
        for _ in range(REPLICATES):
            noise = self._estimate.normals(state.n_estimates, rng)
            estimate = self._evaluate(state, noise, rng)
            if np.isfinite(estimate):
                return state._replace(estimate=estimate, noise=noise)
        return state

    def _measured(self, state: PseudoMarginalState, rng: np.random.Generator) -> PseudoMarginalState:
        """With the variance of the log estimate at the point; of half the difference of two where they are correlated."""
        values = np.empty(REPLICATES)
        for i in range(REPLICATES):
            noise = self._estimate.normals(state.n_estimates, rng)
            values[i] = self._evaluate(state, noise, rng)
            if noise is not None and np.isfinite(values[i]):
                near = self._evaluate(state, self._moved_noise(state._replace(noise=noise), rng), rng)
                values[i] = (values[i] - near) / np.sqrt(2)
        if not np.isfinite(values).all():
            return state._replace(variance=np.inf)
        correlated = self._estimate.n_normals is not None
        return state._replace(variance=float((values**2).mean() if correlated else values.var(ddof=1)))

    def _with_enough(self, state: PseudoMarginalState, rng: np.random.Generator, most: int) -> PseudoMarginalState:
        """N such that the variance is about one, and a fresh estimate if N changed and one is not zero."""
        before = found = state
        while True:
            found = self._measured(found, rng)
            if found.variance <= TOO_NOISY or found.n_estimates >= most:
                break
            more = int(np.clip(np.ceil(found.variance), 2, 4)) if np.isfinite(found.variance) else 4
            found = found._replace(n_estimates=min(most, found.n_estimates * more))
        if found.variance < TOO_FINE and found.n_estimates == before.n_estimates:
            found = found._replace(n_estimates=max(1, int(np.ceil(found.n_estimates * found.variance))))
        if most == MOST_ESTIMATES:
            self._alarm(found)
        if found.n_estimates == before.n_estimates and np.isfinite(before.estimate):
            return found
        fresh = self._fresh(found._replace(estimate=-np.inf), rng)
        return fresh if np.isfinite(fresh.estimate) else before

    def _alarm(self, state: PseudoMarginalState) -> None:
        """Say once that the estimates are too noisy."""
        if self._warned or state.variance <= ALARM:
            return
        self._warned = True
        warnings.warn(
            f"the log of the likelihood estimate has variance {state.variance:.1f} with {state.n_estimates} estimates: "
            "chains will stick; use a better estimator, or a correlated one (n_normals=)",
            SamplerWarning,
            stacklevel=2,
        )


def _is_check(n_steps: int) -> bool:
    """25, 50, 100, 200, ..."""
    ratio = n_steps // FIRST_CHECK
    return n_steps > 0 and n_steps % FIRST_CHECK == 0 and ratio & (ratio - 1) == 0
