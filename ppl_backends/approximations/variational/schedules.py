r"""Stochastic gradients with fresh noise at every step: constant steps on growing samples, and minibatches of the data.

Constant-step gradient ascent stops at a distance that depends on the variance of its gradients. With samples that grow
as N_t = N₀ + ⌈τᵗ⌉ the distance goes to zero geometrically, and with scrambled nets, whose variance falls faster than
1/N, at a faster rate than with random points (Buchholz, Wenzel & Mandt 2018, theorem 7). Sizes are rounded to powers
of two, where nets are balanced, and while they grow the noise is symmetric and of unit variances in every sample: what
a quadratic log density contributes to the variance is then nearly gone, and the bias, of order 1/N, goes too. Two
control variates come along: the score of q, which removes the variance that q's own shape causes (Roeder, Wu &
Duvenaud 2017), and with minibatches the gradient at an anchor, known for all data (Johnson & Zhang 2013).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ppl_backends.approximations.noise import normal_noise, standardised_noise
from ppl_backends.approximations.variational.ascents import RULES, Adagrad, Adam, Constant
from ppl_backends.approximations.variational.elbo import Search, VariationalFit
from ppl_backends.approximations.variational.families import Family
from ppl_backends.approximations.variational.sample_average import moved
from ppl_backends.errors import ModelError
from ppl_backends.targets.observations import Observations
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation, JointEvaluation
from ppl_backends.targets.wrapped import WrappedTarget

GROWTH = 1.02
FIRST_PHASE = 50
SMALLEST_STANDARDISED = 8  # points; with fewer, hardly any noise remains


def growing_sizes(smallest: int, growth: float, largest: int) -> Iterator[int]:
    """Yield N_t = ``smallest`` + ⌈``growth``ᵗ⌉, at most ``largest``."""
    power = 1.0
    while True:
        yield int(min(smallest + np.ceil(power), largest))
        power = min(power * growth, 1e12)


class SubsetTarget(WrappedTarget):
    """The posterior with its likelihood estimated from m fixed rows, each with weight n/m."""

    has_split = False
    observations = factors = likelihood_factors = None
    hessian, evaluate_prior, split_problem = BaseTarget.hessian, BaseTarget.evaluate_prior, BaseTarget.split_problem

    def __init__(self, target: BaseTarget, rows: Any) -> None:
        super().__init__(target)
        self.rows, self._rows_of = rows, check_minibatch(target, len(rows))
        self._weights = np.full(len(rows), self._rows_of.n / len(rows))

    def evaluate(self, x: Array, gradient: bool = False) -> JointEvaluation:
        """Return log prior plus the scaled log likelihood of the rows."""
        prior, prior_slope = self.target.evaluate_prior(x, gradient)
        if not gradient:
            return JointEvaluation(prior + self._rows_of.sum(x, self.rows, self._weights))
        value, slope = self._rows_of.sum(x, self.rows, self._weights, gradient=True)
        return JointEvaluation(prior + value, np.asarray(prior_slope) + slope)


def check_minibatch(target: BaseTarget, size: int) -> Observations:
    """Return the target's observations, if subsets of them of that size can be summed."""
    observations = target.observations
    if observations is None or observations.no_gradient:
        why = f" ({observations.no_gradient})" if observations is not None else ""
        raise ModelError(f"{target.label}: minibatch= needs observations that can be summed over subsets of rows{why}")
    if not target.has_split:
        raise ModelError(f"{target.label}: minibatch= needs prior and likelihood apart, and no split of them is known")
    if not 1 <= size <= observations.n:
        raise ModelError(f"minibatch={size}: expected between 1 and the number of observations, {observations.n}")
    return observations


