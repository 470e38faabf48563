"""Laplace's approximation of the evidence of one model after another, compiled; 0.1 ms for 500 rows and a few columns.

The prior of a coefficient is a row (mean, precision, scale, degrees of freedom): normal if the last is zero, else
Student's t about the mean. Newton's method starts from least squares around the fit of the model with all columns,
which costs one Cholesky factor of a part of a matrix shared by all models.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from ppl_backends.numerics.jit import jit
from ppl_backends.targets.factors.compiled import site

SETTLED, MOST_STEPS, MOST_HALVINGS = 1e-10, 200, 40

fast = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"})


@fast
def product(a, b):
    """Return the inner product, with sums in any order."""
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


@jit
def _prior(row, theta):
    """Return the log density of a coefficient, its slope, minus its curvature, and an upper bound of that."""
    mean, precision, scale, df = row
    z = theta - mean
    if df == 0.0:
        value = 0.5 * (math.log(precision) - math.log(2 * math.pi) - precision * z * z)
        return value, -precision * z, precision, precision
    spread = df * scale * scale + z * z
    value = math.lgamma(0.5 * (df + 1)) - math.lgamma(0.5 * df) - 0.5 * math.log(df * math.pi) - math.log(scale)
    value -= 0.5 * (df + 1) * math.log1p(z * z / (df * scale * scale))
    bound = (df + 1) / spread
    return value, -bound * z, bound * (df * scale * scale - z * z) / spread, bound


@jit
def log_priors(prior, theta):
    """Return the log prior density of each coefficient."""
    out = np.empty(len(theta))
    for j in range(len(theta)):
        out[j] = _prior(prior[j], theta[j])[0]
    return out


@jit
def prior_terms(prior, theta):
    """Return mean, precision and height of a normal through each coefficient's prior at ``theta``, with its slope there.

    The height is its log density at zero.
    """
    out = np.empty((len(theta), 3))
    for j in range(len(theta)):
        value, _, _, bound = _prior(prior[j], theta[j])
        mean = prior[j, 0]
        out[j] = mean, bound, value + 0.5 * bound * ((theta[j] - mean) ** 2 - mean**2)
    return out


@jit
def mean_sites(family, predictors, y, extra):
    """Return the log likelihood of each row and its first two derivatives, averaged over ``predictors`` ``(draws, n)``."""
    out = np.zeros((len(y), 3))
    for s in predictors:
        for i in range(len(y)):
            value, slope, second = site(family, s[i], y[i], extra[i])
            out[i, 0] += value
            out[i, 1] += slope
            out[i, 2] += second
    return out / len(predictors)


@jit
def cholesky(matrix, k):
    """Replace the lower triangle of the first ``k`` rows by the Cholesky factor; return the log determinant, NaN without."""
    total = 0.0
    for a in range(k):
        for b in range(a):
            matrix[a, b] = (matrix[a, b] - product(matrix[a, :b], matrix[b, :b])) / matrix[b, b]
        pivot = matrix[a, a] - product(matrix[a, :a], matrix[a, :a])
        if not pivot > 0.0:
            return np.nan
        matrix[a, a] = math.sqrt(pivot)
        total += math.log(pivot)
    return total


@jit
def solve(factor, right, k):
    """Replace ``right`` by (LL')⁻¹ of it."""
    for a in range(k):
        right[a] = (right[a] - product(factor[a, :a], right[:a])) / factor[a, a]
    for a in range(k - 1, -1, -1):
        total = right[a]
        for b in range(a + 1, k):
            total -= factor[b, a] * right[b]
        right[a] = total / factor[a, a]


@jit
def _predictor(design, offset, columns, theta, out):
    out[:] = offset
    for a in range(len(columns)):
        row, weight = design[columns[a]], theta[a]
        for i in range(len(out)):
            out[i] += weight * row[i]


@jit
def log_joint(design, offset, y, extra, family, prior, columns, theta, work):
    """Return the log likelihood, without constants, plus the log prior of the coefficients ``theta`` of ``columns``."""
    _predictor(design, offset, columns, theta, work)
    total = 0.0
    for i in range(len(work)):
        total += site(family, work[i], y[i], extra[i])[0]
    for a in range(len(columns)):
        total += _prior(prior[columns[a]], theta[a])[0]
    return total


@jit
def _expand(design, offset, y, extra, family, prior, columns, theta, work, gradient, hessian):
    """Return the log joint density; write its gradient and minus its Hessian, with bounded priors; the last row is work."""
    k, total = len(columns), 0.0
    s, slope, curvature, weighted = work
    _predictor(design, offset, columns, theta, s)
    for i in range(len(s)):
        value, slope[i], second = site(family, s[i], y[i], extra[i])
        curvature[i] = -second
        total += value
    for a in range(k):
        row = design[columns[a]]
        for i in range(len(s)):
            weighted[i] = curvature[i] * row[i]
        gradient[a] = product(slope, row)
        for b in range(a + 1):
            hessian[a, b] = product(weighted, design[columns[b]])
    for a in range(k):
        value, pull, _, bound = _prior(prior[columns[a]], theta[a])
        total += value
        gradient[a] += pull
        hessian[a, a] += bound
    return total


@jit
def fit(design, offset, y, extra, family, prior, columns, gram, right, theta, factor, work):
    """Return Laplace's log evidence; write the mode and the Cholesky factor of minus the Hessian there.

    ``gram`` and ``right`` are those of weighted least squares around the fit of all columns.
    """
    k = len(columns)
    gradient, trial = np.empty(k), np.empty(k)
    for a in range(k):
        row = prior[columns[a]]
        bound = _prior(row, row[0])[3]
        theta[a] = right[columns[a]] + bound * row[0]
        for b in range(a + 1):
            factor[a, b] = gram[columns[a], columns[b]]
        factor[a, a] += bound
    if math.isnan(cholesky(factor, k)):
        theta[:k] = 0.0
    else:
        solve(factor, theta, k)
    value = _expand(design, offset, y, extra, family, prior, columns, theta, work, gradient, factor)
    if not math.isfinite(value):
        theta[:k] = 0.0
        value = _expand(design, offset, y, extra, family, prior, columns, theta, work, gradient, factor)
    gain = 0.0
    for _ in range(MOST_STEPS):
        if math.isnan(cholesky(factor, k)):
            return np.nan
        trial[:] = gradient
        solve(factor, trial, k)
        gain = product(gradient, trial)
        if gain < SETTLED:
            break
        step, old = 1.0, value
        for _ in range(MOST_HALVINGS):
            moved = theta[:k] + step * trial
            value = _expand(design, offset, y, extra, family, prior, columns, moved, work, gradient, factor)
            if value >= old - 1e-12 * abs(old):
                break
            step *= 0.5
        theta[:k] = moved
    return (
        value + 0.5 * gain + 0.5 * k * math.log(2 * math.pi) - 0.5 * _exact_determinant(prior, columns, theta, factor)
    )


@jit
def _exact_determinant(prior, columns, theta, factor):
    """Return the log determinant of minus the Hessian, whose factor replaces that with bounded priors."""
    k, total, exact = len(columns), 0.0, True
    for a in range(k):
        total += 2.0 * math.log(factor[a, a])
        exact = exact and prior[columns[a], 3] == 0.0
    if exact:
        return total
    hessian = np.zeros((k, k))
    for a in range(k):
        for b in range(a + 1):
            hessian[a, b] = product(factor[a, : b + 1], factor[b, : b + 1])
        _, _, curvature, bound = _prior(prior[columns[a]], theta[a])
        hessian[a, a] += curvature - bound
    found = cholesky(hessian, k)
    if math.isnan(found):  # flat to second order along a tail of the prior
        return total
    for a in range(k):
        factor[a, : a + 1] = hessian[a, : a + 1]
    return found


@jit
def log_evidences(design, offset, y, extra, family, prior, on, gram, right):
    """Return the log evidences ``(models,)`` of models ``on`` ``(models, p)``; NaN if Newton's method fails."""
    p, n = design.shape
    out, theta, factor, work = np.empty(len(on)), np.empty(p), np.empty((p, p)), np.empty((4, n))
    for i in range(len(on)):
        columns = np.flatnonzero(on[i])
        out[i] = fit(design, offset, y, extra, family, prior, columns, gram, right, theta, factor, work)
    return out


@jit
def estimate(design, offset, y, extra, family, prior, columns, mean, factor, normals, log_weights):
    """Write log p/q of points mean + L'⁻¹z, rows of ``normals`` ``(points, k)``, q = N(mean, (LL')⁻¹)."""
    k, work = len(columns), np.empty(design.shape[1])
    half, theta = 0.0, np.empty(k)
    for a in range(k):
        half += math.log(factor[a, a])
    for m in range(len(normals)):
        z = normals[m]
        for a in range(k - 1, -1, -1):
            total = z[a]
            for b in range(a + 1, k):
                total -= factor[b, a] * theta[b]
            theta[a] = total / factor[a, a]
        log_q = half - 0.5 * k * math.log(2 * math.pi) - 0.5 * product(z, z)
        for a in range(k):
            theta[a] += mean[a]
        log_weights[m] = log_joint(design, offset, y, extra, family, prior, columns, theta, work) - log_q
