"""Probabilities of rectangles of two and three normals, and their derivatives, without sampling.

With Φ2 and Φ3 the distribution functions at h of normals with unit variances and correlations r (Plackett 1954),

    ∂Φ_d / ∂r_ij = φ2(h_i, h_j; r_ij) Φ_{d−2}(the rest | i, j),      ∂Φ_d / ∂h_i = φ(h_i) Φ_{d−1}(the rest | i),

and the integral of the first along a path of correlations gives Φ_d (Drezner & Wesolowsky 1990, Genz 2004). A
rectangle with two bounds for a variable is a difference of such orthants, unless it is so small that digits are lost.
Rows share all quantities that depend only on the correlations: the paths are computed once for each factor, and a
variable that is bounded from above only changes signs. All of it is in one array, ``work``, because compiled code
counts the references of every array argument.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial.legendre import leggauss

from ppl_backends.numerics.jit import jit
from ppl_backends.orthants.vector_kernels import LANES, exp_all, phi_all

LARGEST = 0.95  # correlation above which the rules lose digits
LEAST_DETERMINANT = 0.03  # of three variables' correlations
LEAST = 1e-6  # smallest probability: the rules are accurate to about 1e-12 in absolute terms
FARTHEST = 30.0  # largest bound, in standard deviations
ROOT = 1 / math.sqrt(2 * math.pi)
SIZES = (6, 10, 16, 24)
MOST = SIZES[-1]
RULES = np.zeros((len(SIZES), 2, MOST))
for _row, _size in zip(RULES, SIZES, strict=True):
    _row[:, :_size] = leggauss(_size)

# Positions in ``work``.
SCALE = 0  # standard deviations (3)
R = 3  # correlations (3, 3)
ORDER = 12  # of the variables (3), the strongest correlation between the last two
NODES = 15  # how many, of the four pairs and the triple (5)
GIVEN = (
    20  # of variable i (3, 7): 1 / √(1 − r_ij²), the same of r_ik, its regression, and what the density of r_jk needs
)
PAIRS = 48  # Φ2 of the last two in that order, and of two given each (4, 3, MOST): sine, 1 / (1 − sine²), weight
TRIPLE = PAIRS + 12 * MOST  # Φ3 (2, 6, MOST): the same for the first and another, and the regression of the third
EXPONENTS = TRIPLE + 12 * MOST
POINTS = EXPONENTS + 6 * MOST + LANES
SPARE = POINTS + 6 * MOST + LANES
BOUNDS = SPARE + 6 * MOST + LANES  # of an orthant, its signs, derivatives of P by bounds, and by correlations (4, 3)
SUMS = BOUNDS + 12  # derivatives of the rectangle by lower bounds, upper bounds, log scales, and correlations (4, 3)
WORK = SUMS + 12


@jit
def _phi(x):
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


@jit
def _others(i):
    return (1 if i == 0 else 0), (1 if i == 2 else 2)


@jit
def _regression(r_h, r_k, between):
    """Return the slopes of a variable on two others, and one over the residual standard deviation."""
    left = (1.0 - between) * (1.0 + between)
    on_h, on_k = (r_h - r_k * between) / left, (r_k - r_h * between) / left
    return on_h, on_k, 1.0 / math.sqrt(max(1.0 - on_h * r_h - on_k * r_k, 1e-300))


@jit
def _lay_pair(pair, r, work):
    """Fill the path of Φ2 to correlation ``r``."""
    rule = 0 if abs(r) < 0.5 else (1 if abs(r) < 0.8 else 2)
    angle, at = 0.5 * math.asin(r), PAIRS + 3 * MOST * pair
    work[NODES + pair] = SIZES[rule]
    for i in range(SIZES[rule]):
        sine = math.sin(angle * (1.0 + RULES[rule, 0, i]))
        work[at + i], work[at + MOST + i] = sine, 1.0 / ((1.0 - sine) * (1.0 + sine))
        work[at + 2 * MOST + i] = RULES[rule, 1, i] * angle / (2.0 * math.pi)


@jit
def _lay_triple(r12, r13, r23, determinant, work):
    """Fill the path of Φ3 from r12 = r13 = 0."""
    rule = 0 if determinant > 0.6 else (1 if determinant > 0.3 else (2 if determinant > 0.1 else 3))
    angles = (math.asin(r12), math.asin(r13))
    work[NODES + 4] = SIZES[rule]
    for i in range(SIZES[rule]):
        share = 0.5 * (1.0 + RULES[rule, 0, i])
        sines = (math.sin(share * angles[0]), math.sin(share * angles[1]))
        for side in range(2):
            sine, at = sines[side], TRIPLE + 6 * MOST * side + i
            work[at], work[at + MOST] = sine, 1.0 / ((1.0 - sine) * (1.0 + sine))
            work[at + 2 * MOST] = 0.5 * RULES[rule, 1, i] * angles[side] / (2.0 * math.pi)
            on_first, on_second, scale = _regression(sines[1 - side], r23, sine)
            work[at + 3 * MOST], work[at + 4 * MOST], work[at + 5 * MOST] = on_first, on_second, scale


@jit
def _lay_three(work):
    """Fill all paths of three variables; return whether the rules are accurate for such correlations."""
    r10, r20, r21 = work[R + 3], work[R + 6], work[R + 7]
    determinant = 1.0 - r10**2 - r20**2 - r21**2 + 2.0 * r10 * r20 * r21
    if determinant < LEAST_DETERMINANT:
        return False
    first = 0
    if abs(r21) < max(abs(r10), abs(r20)):
        first = 1 if abs(r20) >= abs(r10) else 2
    for i in range(3):
        j, k = _others(i)
        r_ij, r_ik, r_jk = work[R + 3 * i + j], work[R + 3 * i + k], work[R + 3 * j + k]
        given, left = GIVEN + 7 * i, (1.0 - r_jk) * (1.0 + r_jk)
        work[given] = 1.0 / math.sqrt((1.0 - r_ij) * (1.0 + r_ij))
        work[given + 1] = 1.0 / math.sqrt((1.0 - r_ik) * (1.0 + r_ik))
        work[given + 2], work[given + 3], work[given + 4] = _regression(r_ij, r_ik, r_jk)
        work[given + 5], work[given + 6] = 0.5 / left, 1.0 / (2.0 * math.pi * math.sqrt(left))
        partial = (r_jk - r_ij * r_ik) * work[given] * work[given + 1]
        if not abs(partial) <= LARGEST:
            return False
        _lay_pair(1 + i, partial, work)
        if i == first:
            work[ORDER], work[ORDER + 1], work[ORDER + 2] = i, j, k
            _lay_pair(0, r_jk, work)
            _lay_triple(r_ij, r_ik, r_jk, determinant, work)
    return True


@jit
def lay_paths(row, cholesky, work):
    """Fill the paths for the factor of a row; return whether the rules are accurate for such correlations."""
    dim = cholesky.shape[1]
    for i in range(dim):
        variance = 0.0
        for k in range(i + 1):
            variance += cholesky[row, i, k] ** 2
        work[SCALE + i] = math.sqrt(variance)
        for j in range(i):
            product = 0.0
            for k in range(j + 1):
                product += cholesky[row, i, k] * cholesky[row, j, k]
            r = product / (work[SCALE + i] * work[SCALE + j])
            work[R + 3 * i + j] = work[R + 3 * j + i] = r
            if not abs(r) <= LARGEST:
                return False
    if dim == 2:
        _lay_pair(0, work[R + 3], work)
        return True
    return _lay_three(work)


@jit
def _put_pair(pair, h, k, work, at):
    """Store the exponents of Φ2's path from ``at`` on, and return the end position."""
    squares, product, path, size = 0.5 * (h * h + k * k), h * k, PAIRS + 3 * MOST * pair, int(work[NODES + pair])
    for i in range(size):
        work[at + i] = (work[path + i] * product - squares) * work[path + MOST + i]
    return at + size


