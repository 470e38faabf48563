"""Search for modes that the ladder lost or hardly found: climbs from visited points that the last particles do not explain.

If two modes separate late, all particles can end in one of them, and none of these particles gives a sign of the
other. A narrow mode with most of the mass (a spike) is behind a phase transition: few moves at wide temperatures hit
it, and particles that enter at the end are no longer multiplied. Earlier particles, and the densest points that any
move evaluated, give signs of both. Climbs start

- at earlier particles outside of the last ones that lead elsewhere. At a point x below the highest of the last particles
  x*, a Gaussian's gradient g has g(x)ᵀ(x* − x) = 2 {log p(x*) − log p(x)}; that of any log-concave density has at least
  half of it;
- at points, including last particles, that are far denser than a Gaussian fitted to the last particles predicts. Cooled
  particles (:mod:`~ppl_backends.smc.cooling`) add to these, and so do points ahead of those where the gradient is least like
  that of the Gaussian (:mod:`~ppl_backends.approximations.densest`);
- at the highest last particle of each mode if it is far denser than half of them explain, because some per cent of the
  particles may have entered a spike.

The mass of each mode found is measured by importance sampling from the Gaussian there, within an ellipsoid that bounds
the weights. A mode is missed if it has more than twice the mass that the particles within the ellipsoid represent, and
more than the error of that mass explains. With n lineages a mode of share s has n s ± √{n s(1 − s)} of them by chance, and
that error is part of the error of the evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.heated import region_when_heated
from ppl_backends.approximations.lost_mode import TIMES, LostMode, can_be_sought, farthest, largest, log_mass_of
from ppl_backends.approximations.missed_modes import (
    DENSER,
    EACH,
    HEATED_ROWS,
    ITERATIONS,
    SMALLEST_SHARE,
    missed_region,
)
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.approximations.modes import beyond
from ppl_backends.approximations.newton import modes_above
from ppl_backends.approximations.unlike import ahead, directions, smooth_gradient, unlike
from ppl_backends.kernels.metric import metric_from_points
from ppl_backends.numerics.differences import difference_hessian
from ppl_backends.numerics.gaps import modes
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.smc.cooling import densest_when_cooled
from ppl_backends.smc.evidence import effective_lineages
from ppl_backends.smc.path import TemperingPath
from ppl_backends.smc.records import Visited, joined
from ppl_backends.targets.protocol import Array, BaseTarget, Index
from ppl_backends.targets.wrapped import WrappedTarget

_SUSPECT = 1.5  # ratio of the gradient's rise to the rise of the density; two for a Gaussian
_COOLED, _HEATED = 0.5, 0.5  # of the run's evaluations, most
_STEEPEST = 32  # points that are looked ahead from
_ERRORS = 3.0  # standard errors of the share that particles represent


class Seen(Protocol):
    """Last particles of a run, and points that it visited, each with the log density of the path's end."""

    @property
    def x(self) -> Array: ...

    @property
    def log_density(self) -> Array: ...

    @property
    def visited(self) -> Any: ...


def find_lost_mode(
    path: TemperingPath,
    runs: Sequence[Seen],
    log_evidence: float,
    rows: int,
    rng: np.random.Generator,
    evaluations: float = np.inf,
    lineages: Index | None = None,
) -> LostMode | None:
    """Return the largest mode found by climbs that has too few of the last particles, if it has 1 % of the mass.

    ``rows`` is the number of particles that moves evaluated in one call, and ``evaluations`` the total number of
    gradients. Cooled particles use at most half as many. ``lineages`` labels the last particles of all runs; those of
    different lineages are independent.
    """
    if not can_be_sought(path.target):
        return None
    last = np.concatenate([run.x for run in runs])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        end = _EndOfPath(path, rows)
        labels = modes(last)
        cooled = densest_when_cooled(end.log_density_and_gradient, last, labels, rows, _COOLED * evaluations, rng)
        visited = joined([*(run.visited for run in runs), *cooled])
        starts = _starts(end, visited, last, np.concatenate([r.log_density for r in runs]), labels)
        if not len(starts):
            return None
        climbs = modes_above(end, starts, ITERATIONS)
        found = [_missed(end, mode, last, log_evidence, rng, lineages) for mode in climbs]
    return largest(found)


def find_lost_region(
    path: TemperingPath,
    runs: Sequence[Seen],
    log_evidence: float,
    rng: np.random.Generator,
    evaluations: float,
    lineages: Index,
) -> LostMode | None:
    """Return a region outside of the last particles that heated ones find, if too few of the last ones are there.

    The arguments are those of :func:`find_lost_mode`.
    """
    if not can_be_sought(path.target):
        return None
    last = np.concatenate([run.x for run in runs])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        region = region_when_heated(path.log_density, last, HEATED_ROWS, rng, _HEATED * evaluations)
    if region is None:
        return None
    there = region.contains(last)
    effective = effective_lineages(lineages[there]) if there.any() else 0.0
    return missed_region(region, float(there.mean()), effective, log_evidence, last, known=True)


