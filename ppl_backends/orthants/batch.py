"""Many small rectangles at once, with derivatives: a covariance, bounds and means for each.

The variables keep the given order and the points are fixed, so that the estimate is a smooth function of its
arguments, as gradients require. The derivatives are those of the estimate itself.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ppl_backends.numerics.arrays import for_kernels
from ppl_backends.orthants.intervals import Array
from ppl_backends.orthants.row_kernels import compute_rows, estimate_rows
from ppl_backends.orthants.solvers import scramble

MOST_VARIABLES = 64


class RowDerivatives(NamedTuple):
    """Log probabilities ``(n,)`` and their derivatives by mean, lower, upper ``(n, dim)`` and factor ``(n, dim, dim)``."""

    log_p: Array
    mean: Array
    lower: Array
    upper: Array
    cholesky: Array


def log_rectangles(mean: Array, cholesky: Array, lower: Array, upper: Array, uniforms: Array) -> RowDerivatives:
    """Return log P(lower ≤ X ≤ upper) for every row, X ~ N(mean, C C'), and its derivatives.

    Parameters
    ----------
    mean, lower, upper : ndarray (n, dim)
    cholesky : ndarray (n, dim, dim)
        Lower triangular, diagonals above zero.
    uniforms : ndarray (points, dim) or (n, points, dim)
        The same for all rows, or one set per row.

    Examples
    --------
    >>> import numpy as np
    >>> u = (np.arange(4096)[:, None] + 0.5) / 4096
    >>> found = log_rectangles(np.zeros((2, 1)), np.ones((2, 1, 1)), np.array([[0.0], [1.0]]), np.full((2, 1), np.inf), u)
    >>> found.log_p.round(3), found.lower.round(3).ravel()
    (array([-0.693, -1.841]), array([-0.798, -1.525]))
    """
    found, arguments = _prepared(mean, cholesky, lower, upper)
    points = for_kernels(uniforms)
    estimate_rows(*arguments, points if points.ndim == 3 else points[None], *found)
    return found


def best_log_rectangles(mean: Array, cholesky: Array, lower: Array, upper: Array, uniforms: Array) -> RowDerivatives:
    """Return the same, exact for rows with two or three variables, each bounded; ``uniforms`` ``(points, dim)``.

    Rows with parameters that are not finite, or without a Cholesky factor, have probability zero.
    """
    found, arguments = _prepared(mean, cholesky, lower, upper)
    compute_rows(*arguments, for_kernels(uniforms), *found)
    return found


@lru_cache(maxsize=16)
def fixed_points(n: int, seed: int) -> Array:
    """Return points for rows of at most 64 variables, the same in every run; a row uses one column per variable."""
    return scramble(n, MOST_VARIABLES, np.random.SeedSequence(seed))


def _prepared(*arguments: Array) -> tuple[RowDerivatives, list[Array]]:
    """Return empty results, and arguments in the form that the kernels take."""
    n, dim = arguments[0].shape
    by_mean, by_lower, by_upper = np.zeros((n, dim)), np.zeros((n, dim)), np.zeros((n, dim))
    found = RowDerivatives(np.empty(n), by_mean, by_lower, by_upper, np.zeros((n, dim, dim)))
    return found, [for_kernels(x) for x in arguments]
