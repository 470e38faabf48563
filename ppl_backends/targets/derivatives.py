"""Compiled derivatives held against differences, once, where they are first used."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ppl_backends.targets.protocol import Array

__all__ = ["DISAGREEMENT", "derivative_error"]

DISAGREEMENT = 0.01  # relative error above which a compiled derivative is not used
N_DIRECTIONS = 4


def derivative_error(function: Callable[[Array], Array], x: Array, derivative: Array) -> float:
    """Return the relative error of a derivative, beyond what differences can tell.

    In random directions v, the derivative times v is compared with central differences over two step lengths. Their own
    disagreement bounds the error of differencing: it is large at kinks and where rounding dominates.

    Parameters
    ----------
    function : callable
        ``(16, dim) -> (16, ...)``, values or gradients.
    x : ndarray (dim,)
    derivative : ndarray (..., dim)
        At ``x``.

    Returns
    -------
    float
        The largest over the directions; 0 where anything is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([1.0, 2.0])
    >>> float(derivative_error(lambda x: (x**3).sum(axis=1), x, 3 * x**2))
    0.0
    >>> float(derivative_error(lambda x: (x**3).sum(axis=1), x, 6 * x**2)) > 0.3
    True
    """
    directions = np.random.default_rng(0).standard_normal((N_DIRECTIONS, len(x))) * np.maximum(1.0, np.abs(x))
    step = np.cbrt(np.finfo(float).eps)
    shifts = step * np.array([1.0, -1.0, 2.0, -2.0])[:, None, None] * directions  # (4, N_DIRECTIONS, dim)
    values = function(x + shifts.reshape(-1, len(x)))
    values = values.reshape(4, N_DIRECTIONS, -1)
    near, far = (values[0] - values[1]) / (2 * step), (values[2] - values[3]) / (4 * step)
    given = directions @ np.atleast_2d(derivative).T
    if not (np.isfinite(values).all() and np.isfinite(given).all()):
        return 0.0
    rounding = 100 * np.finfo(float).eps * np.abs(values).max() / step
    doubt = 10 * np.abs(near - far).max(axis=1) + rounding
    size = np.maximum(np.abs(near).max(axis=1), np.abs(given).max(axis=1))
    excess = np.abs(near - given).max(axis=1) - doubt
    return float(np.max(np.maximum(excess, 0.0) / np.maximum(size, 1e-300)))
