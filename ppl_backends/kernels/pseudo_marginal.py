r"""Pseudo-marginal Metropolis–Hastings: an unbiased estimate in place of the likelihood (Andrieu & Roberts 2009).

The estimate L̂(θ) is kept with its point until a proposal is accepted. The pair (θ, L̂) then has a distribution whose
marginal is the exact posterior, for any unbiased nonnegative L̂. The noisier log L̂ is, the longer chains stick: N
estimates are averaged so that its variance is about one, which minimises the cost per effective draw (Doucet, Pitt,
Deligiannidis & Kohn 2015).

If L̂ is a function of standard normal numbers u, the proposal may keep most of them, u' = ρu + √(1 − ρ²) ε: the errors
of numerator and denominator of the ratio are then correlated, and fewer estimates suffice (Deligiannidis, Doucet &
Pitt 2018).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.kernels.adaptation import Adaptation
from ppl_backends.kernels.algorithm import Algorithm, ChainState, Statistics
from ppl_backends.kernels.protocol import Kernel, KernelInfo, KernelParameters, accept, column
from ppl_backends.numerics.population import Population
from ppl_backends.targets.protocol import Array, BaseTarget

REPLICATES = 40  # for the variance of an estimate
TOO_NOISY, TOO_FINE = 1.5, 0.5
FIRST_CHECK = 25  # steps of tuning; then 50, 100, 200, ...
MOST_AT_START, MOST_ESTIMATES = 64, 4096
# Variances of an estimate: that chains get stuck with, and above which the number of estimates needed is not known
ALARM, MOST_EXTRAPOLATED = 4.0, 20.0


class _Values(dict[str, Array]):
    """The variables that an estimator gets; access to any other raises an error of one line."""

    def __missing__(self, name: str) -> Array:
        raise ModelError(
            f"log_likelihood_estimate uses {name!r}: it gets {', '.join(self) or 'nothing'}, the variables "
            "that are determined by those that the step moves"
        )


class LikelihoodEstimator:
    """The mean of N unbiased likelihood estimates at a point.

    Parameters
    ----------
    target : BaseTarget, or a block of one
        For a block the estimator gets only variables that the block determines, because others may move without it.
    function : callable, optional
        ``(values, rng) -> (n,)`` or, with ``n_normals``, ``(values, u) -> (n,)`` for ``u`` ``(n, n_normals)``: logs of
        independent estimates at ``n`` points, given as ``target.constrain`` gives them. By default the target's own
        ``log_likelihood_estimate(x, rng)``, which takes unconstrained points ``(n, dim)``.
    n_normals : int, optional
    """

    def __init__(self, target: BaseTarget, function: Callable | None, n_normals: int | None) -> None:
        self._target, full, own = target, target.full, target.log_likelihood_estimate
        if function is None and own is None:
            raise ModelError(
                f"{full.label} has no log_likelihood_estimate: give an unbiased estimator of the likelihood, "
                "PseudoMarginal(log_likelihood_estimate=...)"
            )
        self._function, self._own, self.n_normals = function, own, n_normals
        self._visible = _following(target) if len(target.others) else None

    def normals(self, n: int, rng: np.random.Generator) -> Array | None:
        """Return fresh normals ``(n, n_normals)``, or None if the estimator draws its own."""
        return None if self.n_normals is None else rng.standard_normal((n, self.n_normals))

    def __call__(self, x: Array, n: int, noise: Any) -> float:
        """Return the log mean of ``n`` estimates at ``x`` ``(dim,)``; ``noise`` is a generator or ``(n, n_normals)``."""
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
        """Return the variables at ``n`` copies of the point."""
        found = self._target.constrain(x[None])
        names = found if self._visible is None else self._visible
        return _Values({name: np.repeat(found[name], n, axis=0) for name in names})


def _following(block: BaseTarget) -> tuple[str, ...]:
    """Return names of the variables whose values do not depend on the other coordinates."""
    rng, points = np.random.default_rng(0), np.tile(block.point, (8, 1))
    points[1:, block.others] += rng.standard_normal((7, len(block.others)))
    return tuple(
        name for name, value in block.full.constrain(points).items() if all(np.array_equal(value[0], v) for v in value)
    )


@dataclass(frozen=True)
class EstimatedPoints(Population):
    """Points, the estimates kept with them, and the random numbers of these.

    Attributes
    ----------
    log_rest : ndarray (n,)
        All other terms of the log density.
    estimate : ndarray (n,)
        Log of the likelihood estimate.
    noise : ndarray (n, …) or None
    n_estimates : int
        N.
    variance : float
        Variance of the log estimate, or of half the difference between correlated ones, as last measured.
    """

    log_rest: Array
    estimate: Array
    noise: Array | None
    n_estimates: int
    variance: float

    @property
    def log_density(self) -> Array:
        """Return the log joint density ``(n,)``, with the estimate in place of the likelihood."""
        return self.log_rest + self.estimate

    gradient = None


class Precision(NamedTuple):
    """The precision for which the number N of estimates is chosen.

    Attributes
    ----------
    variance : float
        Variance of the log estimate, or of the log ratio of correlated estimates.
    power : float
        Power of N with which the variance decreases.
    saves : bool
        Whether fewer estimates than at the start save time.
    """

    variance: float = 1.0
    power: float = 1.0
    saves: bool = True


INDEPENDENT_ESTIMATES = Precision()


class EstimatedDensity:
    """A target with an estimated likelihood.

    Parameters
    ----------
    target : BaseTarget, or a block of one
    estimator : LikelihoodEstimator
    correlation : float
        ρ of an estimate's numbers from one step to the next.
    n_first : int or None
        N; None chooses it at the start.
    tuning : Adaptation
        Initial shape and scale of the proposals.
    wanted : Precision
        The variance for which N is chosen.

    Attributes
    ----------
    fewest, most_at_start, most : int
        Initial N, and largest N at the start and later.
    """

    fewest, most_at_start, most = 1, MOST_AT_START, MOST_ESTIMATES

    def __init__(
        self,
        target: BaseTarget,
        estimator: Any,
        correlation: float,
        n_first: int | None,
        tuning: Adaptation,
        wanted: Precision = INDEPENDENT_ESTIMATES,
    ) -> None:
        self.target, self.dim, self.estimator = target, target.dim, estimator
        self.correlation, self.n_first, self._tuning, self.wanted = correlation, n_first, tuning, wanted

    def __call__(self, x: Array, rng: np.random.Generator) -> Any:
        """Raise an error: an estimate is made beside another one, see :meth:`beside`."""
        raise NotImplementedError

    def beside(self, points: EstimatedPoints, x: Array, rng: np.random.Generator) -> EstimatedPoints:
        """Return proposals ``(n, dim)`` with separate estimates, whose numbers may be near those of the points."""
        log_rest, estimate = self.target.log_density(x), np.full(len(x), -np.inf)
        noise = None if points.noise is None else points.noise.copy()
        for i in np.flatnonzero(np.isfinite(log_rest)):
            near = self.moved_noise(points.noise[i] if points.noise is not None else None, points.n_estimates, rng)
            estimate[i] = self.estimator(x[i], points.n_estimates, rng if near is None else near)
            if noise is not None:
                noise[i] = near
        return replace(points, x=x, log_rest=log_rest, estimate=estimate, noise=noise)

    def moved_noise(self, noise: Array | None, n: int, rng: np.random.Generator) -> Array | None:
        """Return a proposal's numbers: an AR(1) step from the current ones."""
        fresh = self.estimator.normals(n, rng)
        if fresh is None or noise is None:
            return fresh
        return self.correlation * noise + np.sqrt(1 - self.correlation**2) * fresh

    def initial_point(self, rng: np.random.Generator) -> Array | None:
        """Return None: the target chooses."""
        return None

    def parameters(self) -> KernelParameters:
        """Return the initial proposals."""
        return self._tuning.parameters

    def start(self, x: Array, rng: np.random.Generator) -> EstimatedPoints:
        """Return a point ``(1, dim)`` with an estimate; choose N there."""
        x = np.array(x, dtype=np.float64)
        log_rest = self.target.log_density(x)
        if not np.isfinite(log_rest).all():
            raise ModelError(f"{self.target.label}: the log density is not finite at the starting point")
        first = EstimatedPoints(x, log_rest, np.full(len(x), -np.inf), None, self.n_first or self.fewest, np.nan)
        enough = self.most_at_start
        points = self.measured(self.fresh(first, rng), rng) if self.n_first else self.with_enough(first, rng, enough)
        zero = ~np.isfinite(points.estimate)
        if zero.any():
            at = np.round(x[np.argmax(zero)], 3)
            raise ModelError(
                f"every likelihood estimate at the starting point {at} is zero{self.why_zero(x[np.argmax(zero)])}; start "
                "elsewhere (initvals=)"
            )
        return points

    def why_zero(self, x: Array) -> str:
        """Return why the estimate is zero at a point ``(dim,)``, if that is known."""
        return ""

    def refresh(self, population: EstimatedPoints, rng: np.random.Generator) -> EstimatedPoints:
        """Return the points with a new log density after other coordinates moved; the estimate does not depend on them."""
        return replace(population, log_rest=self.target.log_density(population.x))

    # -- how many estimates ----------------------------------------------------------------------------------------------

    def fresh(self, points: EstimatedPoints, rng: np.random.Generator) -> EstimatedPoints:
        """Return the point with a fresh estimate, the first of a few that is not zero; unchanged if all are."""
        for _ in range(REPLICATES):
            noise = self.estimator.normals(points.n_estimates, rng)
            estimate = self.estimator(points.x[0], points.n_estimates, rng if noise is None else noise)
            if np.isfinite(estimate):
                return replace(points, estimate=np.array([estimate]), noise=None if noise is None else noise[None])
        return points

    def measured(self, points: EstimatedPoints, rng: np.random.Generator) -> EstimatedPoints:
        """Return points with the variance of the log estimate; if estimates are correlated, of half their difference."""
        x, n, values = points.x[0], points.n_estimates, np.empty(REPLICATES)
        for i in range(REPLICATES):
            noise = self.estimator.normals(n, rng)
            values[i] = self.estimator(x, n, rng if noise is None else noise)
            if noise is not None and np.isfinite(values[i]):
                values[i] = (values[i] - self.estimator(x, n, self.moved_noise(noise, n, rng))) / np.sqrt(2)
        if not np.isfinite(values).all():
            return replace(points, variance=np.inf)
        correlated = self.estimator.n_normals is not None
        return replace(points, variance=float((values**2).mean() if correlated else values.var(ddof=1)))

    def rounded(self, n: int) -> int:
        """Return a number of estimates to use in place of ``n``."""
        return max(1, n)

    def with_enough(self, points: EstimatedPoints, rng: np.random.Generator, most: int) -> EstimatedPoints:
        """Return points with an N that makes the variance small enough; estimates are new if N changed."""
        found, power = points, self.wanted.power
        while True:
            found = self.measured(found, rng)
            noise = found.variance / self.wanted.variance
            if noise <= TOO_NOISY or found.n_estimates >= most:
                break
            noise = float(np.clip(np.ceil(noise), 2, 4)) if np.isfinite(noise) else 4.0
            more = self.rounded(int(np.ceil(found.n_estimates * noise ** (1 / power))))
            found = replace(found, n_estimates=min(most, more))
        if self.wanted.saves and noise < TOO_FINE and found.n_estimates == points.n_estimates:
            least = int(np.ceil(found.n_estimates * noise ** (1 / power)))
            fewer = min(found.n_estimates, self.rounded(least))
            variance = found.variance * (found.n_estimates / fewer) ** power
            found = replace(found, n_estimates=fewer, variance=variance)
        if found.n_estimates == points.n_estimates and np.isfinite(points.estimate).all():
            return found
        fresh = self.fresh(replace(found, estimate=np.full(len(points.x), -np.inf)), rng)
        return fresh if np.isfinite(fresh.estimate).all() else replace(points, variance=found.variance)


