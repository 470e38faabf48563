"""Draws of hyper-parameters φ and latent variables θ from the fits at the points of a design.

Draws at the points of a net have its weights. Points of a lattice are up to three quarters of a standard deviation apart,
so a quantile of φ at them would be off by half of that. So φ is spread within the cell of its point, by a log density that
is quadratic along each axis through the points next to it. θ given one point does not belong to φ elsewhere: products of
both, such as scales times effects, would be too variable. So θ is interpolated between the point and its neighbours on the
side of φ, whose draws have the same random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from ppl_backends.approximations.hyper import HyperParameters
from ppl_backends.numerics.arrays import Array

Index = NDArray[np.integer]
Sampler = Callable[[int, np.random.Generator], Array]
"""Map from a number and a generator to draws of θ ``(n, d)``."""

_FINE = 64  # intervals of a cell along an axis


def draws_of_design(
    hyper: HyperParameters, conditional: Callable[[int], Sampler], n: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Draw φ ``(n, p)`` from a design, and θ ``(n, d)`` given φ.

    Parameters
    ----------
    hyper : HyperParameters
    conditional : callable
        Maps the index of a point to a function that draws θ given φ at that point. With generators in the same state the
        draws of two points have the same random numbers.
    """
    beside, weights, offset = _spread(hyper, n, rng)
    which = np.sort(rng.choice(len(weights), size=n, p=weights))
    phi, share = hyper.points[which], np.ones(n)
    parts = [(which, share)]  # the point of each draw, and the share of θ there
    for axis in range(hyper.points.shape[1] if hyper.cell is not None else 0):
        u = offset(which, axis)
        neighbour = np.where(u < 0, beside[which, axis, 0], beside[which, axis, 1])
        moved = np.where(neighbour >= 0, np.abs(u), 0.0)
        share -= moved
        phi = phi + u[:, None] * np.asarray(hyper.cell)[:, axis]
        parts.append((neighbour, moved))
    order = rng.permutation(n)
    return phi[order], _interpolated(parts, which, conditional, rng)[order]


def _interpolated(
    parts: Sequence[tuple[Index, Array]], which: Index, conditional: Callable[[int], Sampler], rng: np.random.Generator
) -> Array:
    """Return θ ``(n, d)``: sums of draws at points by their shares. Numbers are those of the points ``which``, sorted."""
    cells, first, size = np.unique(which, return_index=True, return_counts=True)
    seeds = rng.integers(2**63, size=len(cells))
    theta: Array | None = None
    needed = np.unique(np.concatenate([point[share > 0] for point, share in parts]))
    for k in needed:
        draw = conditional(int(k))  # once a point, because it may factorise a large matrix
        for start, m, seed in zip(first, size, seeds, strict=True):
            rows = slice(start, start + m)
            share = np.sum([np.where(point[rows] == k, part[rows], 0.0) for point, part in parts], axis=0)
            if share.any():
                drawn = share[:, None] * draw(int(m), np.random.default_rng(seed))
                theta = np.zeros((len(which), drawn.shape[1])) if theta is None else theta
                theta[rows] += drawn
    assert theta is not None
    return theta


def _spread(
    hyper: HyperParameters, n: int, rng: np.random.Generator
) -> tuple[Index, Array, Callable[[Index, int], Array]]:
    """Return neighbours ``(k, p, 2)`` (−1 for none), weights of cells ``(k,)``, and a function that draws offsets in them.

    Offsets are in steps of the lattice, from −½ to ½. Those of a net are not drawn.
    """
    p = hyper.points.shape[1]
    beside = np.full((len(hyper.points), p, 2), -1)
    if hyper.cell is None:
        return beside, hyper.weights, lambda which, axis: np.zeros(len(which))
    steps = np.rint(np.linalg.solve(hyper.cell, (hyper.points - hyper.mode).T).T).astype(int)
    at = {tuple(step): k for k, step in enumerate(steps)}
    for k, step in enumerate(steps):
        for axis in range(p):
            for side in (0, 1):
                beside[k, axis, side] = at.get(tuple(step + (2 * side - 1) * (np.arange(p) == axis)), -1)
    height = np.log(hyper.weights)
    low, high = (np.where(beside[..., s] >= 0, height[beside[..., s]], np.nan) for s in (0, 1))
    here = np.repeat(height[:, None], p, axis=1)
    low, high = np.where(np.isnan(low), 2 * here - high, low), np.where(np.isnan(high), 2 * here - low, high)
    low, high = np.where(np.isnan(low), here, low), np.where(np.isnan(high), here, high)
    u = (np.arange(_FINE) + 0.5) / _FINE - 0.5
    along = (0.5 * (high - low))[..., None] * u + (0.5 * (high - 2 * here + low))[..., None] * u**2  # (k, p, fine)
    mass = logsumexp(along, axis=2)
    cumulative = np.cumsum(np.exp(along - mass[..., None]), axis=2)
    weights = np.exp(height + mass.sum(axis=1) - logsumexp(height + mass.sum(axis=1)))

    def offset(which: Index, axis: int) -> Array:
        """Return offsets along an axis by the inverse of the distribution in each cell, uniform within its intervals."""
        below = (cumulative[which, axis] < rng.random(len(which))[:, None]).sum(axis=1)
        return (np.minimum(below, _FINE - 1) + rng.random(len(which))) / _FINE - 0.5

    return beside, weights / weights.sum(), offset
