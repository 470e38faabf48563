"""Separated groups of points, detected by gaps along coordinates and along principal axes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.robust import ONE_SD, median_and_width

_GAP = 1.5  # between two modes, in half 16-to-84 % ranges of either
# Of the points, in a gap. One stray would hide modes from a bound of zero, and more points have more strays. Gaussian modes
# eight sds apart have such a gap.
_STRAYS = 1e-3
_SMALLEST_SHARE = 0.1  # of the particles, on each side of a gap
_FEWEST_IN_A_MODE = 10  # different points, however small the share is
_FEWEST = 100  # least number of points that can show a gap
_CANDIDATES = 10
_AXES = 3  # principal ones, along which modes are looked for as well
_MOST_FOR_AXES = 2000  # points that determine these
_ITERATIONS = 5  # enough for an axis with four times the variance of the others, as that between two modes


def modes(x: Array, smallest_share: float = _SMALLEST_SHARE) -> NDArray[np.intp]:
    """Return the number ``(n,)`` of each point's mode, as detected by gaps along coordinates.

    A mode has at least ``smallest_share`` of the points, and ten different ones.
    """
    labels = np.zeros(len(x), dtype=np.intp)
    smallest = max(int(smallest_share * len(x)), _FEWEST_IN_A_MODE)
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


def modes_along_axes(x: Array, smallest_share: float = _SMALLEST_SHARE) -> NDArray[np.intp]:
    """Return the separated mode ``(n,)`` of every point, looked for along coordinates and along the longest axes.

    Modes apart along a diagonal may have no gap in any coordinate. A mode has at least ``smallest_share`` of the points.
    """
    if len(x) < _FEWEST or x.shape[1] == 1:
        return modes(x, smallest_share)
    z = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-300)
    return modes(np.hstack([x, z @ _longest_axes(z[:: max(1, len(z) // _MOST_FOR_AXES)])]), smallest_share)


def _longest_axes(z: Array) -> Array:
    """Return the principal axes of the largest variances as columns, by subspace iteration from some of the points."""
    axes = z[np.linspace(0, len(z) - 1, _AXES + 2).astype(int)].T
    for _ in range(_ITERATIONS):
        axes, _ = np.linalg.qr(z.T @ (z @ axes))
    along = z @ axes
    _, vectors = np.linalg.eigh(along.T @ along)
    return np.asarray(axes @ vectors[:, -_AXES:])


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
        sides = ordered[: at[j], j], ordered[at[j] + strays :, j]
        different = min(len(np.unique(side)) for side in sides)  # few points and their copies are no mode
        if different >= _FEWEST_IN_A_MODE and _is_between_groups(ordered[:, j], gaps[:, j], smallest, strays):
            return int(j), float(0.5 * (ordered[at[j] - 1, j] + ordered[at[j] + strays, j]))
    return None


def _is_between_groups(ordered: Array, gaps: Array, smallest: int, strays: int) -> bool:
    """Return whether the widest of the ``gaps`` of a column, or several of them, separate groups narrower than they are.

    The widest gap between three modes in a row has two of them on one side, which are wider together than the gap. So
    the column is cut at one, two, and more of its widest gaps, as long as the points nearest to each are close together.
    """
    left, cuts = gaps.copy(), list[int]()
    while left.max() > -np.inf:
        k = int(np.argmax(left))
        low, high = k + smallest, k + smallest + strays  # the end of the group on the left, the start of the next one
        nearest = max(_half_range(ordered[low - smallest : low]), _half_range(ordered[high : high + smallest]))
        if not left[k] > _GAP * nearest:
            return False
        cuts = sorted([*cuts, k])
        starts, ends = (
            [0, *(cut + smallest + strays for cut in cuts)],
            [*(cut + smallest for cut in cuts), len(ordered)],
        )
        widths = [_half_range(ordered[start:end]) for start, end in zip(starts, ends, strict=True)]
        # Beyond a gap in a heavy tail the points are further apart than the gap is wide.
        if all(gaps[cut] > _GAP * max(widths[i : i + 2]) for i, cut in enumerate(cuts)):
            return True
        left[max(0, k - smallest - strays + 1) : k + smallest + strays] = -np.inf  # other groups are no smaller
    return False


def _half_range(ordered: Array) -> float:
    """Return half the distance between the 16 % and 84 % quantiles of ordered values."""
    low, _, high = np.interp(ONE_SD * (len(ordered) - 1), np.arange(len(ordered)), ordered)
    return float(0.5 * (high - low))
