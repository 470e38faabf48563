"""Separated groups of points, detected by gaps along coordinates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.robust import median_and_width

_GAP = 1.5  # between two modes, in half 16-to-84 % ranges of either
# Of the points, in a gap. One stray would hide modes from a bound of zero, and more points have more strays. Gaussian modes
# eight sds apart have such a gap.
_STRAYS = 1e-3
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
    strays = int(_STRAYS * len(x))
    if len(x) < 2 * smallest + strays or len(x) < _FEWEST // 4:
        return None
    ordered = np.sort(x, axis=0)
    inner = ordered[smallest - 1 : len(x) - smallest + 1]
    gaps = inner[strays + 1 :] - inner[: -strays - 1]
    widest, at = gaps.max(axis=0), gaps.argmax(axis=0) + smallest
    relative = widest / np.maximum(median_and_width(ordered)[1], 1e-300)
    for j in np.argsort(relative)[::-1][:_CANDIDATES]:
        # Beyond a gap in a heavy tail the points are further apart than the gap is wide.
        low, high = at[j], at[j] + strays  # the end of the left mode, and the start of the right one
        if widest[j] > _GAP * max(median_and_width(side)[1] for side in (ordered[:low, j], ordered[high:, j])):
            return int(j), float(0.5 * (ordered[low - 1, j] + ordered[high, j]))
    return None
