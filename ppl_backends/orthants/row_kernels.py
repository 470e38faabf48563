"""Compiled estimate of many small rectangles by the tilted product of intervals, with its exact derivatives.

A forward pass draws the coordinates of a point, and a backward pass differentiates its log weight by the bounds, the
factor and the tilt. The tilt is an implicit function of the arguments; its equation gives its derivatives.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import erfcx

from ppl_backends.numerics.jit import jit
from ppl_backends.numerics.normal import CENTRE, MIDDLE, TAIL, ratio
from ppl_backends.orthants.orthant_kernels import WORK, exact_row, lay_paths

UNBOUNDED = 1e4  # in standard deviations, for bounds that are infinite
NARROW = 1e-5  # half width, times the distance from zero, below which the density is flat
LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)
TOLERANCE, STEPS = 1e-10, 30
LARGEST_ENTRY = 1e70  # of a factor


def _log_scaled_tail(s):
    x = 4 / (1 + np.asarray(s)) - 2
    return np.log(0.5 * erfcx(x) * (2 + x) / 2)


# log Φ(−√2 x) = log t − x² + LOG_TAIL(2t − 1) with t = 2 / (2 + x): a polynomial good to rounding for all x ≥ 0.
LOG_TAIL = chebyshev.cheb2poly(chebyshev.chebinterpolate(_log_scaled_tail, 28))


@jit
def _log_tail(x):
    """Return log Φ(−x), x ≥ 0."""
    if x < 20.0:
        return math.log(0.5 * math.erfc(x / math.sqrt(2.0)))
    t = 2.0 / (2.0 + x / math.sqrt(2.0))
    value, s = LOG_TAIL[LOG_TAIL.size - 1], 2.0 * t - 1.0
    for i in range(LOG_TAIL.size - 2, -1, -1):
        value = value * s + LOG_TAIL[i]
    return math.log(t) - 0.5 * x * x + value


@jit
def _below_zero(a, b):
    """Return log Φ(b), log(Φ(a) / Φ(b)), whether [a, b] is narrow, and log P: for an interval not above zero."""
    half, middle = 0.5 * (b - a), 0.5 * (a + b)
    narrow = half * max(1.0, abs(middle)) < NARROW
    if b <= a:
        return 0.0, -1.0, narrow, -np.inf
    if narrow:
        return 0.0, -1.0, narrow, math.log(2.0 * half) - 0.5 * middle * middle - LOG_ROOT_2PI
    log_b = math.log1p(-0.5 * math.erfc(b / math.sqrt(2.0))) if b > 0.0 else _log_tail(-b)
    if a <= -0.5 * UNBOUNDED:
        return log_b, -np.inf, narrow, log_b
    less = _log_tail(-a) - log_b
    return log_b, less, narrow, log_b + math.log(-math.expm1(less))


@jit
def _log_interval(a, b):
    """Return log(Φ(b) − Φ(a)); −∞ for an empty interval."""
    return _below_zero(-b, -a)[3] if a + b > 0.0 else _below_zero(a, b)[3]


@jit
def _normal_quantile(y):
    """Return x with log Φ(x) = y: algorithm AS 241 in logs, and in the far tail a step of Newton's method."""
    p = math.exp(y)
    q = p - 0.5
    if abs(q) <= 0.425:
        return q * ratio(CENTRE, 0.180625 - q * q)
    if y < -600.0:
        far = math.sqrt(2.0 * max(-y - 0.5 * math.log(-4.0 * math.pi * y), 1.0))
        log_mass = _log_tail(far)
        return -far - (log_mass - y) * math.exp(log_mass + 0.5 * far * far + LOG_ROOT_2PI)
    r = math.sqrt(-(y if q < 0.0 else math.log(max(1.0 - p, 1e-300))))
    x = ratio(MIDDLE, r - 1.6) if r <= 5.0 else ratio(TAIL, min(r - 5.0, 20.0))
    return math.copysign(x, q)


