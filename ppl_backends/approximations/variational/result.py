"""What Gaussian variational inference returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.linalg import cholesky, inv

from ppl_backends.approximations.gaussian import MAX_DENSE_DIM, GaussianApproximation
from ppl_backends.approximations.variational.families import widen_inverse, widened_norms
from ppl_backends.errors import ModelError
from ppl_backends.random import SeedLike
from ppl_backends.results.inference_data import group
from ppl_backends.targets.protocol import Array, as_points

__all__ = ["VariationalApproximation"]


class VariationalApproximation(GaussianApproximation):
    """The Gaussian of :func:`ppl_backends.fit_vi`; it has no evidence, but a lower bound of it.

    Attributes
    ----------
    family : {"mean_field", "low_rank", "full_rank"}
    elbo, elbo_se : float
        Lower bound of the log evidence, on points that the fit has not seen, and its standard error.
    pareto_k : float
        Of the importance weights p/q. Above 0.7 the Gaussian is too far from the posterior to be corrected by weights.
    evidence_note : str or None
        That the bound is known up to a constant only, where the prior is improper.
    history : dict of str to array
        Per sample size (or phase): ``draws``, ``elbo``, ``iterations``, ``change``.
    """

    def __init__(self, mean: Any, factor: Array, directions: Array | None = None, **about: Any) -> None:
        super().__init__(mean, cholesky=factor, method="variational inference", **about)
        self.directions = directions
        self.family = "full_rank" if factor.ndim == 2 else "mean_field" if directions is None else "low_rank"
        self.elbo = self.elbo_se = self.pareto_k = float("nan")
        self.evidence_note: str | None = None
        self.history: Mapping[str, Array] = {}

    @property
    def representation(self) -> str:
        """``"dense"``, ``"diagonal"`` or ``"low rank"``."""
        return super().representation if self.directions is None else "low rank"

    @property
    def cholesky(self) -> Array:
        """Lower factor of the covariance, or the standard deviations where diagonal."""
        return self._factor if self.directions is None else cholesky(self.cov, lower=True)

    @property
    def cov(self) -> Array:
        """Covariance ``(dim, dim)``."""
        if self.directions is None:
            return super().cov
        if self.dim > MAX_DENSE_DIM:
            raise ModelError(f"the covariance of {self.dim} coordinates is too large; use marginal(indices).cov or sd")
        return self._rows(np.arange(self.dim)) @ self._rows(np.arange(self.dim)).T

    @property
    def precision(self) -> Array:
        """Inverse covariance ``(dim, dim)``."""
        return super().precision if self.directions is None else inv(self.cov)

    @property
    def sd(self) -> Array:
        """Marginal standard deviations ``(dim,)``."""
        return super().sd if self.directions is None else self._factor * widened_norms(self.directions)

    @property
    def log_determinant(self) -> float:
        """Log determinant of the covariance."""
        if self.directions is None:
            return super().log_determinant
        b = self.directions
        inner = np.linalg.slogdet(np.eye(b.shape[1]) + b.T @ b)[1]
        return 2.0 * float(np.log(self._factor).sum() + inner)

    def color(self, z: Array) -> Array:
        """Standard normal rows to rows of this Gaussian."""
        if self.directions is not None:
            z = z + (z @ self.directions) @ self.directions.T
        return super().color(z)

    def whiten(self, x: Array) -> Array:
        """Inverse of :meth:`color`."""
        if self.directions is None:
            return super().whiten(x)
        return widen_inverse((as_points(x, self.dim) - self.mean) / self._factor, self.directions)

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Normalised log density ``(n,)`` and its gradient ``(n, dim)``."""
        if self.directions is None:
            return super().log_density_and_gradient(x)
        z = self.whiten(x)
        return self._log_density_at(np.einsum("nd,nd->n", z, z)), -widen_inverse(z, self.directions) / self._factor

    def marginal(self, indices: Any) -> GaussianApproximation:
        """The Gaussian of the coordinates ``indices``."""
        if self.directions is None:
            return super().marginal(indices)
        kept = np.atleast_1d(indices)
        root = self._rows(kept)
        return GaussianApproximation(
            self.mean[kept], root @ root.T, names=[self.names[j] for j in kept], method=self.method
        )

    def conditional(self, indices: Any, values: Any) -> GaussianApproximation:
        """The Gaussian of the other coordinates given those at ``indices``."""
        if self.directions is None:
            return super().conditional(indices, values)
        dense = GaussianApproximation(self.mean, self.cov, names=self.names, method=self.method)
        return dense.conditional(indices, values)

    def _rows(self, kept: Any) -> Array:
        """Rows of F = diag(s)(I + B Bᵀ)."""
        b = np.asarray(self.directions)
        return self._factor[kept, None] * (np.eye(self.dim)[kept] + b[kept] @ b.T)

    def to_inference_data(self, draws: int = 1000, chains: int = 1, random_seed: SeedLike = None) -> Any:
        """Independent draws in model space, marked as approximate, with ``elbo``, ``elbo_se`` and ``pareto_k``."""
        idata = super().to_inference_data(draws, chains, random_seed)
        figures: dict[str, Any] = {
            "elbo": self.elbo,
            "elbo_se": self.elbo_se,
            "pareto_k": self.pareto_k,
            "family": self.family,
        }
        posterior = idata.posterior if hasattr(idata, "posterior") else group(idata, "posterior")
        if self.evidence_note is not None:
            figures["log_evidence_note"] = self.evidence_note
        posterior.attrs.update(figures)
        return idata

    def __repr__(self) -> str:
        return (
            f"VariationalApproximation(dim={self.dim}, family={self.family!r}, converged={self.converged}, "
            f"elbo={self.elbo:.6g}, elbo_se={self.elbo_se:.2g}, pareto_k={self.pareto_k:.2f})"
        )