@jit
def _sum_pair(pair, work, at):
    """Return Φ2 minus the product of both marginals, from the exponentials at ``at``."""
    weights, total = PAIRS + 3 * MOST * pair + 2 * MOST, 0.0
    for i in range(int(work[NODES + pair])):
        total += work[weights + i] * work[at + i]
    return total


@jit
def _put_side(side, x, y, z, sign, work):
    """Store one half of the path of Φ3: of the first variable and another, and of the third given both."""
    path, size, squares = TRIPLE + 6 * MOST * side, int(work[NODES + 4]), 0.5 * (x * x + y * y)
    to, points, product = EXPONENTS + side * size, POINTS + side * size, x * y
    x, y, z = sign * x, sign * y, sign * z
    for i in range(path, path + size):
        work[to + i - path] = (work[i] * product - squares) * work[i + MOST]
    for i in range(path, path + size):
        left = z - work[i + 3 * MOST] * x - work[i + 4 * MOST] * y
        work[points + i - path] = left * work[i + 5 * MOST]


@jit
def _put_three(work):
    """Store all exponents and the points of all normal probabilities; return their numbers."""
    a, b, c = int(work[ORDER]), int(work[ORDER + 1]), int(work[ORDER + 2])
    x_a, x_b, x_c = work[BOUNDS + a], work[BOUNDS + b], work[BOUNDS + c]
    _put_side(0, x_a, x_b, x_c, work[BOUNDS + 3 + c], work)
    _put_side(1, x_a, x_c, x_b, work[BOUNDS + 3 + b], work)
    size = 2 * int(work[NODES + 4])
    at, end = _put_pair(0, x_b, x_c, work, EXPONENTS + size), POINTS + size
    for i in range(3):
        j, k = _others(i)
        given, r_jk = GIVEN + 7 * i, work[R + 3 * j + k]
        x_i, x_j, x_k = work[BOUNDS + i], work[BOUNDS + j], work[BOUNDS + k]
        at_j = (x_j - work[R + 3 * i + j] * x_i) * work[given]
        at_k = (x_k - work[R + 3 * i + k] * x_i) * work[given + 1]
        at = _put_pair(1 + i, at_j, at_k, work, at)
        work[at] = -0.5 * x_i * x_i
        work[at + 1] = (2.0 * r_jk * x_j * x_k - x_j * x_j - x_k * x_k) * work[given + 5]
        sign = work[BOUNDS + 3 + i]
        work[end], work[end + 1], work[end + 2] = sign * x_i, work[BOUNDS + 3 + j] * at_j, work[BOUNDS + 3 + k] * at_k
        work[end + 3] = sign * (x_i - work[given + 2] * x_j - work[given + 3] * x_k) * work[given + 4]
        at, end = at + 2, end + 4
    return at - EXPONENTS, end - POINTS


