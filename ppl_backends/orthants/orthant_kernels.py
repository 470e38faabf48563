"""Probabilities of orthants of two and three normals, and their derivatives, without sampling.

With Φ2 and Φ3 the distribution functions at h of normals with unit variances and correlations r (Plackett 1954),

    ∂Φ_d / ∂r_ij = φ2(h_i, h_j; r_ij) Φ_{d−2}(the rest | i, j),      ∂Φ_d / ∂h_i = φ(h_i) Φ_{d−1}(the rest | i),

and the integral of the first along a path of correlations gives Φ_d (Drezner & Wesolowsky 1990, Genz 2004).
"""

from __future__ import annotations

import math

import numba
import numpy as np
from numpy.polynomial.legendre import leggauss

LARGEST = 0.95  # of a correlation, beyond which the rules lose digits
LEAST_DETERMINANT = 0.03  # of three variables' correlations
LEAST = 1e-6  # of a probability: the rules are right to about 1e-14 in absolute terms
WEAK = 0.4  # a correlation, for which few nodes do
NODES, WEIGHTS = leggauss(24)
FEW_NODES, FEW_WEIGHTS = leggauss(10)


@numba.njit(cache=True)
def _phi(x):
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


@numba.njit(cache=True)
def _density(x):
    return math.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)


@numba.njit(cache=True)
def _density2(h, k, r):
    left = (1.0 - r) * (1.0 + r)
    return math.exp(-0.5 * (h * h + k * k - 2.0 * r * h * k) / left) / (2.0 * math.pi * math.sqrt(left))


@numba.njit(cache=True)
def _phi2(h, k, r):
    """Return P(X < h, Y < k) of correlation r, up to LARGEST."""
    nodes, weights = (FEW_NODES, FEW_WEIGHTS) if abs(r) < WEAK else (NODES, WEIGHTS)
    angle, squares, product, total = 0.5 * math.asin(r), 0.5 * (h * h + k * k), h * k, 0.0
    for i in range(nodes.size):
        sine = math.sin(angle * (1.0 + nodes[i]))
        total += weights[i] * math.exp((sine * product - squares) / ((1.0 - sine) * (1.0 + sine)))
    return _phi(h) * _phi(k) + angle * total / (2.0 * math.pi)


@numba.njit(cache=True)
def _given(h, k, value, r_k, r_value, r_between):
    """Return the standardised bound of a variable, given two others at h and k of correlation r_between."""
    left = (1.0 - r_between) * (1.0 + r_between)
    on_h, on_k = (r_k - r_value * r_between) / left, (r_value - r_k * r_between) / left
    variance = 1.0 - on_h * r_k - on_k * r_value
    return (value - on_h * h - on_k * k) / math.sqrt(max(variance, 1e-300))


@numba.njit(cache=True)
def _phi3(h1, h2, h3, r12, r13, r23):
    """Return P(X < h) of three normals, r23 the largest correlation."""
    angle12, angle13, total = math.asin(r12), math.asin(r13), 0.0
    for i in range(NODES.size):
        share = 0.5 * (1.0 + NODES[i])
        s12, s13 = math.sin(share * angle12), math.sin(share * angle13)
        at12 = math.exp(-0.5 * (h1 * h1 + h2 * h2 - 2.0 * s12 * h1 * h2) / ((1.0 - s12) * (1.0 + s12)))
        at13 = math.exp(-0.5 * (h1 * h1 + h3 * h3 - 2.0 * s13 * h1 * h3) / ((1.0 - s13) * (1.0 + s13)))
        inside = angle12 * at12 * _phi(_given(h1, h2, h3, s13, r23, s12))
        inside += angle13 * at13 * _phi(_given(h1, h3, h2, s12, r23, s13))
        total += 0.5 * WEIGHTS[i] * inside
    return _phi(h1) * _phi2(h2, h3, r23) + total / (2.0 * math.pi)


@numba.njit(cache=True)
def _partial(r_ij, r_ik, r_jk):
    """Return the correlation of j and k, given i."""
    return (r_jk - r_ij * r_ik) / math.sqrt((1.0 - r_ij * r_ij) * (1.0 - r_ik * r_ik))


