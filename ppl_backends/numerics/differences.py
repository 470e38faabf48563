"""Central differences of batched functions, with the step that balances truncation and rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ppl_backends.numerics.arrays import Array

STEP = float(np.cbrt(np.finfo(float).eps))
"""Relative to max(1, |x|): the truncation error h² equals the rounding error ε/h."""


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
    return 0.5 * (hessian + np.swapaxes(hessian, 1, 2))
