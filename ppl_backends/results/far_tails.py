"""Tails of a posterior farther out than its draws, from its density.

A variable may have no mean because of a tail in which a sample has few draws, too few for Pareto k of the draws to show it.
If the variable is a function of one coordinate u of the unconstrained space, and v are the other coordinates,

    p(u') / p(u) = E[p(u', v) / p(u, v) | u].

So a few draws beyond a quantile, moved along this coordinate alone, show the density as far out as it can be evaluated. If
v changes along the tail, the few draws miss that, and the tail is heavier than it seems.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.special import logsumexp

from ppl_backends.errors import SamplerWarning
from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.weights import LARGEST_PARETO_K
from ppl_backends.targets.protocol import BaseTarget

_OUTER = (0.02, 0.005)  # shares of the draws that are farther out than the first and the last of those that are moved
_LINES = 24  # draws that are moved
_FAR = np.log(1e8)  # logarithm of the last distance from the median in units of the first
_APART = 0.75  # the same for neighbours
_STEPS = np.concatenate([[0.0], np.geomspace(1e-2, 1e10, 500)])  # in standard deviations of the coordinate
_FEWEST = 3  # distances in a heavy tail


def far_tail(target: BaseTarget, x: Array, name: str, column: int, value: Array) -> float:
    """Return Pareto k of a tail in which at least one of the draws is expected, if k is above 0.7 and stays so, else 0.

    ``x`` ``(n, dim)`` are draws on the unconstrained space, and ``value`` ``(n,)`` is element number ``column`` of the
    flat variable ``name``. Only elements that are a function of one coordinate are judged.
    """
    order = np.argsort(value, kind="stable")
    rises = np.diff(x[order], axis=0)
    signs = (rises >= 0).all(axis=0).astype(int) - (rises <= 0).all(axis=0).astype(int)
    if not signs.any():
        return 0.0
    j, middle = int(np.argmax(np.abs(signs))), float(np.median(value))

    def distances(points: Array, side: int) -> Array:
        with warnings.catch_warnings():  # of generated quantities, which may fail far out
            warnings.simplefilter("ignore", SamplerWarning)
            found = np.asarray(target.constrain(points, np.random.default_rng(0))[name], dtype=np.float64)
        return side * (found.reshape(len(points), -1)[:, column] - middle)

    sides = ((1, x[order[::-1]]), (-1, x[order]))
    return max(_heavy_side(target, outer, j, side * signs[j], partial(distances, side=side)) for side, outer in sides)


def _heavy_side(target: BaseTarget, outer: Array, j: int, sign: int, distances: Callable[[Array], Array]) -> float:
    """Return the same for one side; ``outer`` are the draws by falling distance."""
    places = _places(outer, j, sign, distances)
    return 0.0 if places is None else _heavy(target, outer, j, *places)


def _places(outer: Array, j: int, sign: int, distances: Callable[[Array], Array]) -> tuple[Array, Array] | None:
    """Return values of coordinate ``j``, and logarithms of the distances there, evenly spaced; None if they end."""
    moved = np.repeat(outer[[int(_OUTER[0] * len(outer))]], len(_STEPS), axis=0)
    moved[:, j] += sign * _STEPS * outer[:, j].std()
    with np.errstate(all="ignore"):
        log_distance = np.log(distances(moved))
    kept = [0]
    for place, at in enumerate(log_distance):
        if log_distance[kept[-1]] + _APART < at < log_distance[0] + _FAR + _APART:
            kept.append(place)
    ends = not log_distance[kept[-1]] > log_distance[0] + _FAR - _APART
    return None if ends else (moved[kept, j], log_distance[kept])


def _heavy(target: BaseTarget, outer: Array, j: int, u: Array, log_distance: Array) -> float:
    """Return Pareto k of the mean density at places ``u``; 0 if it is light at the last of them, or has no draw."""
    first, last = (int(share * len(outer)) for share in _OUTER)
    lines = outer[np.unique(np.linspace(last, first, _LINES).astype(int))]
    moved = np.repeat(lines, len(u), axis=0)
    moved[:, j] = np.tile(u, len(lines))
    with np.errstate(all="ignore"):  # far out
        ratio = target.log_density(moved).reshape(len(lines), -1) - target.log_density(lines)[:, None]
        of_place = logsumexp(np.where(np.isnan(ratio), -np.inf, ratio), axis=0)
        apart = np.diff(log_distance)
        log_density = (of_place[1:] + of_place[:-1]) / 2 + np.log(np.abs(np.diff(u)) / apart)  # of the log distance
        middle = (log_distance[1:] + log_distance[:-1]) / 2
        light = np.flatnonzero(~(np.diff(log_density) > -np.diff(middle) / LARGEST_PARETO_K))
    begins = int(light[-1]) + 1 if len(light) else 0
    if len(middle) - begins <= _FEWEST:
        return 0.0
    mass = np.exp(log_density - log_density.max()) * apart
    if first * mass[begins:].sum() < mass.sum():
        return 0.0
    half = (begins + len(middle)) // 2  # the tail may begin with a shoulder
    fall = log_density[half] - log_density[-1]
    return float((middle[-1] - middle[half]) / fall) if fall > 0 else np.inf
