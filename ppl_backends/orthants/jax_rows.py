"""Many small rectangles at once in JAX: what :mod:`ppl_backends.orthants.batch` computes, with derivatives of any order.

The tilt is an implicit function of the arguments; its derivatives follow from the equation that it solves.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from ppl_backends.orthants import kernels
from ppl_backends.orthants.batch import RowDerivatives
from ppl_backends.orthants.jax_orthants import log_orthant
from ppl_backends.orthants.row_kernels import LOG_ROOT_2PI, LOG_TAIL, NARROW, STEPS, TOLERANCE, UNBOUNDED

LENGTHS = (1.0, 0.5, 0.25, 0.0625, 0.0156)  # of a Newton step, of which the best is taken
CHUNK = 8192  # points of all rows that are worked on at a time


def log_rectangles(uniforms: Any) -> Any:
    """Return the function of mean, Cholesky factors and bounds of rows, → log P ``(n,)``, at points ``(n_points, dim)``."""
    points = np.asarray(uniforms)

    def by_rows(function: Any, *arguments: Any) -> Any:
        return jax.lax.map(lambda row: function(*row), arguments, batch_size=max(1, CHUNK // len(points)))

    def of_one(mean: Any, cholesky: Any, lower: Any, upper: Any) -> Any:
        estimate = _log_rectangle(mean, cholesky, lower, upper, points)
        if points.shape[1] not in (2, 3):
            return estimate
        exact, good = log_orthant(mean, jnp.tril(cholesky), lower, upper)
        return jnp.where(good & jnp.isfinite(estimate), exact, estimate)

    @jax.custom_jvp
    def log_p(mean: Any, cholesky: Any, lower: Any, upper: Any) -> Any:
        return by_rows(of_one, mean, cholesky, lower, upper)

    @log_p.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        # Derivatives of each row at once, so that no intermediate of all rows is kept for a pass backwards.
        value, slopes = by_rows(jax.value_and_grad(of_one, argnums=(0, 1, 2, 3)), *primals)
        by_mean, by_cholesky, by_lower, by_upper = slopes
        mean, cholesky, lower, upper = tangents
        change = (by_mean * mean + by_lower * lower + by_upper * upper).sum(axis=1)
        return value, change + (by_cholesky * cholesky).sum(axis=(1, 2))

    return log_p


def with_derivatives(uniforms: Any) -> Any:
    """Return the same with the derivatives of each row, as :class:`~ppl_backends.orthants.batch.RowDerivatives`."""
    function = log_rectangles(uniforms)

    def all_rows(*arguments: Any) -> RowDerivatives:
        slopes = jax.grad(lambda *given: function(*given).sum(), argnums=(0, 1, 2, 3))(*arguments)
        by_mean, by_cholesky, by_lower, by_upper = slopes
        return RowDerivatives(function(*arguments), by_mean, by_lower, by_upper, by_cholesky)

    return all_rows


def _log_rectangle(mean: Any, cholesky: Any, lower: Any, upper: Any, uniforms: Any) -> Any:
    """Return log P of one row."""
    cholesky = jnp.tril(cholesky)
    diagonal = jnp.diag(cholesky)
    right = (diagonal > 0).all() & jnp.isfinite(cholesky).all() & jnp.isfinite(mean).all() & (lower <= upper).all()
    dim, n = len(diagonal), len(uniforms)
    diagonal = jnp.where(right, diagonal, 1.0)
    rows = jnp.where(right, cholesky / diagonal[:, None], jnp.eye(dim))
    low, high = (_standardised(bound, mean, diagonal, right) for bound in (lower, upper))
    shift = _saddle_point(rows @ rows.T - jnp.eye(dim), low, high)
    push = _mean(low - shift, high - shift)
    centre = push @ (rows - jnp.eye(dim))

    def draw(z: Any, at: Any) -> Any:
        k, row, a, b, mu, asked, u = at
        offset = row @ z  # of the coordinates before k: the others are zero still
        x, log_p = quantile(u, a - offset - mu, b - offset - mu)
        return z.at[k].set(x + mu), log_p + 0.5 * mu**2 - asked * offset

    order = (jnp.arange(dim), rows, low, high, centre, push, uniforms.T)
    log_w = jax.lax.scan(draw, jnp.zeros((dim, n)), order)[1].sum(axis=0)
    return jnp.where(right, logsumexp(log_w) - np.log(n), -jnp.inf)


def _standardised(bound: Any, mean: Any, diagonal: Any, right: Any) -> Any:
    """Return bounds in standard deviations of what is left of a variable, infinite ones far away."""
    finite = jnp.isfinite(bound) & right
    value = jnp.where(finite, (jnp.where(finite, bound, 0.0) - jnp.where(right, mean, 0.0)) / diagonal, 0.0)
    return jnp.where(finite, jnp.clip(value, -0.1 * UNBOUNDED, 0.1 * UNBOUNDED), jnp.sign(bound) * UNBOUNDED)


def _log_tail(x: Any) -> Any:
    """Return log Φ(−x), x ≥ 0."""
    t = 2 / (2 + x / np.sqrt(2))
    value, s = LOG_TAIL[-1], 2 * t - 1
    for coefficient in LOG_TAIL[-2::-1]:
        value = value * s + coefficient
    return jnp.log(t) - 0.5 * x**2 + value


def _below_zero(a: Any, b: Any) -> Any:
    """Return an interval, mirrored where it lies above zero, whether it is, and what it takes to know its mass."""
    flip = a + b > 0
    a, b = jnp.where(flip, -b, a), jnp.where(flip, -a, b)
    half, middle = 0.5 * (b - a), 0.5 * (a + b)
    narrow = half * jnp.maximum(1.0, jnp.abs(middle)) < NARROW
    log_a, log_b = _log_tail(-a), _log_tail(jnp.abs(b))
    log_b = jnp.where(b > 0, jnp.log1p(-jnp.exp(log_b)), log_b)
    less = jnp.where(narrow, -1.0, log_a - log_b)
    wide = log_b + jnp.log(-jnp.expm1(less))
    flat = jnp.log(2 * jnp.where(b > a, half, 1.0)) - 0.5 * middle**2 - LOG_ROOT_2PI
    log_p = jnp.where(b > a, jnp.where(narrow, flat, wide), -jnp.inf)
    return a, b, flip, narrow, log_b, less, log_p


@jax.custom_jvp
def log_interval(a: Any, b: Any) -> Any:
    """Return log(Φ(b) − Φ(a)); −∞ where the interval is empty."""
    return _below_zero(a, b)[-1]


def _densities(a: Any, b: Any, log_p: Any) -> Any:
    """Return the densities of a standard normal on [a, b] at its ends; 0 where that is empty."""
    log_p = jnp.where(jnp.isfinite(log_p), log_p, jnp.inf)
    return jnp.exp(-0.5 * a**2 - LOG_ROOT_2PI - log_p), jnp.exp(-0.5 * b**2 - LOG_ROOT_2PI - log_p)


@log_interval.defjvp
def _log_interval_slope(primals: Any, tangents: Any) -> Any:
    a, b = primals
    log_p = log_interval(a, b)
    at_a, at_b = _densities(a, b, log_p)
    return log_p, at_b * tangents[1] - at_a * tangents[0]


def _mean(a: Any, b: Any) -> Any:
    """Return the mean of a standard normal on [a, b]."""
    at_a, at_b = _densities(a, b, log_interval(a, b))
    narrow = 0.5 * (b - a) * jnp.maximum(1.0, jnp.abs(a + b) / 2) < NARROW
    return jnp.where(narrow, 0.5 * (a + b), at_a - at_b)


@jax.custom_jvp
def quantile(u: Any, a: Any, b: Any) -> Any:
    """Return the quantile at ``u`` of a standard normal on [a, b], and the log probability of that interval."""
    a, b, flip, narrow, log_b, less, log_p = _below_zero(a, b)
    u = jnp.where(flip, 1 - u, u)
    x = _normal_quantile(log_b + jnp.log(u + (1 - u) * jnp.exp(less)))
    x = jnp.clip(jnp.where(narrow, a + (b - a) * u, x), a, b)
    return jnp.where(flip, -x, x), log_p


@quantile.defjvp
def _quantile_slope(primals: Any, tangents: Any) -> Any:
    u, a, b = primals
    x, log_p = quantile(u, a, b)
    at_a, at_b = _densities(a, b, log_p)
    _, by_a, by_b = tangents
    by_x = (1 - u) * jnp.exp(0.5 * (x - a) * (x + a)) * by_a + u * jnp.exp(0.5 * (x - b) * (x + b)) * by_b
    return (x, log_p), (by_x, at_b * by_b - at_a * by_a)


def _ratio(coefficients: Any, x: Any) -> Any:
    above, below = coefficients[:, 0]
    for i in range(1, 8):
        above, below = above * x + coefficients[0, i], below * x + coefficients[1, i]
    return above / below


def _normal_quantile(y: Any) -> Any:
    """Return x with log Φ(x) = y: algorithm AS 241 in logs, and in the far tail a step of Newton's method."""
    p = jnp.exp(y)
    q = p - 0.5
    centre = q * _ratio(kernels.CENTRE, 0.180625 - jnp.minimum(q * q, 0.180625))
    r = jnp.sqrt(-jnp.where(q < 0, y, jnp.log(jnp.maximum(1 - p, 1e-300))))
    outer = jnp.where(
        r <= 5, _ratio(kernels.MIDDLE, jnp.minimum(r, 5.0) - 1.6), _ratio(kernels.TAIL, jnp.clip(r - 5, 0.0, 20.0))
    )
    far = jnp.sqrt(2 * jnp.maximum(-y - 0.5 * jnp.log(-4 * np.pi * jnp.minimum(y, -600.0)), 1.0))
    log_mass = _log_tail(far)
    far = far + (log_mass - y) * jnp.exp(log_mass + 0.5 * far**2 + LOG_ROOT_2PI)
    outer = jnp.where(y < -600, far, outer)
    return jnp.where(jnp.abs(q) <= 0.425, centre, jnp.where(q < 0, -outer, outer))


