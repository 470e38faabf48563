"""The Gaussian part N(m₀, Q₀⁻¹) of a posterior; Q₀ diagonal or dense, and possibly singular."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError, cho_solve, cholesky, eigh, solve_triangular

from ppl_backends.errors import ModelError
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.targets.factors.sites import Array


class GaussianPrior:
    """N(m₀, Q₀⁻¹), given by its mean and precision.

    If Q₀ is singular, this is the density of the coordinates in its range: the normalising constant is (2π)^(−r/2)
    det₊(Q₀)^(1/2), with r the rank and det₊ the product of the eigenvalues that are not zero.

    Parameters
    ----------
    mean : float or array (d,)
    precision : float, array (d,) (a diagonal), or matrix (d, d), dense or sparse
    dim : int
    """

    mean: Array  #: ``(d,)``
    precision: Array  #: ``(d,)`` or ``(d, d)``
    rank: int
    log_determinant: float  #: log of the pseudo-determinant of Q₀

    def __init__(self, mean: Any, precision: Any, dim: int) -> None:
        self.dim = dim
        self.mean = vector(mean, dim, "prior_mean")
        if sparse.issparse(precision):
            precision = precision.toarray()
        precision = np.asarray(precision, dtype=np.float64)
        if precision.ndim < 2:
            precision = vector(precision, dim, "prior_precision")
        if precision.shape not in ((dim,), (dim, dim)):
            raise ModelError(
                f"prior_precision has shape {precision.shape}; expected a scalar, ({dim},) or ({dim}, {dim})"
            )
        if not np.isfinite(precision).all():
            raise ModelError("prior_precision has values that are not finite")
        if precision.ndim == 2 and np.abs(precision - precision.T).max() > 1e-6 * np.abs(precision).max():
            raise ModelError("prior_precision is not symmetric")
        self.precision = 0.5 * (precision + precision.T) if precision.ndim == 2 else precision
        self._factor: Array | None = None  # lower Cholesky factor of a dense proper Q₀
        self.rank, self.log_determinant = self._rank_and_determinant()

    @property
    def proper(self) -> bool:
        """Return whether Q₀ has full rank."""
        return self.rank == self.dim

    def _rank_and_determinant(self) -> tuple[int, float]:
        if self.precision.ndim == 1:
            values = self.precision
        else:
            try:
                self._factor = cholesky(self.precision, lower=True)
                return self.dim, 2 * float(np.log(np.diagonal(self._factor)).sum())
            except LinAlgError:
                values = eigh(self.precision, eigvals_only=True)
        threshold = self.dim * np.finfo(float).eps * max(float(values.max(initial=0.0)), 0.0)
        if values.min(initial=0.0) < -10 * threshold or (values.min(initial=0.0) < 0 and values.max() <= 0):
            raise ModelError(f"prior_precision is not positive semi-definite: smallest eigenvalue {values.min():.3g}")
        kept = values[values > (threshold if self.precision.ndim == 2 else 0.0)]
        return len(kept), float(np.log(kept).sum())

    def log_density(self, theta: Array) -> Array:
        """Return log N(θ; m₀, Q₀⁻¹) ``(k,)`` at rows ``(k, d)``."""
        centred = theta - self.mean
        quadratic = np.einsum("kd,kd->k", centred, self.apply(centred))
        return 0.5 * (self.log_determinant - self.rank * LOG_2PI - quadratic)

    def apply(self, rows: Array) -> Array:
        """Return rows times Q₀."""
        return rows * self.precision if self.precision.ndim == 1 else rows @ self.precision

    def add_to(self, matrix: Array) -> Array:
        """Return ``matrix + Q₀``, in place."""
        if self.precision.ndim == 1:
            matrix[np.diag_indices(self.dim)] += self.precision
        else:
            matrix += self.precision
        return matrix

    def apply_covariance(self, columns: Array) -> Array:
        """Return Q₀⁻¹ times ``columns`` ``(d, k)``, for a proper prior."""
        if self.precision.ndim == 1:
            return columns / self.precision[:, None]
        return cho_solve((self._factor, True), columns)

    def variances(self) -> Array:
        """Return the diagonal of Q₀⁻¹, for a proper prior."""
        if self.precision.ndim == 1:
            return 1 / self.precision
        root = solve_triangular(self._factor, np.eye(self.dim), lower=True)
        return (root**2).sum(axis=0)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` draws ``(n, d)`` of a proper prior."""
        z = rng.standard_normal((n, self.dim))
        if self.precision.ndim == 1:
            return self.mean + z / np.sqrt(self.precision)
        return self.mean + solve_triangular(self._factor, z.T, lower=True, trans="T").T


def vector(value: Any, dim: int, name: str) -> Array:
    """Return one finite number or ``dim`` of them as an array ``(dim,)``."""
    value = np.asarray(value, dtype=np.float64)
    if value.shape not in ((), (1,), (dim,)):
        raise ModelError(f"{name} has shape {value.shape}; expected a scalar or ({dim},)")
    if not np.isfinite(value).all():
        raise ModelError(f"{name} has values that are not finite")
    return np.ascontiguousarray(np.broadcast_to(value, (dim,)))