@jit
def _three(work):
    """Return P of an orthant of three variables and fill its derivatives."""
    n, m = _put_three(work)
    exp_all(work, EXPONENTS, n)
    phi_all(work, POINTS, m, SPARE)
    size = int(work[NODES + 4])
    a, b, c = int(work[ORDER]), int(work[ORDER + 1]), int(work[ORDER + 2])
    with_b, with_c = 0.0, 0.0
    for i in range(size):
        with_b += work[TRIPLE + 2 * MOST + i] * work[EXPONENTS + i] * work[POINTS + i]
        with_c += work[TRIPLE + 8 * MOST + i] * work[EXPONENTS + size + i] * work[POINTS + size + i]
    sign_a, sign_b, sign_c = work[BOUNDS + 3 + a], work[BOUNDS + 3 + b], work[BOUNDS + 3 + c]
    at, of = EXPONENTS + 2 * size, POINTS + 2 * size
    two = work[of + 4 * b] * work[of + 4 * c] + sign_b * sign_c * _sum_pair(0, work, at)
    p = work[of + 4 * a] * two + sign_a * (sign_b * with_b + sign_c * with_c)
    at += int(work[NODES])
    for i in range(3):
        j, k = _others(i)
        both = work[BOUNDS + 3 + j] * work[BOUNDS + 3 + k]
        inside = work[of + 1] * work[of + 2] + both * _sum_pair(1 + i, work, at)
        at += int(work[NODES + 1 + i])
        work[BOUNDS + 6 + i] = work[BOUNDS + 3 + i] * ROOT * work[at] * inside
        work[BOUNDS + 9 + i] = both * work[at + 1] * work[GIVEN + 7 * i + 6] * work[of + 3]
        at, of = at + 2, of + 4
    return p