class PseudoMarginalKernel(Kernel):
    """A random walk whose proposals have separate estimates; the current estimate is kept."""

    name = "pseudo-marginal"
    estimates = "estimates"
    target_acceptance = 0.2
    stats = MappingProxyType({"scaling": float, "n_estimates": int, "estimate_variance": float})

    def initial_scale(self, dim: int) -> float:
        return float(2.38 / np.sqrt(dim))

    def step(self, rng: Any, population: Any, density: Any, parameters: KernelParameters) -> tuple[Any, KernelInfo]:
        jump = column(parameters.scale) * rng.standard_normal(population.x.shape)
        proposal = density.beside(population, population.x + parameters.metric.colour(jump), rng)
        return accept(rng, population, proposal, self.log_ratio(population, proposal), (jump**2).sum(axis=1))

    def statistics(self, before: Any, after: Any, parameters: Any, info: KernelInfo) -> Mapping[str, Any]:
        return {
            "scaling": parameters.scale,
            "n_estimates": before.n_estimates,
            "estimate_variance": before.variance,
        }


class EstimatedMetropolis(Algorithm):
    """A kernel on an estimated density; during tuning it chooses the number of estimates.

    Parameters
    ----------
    kernel : Kernel
    density : EstimatedDensity
    advice : str
        Advice if estimates are too noisy.
    """

    def __init__(self, kernel: PseudoMarginalKernel, density: EstimatedDensity, advice: str) -> None:
        super().__init__(kernel, density)
        self._advice, self._estimates, self._warned = advice, kernel.estimates, False

    def step(self, state: ChainState, rng: Any, tune: bool) -> tuple[ChainState, Statistics]:
        """Make one step; during tuning, occasionally choose the number of estimates, or measure a given one."""
        if tune and _is_check(state.n_steps):
            state = self.checked(state, rng)
        elif not tune:
            self._alarm(state.population)  # of a given number of estimates, where the chain is after tuning
        return super().step(state, rng, tune)

    def checked(self, state: ChainState, rng: Any) -> ChainState:
        """Return the state with a sufficient number of estimates, if it is not fixed, and with fresh ones.

        A chain with a far too large estimate does not move and gives no information; tuning steps are dropped in any case.
        """
        points = state.population
        if self.density.n_first is None:
            points = self.density.with_enough(points, rng, self.density.most)
            self._alarm(points)
        else:
            points = self.density.measured(points, rng)
        return state._replace(population=self.density.fresh(points, rng))

    def _alarm(self, points: EstimatedPoints) -> None:
        """Warn once that the estimates are too noisy."""
        if self._warned or not points.variance > ALARM:
            return
        self._warned = True
        known = self.density.n_first is not None and points.variance < MOST_EXTRAPOLATED
        more = f"about {int(np.ceil(points.n_estimates * points.variance))}" if known else "more"
        given = f"use {more} {self._estimates}, or " if self.density.n_first is not None else ""
        warnings.warn(
            f"the log of the likelihood estimate has variance {points.variance:.1f} with "
            f"{points.n_estimates} {self._estimates}, so chains will stay at one point for long: {given}{self._advice}",
            SamplerWarning,
            stacklevel=user_level(),
        )


