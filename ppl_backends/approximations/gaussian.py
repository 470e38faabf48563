"""Gaussian approximations of a posterior on the unconstrained space, the results of Laplace, EP and variational inference."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky

from ppl_backends.approximations.base import Approximation
from ppl_backends.errors import ModelError
from ppl_backends.numerics.gaussian import MAX_DENSE_DIM, Gaussian
from ppl_backends.targets.protocol import Array, as_points

ASYMMETRY = 1e-3  # largest difference of two elements that have to be equal, in units of the standard deviations


class GaussianApproximation(Gaussian, Approximation):
    """A normal distribution N(mean, cov) on the unconstrained space.

    Exactly one of ``cov``, ``precision`` and ``cholesky`` is given. A vector ``(dim,)`` instead of a matrix means a
    diagonal matrix and makes the representation ``"diagonal"``.

    Parameters
    ----------
    mean : array (dim,)
    cov : array (dim, dim) or (dim,), optional
        Covariance, or variances.
    precision : array (dim, dim) or (dim,), optional
        Inverse covariance.
    cholesky : array (dim, dim) or (dim,), optional
        Lower triangular factor L of the covariance L Lᵀ, or standard deviations.
    directions : array (dim, r), optional
        C of the factor diag(s)(I + C Cᵀ), s being standard deviations given as ``cholesky``.
    **about
        ``names``, ``target``, ``method`` (``"given"`` by default), ``converged``, ``log_evidence``, ``diagnostics``,
        ``accuracy`` and ``trouble``: see :class:`~ppl_backends.approximations.base.Approximation`.

    Raises
    ------
    ModelError
        If shapes disagree or the matrix is not positive definite.

    Examples
    --------
    >>> import numpy as np
    >>> q = GaussianApproximation([0.0, 1.0], cov=[[1.0, 0.5], [0.5, 2.0]])
    >>> q
    GaussianApproximation(dim=2, representation='dense', method='given', converged=True, log_evidence=nan)
    >>> q.sample(3, np.random.default_rng(0)).shape
    (3, 2)
    >>> q.from_uniform(np.full((1, 2), 0.5))
    array([[0., 1.]])
    """

    def __init__(
        self,
        mean: Any,
        cov: Any = None,
        *,
        precision: Any = None,
        cholesky: Any = None,
        directions: Array | None = None,
        **about: Any,
    ) -> None:
        mean = np.array(mean, dtype=np.float64, ndmin=1)
        factor = _covariance_factor(len(mean), cov, precision, cholesky)
        if not np.isfinite(mean).all() or not np.isfinite(factor).all():
            raise ModelError(f"the mean or covariance of a Gaussian over {len(mean)} coordinates is not finite")
        scales = np.diagonal(factor) if factor.ndim == 2 else factor
        if not (scales > 0).all():
            least = float(scales.min())
            raise ModelError(
                f"the factor of the covariance of a Gaussian has {least:.3g} on its diagonal; expected above 0"
            )
        Gaussian.__init__(self, mean, factor, directions)
        self._describe(len(mean), **about)

    __setattr__ = Approximation.__setattr__

    @property
    def gaussian(self) -> Gaussian:
        """Return the approximation itself."""
        return self

    def whiten(self, x: Array) -> Array:
        return super().whiten(as_points(x, self.dim))

    def from_uniform(self, u: Array) -> Array:
        return super().from_uniform(as_points(u, self.dim))

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        return super().log_density_and_gradient(as_points(x, self.dim))

    def marginal(self, indices: Any) -> GaussianApproximation:
        return self._part(super().marginal(indices), np.atleast_1d(indices))

    def conditional(self, indices: Any, values: Any, free: Any = None) -> GaussianApproximation:
        free = np.setdiff1d(np.arange(self.dim), indices) if free is None else free
        return self._part(super().conditional(indices, values, free), free)

    def _part(self, part: Gaussian, kept: Any) -> GaussianApproximation:
        names = [self.names[j] for j in kept]
        about: dict[str, Any] = {"names": names, "method": self.method, "converged": self.converged}
        return GaussianApproximation(part.mean, cholesky=part.factor, **about)


def _covariance_factor(dim: int, cov: Any, precision: Any, factor: Any) -> Array:
    """Return the lower Cholesky factor of the covariance, or standard deviations, from whichever matrix was given."""
    given = {
        name: np.array(value, dtype=np.float64)
        for name, value in (("cov", cov), ("precision", precision), ("cholesky", factor))
        if value is not None
    }
    if len(given) != 1:
        raise ModelError(f"give one of cov, precision and cholesky, not {len(given)}")
    ((kind, matrix),) = given.items()
    if matrix.shape not in ((dim,), (dim, dim)):
        raise ModelError(f"{kind} has shape {matrix.shape}; expected ({dim}, {dim}), or ({dim},) for a diagonal one")
    if matrix.ndim == 1:
        with np.errstate(invalid="ignore", divide="ignore"):
            return matrix ** {"cov": 0.5, "precision": -0.5, "cholesky": 1.0}[kind]
    if dim > MAX_DENSE_DIM:
        raise ModelError(f"{dim} coordinates are too many for a dense {kind} (at most {MAX_DENSE_DIM}); give a vector")
    if kind == "cholesky":
        return np.tril(matrix)
    scale = np.sqrt(np.abs(np.diagonal(matrix)))
    if np.any(np.abs(matrix - matrix.T) > ASYMMETRY * np.outer(scale, scale)):
        raise ModelError(f"the {kind} of a Gaussian over {dim} coordinates is not symmetric")
    try:
        if kind == "precision":
            matrix = cho_solve((cholesky(matrix, lower=True), True), np.eye(dim))
        return cholesky(matrix, lower=True)
    except (LinAlgError, ValueError) as error:
        raise ModelError(f"the {kind} of a Gaussian over {dim} coordinates is not positive definite: {error}") from None