class _EndOfPath(WrappedTarget):
    """The end of a path, evaluated in calls with the number of points of a move, so that no other program is compiled."""

    def __init__(self, path: TemperingPath, rows: int) -> None:
        super().__init__(path.target)
        self._path, self._rows = path, rows

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        calls = -(-len(x) // self._rows)
        padded = np.concatenate([x, np.repeat(x[-1:], calls * self._rows - len(x), axis=0)])
        parts = [self._path.evaluate(block, 1.0, True) for block in np.split(padded, calls)]
        value, gradient = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("log_density", "gradient")
        )
        return np.nan_to_num(value, nan=-np.inf)[: len(x)], np.nan_to_num(gradient)[: len(x)]

    def hessian(self, x: Array, part: str = "joint") -> Array:
        return difference_hessian(lambda points: self.log_density_and_gradient(points)[1], x)


class _Held(NamedTuple):
    """A mode of the last particles: which of them it holds, its scales, and the Gaussian in these."""

    rows: Index
    scale: Array
    gaussian: Gaussian

    def beyond(self, x: Array) -> Any:
        """Return which points ``(n, dim)`` are farther out than draws of the Gaussian."""
        return beyond(x / self.scale, self.gaussian)

    def excess(self, x: Array, log_density: Array) -> Array:
        """Return the log density ``(n,)`` minus that of the Gaussian, up to a constant."""
        squares: Array = (self.gaussian.whiten(x / self.scale) ** 2).sum(axis=1)
        return log_density + 0.5 * squares


def _starts(end: _EndOfPath, visited: Visited, last: Array, last_density: Array, labels: Index) -> Array:
    """Return the points ``(m, dim)`` at which climbs start."""
    known = np.isfinite(visited.log_density)
    x, log_density, vectors = visited.x[known], visited.log_density[known], visited.ahead[known]
    held = [_held(last, np.flatnonzero(labels == label)) for label in range(labels.max() + 1)]
    outside = np.all([each.beyond(x) for each in held], axis=0)
    elsewhere = _leading_elsewhere(end, x[outside], log_density[outside], held, last, last_density)
    ahead, log_density_ahead = _ahead(end, x, vectors, held)
    x = np.concatenate([x, ahead, last])
    log_density = np.concatenate([log_density, log_density_ahead, last_density])
    dense = _densest(x, log_density, held, last, last_density)
    return np.concatenate([elsewhere, dense, _highest(held, last, last_density)])


def _held(last: Array, rows: Index) -> _Held:
    scale = np.maximum(last[rows].std(axis=0, ddof=1), 1e-150)
    points = last[rows] / scale
    cov = np.atleast_2d(np.cov(points.T)) + 1e-9 * np.eye(len(scale))
    return _Held(rows, scale, Gaussian.from_covariance(points.mean(axis=0), cov))


def _leading_elsewhere(
    end: _EndOfPath, x: Array, log_density: Array, held: Sequence[_Held], last: Array, last_density: Array
) -> Array:
    """Return points outside of the last particles that lead elsewhere: those of highest density and some others."""
    if not len(x):
        return x
    _, gradient = end.log_density_and_gradient(x)
    ratio = np.full(len(x), -np.inf)
    for mode in held:
        highest = mode.rows[np.argmax(last_density[mode.rows])]
        fall = last_density[highest] - log_density
        towards = (gradient * (last[highest] - x)).sum(axis=1)
        ratio = np.maximum(ratio, np.where(fall > 0, towards / np.where(fall > 0, fall, 1.0), -np.inf))
    suspect = np.flatnonzero(ratio < _SUSPECT)
    lowest, highest = (suspect[np.argsort(key[suspect])[:EACH]] for key in (ratio, -log_density))
    return x[np.union1d(lowest, highest)]


def _ahead(end: _EndOfPath, x: Array, vectors: Array, held: Sequence[_Held]) -> tuple[Array, Array]:
    """Return points ahead of those where the gradient is unlike that of a wide mode.

    These are the points that have vectors, and of all others those least like the last particles.
    """
    noted = vectors.any(axis=(1, 2))
    points = np.concatenate([ahead(x[noted], vectors[noted]), _ahead_of_steepest(end, x[~noted], held)])
    return points, end.log_density_and_gradient(points)[0] if len(points) else np.empty(0)


