"""Rectangles given by users, reduced to finite bounds, positive variances and mean zero."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.options import Option, array, none, number
from ppl_backends.orthants.intervals import Array

LARGEST_BOUND = 1e150
LARGEST_ASYMMETRY = 1e-8


def _read_bounds(value: Any) -> Array:
    values = np.asarray(value, dtype=np.float64)
    if np.asarray(value).dtype.kind not in "iuf" or np.isnan(values).any():
        raise ValueError
    return values


BOUNDS = Option("an array of numbers, infinite where there is no bound", _read_bounds)

# Checks of the options that describe a rectangle of a Gaussian vector, and of those for factors and a Student vector.
GAUSSIAN = {"cov": none | array(), "lower": none | BOUNDS, "upper": none | BOUNDS}
GAUSSIAN |= {"cholesky": none | array(), "mean": none | array()}
STRUCTURE = {"loadings": none | array(), "diagonal": none | array(), "df": none | number(above=0, at_most=np.inf)}


@dataclass(frozen=True)
class Problem:
    """P(lower ≤ X ≤ upper) of one vector X ~ N(0, Σ), with Σ = Λ Λ' + diag(noise) if loadings are given.

    Attributes
    ----------
    lower, upper : ndarray (dim,)
        Bounds minus the mean.
    given : ndarray (dim, dim) or None
    loadings : ndarray (dim, k) or None
    noise : ndarray (dim,) or None
    """

    lower: Array
    upper: Array
    given: Array | None = field(default=None, repr=False)
    loadings: Array | None = field(default=None, repr=False)
    noise: Array | None = field(default=None, repr=False)

    @property
    def dim(self) -> int:
        """Return the number of variables."""
        return len(self.lower)

    @cached_property
    def cov(self) -> Array:
        """Return the full matrix Σ."""
        if self.given is not None:
            return self.given
        assert self.loadings is not None
        assert self.noise is not None
        return self.loadings @ self.loadings.T + np.diag(self.noise)

    @cached_property
    def variance(self) -> Array:
        """Return the diagonal of Σ."""
        if self.given is not None:
            return np.diag(self.given).copy()
        assert self.loadings is not None
        return (self.loadings**2).sum(axis=1) + self.noise

    def keep(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> Problem:
        """Return the problem of some of the variables: the others are integrated out."""
        return replace(
            self,
            lower=self.lower[index],
            upper=self.upper[index],
            given=None if self.given is None else self.given[index][:, index],
            loadings=None if self.loadings is None else self.loadings[index],
            noise=None if self.noise is None else self.noise[index],
        )

    def without_free(self) -> Problem:
        """Return the problem without variables that have no bounds."""
        return self.keep(np.flatnonzero(np.isfinite(self.lower) | np.isfinite(self.upper)))

    def trivial(self) -> float | None:
        """Return log P if it is 0 or −∞ without computation, else None."""
        constant = self.variance <= 0
        if np.any(constant & ((self.lower > 0) | (self.upper < 0))):
            return -np.inf
        if np.any(~constant & (self.lower == self.upper)):
            return -np.inf
        return 0.0 if constant.all() else None


def read_problems(
    cov: Any, lower: Any, upper: Any, cholesky: Any, loadings: Any, diagonal: Any, mean: Any
) -> tuple[list[Problem], tuple[int, ...]]:
    """Return one problem per entry of the batch, and the shape of the batch.

    Raises
    ------
    ModelError
        If shapes do not fit, a matrix is not a covariance, or a lower bound is above its upper bound.
    """
    given = _covariance(cov, cholesky, loadings, diagonal)
    if given is not None:
        dim, batches = given.shape[-1], [given.shape[:-2]]
    else:
        loadings, diagonal = _factors(loadings, diagonal)
        dim, batches = diagonal.shape[-1], [diagonal.shape[:-1], loadings.shape[:-2]]
    vectors = {
        "lower": np.asarray(-np.inf if lower is None else lower),
        "upper": np.asarray(np.inf if upper is None else upper),
        "mean": np.asarray(0.0 if mean is None else mean),
    }
    for name, vector in vectors.items():
        if vector.ndim and vector.shape[-1] not in (1, dim):
            raise ModelError(f"{name} has {vector.shape[-1]} entries and the covariance {dim} variables")
        batches.append(vector.shape[:-1])
    try:
        batch = np.broadcast_shapes(*batches)
    except ValueError:
        raise ModelError(f"batches of shapes {', '.join(map(str, batches))} do not fit each other") from None
    low, high, centre = (np.broadcast_to(v, (*batch, dim)).reshape(-1, dim) for v in vectors.values())
    if (low > high).any():
        row, i = np.argwhere(low > high)[0]
        raise ModelError(f"lower is above upper: {low[row, i]:g} > {high[row, i]:g} for variable {i}")
    if np.any(low == np.inf) or np.any(high == -np.inf):
        raise ModelError("a lower bound of +inf or an upper bound of -inf leaves an empty rectangle")
    low, high = low - centre, high - centre
    largest = max(float(np.abs(v[np.isfinite(v)]).max(initial=0.0)) for v in (low, high))
    if largest > LARGEST_BOUND:
        raise ModelError(
            f"a bound is {largest:g} from the mean, and its square overflows: use an infinite bound or other units"
        )
    count = len(low)
    if given is not None:
        covs = np.broadcast_to(given, (*batch, dim, dim)).reshape(-1, dim, dim)
        return [Problem(low[i], high[i], given=covs[i]) for i in range(count)], batch
    rank = loadings.shape[-1]
    all_loadings = np.broadcast_to(loadings, (*batch, dim, rank)).reshape(count, dim, rank)
    noises = np.broadcast_to(diagonal, (*batch, dim)).reshape(count, dim)
    return [Problem(low[i], high[i], loadings=all_loadings[i], noise=noises[i]) for i in range(count)], batch


def _covariance(cov: Any, cholesky: Any, loadings: Any, diagonal: Any) -> Array | None:
    """Return the covariance given in full, or None if loadings and a diagonal are given."""
    ways = [cov is not None, cholesky is not None, loadings is not None or diagonal is not None]
    if sum(ways) != 1:
        raise ModelError("give the covariance once: cov=, cholesky=, or loadings= with diagonal=")
    if ways[2]:
        return None
    name, matrix = ("cov", cov) if cov is not None else ("cholesky", cholesky)
    matrix = np.reshape(matrix, (1, 1)) if matrix.ndim == 0 else matrix
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2] or not matrix.shape[-1]:
        raise ModelError(f"{name} has shape {matrix.shape}: a square matrix is expected, or a stack of them")
    if name == "cholesky":
        return matrix @ np.swapaxes(matrix, -1, -2)
    size = np.abs(matrix).max(initial=0.0)
    if np.abs(matrix - np.swapaxes(matrix, -1, -2)).max() > LARGEST_ASYMMETRY * size:
        raise ModelError("cov is not symmetric")
    matrix = 0.5 * (matrix + np.swapaxes(matrix, -1, -2))
    smallest = np.linalg.eigvalsh(matrix).min()
    if smallest < -LARGEST_ASYMMETRY * size:
        raise ModelError(f"cov is not positive semidefinite: its smallest eigenvalue is {smallest:.3g}")
    return matrix


def _factors(loadings: Any, diagonal: Any) -> tuple[Array, Array]:
    """Return loadings ``(..., dim, k)`` and a diagonal ``(..., dim)``."""
    if diagonal is None:
        diagonal = np.zeros(np.shape(loadings)[-2:-1] or 1)
    diagonal = np.asarray(diagonal)
    if (diagonal < 0).any():
        raise ModelError("diagonal has an entry below zero: its entries are variances")
    if loadings is None:
        diagonal = np.atleast_1d(diagonal)
        loadings = np.zeros((diagonal.shape[-1], 0))
    if loadings.ndim < 2:
        raise ModelError(f"loadings has shape {loadings.shape}: (variables, factors) is expected")
    if diagonal.ndim == 0:
        diagonal = np.full(loadings.shape[-2], float(diagonal))
    if diagonal.shape[-1] != loadings.shape[-2]:
        raise ModelError(f"diagonal has {diagonal.shape[-1]} entries and loadings {loadings.shape[-2]} rows")
    return loadings, diagonal
