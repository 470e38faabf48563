"""Central differences of batched functions, with the step that balances truncation and rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ppl_backends.numerics.arrays import Array

STEP = float(np.cbrt(np.finfo(float).eps))
"""Relative to max(1, |x|): the truncation error h² equals the rounding error ε/h."""

LONG, SHORT = 10.0, 0.01  # scales over steps that are too long, and new steps over scales
LEAST_WIDTH = 1e-10  # of a step over the coordinate
MOST_ROUNDS = 30
BLOCK = 2**20  # numbers in a gradient call, over four


def central_differences(
    function: Callable[[Array], Any], x: Array, coordinates: Any = None, step: float = STEP
) -> Array:
    """Return the partial derivatives ``(n, k, ...)`` of a batched function at the rows of ``x``, by one call of it.

    They are in ``coordinates`` ``(k,)``, all by default; a ``step`` is relative to max(1, |x|).
    """
    n, dim = x.shape
    columns = np.arange(dim) if coordinates is None else np.asarray(coordinates)
    width = step * np.maximum(1.0, np.abs(x[:, columns]))
    shift = np.zeros((n, len(columns), dim))
    shift[:, np.arange(len(columns)), columns] = width
    both = np.stack([x[:, None] + shift, x[:, None] - shift], axis=1)  # (n, 2, k, dim)
    found = np.asarray(function(both.reshape(-1, dim)), dtype=np.float64)
    up, down = np.moveaxis(found.reshape(n, 2, len(columns), *found.shape[1:]), 1, 0)
    return (up - down) / (2 * width).reshape(*width.shape, *(1,) * (found.ndim - 1))


def difference_hessian(gradient: Callable[[Array], Any], x: Array) -> Array:
    """Return symmetric Hessians ``(n, dim, dim)`` at the rows of ``x`` from a batched gradient ``(m, dim) -> (m, dim)``."""
    hessian = central_differences(gradient, x)
    hessian = 0.5 * (hessian + np.swapaxes(hessian, 1, 2))
    return with_short_steps(gradient, x, hessian, STEP * np.maximum(1.0, np.abs(x)))


def with_short_steps(gradient: Callable[[Array], Any], x: Array, hessian: Array, width: Array) -> Array:
    """Return Hessians whose columns are computed again where the step of differences was not short.

    A coordinate has the scale 1/√|∂²ⱼⱼ|, which may be tiny, as that of the coefficient of a covariate in large units. The
    new step is a hundredth of it, by differences of fourth order. A long step overstates the scale, so this is repeated.

    Parameters
    ----------
    hessian : ndarray (n, dim, dim)
        Symmetric.
    width : ndarray (n, dim)
        Steps that it was computed with.
    """
    for _ in range(MOST_ROUNDS):
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = 1.0 / np.sqrt(np.abs(np.diagonal(hessian, axis1=1, axis2=2)))
        shorter = np.maximum(SHORT * scale, LEAST_WIDTH * np.abs(x))
        long = (scale < LONG * width) & (shorter < 0.5 * width)
        if not long.any():
            break
        width = np.where(long, shorter, width)
        rows, columns = np.nonzero(long)
        hessian = hessian.copy()
        for block in np.array_split(np.arange(len(rows)), 1 + len(rows) * x.shape[1] // BLOCK):
            row, column = rows[block], columns[block]
            hessian[row, :, column] = _fourth_order(gradient, x[row], column, width[row, column])
        other = np.swapaxes(hessian, 1, 2)
        hessian = np.where(long[:, :, None] & ~long[:, None, :], other, hessian)
        hessian = 0.5 * (hessian + np.swapaxes(hessian, 1, 2))
    return hessian


def _fourth_order(gradient: Callable[[Array], Any], x: Array, columns: Any, width: Array) -> Array:
    """Return the derivative ``(n, dim)`` of the gradient at each row of ``x`` along one of its coordinates."""
    moved = np.repeat(x[None], 4, axis=0)
    moved[:, np.arange(len(x)), columns] += np.array([-2.0, -1.0, 1.0, 2.0])[:, None] * width
    slopes = np.asarray(gradient(moved.reshape(-1, x.shape[1])), dtype=np.float64).reshape(moved.shape)
    return (slopes[0] - 8 * slopes[1] + 8 * slopes[2] - slopes[3]) / (12 * width[:, None])