@jit
def _quantile(u, a, b):
    """Return the quantile at ``u`` of a standard normal on [a, b], and the log probability of that interval."""
    flip = a + b > 0.0
    if flip:
        a, b, u = -b, -a, 1.0 - u
    log_b, less, narrow, log_p = _below_zero(a, b)
    x = a + (b - a) * u if narrow or b <= a else _normal_quantile(log_b + math.log(u + (1.0 - u) * math.exp(less)))
    x = min(max(x, a), b)
    return (-x if flip else x), log_p


@jit
def _density(x, log_p):
    """Return the density at ``x`` of a normal on an interval of that log probability; 0 if it is empty."""
    return math.exp(-0.5 * x * x - LOG_ROOT_2PI - log_p) if log_p > -np.inf else 0.0


@jit
def _mean(a, b):
    """Return the mean of a standard normal on [a, b], and its derivatives by a and b."""
    if 0.5 * (b - a) * max(1.0, 0.5 * abs(a + b)) < NARROW:
        return 0.5 * (a + b), 0.5, 0.5
    log_p = _log_interval(a, b)
    at_a, at_b = _density(a, log_p), _density(b, log_p)
    mean = at_a - at_b
    return mean, at_a * (mean - a), at_b * (b - mean)


@jit
def _solve(matrix, x):
    """Solve matrix @ y = x in place of x; no pivoting is needed, because every leading minor is positive."""
    dim = x.size
    for k in range(dim):
        for i in range(k + 1, dim):
            share = matrix[i, k] / matrix[k, k]
            for j in range(k + 1, dim):
                matrix[i, j] -= share * matrix[k, j]
            x[i] -= share * x[k]
    for k in range(dim - 1, -1, -1):
        for j in range(k + 1, dim):
            x[k] -= matrix[k, j] * x[j]
        x[k] /= matrix[k, k]


@jit
def _residual(s, beyond, low, high, push, by_low, by_high, residual):
    """Fill the means P(s) with their derivatives and s − B P(s); return the size of the last."""
    for k in range(s.size):
        push[k], by_low[k], by_high[k] = _mean(low[k] - s[k], high[k] - s[k])
    size = 0.0
    for k in range(s.size):
        residual[k] = s[k]
        for j in range(s.size):
            residual[k] -= beyond[k, j] * push[j]
        size += residual[k] ** 2
    return size


@jit
def _saddle_point(beyond, low, high, push, by_low, by_high):
    """Fill P at s = B P(s), by Newton's method, and its derivatives by the bounds at that s."""
    dim = low.size
    s, new, move, matrix = np.zeros(dim), np.empty(dim), np.empty(dim), np.empty((dim, dim))
    size = _residual(s, beyond, low, high, push, by_low, by_high, move)
    for _ in range(STEPS):
        if size <= TOLERANCE**2:
            break
        for i in range(dim):
            for j in range(dim):
                matrix[i, j] = beyond[i, j] * (by_low[j] + by_high[j])
            matrix[i, i] += 1.0
        _solve(matrix, move)
        length, found = 1.0, np.inf
        step = move.copy()
        for _ in range(10):
            for k in range(dim):
                new[k] = s[k] - length * step[k]
            found = _residual(new, beyond, low, high, push, by_low, by_high, move)
            if found < size:
                break
            length *= 0.5
        if not found < size:
            size = _residual(s, beyond, low, high, push, by_low, by_high, move)
            break
        s[:] = new
        size = found