@jit
def _two(work):
    """Return P of an orthant of two variables and fill its derivatives."""
    x, y, r, sign, other = work[BOUNDS], work[BOUNDS + 1], work[R + 3], work[BOUNDS + 3], work[BOUNDS + 4]
    end, left = _put_pair(0, x, y, work, EXPONENTS), (1.0 - r) * (1.0 + r)
    work[end], work[end + 1] = -0.5 * x * x, -0.5 * y * y
    work[end + 2] = (r * x * y - 0.5 * (x * x + y * y)) / left
    exp_all(work, EXPONENTS, end + 3 - EXPONENTS)
    p = _phi(sign * x) * _phi(other * y) + sign * other * _sum_pair(0, work, EXPONENTS)
    root = math.sqrt(left)
    work[BOUNDS + 6] = sign * ROOT * work[end] * _phi(other * (y - r * x) / root)
    work[BOUNDS + 7] = other * ROOT * work[end + 1] * _phi(sign * (x - r * y) / root)
    work[BOUNDS + 11] = sign * other * work[end + 2] / (2.0 * math.pi * root)
    return p


@jit
def _corner(row, corner, mean, lower, upper, work):
    """Store the orthant at a corner, above upper bounds where bits are set; return its sign, or 0 for none."""
    weight = 1.0
    for i in range(mean.shape[1]):
        below, above = lower[row, i], upper[row, i]
        at_upper = corner >> i & 1
        if at_upper and (math.isinf(below) or math.isinf(above)):
            return 0.0
        x = (mean[row, i] - (above if at_upper or math.isinf(below) else below)) / work[SCALE + i]
        work[BOUNDS + i] = min(max(x, -FARTHEST), FARTHEST)
        work[BOUNDS + 3 + i] = -1.0 if math.isinf(below) else 1.0
        weight = -weight if at_upper else weight
    return weight


@jit
def _sum_corners(row, mean, lower, upper, work):
    """Return P of a rectangle, and fill the sums of derivatives."""
    dim, total = mean.shape[1], 0.0
    for i in range(12):
        work[SUMS + i] = 0.0
    for corner in range(1 << dim):
        weight = _corner(row, corner, mean, lower, upper, work)
        if weight == 0.0:
            continue
        total += weight * (_three(work) if dim == 3 else _two(work))
        for i in range(dim):
            by_x = weight * work[BOUNDS + 6 + i]
            work[SUMS + (3 if corner >> i & 1 or math.isinf(lower[row, i]) else 0) + i] -= by_x
            work[SUMS + 6 + i] -= by_x * work[BOUNDS + i]
        for i in range(3 if dim == 3 else 1):
            work[SUMS + 11 - i] += weight * work[BOUNDS + 11 - i]
    return total


@jit
def exact_row(row, mean, cholesky, lower, upper, work, by_mean, by_lower, by_upper, by_cholesky):
    """Return log P of a row where each variable has a bound, and fill its derivatives; else NaN, nothing filled.

    The paths are those of its factor. Variables that are bounded from above are not mirrored: ``BOUNDS`` has them
    unchanged, followed by their signs.
    """
    dim = mean.shape[1]
    for i in range(dim):
        if math.isinf(lower[row, i]) and math.isinf(upper[row, i]):
            return np.nan
    p = _sum_corners(row, mean, lower, upper, work)
    if not p > LEAST:
        return np.nan
    for i in range(dim):
        scale = work[SCALE + i]
        by_lower[row, i], by_upper[row, i] = work[SUMS + i] / (p * scale), work[SUMS + 3 + i] / (p * scale)
        by_mean[row, i] = -by_lower[row, i] - by_upper[row, i]
        on = 0.5 * work[SUMS + 6 + i] / p  # by the variance, times that
        for j in range(dim):
            if j != i:
                by_r = work[SUMS + 9 + (3 - i - j if dim == 3 else 2)] / p
                on -= 0.5 * by_r * work[R + 3 * i + j]
                share = by_r / (scale * work[SCALE + j])
                for k in range(min(i, j) + 1):
                    by_cholesky[row, i, k] += share * cholesky[row, j, k]
        for k in range(i + 1):
            by_cholesky[row, i, k] += 2.0 * on / scale**2 * cholesky[row, i, k]
    return math.log(p)