class Minibatches:
    """Unbiased gradients of the log density from ``size`` random rows, around an anchor with an exact gradient."""

    def __init__(self, target: BaseTarget, size: int) -> None:
        observations = check_minibatch(target, size)
        self.target, self.size, self.n = target, size, observations.n
        self._sum = observations.sum

    def move_anchor(self, x: Array) -> None:
        """Evaluate the log likelihood and its gradient of all data at one point ``(dim,)``."""
        self._anchor = x[None]
        joint = self.target.evaluate(self._anchor, gradient=True)
        if not isinstance(joint, Evaluation):
            raise ModelError(f"{self.target.label}: minibatch= needs prior and likelihood apart")
        self._value, self._slope = joint.log_likelihood, np.asarray(joint.log_likelihood_gradient)

    def log_density_and_gradient(self, x: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return unbiased estimates at points ``(n, dim)``, all from the same rows."""
        rows = rng.integers(self.n, size=self.size)
        weights = np.full(self.size, self.n / self.size)
        value, slope = self._sum(np.concatenate([x, self._anchor]), rows, weights, gradient=True)
        prior, prior_slope = self.target.evaluate_prior(x, True)
        value = prior + value[:-1] - value[-1] + self._value
        return value, np.asarray(prior_slope) + slope[:-1] - slope[-1] + self._slope


def fit_stochastic(
    target: BaseTarget,
    family: Family,
    search: Search,
    rng: np.random.Generator,
    minibatch: int | None = None,
    optimizer: str = "constant",
    step: float | None = None,
) -> VariationalFit:
    """Climb by noisy gradients in phases of doubling length, until the phases' averages agree.

    Every phase starts the rule ``optimizer``, one of :data:`RULES`, again with ``step`` as its first length.
    """
    batches = None if minibatch is None else Minibatches(target, minibatch)
    sizes = growing_sizes(search.draws, GROWTH if batches is None else 1.0, search.max_draws)
    rule, length, done = RULES[optimizer], FIRST_PHASE, 0
    step = rule.default if step is None else step
    history: list[tuple[int, float, int, float]] = []
    while True:
        if batches is not None:
            batches.move_anchor(family.mean_and_sd(family.start())[0])
        average, bounds, size = _phase(target, family, batches, sizes, length, rule(step), rng, search.qmc)
        done += length
        bound = float(np.mean(bounds[len(bounds) // 2 :]))
        change = moved(family, average)
        history.append((size, bound, length, change))
        search.report(size, bound, change)
        lost = not np.isfinite(bound) or bound < bounds[0] - 0.1 * abs(bounds[0]) - family.dim
        if lost and np.isfinite(bounds[0]):
            step *= 0.25  # the ascent left a good start: the steps were too long
        else:
            family = family.rebased(average)
            length *= 2
        settled = not lost and change < search.tolerance
        if settled or done + length > search.max_iterations:
            return VariationalFit(family, change, size, settled, history)


def _phase(
    target: BaseTarget,
    family: Family,
    batches: Minibatches | None,
    sizes: Iterator[int],
    length: int,
    rule: Constant | Adam | Adagrad,
    rng: np.random.Generator,
    qmc: bool,
) -> tuple[Array, list[float], int]:
    """Make ``length`` steps; return the average of the second half, the bounds and the last sample size."""
    p, total, bounds, size = family.start(), np.zeros_like(family.start()), [], 0
    for iteration in range(length):
        size = 1 << (next(sizes).bit_length() - 1)
        if batches is None and size >= SMALLEST_STANDARDISED:
            z = standardised_noise(size, family.dim, rng, qmc, family.factors)
        else:
            z = normal_noise(size, family.factors + family.dim, rng, qmc)
        with np.errstate(all="ignore"):
            x = family.points(p, z)
            if batches is None:
                value, slopes = target.log_density_and_gradient(x)
            else:
                value, slopes = batches.log_density_and_gradient(x, rng)
            gradient = family.gradient(p, z, slopes - family.score(p, z))
            bounds.append(float(value.mean()) + family.entropy(p)[0])
        if np.isfinite(gradient).all():
            p = p + rule(gradient)
        if iteration >= length // 2:
            total += p
    return total / (length - length // 2), bounds, size
