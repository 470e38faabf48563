r"""Informed sub-sampling MCMC (Maire, Friel & Alquier 2019).

The chain moves (θ, U), U a subset of n of the N rows, under the surrogate p(θ) L(θ; U)^{N/n}, with subsets weighted by
exp(−‖z(U)‖²/(2s²)). The summary statistics are the scores at an expansion point, whitened: z(U) = mean_U Zᵢ − mean Zᵢ,
Zᵢ = N Lᵀ∇ℓᵢ(θ̂), so that z(U) *is*, to first order, the shift of the surrogate's mode in posterior standard deviations.
Weighted subsets have sd s in every coordinate, which inflates the posterior's sds by √(1 + s²); uniform ones have √(N/n).

With the gradient correction the surrogate's gradient at θ̂ is set right, −z(U)ᵀL⁻¹(θ − θ̂) being added: the shift is gone,
what is left is the relative error of the Hessian, √(v/n), v the variance over rows of their whitened curvatures: 2 for a
logistic regression with normal covariates, tens where few rows hold most of the information, as with rare events. Weights
are then better left out: subsets of rows that say nothing have z(U) near zero too, and uniform subsets move at every step.
The curvature correction sets the Hessian right as well: the surrogate is then Σ qᵢ + (N/n) Σ_U (ℓᵢ − qᵢ) − σ̂²/2, the
estimate of :mod:`~ppl_backends.kernels.subsampling.control`, with errors of third order only, at the cost of two more
evaluations of the subset where rows have no known linear predictor. Without −σ̂²/2 one row far out would do: (N/n)(ℓᵢ − qᵢ)
grows like (N/n) times half the row's curvature, which can exceed that of all data, and the surrogate then has no maximum.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from ppl_backends.kernels.algorithm import COMMON_STATS, Statistics
from ppl_backends.kernels.subsampling.control import estimate_of
from ppl_backends.kernels.subsampling.rows import BLOCK, Index, Rows
from ppl_backends.targets.protocol import Array

__all__ = ["Informed", "curvature_variance", "whitened_scores"]

ANNEALING = 1_000_000
CHUNK = 20_000
SWAPS_NEEDED = 0.05  # accepted swaps a step
FEWEST_SWAPS = 0.02
MOST_SWAPS = 1000
RENEWAL = 100  # steps in which as many swaps as a uniform subset has rows are made
SPREAD_SUBSETS = 30
CURVATURE_ROWS = 100_000
CURVATURE_DIRECTIONS = 8


@numba.njit(cache=True, nogil=True)
def swap(summaries, subset, member, seen, z, inverse, uniforms):
    """Swaps of a row in ``subset`` for one outside, each accepted with min{1, exp(inverse (‖z‖² − ‖z'‖²)/2)}."""
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
    """Zᵢ = N Lᵀ∇ℓᵢ(θ̂) less their mean ``(N, d)``."""
    scores = rows.scores()
    out = np.empty(scores.shape, dtype=np.float32)
    centre = scores.mean(axis=0)
    for start in range(0, rows.n, BLOCK):
        out[start : start + BLOCK] = rows.n * (scores[start : start + BLOCK] - centre) @ rows.expansion_point.factor
    return out


def curvature_variance(rows: Rows, rng: np.random.Generator) -> float:
    """Variance v over rows of −N ∂²ℓᵢ at the mode, along directions of one posterior sd: subsets of n err by √(v/n)."""
    index = rng.choice(rows.n, size=min(rows.n, CURVATURE_ROWS), replace=False)
    mode, found = rows.expansion_point.mean, []
    for _ in range(CURVATURE_DIRECTIONS):
        z = rng.standard_normal(rows.dim)
        step = rows.expansion_point.factor @ (z / np.linalg.norm(z))
        second = rows.differences(mode, mode + step, index) + rows.differences(mode, mode - step, index)
        found.append(float(np.var(rows.n * second)))
    return float(np.mean(found))


class InformedState(NamedTuple):
    """One chain. The arrays of the subset are its own and change in place.

    Attributes
    ----------
    x : ndarray (d,)
    subset : ndarray (n,) of int
    member, seen : ndarray (N,) of bool
        Rows in the subset, and rows that ever were.
    z : ndarray (d,)
    value : float
        Log of the surrogate at ``x``, up to a constant.
    distinct : int
        Rows seen.
    """

    x: Array
    subset: Index
    member: NDArray[np.bool_]
    seen: NDArray[np.bool_]
    z: Array
    value: float
    distinct: int


class Informed:
    """Informed sub-sampling on rows.

    Parameters
    ----------
    rows : Rows
    subset : int
        n.
    spread : float
        s; infinite for uniform subsets.
    swaps : int, optional
        Swap proposals a step; automatic by default.
    correction : {None, "gradient", "curvature"}
        What of the surrogate is set right at the mode: its gradient, or its gradient and its Hessian.
    summaries : array (N, k), optional
        In place of the whitened scores.
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

    batched = False
    name, approximate = "informed_subsampling", True
    stats: ClassVar[dict[str, type]] = {
        **COMMON_STATS,
        "accepted": bool,
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
        self.rows, self.dim, self.subset, self.spread, self.correction = rows, rows.dim, subset, spread, correction
        self._scores = whitened_scores(rows) if summaries is None or correction == "gradient" else None
        chosen = self._scores if summaries is None else summaries
        self._summaries: NDArray[np.float32] = np.asarray(chosen, dtype=np.float32)
        self._inverse = 0.0 if np.isinf(spread) else spread**-2
        self.scale = 2.38 / np.sqrt(rows.dim) if scale is None else float(scale)
        self._prepared = self._annealed(rng)
        rate = self._swap_rate(rng)
        needed = SWAPS_NEEDED / max(rate, 1e-9) if self._inverse else subset / RENEWAL
        automatic = int(np.clip(np.ceil(needed), 1, MOST_SWAPS))
        self.swaps, self.swap_rate = (automatic if swaps is None else int(swaps)), rate
        self.attributes: dict[str, Any] = {
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
        """Factor on the posterior's sds that theory predicts."""
        if self.correction is not None:
            return 1.0
        return float(np.sqrt(1 + (self.rows.n / self.subset if np.isinf(self.spread) else self.spread**2)))

    def _fresh(self, rng: np.random.Generator) -> tuple[Index, NDArray[np.bool_], Array]:
        subset = rng.choice(self.rows.n, size=self.subset, replace=False)
        member = np.zeros(self.rows.n, dtype=np.bool_)
        member[subset] = True
        return subset, member, self._summaries[subset].mean(axis=0, dtype=np.float64)

    def _annealed(self, rng: np.random.Generator) -> tuple[Index, NDArray[np.bool_], Array]:
        """A subset from its weighted law, by swaps under a weight that grows geometrically."""
        subset, member, z = self._fresh(rng)
        if self._inverse:
            seen, chunks = np.ones(self.rows.n, dtype=np.bool_), ANNEALING // CHUNK
            for k in range(chunks):
                inverse = self._inverse * 10.0 ** min(0.0, -4 + 5 * k / chunks)
                swap(self._summaries, subset, member, seen, z, inverse, rng.random((CHUNK, 3)))
        return subset, member, z

    def _spreads(self, rng: np.random.Generator) -> dict[str, float]:
        """Standard deviations over subsets of the surrogate's log at a point of the posterior, weighted and uniform."""
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
        """Of the surrogate's curvature along one posterior sd in a random direction, relative to the posterior's."""
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

    def log_ratio(self, x: Array, new: Array, rng: np.random.Generator) -> float:
        """Log ratio of a symmetric move under the surrogate of a subset from its law."""
        subset, member, z = self._prepared[0].copy(), self._prepared[1].copy(), self._prepared[2].copy()
        seen = np.ones(self.rows.n, dtype=np.bool_)
        swap(self._summaries, subset, member, seen, z, self._inverse, rng.random((CHUNK, 3)))
        return self._surrogate(new, subset, z) - self._surrogate(x, subset, z)

    def initial_point(self, rng: np.random.Generator) -> Array:
        """A draw of the Laplace approximation at the expansion point."""
        return self.rows.expansion_point.sample(1, rng)[0]

    def start(self, x: Array, rng: np.random.Generator) -> InformedState:
        """The state at ``x`` with a subset of its own."""
        subset, member, z = self._annealed(rng)
        seen = member.copy()
        return InformedState(x, subset, member, seen, z, self._surrogate(x, subset, z), self.subset)

    def refresh(self, state: InformedState, rng: np.random.Generator) -> InformedState:
        """The same subset where the other coordinates of a block have moved."""
        return state._replace(value=self._surrogate(state.x, state.subset, state.z))

    def _surrogate(self, x: Array, subset: Index, z: Array) -> float:
        mode, ratio = self.rows.expansion_point.mean, self.rows.n / len(subset)
        if self.correction == "curvature":
            return estimate_of(self.rows, x, self.rows.residuals(x, subset)).value
        value = self.rows.log_prior_and_potentials(x) + ratio * float(self.rows.differences(mode, x, subset).sum())
        if self.correction == "gradient":
            assert self._scores is not None
            shift = z if self._scores is self._summaries else self._scores[subset].mean(axis=0, dtype=np.float64)
            value -= float(shift @ self.rows.expansion_point.whiten(x))
        return value

    def _first_order_error(self, state: InformedState) -> float:
        """Of the log surrogate at the state, where z is the shift of its mode."""
        if self.correction is not None:
            return 0.0
        if self._scores is not self._summaries:
            return float("nan")
        return float(state.z @ self.rows.expansion_point.whiten(state.x))

    def step(self, state: InformedState, rng: np.random.Generator, tune: bool) -> tuple[InformedState, Statistics]:
        """Swaps, then a random-walk proposal of θ."""
        uniforms = rng.random((self.swaps, 3))
        moved, fresh = swap(self._summaries, state.subset, state.member, state.seen, state.z, self._inverse, uniforms)
        value = self._surrogate(state.x, state.subset, state.z) if moved else state.value
        new = state.x + self.scale * (self.rows.expansion_point.factor @ rng.standard_normal(self.dim))
        proposed = self._surrogate(new, state.subset, state.z)
        log_ratio = proposed - value
        accept = float(np.exp(min(log_ratio, 0.0))) if log_ratio == log_ratio else 0.0
        accepted = bool(rng.random() < accept)
        distinct = state.distinct + fresh
        stats = {
            "accept": accept,
            "approximate": 1,
            "tune": tune,
            "accepted": accepted,
            "z_norm": float(np.sqrt(state.z @ state.z)),
            "z_first": float(state.z[0]),
            "swap_accept": moved / self.swaps,
            "distinct_rows": distinct,
            "log_likelihood_error": self._first_order_error(state),
        }
        x, value = (new, proposed) if accepted else (state.x, value)
        return state._replace(x=x, value=value, distinct=distinct), stats
