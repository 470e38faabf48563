r"""Sub-sampling with control variates: Metropolis and HMC on an estimated log likelihood.

Quiroz et al. (2019) and Dang et al. (2019).

The estimate is ℓ̂(θ; U) = Σ qᵢ(θ) + (N/m) Σ_U (ℓᵢ − qᵢ)(θ), with variance σ̂² = N² var_U / m. Because E exp(ℓ̂ − σ²/2)
= exp(ℓ) for a normal ℓ̂, the chain on (θ, U) with target p(θ) exp(ℓ̂ − σ̂²/2) has nearly the posterior as its
marginal. The error is that of the normal approximation and of σ̂², and vanishes as 1/(N m²). Each step renews one
block of U, so that the estimates at both ends of a move stay correlated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import t as student

from ppl_backends.kernels.adaptation import Adaptation
from ppl_backends.kernels.hmc import Hmc
from ppl_backends.kernels.protocol import KernelInfo, KernelParameters, accept, acceptance_probability
from ppl_backends.kernels.subsampling.compiled_kernels import (
    Proposals,
    SameTypes,
    control_variate_slope,
    control_variate_walk,
)
from ppl_backends.kernels.subsampling.kernel import RowsKernel, known_difference, one_step
from ppl_backends.kernels.subsampling.rows import Index, Rows
from ppl_backends.numerics.population import Population
from ppl_backends.targets.protocol import Array

CHECK_EVERY = 400  # steps between estimates of E|a − â|, with 20 times the rows at both ends: 10 % of the run time
SMALLEST_SUBSET = 20
_PROBED_DRAWS, _PROBED_ROWS = 20, 2000  # for the subset size
BLOCKS = 10


def choose_subset_size(rows: Rows, rng: np.random.Generator) -> tuple[int, float]:
    """Return the subset size for σ̂² ≤ 1 at nine of ten draws of the Laplace approximation, and the variance of one row."""
    index = rng.integers(0, rows.n, size=min(_PROBED_ROWS, rows.n))
    single = [
        rows.n**2 * float(rows.residuals(rows.expansion_point.sample(1, rng)[0], index).var())
        for _ in range(_PROBED_DRAWS)
    ]
    variance = float(np.quantile(single, 0.9))
    return int(np.clip(np.ceil(variance), SMALLEST_SUBSET, max(SMALLEST_SUBSET, rows.n))), variance


@dataclass(frozen=True)
class SubsetPoints(Population):
    """Points, each with its subset of the rows and the log density estimated from it.

    Attributes
    ----------
    subset : ndarray (n, m) of int
    residuals : ndarray (n, m)
        ℓᵢ − qᵢ of the subset at the point.
    log_density : ndarray (n,)
        ℓ̂ plus the log prior and Potentials, minus σ̂²/2.
    variance : ndarray (n,)
        σ̂².
    gradient : ndarray (n, dim) or None
        Gradient of the log density, given the subset.
    """

    subset: Index
    residuals: Array
    log_density: Array
    variance: Array
    gradient: Array | None = None


def estimate_of(rows: Rows, x: Array, residuals: Array) -> tuple[float, float]:
    """Return ℓ̂ plus the log prior and Potentials, minus σ̂²/2, at one point; and σ̂²."""
    mean = float(residuals.sum()) / len(residuals)
    centred = residuals - mean
    variance = (rows.n / len(residuals)) ** 2 * float(centred @ centred)
    known = rows.expansion.at(x - rows.expansion_point.mean) + rows.log_prior_and_potentials(x)
    return known + rows.n * mean - 0.5 * variance, variance


class _Subsampled(RowsKernel):
    """Base of the kernels on a subset.

    Parameters
    ----------
    rows : Rows
    subset : int
        Rows of a subset.
    scale : float, optional
        Scale of proposals in whitened coordinates, 2.38/√d by default.
    """

    exact = False
    stats: Mapping[str, type] = {"log_likelihood_variance": float, "subset_size": int}
    check_every = CHECK_EVERY

    def __init__(self, rows: Rows, subset: int, scale: float | None = None) -> None:
        super().__init__(rows, scale)
        self.subset, self.attributes, self._compiled = subset, {"subset_size": subset}, rows.compiled()
        self._estimate_and_slope = SameTypes(control_variate_slope)
        mode = rows.expansion_point.mean
        self._at_mode = rows.expansion.value + rows.log_prior_and_potentials(mode) if self._compiled else 0.0

    def begin(self, x: Array, rng: np.random.Generator) -> SubsetPoints:
        return self.at(x, rng.integers(0, self.rows.n, size=self.subset))

    def at(self, x: Array, subset: Index, gradient: bool = False, residuals: Array | None = None) -> SubsetPoints:
        """Return the record of a point ``(dim,)`` with a subset, whose residuals may be given."""
        if gradient and self._compiled is not None:
            residuals, slope = np.empty(len(subset)), np.empty(self.dim)
            delta = x - self.rows.expansion_point.mean
            value, variance = self._estimate_and_slope(self._compiled, delta, subset, residuals, slope)
            found = np.array([value + self._at_mode]), np.array([variance]), slope[None]
            return SubsetPoints(x[None], subset[None], residuals[None], *found)
        residuals = self.rows.residuals(x, subset) if residuals is None else residuals
        value, variance = estimate_of(self.rows, x, residuals)
        at_point = self.slope(x, subset, residuals)[None] if gradient else None
        return SubsetPoints(x[None], subset[None], residuals[None], np.array([value]), np.array([variance]), at_point)

    def slope(self, x: Array, subset: Index, residuals: Array) -> Array:
        """Return ∇(ℓ̂ − σ̂²/2 + log prior): a sum of residual gradients with weights N/m − (N/m)²(rᵢ − r̄)."""
        ratio = self.rows.n / len(subset)
        weights = ratio - ratio**2 * (residuals - residuals.sum() / len(residuals))
        known = self.rows.expansion.slope(x - self.rows.expansion_point.mean)
        return self.rows.residual_gradient(x, subset, weights) + known + self.rows.log_prior_and_potentials.slope(x)

    def refresh(self, population: SubsetPoints, rng: np.random.Generator) -> SubsetPoints:
        """Return the same subsets after the other coordinates of a block have moved."""
        [x], [subset] = population.x, population.subset
        return self.at(x, subset, population.gradient is not None)

    def symmetric_log_ratio(self, x: Array, new: Array, rng: np.random.Generator) -> float:
        subset = rng.integers(0, self.rows.n, size=self.subset)
        here, there = (estimate_of(self.rows, point, self.rows.residuals(point, subset)) for point in (x, new))
        return there[0] - here[0]

    def statistics(self, before: Any, after: SubsetPoints, parameters: Any, info: KernelInfo) -> Mapping[str, Any]:
        return {"log_likelihood_variance": after.variance, "subset_size": self.subset}

    def renewed(self, subset: Index, rng: np.random.Generator) -> tuple[Index, slice]:
        """Return the subset with one new block."""
        size = max(1, self.subset // BLOCKS)
        first = int(rng.random() * (self.subset - size + 1))
        subset, block = subset.copy(), slice(first, first + size)
        subset[block] = (rng.random(size) * self.rows.n).astype(np.int64)
        return subset, block


class ControlVariateMetropolis(_Subsampled):
    """Random-walk proposals, or proposals of the Laplace approximation, on (θ, U).

    Parameters
    ----------
    independent : bool
    steps : int
        Steps per draw, in one compiled call if the rows allow it.
    """

    name = "subsampled_metropolis"

    def __init__(
        self, rows: Rows, subset: int, scale: float | None = None, independent: bool = False, steps: int = 1
    ) -> None:
        super().__init__(rows, subset, scale)
        self._proposals, self._steps, self._walked = (
            Proposals(self.scale, independent),
            steps,
            SameTypes(control_variate_walk),
        )
        self.check_every = max(1, CHECK_EVERY // steps)
        self.attributes["steps_per_draw"] = steps

    def move(self, rng: np.random.Generator, point: SubsetPoints, parameters: Any) -> tuple[SubsetPoints, KernelInfo]:
        """Make proposals of θ, each together with one block of U."""
        if self._compiled is not None:
            return self.run(rng, point)
        accepts, accepted = [], False
        for _ in range(self._steps):
            point, info = self.single(rng, point)
            accepts.append(float(info.acceptance[0]))
            accepted |= bool(info.accepted[0])
        return point, one_step(float(np.mean(accepts)), accepted, self._steps)

    def single(self, rng: np.random.Generator, point: SubsetPoints) -> tuple[SubsetPoints, KernelInfo]:
        """Make one step."""
        q, x, correction = self.rows.expansion_point, point.x[0], 0.0
        z = rng.standard_normal(self.dim)
        if self._proposals.independent:
            new, old = q.mean + q.factor @ z, q.whiten(x)
            correction = 0.5 * float(z @ z - old @ old)
        else:
            new = x + self.scale * (q.factor @ z)
        proposal = self.at(new, self.renewed(point.subset[0], rng)[0])
        log_ratio = self.log_ratio(point, proposal) + correction
        return accept(rng, point, proposal, log_ratio, np.zeros(1))

    def run(self, rng: np.random.Generator, point: SubsetPoints) -> tuple[SubsetPoints, KernelInfo]:
        """Make all steps of a draw in one compiled call."""
        mode, subset, residuals = self.rows.expansion_point.mean, point.subset.copy(), point.residuals.copy()
        delta = point.x[0] - mode
        found = self._walked(rng, self._steps, self._compiled, self._proposals, delta, subset[0], residuals[0])
        accept, moves, value, variance = found
        value, variance = np.array([value + self._at_mode]), np.array([variance])
        moved = SubsetPoints((mode + delta)[None], subset, residuals, value, variance)
        return moved, one_step(accept, moves > 0, self._steps)


class ControlVariateHmc(_Subsampled):
    """Energy-conserving HMC: renew U given θ, then move θ given U by a trajectory, both exactly for the same distribution."""

    name, uses_gradient, check_every = "subsampled_hmc", True, 0
    stats: Mapping[str, type] = {**_Subsampled.stats, "acceptance_error": float}

    def __init__(self, rows: Rows, subset: int, length: float = 0.5 * np.pi) -> None:
        self._hmc = Hmc(length, balanced=False)
        super().__init__(rows, subset, self._hmc.initial_scale(rows.dim))
        self.target_acceptance, self.largest_scale = self._hmc.target_acceptance, self._hmc.largest_scale

    def parameters(self) -> KernelParameters:
        step = self.scale, self.target_acceptance, self.largest_scale
        return Adaptation.begin(self.rows.expansion_point, *step).parameters

    def begin(self, x: Array, rng: np.random.Generator) -> SubsetPoints:
        """Return the record of a point with a fresh subset, and the gradient."""
        return self.at(x, rng.integers(0, self.rows.n, size=self.subset), True)

    def move(self, rng: np.random.Generator, point: SubsetPoints, parameters: Any) -> tuple[SubsetPoints, KernelInfo]:
        """Renew a block of U, and make one trajectory."""
        point = self._renew(point, rng)
        subset = point.subset[0]
        return self._hmc.step(rng, point, lambda x, rng: self.at(x[0], subset, True), parameters)

    def _renew(self, point: SubsetPoints, rng: np.random.Generator) -> SubsetPoints:
        subset, block = self.renewed(point.subset[0], rng)
        x, residuals = point.x[0], None
        if self._compiled is None:
            residuals = point.residuals[0].copy()
            residuals[block] = self.rows.residuals(x, subset[block])
        proposal = self.at(x, subset, True, residuals)
        probability = acceptance_probability(proposal.log_density[0] - point.log_density[0])
        return proposal if rng.random() < probability else point

    def statistics(self, before: Any, after: SubsetPoints, parameters: Any, info: KernelInfo) -> Mapping[str, Any]:
        return {**super().statistics(before, after, parameters, info), "acceptance_error": float("nan")}


@dataclass(frozen=True)
class MovedPoints(Population):
    """Points with figures of the last decision.

    Attributes
    ----------
    variance : ndarray (n,)
        Variance of the log ratio that decided.
    subset_size : ndarray (n,) of int
    """

    variance: Array
    subset_size: Index


class UniformMetropolis(_Subsampled):
    """Plain noisy Metropolis: both ends on a fresh uniform subset, without control variates, as a baseline."""

    name = "uniform_noisy_metropolis"

    def begin(self, x: Array, rng: np.random.Generator) -> Any:
        return MovedPoints(x[None], np.full(1, np.nan), np.array([self.subset]))

    def refresh(self, population: Any, rng: np.random.Generator) -> Any:
        return population

    def symmetric_log_ratio(self, x: Array, new: Array, rng: np.random.Generator) -> float:
        return self._ratio(x, new, rng)[0]

    def _ratio(self, x: Array, new: Array, rng: np.random.Generator) -> tuple[float, float]:
        change = self.rows.differences(x, new, rng.integers(0, self.rows.n, size=self.subset))
        prior = self.rows.log_prior_and_potentials(new) - self.rows.log_prior_and_potentials(x)
        return self.rows.n * float(change.mean()) + prior, self.rows.n**2 * float(change.var()) / len(change)

    def move(self, rng: np.random.Generator, point: Any, parameters: Any) -> tuple[Any, KernelInfo]:
        new = self.walk(point.x[0], rng)
        ratio, variance = self._ratio(point.x[0], new, rng)
        point = replace(point, variance=np.array([variance]))
        return accept(rng, point, replace(point, x=new[None]), np.array([ratio]), np.zeros(1))


class SequentialMetropolis(UniformMetropolis):
    """Metropolis whose decision is a sequential t test on growing subsets (Korattikara, Chen & Welling 2014).

    The subset doubles until the decision's probability of error is below ``tolerance``, or all rows are used. The test
    uses the control variates: only their residuals are estimated.

    Parameters
    ----------
    tolerance : float
    """

    name = "sequential_test_metropolis"

    def __init__(self, rows: Rows, subset: int, scale: float | None = None, tolerance: float = 0.01) -> None:
        super().__init__(rows, subset, scale)
        self._tolerance = tolerance

    def symmetric_log_ratio(self, x: Array, new: Array, rng: np.random.Generator) -> float:
        """Return the estimate of the log ratio that a test uses."""
        known, drawn, _ = self._test(x, new, np.log(rng.random()), rng)
        return known + self.rows.n * float(drawn.mean())

    def _test(self, x: Array, new: Array, log_u: float, rng: np.random.Generator) -> tuple[float, Array, float]:
        """Return the known part of the log ratio, the changes of residuals drawn, and the standard error of their mean."""
        rows, known = self.rows, known_difference(self.rows, x, new)
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

    def move(self, rng: np.random.Generator, point: Any, parameters: Any) -> tuple[Any, KernelInfo]:
        x, new = point.x[0], self.walk(point.x[0], rng)
        log_u = float(np.log(rng.random()))
        known, drawn, error = self._test(x, new, log_u, rng)
        ratio = known + self.rows.n * float(drawn.mean())
        accepted = ratio > log_u
        found = np.array([(self.rows.n * error) ** 2]), np.array([len(drawn)])
        moved = MovedPoints((new if accepted else x)[None], *found)
        return moved, one_step(float(acceptance_probability(ratio)), accepted)

    def statistics(self, before: Any, after: Any, parameters: Any, info: KernelInfo) -> Mapping[str, Any]:
        return {"log_likelihood_variance": after.variance, "subset_size": after.subset_size}
