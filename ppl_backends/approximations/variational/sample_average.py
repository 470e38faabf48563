"""The bound maximised on a fixed sample by quasi-Newton steps, on samples that grow until the answer stops changing.

With fixed noise the bound is a smooth deterministic function: there is no learning rate, and the line search never
decreases the objective. The remaining error is that of the sample. The change of means and scales between independent
samples of n and 2n points measures it directly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from ppl_backends.approximations.noise import standardised_noise
from ppl_backends.approximations.variational.elbo import SampleAverage, Search, VariationalFit
from ppl_backends.approximations.variational.families import Family
from ppl_backends.targets.blocks import threads_worth_having
from ppl_backends.targets.protocol import Array, BaseTarget

MEMORY, LINE_SEARCH = 20, 30
LARGEST_OPTIMISM, OPTIMISM_PER_COORDINATE = 0.05, 0.005  # nats

Objective = Callable[[Array], tuple[float, Array]]


class Maximum(NamedTuple):
    """Result of :func:`maximise`."""

    x: Array
    value: float
    first_value: float
    iterations: int
    converged: bool


class _Climb:
    """A maximisation in the form that ``scipy.optimize.minimize`` expects: a finite function, and a callback that stops it.

    If the objective is ``-inf``, it is replaced by a parabola whose minimum is at a quarter of the step. A Newton step
    would gain ½ gᵀHg, where H is the larger of the identity and the curvature of the last step.
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
        """Return whether the remaining gain is below the tolerance, or the last ten steps together gained less."""
        if self.gain < self.tolerance and (not self.gains or self.gains[-1] < 10 * self.tolerance):
            return True
        return len(self.gains) == 10 and sum(self.gains) < self.tolerance

    def negative(self, x: Array) -> tuple[float, Array]:
        """Return minus the objective and its gradient."""
        if not np.array_equal(x, self.last[0]):
            self.last = (x.copy(), *self.objective(x))
        _, value, gradient = self.last
        if np.isfinite(value):
            return -value, -gradient
        promised = abs(float(self.gradient @ (x - self.x)))
        return promised - self.value, 3 * self.gradient

    def step(self, x: Array) -> None:
        """Record a step; stop the search if it has settled."""
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
    """Return the maximum of a smooth function by limited-memory BFGS; ``-inf`` is a valid value.

    It stops if the expected gain of a Newton step is below ``tolerance``, or the last ten steps together gained less.
    """
    climb = _Climb(objective, start, tolerance)
    first_value = climb.value
    if np.isfinite(first_value) and not climb.settled:
        options: dict[str, Any] = {"maxiter": max_iterations, "maxfun": LINE_SEARCH * max_iterations, "maxcor": MEMORY}
        options |= {"ftol": 0.0, "gtol": 0.0, "maxls": LINE_SEARCH}
        minimize(climb.negative, start, jac=True, method="L-BFGS-B", callback=climb.step, options=options)
    # If rounding prevents any ascent, the search ends early.
    stuck = climb.iterations < max_iterations and climb.gain < 1e-6 * (1 + abs(climb.value))
    converged = np.isfinite(climb.value) and (climb.settled or stuck)
    return Maximum(climb.x, climb.value, first_value, climb.iterations, bool(converged))


def fit_fixed_samples(
    target: BaseTarget,
    family: Family,
    search: Search,
    rng: np.random.Generator,
) -> VariationalFit:
    """Maximise the bound on samples of ``draws``, 2 ``draws``, … points, an even number, until the fit settles.

    The fit has settled if means and log scales moved by less than ``tolerance``, and the optimism of the last sample
    but one about its own fit, measured on the last sample, is small.
    """
    history: list[tuple[int, float, int, float]] = []
    gain_tolerance = 0.05 * search.tolerance**2 * family.dim
    draws = search.draws + search.draws % 2
    allowed = LARGEST_OPTIMISM + OPTIMISM_PER_COORDINATE * family.dim
    while True:
        objective = SampleAverage(
            target, family, standardised_noise(draws, family.dim, rng, search.qmc, family.factors)
        )
        with threads_worth_having(draws * family.dim**2):
            found = maximise(objective, family.start(), gain_tolerance, search.max_iterations)
        change = moved(family, found.x)
        optimism = abs(history[-1][1] - found.first_value) if history else np.inf
        history.append((draws, found.value, found.iterations, change))
        if not np.isfinite(found.value):
            return VariationalFit(family, change, draws, False, history)
        family = family.rebased(found.x)
        search.report(draws, found.value, change)
        settled = found.converged and len(history) > 1 and change < search.tolerance and optimism < allowed
        if settled or 2 * draws > search.max_draws:
            return VariationalFit(family, change, draws, settled, history)
        draws *= 2


def moved(family: Family, p: Array) -> float:
    """Return the larger root mean square change from the base to ``p``, of means (in standard deviations) or log scales."""
    (old_mean, old_sd), (mean, sd) = family.mean_and_sd(family.start()), family.mean_and_sd(p)
    with np.errstate(all="ignore"):
        changes = np.sqrt(np.mean(((mean - old_mean) / sd) ** 2)), np.sqrt(np.mean(np.log(sd / old_sd) ** 2))
    return float(max(changes))
