"""Base of kernels on the rows of a likelihood: a record for one point, random-walk proposals, and periodic checks.

Such a kernel contains its rows and is its own density: it provides the record of a point and the starting points of
chains. Its steps cost microseconds. Points are moved one after the other. If the rows are compiled, a draw is a run of
several steps, which tests compare with the same number of single steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ppl_backends.kernels.algorithm import Algorithm, ChainState, Statistics
from ppl_backends.kernels.protocol import Kernel, KernelInfo, KernelParameters, acceptance_probability
from ppl_backends.kernels.subsampling.rows import Rows
from ppl_backends.numerics.population import concatenate
from ppl_backends.targets.protocol import Array

CHECK_FACTOR = 20
_ZERO = np.zeros(1)


class RowsKernel(Kernel):
    """A kernel on rows.

    Parameters
    ----------
    rows : Rows
    scale : float, optional
        Scale of proposals in whitened coordinates, 2.38/√d by default.

    Attributes
    ----------
    attributes : dict
        Attributes that a run stores.
    check_every : int
        Draws between estimates of E|a − â|; 0 for none.
    """

    batched = False
    stats: Mapping[str, type] = {}
    check_every = 0

    def __init__(self, rows: Rows, scale: float | None = None) -> None:
        super().__init__()
        self.rows, self.dim = rows, rows.dim
        self.scale = float(2.38 / np.sqrt(rows.dim)) if scale is None else float(scale)
        self.attributes: dict[str, Any] = {}

    # -- as a density ----------------------------------------------------------------------------------------------------

    def initial_point(self, rng: np.random.Generator) -> Array:
        """Return a draw of the Laplace approximation at the expansion point."""
        return self.rows.expansion_point.sample(1, rng)[0]

    def parameters(self) -> KernelParameters:
        """Return the expansion point's metric and the scale."""
        return KernelParameters(self.rows.expansion_point, self.scale)

    def __call__(self, x: Array, rng: Any) -> Any:
        """Return the records of points ``(n, dim)``."""
        return self.start(x, rng)

    def start(self, x: Array, rng: Any) -> Any:
        """Return the records of points ``(n, dim)``."""
        return concatenate([self.begin(point, rng) for point in x])

    def begin(self, x: Array, rng: np.random.Generator) -> Any:
        """Return the record of one point ``(dim,)``."""
        raise NotImplementedError

    def refresh(self, population: Any, rng: Any) -> Any:
        """Return the record of the same point, including auxiliary variables, after other coordinates of a block moved."""
        raise NotImplementedError

    # -- as a kernel -----------------------------------------------------------------------------------------------------

    def step(self, rng: Any, population: Any, density: Any, parameters: KernelParameters) -> tuple[Any, KernelInfo]:
        if len(population.x) == 1:
            return self.move(rng, population, parameters)
        found = [self.move(rng, population.take([i]), parameters) for i in range(len(population.x))]
        infos = zip(*(info for _, info in found), strict=True)
        return concatenate([one for one, _ in found]), KernelInfo(*(np.concatenate(each) for each in infos))

    def move(self, rng: np.random.Generator, point: Any, parameters: KernelParameters) -> tuple[Any, KernelInfo]:
        """Move a population of one."""
        raise NotImplementedError

    def walk(self, x: Array, rng: np.random.Generator) -> Array:
        """Return a random-walk proposal from ``x``."""
        new: Array = x + self.scale * (self.rows.expansion_point.factor @ rng.standard_normal(self.dim))
        return new

    def symmetric_log_ratio(self, x: Array, new: Array, rng: np.random.Generator) -> float:
        """Return an estimate of the log ratio of a symmetric move, on a fresh subset."""
        raise NotImplementedError

    def statistics(self, before: Any, after: Any, parameters: Any, info: KernelInfo) -> Mapping[str, Any]:
        return {}


def one_step(accept: float, accepted: bool, evaluations: float = 1.0) -> KernelInfo:
    """Return the record of a step of one point, or of a run of steps with mean acceptance ``accept``."""
    log_ratio = math.log(accept) if accept > 0 else -math.inf
    return KernelInfo(np.array([accept]), np.array([accepted]), _ZERO, np.array([evaluations]), np.array([log_ratio]))


class RowsAlgorithm(Algorithm):
    """A kernel on rows as a chain; if it is approximate, with estimates of E|a − â| from many rows."""

    def __init__(self, kernel: RowsKernel) -> None:
        super().__init__(kernel, kernel)
        self.kernel: Any = kernel
        self.rows, self.attributes = kernel.rows, kernel.attributes
        self.stats = {**self.stats, "acceptance_error": float} if kernel.check_every else self.stats

    def step(self, state: ChainState, rng: Any, tune: bool) -> tuple[ChainState, Statistics]:
        """Return the next state, occasionally with |a − â| of a random-walk move."""
        after, stats = self._step(self.kernel, state, rng, tune)
        if self.kernel.check_every:
            stats["acceptance_error"] = float("nan")
            if state.n_steps % self.kernel.check_every == 0:
                stats["acceptance_error"] = self._acceptance_error(after.x[0], rng)
        return after, stats

    def _acceptance_error(self, x: Array, rng: np.random.Generator) -> float:
        """Return |a − â| of a random-walk move from ``x``, with a from ``CHECK_FACTOR`` times as many rows at both ends."""
        rows, new = self.rows, self.kernel.walk(x, rng)
        accept = acceptance_probability(self.kernel.symmetric_log_ratio(x, new, rng))
        index = rng.integers(0, rows.n, size=min(CHECK_FACTOR * self.kernel.subset, rows.n))
        change = known_difference(rows, x, new)
        change += rows.n * float((rows.residuals(new, index) - rows.residuals(x, index)).mean())
        return float(abs(accept - acceptance_probability(change)))

    def acceptance_pairs(self, points: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the acceptance ``(k,)`` of random-walk moves from ``points`` ``(k, dim)``, estimated and from all rows."""
        if not self.approximate:
            return super().acceptance_pairs(points, rng)
        rows, pairs = self.rows, []
        for x in points:
            new = self.kernel.walk(x, rng)
            estimated = self.kernel.symmetric_log_ratio(x, new, rng)
            prior = rows.log_prior_and_potentials(new) - rows.log_prior_and_potentials(x)
            pairs.append((estimated, rows.full_difference(x, new) + prior))
        estimated, exact = acceptance_probability(np.array(pairs)).T
        return estimated, exact


def known_difference(rows: Rows, x: Array, new: Array) -> float:
    """Return the log ratio of the densities at ``new`` and ``x`` without the residuals of the rows."""
    mode = rows.expansion_point.mean
    change = rows.log_prior_and_potentials(new) - rows.log_prior_and_potentials(x)
    return float(change + rows.expansion.at(new - mode) - rows.expansion.at(x - mode))