def _ahead_of_steepest(end: _EndOfPath, x: Array, held: Sequence[_Held]) -> Array:
    """Return points ahead of those where the gradient is least like that of any mode of the last particles."""
    x = x[np.any([~mode.beyond(x) for mode in held], axis=0)]
    if not len(x):
        return x
    _, gradient = end.log_density_and_gradient(x)
    least, along = np.full(len(x), np.inf), np.zeros((len(x), 2, x.shape[1]))
    for mode in held:
        scaled = x / mode.scale, gradient * mode.scale
        own = ~mode.beyond(x)
        square, difference = unlike(mode.gaussian, *scaled, smooth_gradient(*(part[own] for part in scaled)))
        nearer = (square >= 0) & (square < least)
        least[nearer], along[nearer] = square[nearer], directions(mode.gaussian, difference[nearer]) * mode.scale
    inside = np.flatnonzero(np.isfinite(least))
    chosen = inside[np.argsort(-least[inside], kind="stable")[:_STEEPEST]]
    return ahead(x[chosen], along[chosen])


def _highest(held: Sequence[_Held], last: Array, last_density: Array) -> Array:
    """Return the highest last particle of each mode, if it is far denser than half of them explain.

    Some per cent of the particles may have entered a spike that has more of the mass.
    """
    highest = list[int]()
    for mode in held:
        excess = mode.excess(last[mode.rows], last_density[mode.rows])
        top = int(np.argmax(last_density[mode.rows]))
        if excess[top] > np.median(excess) + DENSER:
            highest.append(int(mode.rows[top]))
    return last[sorted(highest, key=lambda row: -last_density[row])[:EACH]]


def _densest(x: Array, log_density: Array, held: Sequence[_Held], last: Array, last_density: Array) -> Array:
    """Return the densest of the points that are denser than any Gaussian of the last particles explains."""
    beyond_all = np.full(len(x), np.inf)
    for mode in held:
        own = mode.excess(last[mode.rows], last_density[mode.rows])
        beyond_all = np.minimum(beyond_all, mode.excess(x, log_density) - np.quantile(own, 0.99))
    near = np.any([~mode.beyond(x) for mode in held], axis=0)
    dense = np.flatnonzero(near & (beyond_all > DENSER))
    chosen = dense[np.argsort(-log_density[dense], kind="stable")]
    _, first = np.unique(log_density[chosen], return_index=True)  # copies of a particle are one start
    return x[chosen[np.sort(first)][:EACH]]


def _missed(
    end: _EndOfPath,
    mode: GaussianApproximation,
    last: Array,
    log_evidence: float,
    rng: np.random.Generator,
    lineages: Index | None,
) -> LostMode | None:
    """Return a mode if its particles represent less than half of its mass, and not by chance; else None."""
    log_mass = log_mass_of(lambda x: end.log_density_and_gradient(x)[0], mode, rng)
    if log_mass is None:
        return None
    there = ~beyond(last, mode)
    held = float(np.mean(there))
    mass = float(np.exp(min(log_mass - log_evidence, 300.0)))  # in units of the evidence of the run
    share = mass / (1.0 + mass - held)
    if mass <= TIMES * held or (mass - held) / (1.0 + mass - held) <= SMALLEST_SHARE:
        return None
    if lineages is not None and _by_chance(share, held, lineages[there]):
        return None
    return LostMode(share, mode.mean, farthest(mode.mean, last), held, mode)


def _by_chance(share: float, held: float, lineages: Index) -> bool:
    """Return whether a mode with this share may hold so few of the particles, of these lineages, by chance."""
    if not len(lineages):
        return False
    n = effective_lineages(lineages) / held  # lineages of all particles, if those elsewhere are as large
    return n * (share - held) <= _ERRORS * float(np.sqrt(n * share * max(1.0 - share, 0.0)))


def with_lost_mode(target: BaseTarget, last: Array, lost: LostMode, method: str) -> MixtureApproximation:
    """Return Gaussians of the modes of the last particles and of the lost mode, in proportion to their masses."""
    others = last[beyond(last, lost.gaussian)]
    others = last if len(others) < 2 * last.shape[1] else others
    labels = modes(others)
    held = [metric_from_points(others[labels == label]) for label in range(labels.max() + 1)]
    shares = (1.0 - lost.share) * np.bincount(labels) / len(labels)
    factors = [gaussian.factor if gaussian.factor.ndim == 2 else np.diag(gaussian.factor) for gaussian in held]
    return MixtureApproximation(
        [*np.maximum(shares, SMALLEST_SHARE), lost.share],
        np.stack([*(gaussian.mean for gaussian in held), lost.gaussian.mean]),
        np.stack([*(factor @ factor.T for factor in factors), lost.gaussian.cov]),
        target=target,
        method=method,
    )
