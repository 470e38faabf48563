"""The probability of a rectangle of a Gaussian or Student vector, with an error bar."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from ppl_backends.errors import ModelError
from ppl_backends.numerics.weights import log_mean_exp
from ppl_backends.options import checked, choice, integer, none
from ppl_backends.orthants.chain import find_chain
from ppl_backends.orthants.low_rank import Integrand, find_factors
from ppl_backends.orthants.moves import MOVES
from ppl_backends.orthants.ordering import order_rectangle
from ppl_backends.orthants.problem import GAUSSIAN, STRUCTURE, Problem, read_problems
from ppl_backends.orthants.solvers import (
    LEAST_EFFICIENCY,
    Closed,
    Ep,
    LowRank,
    Net,
    Runs,
    Sequential,
    Solver,
)
from ppl_backends.orthants.student import radius_nodes
from ppl_backends.random import SeedLike, spawn_seeds

METHODS = ("auto", "closed_form", "low_rank", "tilting", "tilted_smc", "particle_filter", "ghk", "ridgway", "ep")
POINTS = {"low_rank": 2048, "tilting": 4096, "ghk": 4096, "tilted_smc": 1024, "ridgway": 1024, "particle_filter": 2048}
REPLICATES = {"low_rank": 8, "tilting": 8, "ghk": 8}  # 16 for the other methods
PILOT = 512  # points that decide whether a tilt is sufficient
LARGE = 400  # dimension above which nets have half the points


@dataclass(frozen=True)
class RectangleProbability:
    """Log probability of a rectangle with its error; arrays for a batch.

    Attributes
    ----------
    log_p : float
    log_p_se : float
        Standard error of ``log_p``, from independent replicates; 0 if it is exact, NaN if it is unknown.
    log_p_df : float
        Degrees of freedom of the standard error: intervals use Student's t.
    efficiency : float
        Effective sample size over the number of points, of the whole run. NaN if no points are used.
    method : str
        The method that was used.
    trusted : bool
        Whether ``log_p_se`` can be trusted.
    reasons : tuple of str
        Reasons for distrust.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> p = pb.rectangle_probability(np.eye(2), lower=0.0, random_seed=1)
    >>> round(float(np.exp(p.log_p)), 3), p.trusted
    (0.25, True)
    """

    log_p: Any
    log_p_se: Any
    log_p_df: Any
    efficiency: Any
    method: Any
    trusted: Any
    reasons: Any


@checked(
    **GAUSSIAN,
    **STRUCTURE,
    method=choice(*METHODS),
    n_points=none | integer(16),
    replicates=none | integer(2),
    moves=choice(*MOVES),
)
def rectangle_probability(
    cov: Any = None,
    lower: Any = None,
    upper: Any = None,
    *,
    cholesky: Any = None,
    loadings: Any = None,
    diagonal: Any = None,
    mean: Any = None,
    df: float | None = None,
    method: str = "auto",
    n_points: int | None = None,
    replicates: int | None = None,
    moves: str = "gibbs",
    random_seed: SeedLike = None,
) -> RectangleProbability:
    """Return log P(lower ≤ X ≤ upper) of a Gaussian or Student vector X, with a standard error.

    Parameters
    ----------
    cov : array (..., dim, dim), optional
        Covariance; the scale matrix of a Student vector. It may be singular.
    lower, upper : array (..., dim) or float, optional
        Bounds, infinite by default.
    cholesky : array (..., dim, dim), optional
        Replaces ``cov``: a matrix C with covariance C C'.
    loadings, diagonal : array (..., dim, k), array (..., dim), optional
        Replace ``cov``: the covariance ``loadings @ loadings.T + diag(diagonal)``. With few columns the integral has k
        dimensions instead of ``dim``.
    mean : array (..., dim), optional
    df : float, optional
        Degrees of freedom of a Student vector; Gaussian by default.
    method : str
        ``"auto"`` uses the first that applies: a closed form (independent variables, or two), ``"low_rank"`` (few
        factors, integrated by quasi-Monte Carlo points at EP's Gaussian), ``"tilting"`` (minimax tilting, Botev 2017,
        on scrambled Sobol points), and if that has an efficiency below 0.1 ``"particle_filter"`` (covariances of
        chains) or ``"tilted_smc"`` (particles under the same tilt, resampled and moved). For comparison: ``"ghk"``,
        ``"ridgway"`` (SMC without a tilt, Ridgway 2015) and ``"ep"`` (an approximation).
    n_points : int, optional
        Points or particles per replicate, rounded up to a power of two.
    replicates : int, optional
        Independent scrambles or runs, whose spread gives the standard error.
    moves : {"gibbs", "block", "over_relaxed", "hmc"}
        Move of the particles after resampling in SMC.
    random_seed : int, sequence of int, SeedSequence, Generator or None

    Returns
    -------
    RectangleProbability
        Its fields have the shape of the batch if bounds or covariances are stacked.

    Raises
    ------
    ModelError
        If bounds or covariance are invalid, or the method does not apply.

    Examples
    --------
    >>> import numpy as np
    >>> cov = 0.5 * (np.eye(8) + 1)
    >>> result = rectangle_probability(cov, lower=0, random_seed=1)
    >>> bool(abs(result.log_p + np.log(9)) < 4 * result.log_p_se + 1e-6), result.method, result.trusted
    (True, 'low_rank', True)
    """
    problems, batch = read_problems(cov, lower, upper, cholesky, loadings, diagonal, mean)
    settings = _Settings(method, n_points, replicates, moves)
    df = None if df is None or np.isinf(df) else df
    results = [
        _one(problem, df, settings, seed)
        for problem, seed in zip(problems, spawn_seeds(random_seed, len(problems)), strict=True)
    ]
    if not batch:
        return results[0]

    def stacked(name: str, dtype: Any) -> Any:
        values = np.empty(len(results), dtype=dtype)
        for i, result in enumerate(results):
            values[i] = getattr(result, name)
        return values.reshape(batch)

    kinds = {"method": object, "trusted": bool, "reasons": object}
    return RectangleProbability(
        **{name: stacked(name, kinds.get(name, float)) for name in RectangleProbability.__dataclass_fields__}
    )


@dataclass(frozen=True)
class _Settings:
    method: str
    n_points: int | None
    replicates: int | None
    moves: str

    def points(self, name: str, dim: int) -> int:
        """Return the points of a replicate, a power of two."""
        if self.n_points is not None:
            return 2 ** int(np.ceil(np.log2(self.n_points)))
        return POINTS[name] // 2 if name in REPLICATES and dim >= LARGE else POINTS[name]


def _one(problem: Problem, df: float | None, settings: _Settings, seed: np.random.SeedSequence) -> RectangleProbability:
    """Return the result of one rectangle."""
    problem = problem.without_free()
    log_p = problem.trivial()
    if log_p is not None:
        return RectangleProbability(log_p, 0.0, np.inf, 1.0, "closed_form", True, ())
    problem = problem.keep(problem.variance > 0)
    pilot, *seeds = seed.spawn(1 + (settings.replicates or 16))
    for solver in solvers(problem, settings, pilot):
        some = seeds[: settings.replicates or REPLICATES.get(solver.name, 16)]
        runs = solver.run(1.0, some) if df is None else _student(solver, df, some)
        if not runs.reasons:
            break
    return _combine(runs, solver.name)


def solvers(problem: Problem, settings: _Settings, pilot: np.random.SeedSequence) -> Iterator[Solver]:
    """Yield the solver of a method, or for "auto" those that may apply, the cheapest first.

    Raises
    ------
    ModelError
        If the method does not apply.
    """
    method, dim = settings.method, problem.dim
    auto = method == "auto"
    if method == "ep":
        yield Ep(problem)
        return
    if (auto or method == "closed_form") and _is_closed(problem):
        yield Closed(problem)
        return
    if auto or method == "low_rank":
        yield from _low_rank(problem, settings, pilot)
        if method == "low_rank":
            return
    rectangle = order_rectangle(problem.cov, problem.lower, problem.upper)
    if (auto or method == "closed_form") and len(rectangle.rows) == 1:
        yield Closed(problem, rectangle)
        return
    if method == "closed_form":
        raise ModelError("method='closed_form' is for independent variables, or at most two; use method='auto'")
    if method in ("auto", "tilting", "ghk"):
        net = Net(rectangle, settings.points("tilting", dim), method != "ghk")
        if not auto or Net(rectangle, PILOT).run(1.0, [pilot]).efficiency >= LEAST_EFFICIENCY:
            yield net
    if auto or method == "particle_filter":
        in_order = order_rectangle(problem.cov, problem.lower, problem.upper, reorder=False)
        chain = find_chain(in_order)
        if chain is not None:
            yield Sequential(in_order, settings.points("particle_filter", dim), "particle_filter", chain=chain)
        elif not auto:
            raise ModelError(
                "method='particle_filter': the covariance is not that of a chain in the order given; use 'auto'"
            )
    if method in ("auto", "tilted_smc", "ridgway"):
        name = "tilted_smc" if auto else method
        yield Sequential(rectangle, settings.points(name, dim), name, settings.moves)


def _low_rank(problem: Problem, settings: _Settings, pilot: np.random.SeedSequence) -> Iterator[Solver]:
    """Yield the solver in few dimensions, if there is one."""
    loadings, noise = problem.loadings, problem.noise
    if loadings is None or noise is None:
        loadings, noise = find_factors(problem.cov) or (np.zeros((problem.dim, 0)), problem.variance)
    auto = settings.method == "auto"
    if loadings.shape[1] and (noise > 0).all() and (2 * loadings.shape[1] <= problem.dim or not auto):
        solver = LowRank(
            Integrand(loadings, noise, problem.lower, problem.upper), settings.points("low_rank", problem.dim)
        )
        if not auto or replace(solver, n=PILOT).run(1.0, [pilot]).efficiency >= LEAST_EFFICIENCY:
            yield solver
    elif not auto:
        raise ModelError(
            "method='low_rank': the covariance is not a diagonal plus a matrix of low rank; use method='auto'"
        )


def _is_closed(problem: Problem) -> bool:
    if problem.dim == 1:
        return True
    cov = problem.cov
    if problem.dim == 2:
        return abs(cov[0, 1]) <= (1 - 1e-12) * np.sqrt(cov[0, 0] * cov[1, 1])
    return not np.any(cov[~np.eye(problem.dim, dtype=bool)])


def _student(solver: Solver, df: float, seeds: list[np.random.SeedSequence]) -> Runs:
    """Integrate over the radius, with the same seeds at every node."""
    radii, log_weights = radius_nodes(df, solver.guess)
    runs = [solver.run(float(radius), seeds) for radius in radii]
    log_p = np.array([run.log_p for run in runs]) + log_weights[:, None]
    share = np.exp(logsumexp(log_p, axis=1) - logsumexp(log_p))
    efficiency = float(share @ [run.efficiency for run in runs])
    reasons = dict.fromkeys(
        reason for run, part in zip(runs, share, strict=True) if part > 0.01 for reason in run.reasons
    )
    return Runs(logsumexp(log_p, axis=0), efficiency, tuple(reasons))


def _combine(runs: Runs, name: str) -> RectangleProbability:
    """Return the mean of estimates, as a log, with its standard error by the delta method."""
    n = len(runs.log_p)
    log_p = float(log_mean_exp(runs.log_p))
    if name == "ep":
        se, df = np.nan, np.nan
    elif n == 1:
        se, df = 0.0, np.inf
    elif not np.isfinite(log_p):
        se, df = np.nan, np.nan
    else:
        se, df = float(np.exp(runs.log_p - log_p).std(ddof=1) / np.sqrt(n)), n - 1.0
    return RectangleProbability(log_p, se, df, runs.efficiency, name, not runs.reasons, runs.reasons)
