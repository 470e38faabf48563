"""Derivatives of log P(lower ≤ X ≤ upper), X ~ N(mean, Σ), from the weighted points that estimate P.

With E the mean over X inside the rectangle, Y = X − mean and g = Σ⁻¹ Y (differentiation under the integral, and by parts):

    ∂ log P / ∂mean = E[g],        ∂ log P / ∂Σ = ½ (E[g g'] − Σ⁻¹).

Let F_i and G_i be the densities of X_i, given that X is inside, at its lower and upper bound: −F_i and G_i are the
derivatives by the bounds. They follow from F_i − G_i = E[g_i] and lower_i F_i − upper_i G_i = E[Y_i g_i] − 1, with
bounds minus the mean. No further integrals are needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.numerics.weights import log_mean_exp, normalised_weights
from ppl_backends.options import checked, integer
from ppl_backends.orthants.intervals import Array
from ppl_backends.orthants.ordering import Rectangle, order_rectangle
from ppl_backends.orthants.problem import GAUSSIAN, read_problems
from ppl_backends.orthants.solvers import LEAST_EFFICIENCY, Sequential, scramble
from ppl_backends.orthants.tilt import saddle_point, weigh
from ppl_backends.random import SeedLike, spawn_seeds


@dataclass(frozen=True)
class RectangleGradient:
    """Log probability of a rectangle and its derivatives.

    Attributes
    ----------
    log_p, log_p_se : float
    mean, lower, upper : ndarray (dim,)
        Derivatives; 0 by infinite bounds.
    cov : ndarray (dim, dim)
        Derivative by a symmetric Σ, each entry counted once: d log P = Σ_ij cov_ij dΣ_ij.
    cholesky : ndarray (dim, dim)
        Derivative by the lower Cholesky factor.
    trusted : bool

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.orthants import rectangle_gradient
    >>> found = rectangle_gradient(np.eye(2), lower=np.zeros(2), random_seed=1)
    >>> found.mean.shape, found.cov.shape, found.trusted
    ((2,), (2, 2), True)
    """

    log_p: float
    log_p_se: float
    mean: Array
    lower: Array
    upper: Array
    cov: Array
    cholesky: Array
    trusted: bool


@checked(
    **GAUSSIAN,
    n_points=integer(16),
    replicates=integer(2),
)
def rectangle_gradient(
    cov: Any = None,
    lower: Any = None,
    upper: Any = None,
    *,
    cholesky: Any = None,
    mean: Any = None,
    n_points: int = 4096,
    replicates: int = 8,
    random_seed: SeedLike = None,
) -> RectangleGradient:
    """Return log P(lower ≤ X ≤ upper) of a Gaussian vector and its derivatives by mean, covariance and bounds.

    Parameters
    ----------
    cov, lower, upper, cholesky, mean
        As in :func:`ppl_backends.rectangle_probability`, for one rectangle with a nonsingular covariance.
    n_points, replicates : int
        Points per scramble, a power of two, and number of scrambles. Particles replace them if tilting is not sufficient.
    random_seed : int, sequence of int, SeedSequence, Generator or None
        The same seed gives the same points: a smooth function of the arguments while the order of the variables is constant.

    Examples
    --------
    >>> import numpy as np
    >>> found = rectangle_gradient([[1.0, 0.5], [0.5, 1.0]], lower=0, random_seed=1)
    >>> bool(abs(found.cov[0, 1] + found.cov[1, 0] - 3 / (2 * np.pi * np.sqrt(0.75))) < 1e-3)
    True
    """
    problems, batch = read_problems(cov, lower, upper, cholesky, None, None, mean)
    if batch:
        raise ModelError(f"rectangle_gradient takes one rectangle, not a batch of shape {batch}")
    problem = problems[0]
    dim = problem.dim
    if (problem.lower == problem.upper).any():
        raise ModelError("lower equals upper: the probability is zero and has no derivative")
    kept = np.flatnonzero(np.isfinite(problem.lower) | np.isfinite(problem.upper))
    rest = problem.keep(kept)
    rectangle = order_rectangle(rest.cov, rest.lower, rest.upper)
    if rectangle.rank < rest.dim:
        raise ModelError("the covariance is singular: log P has no derivative by it")
    log_p, z, log_weights, trusted = _points(rectangle, n_points, replicates, spawn_seeds(random_seed, replicates))
    average = float(log_mean_exp(log_p))
    se = float(np.exp(log_p - average).std(ddof=1) / np.sqrt(len(log_p)))
    parts = _derivatives(rectangle, z, normalised_weights(log_weights)[0], rest.lower, rest.upper)
    by_mean, by_lower, by_upper = np.zeros((3, dim))
    by_mean[kept], by_lower[kept], by_upper[kept] = parts[:3]
    by_cov = np.zeros((dim, dim))
    by_cov[np.ix_(kept, kept)] = parts[3]
    factor = np.linalg.cholesky(problem.cov) if cholesky is None else np.asarray(cholesky)
    by_factor = np.tril(2 * by_cov @ factor)
    return RectangleGradient(average, se, by_mean, by_lower, by_upper, by_cov, by_factor, trusted)


def _points(
    rectangle: Rectangle, n: int, replicates: int, seeds: list[np.random.SeedSequence]
) -> tuple[Array, Array, Array, bool]:
    """Return log P of replicates, points ``(dim, replicates * n)``, their log weights and whether they can be trusted."""
    n = 2 ** int(np.ceil(np.log2(n)))
    tilt = saddle_point(rectangle)
    uniforms = np.concatenate([scramble(n, rectangle.rank, seed) for seed in seeds])
    z, log_weights = weigh(rectangle, tilt, uniforms.T)
    by_replicate = log_weights.reshape(replicates, n)
    relative = normalised_weights(log_weights)[0]
    if 1 / (relative**2).sum() >= LEAST_EFFICIENCY * len(relative):
        return log_mean_exp(by_replicate, axis=1), z, log_weights, True
    solver = Sequential(rectangle, n, "tilted_smc")
    ends = solver.particles(1.0, seeds)
    log_p = np.array([end.log_p for end in ends])
    with np.errstate(divide="ignore"):
        log_shares = np.concatenate([np.log(end.weights) + end.log_p for end in ends])
    return log_p, np.hstack([end.z for end in ends]), log_shares, not solver.judge(log_p).reasons


def _derivatives(
    rectangle: Rectangle, z: Array, weights: Array, lower: Array, upper: Array
) -> tuple[Array, Array, Array, Array]:
    """Return derivatives by mean, lower bounds, upper bounds and covariance, in the user's order."""
    first, second = z @ weights, (z * weights) @ z.T
    inverse = np.linalg.inv(rectangle.loadings).T  # g = inverse @ z
    by_mean = inverse @ first
    by_cov = 0.5 * inverse @ (second - np.eye(len(second))) @ inverse.T
    excess = np.einsum("ij,jk,ik->i", rectangle.loadings, second, inverse) - 1
    both = np.isfinite(lower) & np.isfinite(upper)
    with np.errstate(invalid="ignore"):
        at_upper = np.where(both, (lower * by_mean - excess) / np.where(both, upper - lower, 1.0), 0.0)
    at_upper = np.where(np.isinf(lower), -by_mean, at_upper)
    at_lower = np.where(np.isfinite(lower), by_mean + at_upper, 0.0)
    return by_mean, -at_lower, at_upper, by_cov
