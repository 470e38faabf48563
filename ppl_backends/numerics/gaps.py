"""Separated groups of points, detected by gaps along coordinates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ppl_backends.numerics.arrays import Array

_GAP = 1.5  # between two modes, in half 16-to-84 % ranges of either; modes six sds apart have this gap
_SMALLEST_SHARE = 0.1  # of the particles, on each side of a gap
_FEWEST = 100  # least number of points that can show a gap
_CANDIDATES = 10


def modes(x: Array) -> NDArray[np.intp]:
    """Return the number ``(n,)`` of each point's mode, as detected by gaps along coordinates."""
    labels = np.zeros(len(x), dtype=np.intp)
    smallest = max(int(_SMALLEST_SHARE * len(x)), 1)
    to_do = [0] if len(x) >= _FEWEST else []
    while to_do:
        label = to_do.pop()
        rows = np.flatnonzero(labels == label)
        cut = _gap(x[rows], smallest)
        if cut is not None:
            coordinate, value = cut
            new = int(labels.max()) + 1
            labels[rows[x[rows, coordinate] > value]] = new
            to_do += [label, new]
    return labels


def _gap(x: Array, smallest: int) -> tuple[int, float] | None:
    """Return coordinate and middle of the widest gap between modes that leaves ``smallest`` points on both sides."""
    if len(x) < 2 * smallest or len(x) < _FEWEST // 4:
        return None
    ordered = np.sort(x, axis=0)
    gaps = np.diff(ordered[smallest - 1 : len(x) - smallest + 1], axis=0)
    widest, at = gaps.max(axis=0), gaps.argmax(axis=0) + smallest
    relative = widest / np.maximum(_width(ordered), 1e-300)
    for j in np.argsort(relative)[::-1][:_CANDIDATES]:
        # Beyond a gap in a heavy tail the points are further apart than the gap is wide.
        if widest[j] > _GAP * max(_width(ordered[: at[j], j]), _width(ordered[at[j] :, j])):
            return int(j), float(0.5 * (ordered[at[j] - 1, j] + ordered[at[j], j]))
    return None


def _width(x: Array) -> Array:
    """Return half the distance between the 16 % and the 84 % quantile."""
    low, high = np.quantile(x, [0.158655, 0.841345], axis=0)
    width: Array = 0.5 * (high - low)
    return width
