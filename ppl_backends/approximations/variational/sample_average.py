"""The bound maximised on a fixed sample by quasi-Newton steps, on samples that grow until the answer stops changing.

With the noise fixed the bound is a smooth deterministic function: no learning rate, and a line search that cannot lose
ground. What is left is the error of the sample itself. It is seen directly, by how far means and scales move between
independent samples of n and 2n points.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from ppl_backends.approximations.noise import standardised_noise
from ppl_backends.approximations.variational.elbo import SampleAverage, VariationalFit
from ppl_backends.approximations.variational.families import Family
from ppl_backends.targets.blocks import threads_worth_having
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["Maximum", "fit_fixed_samples", "maximise", "moved"]

MEMORY, LINE_SEARCH = 20, 30
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
        What a Newton step would still gain; see :class:`_Climb`.
    iterations : int
    converged : bool
    """

    x: Array
    value: float
    first_value: float
    expected_gain: float
    iterations: int
    converged: bool


class _Climb:
    """A maximisation as ``scipy.optimize.minimize`` sees it: a finite function, and a callback that knows when to stop.

    Where the objective is ``-inf``, a parabola along the step stands for it, whose minimum is a quarter of the way: so far
    the line search goes back.

    A Newton step would gain ½ gᵀHg. For H stands the larger of the identity, which is right in the units of the base, and the
    curvature of the last step.
    """

    def __init__(self, objective: Objective, start: Array, tolerance: float) -> None:
        self.objective, self.tolerance = objective, tolerance
        self.x, (self.value, self.gradient) = start, objective(start)
        self.last = (self.x, self.value, self.gradient)
        self.gain = 0.5 * float(self.gradient @ self.gradient) if np.isfinite(self.value) else np.inf
        self.gains: deque[float] = deque(maxlen=10)
        self.iterations = 0

    @property
    def settled(self) -> bool:
        """Whether next to nothing is to be gained, or ten steps gained next to nothing together."""
        if self.gain < self.tolerance and (not self.gains or self.gains[-1] < 10 * self.tolerance):
            return True
        return len(self.gains) == 10 and sum(self.gains) < self.tolerance

    def negative(self, x: Array) -> tuple[float, Array]:
        """Minus the objective and its gradient."""
        if not np.array_equal(x, self.last[0]):
            self.last = (x.copy(), *self.objective(x))
        _, value, gradient = self.last
        if np.isfinite(value):
            return -value, -gradient
        promised = abs(float(self.gradient @ (x - self.x)))
        return promised - self.value, 3 * self.gradient

    def step(self, x: Array) -> None:
        """After every step."""
        self.negative(x)
        x, value, gradient = self.last
        moved, change = x - self.x, self.gradient - gradient
        curvature = float(moved @ change)
        scale = max(1.0, curvature / float(change @ change)) if curvature > 1e-12 * float(moved @ moved) else 1.0
        self.gains.append(value - self.value)
        self.x, self.value, self.gradient = x, value, gradient
        self.gain = 0.5 * scale * float(gradient @ gradient)
        self.iterations += 1
        if self.settled:
            raise StopIteration


def maximise(objective: Objective, start: Array, tolerance: float, max_iterations: int) -> Maximum:
    """Maximum of a smooth function by limited-memory BFGS; ``-inf`` is a value like any other.

    Stops where a Newton step is expected to gain less than ``tolerance``, or ten steps gained less than that together.
    """
    climb = _Climb(objective, start, tolerance)
    first_value = climb.value
    if np.isfinite(first_value) and not climb.settled:
        options: dict[str, Any] = {"maxiter": max_iterations, "maxfun": LINE_SEARCH * max_iterations, "maxcor": MEMORY}
        options |= {"ftol": 0.0, "gtol": 0.0, "maxls": LINE_SEARCH}
        minimize(climb.negative, start, jac=True, method="L-BFGS-B", callback=climb.step, options=options)
    # Where no ascent is to be had within rounding, the search ends early.
    stuck = climb.iterations < max_iterations and climb.gain < 1e-6 * (1 + abs(climb.value))
    converged = np.isfinite(climb.value) and (climb.settled or stuck)
    return Maximum(climb.x, climb.value, first_value, climb.gain, climb.iterations, bool(converged))


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
) -> VariationalFit:
    """Maximise the bound on samples of ``draws``, 2 ``draws``, … points until the fit settles.

    It has when means and log scales moved by less than ``tolerance``, and the last sample but one, seen from the last, was
    not too optimistic about its own fit.
    """
    history: list[tuple[int, float, int, float]] = []
    gain_tolerance = 0.05 * tolerance**2 * family.dim
    allowed = LARGEST_OPTIMISM + OPTIMISM_PER_COORDINATE * family.dim
    while True:
        objective = SampleAverage(target, family, standardised_noise(draws, family.dim, rng, qmc, family.factors))
        with threads_worth_having(draws * family.dim**2):
            found = maximise(objective, family.start(), gain_tolerance, max_iterations)
        change = moved(family, found.x)
        optimism = abs(history[-1][1] - found.first_value) if history else np.inf
        history.append((draws, found.value, found.iterations, change))
        if not np.isfinite(found.value):
            return VariationalFit(family, change, draws, False, history)
        family = family.rebased(found.x)
        if report is not None:
            report(draws, found.value, change)
        settled = found.converged and len(history) > 1 and change < tolerance and optimism < allowed
        if settled or 2 * draws > max_draws:
            return VariationalFit(family, change, draws, settled, history)
        draws *= 2


def moved(family: Family, p: Array) -> float:
    """Root mean square change from the base to ``p``, the larger of means in standard deviations and of log scales."""
    (old_mean, old_sd), (mean, sd) = family.mean_and_sd(family.start()), family.mean_and_sd(p)
    with np.errstate(all="ignore"):
        changes = np.sqrt(np.mean(((mean - old_mean) / sd) ** 2)), np.sqrt(np.mean(np.log(sd / old_sd) ** 2))
    return float(max(changes))
