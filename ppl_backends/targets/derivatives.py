"""Compiled derivatives held against differences, once, where they are first used."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ppl_backends.numerics.differences import STEP
from ppl_backends.targets.protocol import Array

__all__ = ["DISAGREEMENT", "derivative_error"]

DISAGREEMENT = 0.01  # relative error above which a compiled derivative is not used
N_DIRECTIONS = 4


def derivative_error(function: Callable[[Array], Array], x: Array, derivative: Array) -> float:
    """Return the relative error of a derivative, beyond what differences can tell.

    In random directions v, the derivative times v is compared with central differences. What these can tell is judged by
    differences over twice the step and by the change of the slope along it, which is large at a kink.

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
    step = STEP
    shifts = step * np.array([1.0, -1.0, 2.0, -2.0])[:, None, None] * directions  # (4, N_DIRECTIONS, dim)
    values = function(x + shifts.reshape(-1, len(x))).reshape(4, N_DIRECTIONS, -1)
    given = directions @ np.atleast_2d(derivative).T
    if not (np.isfinite(values).all() and np.isfinite(given).all()):
        return 0.0
    up, down, far_up, far_down = values
    near, far = (up - down) / (2 * step), (far_up - far_down) / (4 * step)
    kink = (far_up - up - down + far_down) / step  # slopes further on less slopes further back
    rounding = 100 * np.finfo(float).eps * np.abs(values).max() / step
    doubt = (10 * np.abs(near - far) + np.abs(kink)).max(axis=1) + rounding
    size = np.maximum(np.abs(near).max(axis=1), np.abs(given).max(axis=1))
    excess = np.abs(near - given).max(axis=1) - doubt
    return float(np.max(np.maximum(excess, 0.0) / np.maximum(size, 1e-300)))
