"""Modes that weighted points of a posterior miss: a search for narrow ones, and the mass of what is found.

A narrow mode with most of the mass (a spike) takes up a tiny part of the region that a wide one fills. Weights p/q of draws
of an approximation q of the wide one are nearly equal, and tell nothing of it, unless one of the draws meets the region
where the spike is denser than the wide mode. Two kinds of points may: the weighted points themselves, and differences of them
around the centres of their modes, drawn in. The latter are what draws of q^β would be, with β up to 16: if the spike is not
at the centre, one of these powers fills the region around it more densely than q. Only values are needed, no gradients.
Where a point is far denser than q explains, a climb begins.

The mass of each mode found is measured by importance sampling from the Gaussian there, within an ellipsoid that bounds the
weights. It is missed if it has more than twice the mass that weighted points within the ellipsoid stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.approximations.modes import beyond
from ppl_backends.approximations.newton import modes_above
from ppl_backends.approximations.resolve import has_one_mode
from ppl_backends.numerics.gaps import modes
from ppl_backends.targets.protocol import Array, BaseTarget

SMALLEST_SHARE = 0.01  # of the evidence
TIMES = 2.0  # the mass that points stand for, above which a mode is missed
DENSER = 2.0  # nats above what all but a hundredth of the points have
EACH = 6  # climbs from each kind of points
ITERATIONS = 30
_LARGEST_DIM = 100  # above it the Hessians of climbs cost more than they are worth
_POINTS = 512  # of importance sampling
_FEWEST_WEIGHTS = 20.0  # effective number of those, below which a mass is not known
_FEWEST_INSIDE = 20  # points, fewer than which do not know the mass around them
_POWERS = 2.0 ** np.array([0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0])
_NARROWED, _MOST_NARROWED = 16, 2**15  # times the weighted points, and in all


class LostMode(NamedTuple):
    """A mode at ``x`` ``(dim,)`` that holds too few of the draws, a share ``held`` of them.

    It has a ``share`` of the evidence, is farthest from the draws in a ``coordinate``, and ``gaussian`` fits it.
    """

    share: float
    x: Array
    coordinate: int
    held: float
    gaussian: GaussianApproximation


def lost_mode_reason(
    lost: LostMode,
    names: Sequence[str] = (),
    advice: str = ": use initial='auto', which starts from all modes that it finds, or increase draws",
) -> str:
    """Return what is said of a mode that no draw is in."""
    name = name_of(lost.coordinate, names)
    holds = "no draw" if lost.held == 0 else f"{100 * lost.held:.3g} % of the draws"
    return (
        f"a mode with about {100 * lost.share:.0f} % of the posterior, at `{name}` = {lost.x[lost.coordinate]:.3g} on the "
        f"unconstrained scale, holds {holds}{advice}"
    )


def name_of(coordinate: int, names: Sequence[str]) -> str:
    """Return what a coordinate is called in warnings."""
    return names[coordinate] if names else f"coordinate {coordinate}"


def can_be_sought(target: BaseTarget) -> bool:
    """Return whether lost modes are looked for: climbs need gradients, and Hessians of a size that can be afforded."""
    return target.has_gradient and target.dim <= _LARGEST_DIM


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
    is called with ``rows`` of them at once. Nothing is sought where the ``approximation`` knows of a single mode.
    """
    if target.is_estimated or not can_be_sought(target) or has_one_mode(approximation):
        return None
    if not np.isfinite(log_weights).any():
        return None
    log_weights = np.nan_to_num(log_weights, nan=-np.inf, posinf=-np.inf, neginf=-np.inf)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        narrowed = _narrowed(points, rows, rng)
        found = np.concatenate([weigh(block) for block in np.split(narrowed, len(narrowed) // rows)])
        floor = np.quantile(log_weights, 0.99, method="lower") + DENSER
        starts = [_heaviest(points, log_weights, floor), _heaviest(narrowed, found, floor)]
        climbs = (
            modes_above(target, np.unique(np.concatenate(starts), axis=0), ITERATIONS) if any(map(len, starts)) else []
        )
        missed = [_missed(target, mode, points, log_weights, rng) for mode in climbs]
    return max((mode for mode in missed if mode is not None), key=lambda mode: mode.share, default=None)


def _narrowed(points: Array, rows: int, rng: np.random.Generator) -> Array:
    """Return points around the centres of the modes, drawn in by a factor each: a whole number of calls.

    Differences of two points of a mode have new directions, and those of two draws of a Gaussian are √2 times as wide.
    """
    n = max(1, min(_NARROWED * len(points), _MOST_NARROWED) // rows) * rows
    at = np.arange(n)
    first = at % len(points)
    power = _POWERS[(at + at // len(points)) % len(_POWERS)]
    labels, narrowed = modes(points), np.empty((n, points.shape[1]))
    for label in range(labels.max() + 1):
        members, own = np.flatnonzero(labels == label), labels[first] == label
        apart = points[first[own]] - points[rng.choice(members, np.count_nonzero(own))]
        narrowed[own] = np.median(points[members], axis=0) + apart / np.sqrt(2.0 * power[own])[:, None]
    return narrowed


def _heaviest(points: Array, log_weights: Array, floor: float) -> Array:
    """Return the points of largest weights among those above ``floor``."""
    order = np.argsort(np.where(np.isfinite(log_weights), -log_weights, np.inf), kind="stable")[:EACH]
    return points[order[log_weights[order] > floor]]


def _missed(
    target: BaseTarget, mode: GaussianApproximation, points: Array, log_weights: Array, rng: np.random.Generator
) -> LostMode | None:
    """Return a mode if the weighted points stand for less than half of its mass, None for others."""
    log_mass = log_mass_of(target.log_density, mode, rng)
    if log_mass is None:
        return None
    inside = ~beyond(points, mode)
    total = logsumexp(log_weights[~inside]) if not inside.all() else -np.inf
    if not np.isfinite(total):  # all weights are inside
        return None
    mass = float(np.exp(min(log_mass + np.log(len(points)) - total, 300.0)))  # in units of the mass outside, as held
    held = float(np.exp(min(logsumexp(log_weights[inside]) - total, 300.0))) if inside.any() else 0.0
    unknown = np.count_nonzero(inside) < _FEWEST_INSIDE
    share = mass / (1.0 + mass)
    if share <= SMALLEST_SHARE or (mass <= TIMES * held and not unknown):
        return None
    return LostMode(share, mode.mean, farthest(mode.mean, points), 0.0 if unknown else held / (1.0 + held), mode)


def log_mass_of(
    log_density: Callable[[Array], Array], mode: GaussianApproximation, rng: np.random.Generator
) -> float | None:
    """Return the log integral of a density within an ellipsoid around a mode; None where too few weights decide it."""
    x = mode.sample(_POINTS, rng)
    inside = ~beyond(x, mode)
    log_weights = np.where(inside, log_density(x) - mode.log_density(x), -np.inf)
    peak = log_weights.max()
    if not np.isfinite(peak):
        return None
    weights = np.exp(log_weights - peak)
    if weights.sum() ** 2 < _FEWEST_WEIGHTS * (weights**2).sum():
        return None
    return float(peak + np.log(weights.mean()))


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


def farthest(x: Array, points: Array) -> int:
    """Return the coordinate of ``x`` that is farthest from the points."""
    return int(np.argmax(np.abs(x - points.mean(axis=0)) / np.maximum(points.std(axis=0), 1e-300)))
