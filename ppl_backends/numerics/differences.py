"""Central differences of batched functions, with the step that balances truncation and rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ppl_backends.numerics.arrays import Array

__all__ = ["STEP", "central_differences", "difference_hessian"]


STEP = float(np.cbrt(np.finfo(float).eps))
"""Relative to max(1, |x|): the error h² of truncation equals that of rounding, ε/h."""


def central_differences(function: Callable[[Array], Any], x: Array, coordinates: Any = None) -> Array:
    """Return the partial derivatives of a batched function at the rows of ``x``, by one call of it.

    Parameters
    ----------
    function : callable
        Points ``(m, dim)`` → values ``(m, ...)``.
    x : ndarray (n, dim)
    coordinates : sequence of int (k,), optional
        In which to differentiate; all by default.

    Returns
    -------
    ndarray (n, k, ...)

    Examples
    --------
    >>> import numpy as np
    >>> central_differences(lambda x: x[:, 0] * x[:, 1], np.array([[2.0, 3.0]])).round(6)
    array([[3., 2.]])
    """
    n, dim = x.shape
    columns = np.arange(dim) if coordinates is None else np.asarray(coordinates)
    step = STEP * np.maximum(1.0, np.abs(x[:, columns]))
    shift = np.zeros((n, len(columns), dim))
    shift[:, np.arange(len(columns)), columns] = step
    both = np.stack([x[:, None] + shift, x[:, None] - shift], axis=1)  # (n, 2, k, dim)
    found = np.asarray(function(both.reshape(-1, dim)), dtype=np.float64)
    up, down = np.moveaxis(found.reshape(n, 2, len(columns), *found.shape[1:]), 1, 0)
    return (up - down) / (2 * step).reshape(*step.shape, *(1,) * (found.ndim - 1))


def difference_hessian(gradient: Callable[[Array], Any], x: Array) -> Array:
    """Return symmetric Hessians ``(n, dim, dim)`` at the rows of ``x`` from a batched gradient ``(m, dim) -> (m, dim)``.

    Examples
    --------
    >>> import numpy as np
    >>> difference_hessian(lambda x: np.stack([x[:, 1], x[:, 0]], axis=1), np.array([[2.0, 3.0]])).round(6)
    array([[[0., 1.],
            [1., 0.]]])
    """
    hessian = central_differences(gradient, x)
    return 0.5 * (hessian + np.swapaxes(hessian, 1, 2))
