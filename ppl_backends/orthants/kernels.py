"""Compiled moves of coordinates under linear constraints."""

from __future__ import annotations

import math

import numba
import numpy as np

BLOCK = 64  # particles moved together, so that what they need stays in the cache
FASTMATH = {"nnan", "nsz", "contract"}

# Wichura (1988), algorithm AS 241, to full double precision.
CENTRE = np.array([
    [2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457, 13731.693765509461125,
     1971.5909503065514427, 133.14166789178437745, 3.387132872796366608],
    [5226.495278852545925, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867, 5394.1960214247511077,
     687.1870074920579083, 42.313330701600911252, 1.0],
])  # fmt: skip
MIDDLE = np.array([
    [7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734],
    [1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0],
])  # fmt: skip
TAIL = np.array([
    [2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772],
    [2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0],
])  # fmt: skip


@numba.njit(cache=True)
def _ratio(coefficients, x):
    above, below = coefficients[0, 0], coefficients[1, 0]
    for i in range(1, 8):
        above = above * x + coefficients[0, i]
        below = below * x + coefficients[1, i]
    return above / below


@numba.njit(cache=True)
def _normal_quantile(p):
    """Return the quantile of the standard normal at 0 < p < 1."""
    q = p - 0.5
    if abs(q) <= 0.425:
        return q * _ratio(CENTRE, 0.180625 - q * q)
    r = math.sqrt(-math.log(min(p, 1.0 - p)))
    x = _ratio(MIDDLE, r - 1.6) if r <= 5.0 else _ratio(TAIL, r - 5.0)
    return math.copysign(x, q)


@numba.njit(cache=True)
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
            x = -_normal_quantile(min(max(p, 1e-300), 1.0 - 1e-16))
        else:
            peak = max(a, 0.0)
            while True:
                x = a + rng.random() * (b - a)
                if math.log(1.0 - rng.random()) <= 0.5 * (peak - x) * (peak + x):
                    break
    x = min(max(x, a), b)
    return -x if flip else x


@numba.njit(cache=True, fastmath=FASTMATH)
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


@numba.njit(cache=True)
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
                    # A particle is inside; where rounding says otherwise, it is on the bound.
                    new = truncated_normal(rng, min(low[m], now) - mean[i], max(high[m], now) - mean[i]) + mean[i]
                    high[m] = new - now
                    block[i, m] = new
                for j in range(i, columns.shape[1]):
                    a = columns[i, j]
                    if a != 0.0:
                        for m in range(stop - start):
                            y[j, m] += a * high[m]
        z[:, start:stop] = block


@numba.njit(cache=True)
def _first_wall(f, v, distance, last):
    """Return time and index of the first wall that f cos t + v sin t + distance = 0 hits; a wall just left does not count."""
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


@numba.njit(cache=True)
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
