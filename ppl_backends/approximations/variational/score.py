r"""Targets without gradients: the score-function gradient with the best quadratic control variate.

The score gradients of the bound in mean and covariance are E_q[r z] and E_q[r (z zᵀ − I)], r = log p − log q.
Subtracting the regression of r on 1, z and z zᵀ leaves the expectation unchanged and removes a quadratic log density
entirely. The regression's coefficients are then the gradients, without noise if log p is quadratic (Salimans & Knowles
2013). In natural coordinates a step of length one is an iteration of Newton's method.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import cholesky, lstsq

from ppl_backends.approximations.noise import standardised_noise
from ppl_backends.approximations.variational.elbo import Search, VariationalFit
from ppl_backends.approximations.variational.families import Diagonal, FullRank, Location
from ppl_backends.approximations.variational.sample_average import moved
from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array, BaseTarget

LARGEST_FULL_RANK_DIM = 50  # the regression has (d + 1)(d + 2)/2 coefficients
LONGEST_STEP = 1.0  # standard deviations
LARGEST_CURVATURE = 0.5  # variances grow at most twofold in a step
POINTS_PER_COEFFICIENT = 4


def fit_by_scores(
    target: BaseTarget,
    family: FullRank | Diagonal,
    search: Search,
    rng: np.random.Generator,
) -> VariationalFit:
    """Make natural-gradient steps from values of the log density; the sample doubles when the steps stop shrinking."""
    if family.name == "low_rank" or (family.name == "dense" and family.dim > LARGEST_FULL_RANK_DIM):
        raise ModelError(
            f"gradient='score' fits family='diagonal', or 'dense' up to {LARGEST_FULL_RANK_DIM} coordinates; "
            f"not {family.name!r} with {family.dim}"
        )
    coefficients = 1 + family.dim * (2 if family.name == "diagonal" else (family.dim + 3) / 2)
    draws = max(search.draws, 2 ** int(np.ceil(np.log2(POINTS_PER_COEFFICIENT * coefficients))))
    max_draws = max(search.max_draws, 4 * draws)
    history: list[tuple[int, float, int, float]] = []
    best, last, quiet, length = (-np.inf, family), np.inf, 0, 1.0
    for _ in range(search.max_iterations):
        z = standardised_noise(draws, family.dim, rng, search.qmc)
        proposal, bound, noise = _step(target, family, z, length)
        if bound < best[0] - 3 * noise:  # the last step decreased the bound: go back, and make shorter steps
            family, length = best[1], 0.5 * length
            best = (-np.inf, family)
            continue
        best = (bound, family)
        change = moved(family, _difference(family, proposal)) / length
        family = proposal
        history.append((draws, bound, 1, change))
        search.report(draws, bound, change)
        quiet = quiet + 1 if change < search.tolerance else 0
        if quiet == 2:
            return VariationalFit(family, change, draws, bool(np.isfinite(bound)), history)
        if change > 0.5 * last and change < 0.5 and 2 * draws <= max_draws:
            draws *= 2
        last = change
    return VariationalFit(family, last, draws, False, history)


def _step(
    target: BaseTarget, family: FullRank | Diagonal, z: Array, length: float
) -> tuple[FullRank | Diagonal, float, float]:
    """Make one natural-gradient step; return it, the bound at its start and the bound's standard error."""
    p = family.start()
    with np.errstate(all="ignore"):
        value = target.log_density(family.points(p, z))
    bound = float(value.mean()) + family.entropy(p)[0]
    finite = np.isfinite(value)
    if not finite.any():
        raise ModelError(f"{target.label}: the log density is not finite at any of {len(z)} points of the start")
    residual = np.where(finite, value, value[finite].min()) + 0.5 * (z**2).sum(axis=1)
    noise = float(residual.std() / np.sqrt(len(z)))
    linear, curvature = (length * part for part in _regression(residual, z, family.name == "diagonal"))
    mean, factor = family.mean_and_sd(p)[0], family.factor(p)[0]
    if isinstance(family, Diagonal):
        precision = 1 - np.clip(curvature, -1 / LARGEST_CURVATURE, LARGEST_CURVATURE)
        shift = _shortened(linear / precision)
        return Diagonal(Location(mean + factor * shift, factor), factor / np.sqrt(precision)), bound, noise
    eigenvalues, axes = np.linalg.eigh(curvature)
    precision = 1 - np.clip(eigenvalues, -1 / LARGEST_CURVATURE, LARGEST_CURVATURE)
    shift = _shortened(axes @ ((axes.T @ linear) / precision))
    root = factor @ (axes / np.sqrt(precision))
    return FullRank(mean + factor @ shift, cholesky(root @ root.T, lower=True)), bound, noise


def _regression(residual: Array, z: Array, diagonal: bool) -> tuple[Array, Array]:
    """Return b, A of r ≈ c + bᵀz + ½ zᵀAz by least squares; A is a vector if ``diagonal``."""
    n, dim = z.shape
    rows, columns = (np.arange(dim), np.arange(dim)) if diagonal else np.tril_indices(dim)
    quadratic = z[:, rows] * z[:, columns]
    solution: Array = np.asarray(lstsq(np.hstack([np.ones((n, 1)), z, quadratic]), residual)[0], dtype=np.float64)
    linear, upper = solution[1 : dim + 1], solution[dim + 1 :]
    if diagonal:
        return linear, 2 * upper
    curvature = np.zeros((dim, dim))
    curvature[rows, columns] += upper
    return linear, curvature + curvature.T


def _shortened(shift: Array) -> Array:
    return shift / max(1.0, float(np.sqrt(np.mean(shift**2))) / LONGEST_STEP)


def _difference(old: FullRank | Diagonal, new: FullRank | Diagonal) -> Array:
    """Return parameters of ``new`` measured from ``old``, for :func:`moved`."""
    (old_mean, _), (mean, _) = old.mean_and_sd(old.start()), new.mean_and_sd(new.start())
    old_factor, factor = old.factor(old.start())[0], new.factor(new.start())[0]
    if isinstance(old, Diagonal):
        location = old.location.whitener
        shift = np.linalg.solve(location, mean - old_mean) if location.ndim == 2 else (mean - old_mean) / location
        return np.concatenate([shift, np.log(factor / old_factor)])
    triangle = np.linalg.solve(old_factor, factor)
    flat = triangle[np.tril_indices(old.dim)]
    diagonal = np.flatnonzero(np.equal(*np.tril_indices(old.dim)))
    flat[diagonal] = np.log(flat[diagonal])
    return np.concatenate([np.linalg.solve(old_factor, mean - old_mean), flat])
