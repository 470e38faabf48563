"""The directions in which a density is heaviest far from its middle.

A product of heavy-tailed variables has its far mass along their axes: at a large radius the density on the sphere is highest
there, and a ridge leads to every one. Where the variables are mixed, x = A y, a Gaussian with the curvature of the mode
whitens them up to a rotation, so that the axes are orthogonal in its coordinates, but need not be its own. They are found by
gradient ascent on the sphere, from random directions, all at once.
"""

from __future__ import annotations

import numpy as np

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["heavy_axes"]

_RADIUS = 20.0  # standard deviations: far enough for tails, near enough to climb
_STARTS = 2  # times the dimension
_STEPS, _FIRST_STEP, _SHRINKAGE = 100, 0.5, 0.95  # in radians
_APART = 0.9  # sine of the angle between a new axis and the span of those found


def heavy_axes(target: BaseTarget, gaussian: GaussianApproximation, rng: np.random.Generator) -> Array:
    """Find orthonormal axes ``(dim, dim)``, as columns in whitened coordinates, along which a density is heaviest far out.

    Parameters
    ----------
    target : BaseTarget
        With gradients.
    gaussian : GaussianApproximation
        Whose coordinates are taken.
    rng : numpy.random.Generator
        For the directions to begin with.
    """
    axes = np.empty((0, gaussian.dim))
    while len(axes) < gaussian.dim:  # climbs may all miss one: those of the next round are orthogonal to what is found
        direction = _outside(rng.standard_normal((_STARTS * gaussian.dim, gaussian.dim)), axes)
        for step in range(_STEPS):
            _, slope = _both_sides(target, gaussian, direction)
            slope -= np.sum(slope * direction, axis=1, keepdims=True) * direction
            direction = _outside(direction + _FIRST_STEP * _SHRINKAGE**step * _outside(slope, axes), axes)
        height, _ = _both_sides(target, gaussian, direction)
        for row in direction[np.argsort(-height)]:
            rest = row - axes.T @ (axes @ row)
            if len(axes) < gaussian.dim and np.linalg.norm(rest) > _APART:
                axes = np.vstack([axes, rest / np.linalg.norm(rest)])
    return axes.T


def _outside(rows: Array, axes: Array) -> Array:
    """The parts of the rows that are orthogonal to the axes, of length one; zero where nothing is left."""
    rest = rows - (rows @ axes.T) @ axes
    return rest / np.maximum(np.linalg.norm(rest, axis=1, keepdims=True), 1e-300)


def _both_sides(target: BaseTarget, gaussian: GaussianApproximation, direction: Array) -> tuple[Array, Array]:
    """Sum of the log densities at both ends of a diameter of the sphere, and its gradient in the direction."""
    ends = np.concatenate([gaussian.place(_RADIUS * direction), gaussian.place(-_RADIUS * direction)])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        value, slope = target.log_density_and_gradient(ends)
    factor = gaussian.cholesky
    slope = np.nan_to_num(slope * factor if factor.ndim == 1 else slope @ factor, posinf=0.0, neginf=0.0)
    n = len(direction)
    return np.nan_to_num(value[:n] + value[n:], nan=-np.inf), slope[:n] - slope[n:]
