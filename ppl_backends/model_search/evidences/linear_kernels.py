"""Evidences of linear models under g-priors, compiled; a model costs microseconds, a neighbour of a model a tenth of one.

Columns are standardised, so that all that matters is their correlation matrix and that with the response. The share of
the sum of squares that a model leaves, 1 − R², comes from a Cholesky factor; or from the sweep operator, which holds those
of all neighbours of a model at once (Goodnight 1979).
"""

from __future__ import annotations

import math

import numba
import numpy as np

SINGULAR = 1e-10  # least share of a column's variance that the columns before it may leave
ROUNDING, LARGE = 2e-16, 1e-4  # of a sweep whose pivot is one; relative to a pivot, from which the table is made afresh

jit = numba.njit(cache=True, nogil=True)
fast = numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"})

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)
_EDGES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 14.0, 20.0, 28.0, 40.0])


@jit
def log_bayes_factor(hyper, g, n, k, left):
    """Return the log Bayes factor of a model with ``k`` columns against none; ``left`` is 1 − R², ``hyper`` 0 for a given g.

    Liang, Paulo, Molina, Clyde & Berger (2008), equations 6 and 17.
    """
    if k == 0:
        return 0.0
    if k >= n - 1 or left <= 0.0:
        return -np.inf
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
    """Return 1 − R² of the model with ``columns``, and write its Cholesky factor; NaN where they are dependent."""
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
        left = share_left(correlation, right, columns, factor) if len(columns) < n - 1 else np.nan
        out[i] = -np.inf if math.isnan(left) else log_bayes_factor(hyper, g, n, len(columns), left)
    return out


@fast
def _subtract(row, ratio, other):
    for j in range(len(row)):
        row[j] -= ratio * other[j]


@jit
def _sweep(table, k):
    """Take column ``k`` into the model or out of it, in place: a pivot is positive outside and negative inside.

    Returns what rounding adds to the table: a column that others nearly make up leaves the more of it behind.
    """
    m, pivot = len(table), table[k, k]
    for i in range(m):
        entry = table[i, k]
        if i != k and entry != 0.0:
            _subtract(table[i], entry / pivot, table[k])
            table[i, k] = entry / abs(pivot)
    for j in range(m):
        table[k, j] = table[j, k]
    table[k, k] = -1.0 / pivot
    return ROUNDING * max(abs(pivot), 1.0 / abs(pivot))


@jit
def _swept(correlation, right, on, table):
    """Write the table of a model: correlations, and those with the response in the last row, swept on its columns.

    Returns its rounding error.
    """
    p, error = len(right), ROUNDING
    table[:p, :p] = correlation
    table[p, :p] = right
    table[:p, p] = right
    table[p, p] = 1.0
    for j in range(p):
        if on[j]:
            error += _sweep(table, j)
    return error


@jit
def _left_after(table, i, j):
    """Return 1 − R² after switching column ``i``, and ``j`` as well unless negative, and the pivot that this takes.

    The first is NaN where columns are dependent.
    """
    last = len(table) - 1
    left = table[last, last] - table[i, last] ** 2 / table[i, i]
    if j < 0:
        return left if abs(table[i, i]) > SINGULAR else np.nan, abs(table[i, i])
    pivot = table[j, j] - table[i, j] ** 2 / table[i, i]
    if abs(pivot) < SINGULAR:
        return np.nan, abs(pivot)
    return left - (table[j, last] - table[i, j] * table[i, last] / table[i, i]) ** 2 / pivot, abs(pivot)


@jit
def _switch(state, share, since, j, now):
    if state[j]:
        share[j] += now - since[j]
    since[j] = now
    state[j] = not state[j]


@jit
def walk(correlation, right, members, on, share, n_steps, beta, log_prior, hyper, g, n, rng):
    """Make ``n_steps`` add, delete and swap steps from each of the models ``on`` ``(models, p)``, in place.

    The density is prior · evidence^β, the prior by size; ``members`` are the columns that may be switched. Adds to
    ``share`` ``(models, p)`` the share of the steps during which each column was on.
    """
    m = len(members)
    since = np.empty(len(right))  # the step from which a column has been as it is
    table = np.empty((len(right) + 1, len(right) + 1))
    for row in range(len(on)):
        state = on[row]
        k, total = 0, 0
        since[:] = 0.0
        error = least = _swept(correlation, right, state, table)
        for j in range(len(state)):
            total += state[j]
        for each in range(m):
            k += state[members[each]]
        density = log_prior[k] + beta * log_bayes_factor(hyper, g, n, total, table[-1, -1])
        for time in range(n_steps):
            i, j, change = members[int(m * rng.random())], -1, 0
            if rng.random() < 0.5:
                change = -1 if state[i] else 1
            else:
                j = members[int(m * rng.random())]
                if state[i] == state[j]:
                    continue
                i, j = (i, j) if state[i] else (j, i)
            left, pivot = _left_after(table, i, j)
            if error > LARGE * pivot and error > 2.0 * least:
                error = least = _swept(correlation, right, state, table)
                left, pivot = _left_after(table, i, j)
                density = log_prior[k] + beta * log_bayes_factor(hyper, g, n, total, table[-1, -1])
            if not left > 0.0:
                continue
            proposed = log_prior[k + change] + beta * log_bayes_factor(hyper, g, n, total + change, left)
            if math.log(rng.random()) >= proposed - density:
                continue
            density, k, total = proposed, k + change, total + change
            _switch(state, share[row], since, i, time / n_steps)
            if j >= 0:
                _switch(state, share[row], since, j, time / n_steps)
            error += _sweep(table, i)
            if j >= 0:
                error += _sweep(table, j)
        for j in range(len(state)):
            if state[j]:
                share[row, j] += 1.0 - since[j]
