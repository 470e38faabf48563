"""Evidences of linear models under g-priors, compiled; a model costs microseconds.

Columns are standardised, so that only their correlation matrix and their correlations with the response matter. The
share of the sum of squares that a model does not explain, 1 − R², comes from a Cholesky factor; for all neighbours of
a model it comes from the sweep operator (:mod:`~ppl_backends.model_search.evidences.walk_kernels`).
"""

from __future__ import annotations

import math

import numpy as np

from ppl_backends.numerics.jit import jit

SINGULAR = 1e-10  # least share of a column's variance that earlier columns may leave
EXPLAINED = 1e-14  # least 1 − R² that rounding leaves


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)
_EDGES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 14.0, 20.0, 28.0, 40.0])


@jit
def log_bayes_factor(hyper, g, n, k, left):
    """Return the log Bayes factor of a model with ``k`` columns against none; ``left`` is 1 − R², ``hyper`` 0 for a given g.

    Liang, Paulo, Molina, Clyde & Berger (2008), equations 6 and 17. A model with as many columns as there are degrees of
    freedom has R² = 1 whatever y is, and the factor 1. ``left`` is NaN if the columns are dependent.
    """
    if math.isnan(left) or k > n - 1:
        return -np.inf
    if k == 0 or k == n - 1:
        return 0.0
    left = max(left, EXPLAINED)  # rounding may make it negative
    if hyper == 0.0:
        return 0.5 * (n - 1 - k) * math.log1p(g) - 0.5 * (n - 1) * math.log1p(g * left)
    return _hyper_g(hyper, n, k, left)


@jit
def _log_integrand(t, rate, power, left):
    """Return the log of (1+g)^{−rate} {1 − R² g/(1+g)}^{−power} at g = eᵗ − 1, which is integrated over t."""
    return -rate * t - power * math.log(left + (1.0 - left) * math.exp(-t))


@jit
def _hyper_g(a, n, k, left):
    rate, power = 0.5 * (k + a - 2.0), 0.5 * (n - 1.0)
    # The derivative −rate + power·R²e^{−t}/(left + R²e^{−t}) is zero where R²e^{−t}(power − rate) = rate·left.
    top, explained = 0.0, 1.0 - left
    if explained * (power - rate) > rate * left:
        top = math.log(explained * (power - rate) / (rate * left))
    share = explained * math.exp(-top) / (left + explained * math.exp(-top))
    curvature = power * share * (1.0 - share)
    width = min(1.0 / math.sqrt(max(curvature, 1e-12)), 1.0 / rate) if top == 0.0 else 1.0 / math.sqrt(curvature)
    height, total = _log_integrand(top, rate, power, left), 0.0
    for side in (-1.0, 1.0):
        for panel in range(len(_EDGES) - 1):
            low, high = top + side * width * _EDGES[panel], top + side * width * _EDGES[panel + 1]
            low, high = max(low, 0.0), max(high, 0.0)
            half = 0.5 * abs(high - low)
            if half == 0.0:
                continue
            middle = 0.5 * (low + high)
            for node in range(len(_NODES)):
                value = _log_integrand(middle + half * _NODES[node], rate, power, left)
                total += half * _WEIGHTS[node] * math.exp(value - height)
    return math.log(0.5 * (a - 2.0)) + height + math.log(total)


@jit
def share_left(correlation, right, columns, factor):
    """Return 1 − R² of the model with ``columns``, and write its Cholesky factor; NaN if they are dependent."""
    k, left = len(columns), 1.0
    for a in range(k):
        row = columns[a]
        for b in range(a):
            total = correlation[row, columns[b]]
            for c in range(b):
                total -= factor[a, c] * factor[b, c]
            factor[a, b] = total / factor[b, b]
        pivot = correlation[row, row]
        projected = right[row]
        for c in range(a):
            pivot -= factor[a, c] * factor[a, c]
            projected -= factor[a, c] * factor[k, c]
        if pivot < SINGULAR:
            return np.nan
        factor[a, a] = math.sqrt(pivot)
        factor[k, a] = projected / factor[a, a]
        left -= factor[k, a] ** 2
    return left


@jit
def log_evidences(correlation, right, on, hyper, g, n):
    """Return the log Bayes factors ``(models,)`` of models ``on`` ``(models, p)``."""
    p = len(right)
    out, factor = np.empty(len(on)), np.empty((p + 1, p))
    for i in range(len(on)):
        columns = np.flatnonzero(on[i])
        left = share_left(correlation, right, columns, factor) if len(columns) <= n - 1 else np.nan
        out[i] = log_bayes_factor(hyper, g, n, len(columns), left)
    return out
