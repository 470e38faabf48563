r"""Sub-sampling that leaves the posterior exactly invariant: scalable Metropolis–Hastings and TunaMH.

Scalable MH (Cornish et al. 2019) factorises the acceptance: min(1, e^{Δ(rest + Σqᵢ)}) ∏ min(1, e^{Δrᵢ}) with rᵢ = ℓᵢ − qᵢ.
The product is the probability that no event occurs among independent ones of rate (−Δrᵢ)₊. Because |Δrᵢ| ≤ cᵢ (‖z‖³ +
‖z'‖³), z = L⁻¹(θ − θ̂), these are found by thinning a Poisson number of proposals of rate Σcᵢ (…), which needs less
than one row per step for large N. Moves within ``NEAR`` of the typical distance have smaller cᵢ than others.

TunaMH (Zhang, Cooper & De Sa 2020) draws a Poisson minibatch whose distribution depends on both ends of the move and
corrects for it in the ratio. With |ℓᵢ(θ) − ℓᵢ(θ')| ≤ cᵢ M, M = ‖θ − θ'‖, C = Σcᵢ, row i occurs Poisson(χcᵢCM² + ½(Dᵢ +
cᵢM)) times, with Dᵢ = ℓᵢ(θ) − ℓᵢ(θ'), and the log ratio is 2 Σ artanh(−Dᵢ / (cᵢM(1 + 2χCM))) over the minibatch. The
prior is not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_backends.kernels.protocol import KernelInfo, acceptance_probability
from ppl_backends.kernels.subsampling.compiled_kernels import Bounds, Proposals, SameTypes, scalable_walk
from ppl_backends.kernels.subsampling.kernel import RowsKernel, one_step
from ppl_backends.kernels.subsampling.rows import Index, Rows
from ppl_backends.numerics.population import Population
from ppl_backends.targets.protocol import Array


@dataclass(frozen=True)
class ExactPoints(Population):
    """Points with the figures that need no rows.

    Attributes
    ----------
    z : ndarray (n, whole dim)
        Whitened distance from the mode.
    known : ndarray (n,)
        The part of the log density that needs no rows.
    """

    z: Array
    known: Array


NEAR = 4.0  # beyond √d


class RowSampler:
    """Rows with probability cᵢ/Σc, by inversion on a table with one entry per row (O(log N) per draw)."""

    def __init__(self, bounds: Array) -> None:
        self.bounds, self.ends = bounds, np.cumsum(bounds)
        self.total = float(self.ends[-1])

    def draw(self, n: int, rng: np.random.Generator) -> Index:
        """Draw ``n`` rows."""
        return np.searchsorted(self.ends, rng.random(n) * self.total, side="right")


class _Exact(RowsKernel):
    """Base of both exact kernels."""

    stats: Mapping[str, type] = {"rows": int}

    def begin(self, x: Array, rng: np.random.Generator) -> ExactPoints:
        return self.at(x)

    def refresh(self, population: ExactPoints, rng: np.random.Generator) -> ExactPoints:
        return self.at(population.x[0])

    def at(self, x: Array) -> ExactPoints:
        """Return the record of a point ``(dim,)``."""
        raise NotImplementedError

    def statistics(self, before: Any, after: Any, parameters: Any, info: KernelInfo) -> Mapping[str, Any]:
        return {"rows": info.evaluations}


class Scalable(_Exact):
    """Scalable Metropolis–Hastings with second-order control variates.

    Parameters
    ----------
    rows : Rows
    scale : float, optional
    independent : bool
        Whether proposals are draws of the Laplace approximation instead of a random walk.
    steps : int
        Steps per draw, in one compiled call if the prior is Gaussian.
    """

    name = "scalable_metropolis"

    def __init__(self, rows: Rows, scale: float | None = None, independent: bool = False, steps: int = 1) -> None:
        super().__init__(rows, scale)
        self._radius = float(np.sqrt(rows.whole.dim) + NEAR)
        self.near, self.far = (RowSampler(rows.third_order_bounds(radius)) for radius in (self._radius, np.inf))
        self._walked = SameTypes(scalable_walk)
        self._proposals, self._steps, self._compiled = Proposals(self.scale, independent), steps, rows.compiled()
        mode = rows.expansion_point.mean
        self._at_mode = rows.expansion.value + rows.log_prior_and_potentials(mode) if self._compiled else 0.0
        self.attributes["steps_per_draw"] = steps

    def at(self, x: Array) -> ExactPoints:
        known = self.rows.expansion.at(x - self.rows.expansion_point.mean) + self.rows.log_prior_and_potentials(x)
        return ExactPoints(x[None], self.rows.standardise(x)[None], np.array([known]))

    def move(self, rng: np.random.Generator, point: ExactPoints, parameters: Any) -> tuple[ExactPoints, KernelInfo]:
        """Make proposals; evaluate rows only if the known part accepts."""
        if self._compiled is not None:
            return self.run(rng, point)
        accept, accepted, looked = 0.0, False, 0
        for _ in range(self._steps):
            point, probability, moved, rows = self.single(rng, point)
            accept, accepted, looked = accept + probability / self._steps, accepted or moved, looked + rows
        return point, one_step(accept, accepted, looked)

    def run(self, rng: np.random.Generator, point: ExactPoints) -> tuple[ExactPoints, KernelInfo]:
        """Make all steps of a draw in one compiled call."""
        mode, z = self.rows.expansion_point.mean, point.z.copy()
        delta = point.x[0] - mode
        limits = Bounds(self.near.bounds, self.near.ends, self.far.bounds, self.far.ends, self._radius)
        found = self._walked(rng, self._steps, self._compiled, self._proposals, limits, delta, z[0])
        accept, moves, looked, value = found
        moved = ExactPoints((mode + delta)[None], z, np.array([value + self._at_mode]))
        return moved, one_step(accept, moves > 0, looked)

    def single(self, rng: np.random.Generator, point: ExactPoints) -> tuple[ExactPoints, float, bool, int]:
        """Make one step; return its acceptance by the known part, whether it was accepted, and the number of rows."""
        q, x, correction = self.rows.expansion_point, point.x[0], 0.0
        if self._proposals.independent:
            z, old = rng.standard_normal(self.dim), q.whiten(x)
            new = self.at(q.mean + q.factor @ z)
            correction = 0.5 * float(z @ z - old @ old)
        else:
            new = self.at(self.walk(x, rng))
        accept = float(acceptance_probability(new.known[0] - point.known[0] + correction))
        accepted, looked = bool(rng.random() < accept), 0
        if accepted:
            here, there = float(point.z[0] @ point.z[0]), float(new.z[0] @ new.z[0])
            sampler = self.near if max(here, there) <= self._radius**2 else self.far
            reach = here**1.5 + there**1.5
            looked = int(rng.poisson(sampler.total * reach))
            if looked:
                index = sampler.draw(looked, rng)
                drop = self.rows.residuals(x, index) - self.rows.residuals(new.x[0], index)
                accepted = not bool((rng.random(looked) * sampler.bounds[index] * reach < drop).any())
        return (new if accepted else point), accept, accepted, looked


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

    def at(self, x: Array) -> ExactPoints:
        return ExactPoints(x[None], x[None], np.array([self.rows.log_prior_and_potentials(x)]))

    def move(self, rng: np.random.Generator, point: ExactPoints, parameters: Any) -> tuple[ExactPoints, KernelInfo]:
        x, new = point.x[0], self.at(self.walk(point.x[0], rng))
        total, distance = self._sampler.total, float(np.linalg.norm(new.x[0] - x))
        pull = self._chi * total * distance**2  # χCM², per unit of cᵢ
        looked = int(rng.poisson(total * (pull + distance)))
        index = self._sampler.draw(looked, rng)
        drop = -self.rows.differences(x, new.x[0], index)
        bounds = self._sampler.bounds[index]
        kept = rng.random(looked) * bounds * (pull + distance) < pull * bounds + 0.5 * (drop + bounds * distance)
        ratio = -drop[kept] / (bounds[kept] * (distance + 2 * pull))
        log_ratio = 2 * float(np.arctanh(ratio).sum()) + float(new.known[0] - point.known[0])
        accept = float(acceptance_probability(log_ratio))
        accepted = bool(rng.random() < accept)
        return (new if accepted else point), one_step(accept, accepted, looked)
