"""Search for modes that the ladder lost: climbs from places that earlier particles visited and the last ones did not.

Where two modes separate late, all particles can end in one of them, and nothing that these particles know tells of the other.
Particles of earlier, wider temperatures do. Some of every stage are kept, with the density at the end of the path. At
a point x below the highest of the last particles x*, a Gaussian's gradient g has g(x)ᵀ(x* − x) = 2 {log p(x*) − log
p(x)}; that of any log-concave density has at least half of it. Climbs begin at particles outside of the last ones
where the ratio is small. A mode at the end of a climb that no last particle is in has its share of the evidence
measured, by importance sampling from the Gaussian there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from scipy.special import expit

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.modes import beyond
from ppl_backends.approximations.newton import modes_above
from ppl_backends.numerics.differences import difference_hessian
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.smc.health import LostMode
from ppl_backends.smc.mixing import modes
from ppl_backends.smc.path import TemperingPath
from ppl_backends.targets.protocol import Array, BaseTarget
from ppl_backends.targets.wrapped import WrappedTarget

_LARGEST_DIM = 100  # above it the Hessians of climbs cost more than they are worth
_SUSPECT = 1.5  # ratio of the gradient's rise to the rise of the density; two for a Gaussian
_EACH = 6  # climbs from the most suspect particles, and from the likeliest of them
_ITERATIONS = 30
_POINTS = 512  # of importance sampling
_SMALLEST_SHARE = 0.01  # of the evidence


def can_be_sought(target: BaseTarget) -> bool:
    """Return whether lost modes are looked for: climbs need gradients, and Hessians of a size that can be afforded."""
    return target.has_gradient and target.dim <= _LARGEST_DIM


class Seen(Protocol):
    """Last particles of a run, and some that it visited, each with the log density of the path's end."""

    @property
    def x(self) -> Array: ...

    @property
    def log_density(self) -> Array: ...

    @property
    def visited(self) -> Any: ...


def find_lost_mode(
    path: TemperingPath, runs: Sequence[Seen], log_evidence: float, rows: int, rng: np.random.Generator
) -> LostMode | None:
    """Return the largest mode that earlier particles lead to and that no last particle is in, if it has 1 % of the mass.

    ``rows`` is how many particles the moves evaluated in one call.
    """
    if not can_be_sought(path.target):
        return None
    last = np.concatenate([run.x for run in runs])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        end = _EndOfPath(path, rows)
        starts = _starts(end, runs, last)
        if not len(starts):
            return None
        found = [
            LostMode(share, mode.mean, _farthest(mode.mean, last))
            for mode in modes_above(end, starts, _ITERATIONS)
            if beyond(last, mode).all() and (share := _share(end, mode, log_evidence, rng)) > _SMALLEST_SHARE
        ]
    return max(found, key=lambda mode: mode.share, default=None)


class _EndOfPath(WrappedTarget):
    """The end of a path, in calls of as many points as its moves made: a compiled density needs no other program."""

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


def _starts(end: _EndOfPath, runs: Sequence[Seen], last: Array) -> Array:
    """Return earlier particles that lead elsewhere than to the last ones: the likeliest and some others ``(m, dim)``."""
    x = np.concatenate([run.visited.x for run in runs])
    log_density, last_density = (
        np.concatenate(parts)
        for parts in zip(*((run.visited.log_density, run.log_density) for run in runs), strict=True)
    )
    labels, outside = modes(last), np.isfinite(log_density)
    held = [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]
    for rows in held:
        scale = np.maximum(last[rows].std(axis=0, ddof=1), 1e-150)
        outside &= beyond(x / scale, _gaussian(last[rows], scale))
    x, log_density = x[outside], log_density[outside]
    if not len(x):
        return x
    _, gradient = end.log_density_and_gradient(x)
    ratio = np.full(len(x), -np.inf)
    for rows in held:
        highest = rows[np.argmax(last_density[rows])]
        fall = last_density[highest] - log_density
        towards = (gradient * (last[highest] - x)).sum(axis=1)
        ratio = np.maximum(ratio, np.where(fall > 0, towards / np.where(fall > 0, fall, 1.0), -np.inf))
    suspect = np.flatnonzero(ratio < _SUSPECT)
    lowest, highest = (suspect[np.argsort(key[suspect])[:_EACH]] for key in (ratio, -log_density))
    return x[np.union1d(lowest, highest)]


def _gaussian(points: Array, scale: Array) -> Gaussian:
    """Return the Gaussian of points in units of ``scale`` ``(dim,)``."""
    points = points / scale
    return Gaussian.from_covariance(points.mean(axis=0), np.atleast_2d(np.cov(points.T)) + 1e-9 * np.eye(len(scale)))


def _share(end: _EndOfPath, mode: GaussianApproximation, log_evidence: float, rng: np.random.Generator) -> float:
    """Return the mode's share of the evidence, were it added to the evidence of the run."""
    x = mode.sample(_POINTS, rng)
    log_weights = end.log_density_and_gradient(x)[0] - mode.log_density(x)
    return float(expit(np.logaddexp.reduce(log_weights) - np.log(_POINTS) - log_evidence))


def _farthest(x: Array, last: Array) -> int:
    """Return the coordinate of ``x`` that is farthest from the last particles."""
    return int(np.argmax(np.abs(x - last.mean(axis=0)) / np.maximum(last.std(axis=0), 1e-300)))
