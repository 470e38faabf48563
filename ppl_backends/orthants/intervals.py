"""A standard normal variable on an interval: log probability, mean, variance and quantiles, accurate in every tail.

Everything is computed on the side of zero without loss of digits. If an interval is beyond the range of the normal
distribution function, or narrow relative to its distance from zero, logs and Mills' ratio R(x) = (1 − Φ(x)) / φ(x) are
used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr, ndtr, ndtri, ndtri_exp

from ppl_backends.numerics.arrays import Array

LOG_ROOT_2PI = 0.5 * np.log(2 * np.pi)
NARROW = 1e-5  # half width, times the distance from zero, below which the density is a tilted constant
SHARE = 1e-6  # least share of Φ(upper) in an interval for Φ(upper) − Φ(lower) to be accurate to 1e-10
SMALLEST = 1e-290
FAR, SHORT = 500.0, 1e-3  # distance from zero, or half width, from which the density is an exponential


class Moments(NamedTuple):
    """Log probability, mean and variance of standard normals on intervals."""

    log_p: Array
    mean: Array
    variance: Array


def log_interval(lower: Array, upper: Array) -> Array:
    """Return log(Φ(upper) − Φ(lower)); −∞ for empty intervals.

    Examples
    --------
    >>> import numpy as np
    >>> log_interval(np.array([30.0]), np.array([31.0])).round(4)
    array([-454.3212])
    """
    a, b, _ = _below_zero(lower, upper)
    high = ndtr(b)
    mass = high - ndtr(a)
    hard = _hard(mass, high)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p = np.log(np.maximum(mass, 0.0))
    if hard.any():
        log_p[hard] = _hard_log_interval(a[hard], b[hard])
    return log_p


def quantile(u: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Return the quantiles at ``u`` of standard normals on intervals, and the log probabilities of the intervals.

    Quantiles of empty intervals are a bound, with log probability −∞.
    """
    a, b, flip = _below_zero(lower, upper)
    u = np.where(flip, 1 - u, u)
    low, high = ndtr(a), ndtr(b)
    mass = high - low
    hard = _hard(mass, high)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_p = np.log(np.maximum(mass, 0.0))
        x = ndtri(low + u * mass)
    if hard.any():
        x[hard], log_p[hard] = _hard_quantile(u[hard], a[hard], b[hard])
    x = np.minimum(np.maximum(x, a), b)
    return np.where(flip, -x, x), log_p


def moments(lower: Array, upper: Array) -> Moments:
    """Return log probability, mean and variance of standard normals on intervals that are not empty.

    Examples
    --------
    >>> import numpy as np
    >>> moments(np.array([0.0]), np.array([np.inf])).mean.round(6)
    array([0.797885])
    """
    below, above, flip = _below_zero(lower, upper)
    a, b = -above, -below  # on the side above zero
    log_p = log_interval(below, above)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        width = b - a
        fall = np.where(np.isinf(b), 0.0, np.exp(-0.5 * width * (b + a)))  # φ(b) / φ(a)
        at_a = np.where(a > 0, 1 / (_mills(a) - fall * _mills(b)), np.exp(-0.5 * a**2 - LOG_ROOT_2PI - log_p))
        at_b = np.where(np.isinf(b), 0.0, fall * at_a)
        at_b = np.where(a > 0, at_b, np.exp(-0.5 * b**2 - LOG_ROOT_2PI - log_p))
        mean = at_a - at_b
        ends = np.where(np.isinf(a), 0.0, a) * at_a - np.where(np.isinf(b), 0.0, b) * at_b
        variance = 1 + ends - mean**2
        middle, half = 0.5 * (a + b), 0.5 * width
        narrow = half * np.maximum(1.0, np.abs(middle)) < 100 * NARROW
        mean = np.where(narrow, middle * (1 - half**2 / 3), mean)
        variance = np.where(narrow, half**2 / 3, variance)
        far = (a > FAR) | ((a > 0) & (half < SHORT))
        steep = np.where(far, a * width, 1.0)
        cut = np.where(steep < 300, (0.5 * width / np.sinh(0.5 * np.minimum(steep, 300.0))) ** 2, 0.0)
        variance = np.where(far & ~narrow, 1 / np.maximum(a, 1.0) ** 2 - cut, variance)  # of an exponential, cut off
    variance = np.clip(variance, 1e-300, np.minimum(1.0, np.where(np.isinf(width), 1.0, half**2)))
    return Moments(log_p, np.where(flip, mean, -mean), variance)


def _below_zero(lower: Array, upper: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return the intervals, with those above zero mirrored, and a mask of the mirrored ones."""
    with np.errstate(invalid="ignore"):
        flip = lower + upper > 0
    return np.where(flip, -upper, lower), np.where(flip, -lower, upper), flip


def _hard(mass: Array, high: Array) -> NDArray[np.bool_]:
    return (mass < SHARE * high) | (high < SMALLEST)


def _hard_log_interval(a: Array, b: Array) -> Array:
    """Return log(Φ(b) − Φ(a)) for intervals below zero, or narrow, by logs."""
    half, middle = 0.5 * (b - a), 0.5 * (a + b)
    narrow = half * np.maximum(1.0, np.abs(middle)) < NARROW
    with np.errstate(divide="ignore", invalid="ignore"):
        high = log_ndtr(b)
        log_p = high + np.log1p(-np.exp(log_ndtr(a) - high))
        flat = np.log(2 * half) - 0.5 * middle**2 - LOG_ROOT_2PI
    return np.where(b <= a, -np.inf, np.where(narrow, flat, log_p))


def _hard_quantile(u: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """Return quantiles and log probabilities for the same intervals."""
    half, middle = 0.5 * (b - a), 0.5 * (a + b)
    narrow = half * np.maximum(1.0, np.abs(middle)) < NARROW
    log_p = _hard_log_interval(a, b)
    with np.errstate(divide="ignore", invalid="ignore"):
        x = ndtri_exp(np.logaddexp(log_ndtr(a), np.log(u) + log_p))
        x = np.where(narrow, a + 2 * half * u, x)
    return np.where(b <= a, b, x), log_p


def _mills(x: Array) -> Array:
    return np.sqrt(np.pi / 2) * erfcx(x / np.sqrt(2))
