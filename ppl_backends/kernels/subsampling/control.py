r"""Sub-sampling with control variates: Metropolis and HMC on an estimated log likelihood.

Quiroz et al. (2019) and Dang et al. (2019).

The estimate is ℓ̂(θ; U) = Σ qᵢ(θ) + (N/m) Σ_U (ℓᵢ − qᵢ)(θ), its variance σ̂² = N² var_U / m. Since E exp(ℓ̂ − σ²/2) = exp(ℓ)
for a normal ℓ̂, the chain on (θ, U) with target p(θ) exp(ℓ̂ − σ̂²/2) has nearly the posterior as its margin: the error is
that of the normal approximation and of σ̂², and vanishes as 1/(N m²). One block of U is renewed at each step, which keeps the
estimates at both ends of a move correlated.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.stats import t as student

from ppl_backends.kernels.adaptation import DualAveraging
from ppl_backends.kernels.algorithm import COMMON_STATS, Statistics
from ppl_backends.kernels.subsampling.compiled_kernels import control_variate_walk
from ppl_backends.kernels.subsampling.rows import Index, Rows
from ppl_backends.targets.protocol import Array

__all__ = [
    "ControlVariateHmc",
    "ControlVariateMetropolis",
    "SequentialMetropolis",
    "UniformMetropolis",
    "choose_subset_size",
]

CHECK_EVERY = (
    400  # steps between estimates of E|a − â|, with CHECK_FACTOR times the rows at both ends: 10 % of the cost
)
CHECK_FACTOR = 20
SMALLEST_SUBSET = 20
BLOCKS = 10


def choose_subset_size(rows: Rows, rng: np.random.Generator, draws: int = 20, probe: int = 2000) -> tuple[int, float]:
    """The subset size for σ̂² ≤ 1 at nine of ten draws of the Laplace approximation, and the variance for one row."""
    index = rng.integers(0, rows.n, size=min(probe, rows.n))
    single = [
        rows.n**2 * float(rows.residuals(rows.expansion_point.sample(1, rng)[0], index).var()) for _ in range(draws)
    ]
    variance = float(np.quantile(single, 0.9))
    return int(np.clip(np.ceil(variance), SMALLEST_SUBSET, max(SMALLEST_SUBSET, rows.n))), variance


class Estimate(NamedTuple):
    """Log density at a point as a subset estimates it."""

    value: float
    variance: float


class SubsetState(NamedTuple):
    """One chain: point, subset, residuals there, and the estimate that they give."""

    x: Array
    subset: Index
    residuals: Array
    estimate: Estimate
    step: int
    adaptation: DualAveraging


def estimate_of(rows: Rows, x: Array, residuals: Array, corrected: bool = True) -> Estimate:
    """Return ℓ̂ plus the log prior and Potentials, less σ̂²/2."""
    m = len(residuals)
    variance = rows.n**2 / m * float(residuals.var())
    value = (
        rows.expansion.at(x - rows.expansion_point.mean)
        + rows.log_prior_and_potentials(x)
        + rows.n * float(residuals.mean())
    )
    return Estimate(value - 0.5 * variance if corrected else value, variance)


def acceptance_error(rows: Rows, x: Array, new: Array, m: int, accept: float, rng: np.random.Generator) -> float:
    """|a − â| with a from ``CHECK_FACTOR`` times as many rows at both ends."""
    index = rng.integers(0, rows.n, size=min(CHECK_FACTOR * m, rows.n))
    mode = rows.expansion_point.mean
    change = (
        rows.log_prior_and_potentials(new)
        - rows.log_prior_and_potentials(x)
        + rows.expansion.at(new - mode)
        - rows.expansion.at(x - mode)
    )
    change += rows.n * float((rows.residuals(new, index) - rows.residuals(x, index)).mean())
    return abs(accept - float(np.exp(min(change, 0.0))))


class _Subsampled:
    """What the algorithms on a subset share.

    Parameters
    ----------
    rows : Rows
    subset : int
        Rows of a subset.
    scale : float, optional
        Of proposals in whitened coordinates, 2.38/√d by default.
    """

    batched = False
    approximate = True
    name: str
    stats: ClassVar[dict[str, type]] = {
        **COMMON_STATS,
        "accepted": bool,
        "log_likelihood_variance": float,
        "subset_size": int,
        "acceptance_error": float,
    }
    target_acceptance = 0.234

    def __init__(self, rows: Rows, subset: int, scale: float | None = None) -> None:
        self.rows, self.dim, self.subset = rows, rows.dim, subset
        self.scale = 2.38 / np.sqrt(rows.dim) if scale is None else float(scale)
        self.attributes: dict[str, Any] = {"subset_size": subset}

    def initial_point(self, rng: np.random.Generator) -> Array:
        """A draw of the Laplace approximation at the expansion point."""
        return self.rows.expansion_point.sample(1, rng)[0]

    def start(self, x: Array, rng: np.random.Generator) -> SubsetState:
        """The state at ``x`` with a fresh subset."""
        subset = rng.integers(0, self.rows.n, size=self.subset)
        residuals = self.rows.residuals(x, subset)
        adaptation = DualAveraging.begin(self.scale, self.target_acceptance)
        return SubsetState(x, subset, residuals, estimate_of(self.rows, x, residuals), 0, adaptation)

    def refresh(self, state: SubsetState, rng: np.random.Generator) -> SubsetState:
        """The same subset where the other coordinates of a block have moved."""
        residuals = self.rows.residuals(state.x, state.subset)
        return state._replace(residuals=residuals, estimate=estimate_of(self.rows, state.x, residuals))

    def log_ratio(self, x: Array, new: Array, rng: np.random.Generator) -> float:
        """An estimate of the log ratio of a symmetric move, on a fresh subset."""
        subset = rng.integers(0, self.rows.n, size=self.subset)
        here, there = (estimate_of(self.rows, point, self.rows.residuals(point, subset)) for point in (x, new))
        return there.value - here.value

    def _statistics(self, state: SubsetState, accept: float, accepted: bool, tune: bool) -> Statistics:
        return {
            "accept": accept,
            "approximate": int(self.approximate),
            "tune": tune,
            "accepted": accepted,
            "log_likelihood_variance": state.estimate.variance,
            "subset_size": self.subset,
            "acceptance_error": float("nan"),
        }

    def _error(self, state: SubsetState, new: Array, accept: float, rng: np.random.Generator) -> float:
        """|a − â| now and then, NaN otherwise."""
        if state.step % CHECK_EVERY:
            return float("nan")
        return acceptance_error(self.rows, state.x, new, self.subset, accept, rng)

    def _renewed(self, state: SubsetState, rng: np.random.Generator) -> tuple[Index, slice]:
        """The subset with one block drawn anew."""
        size = max(1, self.subset // BLOCKS)
        first = int(rng.integers(0, max(1, self.subset - size + 1)))
        subset = state.subset.copy()
        subset[first : first + size] = rng.integers(0, self.rows.n, size=size)
        return subset, slice(first, first + size)


def _probability(log_ratio: float) -> float:
    return float(np.exp(min(log_ratio, 0.0))) if log_ratio == log_ratio else 0.0


class ControlVariateMetropolis(_Subsampled):
    """Random walk, or proposals of the Laplace approximation, on (θ, U).

    Parameters
    ----------
    independent : bool
    steps : int
        Steps a draw, in one compiled call where the rows allow it.
    """

    name = "subsampled_metropolis"

    def __init__(
        self, rows: Rows, subset: int, scale: float | None = None, independent: bool = False, steps: int = 1
    ) -> None:
        super().__init__(rows, subset, scale)
        self._independent, self._steps, self._compiled = independent, steps, rows.compiled()
        self.attributes["steps_per_draw"] = steps

    def step(self, state: SubsetState, rng: np.random.Generator, tune: bool) -> tuple[SubsetState, Statistics]:
        """Proposals of θ together with one block of U."""
        if self._compiled is not None:
            return self._compiled_steps(state, rng, tune)
        accepts = []
        for _ in range(self._steps):
            state, accept, accepted = self._one(state, rng)
            accepts.append(accept)
        stats = self._statistics(state, float(np.mean(accepts)), accepted, tune)
        return self._checked(state, stats, rng)

    def _one(self, state: SubsetState, rng: np.random.Generator) -> tuple[SubsetState, float, bool]:
        expansion_point, proposals = self.rows.expansion_point, 0.0
        z = rng.standard_normal(self.dim)
        if self._independent:
            new, old = (
                expansion_point.mean + expansion_point.factor @ z,
                expansion_point.whiten(state.x),
            )
            proposals = 0.5 * float(z @ z - old @ old)
        else:
            new = state.x + self.scale * (expansion_point.factor @ z)
        subset, _ = self._renewed(state, rng)
        residuals = self.rows.residuals(new, subset)
        estimate = estimate_of(self.rows, new, residuals)
        accept = _probability(estimate.value - state.estimate.value + proposals)
        accepted = bool(rng.random() < accept)
        if accepted:
            state = state._replace(x=new, subset=subset, residuals=residuals, estimate=estimate)
        return state, accept, accepted

    def _compiled_steps(
        self, state: SubsetState, rng: np.random.Generator, tune: bool
    ) -> tuple[SubsetState, Statistics]:
        assert self._compiled is not None
        delta, subset, residuals = state.x - self.rows.expansion_point.mean, state.subset.copy(), state.residuals.copy()
        accept, moves, variance = control_variate_walk(
            rng, self._steps, *self._compiled, self.scale, self._independent, delta, subset, residuals
        )
        estimate = Estimate(float("nan"), variance)
        state = state._replace(
            x=self.rows.expansion_point.mean + delta, subset=subset, residuals=residuals, estimate=estimate
        )
        return self._checked(state, self._statistics(state, accept, moves > 0, tune), rng)

    def _checked(
        self, state: SubsetState, stats: Statistics, rng: np.random.Generator
    ) -> tuple[SubsetState, Statistics]:
        """With E|a − â| of a random-walk move now and then."""
        if state.step % max(1, CHECK_EVERY // self._steps) == 0:
            new = state.x + self.scale * (self.rows.expansion_point.factor @ rng.standard_normal(self.dim))
            accept = _probability(self.log_ratio(state.x, new, rng))
            stats["acceptance_error"] = acceptance_error(self.rows, state.x, new, self.subset, accept, rng)
        return state._replace(step=state.step + 1), stats


class ControlVariateHmc(_Subsampled):
    """Energy-conserving HMC: U is renewed given θ, then a trajectory moves θ given U, both exactly for the same law.

    The gradient of ℓ̂ − σ̂²/2 is a weighted sum of the subset's residual gradients, with wᵢ = N/m − (N/m)²(rᵢ − r̄).
    """

    name, target_acceptance = "subsampled_hmc", 0.65

    def __init__(self, rows: Rows, subset: int, length: float = 1.0) -> None:
        super().__init__(rows, subset, min(1.2 / rows.dim**0.25, length))
        self._length = length

    def _slope(self, x: Array, subset: Index, residuals: Array) -> Array:
        ratio = self.rows.n / len(subset)
        weights = ratio - ratio**2 * (residuals - residuals.mean())
        slope = self.rows.residual_gradient(x, subset, weights)
        return (
            slope
            + self.rows.expansion.slope(x - self.rows.expansion_point.mean)
            + self.rows.log_prior_and_potentials.slope(x)
        )

    def step(self, state: SubsetState, rng: np.random.Generator, tune: bool) -> tuple[SubsetState, Statistics]:
        """One renewal of a block of U and one trajectory."""
        state = self._renew(state, rng)
        rows, factor, adaptation = self.rows, self.rows.expansion_point.factor, state.adaptation
        scale = adaptation.scale if tune else adaptation.average
        h, n_steps = scale * rng.uniform(0.8, 1.2), int(np.clip(np.ceil(self._length / scale), 1, 100))
        p = rng.standard_normal(self.dim)
        energy = 0.5 * float(p @ p) - state.estimate.value
        x, residuals = state.x, state.residuals
        p = p + 0.5 * h * (factor.T @ self._slope(x, state.subset, residuals))
        for k in range(n_steps):
            x = x + h * (factor @ p)
            residuals = rows.residuals(x, state.subset)
            p = p + (h if k < n_steps - 1 else 0.5 * h) * (factor.T @ self._slope(x, state.subset, residuals))
        estimate = estimate_of(rows, x, residuals)
        accept = _probability(energy - 0.5 * float(p @ p) + estimate.value)
        accepted = bool(rng.random() < accept)
        stats = self._statistics(state, accept, accepted, tune)
        if tune:
            adaptation = adaptation.update(accept)
        state = state._replace(step=state.step + 1, adaptation=adaptation)
        return (state._replace(x=x, residuals=residuals, estimate=estimate) if accepted else state), stats

    def _renew(self, state: SubsetState, rng: np.random.Generator) -> SubsetState:
        subset, block = self._renewed(state, rng)
        residuals = state.residuals.copy()
        residuals[block] = self.rows.residuals(state.x, subset[block])
        estimate = estimate_of(self.rows, state.x, residuals)
        if rng.random() < _probability(estimate.value - state.estimate.value):
            return state._replace(subset=subset, residuals=residuals, estimate=estimate)
        return state


class UniformMetropolis(_Subsampled):
    """Plain noisy Metropolis: both ends on a fresh uniform subset, without control variates. The baseline to beat."""

    name = "uniform_noisy_metropolis"

    def log_ratio(self, x: Array, new: Array, rng: np.random.Generator) -> float:
        """An estimate of the log ratio of a symmetric move, on a fresh subset."""
        return self._ratio(x, new, rng)[0]

    def _ratio(self, x: Array, new: Array, rng: np.random.Generator) -> tuple[float, float]:
        change = self.rows.differences(x, new, rng.integers(0, self.rows.n, size=self.subset))
        ratio = (
            self.rows.n * float(change.mean())
            + self.rows.log_prior_and_potentials(new)
            - self.rows.log_prior_and_potentials(x)
        )
        return ratio, self.rows.n**2 * float(change.var()) / len(change)

    def step(self, state: SubsetState, rng: np.random.Generator, tune: bool) -> tuple[SubsetState, Statistics]:
        """One random-walk proposal."""
        new = state.x + self.scale * (self.rows.expansion_point.factor @ rng.standard_normal(self.dim))
        ratio, variance = self._ratio(state.x, new, rng)
        accept = _probability(ratio)
        accepted = bool(rng.random() < accept)
        stats = self._statistics(state, accept, accepted, tune)
        stats |= {"log_likelihood_variance": variance, "acceptance_error": self._error(state, new, accept, rng)}
        return state._replace(x=new if accepted else state.x, step=state.step + 1), stats


class SequentialMetropolis(_Subsampled):
    """Metropolis whose decision is a sequential t test on growing subsets (Korattikara, Chen & Welling 2014).

    The subset doubles until the decision's probability of error is below ``tolerance``, or all rows are in. The control
    variates enter the test: only what they leave is estimated.

    Parameters
    ----------
    tolerance : float
    """

    name = "sequential_test_metropolis"

    def __init__(self, rows: Rows, subset: int, scale: float | None = None, tolerance: float = 0.01) -> None:
        super().__init__(rows, subset, scale)
        self._tolerance = tolerance

    def log_ratio(self, x: Array, new: Array, rng: np.random.Generator) -> float:
        """The estimate of the log ratio on which a test decides."""
        known, drawn, _ = self._test(x, new, np.log(rng.random()), rng)
        return known + self.rows.n * float(drawn.mean())

    def _test(self, x: Array, new: Array, log_u: float, rng: np.random.Generator) -> tuple[float, Array, float]:
        """The known part of the log ratio, the changes of residuals drawn, and the standard error of their mean."""
        rows, mode = self.rows, self.rows.expansion_point.mean
        known = (
            rows.log_prior_and_potentials(new)
            - rows.log_prior_and_potentials(x)
            + rows.expansion.at(new - mode)
            - rows.expansion.at(x - mode)
        )
        threshold = (log_u - known) / rows.n  # accept where the mean of the changes exceeds it
        size, drawn = min(self.subset, rows.n), np.empty(0)
        while True:
            index = rng.integers(0, rows.n, size=size - len(drawn)) if size < rows.n else np.arange(rows.n)
            change = rows.residuals(new, index) - rows.residuals(x, index)
            drawn = change if size >= rows.n else np.concatenate([drawn, change])
            error = float(drawn.std(ddof=1)) / np.sqrt(len(drawn))
            doubt = float(student.sf(abs(drawn.mean() - threshold) / max(error, 1e-300), len(drawn) - 1))
            if doubt < self._tolerance or size >= rows.n:
                return known, drawn, error
            size = min(2 * size, rows.n)

    def step(self, state: SubsetState, rng: np.random.Generator, tune: bool) -> tuple[SubsetState, Statistics]:
        """One random-walk proposal."""
        new = state.x + self.scale * (self.rows.expansion_point.factor @ rng.standard_normal(self.dim))
        log_u = float(np.log(rng.random()))
        known, drawn, error = self._test(state.x, new, log_u, rng)
        ratio = known + self.rows.n * float(drawn.mean())
        accept, accepted = _probability(ratio), ratio > log_u
        stats = self._statistics(state, accept, accepted, tune)
        stats |= {"subset_size": len(drawn), "log_likelihood_variance": (self.rows.n * error) ** 2}
        stats["acceptance_error"] = self._error(state, new, accept, rng)
        return state._replace(x=new if accepted else state.x, step=state.step + 1), stats
