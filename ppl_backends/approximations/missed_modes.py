"""Modes that weighted points of a posterior miss: a search for narrow ones, and the mass of what is found.

A narrow mode with most of the mass (a spike) takes up a tiny part of the region that a wide one fills. Weights p/q of draws
of an approximation q of the wide one are nearly equal, and do not show it, unless one of the draws meets the region
where the spike is denser than the wide mode. For a spike at distance ρ from the centre of q = N(0, I) in d dimensions, draws
of N(0, s²I) meet it most often if s = ρ/√d; where s is wrong by a factor f, they do exp{−d(log f + 1/(2f²) − ½)} times as
often. As ρ is not known, the draws are divided evenly among scales from 2 to 1/32, a factor √2 apart: at the nearest one
they meet it at least 0.97ᵈ times as often as at the best. They are differences of weighted points, around the centres of
their modes. Where a point is far denser than q explains, or clearly denser than those of the same scale are, a climb begins.
As many other draws show the spike by their gradients, from a larger distance (:mod:`~ppl_backends.approximations.unlike`): a
climb begins ahead of such a draw where the density is far above what q explains.

The draws double in number until they are 128 times as many as the points, or a second has passed on the processor.

The mass of each mode found is measured by importance sampling from the Gaussian there, within an ellipsoid that bounds the
weights. It is missed if it has more than twice the mass that weighted points within the ellipsoid represent, and more than
their errors explain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from ppl_backends.approximations.densest import Densest
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.heated import Region, region_when_heated
from ppl_backends.approximations.lost_mode import TIMES, LostMode, can_be_sought, farthest, largest, log_mass_of
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.approximations.modes import beyond
from ppl_backends.approximations.newton import modes_above
from ppl_backends.approximations.resolve import has_one_mode, one_mode_given_few
from ppl_backends.approximations.unlike import ahead
from ppl_backends.approximations.wide_modes import in_blocks, mass_around
from ppl_backends.kernels.metric import metric_from_points
from ppl_backends.numerics.gaps import modes
from ppl_backends.numerics.weights import effective_sample_size, normalised_weights, systematic_resampling
from ppl_backends.targets.protocol import Array, BaseTarget, Index

SMALLEST_SHARE = 0.01  # of the evidence
DENSER = 2.0  # nats above what all but a hundredth of the points have
EACH = 6  # climbs from each kind of points
ITERATIONS = 30
# Least number of points in a region that measure its mass. If fewer are there, and four times that number is expected by
# its share, the mass that the points represent is unknown.
_FEWEST_INSIDE, _EXPECTED = 20, 4.0
_ERRORS = 3.0  # relative standard errors of the mass that points represent
_SCALES = 2.0 ** np.arange(1.0, -5.5, -0.5)
_FIRST_ROUND, _LARGEST_FIRST_ROUND = 16, 2**14  # times the weighted points, and at most, whatever they cost
_ALL_ROUNDS, _LARGEST_OF_ALL = 128, 2**20
_SECONDS = 1.0  # on the processor, which no round but the first is expected to exceed
HEATED_ROWS = 256  # points of one call
_HEATED_FROM = 2048  # draws
_SPREADS, _SLIGHTLY = 10.0, 0.05  # a draw is clearly denser than others of its scale: times their spread, and in nats


def find_missed_mode(
    target: BaseTarget,
    approximation: Any,
    points: Array,
    log_weights: Array,
    weigh: Callable[[Array], Array],
    rows: int,
    rng: np.random.Generator,
) -> LostMode | None:
    """Return the largest mode that weighted points ``(n, dim)`` miss, if they miss 1 % of the mass.

    ``weigh`` returns log weights ``(m,)`` of points ``(m, dim)`` that are not normalised, as ``log_weights`` ``(n,)`` are; it
    is called with ``rows`` of them at once. There is no search if the ``approximation`` shows that the target, which it was
    fitted to, has a single mode.
    """
    if target.is_estimated or not can_be_sought(target):
        return None
    is_of_target = getattr(approximation, "target", None) is target
    if is_of_target and has_one_mode(approximation):
        return None
    if not np.isfinite(log_weights).any():
        return None
    log_weights = np.nan_to_num(log_weights, nan=-np.inf, posinf=-np.inf, neginf=-np.inf)
    floor = float(np.quantile(log_weights, 0.99, method="lower")) + DENSER
    starts = _heaviest(points, log_weights - floor)
    draws = _DrawnIn(points, rng)
    most = 0 if is_of_target and one_mode_given_few(approximation) else _ALL_ROUNDS * len(points)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        missed = _missed_around(target, draws.groups(), points, log_weights, rows, rng)
        if missed is None and most and approximation is not None:  # draws of the prior are wide
            missed = _missed_when_heated(target, points, log_weights, rng)
        if missed is not None:
            return missed
        for n in _rounds(len(points), min(most, _LARGEST_OF_ALL)):
            if n:
                n = max(1, n // rows) * rows
                x, scale, _ = draws.more(n)
                found = in_blocks(weigh, x, rows)
                near = _ahead_of_steepest(target, draws, n, rows)
                near = _heaviest(near, in_blocks(weigh, near, rows) - floor)
                starts = np.concatenate([starts, _heaviest(x, _excess(found, scale, floor)), near])
            missed = _largest_missed(target, np.unique(starts, axis=0), points, log_weights, rng)
            if missed is not None:
                return missed
            starts = starts[:0]
    return None


def _ahead_of_steepest(target: BaseTarget, draws: _DrawnIn, n: int, rows: int) -> Array:
    """Return points ``(m, dim)`` ahead of those of ``n`` draws where the gradient is least like that at others of a scale."""
    x, scale, label = draws.more(n)
    parts = [target.log_density_and_gradient(block) for block in np.split(x, n // rows)]
    value, gradient = (np.concatenate(part) for part in zip(*parts, strict=True))
    points = list[Array]()
    for mode, members in enumerate(draws.groups()):
        metric = metric_from_points(draws.points[members])
        for k in range(len(_SCALES)):
            own = (label == mode) & (scale == k)
            seen = Densest(metric)
            seen.see_gradients(x[own], value[own], gradient[own])
            points.append(ahead(seen.x, seen.ahead))
    return np.concatenate(points)


def _rounds(points: int, most: int) -> Iterator[int]:
    """Yield numbers of draws: as many again as there are, while all of them are expected to take a second at most."""
    done = min(_FIRST_ROUND * points, _LARGEST_FIRST_ROUND, most)
    clock = time.process_time()
    yield done
    while done < most and 2 * (time.process_time() - clock) < _SECONDS:
        more = min(done, most - done)
        yield more
        done += more


class _DrawnIn:
    """Draws around the centres of the modes of points ``(n, dim)``, each at one of several scales.

    Differences of two points of a mode have new directions, and those of two draws of a Gaussian are √2 times as wide.
    """

    def __init__(self, points: Array, rng: np.random.Generator) -> None:
        self.points, self._rng, self._done = points, rng, 0
        self._labels = modes(points)
        self._members = [np.flatnonzero(self._labels == label) for label in range(self._labels.max() + 1)]

    def groups(self) -> list[Index]:
        """Return which points are of each mode."""
        return self._members

    def more(self, n: int) -> tuple[Array, Index, Index]:
        """Return ``n`` further draws, which scale each has, and which mode."""
        points, at = self.points, self._done + np.arange(n)
        self._done += n
        first, scale = at % len(points), (at + at // len(points)) % len(_SCALES)
        x = np.empty((n, points.shape[1]))
        for label, members in enumerate(self._members):
            own = np.flatnonzero(self._labels[first] == label)
            apart = points[first[own]] - points[self._rng.choice(members, len(own))]
            x[own] = np.median(points[members], axis=0) + apart * (_SCALES[scale[own]] / np.sqrt(2.0))[:, None]
        return x, scale, self._labels[first]


def _excess(log_weights: Array, scale: Index, floor: float) -> Array:
    """Return by how much draws ``(n,)`` are denser than ``floor``, or than other draws as near to the centre."""
    excess = np.full(len(log_weights), -np.inf)
    for k, factor in enumerate(_SCALES):
        own = np.flatnonzero(scale == k)
        if len(own):
            middle, high = np.quantile(log_weights[own], [0.5, 0.99], method="lower")
            among = high + np.clip(_SPREADS * (high - middle), _SLIGHTLY, DENSER) if np.isfinite(middle) else floor
            excess[own] = log_weights[own] - (min(among, floor) if factor < 1 else floor)
    return excess


def _heaviest(points: Array, excess: Array) -> Array:
    """Return the points of largest excess among those that have any."""
    order = np.argsort(np.where(np.isfinite(excess), -excess, np.inf), kind="stable")[:EACH]
    return points[order[excess[order] > 0]]


def _largest_missed(
    target: BaseTarget, starts: Array, points: Array, log_weights: Array, rng: np.random.Generator
) -> LostMode | None:
    """Return the largest of the modes that climbs from ``starts`` end at and that the points miss."""
    climbs = modes_above(target, starts, ITERATIONS) if len(starts) else []
    return largest(_missed(target, mode, points, log_weights, rng) for mode in climbs)


def _missed(
    target: BaseTarget, mode: GaussianApproximation, points: Array, log_weights: Array, rng: np.random.Generator
) -> LostMode | None:
    """Return a mode if the weighted points represent less than half of its mass, None for others."""
    log_mass = log_mass_of(target.log_density, mode, rng)
    if log_mass is None:
        return None
    return _too_few(log_mass, ~beyond(points, mode), mode, points, log_weights)


def _missed_around(
    target: BaseTarget, groups: list[Index], points: Array, log_weights: Array, rows: int, rng: np.random.Generator
) -> LostMode | None:
    """Return a wide mode around points of narrow ones, if the weighted points represent less than half of its mass."""
    missed = []
    for members in groups:
        found = mass_around(target.log_density, points[members], rows, rng)
        if found is not None:
            log_mass, around, own = found
            missed.append(_too_few(log_mass, beyond(points, own), around, points, log_weights))
    widest = largest(missed)
    return None if widest is None else widest._replace(wide=True)


def _missed_when_heated(
    target: BaseTarget, points: Array, log_weights: Array, rng: np.random.Generator
) -> LostMode | None:
    """Return a region that heated draws find, if the weighted points represent too little of its mass."""
    weights, log_mean = normalised_weights(log_weights)
    draws = points[systematic_resampling(weights, _HEATED_FROM, rng)]
    region = region_when_heated(target.log_density, draws, HEATED_ROWS, rng)
    if region is None:
        return None
    there = region.contains(points)
    held, effective = float(weights[there].sum()), effective_sample_size(log_weights[there]) if there.any() else 0.0
    return missed_region(region, held, effective, log_mean, points)


def missed_region(
    region: Region, held: float, effective: float, log_evidence: float, points: Array, known: bool = False
) -> LostMode | None:
    """Return a region as a mode if draws, of which this effective number hold a share there, miss a part of its mass.

    Unless their share is ``known`` up to that number, they also miss it if many would be there, and few decide the share.
    """
    mass = float(np.exp(min(region.log_mass - log_evidence, 300.0)))
    share = mass / (1.0 + mass - held)
    unknown = not known and _is_unknown(effective, share, len(points))
    error = np.hypot(share * (1.0 - share) * region.error, 0.0 if unknown else held * max(effective, 1.0) ** -0.5)
    if share <= SMALLEST_SHARE or (share - held <= max(SMALLEST_SHARE, _ERRORS * error) and not unknown):
        return None
    mean = region.gaussian.mean
    return LostMode(share, mean, farthest(mean, points), held, region.gaussian, wide=True)


def _is_unknown(inside: float, share: float, n: int) -> bool:
    """Return whether too few points are inside to measure the mass there, although many of ``n`` are expected."""
    return inside < _FEWEST_INSIDE and share * n > _EXPECTED * _FEWEST_INSIDE


def _too_few(
    log_mass: float, there: NDArray[np.bool_], mode: GaussianApproximation, points: Array, log_weights: Array
) -> LostMode | None:
    """Return a mode that has the mass found in a region, if the weighted points ``there`` represent less than half of it."""
    total = logsumexp(log_weights[~there]) if not there.all() else -np.inf
    if not np.isfinite(total):  # all weights are there
        return None
    mass = float(np.exp(min(log_mass + np.log(len(points)) - total, 300.0)))  # in units of the mass elsewhere, as held
    held = float(np.exp(min(logsumexp(log_weights[there]) - total, 300.0))) if there.any() else 0.0
    share = mass / (1.0 + mass)
    unknown = _is_unknown(int(np.count_nonzero(there)), share, len(points))
    effective = effective_sample_size(log_weights[there]) if held else 1.0
    if share <= SMALLEST_SHARE or (mass <= TIMES * held * (1.0 + _ERRORS / np.sqrt(effective)) and not unknown):
        return None
    return LostMode(share, mode.mean, farthest(mode.mean, points), 0.0 if unknown else held / (1.0 + held), mode)


def with_missed_mode(approximation: Any, lost: LostMode) -> MixtureApproximation:
    """Return an approximation mixed with the Gaussian of a mode that it missed, in proportion to their masses."""
    if isinstance(approximation, MixtureApproximation) and not approximation.overlapping:
        parts, shares = approximation.components(), approximation.weights
    else:
        parts, shares = [approximation], np.ones(1)
    share = min(max(lost.share, SMALLEST_SHARE), 1.0 - SMALLEST_SHARE)
    method = approximation.method
    return MixtureApproximation(
        [*(1.0 - share) * shares, share],
        np.stack([*(part.mean for part in parts), lost.gaussian.mean]),
        np.stack([*(part.cov for part in parts), lost.gaussian.cov]),
        names=approximation.names,
        target=approximation.target,
        method=method if method.endswith(_ADDED) else method + _ADDED,
        diagnostics=approximation.diagnostics,
    )


_ADDED = " and narrow modes"