class PseudoMarginal(EstimatedMetropolis):
    """Random-walk pseudo-marginal Metropolis–Hastings. Exact for unbiased estimators.

    Parameters
    ----------
    target : BaseTarget, or a block of one
        Its log density contains all terms but the estimated likelihood.
    log_likelihood_estimate : callable, optional
        See :class:`LikelihoodEstimator`.
    n_estimates : int or "auto"
        N; "auto" chooses it at the start and during tuning.
    n_normals : int, optional
        Number of normal numbers on which one estimate depends.
    correlation : float
        ρ, with ``n_normals``.
    covariance : array (dim, dim), optional
        Shape of the proposals; learnt during tuning by default.
    """

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
        kernel, estimator = PseudoMarginalKernel(), LikelihoodEstimator(target, log_likelihood_estimate, n_normals)
        scale, rate = kernel.initial_scale(target.dim), kernel.target_acceptance
        tuning = Adaptation.of_covariance(covariance, target.dim, scale, rate)
        first = None if n_estimates == "auto" else n_estimates
        density = EstimatedDensity(target, estimator, correlation, first, tuning)
        super().__init__(kernel, density, "use a better estimator, or a correlated one (n_normals=)")
        self.batched = False
        self.attributes = {"n_normals": n_normals or 0, "correlation": 0.0 if n_normals is None else correlation}


def _is_check(n_steps: int) -> bool:
    """Return whether it is 25, 50, 100, 200, ..."""
    ratio = n_steps // FIRST_CHECK
    return n_steps > 0 and n_steps % FIRST_CHECK == 0 and ratio & (ratio - 1) == 0
