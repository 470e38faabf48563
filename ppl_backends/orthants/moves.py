"""Moves of the particles of an orthant SMC, each leaving N(mean, I) on lower ≤ rows @ z ≤ upper invariant.

Ridgway (2015, section 3.4.3): Gibbs sweeps, sweeps over the last coordinates only, an over-relaxed random walk, and exact
Hamiltonian dynamics with reflections (Pakman & Paninski 2014). The mean is zero without a tilt.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ppl_backends.numerics.arrays import for_kernels
from ppl_backends.orthants import kernels
from ppl_backends.orthants.intervals import Array
from ppl_backends.orthants.ordering import Rectangle
from ppl_backends.orthants.tilt import Tilt

Move = Callable[[np.random.Generator, Array, Array, Array, Array, Array], None]
LAST = 20  # coordinates that the block move draws
WALKS = 10  # proposals of the random walk in one move


def gibbs(rng: np.random.Generator, z: Array, rows: Array, lower: Array, upper: Array, mean: Array) -> None:
    """Draw every coordinate given the others."""
    kernels.gibbs(rng, z, rows, lower, upper, mean, 0, 1)


def block(rng: np.random.Generator, z: Array, rows: Array, lower: Array, upper: Array, mean: Array) -> None:
    """Draw the last coordinates given the others: partial Gibbs on a block."""
    kernels.gibbs(rng, z, rows, lower, upper, mean, max(0, len(z) - LAST), 1)


def over_relaxed(rng: np.random.Generator, z: Array, rows: Array, lower: Array, upper: Array, mean: Array) -> None:
    """Propose α(z − mean) + √(1 − α²) ξ; accept if the constraints hold: √(1 − α²) = 2^−i / √k, i = 0, …, 9."""
    for walk in range(WALKS):
        step = 2.0**-walk / np.sqrt(len(z))
        noise = rng.standard_normal(z.shape)
        proposal = mean[:, None] + np.sqrt(1 - step**2) * (z - mean[:, None]) + step * noise
        y = rows @ proposal
        inside = ((y >= lower[:, None]) & (y <= upper[:, None])).all(axis=0)
        z[:, inside] = proposal[:, inside]


def hamiltonian(rng: np.random.Generator, z: Array, rows: Array, lower: Array, upper: Array, mean: Array) -> None:
    """Follow exact Hamiltonian trajectories, reflected by the constraints, of a length uniform on [0, π]."""
    bounded_below, bounded_above = np.isfinite(lower), np.isfinite(upper)
    walls = np.concatenate([rows[bounded_below], -rows[bounded_above]])
    distance = np.concatenate([-lower[bounded_below], upper[bounded_above]]) + walls @ mean
    centred = z - mean[:, None]
    kernels.hamiltonian(rng, centred, walls, distance)
    z[:] = centred + mean[:, None]


MOVES: dict[str, Move] = {"gibbs": gibbs, "block": block, "over_relaxed": over_relaxed, "hmc": hamiltonian}


def move(
    rng: np.random.Generator, rectangle: Rectangle, tilt: Tilt, k: int, z: Array, kernel: Move, repeats: int = 1
) -> None:
    """Move the first k coordinates ``(k, n)``, in place, under the target γ_k of :mod:`ppl_backends.orthants.tilt`."""
    active = np.flatnonzero(rectangle.lead < k)
    rows, lower, upper = rectangle.rows[active, :k], rectangle.lower[active], rectangle.upper[active]
    mean = tilt.future(rectangle, k)
    moved = for_kernels(z)
    for _ in range(repeats):
        kernel(rng, moved, rows, lower, upper, mean)
    z[:] = moved
