"""The bound maximised on a fixed sample by quasi-Newton steps, on samples that grow until the answer stops changing.

With the noise fixed the bound is a smooth deterministic function: no learning rate, and a line search that cannot lose
ground. What is left is the error of the sample itself. It is seen directly, by how far means and scales move between
independent samples of n and 2n points.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ppl_backends.approximations.noise import standardised_noise
from ppl_backends.approximations.variational.elbo import SampleAverage
from ppl_backends.approximations.variational.families import Family
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["FixedSampleFit", "Maximum", "fit_fixed_samples", "maximise", "moved"]

MEMORY = 20
ARMIJO, CURVATURE = 1e-4, 0.9
LARGEST_LINE_SEARCH = 30
LARGEST_OPTIMISM, OPTIMISM_PER_COORDINATE = 0.05, 0.005  # nats

Objective = Callable[[Array], tuple[float, Array]]


class Maximum(NamedTuple):
    """Where :func:`maximise` ended.

    Attributes
    ----------
    x : ndarray
    value : float
    first_value : float
        At the start.
    expected_gain : float
        What a Newton step would still gain: the larger of ½ gᵀHg with the curvature learned, which is that of the
        stiffest directions where few have been seen, and with H = 1, which is right in the units of the base.
    iterations : int
    converged : bool
    """

    x: Array
    value: float
    first_value: float
    expected_gain: float
    iterations: int
    converged: bool


def maximise(objective: Objective, start: Array, tolerance: float, max_iterations: int) -> Maximum:
    """Maximum of a smooth function by limited-memory BFGS; ``-inf`` is a value like any other.

    Stops where a Newton step is expected to gain less than ``tolerance``, or ten steps gained less than that together.
    """
    x, (value, gradient) = start, objective(start)
    pairs: deque[tuple[Array, Array, float]] = deque(maxlen=MEMORY)
    gains: deque[float] = deque(maxlen=10)
    gain, first_value = np.inf, value
    for iteration in range(max_iterations):
        direction = _direction(gradient, pairs)
        gain = 0.5 * max(float(gradient @ direction), float(gradient @ gradient))
        if not np.isfinite(value) or gain < tolerance or (len(gains) == 10 and sum(gains) < tolerance):
            return Maximum(x, value, first_value, gain, iteration, bool(np.isfinite(value)))
        first = 1.0 if pairs else min(1.0, 1.0 / float(np.abs(direction).max()))
        step, new_value, new_gradient = _line_search(objective, x, direction, value, gradient, first)
        if step == 0.0:  # no ascent to be had within rounding
            if not pairs:
                return Maximum(x, value, first_value, gain, iteration, gain < 1e-6 * (1 + abs(value)))
            pairs.clear()
            continue
        moved, change = step * direction, gradient - new_gradient
        if (curvature := float(moved @ change)) > 1e-12 * float(moved @ moved):
            pairs.append((moved, change, 1 / curvature))
        gains.append(new_value - value)
        x, value, gradient = x + moved, new_value, new_gradient
    return Maximum(x, value, first_value, gain, max_iterations, False)


def _direction(gradient: Array, pairs: deque[tuple[Array, Array, float]]) -> Array:
    """H g by the two-loop recursion; H starts from the identity, scaled by the last pair."""
    q, alphas = gradient.copy(), []
    for moved, change, rho in reversed(pairs):
        alphas.append(rho * float(moved @ q))
        q -= alphas[-1] * change
    if pairs:
        _, change, rho = pairs[-1]
        q /= rho * float(change @ change)
    for (moved, change, rho), alpha in zip(pairs, reversed(alphas), strict=True):
        q += (alpha - rho * float(change @ q)) * moved
    return q


def _line_search(
    objective: Objective, x: Array, direction: Array, value: float, gradient: Array, step: float
) -> tuple[float, float, Array]:
    """A step with enough ascent and enough of the slope gone (weak Wolfe conditions), by bisection and doubling."""
    slope = float(gradient @ direction)
    low, high = 0.0, np.inf
    best = (0.0, value, gradient)
    for _ in range(LARGEST_LINE_SEARCH):
        new_value, new_gradient = objective(x + step * direction)
        if not new_value >= value + ARMIJO * step * slope:
            high = step
        else:
            best = (step, new_value, new_gradient)
            if float(new_gradient @ direction) <= CURVATURE * slope:
                return best
            low = step
        step = 0.5 * (low + high) if np.isfinite(high) else 2 * low
        if low > 0 and high - low < 0.1 * low:
            return best
    return best


class FixedSampleFit(NamedTuple):
    """The fit on the last sample.

    Attributes
    ----------
    family : Family
        Based at the fit: its parameters are zero.
    value : float
        Bound on the sample it was fitted to.
    change : float
        Root mean square change of means (in standard deviations) or of log scales since the sample of half the size.
    optimism : float
        By how much the bound of the sample of half the size exceeded that of its fit on the last sample.
    draws : int
    converged : bool
    history : list of tuple
        Per sample: size, value, iterations, change.
    """

    family: Family
    value: float
    change: float
    optimism: float
    draws: int
    converged: bool
    history: list[tuple[int, float, int, float]]


def fit_fixed_samples(
    target: BaseTarget,
    family: Family,
    draws: int,
    max_draws: int,
    tolerance: float,
    max_iterations: int,
    rng: np.random.Generator,
    qmc: bool = True,
    report: Callable[[int, float, float], None] | None = None,
) -> FixedSampleFit:
    """Maximise the bound on samples of ``draws``, 2 ``draws``, … points until the fit settles.

    It has when means and log scales moved by less than ``tolerance``, and the last sample but one, seen from the last, was
    not too optimistic about its own fit.
    """
    history: list[tuple[int, float, int, float]] = []
    gain_tolerance = 0.05 * tolerance**2 * family.dim
    allowed = LARGEST_OPTIMISM + OPTIMISM_PER_COORDINATE * family.dim
    while True:
        objective = SampleAverage(target, family, standardised_noise(draws, family.dim, rng, qmc, family.factors))
        found = maximise(objective, family.start(), gain_tolerance, max_iterations)
        change = moved(family, found.x)
        optimism = abs(history[-1][1] - found.first_value) if history else np.inf
        history.append((draws, found.value, found.iterations, change))
        if not np.isfinite(found.value):
            return FixedSampleFit(family, found.value, change, optimism, draws, False, history)
        family = family.rebased(found.x)
        if report is not None:
            report(draws, found.value, change)
        settled = found.converged and len(history) > 1 and change < tolerance and optimism < allowed
        if settled or 2 * draws > max_draws:
            return FixedSampleFit(family, found.value, change, optimism, draws, settled, history)
        draws *= 2


def moved(family: Family, p: Array) -> float:
    """Root mean square change from the base to ``p``, the larger of means in standard deviations and of log scales."""
    (old_mean, old_sd), (mean, sd) = family.mean_and_sd(family.start()), family.mean_and_sd(p)
    with np.errstate(all="ignore"):
        changes = np.sqrt(np.mean(((mean - old_mean) / sd) ** 2)), np.sqrt(np.mean(np.log(sd / old_sd) ** 2))
    return float(max(changes))
