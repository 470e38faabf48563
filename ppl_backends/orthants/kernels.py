"""Compiled moves of coordinates under linear constraints."""

from __future__ import annotations

import math

import numba
import numpy as np

from ppl_backends.numerics.jit import jit
from ppl_backends.numerics.normal import normal_quantile

BLOCK = 64  # particles moved together, so that their data stay in the cache
FASTMATH = {"nnan", "nsz", "contract"}


@jit
def truncated_normal(rng, a, b):
    """Draw a standard normal on [a, b]: by inversion, in the tail as Marsaglia (1964), on narrow intervals by rejection."""
    flip = a + b < 0
    if flip:
        a, b = -b, -a
    if a > 5.0:
        part = -math.expm1(-0.5 * (b - a) * (b + a))
        while True:
            x = math.sqrt(a * a - 2.0 * math.log1p(-rng.random() * part))
            if rng.random() * x <= a:
                break
    else:
        above = 0.5 * math.erfc(b / math.sqrt(2.0))
        mass = 0.5 * math.erfc(a / math.sqrt(2.0)) - above
        if mass > 1e-6 * (above + mass):
            p = above + rng.random() * mass
            x = -normal_quantile(min(max(p, 1e-300), 1.0 - 1e-16))
        else:
            peak = max(a, 0.0)
            while True:
                x = a + rng.random() * (b - a)
                if math.log(1.0 - rng.random()) <= 0.5 * (peak - x) * (peak + x):
                    break
    x = min(max(x, a), b)
    return -x if flip else x


@numba.njit(cache=True, fastmath=FASTMATH, error_model="numpy")
def _bounds(column, y, z, lower, upper, first, low, high):
    """Return the interval of one coordinate of a block of particles, given the others."""
    low[:] = -np.inf
    high[:] = np.inf
    for j in range(first, column.size):
        a = column[j]
        if abs(a) < 1e-13:
            continue
        below, above = (lower[j], upper[j]) if a > 0 else (upper[j], lower[j])
        inverse = 1.0 / a
        if abs(below) < np.inf:
            for m in range(low.size):
                low[m] = max(low[m], z[m] + (below - y[j, m]) * inverse)
        if abs(above) < np.inf:
            for m in range(low.size):
                high[m] = min(high[m], z[m] + (above - y[j, m]) * inverse)


@jit
def gibbs(rng, z, rows, lower, upper, mean, first, sweeps):
    """Sweep over coordinates ``first``, ... of z ``(k, n)`` ~ N(mean, I) on lower ≤ rows @ z ≤ upper, in place."""
    k, n = z.shape
    columns = np.ascontiguousarray(rows.T)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        block = np.ascontiguousarray(z[:, start:stop])
        y = rows @ block
        low, high = np.empty(stop - start), np.empty(stop - start)
        for _ in range(sweeps):
            for i in range(first, k):
                _bounds(columns[i], y, block[i], lower, upper, i, low, high)
                for m in range(stop - start):
                    now = block[i, m]
                    # A particle is inside; if rounding puts it outside, it is set on the bound.
                    new = truncated_normal(rng, min(low[m], now) - mean[i], max(high[m], now) - mean[i]) + mean[i]
                    high[m] = new - now
                    block[i, m] = new
                for j in range(i, columns.shape[1]):
                    a = columns[i, j]
                    if a != 0.0:
                        for m in range(stop - start):
                            y[j, m] += a * high[m]
        z[:, start:stop] = block


@jit
def _first_wall(f, v, distance, last):
    """Return time and index of the first wall that f cos t + v sin t + distance = 0 hits; ignore the wall just left."""
    soonest, wall = np.inf, -1
    for j in range(f.size):
        radius = math.hypot(f[j], v[j])
        if radius <= abs(distance[j]):
            continue
        angle = math.atan2(v[j], f[j])
        time = angle + math.acos(-distance[j] / radius)
        time -= 2 * math.pi * math.floor(time / (2 * math.pi))
        if j == last and (time < 1e-9 or time > 2 * math.pi - 1e-9):
            time = 2 * math.pi
        elif time > 2 * math.pi - 1e-12:
            time = 0.0
        if time < soonest:
            soonest, wall = time, j
    return soonest, wall


@jit
def hamiltonian(rng, z, walls, distance):
    """Follow z ``(k, n)`` ~ N(0, I) on walls @ z + distance ≥ 0 for a time uniform on [0, π], reflected, in place."""
    k, n = z.shape
    squares = (walls**2).sum(axis=1)
    for m in range(n):
        x, velocity = np.ascontiguousarray(z[:, m]), np.empty(k)
        for i in range(k):
            velocity[i] = rng.standard_normal()
        left, last = math.pi * rng.random(), -1
        for _ in range(1000):
            f, v = walls @ x, walls @ velocity
            time, wall = _first_wall(f, v, distance, last)
            step = min(time, left)
            cosine, sine = math.cos(step), math.sin(step)
            x, velocity = cosine * x + sine * velocity, cosine * velocity - sine * x
            left -= step
            if left <= 0.0:
                break
            across = (walls[wall] * velocity).sum()
            velocity -= 2.0 * across / squares[wall] * walls[wall]
            last = wall
        if (walls @ x + distance).min() >= -1e-9 and left <= 0.0:
            z[:, m] = x
