"""Coordinates of moves: a change of variables if the density has funnels, and a metric in the new variables.

If particles without a change of variables have heavy tails, there is also a density with such tails. Local moves take
hundreds of steps to cross a Cauchy tail, in which the force tends to zero, so every particle is proposed a draw of that
density after each of them.

All are computed from the particles of the stage. Neither kernels nor other modules depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_backends.importance.tails import PointTails, tails_of_points
from ppl_backends.kernels.metric import (
    METRICS,
    AnyMetric,
    SplitMetric,
    cross_fitted_metric,
    metric_from_points,
    scales_from_points,
    without_gaps,
)
from ppl_backends.kernels.noncentring import AnyNonCentring, find_noncentring, non_centred
from ppl_backends.kernels.protocol import Density, Kernel, KernelInfo, accept, log_density_ratio
from ppl_backends.kernels.tuning import Parameters, move_once
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.numerics.weights import systematic_resampling
from ppl_backends.smc.core import Resampled
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.targets.protocol import Array

_MOST_WITH_TAILS = 50  # coordinates
_FAR = 5.0  # standard deviations, by quantiles
_FEW_FAR = 0.01  # share of particles that are so far; a Cauchy variable's is 0.07
_FEW_ACCEPTED = 1 / 3  # mean acceptance of draws


@dataclass(frozen=True)
class Coordinates:
    """A metric, and the change of variables before it, or None.

    ``tails`` is a density with Student tails fitted to heavy-tailed particles, if there is no change of variables.
    """

    metric: AnyMetric
    change: AnyNonCentring | None = None
    tails: PointTails | None = None

    @property
    def n_non_centred(self) -> int:
        """Return the number of coordinates that are standardised by others."""
        return 0 if self.change is None else len(self.change.effects)

    def gaussian_of(self, particles: Array) -> Gaussian:
        """Return a Gaussian with the place and scale of the particles: the metric, unless it is in other variables."""
        metric = self.metric.first if isinstance(self.metric, SplitMetric) else self.metric
        return metric if self.change is None and isinstance(metric, Gaussian) else metric_from_points(particles)

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

    def jump(self, rng: np.random.Generator, state: PathState, density: Density[Any]) -> tuple[PathState, bool]:
        """Propose a draw of the density with tails to every particle; return as well whether enough draws were accepted.

        If few are, the density is far from the particles, most often because of a funnel. Those in a neck refuse all
        draws, and the others are drawn back before local moves reach the neck.
        """
        assert self.tails is not None
        moved, info = _independent(self.tails, rng, state, density)
        return moved, bool(info.acceptance.mean() > _FEW_ACCEPTED)


def _independent(
    tails: PointTails, rng: np.random.Generator, points: Any, density: Density[Any]
) -> tuple[Any, KernelInfo]:
    """Move every point once by a proposal that does not depend on it."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # draws far out
        fresh = density(tails.mixture.sample(len(points.x), rng), rng)
    back = tails.mixture.log_density(points.x) - tails.mixture.log_density(fresh.x)
    jump = ((fresh.x - points.x) ** 2).sum(axis=1)
    return accept(rng, points, fresh, log_density_ratio(points, fresh) + back, jump)


def coordinates_of(particles: PathState, path: TemperingPath) -> Coordinates:
    """Return coordinates for particles of equal weight, all of which are moved."""
    change, reference = _change(particles, path)
    x = _changed(particles.x, change)
    return Coordinates(_metric(x, path, reference), change, _tails(x, change, path))


def changed_coordinates(particles: PathState, path: TemperingPath, change: AnyNonCentring) -> Coordinates:
    """Return coordinates for particles of equal weight with a given change of variables."""
    return Coordinates(_metric(change.to_z(particles.x), path), change)


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
    tails = _tails(x, change, path)
    if not 0.25 < halves[nearest] / n < 0.75:
        return Coordinates(_metric(x, path, reference), change, tails)
    n_first = np.searchsorted(drawn.parents, edges[nearest])
    return Coordinates(_metric(x, path, reference, int(halves[nearest]), int(n_first)), change, tails)


def _metric(
    x: Array,
    path: TemperingPath,
    reference: Gaussian | None = None,
    half: int | None = None,
    n_first: int | None = None,
) -> SplitMetric:
    """Return the metric of each half, within modes if moves use gradients, because these stay in their mode."""
    return cross_fitted_metric(x, reference, half, n_first, path.metric, local=path.uses_gradient)


def planned_coordinates(
    drawn: Resampled, path: TemperingPath, rng: np.random.Generator, tails: PointTails | None
) -> Coordinates:
    """Return coordinates for other particles than those from which they are computed, with the ``tails`` of these."""
    n = len(drawn.weights)
    if len(drawn.parents) < n:
        particles = _chosen(drawn, systematic_resampling(drawn.weights, n, rng), path, rng)
    else:
        particles = path.with_gradients(drawn.particles, drawn.stage, rng)
    change, reference = _change(particles, path)
    x = _changed(particles.x, change)
    return Coordinates(METRICS[path.metric](without_gaps(x) if path.uses_gradient else x, reference), change, tails)


def _chosen(drawn: Resampled, chosen: Any, path: TemperingPath, rng: np.random.Generator) -> Any:
    """Return resampled particles at the stage, with gradients if the kernel uses them."""
    particles = drawn.before.take(chosen)
    if not path.uses_gradient:
        return particles
    return path.with_gradients(path.extend(particles, drawn.stage, rng), drawn.stage, rng, len(drawn.particles.x))


def _change(particles: PathState, path: TemperingPath) -> tuple[AnyNonCentring | None, Any]:
    """Return the change of variables, and the Gaussian near the target, which is Gaussian in the old variables only."""
    change = find_noncentring(particles.x, particles.gradient) if path.uses_gradient else None
    return change, path.reference if change is None else None


def _changed(x: Array, change: AnyNonCentring | None) -> Array:
    return x if change is None else change.to_z(x)


def _tails(x: Array, change: AnyNonCentring | None, path: TemperingPath) -> PointTails | None:
    """Return a density with the tails of the points, if they are heavy.

    There is none if the path itself proposes draws of a start with tails, in many dimensions, where hardly any draw would
    be accepted, for moves that cost no more than such a proposal, and beside a change of variables: the tails are then what
    is left of a funnel, and draws keep particles out of its neck.
    """
    if not path.uses_gradient or path.tails is not None or change is not None or x.shape[1] > _MOST_WITH_TAILS:
        return None
    near = scales_from_points(x)
    far = (np.abs(x - near.mean) > _FAR * near.sd).any(axis=1)
    return tails_of_points(x) if far.mean() > _FEW_FAR else None