@jit
def _points(rows, low, high, push, centre, uniforms, by_low, by_high, by_centre, by_push, by_rows):
    """Return the log of the mean weight of points, and fill its derivatives for a fixed tilt."""
    dim, n = low.size, uniforms.shape[0]
    z, z_bar, offset = np.zeros(dim), np.empty(dim), np.empty(dim)
    slopes = np.zeros((dim, 4))  # of the point by the ends of its interval, and of the log probability
    top, total = -np.inf, 0.0
    for m in range(n):
        log_w = 0.0
        for k in range(dim):
            offset[k] = 0.0
            for j in range(k):
                offset[k] += rows[k, j] * z[j]
            a, b = low[k] - offset[k] - centre[k], high[k] - offset[k] - centre[k]
            if k < dim - 1:
                u = uniforms[m, k]
                x, log_p = _quantile(u, a, b)
                z[k] = x + centre[k]
                slopes[k, 0] = (1.0 - u) * math.exp(0.5 * (x - a) * (x + a))
                slopes[k, 1] = u * math.exp(0.5 * (x - b) * (x + b))
            else:
                log_p = _log_interval(a, b)
            slopes[k, 2], slopes[k, 3] = -_density(a, log_p), _density(b, log_p)
            log_w += log_p + 0.5 * centre[k] ** 2 - push[k] * offset[k]
        if not log_w > -np.inf:
            continue
        if log_w > top:
            scale = math.exp(top - log_w)
            total *= scale
            by_low *= scale
            by_high *= scale
            by_centre *= scale
            by_push *= scale
            by_rows *= scale
            top = log_w
        w = math.exp(log_w - top)
        total += w
        z_bar[:] = 0.0
        for k in range(dim - 1, -1, -1):
            at_low, at_high = slopes[k, 2] + z_bar[k] * slopes[k, 0], slopes[k, 3] + z_bar[k] * slopes[k, 1]
            by_low[k] += w * at_low
            by_high[k] += w * at_high
            by_centre[k] += w * (centre[k] + z_bar[k] - at_low - at_high)
            by_push[k] -= w * offset[k]
            at_offset = -at_low - at_high - push[k]
            for j in range(k):
                by_rows[k, j] += w * at_offset * z[j]
                z_bar[j] += at_offset * rows[k, j]
    if total > 0.0:
        for slope in (by_low, by_high, by_centre, by_push):
            slope /= total
        by_rows /= total
    return top + math.log(total / n) if total > 0.0 else -np.inf


@jit
def _through_tilt(rows, beyond, push, mean_by_low, mean_by_high, by_low, by_high, by_centre, by_push, by_rows):
    """Add to derivatives by bounds and rows their effect through the tilt."""
    dim = push.size
    for i in range(dim):
        for j in range(i):
            by_push[i] += by_centre[j] * rows[i, j]
            by_rows[i, j] += by_centre[j] * push[i]
    # s = B P(s): with W = −∂P/∂s, (I + W B) λ = −W ∂/∂P, and λ is the derivative by the right side.
    matrix, change = np.empty((dim, dim)), np.empty(dim)
    for i in range(dim):
        slope = mean_by_low[i] + mean_by_high[i]
        change[i] = -slope * by_push[i]
        for j in range(dim):
            matrix[i, j] = slope * beyond[i, j]
        matrix[i, i] += 1.0
    _solve(matrix, change)
    for i in range(dim):
        whole = by_push[i]
        for j in range(dim):
            whole += beyond[i, j] * change[j]
        by_low[i] += mean_by_low[i] * whole
        by_high[i] += mean_by_high[i] * whole
    for i in range(dim):
        for k in range(i):
            for j in range(k, dim):
                by_rows[i, k] += (change[i] * push[j] + change[j] * push[i]) * rows[j, k]


@jit
def _standardised(bound, mean, scale):
    """Return a bound in residual standard deviations of a variable; replace an infinite one by a far one."""
    if math.isinf(bound):
        return math.copysign(UNBOUNDED, bound)
    return min(max((bound - mean) / scale, -0.1 * UNBOUNDED), 0.1 * UNBOUNDED)


