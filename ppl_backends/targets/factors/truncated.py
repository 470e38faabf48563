"""Moments of normal distributions that are truncated, or tilted exponentially on two sides.

Tails use ``log_ndtr`` and ``erfcx``, so that they are accurate hundreds of standard deviations out.
"""

from __future__ import annotations

import numpy as np
from scipy.special import erfcx, log_ndtr

from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.gaussian import LOG_2PI

_NODES, _WEIGHTS = (part[:, None] for part in np.polynomial.legendre.leggauss(40))


def mills(z: Array) -> Array:
    """Return φ(z)/Φ(z) to full relative accuracy on the whole line."""
    return np.sqrt(2 / np.pi) / erfcx(-np.asarray(z) / np.sqrt(2))


def truncated_variance(z: Array) -> Array:
    """Return the variance of N(z, 1) on (0, ∞): 1 − r(z + r) with r = φ(z)/Φ(z); in the tail its series in 1/z²."""
    r, square = mills(z), np.maximum(z**2, 1.0)
    return np.where(z < -50, (1 - 6 / square + 50 / square**2) / square, 1 - r * (z + r))


@np.errstate(all="ignore")
def on_interval(lower: Array, upper: Array) -> tuple[Array, Array, Array]:
    """Return log probability, mean and variance ``(n,)`` of N(0, 1) on intervals."""
    sign = np.where(lower + upper > 0, -1.0, 1.0)  # on the side without loss of digits in log Φ
    a, b = np.minimum(sign * lower, sign * upper), np.maximum(sign * lower, sign * upper)
    log_b = log_ndtr(b)
    log_z = log_b + np.log(-np.expm1(log_ndtr(a) - log_b))
    at_a, at_b = (np.exp(-0.5 * x**2 - 0.5 * LOG_2PI - log_z) for x in (a, b))
    mean, variance = at_a - at_b, 1 + a * at_a - b * at_b - (at_a - at_b) ** 2
    tail = b < -1  # the other end is out of sight if the interval is not short
    mean, variance = np.where(tail, -mills(b), mean), np.where(tail, truncated_variance(b), variance)
    short = (b - a) * np.maximum(1.0, -b) < np.where(tail, 40.0, 6.0)  # differences lose digits there
    if short.any():
        log_z[short], mean[short], variance[short] = _on_short_interval(a[short], b[short])
    return log_z, sign * mean, variance


def _on_short_interval(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Return log probability, mean and variance of N(0, 1) on (a, b), by Gauss–Legendre nodes from ``b`` downwards."""
    below = 0.5 * (b - a) * (1 - _NODES)
    weight = _WEIGHTS * np.exp(below * b - 0.5 * below**2)
    total = weight.sum(axis=0)
    centre = (weight * below).sum(axis=0) / total
    variance = (weight * (below - centre) ** 2).sum(axis=0) / total
    return np.log(0.5 * (b - a) * total) - 0.5 * (b**2 + LOG_2PI), b - centre, variance


def two_sides(mean: Array, variance: Array, left: Array, right: Array) -> tuple[Array, Array, Array]:
    """Return log integral, mean and variance ``(n,)`` of N(mean, variance) times exp(−left·(−x)₊ − right·x₊)."""
    sd = np.sqrt(variance)
    above, below = (mean - right * variance) / sd, (-mean - left * variance) / sd
    common = np.minimum(left, right) ** 2  # left out, because it can be so large that shares lose digits
    log_above = log_ndtr(above) - right * mean + 0.5 * (right**2 - common) * variance
    log_below = log_ndtr(below) + left * mean + 0.5 * (left**2 - common) * variance
    log_mass = np.logaddexp(log_above, log_below)
    share = np.exp(log_above - log_mass)
    high, low = sd * (above + mills(above)), -sd * (below + mills(below))  # means of the two sides
    within = variance * (share * truncated_variance(above) + (1 - share) * truncated_variance(below))
    between = share * (1 - share) * (high - low) ** 2
    return log_mass + 0.5 * common * variance, share * high + (1 - share) * low, within + between
