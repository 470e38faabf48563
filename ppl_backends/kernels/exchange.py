r"""Metropolis–Hastings for a posterior whose likelihood has an unknown constant, by auxiliary draws.

For f(y | θ)/Z(θ) with unknown Z the acceptance ratio contains Z(θ) / Z(θ'). A data set y' drawn at the proposal θ'
gives f(y' | θ) / f(y' | θ'), an unbiased estimate of that ratio, which replaces it. With one draw this is the
**exchange algorithm** (Murray, Ghahramani & MacKay 2006), which leaves the posterior invariant if y' follows the model
exactly. With the mean over N draws it is **noisy exchange** (Alquier, Friel, Everitt & Boland 2016), which approaches
ordinary Metropolis–Hastings with increasing N and is not exact for any N > 1. Both use a random-walk proposal. **MALA
exchange** moves along an estimate of the gradient, ∇ log p(θ) + ∇ log f(y | θ) − mean of ∇ log f(u | θ) over draws u.
These draws are part of the state, so it is exact under the same conditions.

The kernels are the random walk and MALA with another ratio: all auxiliary variables are fields of the population. With
a power α the ratio of likelihoods, including its estimated part, is raised to α; this is not exact.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.kernels.adaptation import Adaptation
from ppl_backends.kernels.algorithm import Algorithm, ChainState, Statistics
from ppl_backends.kernels.auxiliary_draws import LARGEST_Z, unlike_draws
from ppl_backends.kernels.doubly_intractable import DoublyIntractable
from ppl_backends.kernels.mala import Mala
from ppl_backends.kernels.protocol import Kernel, KernelInfo, KernelParameters, acceptance_probability
from ppl_backends.kernels.random_walk import RandomWalk
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.numerics.population import Population
from ppl_backends.targets.protocol import Array, BaseTarget

FEWEST_REFERENCE_DRAWS = 100
FIRST_CHECKS = 8  # at the first draw, for the warning
_CERTAIN = 1e6  # log ratio of a step that is certainly accepted


@dataclass(frozen=True)
class AuxiliaryPoints(Population):
    """Points with the auxiliary data drawn at them.

    Attributes
    ----------
    log_density : ndarray (n,)
        Log density of the tractable terms.
    draws : ndarray (n, N, ...) or None
        Auxiliary data at proposals, for the ratio of normalising constants; the current point of a chain needs none.
    score : ndarray (n, dim) or None
        Mean of ∇ log f(u | x) over other draws u at the point.
    gradient : ndarray (n, dim) or None
        Gradient of the log posterior, estimated with that score.
    """

    log_density: Array
    draws: NDArray[Any] | None
    score: Array | None = None
    gradient: Array | None = None


class AuxiliaryDensity:
    """Points with auxiliary draws, and the ratios estimated from them.

    Parameters
    ----------
    target : UnnormalizedTarget, or a block of one
    n_draws : int
        N, draws that estimate a ratio of normalising constants.
    n_gradient_draws : int or None
        Separate draws that estimate a gradient; as part of the state they keep the step exact for N = 1. None uses the
        same draws for both; 0 estimates no gradient.
    power : float
        α of the tempered posterior.
    tuning : Adaptation
        Initial shape and scale of the proposals.
    """

    def __init__(
        self, target: BaseTarget, n_draws: int, n_gradient_draws: int | None, power: float, tuning: Adaptation
    ) -> None:
        self.model, self.dim = DoublyIntractable(target), target.dim
        self.n_draws, self.n_gradient_draws, self.power, self._tuning = n_draws, n_gradient_draws, power, tuning
        self.n_reference = max(20 * n_draws, FEWEST_REFERENCE_DRAWS)
        if n_gradient_draws != 0:
            self.model.require_gradient()

    def __call__(self, x: Array, rng: np.random.Generator) -> AuxiliaryPoints:
        """Return the points ``(n, dim)`` with draws at each that is inside the support."""
        log_prior = self.model.log_prior(x)
        inside = np.flatnonzero(np.isfinite(log_prior))
        drawn = [self.model.simulate(x[i], self.n_draws + (self.n_gradient_draws or 0), rng) for i in inside]
        shape = drawn[0].shape[1:] if drawn else ()
        draws = np.zeros((len(x), self.n_draws, *shape), dtype=drawn[0].dtype if drawn else np.float64)
        for i, own in zip(inside, drawn, strict=True):
            draws[i] = own[: self.n_draws]
        if self.n_gradient_draws == 0:
            return AuxiliaryPoints(x, log_prior, draws)
        first, score = 0 if self.n_gradient_draws is None else self.n_draws, np.zeros_like(x)
        for i, own in zip(inside, drawn, strict=True):
            score[i] = self.model.mean_score(x[i], own[first:])
        return AuxiliaryPoints(x, log_prior, draws, score, self._gradient(x, score, inside))

    def _gradient(self, x: Array, score: Array, inside: Any) -> Array:
        """Return ∇ log p(θ) + α(∇ log f(y | θ) − score), 0 outside of the support."""
        gradient = np.zeros_like(x)
        for i in inside:
            slope = self.model.log_prior_and_gradient(x[i])[1]
            gradient[i] = slope + self.power * (self.model.observed_score(x[i]) - score[i])
        return gradient

    def log_ratio(self, points: AuxiliaryPoints, proposal: AuxiliaryPoints) -> Array:
        """Return the log ratios of the posterior densities; the proposal's draws estimate that of the constants."""
        ratio = tractable_ratio(points, proposal)
        for i in np.flatnonzero(np.isfinite(ratio)):
            assert proposal.draws is not None
            estimated = self.model.log_likelihood_ratio(points.x[i], proposal.x[i], proposal.draws[i])
            ratio[i] += self.power * estimated
        return ratio

    def with_reference_draws(self, proposal: AuxiliaryPoints, rng: np.random.Generator) -> AuxiliaryPoints:
        """Return the points with at least 20 N draws in place of their own."""
        return replace(proposal, draws=np.stack([self.model.simulate(x, self.n_reference, rng) for x in proposal.x]))

    def initial_point(self, rng: np.random.Generator) -> None:
        """Return None: the target chooses."""
        return

    def parameters(self) -> KernelParameters:
        """Return the initial proposals."""
        return self._tuning.parameters

    def start(self, x: Array, rng: np.random.Generator) -> AuxiliaryPoints:
        """Return the points with draws for their gradients, if their density is positive; draws for a ratio come later."""
        for point in x:
            self.model.require_density(point)
        log_prior = self.model.log_prior(x)
        if self.n_gradient_draws == 0:
            return AuxiliaryPoints(x, log_prior, None)
        n_draws = self.n_gradient_draws or self.n_draws
        score = np.stack([self.model.mean_score(point, self.model.simulate(point, n_draws, rng)) for point in x])
        return AuxiliaryPoints(x, log_prior, None, score, self._gradient(x, score, range(len(x))))

    def refresh(self, population: AuxiliaryPoints, rng: np.random.Generator) -> AuxiliaryPoints:
        """Return the points with new tractable terms; draws at the points are kept."""
        fresh = replace(population, log_density=self.model.log_prior(population.x))
        if population.score is None:
            return fresh
        gradient = self._gradient(population.x, population.score, range(len(population.x)))
        return replace(fresh, gradient=gradient)


