"""``fit_gibbs_vi``: the Gaussian nearest to a Gibbs posterior, by deterministic annealing where the loss is not convex.

Annealing (Ridgway 2015, Algorithm 21) starts at the prior, the solution for λ = 0, and follows the solution along a ladder of
λ, each the start of the next. It ends in local minima that are at least as good as those of random starts, most of the
time, and passes through the solutions for all smaller λ on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ppl_backends.approximations.given import as_approximation
from ppl_backends.errors import ModelError
from ppl_backends.gibbs.gaussian_vi import ALIASES, FAMILIES, MAX_PAIRS, GibbsVI, ScoreProblem, as_result, solve
from ppl_backends.gibbs.posterior import POSTERIOR, GibbsPosterior
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.options import approximation, checked, choice, flag, increasing, integer, none, number
from ppl_backends.random import SeedLike

__all__ = ["FAMILY", "fit_gibbs_vi", "fit_gibbs_vi_path"]

N_TEMPERATURES = 12
FAMILY = choice(*FAMILIES, *ALIASES)


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
    batch_size: int = 50,
    n_iterations: int = 4000,
    initial: Any = None,
    tolerance: float = 1e-4,
    max_iterations: int = 500,
    random_seed: SeedLike = None,
) -> GibbsVI:
    """Gaussian variational approximation of a Gibbs posterior of linear scores, with exact expectations.

    Parameters
    ----------
    posterior : GibbsPosterior
        With a Gaussian prior and a loss of scores Xθ.
    family : {"dense", "diagonal", "isotropic"}, or "F3", "F2", "F1"
        Of covariances.
    ladder : sequence of float, optional
        Learning rates to pass through before that of the posterior. By default 12 in geometric steps for losses that are not
        convex, and none for convex ones, whose minimum is unique.
    sample_pairs : bool, optional
        Whether a pair loss is fitted by stochastic gradients from ``batch_size`` pairs a step; by default above 200,000
        pairs.
    batch_size, n_iterations : int
        For sampled pairs.
    initial : approximation, optional
        Instead of the prior; then without a ladder, unless one is given.
    tolerance : float
        In nats; see ``optimality_gap``.
    max_iterations : int
        At every λ.
    random_seed : int or numpy.random.Generator, optional
        For sampled pairs.

    Returns
    -------
    GibbsVI
        A Gaussian with ``elbo``, ``expected_risk``, ``kl``, ``optimality_gap`` and ``trace``; hand it to
        :func:`~ppl_backends.gibbs.certify`.

    Warns
    -----
    ApproximationWarning
        If the solver stopped short.

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
    family = ALIASES.get(family, family)
    if posterior.paired and _samples_pairs(posterior, sample_pairs):
        from ppl_backends.gibbs.pair_sampling import fit_by_pairs

        return fit_by_pairs(posterior, family, batch_size, n_iterations, random_seed)
    return _fit_along(posterior, family, ladder, initial, tolerance, max_iterations)[-1]


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
    """One fit for each of several increasing learning rates, each started at the one before.

    Returns
    -------
    list of GibbsVI
        Their ``posterior`` has the learning rate.
    """
    rates = np.asarray(learning_rates, dtype=np.float64)
    if rates.ndim != 1 or not len(rates) or np.any(np.diff(rates) <= 0):
        raise ModelError(f"learning_rates={learning_rates!r}: expected increasing numbers")
    last = posterior.with_learning_rate(rates[-1])
    return _fit_along(last, ALIASES.get(family, family), rates[:-1], None, tolerance, max_iterations)


def default_ladder(learning_rate: float) -> np.ndarray:
    """Geometric steps from a hundredth of λ up to it, itself left out."""
    return learning_rate * np.geomspace(0.01, 1.0, N_TEMPERATURES)[:-1]


def _fit_along(
    posterior: GibbsPosterior, family: str, ladder: Any, start: Any, tolerance: float, max_iterations: int
) -> list[GibbsVI]:
    problem = ScoreProblem(posterior)
    every = ladder is not None
    if ladder is None:
        ladder = [] if problem.loss.convex or start is not None else default_ladder(posterior.learning_rate)
    rates = [*np.asarray(ladder, dtype=np.float64), posterior.learning_rate]
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
    """A Gaussian, brought to the family."""
    q = as_approximation(start).gaussian
    if family == "dense":
        return Gaussian.from_covariance(q.mean, q.cov)
    variance = q.sd**2
    return Gaussian(q.mean, np.sqrt(variance if family == "diagonal" else np.full(q.dim, variance.mean())))


def _samples_pairs(posterior: GibbsPosterior, asked: bool | None) -> bool:
    assert posterior.y is not None
    positive = int((posterior.y > 0).sum())
    return asked if asked is not None else positive * (posterior.n - positive) > MAX_PAIRS
