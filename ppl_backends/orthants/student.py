"""Rectangles of Student vectors: the integral over the radius of rectangles of Gaussian vectors.

T = X / r with r = √(u / ν), u ~ χ²_ν, so that P(lower ≤ T ≤ upper) = E P(r lower ≤ X ≤ r upper). In t = log r the
integrand p(t) P(t) is smooth and has one mode; the trapezoidal rule over its non-negligible range converges
exponentially.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import gammaln

from ppl_backends.orthants.intervals import Array

DROP = 20.0  # drop of the log integrand from the mode to the outermost nodes
NODES = 24
LONGEST_STEP = 0.2


def log_radius_density(t: Array, df: float) -> Array:
    """Return the log density of t = log √(u / ν), u ~ χ²_ν."""
    return df * t - 0.5 * df * np.exp(2 * t) + np.log(2.0) + 0.5 * df * np.log(0.5 * df) - gammaln(0.5 * df)


def radius_nodes(df: float, guess: Callable[[float], float]) -> tuple[Array, Array]:
    """Return radii and log weights of a rule for E P(r lower ≤ X ≤ r upper).

    Parameters
    ----------
    guess : callable
        A smooth guess of log P(r lower ≤ X ≤ r upper) at a radius, such as that at the saddle point.
    """

    def height(t: float) -> float:
        return float(log_radius_density(np.array(t), df)) + guess(float(np.exp(t)))

    mode = _climb(height, 2.0 / np.sqrt(df))
    floor = height(mode) - DROP
    low, high = (_fall(height, mode, side * 2.0 / np.sqrt(df), floor) for side in (-1, 1))
    # p is analytic for |Im t| < π/4, so that the error of a step h is exp(−π²/2h); near the normal its sd, √(1/2ν), matters.
    n = max(NODES, int(np.ceil((high - low) / min(0.5 / np.sqrt(df), LONGEST_STEP))))
    t, step = np.linspace(low, high, n, retstep=True)
    return np.exp(t), log_radius_density(t, df) + np.log(step)


def _climb(height: Callable[[float], float], step: float) -> float:
    """Return the mode of a function, accurate to a hundredth of a step, which suffices to place the nodes."""
    at, value, shortest = 0.0, height(0.0), 0.01 * step
    while abs(step) > shortest:
        new = height(at + step)
        if new > value:
            at, value = at + step, new
        else:
            step *= -0.5
    return at


def _fall(height: Callable[[float], float], mode: float, step: float, floor: float) -> float:
    """Return a point beyond the mode at which a function has fallen to a floor, or just below it."""
    at = mode + step
    while height(at) > floor:
        step *= 1.5
        at += step
    inside = at - step
    for _ in range(4):
        middle = 0.5 * (inside + at)
        inside, at = (middle, at) if height(middle) > floor else (inside, middle)
    return at
