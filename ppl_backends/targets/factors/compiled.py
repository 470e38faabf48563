"""Log likelihoods φᵢ(aᵢᵀθ + bᵢ) of rows with one linear predictor each, compiled: a row takes tens of nanoseconds.

A family is a number: 0 binomial with logit link (``y`` successes of ``extra`` trials), 1 probit (``y`` ±1), 2 Poisson with
log link (``extra`` the exposure), 3 normal (``extra`` the precision). Constants that do not depend on θ are left out.
"""

from __future__ import annotations

import math

import numpy as np

from ppl_backends.numerics.jit import jit
from ppl_backends.targets.factors.sites import LOGIT, NORMAL, POISSON, PROBIT

THIRD_DERIVATIVE = {LOGIT: 1 / (6 * math.sqrt(3)), PROBIT: 0.3, NORMAL: 0.0}
"""Bounds of |φ‴| for a trial, an outcome and unit precision; the Poisson has none."""


@jit
def site(family, s, y, extra):
    """Return φ and its first two derivatives."""
    if family == LOGIT:
        tail = math.exp(-abs(s))
        softplus = math.log1p(tail) + max(s, 0.0)
        p = 1.0 / (1.0 + tail) if s >= 0 else tail / (1.0 + tail)
        return y * s - extra * softplus, y - extra * p, -extra * p * (1.0 - p)
    if family == PROBIT:
        t = y * s
        if t > -25.0:
            cdf = 0.5 * math.erfc(-t * 0.7071067811865476)
            value = math.log(cdf)
            mills = math.exp(-0.5 * t * t) * 0.3989422804014327 / cdf
        else:
            series = 1.0 - 1.0 / t**2 + 3.0 / t**4 - 15.0 / t**6
            value = -0.5 * t * t - 0.9189385332046727 - math.log(-t) + math.log(series)
            mills = -t / series
        return value, y * mills, -mills * (mills + t)
    if family == POISSON:
        rate = extra * math.exp(s)
        return y * s - rate, y - rate, -rate
    gap = y - s
    return -0.5 * extra * gap * gap, extra * gap, -extra


@jit
def _dot(row, x):
    total = 0.0
    for j in range(len(x)):
        total += row[j] * x[j]
    return total


@jit
def values(design, offset, y, extra, family, index, x):
    """Return φᵢ at ``x`` for the rows ``index``, with ``φ′`` and ``φ″``: ``(m, 3)``."""
    out = np.empty((len(index), 3))
    for k in range(len(index)):
        i = index[k]
        out[k] = site(family, _dot(design[i], x) + offset[i], y[i], extra[i])
    return out


@jit
def totals(design, offset, y, extra, family, points):
    """Return Σᵢφᵢ ``(k,)`` and its gradient ``(k, d)`` at ``points`` ``(k, d)``, in one pass over the rows."""
    k, dim = points.shape
    value, slope = np.zeros(k), np.zeros((k, dim))
    for i in range(len(design)):
        for row in range(k):
            phi, first, _ = site(family, _dot(design[i], points[row]) + offset[i], y[i], extra[i])
            value[row] += phi
            for j in range(dim):
                slope[row, j] += first * design[i, j]
    return value, slope


@jit
def residuals(design, y, extra, family, pilot, index, delta):
    """Return φᵢ minus its second-order expansion ``(m,)``; ``pilot`` ``(n, 4)`` holds s, φ, φ′ and φ″ at its centre."""
    out = np.empty(len(index))
    for k in range(len(index)):
        i = index[k]
        u = _dot(design[i], delta)
        out[k] = (
            site(family, pilot[i, 0] + u, y[i], extra[i])[0] - pilot[i, 1] - u * (pilot[i, 2] + 0.5 * u * pilot[i, 3])
        )
    return out


@jit
def gradient(design, y, extra, family, pilot, index, delta, weights, order):
    """Return Σ wᵢ∇φᵢ ``(d,)`` (``order`` 0), or that of the residuals after the second-order expansion (2)."""
    out = np.zeros(len(delta))
    for k in range(len(index)):
        i = index[k]
        u = _dot(design[i], delta)
        slope = site(family, pilot[i, 0] + u, y[i], extra[i])[1]
        if order == 2:
            slope -= pilot[i, 2] + u * pilot[i, 3]
        for j in range(len(delta)):
            out[j] += weights[k] * slope * design[i, j]
    return out


@jit
def pairs(design, y, extra, family, pilot, index, delta, new):
    """Return φᵢ at pilot + ``new`` minus φᵢ at pilot + ``delta`` ``(m,)``; from the pilot itself at half the cost."""
    out = np.empty(len(index))
    from_pilot = not delta.any()
    for k in range(len(index)):
        i = index[k]
        before = pilot[i, 1]
        if not from_pilot:
            before = site(family, pilot[i, 0] + _dot(design[i], delta), y[i], extra[i])[0]
        out[k] = site(family, pilot[i, 0] + _dot(design[i], new), y[i], extra[i])[0] - before
    return out
