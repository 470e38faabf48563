r"""Sub-sampling that leaves the posterior exactly invariant: scalable Metropolis–Hastings and TunaMH.

Scalable MH (Cornish et al. 2019) factorises the acceptance: min(1, e^{Δ(rest + Σqᵢ)}) ∏ min(1, e^{Δrᵢ}) with rᵢ = ℓᵢ − qᵢ.
The product is the probability that no event occurs among independent ones of rate (−Δrᵢ)₊, and since
|Δrᵢ| ≤ cᵢ (‖z‖³ + ‖z'‖³), z = L⁻¹(θ − θ̂), those are found by thinning a Poisson number of proposals of rate Σcᵢ (…): less
than one row a step where N is large. Moves within ``NEAR`` of the typical distance have smaller cᵢ than others.

TunaMH (Zhang, Cooper & De Sa 2020) draws a Poisson minibatch whose law depends on both ends of the move and corrects for it
in the ratio. With |ℓᵢ(θ) − ℓᵢ(θ')| ≤ cᵢ M, M = ‖θ − θ'‖, C = Σcᵢ: row i comes Poisson(χcᵢCM² + ½(Dᵢ + cᵢM)) times, with
Dᵢ = ℓᵢ(θ) − ℓᵢ(θ'), and the log ratio is 2 Σ artanh(−Dᵢ / (cᵢM(1 + 2χCM))) over the minibatch. The prior stays outside.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from ppl_backends.kernels.algorithm import COMMON_STATS, Statistics
from ppl_backends.kernels.subsampling.compiled_kernels import scalable_walk
from ppl_backends.kernels.subsampling.rows import Index, Rows
from ppl_backends.targets.protocol import Array

__all__ = ["Scalable", "Tuna"]


class ExactState(NamedTuple):
    """One chain: point, its whitened distance from the mode, and the part of the log density that needs no rows."""

    x: Array
    z: Array
    known: float


NEAR = 4.0  # beyond √d


class RowSampler:
    """Rows with probability cᵢ/Σc, by inversion on a table with one entry per row (O(log N) a draw)."""

    def __init__(self, bounds: Array) -> None:
        self.bounds, self.ends = bounds, np.cumsum(bounds)
        self.total = float(self.ends[-1])

    def draw(self, n: int, rng: np.random.Generator) -> Index:
        """``n`` rows."""
        return np.searchsorted(self.ends, rng.random(n) * self.total, side="right")


class _Exact:
    """What both share."""

    batched = False
    approximate = False
    name: str
    stats: ClassVar[dict[str, type]] = {**COMMON_STATS, "accepted": bool, "rows": int}

    def __init__(self, rows: Rows, scale: float | None) -> None:
        self.rows, self.dim = rows, rows.dim
        self.scale = 2.38 / np.sqrt(rows.dim) if scale is None else float(scale)
        self.attributes: dict[str, Any] = {}

    def initial_point(self, rng: np.random.Generator) -> Array:
        """A draw of the Laplace approximation at the expansion point."""
        return self.rows.expansion_point.sample(1, rng)[0]

    def start(self, x: Array, rng: np.random.Generator) -> ExactState:
        """The state at ``x``."""
        return self._at(x)

    def refresh(self, state: ExactState, rng: np.random.Generator) -> ExactState:
        """The densities anew where the other coordinates of a block have moved."""
        return self._at(state.x)

    def _at(self, x: Array) -> ExactState:
        raise NotImplementedError

    def _walk(self, state: ExactState, rng: np.random.Generator) -> Array:
        x: Array = state.x + self.scale * (self.rows.expansion_point.factor @ rng.standard_normal(self.dim))
        return x

    @staticmethod
    def _statistics(accept: float, accepted: bool, tune: bool, rows: int) -> Statistics:
        return {"accept": accept, "approximate": 0, "tune": tune, "accepted": accepted, "rows": rows}


class Scalable(_Exact):
    """Scalable Metropolis–Hastings with second-order control variates.

    Parameters
    ----------
    rows : Rows
    scale : float, optional
    independent : bool
        Proposals of the Laplace approximation in place of a random walk.
    steps : int
        Steps a draw, in one compiled call where the prior is Gaussian.
    """

    name = "scalable_metropolis"

    def __init__(self, rows: Rows, scale: float | None = None, independent: bool = False, steps: int = 1) -> None:
        super().__init__(rows, scale)
        self._radius = np.sqrt(getattr(rows, "whole", rows).dim) + NEAR
        self.near, self.far = (RowSampler(rows.third_order_bounds(radius)) for radius in (self._radius, np.inf))
        self._independent, self._steps, self._compiled = independent, steps, rows.compiled()
        self.attributes["steps_per_draw"] = steps

    def _at(self, x: Array) -> ExactState:
        delta = x - self.rows.expansion_point.mean
        return ExactState(
            x, self.rows.standardise(x), self.rows.expansion.at(delta) + self.rows.log_prior_and_potentials(x)
        )

    def step(self, state: ExactState, rng: np.random.Generator, tune: bool) -> tuple[ExactState, Statistics]:
        """Proposals; rows are looked at only where the known part accepts."""
        if self._compiled is not None:
            delta = state.x - self.rows.expansion_point.mean
            tables = (self.near.bounds, self.near.ends, self.far.bounds, self.far.ends, self._radius)
            accept, moves, looked = scalable_walk(
                rng, self._steps, *self._compiled, self.scale, self._independent, *tables, delta
            )
            x = self.rows.expansion_point.mean + delta
            return state._replace(x=x), self._statistics(accept, moves > 0, tune, looked)
        for _ in range(self._steps):
            state, stats = self._one(state, rng, tune)
        return state, stats

    def _one(self, state: ExactState, rng: np.random.Generator, tune: bool) -> tuple[ExactState, Statistics]:
        expansion_point, proposals = self.rows.expansion_point, 0.0
        if self._independent:
            z, old = rng.standard_normal(self.dim), expansion_point.whiten(state.x)
            new = self._at(expansion_point.mean + expansion_point.factor @ z)
            proposals = 0.5 * float(z @ z - old @ old)
        else:
            new = self._at(self._walk(state, rng))
        accept = float(np.exp(min(new.known - state.known + proposals, 0.0)))
        accepted, looked = bool(rng.random() < accept), 0
        if accepted:
            here, there = float(state.z @ state.z), float(new.z @ new.z)
            sampler = self.near if max(here, there) <= self._radius**2 else self.far
            reach = here**1.5 + there**1.5
            looked = int(rng.poisson(sampler.total * reach))
            if looked:
                index = sampler.draw(looked, rng)
                drop = self.rows.residuals(state.x, index) - self.rows.residuals(new.x, index)
                accepted = not bool((rng.random(looked) * sampler.bounds[index] * reach < drop).any())
        return (new if accepted else state), self._statistics(accept, accepted, tune, looked)


class Tuna(_Exact):
    """TunaMH.

    Parameters
    ----------
    rows : Rows
    chi : float
        χ: larger batches and a smaller loss of acceptance.
    scale : float, optional
    """

    name = "tuna_metropolis"

    def __init__(self, rows: Rows, chi: float = 0.01, scale: float | None = None) -> None:
        super().__init__(rows, 0.5 * 2.38 / np.sqrt(rows.dim) if scale is None else scale)
        self._sampler, self._chi = RowSampler(rows.lipschitz()), chi

    def _at(self, x: Array) -> ExactState:
        return ExactState(x, x, self.rows.log_prior_and_potentials(x))

    def step(self, state: ExactState, rng: np.random.Generator, tune: bool) -> tuple[ExactState, Statistics]:
        """One random-walk proposal."""
        new = self._at(self._walk(state, rng))
        total, distance = self._sampler.total, float(np.linalg.norm(new.x - state.x))
        pull = self._chi * total * distance**2  # χCM², per unit of cᵢ
        looked = int(rng.poisson(total * (pull + distance)))
        index = self._sampler.draw(looked, rng)
        drop = -self.rows.differences(state.x, new.x, index)
        bounds = self._sampler.bounds[index]
        kept = rng.random(looked) * bounds * (pull + distance) < pull * bounds + 0.5 * (drop + bounds * distance)
        ratio = -drop[kept] / (bounds[kept] * (distance + 2 * pull))
        accept = float(np.exp(min(2 * float(np.arctanh(ratio).sum()) + new.known - state.known, 0.0)))
        accepted = bool(rng.random() < accept)
        return (new if accepted else state), self._statistics(accept, accepted, tune, looked)