def tractable_ratio(points: AuxiliaryPoints, proposal: AuxiliaryPoints) -> Array:
    """Return the log ratio of the tractable terms, -inf outside of the support."""
    return np.where(np.isfinite(proposal.log_density), proposal.log_density - points.log_density, -np.inf)


class AuxiliaryVariableMethod(Algorithm):
    """Chains with auxiliary data, occasional estimates of E|a − â|, and one warning if they are approximate.

    Parameters
    ----------
    name : str
    kernel : Kernel
    density : AuxiliaryDensity
    estimated : bool
        Whether the acceptance probability is an estimate, whose error is reported.
    """

    def __init__(self, name: str, kernel: Kernel, density: AuxiliaryDensity, estimated: bool) -> None:
        super().__init__(kernel, density)
        self.name, self.batched, self._estimated, self._warned = name, False, estimated, False
        self._compared = False
        self._check_every = -(-10 * density.n_reference // density.n_draws)  # a tenth of the draws
        self.approximate = bool(estimated or not density.model.exact or not kernel.exact)
        if estimated:
            self.stats = {**self.stats, "acceptance_error": float}
        self.attributes = {
            "n_draws": density.n_draws,
            "power": density.power,
            "simulator_exact": int(density.model.exact),
        }

    def step(self, state: ChainState, rng: Any, tune: bool) -> tuple[ChainState, Statistics]:
        """Make one step; occasionally compare its acceptance with one from many draws."""
        if not tune and not self._compared:
            self._compare_draws(state)
        check = self._estimated and not tune and (not state.checks or state.n_steps % self._check_every == 0)
        if not check:
            after, stats = self._step(self.kernel, state, rng, tune)
            error = float("nan")
        else:
            watched = _Watched(self.kernel)
            after, stats = self._step(watched, state, rng, tune)
            accept, reference = self._compare(watched, stats["accept"][0], rng)
            error = abs(reference - accept)
            after = after._replace(checks=(*after.checks, error))
        if not tune and self.approximate and not self._warned:
            self._warn(after, [self._fresh_error(after, rng) for _ in range(FIRST_CHECKS)])
        return after, stats | ({"acceptance_error": error} if self._estimated else {})

    def _compare_draws(self, state: ChainState) -> None:
        """Compare the simulator once with log f, at the first point after tuning.

        Raises
        ------
        ModelError
            If they differ and draws are declared exact; otherwise it is a warning.
        """
        self._compared, model, rng = True, self.density.model, np.random.default_rng(1)
        direction = state.parameters.metric.colour(rng.standard_normal((1, self.density.dim)))[0]
        z = unlike_draws(model, state.population.x[0], direction, rng)
        if abs(z) < LARGEST_Z:
            return
        said = (
            f"the simulator of '{model.likelihood_name}' does not draw from its log density: draws at two points and the "
            f"log ratio of the density there disagree by {abs(z):.0f} standard errors"
        )
        if model.exact:
            raise ModelError(f"{said}, and they are declared exact: compare logp= with random=, term by term")
        warnings.warn(
            f"{said}: compare logp= with random=, term by term, or increase the simulator's burn-in",
            SamplerWarning,
            stacklevel=user_level(),
        )

    def _compare(self, watched: _Watched, accept: float, rng: np.random.Generator) -> tuple[float, float]:
        """Return the acceptance of the recorded step, and its estimate from at least 20 N draws."""
        before, proposal = watched.ends
        if not np.isfinite(proposal.log_density[0]):
            return accept, 0.0
        exact = self.density.log_ratio(before, self.density.with_reference_draws(proposal, rng))
        return accept, float(acceptance_probability(watched.log_ratio_found - watched.part + exact)[0])

    def _acceptance_pair(self, state: ChainState, rng: np.random.Generator) -> tuple[float, float]:
        """Return the acceptance of a move from a state, as estimated and from at least 20 N draws."""
        watched = _Watched(self.kernel)
        _, info = watched.step(rng, state.population, self.density, state.parameters)
        return self._compare(watched, float(info.acceptance[0]), rng)

    def acceptance_pairs(self, points: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the acceptance ``(k,)`` of a move from each of ``points`` ``(k, dim)``, estimated and from 20 N draws."""
        if not self._estimated:
            raise ModelError(f"{self.name} is exact given exact draws: it has no estimated acceptance to check")
        parameters = self._tuned(points)
        states = [self.start(x, rng)._replace(parameters=parameters) for x in points]
        estimated, reference = np.array([self._acceptance_pair(state, rng) for state in states]).T
        return estimated, reference

    def _tuned(self, points: Array) -> KernelParameters:
        """Return proposals with the covariance of draws of the posterior."""
        first = self.density.parameters()
        if first.adaptation.windows is None:
            return first
        share, spread = len(points) / (len(points) + 5.0), np.atleast_2d(np.cov(points.T))
        covariance = share * spread + (1 - share) * np.diag(np.diagonal(spread))
        return first._replace(metric=Gaussian.from_covariance(np.mean(points, axis=0), covariance), adaptation=None)

    def _fresh_error(self, state: ChainState, rng: np.random.Generator) -> float:
        """Return |a − â| for another proposal from the same point."""
        if not self._estimated:
            return float("nan")
        accept, reference = self._acceptance_pair(state._replace(parameters=state.parameters.settled()), rng)
        return abs(reference - accept)

    def _warn(self, state: ChainState, errors: list[float]) -> None:
        """Warn once that the run is approximate, with the estimated error."""
        self._warned = True
        reasons = self._reasons([*state.checks, *errors])
        warnings.warn(f"{self.name} is approximate: {'; '.join(reasons)}", SamplerWarning, stacklevel=user_level())

    def _reasons(self, errors: list[float]) -> list[str]:
        reasons = []
        if self._estimated:
            reasons.append(
                f"the estimated acceptance probabilities are off by {np.mean(errors):.2f} on average (± "
                f"{np.std(errors) / len(errors) ** 0.5:.2f}; sample_stats has acceptance_error of single steps), and the "
                "distance to the posterior is at most a multiple of this: increase the auxiliary draws"
            )
        if not self.density.model.exact:
            reasons.append(
                f"the simulator of '{self.density.model.likelihood_name}' is not declared exact: if it is a Markov chain, "
                "compare runs from opposite starts (simulator.equilibration) at draws of the posterior"
            )
        return reasons


class _Watched(Kernel):
    """A kernel that stores the ends of its last step, and the parts of its ratio."""

    ends: tuple[AuxiliaryPoints, AuxiliaryPoints]
    part: Array
    log_ratio_found: Array

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._part_of = copy.copy(kernel), kernel.log_ratio
        self._kernel.log_ratio = self._watch

    def _watch(self, before: AuxiliaryPoints, proposal: AuxiliaryPoints) -> Array:
        # A finite part in place of −inf, as of draws that are impossible at the point, leaves the rest of the ratio known.
        part = np.nan_to_num(self._part_of(before, proposal), nan=-_CERTAIN, posinf=_CERTAIN, neginf=-_CERTAIN)
        self.ends, self.part = (before, proposal), part
        return part

    def step(self, rng: Any, population: Any, density: Any, parameters: Any) -> tuple[Any, KernelInfo]:
        moved, info = self._kernel.step(rng, population, density, parameters)
        self.log_ratio_found = info.log_ratio
        return moved, info


def proposals(target: BaseTarget, kernel: type[Kernel], rate: float, covariance: Any) -> Adaptation:
    """Return proposals that are learnt during tuning, or have the given ``covariance``."""
    return Adaptation.of_covariance(covariance, target.dim, kernel().initial_scale(target.dim), rate)


def exchange(
    target: BaseTarget, *, n_draws: int = 1, power: float = 1.0, covariance: Any = None
) -> AuxiliaryVariableMethod:
    """Return random-walk exchange, and noisy exchange for ``n_draws`` above one.

    Parameters
    ----------
    target : UnnormalizedTarget, or a block of one
    n_draws : int
        Draws N that estimate a ratio of normalising constants.
    power : float
        α of the tempered posterior.
    covariance : array (dim, dim), optional
        Covariance of the posterior, or a guess: the shape of the proposals. By default it is learnt during tuning.
    """
    density = AuxiliaryDensity(target, n_draws, 0, power, proposals(target, RandomWalk, 0.25, covariance))
    name = "exchange" if n_draws == 1 else "noisy exchange"
    return AuxiliaryVariableMethod(name, RandomWalk(log_ratio=density.log_ratio), density, n_draws > 1 or power != 1)


def mala_exchange(
    target: BaseTarget,
    *,
    n_draws: int = 1,
    n_gradient_draws: int | None = 10,
    power: float = 1.0,
    covariance: Any = None,
) -> AuxiliaryVariableMethod:
    """Return Langevin proposals with an estimated gradient and the exchange acceptance step.

    Parameters
    ----------
    target : UnnormalizedTarget, or a block of one
    n_draws, power, covariance
        As for :func:`exchange`.
    n_gradient_draws : int or None
        Separate draws that estimate a gradient. None uses the same draws for both, as in the noisy form; one draw used
        at both ends is not exact either.
    """
    density = AuxiliaryDensity(target, n_draws, n_gradient_draws, power, proposals(target, Mala, 0.4, covariance))
    kernel = Mala(log_ratio=density.log_ratio, balanced=False)
    noisy = n_gradient_draws is None
    estimated = noisy or n_draws > 1 or power != 1
    return AuxiliaryVariableMethod("noisy MALA exchange" if noisy else "MALA exchange", kernel, density, estimated)
