"""``fit_gibbs_vi``: the Gaussian nearest to a Gibbs posterior, by deterministic annealing if the loss is not convex.

Annealing (Ridgway 2015, Algorithm 21) starts at the prior, the solution for λ = 0, and follows the solution along a
ladder of λ, with each fit as the start of the next. Usually it ends in local minima that are at least as good as those
of random starts, and it also gives the solutions for all smaller λ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ppl_backends.approximations.given import as_approximation
from ppl_backends.errors import ModelError
from ppl_backends.gibbs.gaussian_vi import (
    ALIASES,
    FAMILIES,
    MAX_PAIRS,
    GibbsVI,
    ScoreProblem,
    Solution,
    _pair_values,
    as_result,
    solve,
)
from ppl_backends.gibbs.losses import PairLoss
from ppl_backends.gibbs.posterior import POSTERIOR, GibbsPosterior
from ppl_backends.gibbs.risks import LinearRisk
from ppl_backends.gibbs.vi_check import checked_fit
from ppl_backends.numerics.arrays import as_floats
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.options import approximation, checked, choice, flag, increasing, integer, none, number
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.targets.factors.sites import Array

N_TEMPERATURES = 12
FAMILY = choice(*FAMILIES, *ALIASES)
_PAIRS, _STEPS = 50, 4000  # pairs of a step of stochastic ascent, and steps


@checked(
    posterior=POSTERIOR,
    family=FAMILY,
    ladder=none | increasing(above=0),
    sample_pairs=none | flag,
    batch_size=integer(1),
    n_iterations=integer(1),
    initial=none | approximation(),
    tolerance=number(above=0),
    max_iterations=integer(1),
)
def fit_gibbs_vi(
    posterior: GibbsPosterior,
    *,
    family: str = "dense",
    ladder: Sequence[float] | None = None,
    sample_pairs: bool | None = None,
    batch_size: int = _PAIRS,
    n_iterations: int = _STEPS,
    initial: Any = None,
    tolerance: float = 1e-4,
    max_iterations: int = 500,
    random_seed: SeedLike = None,
) -> GibbsVI:
    """Fit a Gaussian variational approximation of a Gibbs posterior of linear scores, with exact expectations.

    Parameters
    ----------
    posterior : GibbsPosterior
        A posterior with a Gaussian prior and a loss of scores Xθ.
    family : {"dense", "diagonal", "isotropic"}, or "F3", "F2", "F1"
        Family of covariances.
    ladder : sequence of float, optional
        Learning rates of preceding fits, before that of the posterior. By default 12 in geometric steps for losses
        that are not convex, and none for convex ones, whose minimum is unique.
    sample_pairs : bool, optional
        Whether to fit a pair loss by stochastic gradients from ``batch_size`` pairs per step; by default above 200,000 pairs.
    batch_size, n_iterations : int
        For sampled pairs.
    initial : approximation, optional
        Start instead of the prior; there is then no ladder unless one is given.
    tolerance : float
        In nats; see ``optimality_gap``.
    max_iterations : int
        Largest number of iterations at every λ.
    random_seed : int or numpy.random.Generator, optional
        Seed for sampled pairs.

    Returns
    -------
    GibbsVI
        A Gaussian with ``elbo``, ``expected_risk``, ``kl``, ``optimality_gap`` and ``trace``;
        :func:`~ppl_backends.gibbs.certify` accepts it.

    Warns
    -----
    ApproximationWarning
        If the solver stopped before its tolerance, or by weighted points a standard deviation of a dense Gaussian is off
        by a fifth or a mean by 0.2 standard deviations, or if these points cannot check it and the loss is not convex.
        ``converged`` is then False and ``trouble`` says why. Bounds by :func:`~ppl_backends.gibbs.certify` hold for any
        Gaussian. Posteriors of more than 65,536 rows are not checked.

    References
    ----------
    Alquier, Ridgway & Chopin (2016), sections 5 to 7.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = np.sign(X @ [1.0, -1.0] + 0.3 * rng.normal(size=60))
    >>> q = fit_gibbs_vi(GibbsPosterior((0.0, 1.0), "hinge", X, y, learning_rate=60.0))
    >>> q.converged, bool(q.optimality_gap < 1e-3), round(q.expected_risk, 2)
    (True, True, 0.14)
    """
    options = (family, ladder, sample_pairs, batch_size, n_iterations, initial, tolerance, max_iterations, random_seed)
    return checked_fit(nearest_gaussian(posterior, *options))


def nearest_gaussian(
    posterior: GibbsPosterior,
    family: str,
    ladder: Sequence[float] | None = None,
    sample_pairs: bool | None = None,
    batch_size: int = _PAIRS,
    n_iterations: int = _STEPS,
    initial: Any = None,
    tolerance: float = 1e-4,
    max_iterations: int = 500,
    random_seed: SeedLike = None,
) -> GibbsVI:
    """Return the fit of :func:`fit_gibbs_vi` without its check, for loops over learning rates and folds."""
    family = ALIASES.get(family, family)
    if posterior.paired and _samples_pairs(posterior, sample_pairs):
        return fit_by_pairs(posterior, family, batch_size, n_iterations, random_seed)
    return fits_along(posterior, family, ladder, initial, tolerance, max_iterations)[-1]


@checked(
    posterior=POSTERIOR,
    learning_rates=increasing(above=0),
    family=FAMILY,
    tolerance=number(above=0),
    max_iterations=integer(1),
)
def fit_gibbs_vi_path(
    posterior: GibbsPosterior,
    learning_rates: Sequence[float],
    *,
    family: str = "dense",
    tolerance: float = 1e-4,
    max_iterations: int = 500,
) -> list[GibbsVI]:
    """Fit once for each of several increasing learning rates, each starting at the previous fit.

    Parameters
    ----------
    posterior : GibbsPosterior
    learning_rates : sequence of float
        Increasing.
    family : {"dense", "diagonal", "isotropic"}
        As for :func:`fit_gibbs_vi`.
    tolerance : float
        In nats, as for :func:`fit_gibbs_vi`.
    max_iterations : int
        Per learning rate.

    Returns
    -------
    list of GibbsVI
        Their ``posterior`` has the learning rate.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import GibbsPosterior, fit_gibbs_vi_path
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = np.sign(X @ [1.0, -1.0] + 0.3 * rng.normal(size=60))
    >>> posterior = GibbsPosterior((0.0, 1.0), "hinge", X, y, learning_rate=60.0)
    >>> [round(q.posterior.learning_rate) for q in fit_gibbs_vi_path(posterior, [6.0, 60.0])]
    [6, 60]
    """
    rates = as_floats("learning_rates", learning_rates)
    if rates.ndim != 1 or not len(rates) or np.any(np.diff(rates) <= 0):
        raise ModelError(f"learning_rates={learning_rates!r}: expected increasing numbers")
    last = posterior.with_learning_rate(rates[-1])
    fits = fits_along(last, ALIASES.get(family, family), rates[:-1], None, tolerance, max_iterations)
    return [checked_fit(fit) for fit in fits]


def fits_along(
    posterior: GibbsPosterior, family: str, ladder: Any, start: Any, tolerance: float, max_iterations: int = 500
) -> list[GibbsVI]:
    """Return fits without their check at every λ of a ladder that was given and at that of the posterior."""
    problem = ScoreProblem(posterior)
    every = ladder is not None
    if ladder is None:
        needed = not problem.loss.convex and start is None
        # geometric steps from a hundredth of λ up to it, without λ itself
        ladder = posterior.learning_rate * np.geomspace(0.01, 1.0, N_TEMPERATURES)[:-1] if needed else []
    rates = [*as_floats("ladder", ladder), posterior.learning_rate]
    q = None if start is None else _start(family, start)
    trace, results = [], []
    for rate in rates:
        last = rate == rates[-1]
        at = problem.with_weight(problem.weight * rate / posterior.learning_rate)
        solution = solve(at, family, q, tolerance if last or every else 1e-2, max_iterations)
        q = solution.q
        kl = q.kl_to(problem.prior)
        trace.append((rate, (solution.value - kl) / rate, kl))
        if last or every:
            results.append(as_result(posterior.with_learning_rate(rate), solution, family, trace))
    return results


def _start(family: str, start: Any) -> Gaussian:
    """Return a Gaussian, converted to the family."""
    q = as_approximation(start).gaussian
    if family == "dense":
        return Gaussian.from_covariance(q.mean, q.cov)
    variance = q.sd**2
    return Gaussian(q.mean, np.sqrt(variance if family == "diagonal" else np.full(q.dim, variance.mean())))


def _samples_pairs(posterior: GibbsPosterior, asked: bool | None) -> bool:
    risk = posterior._linear("fit_gibbs_vi")
    return asked if asked is not None else len(risk.above) * len(risk.below) > MAX_PAIRS


STEP, HALF_LIFE, DECAY = 0.05, 200.0, 0.9
N_CHECKPOINTS = 40
N_CHECK_PAIRS = 100_000


class _Coordinates:
    """Unconstrained coordinates of a family: m, and log σ, log s, or a triangular factor with logs on its diagonal."""

    def __init__(self, family: str, mean: Array, root: Array) -> None:
        self.family, self.d = family, len(mean)
        self.lower = np.tril_indices(self.d)
        self.on_diagonal = self.lower[0] == self.lower[1]
        self.origin, self.root = mean, root

    def start(self) -> Array:
        """Return the coordinates of the prior, or of the nearest member."""
        scale = np.sqrt((self.root**2).sum(axis=1))
        if self.family == "dense":
            entries = self.root[self.lower]
            return np.concatenate([self.origin, np.where(self.on_diagonal, np.log(np.abs(entries) + 1e-300), entries)])
        return np.concatenate([self.origin, np.log(scale) if self.family == "diagonal" else [np.log(scale).mean()]])

    def gaussian(self, z: Array) -> Gaussian:
        """Return the Gaussian at coordinates ``z``."""
        rest = z[self.d :]
        if self.family == "dense":
            factor = np.zeros((self.d, self.d))
            factor[self.lower] = np.where(self.on_diagonal, np.exp(np.where(self.on_diagonal, rest, 0.0)), rest)
            return Gaussian(z[: self.d], factor)
        return Gaussian(z[: self.d], np.broadcast_to(np.exp(rest), (self.d,)))

    def chain(self, q: Gaussian, in_mean: Array, in_factor: Array) -> Array:
        """Return the gradient in ``z`` from the gradients in m and in C (or s ``(d,)``)."""
        if self.family == "dense":
            entries = in_factor[self.lower]
            rest = np.where(self.on_diagonal, entries * q.factor[self.lower], entries)
        else:
            rest = in_factor * q.factor
            rest = rest if self.family == "diagonal" else np.atleast_1d(rest.sum())
        return np.concatenate([in_mean, rest])


def fit_by_pairs(
    posterior: GibbsPosterior, family: str, batch_size: int, n_iterations: int, random_seed: SeedLike
) -> GibbsVI:
    """Fit by stochastic gradients from ``batch_size`` pairs per step (Alquier et al. 2016, section 7.3).

    The gradient of E_q[r_n] + KL(q, π)/λ from pairs drawn with replacement is unbiased, and its expectation over θ is exact.
    Steps are scaled coordinate by coordinate (Adam), decay as (1 + t/τ)^−0.9, and the iterates of the last half are
    averaged. The expected risk of the result is exact.
    """
    prior, risk = posterior.gaussian_prior, posterior._linear("fit_gibbs_vi")
    if prior is None or not isinstance(risk.loss, PairLoss):
        raise ModelError("sampled pairs need a Gaussian prior and a pair loss")
    if batch_size < 1 or n_iterations < 10:
        raise ModelError(f"batch_size={batch_size}, n_iterations={n_iterations}: expected at least 1 and 10")
    rng, check_rng = spawn_generators(random_seed, 2)
    precision, root = prior.normal.precision, prior.normal.factor
    share = 2 * len(risk.above) * len(risk.below) / (risk.n * (risk.n - 1))
    coordinates = _Coordinates(family, prior.gaussian.mean, root)
    z = coordinates.start()
    first, second, average = np.zeros_like(z), np.zeros_like(z), np.zeros_like(z)
    inner, rate = risk.loss.inner, posterior.learning_rate
    check = _pairs(risk, N_CHECK_PAIRS, check_rng)
    checkpoints = set(np.unique(np.geomspace(1, n_iterations, N_CHECKPOINTS).astype(int)).tolist())
    trace, tail = [], n_iterations // 2
    for t in range(1, n_iterations + 1):
        q = coordinates.gaussian(z)
        design, offset, labels = _pairs(risk, batch_size, rng)
        spread = q.whiten_gradient(design)
        found = inner.expectation(design @ q.mean + offset, np.einsum("nd,nd->n", spread, spread), labels)
        in_mean = share * (found.slope @ design) / batch_size + precision @ (q.mean - prior.gaussian.mean) / rate
        pull = share * found.curvature / batch_size
        if family == "dense":
            in_factor = design.T @ (pull[:, None] * spread)
            in_factor += (precision @ q.factor - np.diag(1 / np.diagonal(q.factor))) / rate
        else:
            s = q.factor
            in_factor = (pull @ design**2) * s + (np.diagonal(precision) * s - 1 / s) / rate
        gradient = coordinates.chain(q, in_mean, in_factor)
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        direction = first / (1 - 0.9**t) / (np.sqrt(second / (1 - 0.99**t)) + 1e-12)
        z = z - STEP * (1 + t / HALF_LIFE) ** -DECAY * direction
        if t > tail:
            average += (z - average) / (t - tail)
        if t in checkpoints:
            at = coordinates.gaussian(average if t > tail else z)
            trace.append((float(t), share * _mean_loss(inner, at, check), at.kl_to(prior.normal)))
    q = coordinates.gaussian(average)
    settled = _settled(np.array(trace), rate)
    solution = Solution(q, np.nan, np.nan, settled, n_iterations)
    return as_result(posterior, solution, family, trace, batch_size=float(batch_size))


def _pairs(risk: LinearRisk, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return differences of ``size`` pairs drawn with replacement, differences of their offsets, and their labels."""
    i, j = (rows[rng.integers(len(rows), size=size)] for rows in (risk.above, risk.below))
    return *risk.differences(i, j), risk.pair_labels(i, j)


def _mean_loss(inner, q: Gaussian, pairs: tuple) -> float:
    design, offset, labels = pairs
    spread = q.whiten_gradient(design)
    variance = np.einsum("nd,nd->n", spread, spread)
    return float(_pair_values(inner, design @ q.mean + offset, variance, labels).mean())


def _settled(trace: Array, rate: float) -> bool:
    """Return whether the objective per λ changed by less than 0.002 over the last half of the iterations."""
    objective = trace[:, 1] + trace[:, 2] / rate
    late = objective[trace[:, 0] > 0.5 * trace[-1, 0]]
    return bool(np.ptp(late) < 2e-3)