@numba.njit(cache=True)
def _three(h, r, by_h, by_r):
    """Return log P of three normals below h and fill its derivatives; NaN where the rules are not good."""
    r12, r13, r23 = r[1, 0], r[2, 0], r[2, 1]
    determinant = 1.0 - r12 * r12 - r13 * r13 - r23 * r23 + 2.0 * r12 * r13 * r23
    if determinant < LEAST_DETERMINANT or max(abs(r12), abs(r13), abs(r23)) > LARGEST:
        return np.nan
    if abs(r23) >= max(abs(r12), abs(r13)):
        p = _phi3(h[0], h[1], h[2], r12, r13, r23)
    elif abs(r13) >= abs(r12):
        p = _phi3(h[1], h[0], h[2], r12, r23, r13)
    else:
        p = _phi3(h[2], h[0], h[1], r13, r23, r12)
    if not p > LEAST:
        return np.nan
    for i in range(3):
        j, k = (1 if i == 0 else 0), (1 if i == 2 else 2)
        r_ij, r_ik, r_jk = r[max(i, j), min(i, j)], r[max(i, k), min(i, k)], r[k, j]
        between = _partial(r_ij, r_ik, r_jk)
        if abs(between) > LARGEST:
            return np.nan
        at_j = (h[j] - r_ij * h[i]) / math.sqrt((1.0 - r_ij) * (1.0 + r_ij))
        at_k = (h[k] - r_ik * h[i]) / math.sqrt((1.0 - r_ik) * (1.0 + r_ik))
        by_h[i] = _density(h[i]) * _phi2(at_j, at_k, between) / p
        by_r[k, j] = _density2(h[j], h[k], r_jk) * _phi(_given(h[j], h[k], h[i], r_ij, r_ik, r_jk)) / p
    return math.log(p)


@numba.njit(cache=True)
def _two(h, r, by_h, by_r):
    """Return log P of two normals below h and fill its derivatives; NaN where the rule is not good."""
    r12 = r[1, 0]
    if abs(r12) > LARGEST:
        return np.nan
    p = _phi2(h[0], h[1], r12)
    if not p > LEAST:
        return np.nan
    left = math.sqrt((1.0 - r12) * (1.0 + r12))
    for i in range(2):
        by_h[i] = _density(h[i]) * _phi((h[1 - i] - r12 * h[i]) / left) / p
    by_r[1, 0] = _density2(h[0], h[1], r12) / p
    return math.log(p)


@numba.njit(cache=True)
def orthant_row(mean, cholesky, lower, upper, by_mean, by_lower, by_upper, by_cholesky):
    """Return log P where each of two or three variables has one bound, and fill its derivatives; else NaN, nothing filled."""
    dim = mean.size
    h, scale, by_h = np.empty(3), np.empty(3), np.empty(3)
    sign = np.empty(3)
    r, by_r = np.empty((3, 3)), np.empty((3, 3))
    for i in range(dim):
        if math.isinf(lower[i]) == math.isinf(upper[i]):
            return np.nan
        variance = 0.0
        for k in range(i + 1):
            variance += cholesky[i, k] ** 2
        scale[i] = math.sqrt(variance)
        sign[i] = 1.0 if math.isinf(upper[i]) else -1.0
        h[i] = sign[i] * (mean[i] - (lower[i] if math.isinf(upper[i]) else upper[i])) / scale[i]
        for j in range(i):
            product = 0.0
            for k in range(j + 1):
                product += cholesky[i, k] * cholesky[j, k]
            r[i, j] = sign[i] * sign[j] * product / (scale[i] * scale[j])
    log_p = _three(h, r, by_h, by_r) if dim == 3 else _two(h, r, by_h, by_r)
    if math.isnan(log_p):
        return np.nan
    for i in range(dim):
        slope = sign[i] * by_h[i] / scale[i]
        by_mean[i] = slope
        by_lower[i] = -slope if sign[i] > 0.0 else 0.0
        by_upper[i] = -slope if sign[i] < 0.0 else 0.0
        on = -0.5 * by_h[i] * h[i]  # by the variance, times that
        for j in range(dim):
            if j != i:
                a, b = max(i, j), min(i, j)
                on -= 0.5 * by_r[a, b] * r[a, b]
                share = sign[i] * sign[j] * by_r[a, b] / (scale[i] * scale[j])
                for k in range(min(i, j) + 1):
                    by_cholesky[i, k] += share * cholesky[j, k]
        for k in range(i + 1):
            by_cholesky[i, k] += 2.0 * on / scale[i] ** 2 * cholesky[i, k]
    return log_p
