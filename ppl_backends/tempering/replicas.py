"""Replicas at all temperatures as one population, each moved at its own β.

Row c·L + i is the state of chain c at β_i, i = 0, …, L − 1. Every row stores the two parts of the path, base and
increment, and its density is exp{base + β·increment} at its β. A kernel moves all rows in one call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.kernels.adaptation import DualAveraging
from ppl_backends.kernels.metric import METRICS, ChainMetric
from ppl_backends.kernels.protocol import Kernel, KernelParameters
from ppl_backends.kernels.table import KERNELS
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.numerics.population import Population
from ppl_backends.smc.path import TemperingPath
from ppl_backends.targets.protocol import Array, Index

_LARGEST_DENSE = 100  # coordinates above which a temperature's metric is diagonal


@dataclass(frozen=True)
class Replicas(Population):
    """Points with both parts of the path ``(n,)``, their gradients ``(n, dim)`` or None, and the β ``(n,)`` of every row.

    A density of zero (``increment`` −inf) is zero at every β, including β = 0: the reference is restricted to the support.
    """

    base: Array
    increment: Array
    base_gradient: Array | None
    increment_gradient: Array | None
    beta: Array

    @property
    def log_density(self) -> Array:
        """Return log γ_β ``(n,)``."""
        return np.where(self.increment == -np.inf, -np.inf, self.base + self.beta * self.increment)

    @property
    def gradient(self) -> Array:
        """Return ∇ log γ_β ``(n, dim)``."""
        assert self.base_gradient is not None
        assert self.increment_gradient is not None
        return self.base_gradient + self.beta[:, None] * self.increment_gradient

    def renewed(self, found: Any) -> Replicas:
        """Return the replicas with the density of new points of the same rows, at the rows' β."""
        return replace(found, beta=self.beta)


@dataclass(frozen=True)
class Explorer:
    """Kernels on all replicas, with a metric and a step for every temperature.

    Attributes
    ----------
    path : TemperingPath
    kernels : tuple of Kernel
        Each moves every replica ``moves`` times in a scan.
    metric : ChainMetric
        Metric of each temperature.
    steps : tuple of DualAveraging
        Of each kernel, with step sizes ``(levels,)``.
    moves : int
    watch : callable, optional
        Called with all points that moves evaluate, ``(x, log density)``.
    """

    path: TemperingPath
    kernels: tuple[Kernel, ...]
    metric: ChainMetric
    steps: tuple[DualAveraging, ...]
    moves: int = 1
    watch: Callable[[Array, Array], None] | None = None

    def move(self, rng: np.random.Generator, replicas: Replicas, levels: Index, tune: bool) -> Moved:
        """Move every replica; ``levels`` ``(n,)`` are the temperatures of the replicas. Adapt steps if ``tune``."""
        n, count, steps = len(replicas.x), len(self.metric.factor), list(self.steps)
        metric = self.metric.take(levels, n)
        acceptance = np.zeros(count)
        rows = np.bincount(levels, minlength=count)
        for _ in range(self.moves):
            for k, kernel in enumerate(self.kernels):
                scale = steps[k].scale if tune else steps[k].average
                used = KernelParameters(metric, np.broadcast_to(scale, count)[levels])
                density = self._density(replicas.beta)
                replicas, info = kernel.step(rng, replicas, density, used)
                rate = np.bincount(levels, info.acceptance, minlength=count) / np.maximum(rows, 1)
                acceptance += rate / (self.moves * len(self.kernels))
                if tune:
                    steps[k] = steps[k].update(np.where(rows > 0, rate, kernel.target_acceptance))
        return Moved(replicas, replace(self, steps=tuple(steps)), acceptance)

    def _density(self, beta: Array) -> Any:
        """Return the map from points to replicas; the caller sets β if there are fewer points than rows."""

        def density(x: Array, rng: np.random.Generator) -> Replicas:
            found = at_points(self.path, x, beta if len(x) == len(beta) else np.ones(len(x)))
            if self.watch is not None:
                self.watch(x, found.log_density)
            return found

        return density

    @property
    def scale(self) -> Array:
        """Return the steps ``(levels,)`` of the first kernel after tuning."""
        return np.broadcast_to(self.steps[0].average, len(self.metric.factor))


class Moved(NamedTuple):
    """Replicas after a scan's moves, the explorer, and acceptance rates ``(levels,)``."""

    replicas: Replicas
    explorer: Explorer
    acceptance: Array


def at_points(path: TemperingPath, x: Array, beta: Array) -> Replicas:
    """Return replicas at points ``(n, dim)``; NaN and +inf count as zero density."""
    found = path.evaluate(x, 1.0, path.uses_gradient)
    outside = ~(np.isfinite(found.increment) & np.isfinite(found.base))
    increment = np.where(outside, -np.inf, found.increment)
    base = np.where(np.isfinite(found.base), found.base, 0.0)
    return Replicas(x, base, increment, found.base_gradient, found.increment_gradient, beta)


def kernels_of(name: str) -> tuple[Kernel, ...]:
    """Return the kernels of that name, with independent noise for every replica, so that replicas stay independent."""
    kinds = [type(part) for part in KERNELS[name].parts] or [KERNELS[name]]
    return tuple(kind(balanced=False) for kind in kinds)


def calibrated(
    path: TemperingPath, kernels: tuple[Kernel, ...], points: list[Array], scales: list[Array] | None = None
) -> Explorer:
    """Return an explorer with metrics from ``points`` of every temperature ``(m, dim)`` and initial ``scales``."""
    dim, kind = path.target.dim, path.metric if path.target.dim <= _LARGEST_DENSE else "diagonal"
    found = [METRICS[kind](x, path.reference) for x in points]
    factors = [gaussian.factor for gaussian in found]
    if any(factor.ndim == 2 for factor in factors):
        factors = [np.diag(factor) if factor.ndim == 1 else factor for factor in factors]
    centres = np.array([np.broadcast_to(gaussian.mean, dim) for gaussian in found])
    metric = ChainMetric(Gaussian(0.0, np.ones(dim)), np.array(factors), centres)
    begin = [np.full(len(points), kernel.initial_scale(dim)) for kernel in kernels] if scales is None else scales
    steps = tuple(
        DualAveraging(
            kernel.target_acceptance, np.log(scale), np.log(scale), np.log(scale), 0.0, 0, kernel.largest_scale
        )
        for kernel, scale in zip(kernels, begin, strict=True)
    )
    return Explorer(path, kernels, metric, steps)