@jit
def estimate_row(mean, cholesky, lower, upper, uniforms, by_mean, by_lower, by_upper, by_cholesky):
    """Return log P of one rectangle from points ``(n, dim)``, and fill its derivatives."""
    dim = mean.size
    rows, low, high = np.zeros((dim, dim)), np.empty(dim), np.empty(dim)
    for i in range(dim):
        low[i] = _standardised(lower[i], mean[i], cholesky[i, i])
        high[i] = _standardised(upper[i], mean[i], cholesky[i, i])
        if not low[i] < high[i]:
            return -np.inf
        for j in range(i):
            rows[i, j] = cholesky[i, j] / cholesky[i, i]
        rows[i, i] = 1.0
    beyond = np.zeros((dim, dim))
    for i in range(dim):
        for j in range(dim):
            for k in range(min(i, j) + 1):
                beyond[i, j] += rows[i, k] * rows[j, k]
        beyond[i, i] -= 1.0
    push, centre, mean_by_low, mean_by_high = np.empty(dim), np.zeros(dim), np.empty(dim), np.empty(dim)
    _saddle_point(beyond, low, high, push, mean_by_low, mean_by_high)
    for i in range(dim):
        for j in range(i):
            centre[j] += push[i] * rows[i, j]
    by_low, by_high, by_centre, by_push = np.zeros(dim), np.zeros(dim), np.zeros(dim), np.zeros(dim)
    by_rows = np.zeros((dim, dim))
    log_p = _points(rows, low, high, push, centre, uniforms, by_low, by_high, by_centre, by_push, by_rows)
    _through_tilt(rows, beyond, push, mean_by_low, mean_by_high, by_low, by_high, by_centre, by_push, by_rows)
    for i in range(dim):
        scale = cholesky[i, i]
        by_lower[i] = 0.0 if math.isinf(lower[i]) else by_low[i] / scale
        by_upper[i] = 0.0 if math.isinf(upper[i]) else by_high[i] / scale
        by_mean[i] = -by_lower[i] - by_upper[i]
        by_cholesky[i, i] = -by_lower[i] * low[i] - by_upper[i] * high[i]
        for j in range(i):
            by_cholesky[i, j] = by_rows[i, j] / scale
            by_cholesky[i, i] -= by_rows[i, j] * rows[i, j] / scale
    return log_p


@jit
def estimate_rows(mean, cholesky, lower, upper, uniforms, log_p, by_mean, by_lower, by_upper, by_cholesky):
    """Fill log P ``(n,)`` and derivatives of all rows; ``uniforms`` ``(1 or n, points, dim)``."""
    shared = uniforms.shape[0] == 1
    for i in range(mean.shape[0]):
        points = uniforms[0 if shared else i]
        log_p[i] = estimate_row(
            mean[i], cholesky[i], lower[i], upper[i], points, by_mean[i], by_lower[i], by_upper[i], by_cholesky[i]
        )


@jit
def _same_factor(cholesky, i, j):
    for k in range(cholesky.shape[1]):
        for m in range(k + 1):
            if cholesky[i, k, m] != cholesky[j, k, m]:
                return False
    return True


@jit
def _is_factor(cholesky, i):
    """Return whether a lower triangle has a positive diagonal and no entry whose square or ratio is out of range."""
    for k in range(cholesky.shape[1]):
        for m in range(k + 1):
            if not abs(cholesky[i, k, m]) < LARGEST_ENTRY:
                return False
        if cholesky[i, k, k] <= 1 / LARGEST_ENTRY:
            return False
    return True


@jit
def compute_rows(mean, cholesky, lower, upper, uniforms, log_p, by_mean, by_lower, by_upper, by_cholesky):
    """Fill the results exactly for rows with two or three bounded variables, else from points ``(n, >= dim)``.

    Rows with invalid parameters have log P = −∞ and no derivatives.
    """
    dim = mean.shape[1]
    work, known, sensible, laid = np.zeros(WORK), -1, False, False
    for i in range(mean.shape[0]):
        if known < 0 or not _same_factor(cholesky, i, known):
            known, sensible = i, _is_factor(cholesky, i)
            laid = sensible and dim in (2, 3) and lay_paths(i, cholesky, work)
        log_p[i], good = -np.inf, sensible
        for k in range(dim):
            good &= math.isfinite(mean[i, k])
        if not good:
            continue
        if laid:
            log_p[i] = exact_row(i, mean, cholesky, lower, upper, work, by_mean, by_lower, by_upper, by_cholesky)
        if not laid or math.isnan(log_p[i]):
            slopes = (by_mean[i], by_lower[i], by_upper[i], by_cholesky[i])
            log_p[i] = estimate_row(mean[i], cholesky[i], lower[i], upper[i], uniforms, *slopes)