def _residual(shift: Any, beyond: Any, low: Any, high: Any) -> Any:
    """Return what the saddle point makes zero."""
    return shift - beyond @ _mean(low - shift, high - shift)


def _inverse_jacobian(shift: Any, beyond: Any, low: Any, high: Any) -> Any:
    """Return the inverse of I + B W, B = S − I, through the similar I + W^½ B W^½, W = −∂ mean / ∂ shift."""
    slope = jax.jvp(lambda s: _mean(low - s, high - s), (shift,), (jnp.ones_like(shift),))[1]
    root = jnp.sqrt(jnp.clip(-slope, 1e-12, 1.0))
    return _inverse(jnp.eye(len(shift)) + root[:, None] * beyond * root) * root / root[:, None]


def _inverse(matrix: Any) -> Any:
    """Return the inverse of a positive definite matrix by elimination; XLA's own has no fast form for many small ones."""

    def eliminate(k: Any, work: Any) -> Any:
        row = work[k] / work[k, k]
        return (work - work[:, k, None] * row).at[k].set(row)

    dim = len(matrix)
    return jax.lax.fori_loop(0, dim, eliminate, jnp.hstack([matrix, jnp.eye(dim)]))[:, dim:]


@jax.custom_jvp
def _saddle_point(beyond: Any, low: Any, high: Any) -> Any:
    """Return s = B P(s) by Newton's method; where it is not found the estimate is unbiased all the same."""

    def size(shift: Any) -> Any:
        found = (_residual(shift, beyond, low, high) ** 2).sum()
        return jnp.where(jnp.isfinite(found), found, jnp.inf)

    def unfinished(state: Any) -> Any:
        step, _, now, before = state
        return (step < STEPS) & (now > TOLERANCE**2) & (now < before)

    def newton(state: Any) -> Any:
        step, shift, now, _ = state
        move = _inverse_jacobian(shift, beyond, low, high) @ _residual(shift, beyond, low, high)
        tried = shift - jnp.array(LENGTHS)[:, None] * move
        sizes = jax.vmap(size)(tried)
        best = jnp.argmin(sizes)
        better = sizes[best] < now
        return step + 1, jnp.where(better, tried[best], shift), jnp.where(better, sizes[best], now), now

    start = jnp.zeros_like(low)
    return jax.lax.while_loop(unfinished, newton, (0, start, size(start), jnp.inf))[1]


@_saddle_point.defjvp
def _saddle_point_slope(primals: Any, tangents: Any) -> Any:
    shift = _saddle_point(*primals)
    _, change = jax.jvp(lambda *given: _residual(shift, *given), primals, tangents)
    return shift, -_inverse_jacobian(shift, *primals) @ change
