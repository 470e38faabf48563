"""Coordinates of moves: a change of variables if the density has funnels, and a metric in the new variables.

Both are computed from the particles of the stage. Neither kernels nor other modules depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_backends.kernels.metric import METRICS, AnyMetric, cross_fitted_metric
from ppl_backends.kernels.noncentring import NonCentring, find_noncentring, non_centred
from ppl_backends.kernels.protocol import Density, Kernel, KernelInfo
from ppl_backends.kernels.tuning import Parameters, move_once
from ppl_backends.numerics.weights import systematic_resampling
from ppl_backends.smc.core import Resampled
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.targets.protocol import Array


@dataclass(frozen=True)
class Coordinates:
    """A metric, and the change of variables before it, or None."""

    metric: AnyMetric
    change: NonCentring | None = None

    @property
    def n_non_centred(self) -> int:
        """Return the number of coordinates that are standardised by others."""
        return 0 if self.change is None else len(self.change.effects)

    def move(
        self,
        kernel: Kernel,
        rng: np.random.Generator,
        state: PathState,
        density: Density[Any],
        parameters: Parameters,
    ) -> tuple[PathState, KernelInfo]:
        """Move every particle once."""
        if self.change is None:
            return move_once(kernel, rng, state, density, parameters, self.metric)
        points, changed = non_centred(self.change, state, density)
        moved, info = move_once(kernel, rng, points, changed, parameters, self.metric)
        return moved.here, info


def coordinates_of(particles: PathState, path: TemperingPath) -> Coordinates:
    """Return coordinates for particles of equal weight, all of which are moved."""
    change, reference = _change(particles, path)
    return Coordinates(cross_fitted_metric(_changed(particles.x, change), reference, kind=path.metric), change)


def coordinates_of_chains(drawn: Resampled, length: int, path: TemperingPath, rng: np.random.Generator) -> Coordinates:
    """Return coordinates for waste-free chains, computed from all weighted particles, since few of them start a chain.

    The two halves of the previous chains form separate metrics. If a point's own chain enters its metric, it stretches
    the metric that moves it; with as many dimensions as points, the point would then never move.
    """
    n = len(drawn.weights)
    chosen = systematic_resampling(drawn.weights, n, rng)
    change, reference = _change(_chosen(drawn, chosen, path, rng), path)
    x = _changed(drawn.before.x[chosen], change)
    edges = np.arange(0, n, length)
    halves = np.searchsorted(chosen, edges)
    nearest = int(np.argmin(np.abs(halves - n // 2)))
    if not 0.25 < halves[nearest] / n < 0.75:
        return Coordinates(cross_fitted_metric(x, reference, kind=path.metric), change)
    n_first = np.searchsorted(drawn.parents, edges[nearest])
    return Coordinates(cross_fitted_metric(x, reference, int(halves[nearest]), int(n_first), path.metric), change)


def planned_coordinates(drawn: Resampled, path: TemperingPath, rng: np.random.Generator) -> Coordinates:
    """Return coordinates for other particles than those from which they are computed."""
    n = len(drawn.weights)
    if len(drawn.parents) < n:
        particles = _chosen(drawn, systematic_resampling(drawn.weights, n, rng), path, rng)
    else:
        particles = path.with_gradients(drawn.particles, drawn.stage, rng)
    change, reference = _change(particles, path)
    return Coordinates(METRICS[path.metric](_changed(particles.x, change), reference), change)


def _chosen(drawn: Resampled, chosen: Any, path: TemperingPath, rng: np.random.Generator) -> Any:
    """Return resampled particles at the stage, with gradients if the kernel uses them."""
    particles = drawn.before.take(chosen)
    return (
        path.with_gradients(path.extend(particles, drawn.stage, rng), drawn.stage, rng) if path.gradient else particles
    )


def _change(particles: PathState, path: TemperingPath) -> tuple[NonCentring | None, Any]:
    """Return the change of variables, and the Gaussian near the target, which is Gaussian in the old variables only."""
    change = find_noncentring(particles.x, particles.gradient) if path.gradient else None
    return change, path.reference if change is None else None


def _changed(x: Array, change: NonCentring | None) -> Array:
    return x if change is None else change.to_z(x)
