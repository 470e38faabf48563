"""Compiled runs of several steps: control-variate and scalable Metropolis on rows with linear predictors.

They are the algorithms of :mod:`~ppl_backends.kernels.subsampling.control` and
:mod:`~ppl_backends.kernels.subsampling.exact`, for a log density that is quadratic up to the residuals of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

from ppl_backends.kernels.protocol import acceptance_probability
from ppl_backends.numerics.jit import jit
from ppl_backends.targets.factors.compiled import site
from ppl_backends.targets.protocol import Array


class SameTypes:
    """A compiled function whose arguments always have the types of the first call, so that Numba checks them once.

    A check costs as much as several steps. Arrays are contiguous.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._entry: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        if self._entry is None:
            self._entry = self._function.compile(tuple(numba.typeof(value) for value in arguments))
        return self._entry(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to rebuild the function in another process."""
        return SameTypes, (self._function,)


class CompiledRows(NamedTuple):
    """Rows and the quadratic part of a log density.

    Attributes
    ----------
    design : ndarray (n, d)
    y, extra : ndarray (n,)
    family : int
    at_mode : ndarray (n, 4)
        Linear predictor, φ, φ′ and φ″ at the mode.
    slope, hessian : ndarray (d,), (d, d)
        Of log prior + Σ qᵢ at the mode.
    factor, inverse : ndarray (d, d)
        L and L⁻¹ of the expansion point.
    """

    design: Array
    y: Array
    extra: Array
    family: int
    at_mode: Array
    slope: Array
    hessian: Array
    factor: Array
    inverse: Array


class Proposals(NamedTuple):
    """A random walk of the given scale, or ``independent`` draws of the Laplace approximation."""

    scale: float
    independent: bool


class Bounds(NamedTuple):
    """Bounds on the rows' residuals and their cumulated sums, within ``radius`` of the mode and everywhere."""

    near: Array
    near_ends: Array
    far: Array
    far_ends: Array
    radius: float


@jit
def _residual(design, y, extra, family, at_mode, i, delta):
    u = 0.0
    for j in range(len(delta)):
        u += design[i, j] * delta[j]
    value = site(family, at_mode[i, 0] + u, y[i], extra[i])[0]
    return value - at_mode[i, 1] - u * (at_mode[i, 2] + 0.5 * u * at_mode[i, 3])


@jit
def _quadratic(slope, hessian, delta):
    total = 0.0
    for j in range(len(delta)):
        inner = slope[j]
        for k in range(len(delta)):
            inner += 0.5 * hessian[j, k] * delta[k]
        total += delta[j] * inner
    return total


@jit
def _times(matrix, z):
    """Multiply a lower triangular matrix by a vector."""
    out = np.zeros(len(z))
    for j in range(len(z)):
        for k in range(j + 1):
            out[j] += matrix[j, k] * z[k]
    return out


@jit
def _square(z):
    total = 0.0
    for value in z:
        total += value * value
    return total


@jit
def _propose(rng, factor, inverse, proposals, delta):
    """Return a point about ``delta`` or of the Laplace approximation, and the log ratio of the two proposal densities."""
    z = np.empty(len(delta))
    for j in range(len(delta)):
        z[j] = rng.standard_normal()
    move = _times(factor, z)
    if proposals.independent:
        return move, 0.5 * (_square(z) - _square(_times(inverse, delta)))
    return delta + proposals.scale * move, 0.0


@jit
def control_variate_walk(rng, steps, rows, proposals, delta, subset, residuals):
    """Make ``steps`` steps from ``delta``; ``delta``, ``subset`` and ``residuals`` change in place.

    Returns the mean acceptance probability, how many proposals were accepted, and value and variance of the last estimate.
    """
    design, y, extra, family, at_mode, slope, hessian, factor, inverse = rows
    n, m = len(design), len(subset)
    block = max(1, m // 10)
    accepts, moves = 0.0, 0
    variance = n * n / m * residuals.var()
    value = _quadratic(slope, hessian, delta) + n * residuals.mean() - 0.5 * variance
    new_subset, new_residuals = subset.copy(), residuals.copy()
    for _ in range(steps):
        new, correction = _propose(rng, factor, inverse, proposals, delta)
        first = int(rng.random() * (m - block + 1))
        new_subset[:] = subset
        for k in range(first, first + block):
            new_subset[k] = int(rng.random() * n)
        for k in range(m):
            new_residuals[k] = _residual(design, y, extra, family, at_mode, new_subset[k], new)
        new_variance = n * n / m * new_residuals.var()
        new_value = _quadratic(slope, hessian, new) + n * new_residuals.mean() - 0.5 * new_variance
        accept = acceptance_probability(new_value - value + correction)
        accepts += accept
        if rng.random() < accept:
            delta[:], subset[:], residuals[:] = new, new_subset, new_residuals
            value, variance = new_value, new_variance
            moves += 1
    return accepts / steps, moves, value, variance


@jit
def control_variate_slope(rows, delta, subset, residuals, gradient):
    """Return value and variance of the estimate at ``delta``; fill ``residuals`` and ``gradient``.

    The gradient of ℓ̂ − σ̂²/2 is a sum of residual gradients with weights N/m − (N/m)²(rᵢ − r̄).
    """
    design, y, extra, family, at_mode, slope, hessian, _, _ = rows
    n, m, dim = len(design), len(subset), len(delta)
    along = np.empty(m)
    for k in range(m):
        i, u = subset[k], 0.0
        for j in range(dim):
            u += design[i, j] * delta[j]
        value, first, _ = site(family, at_mode[i, 0] + u, y[i], extra[i])
        residuals[k] = value - at_mode[i, 1] - u * (at_mode[i, 2] + 0.5 * u * at_mode[i, 3])
        along[k] = first - at_mode[i, 2] - u * at_mode[i, 3]
    mean, variance = residuals.mean(), n * n / m * residuals.var()
    gradient[:] = slope
    for j in range(dim):
        for k in range(dim):
            gradient[j] += hessian[j, k] * delta[k]
    for k in range(m):
        weight = (n / m - (n / m) ** 2 * (residuals[k] - mean)) * along[k]
        for j in range(dim):
            gradient[j] += weight * design[subset[k], j]
    return _quadratic(slope, hessian, delta) + n * mean - 0.5 * variance, variance


@jit
def scalable_walk(rng, steps, rows, proposals, limits, delta, z):
    """Make ``steps`` exact steps from ``delta``; ``delta`` and its whitened form ``z`` change in place.

    Returns the mean acceptance probability, moves, rows evaluated, and the quadratic part of the log density at the end.
    """
    design, y, extra, family, at_mode, slope, hessian, factor, inverse = rows
    accepts, moves, looked = 0.0, 0, 0
    z_square = _square(z)
    value = _quadratic(slope, hessian, delta)
    for _ in range(steps):
        new, correction = _propose(rng, factor, inverse, proposals, delta)
        new_z = _times(inverse, new)
        new_square = _square(new_z)
        new_value = _quadratic(slope, hessian, new)
        accept = acceptance_probability(new_value - value + correction)
        accepts += accept
        accepted = rng.random() < accept
        if accepted:
            bounds, ends = limits.far, limits.far_ends
            if max(z_square, new_square) <= limits.radius * limits.radius:
                bounds, ends = limits.near, limits.near_ends
            total, reach = ends[-1], z_square**1.5 + new_square**1.5
            events = rng.poisson(total * reach)
            looked += events
            for _k in range(events):
                i = min(np.searchsorted(ends, rng.random() * total, side="right"), len(ends) - 1)
                drop = _residual(design, y, extra, family, at_mode, i, delta)
                drop -= _residual(design, y, extra, family, at_mode, i, new)
                if rng.random() * bounds[i] * reach < drop:
                    accepted = False
                    break
        if accepted:
            delta[:], z[:] = new, new_z
            value, z_square = new_value, new_square
            moves += 1
    return accepts / steps, moves, looked, value
