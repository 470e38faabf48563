r"""Informed sub-sampling MCMC (Maire, Friel & Alquier 2019).

The chain moves (θ, U), U a subset of n of the N rows. A step is

    U' = U with one row swapped for another, accepted with min{1, ν(U')/ν(U)}, ν(U) = exp(−‖z(U)‖²/(2s²))    (1)
    θ' = θ + h L ε, ε ~ N(0, I), accepted with min{1, π̃(θ' | U) / π̃(θ | U)}, π̃(θ | U) = p(θ) L(θ; U)^{N/n}  (2)

The summary statistics are the scores at an expansion point, whitened: z(U) = mean_U Zᵢ − mean Zᵢ,
Zᵢ = N Lᵀ∇ℓᵢ(θ̂), so that z(U) *is*, to first order, the shift of the surrogate's mode in posterior standard deviations.
Weighted subsets have sd s in every coordinate, which inflates the posterior's sds by √(1 + s²); uniform ones have √(N/n).

With the gradient correction −z(U)ᵀL⁻¹(θ − θ̂) the surrogate's gradient at θ̂ is exact. This removes the shift. The
remaining error is the relative error of the Hessian, √(v/n), with v the variance over rows of their whitened
curvatures: 2 for a logistic regression with normal covariates, tens if few rows hold most of the information, as with
rare events. Weights should then be left out: subsets of uninformative rows have z(U) near zero too, and uniform
subsets move at every step. The curvature correction makes the Hessian exact as well: the surrogate is then Σ qᵢ +
(N/n) Σ_U (ℓᵢ − qᵢ) − σ̂²/2, the estimate of :mod:`~ppl_backends.kernels.subsampling.control`, with errors of third
order only, at the cost of two more evaluations of the subset if rows have no known linear predictor. The term −σ̂²/2
is needed: (N/n)(ℓᵢ − qᵢ) of one row far out grows like (N/n) times half the row's curvature, which can exceed that of
all data, and the surrogate would then have no maximum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.kernels.protocol import KernelInfo, accept
from ppl_backends.kernels.subsampling.control import estimate_of
from ppl_backends.kernels.subsampling.kernel import RowsKernel
from ppl_backends.kernels.subsampling.rows import BLOCK, Index, Rows
from ppl_backends.numerics.jit import jit
from ppl_backends.numerics.population import Population
from ppl_backends.targets.protocol import Array

ANNEALING = 1_000_000
CHUNK = 20_000
SWAPS_NEEDED = 0.05  # accepted swaps per step
FEWEST_SWAPS = 0.02
MOST_SWAPS = 1000
RENEWAL = 100  # steps in which the number of swaps is that of the rows of a uniform subset
SPREAD_SUBSETS = 30
CURVATURE_ROWS = 100_000
CURVATURE_DIRECTIONS = 8


@jit
def swap(summaries, subset, member, seen, z, inverse, uniforms):
    """Swap rows of ``subset`` for rows outside; accept each swap with probability min{1, exp(inverse (‖z‖² − ‖z'‖²)/2)}."""
    n_rows, n = len(member), len(subset)
    moved, fresh = 0, 0
    norm = 0.0
    for j in range(len(z)):
        norm += z[j] * z[j]
    for k in range(len(uniforms)):
        place, row = int(uniforms[k, 0] * n), int(uniforms[k, 1] * n_rows)
        if member[row]:
            continue
        old, new_norm = subset[place], 0.0
        for j in range(len(z)):
            value = z[j] + (np.float64(summaries[row, j]) - np.float64(summaries[old, j])) / n
            new_norm += value * value
        if uniforms[k, 2] < np.exp(0.5 * inverse * (norm - new_norm)):
            for j in range(len(z)):
                z[j] += (np.float64(summaries[row, j]) - np.float64(summaries[old, j])) / n
            norm = new_norm
            member[old], member[row], subset[place] = False, True, row
            if not seen[row]:
                seen[row] = True
                fresh += 1
            moved += 1
    return moved, fresh


def whitened_scores(rows: Rows) -> NDArray[np.float32]:
    """Return Zᵢ = N Lᵀ∇ℓᵢ(θ̂) minus their mean ``(N, d)``."""
    scores = rows.scores()
    out = np.empty(scores.shape, dtype=np.float32)
    centre = scores.mean(axis=0)
    for start in range(0, rows.n, BLOCK):
        out[start : start + BLOCK] = rows.n * (scores[start : start + BLOCK] - centre) @ rows.expansion_point.factor
    return out


def curvature_variance(rows: Rows, rng: np.random.Generator) -> float:
    """Return the variance v over rows of −N ∂²ℓᵢ at the mode in whitened directions; subsets of n have the error √(v/n)."""
    index = rng.choice(rows.n, size=min(rows.n, CURVATURE_ROWS), replace=False)
    mode, found = rows.expansion_point.mean, []
    for _ in range(CURVATURE_DIRECTIONS):
        z = rng.standard_normal(rows.dim)
        step = rows.expansion_point.factor @ (z / np.linalg.norm(z))
        second = rows.differences(mode, mode + step, index) + rows.differences(mode, mode - step, index)
        found.append(float(np.var(rows.n * second)))
    return float(np.mean(found))


@dataclass(frozen=True)
class InformedPoints(Population):
    """Points, each with its own subset, whose arrays change in place.

    Attributes
    ----------
    subset : ndarray (k, n) of int
    member, seen : ndarray (k, N) of bool
        Rows in the subset, and rows that were in it at any time.
    z : ndarray (k, d)
    log_density : ndarray (k,)
        Log of the surrogate at the point, up to a constant.
    distinct : ndarray (k,) of int
        Number of rows that were in it at any time.
    swapped : ndarray (k,)
        Acceptance rate of the last swaps.
    """

    subset: Index
    member: NDArray[np.bool_]
    seen: NDArray[np.bool_]
    z: Array
    log_density: Array
    distinct: Index
    swapped: Array


class Informed(RowsKernel):
    """Informed sub-sampling on rows.

    Parameters
    ----------
    rows : Rows
    subset : int
        n.
    spread : float
        s; infinite for uniform subsets.
    swaps : int, optional
        Swap proposals per step; automatic by default.
    correction : {None, "gradient", "curvature"}
        Correction of the surrogate at the mode: of its gradient, or of its gradient and its Hessian.
    summaries : array (N, k), optional
        Replace the whitened scores.
    rng : Generator
        For the calibration of the number of swaps.

    Attributes
    ----------
    attributes : dict
        What a run stores: ``z_norm_uniform`` (root mean square of ‖z(U)‖ over uniform subsets), ``sd_inflation_predicted``,
        ``hessian_error`` (root mean square over subsets of the relative error of the curvature in a random direction, that
        of their weights included; 0 with the curvature correction), ``rows_per_step``, and ``log_likelihood_spread`` and
        ``log_likelihood_spread_uniform``, standard deviations of the log surrogate over subsets.
    """

    name, exact = "informed_subsampling", False
    stats: Mapping[str, type] = {
        "z_norm": float,
        "z_first": float,
        "swap_accept": float,
        "distinct_rows": int,
        "log_likelihood_error": float,
    }

    def __init__(
        self,
        rows: Rows,
        subset: int,
        *,
        spread: float,
        rng: np.random.Generator,
        swaps: int | None = None,
        correction: str | None = None,
        summaries: Array | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__(rows, scale)
        self.subset, self.spread, self.correction = subset, spread, correction
        self._scores = whitened_scores(rows) if summaries is None or correction == "gradient" else None
        chosen = self._scores if summaries is None else summaries
        self._summaries: NDArray[np.float32] = np.asarray(chosen, dtype=np.float32)
        self._inverse = 0.0 if np.isinf(spread) else spread**-2
        self._prepared = self._annealed(rng)
        rate = self._swap_rate(rng)
        needed = SWAPS_NEEDED / max(rate, 1e-9) if self._inverse else subset / RENEWAL
        automatic = int(np.clip(np.ceil(needed), 1, MOST_SWAPS))
        self.swaps, self.swap_rate = (automatic if swaps is None else int(swaps)), rate
        self.attributes = {
            "subset_size": subset,
            "spread": float(spread) if np.isfinite(spread) else float(np.sqrt(rows.n / subset)),
            "swaps": self.swaps,
            "gradient_correction": int(correction is not None),
            "curvature_correction": int(correction == "curvature"),
            "z_norm_uniform": float(np.sqrt(np.sum(self._summaries.var(axis=0, dtype=np.float64)) / subset)),
            "sd_inflation_predicted": self.inflation,
            "rows_per_step": 2 * subset,
        }
        self.attributes |= self._spreads(rng)

    @property
    def inflation(self) -> float:
        """Return the factor by which, in theory, the posterior's sds are too large."""
        if self.correction is not None:
            return 1.0
        return float(np.sqrt(1 + (self.rows.n / self.subset if np.isinf(self.spread) else self.spread**2)))

    def _fresh(self, rng: np.random.Generator) -> tuple[Index, NDArray[np.bool_], Array]:
        subset = rng.choice(self.rows.n, size=self.subset, replace=False)
        member = np.zeros(self.rows.n, dtype=np.bool_)
        member[subset] = True
        return subset, member, self._summaries[subset].mean(axis=0, dtype=np.float64)

    def _annealed(self, rng: np.random.Generator) -> tuple[Index, NDArray[np.bool_], Array]:
        """Draw a subset from its weighted distribution, by swaps under a weight that grows geometrically."""
        subset, member, z = self._fresh(rng)
        if self._inverse:
            seen, chunks = np.ones(self.rows.n, dtype=np.bool_), ANNEALING // CHUNK
            for k in range(chunks):
                inverse = self._inverse * 10.0 ** min(0.0, -4 + 5 * k / chunks)
                swap(self._summaries, subset, member, seen, z, inverse, rng.random((CHUNK, 3)))
        return subset, member, z

    def _spreads(self, rng: np.random.Generator) -> dict[str, float]:
        """Return sds over subsets of the log surrogate at a point of the posterior, for weighted and for uniform subsets."""
        x, mode = self.rows.expansion_point.sample(1, rng)[0], self.rows.expansion_point.mean
        subset, member, z = self._prepared[0].copy(), self._prepared[1].copy(), self._prepared[2].copy()
        seen = np.ones(self.rows.n, dtype=np.bool_)
        weighted, uniform, errors = np.zeros((3, SPREAD_SUBSETS))
        for k in range(SPREAD_SUBSETS):
            swap(self._summaries, subset, member, seen, z, self._inverse, rng.random((CHUNK, 3)))
            weighted[k] = self._surrogate(x, subset, z) - self.rows.log_prior_and_potentials(x)
            plain = rng.choice(self.rows.n, size=self.subset, replace=False)
            uniform[k] = self.rows.n / self.subset * float(self.rows.differences(mode, x, plain).sum())
            if self.correction != "curvature":
                errors[k] = self._hessian_error(subset, rng)
        return {
            "log_likelihood_spread": float(weighted.std()),
            "log_likelihood_spread_uniform": float(uniform.std()),
            "hessian_error": float(np.sqrt(np.mean(errors**2))),
        }

    def _hessian_error(self, subset: Index, rng: np.random.Generator) -> float:
        """Return the relative error of the surrogate's curvature along one posterior sd in a random direction."""
        rows, z = self.rows, rng.standard_normal(self.dim)
        step, still = rows.expansion_point.factor @ (z / np.linalg.norm(z)), np.zeros(self.dim)
        found = sum(
            float(rows.differences(rows.expansion_point.mean, rows.expansion_point.mean + h, subset).sum())
            for h in (step, -step)
        )
        wanted = rows.expansion.at(step) + rows.expansion.at(-step) - 2 * rows.expansion.at(still)
        return rows.n / self.subset * found - wanted

    def _swap_rate(self, rng: np.random.Generator) -> float:
        subset, member, z = (array.copy() for array in self._prepared)
        seen = np.ones(self.rows.n, dtype=np.bool_)
        return swap(self._summaries, subset, member, seen, z, self._inverse, rng.random((CHUNK, 3)))[0] / CHUNK

    def symmetric_log_ratio(self, x: Array, new: Array, rng: np.random.Generator) -> float:
        subset, member, z = self._prepared[0].copy(), self._prepared[1].copy(), self._prepared[2].copy()
        seen = np.ones(self.rows.n, dtype=np.bool_)
        swap(self._summaries, subset, member, seen, z, self._inverse, rng.random((CHUNK, 3)))
        return self._surrogate(new, subset, z) - self._surrogate(x, subset, z)

    def begin(self, x: Array, rng: np.random.Generator) -> InformedPoints:
        subset, member, z = self._annealed(rng)
        own, value = (subset[None], member[None], member[None].copy()), np.array([self._surrogate(x, subset, z)])
        return InformedPoints(x[None], *own, z[None], value, np.array([self.subset]), np.full(1, np.nan))

    def refresh(self, population: InformedPoints, rng: np.random.Generator) -> InformedPoints:
        value = self._surrogate(population.x[0], population.subset[0], population.z[0])
        return replace(population, log_density=np.array([value]))

    def _surrogate(self, x: Array, subset: Index, z: Array) -> float:
        mode, ratio = self.rows.expansion_point.mean, self.rows.n / len(subset)
        if self.correction == "curvature":
            return estimate_of(self.rows, x, self.rows.residuals(x, subset))[0]
        value = self.rows.log_prior_and_potentials(x) + ratio * float(self.rows.differences(mode, x, subset).sum())
        if self.correction == "gradient":
            assert self._scores is not None
            shift = z if self._scores is self._summaries else self._scores[subset].mean(axis=0, dtype=np.float64)
            value -= float(shift @ self.rows.expansion_point.whiten(x))
        return value

    def move(self, rng: np.random.Generator, point: InformedPoints, parameters: Any) -> tuple[Any, KernelInfo]:
        """Make swaps, then a random-walk proposal of θ."""
        [subset], [z], uniforms = point.subset, point.z, rng.random((self.swaps, 3))
        # (1)
        moved, fresh = swap(self._summaries, subset, point.member[0], point.seen[0], z, self._inverse, uniforms)
        value = np.array([self._surrogate(point.x[0], subset, z)]) if moved else point.log_density
        new = self.walk(point.x[0], rng)  # (2)
        proposed, count = np.array([self._surrogate(new, subset, z)]), np.array([moved / self.swaps])
        ends = Ends(point.x, value), Ends(new[None], proposed)
        after, info = accept(rng, *ends, self.log_ratio(*ends), np.zeros(1))
        kept = {"x": after.x, "log_density": after.log_density}
        return replace(point, **kept, distinct=point.distinct + fresh, swapped=count), info

    def statistics(self, before: Any, after: Any, parameters: Any, info: KernelInfo) -> Mapping[str, Any]:
        [z], [x] = after.z, after.x
        error = 0.0
        if self.correction is None:  # z is the shift of the surrogate's mode
            own = self._scores is self._summaries
            error = float(z @ self.rows.expansion_point.whiten(x)) if own else float("nan")
        return {
            "z_norm": float(np.sqrt(z @ z)),
            "z_first": float(z[0]),
            "swap_accept": after.swapped,
            "distinct_rows": after.distinct,
            "log_likelihood_error": error,
        }


@dataclass(frozen=True)
class Ends(Population):
    """A point with its log density."""

    log_density: Array
    gradient = None
