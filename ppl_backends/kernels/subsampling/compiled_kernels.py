"""Compiled runs of several steps: control-variate and scalable Metropolis on rows with linear predictors.

They are the algorithms of :mod:`~ppl_backends.kernels.subsampling.control` and
:mod:`~ppl_backends.kernels.subsampling.exact`, for a log density that is quadratic up to the residuals of the rows.
``factor`` and ``inverse`` are L and L⁻¹ of the expansion point, ``slope`` and ``hessian`` those of log prior + Σ qᵢ there.
"""

from __future__ import annotations

import numba
import numpy as np

from ppl_backends.targets.factors.compiled import site

__all__ = ["control_variate_walk", "scalable_walk"]

jit = numba.njit(cache=True, nogil=True)


@jit
def _residual(row, y, extra, family, at_mode, delta):
    u = 0.0
    for j in range(len(delta)):
        u += row[j] * delta[j]
    return site(family, at_mode[0] + u, y, extra)[0] - at_mode[1] - u * (at_mode[2] + 0.5 * u * at_mode[3])


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
    """Lower triangular matrix times a vector."""
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
def _propose(rng, factor, inverse, scale, independent, delta):
    """A point about ``delta`` or of the Laplace approximation, and the log ratio of the proposals back and there."""
    z = np.empty(len(delta))
    for j in range(len(delta)):
        z[j] = rng.standard_normal()
    move = _times(factor, z)
    if independent:
        return move, 0.5 * (_square(z) - _square(_times(inverse, delta)))
    return delta + scale * move, 0.0


@jit
def control_variate_walk(
    rng,
    steps,
    design,
    y,
    extra,
    family,
    at_mode,
    slope,
    hessian,
    factor,
    inverse,
    scale,
    independent,
    delta,
    subset,
    residuals,
):
    """``steps`` steps from ``delta``; ``delta``, ``subset`` and ``residuals`` change in place.

    Returns the mean acceptance probability, how many proposals were accepted, and the variance of the last estimate.
    """
    n, m = len(design), len(subset)
    block = max(1, m // 10)
    accepts, moves = 0.0, 0
    variance = n * n / m * residuals.var()
    value = _quadratic(slope, hessian, delta) + n * residuals.mean() - 0.5 * variance
    new_subset, new_residuals = subset.copy(), residuals.copy()
    for _ in range(steps):
        new, correction = _propose(rng, factor, inverse, scale, independent, delta)
        first = int(rng.random() * (m - block + 1))
        new_subset[:] = subset
        for k in range(first, first + block):
            new_subset[k] = int(rng.random() * n)
        for k in range(m):
            i = new_subset[k]
            new_residuals[k] = _residual(design[i], y[i], extra[i], family, at_mode[i], new)
        new_variance = n * n / m * new_residuals.var()
        new_value = _quadratic(slope, hessian, new) + n * new_residuals.mean() - 0.5 * new_variance
        accept = np.exp(min(0.0, new_value - value + correction))
        accepts += accept
        if rng.random() < accept:
            delta[:], subset[:], residuals[:] = new, new_subset, new_residuals
            value, variance = new_value, new_variance
            moves += 1
    return accepts / steps, moves, variance


@jit
def scalable_walk(
    rng,
    steps,
    design,
    y,
    extra,
    family,
    at_mode,
    slope,
    hessian,
    factor,
    inverse,
    scale,
    independent,
    near_bounds,
    near_ends,
    far_bounds,
    far_ends,
    radius,
    delta,
):
    """``steps`` exact steps from ``delta``, in place; the mean acceptance probability, moves, and rows looked at.

    Bounds and their sums are those within ``radius`` of the mode, and everywhere.
    """
    accepts, moves, looked = 0.0, 0, 0
    z_square = _square(_times(inverse, delta))
    value = _quadratic(slope, hessian, delta)
    for _ in range(steps):
        new, correction = _propose(rng, factor, inverse, scale, independent, delta)
        new_square = _square(_times(inverse, new))
        new_value = _quadratic(slope, hessian, new)
        accept = np.exp(min(0.0, new_value - value + correction))
        accepts += accept
        accepted = rng.random() < accept
        if accepted:
            bounds, ends = far_bounds, far_ends
            if max(z_square, new_square) <= radius * radius:
                bounds, ends = near_bounds, near_ends
            total, reach = ends[-1], z_square**1.5 + new_square**1.5
            events = rng.poisson(total * reach)
            looked += events
            for _k in range(events):
                i = min(np.searchsorted(ends, rng.random() * total, side="right"), len(ends) - 1)
                old_residual = _residual(design[i], y[i], extra[i], family, at_mode[i], delta)
                drop = old_residual - _residual(design[i], y[i], extra[i], family, at_mode[i], new)
                if rng.random() * bounds[i] * reach < drop:
                    accepted = False
                    break
        if accepted:
            delta[:] = new
            value, z_square = new_value, new_square
            moves += 1
    return accepts / steps, moves, looked
