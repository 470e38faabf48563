"""Compiled small steps between models whose evidences come from one matrix; a neighbour takes a tenth of a microsecond.

Linear models and Gaussian approximations of others have the evidence f(k, left) + Σ c_j − h·log|A|, where A is the
part of a matrix for the included columns, and ``left`` is the remainder of a corner after these. The sweep operator
(Goodnight 1979) gives both for all neighbours of a model at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ppl_backends.model_search.evidences.laplace_kernels import fast, product
from ppl_backends.model_search.evidences.linear_kernels import SINGULAR, log_bayes_factor
from ppl_backends.numerics.jit import jit
from ppl_backends.targets.protocol import Array

ROUNDING, LARGE = 2e-16, 1e-4  # of a sweep whose pivot is one; relative to a pivot, above which the table is recomputed
BLOCK = 16  # entries of a row that are updated together


class Form(NamedTuple):
    """Data from which the evidences of all models are computed.

    Attributes
    ----------
    gram : ndarray (p, p)
        With a diagonal of ones.
    right : ndarray (p,)
    corner : float
        1 for linear models, of which columns leave 1 − R²; 0 for Gaussian ones, for which they leave −r'A⁻¹r.
    constants : ndarray (p,)
        Contribution of each included column.
    determinant : float
        h, the factor of log|A|.
    hyper, g, n : float
        Of the Bayes factor of linear models; ``hyper`` is negative for Gaussian ones, whose f is −left/2.
    """

    gram: Array
    right: Array
    corner: float
    constants: Array
    determinant: float
    hyper: float
    g: float
    n: float


@jit
def _log_evidence(form, k, left):
    """Return f(k, left)."""
    return -0.5 * left if form.hyper < 0.0 else log_bayes_factor(form.hyper, form.g, form.n, k, left)


@jit
def log_evidences(form, on):
    """Return the log evidences ``(models,)`` of Gaussian models ``on`` ``(models, p)``; NaN if A is not positive."""
    p = len(form.right)
    out, factor, half = np.empty(len(on)), np.empty((p, p)), np.empty(p)
    for i in range(len(on)):
        columns = np.flatnonzero(on[i])
        total = 0.0
        for a in range(len(columns)):
            row = columns[a]
            for b in range(a):
                factor[a, b] = (form.gram[row, columns[b]] - product(factor[a, :b], factor[b, :b])) / factor[b, b]
            pivot = form.gram[row, row] - product(factor[a, :a], factor[a, :a])
            if not pivot > 0.0:
                total = np.nan
                break
            factor[a, a] = math.sqrt(pivot)
            half[a] = (form.right[row] - product(factor[a, :a], half[:a])) / factor[a, a]
            total += 0.5 * half[a] ** 2 + form.constants[row] - form.determinant * math.log(pivot)
        out[i] = total
    return out


@fast
def _subtract(table, first, last, column, inverse):
    """Subtract a multiple of ``column`` from the first ``len(column)`` entries of rows ``first`` to ``last``."""
    for i in range(first, last):
        row, ratio = table[i], column[i] * inverse
        for j in range(len(column)):
            row[j] -= ratio * column[j]


@jit
def _sweep(table, k, column):
    """Switch column ``k`` in place; a pivot is positive outside of the model and negative inside.

    ``table`` is a lower triangle, and ``column`` work space, both of a width that is a multiple of ``BLOCK``; entries
    above the diagonal are not used. Returns the rounding error that the sweep adds, which is large for a column that is
    nearly a combination of others.
    """
    m, pivot = len(table), table[k, k]
    column[:k] = table[k, :k]
    for i in range(k, m):
        column[i] = table[i, k]
    inverse = 1.0 / pivot
    # Rows of a block have the same length, without a remainder that is not vectorised.
    for first in range(0, m, BLOCK):
        _subtract(table, first, min(first + BLOCK, m), column[: first + BLOCK], inverse)
    size = abs(inverse)
    for i in range(k):
        table[k, i] = column[i] * size
    for i in range(k + 1, m):
        table[i, k] = column[i] * size
    table[k, k] = -inverse
    return ROUNDING * max(abs(pivot), size)


@jit
def _swept(form, on, table, column):
    """Write the table of a model: the matrix, with the right-hand side in the last row, swept on its columns.

    Returns its rounding error, and Σ c_j − h·log|A|.
    """
    p, error, added = len(form.right), ROUNDING, 0.0
    table[:p, :p] = form.gram
    table[p, :p] = form.right
    table[p, p] = form.corner
    for j in range(p):
        if on[j]:
            added += form.constants[j] - form.determinant * math.log(table[j, j])
            error += _sweep(table, j, column)
    return error, added


@jit
def _after(table, i, j):
    """Return residual, pivot and growth of log|A| after switching column ``i``, and ``j`` unless it is negative.

    The first is NaN where columns are dependent.
    """
    last = len(table) - 1
    left, first = table[last, last] - table[last, i] ** 2 / table[i, i], abs(table[i, i])
    if j < 0:
        return left if first > SINGULAR else np.nan, first, math.log(first)
    both = table[max(i, j), min(i, j)]
    pivot = table[j, j] - both**2 / table[i, i]
    if abs(pivot) < SINGULAR:
        return np.nan, abs(pivot), 0.0
    left -= (table[last, j] - both * table[last, i] / table[i, i]) ** 2 / pivot
    return left, abs(pivot), math.log(first * abs(pivot))


@jit
def _switch(state, share, since, j, now):
    if state[j]:
        share[j] += now - since[j]
    since[j] = now
    state[j] = not state[j]


@jit
def walk(form, members, on, share, n_steps, beta, log_prior, rng):
    """Make ``n_steps`` add, delete and swap steps from each of the models ``on`` ``(models, p)``, in place.

    The density is prior · evidence^β, the prior by size; ``members`` are the columns that may be switched. Adds to
    ``share`` ``(models, p)`` the share of the steps during which each column was on.
    """
    p, m, constants = len(form.right), len(members), form.constants
    most = p if form.hyper < 0.0 else int(form.n) - 1  # columns of a linear model, beyond which they are dependent
    since = np.empty(p)  # the step of a column's last change
    width = (p // BLOCK + 1) * BLOCK
    table, column = np.zeros((p + 1, width)), np.zeros(width)
    for row in range(len(on)):
        state = on[row]
        k, total = 0, 0
        since[:] = 0.0
        error, added = _swept(form, state, table, column)
        least = error
        for j in range(p):
            total += state[j]
        for each in range(m):
            k += state[members[each]]
        density = log_prior[k] + beta * (_log_evidence(form, total, table[p, p]) + added)
        for time in range(n_steps):
            i, j, change = members[int(m * rng.random())], -1, 0
            if rng.random() < 0.5:
                change = -1 if state[i] else 1
            else:
                j = members[int(m * rng.random())]
                if state[i] == state[j]:
                    continue
                i, j = (i, j) if state[i] else (j, i)
            left, pivot, growth = np.nan, 1.0, 0.0
            if total + change <= most:
                left, pivot, growth = _after(table, i, j)
            if error > LARGE * pivot and error > 2.0 * least:
                error, added = _swept(form, state, table, column)
                least = error
                left, pivot, growth = _after(table, i, j)
                density = log_prior[k] + beta * (_log_evidence(form, total, table[p, p]) + added)
            new = added - form.determinant * growth + (-constants[i] if state[i] else constants[i])
            if j >= 0:  # a swap removes i and adds j
                new += constants[j]
            proposed = log_prior[k + change] + beta * (_log_evidence(form, total + change, left) + new)
            if not math.log(rng.random()) < proposed - density:
                continue
            density, added, k, total = proposed, new, k + change, total + change
            _switch(state, share[row], since, i, time / n_steps)
            if j >= 0:
                _switch(state, share[row], since, j, time / n_steps)
            error += _sweep(table, i, column)
            if j >= 0:
                error += _sweep(table, j, column)
        for j in range(p):
            if state[j]:
                share[row, j] += 1.0 - since[j]
