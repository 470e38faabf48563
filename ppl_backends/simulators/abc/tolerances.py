r"""A path of tolerances: p(θ) L(θ) ∏ₘ f(yₘ | θ) · (1/M) Σₘ K_ε(dₘ) for falling ε (Del Moral, Doucet & Jasra 2012).

A particle is a point with M simulated data sets, whose distances stay with it. Its weight at a smaller tolerance needs
no simulation, and kernels move the pair by pseudo-marginal Metropolis–Hastings, which has the marginal p(θ) L(θ) E[K_ε
| θ] for any M. Ordinary likelihoods L are included first, by powers from 0 to 1, as in tempering.

Each tolerance is chosen so that the effective size of a step's weights is a given share of the particles. It depends
on the particles that are weighted, so the evidence is consistent but not unbiased.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from ppl_backends.importance.outside import OutsidePoints
from ppl_backends.kernels.protocol import Density
from ppl_backends.numerics.population import Population
from ppl_backends.numerics.weights import effective_sample_size
from ppl_backends.simulators.abc.data_sets import DataSets, Source
from ppl_backends.simulators.abc.kernels import log_kernel
from ppl_backends.simulators.abc.problem import AbcProblem
from ppl_backends.simulators.abc.proposals import prior_start
from ppl_backends.smc.core import SMCState, Start
from ppl_backends.smc.schedule import next_beta
from ppl_backends.targets.protocol import Array, Index

__all__ = ["AbcPoints", "Tolerance", "TolerancePath", "Tolerances"]

SHARE = 0.5  # relative effective size that a step keeps
LEAST_SHARE = 0.05  # the same if distances are discrete
BISECTIONS = 50


class Tolerance(NamedTuple):
    """A stage: the power of ordinary likelihoods, and ε."""

    beta: float
    epsilon: float

    @property
    def position(self) -> float:
        """Return the tolerance, by which figures of stages are ordered."""
        return self.epsilon


BEFORE = Tolerance(0.0, np.inf)


@dataclass(frozen=True)
class AbcPoints(Population):
    """Points with their data sets, at a stage.

    Attributes
    ----------
    x : ndarray (n, dim)
    log_prior, log_likelihood : ndarray (n,)
        Log likelihood of ordinary observed variables.
    distances : ndarray (n, M)
    summaries : ndarray (n, M, k) or None
    data : ndarray (n, 2, size) or None
    kernel : str
    stage : Tolerance
    """

    log_prior: Array
    log_likelihood: Array
    distances: Array
    summaries: Array | None
    data: Array | None
    kernel: str
    stage: Tolerance

    gradient = None

    def log_kernels(self, epsilon: float) -> Array:
        """Return the log of K_ε of every data set ``(n, M)``."""
        return log_kernel(self.kernel, self.distances, epsilon)

    def log_hit(self, epsilon: float) -> Array:
        """Return the log of the mean of K_ε over data sets ``(n,)``."""
        if epsilon == np.inf:
            return np.zeros(len(self.x))
        logs = self.log_kernels(epsilon)
        with np.errstate(divide="ignore"):
            mean: Array = logsumexp(logs, axis=1) - np.log(logs.shape[1])
        return mean

    @property
    def log_base(self) -> Array:
        """Return log p(θ) L(θ)^β ``(n,)``."""
        beta = self.stage.beta
        return self.log_prior + beta * self.log_likelihood if beta else self.log_prior

    @property
    def log_density(self) -> Array:
        """Return log p(θ) L(θ)^β times the mean of K_ε ``(n,)``."""
        return self.log_base + self.log_hit(self.stage.epsilon)

    def with_data(self, drawn: DataSets) -> AbcPoints:
        """Return the points with other data sets."""
        return replace(self, distances=drawn.distances, summaries=drawn.summaries, data=drawn.data)


@dataclass(frozen=True)
class Tolerances:
    """Choice of the next tolerance.

    Attributes
    ----------
    target : float
        The last tolerance; 0 if the run is ended otherwise.
    """

    target: float

    def after(self, run: SMCState) -> Tolerances:
        """Return the schedule of the next step."""
        return self

    def shorter(self, done: SMCState, path: Any) -> None:
        """Return None: every step is kept."""
        return

    def next(self, points: AbcPoints) -> float:
        """Return the tolerance after that of the points.

        It is the smallest tolerance in [0, ε] at which the effective size is half of what the largest possible step
        keeps; the size need not be monotone. If distances are discrete, such a tolerance may not exist; then it is the
        next smaller distance.
        """
        before = points.log_hit(points.stage.epsilon)
        finite = np.sort(points.distances[np.isfinite(points.distances)])
        if not len(finite):
            return points.stage.epsilon
        reach = 1.0 if points.kernel == "uniform" else 10.0
        high = min(points.stage.epsilon, max(reach * float(finite[-1]), self.target))

        def share(epsilon: float) -> float:
            with np.errstate(invalid="ignore"):
                log_weights = np.where(before > -np.inf, points.log_hit(epsilon) - before, -np.inf)
            return effective_sample_size(log_weights) / len(points.x)

        asked = SHARE * min(1.0, share(high))
        if self.target >= high or share(self.target) >= asked:
            return self.target
        low, top = self.target, high
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if share(middle) >= asked else (middle, high)
            if high - low < 1e-6 * high:
                break
        if points.kernel == "uniform":  # only the largest distance within it matters
            high = max(float(finite[np.searchsorted(finite, high, side="right") - 1]), self.target)
        if high < (1 - 1e-6) * top or points.stage.epsilon == np.inf:
            return high
        below = finite[finite < top]
        following = float(below[-1]) if len(below) else top
        return max(following, self.target) if share(following) >= LEAST_SHARE else top


class TolerancePath:
    """Tolerances from infinity down; particles start at the prior.

    Parameters
    ----------
    problem : AbcProblem
    source : Source
    m : int
        Number of data sets of a particle.
    target : float
        The last tolerance; 0 for none.
    qmc : bool
        Whether particles start as points of a scrambled net.
    """

    reference = None
    uses_gradient = False
    metric = "dense"
    description = "prior"

    def __init__(self, problem: AbcProblem, source: Source, m: int, target: float, qmc: bool) -> None:
        self.problem, self.source, self.m, self.last, self.qmc = problem, source, m, target, qmc
        self.target = problem.target
        self._outside: OutsidePoints | None = None
        self._evaluated = 0

    @property
    def undefined(self) -> float:
        """Return the share of the stage's evaluations that met a log density of NaN or +inf among the particles."""
        if self._outside is None:
            return 0.0
        return min(1.0, self._outside.n_undefined(self.target) / max(1, self._evaluated))

    def start(self, n: int, rng: np.random.Generator) -> Start:
        """Draw particles of the prior, with their data sets."""
        return Start(self._evaluate(prior_start(self.problem, n, self.qmc, rng), BEFORE, rng))

    def next(self, population: AbcPoints, weights: Array | None, schedule: Tolerances) -> tuple[Tolerance, Array]:
        """Return the next power of likelihoods or the next tolerance, and its log weights."""
        beta, epsilon = population.stage
        if beta < 1.0 and self.problem.has_likelihood:
            further = next_beta(population.log_likelihood, beta, SHARE)
            return Tolerance(further, epsilon), (further - beta) * population.log_likelihood
        after = schedule.next(population)
        with np.errstate(invalid="ignore"):
            change = population.log_hit(after) - population.log_hit(epsilon)
        return Tolerance(1.0, after), np.where(np.isnan(change), -np.inf, change)

    def is_last(self, stage: Tolerance | None) -> bool:
        """Return whether this is the last tolerance."""
        return stage is not None and stage.beta == 1.0 and stage.epsilon <= self.last

    def extend(self, population: AbcPoints, stage: Tolerance, rng: np.random.Generator) -> AbcPoints:
        """Return the particles at a stage."""
        self._outside, self._evaluated = OutsidePoints(population.x), 0
        return replace(population, stage=stage)

    def density(self, stage: Tolerance) -> Density[AbcPoints]:
        """Return the map from points to particles with fresh data sets."""
        return lambda x, rng: self._evaluate(x, stage, rng)

    def with_gradients(self, population: AbcPoints, stage: Tolerance, rng: np.random.Generator) -> AbcPoints:
        """Return the particles unchanged: there are no gradients."""
        return population

    def renew(self, population: AbcPoints, density: Density[AbcPoints], rng: np.random.Generator) -> AbcPoints:
        """Return the particles unchanged: only kernels move them."""
        return population

    def end_log_density(self, population: AbcPoints) -> None:
        """Return None: there is no search for lost modes."""

    def ahead(self, population: AbcPoints) -> tuple[Array, float]:
        """Return closeness of data sets, from 0 to 1, which determines later weights."""
        epsilon = population.stage.epsilon
        if epsilon == np.inf:
            return population.log_likelihood, 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            near = np.exp(-population.distances / max(epsilon, 1e-300))
        return np.nan_to_num(near).mean(axis=1), 1.0

    def without_data(self, x: Array, like: AbcPoints) -> AbcPoints:
        """Return points at the stage of others, with infinitely distant data sets."""
        log_prior, log_likelihood = self._base(x, like.stage)
        nothing = like.with_data(DataSets(np.full_like(like.distances, np.inf), like.summaries, like.data))
        return replace(nothing, x=x, log_prior=log_prior, log_likelihood=log_likelihood)

    def _base(self, x: Array, stage: Tolerance) -> tuple[Array, Array]:
        """Return log prior and log likelihood of points ``(n,)``; the prior is zero if the likelihood is."""
        log_prior, log_likelihood = self.problem.log_prior(x), np.zeros(len(x))
        alive = log_prior > -np.inf
        if alive.any():
            log_likelihood[alive] = self.problem.log_likelihood(x[alive])
        self._evaluated += len(x)
        if self._outside is not None:
            self._outside.see(x, log_prior + log_likelihood)
        if stage.beta > 0:
            log_prior = np.where(log_likelihood > -np.inf, log_prior, -np.inf)
        return log_prior, log_likelihood

    def _evaluate(self, x: Array, stage: Tolerance, rng: np.random.Generator) -> AbcPoints:
        """Return points with fresh data sets; nothing is simulated outside the support."""
        log_prior, log_likelihood = self._base(x, stage)
        alive = np.flatnonzero(log_prior > -np.inf)
        drawn = self.source(x[alive], self.m, rng)
        distances = np.full((len(x), self.m), np.inf)
        distances[alive] = drawn.distances
        summaries = None if drawn.summaries is None else _spread(drawn.summaries, alive, len(x))
        data = None if drawn.data is None else _spread(drawn.data, alive, len(x))
        return AbcPoints(x, log_prior, log_likelihood, distances, summaries, data, self.problem.kernel, stage)


def _spread(part: Array, rows: Index, n: int) -> Array:
    """Return the rows ``(len(rows), ...)`` at their positions among ``n``."""
    if len(rows) == n:
        return part
    whole = np.zeros((n, *part.shape[1:]))
    whole[rows] = part
    return whole
