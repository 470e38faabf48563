r"""The normal distribution N(mean, F Fᵀ), given by its mean and a factor of its covariance.

=============  ==========================================  =====================================
``dense``      F triangular                                ``dim²`` numbers
``diagonal``   F = diag(s)                                 ``dim`` numbers, the standard deviations
``low_rank``   F = diag(s)(I + C Cᵀ), C ``(dim, r)``       ``(1 + r) dim`` numbers
=============  ==========================================  =====================================

It samples, whitens and evaluates through the factor, so that no covariance is inverted. Kernels use the same object as
the scale of a posterior: in coordinates F⁻¹(x − mean) the posterior is roughly isotropic.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, inv, solve_triangular
from scipy.linalg.lapack import dtrtri
from scipy.special import ndtri

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array

MAX_DENSE_DIM = 4000
"""Largest dimension with a full covariance: the factor then takes 128 MB."""

LOG_2PI = float(np.log(2 * np.pi))

_SQUARES = 8


def suffice_for_covariance(n: int, dim: int) -> bool:
    """Return whether so many points suffice to fit a covariance, which reduces the overlap by about exp(−dim²/4n)."""
    return n * _SQUARES >= dim**2


def normal_rule(n: int) -> tuple[Array, Array]:
    """Return ``n`` nodes and weights of the Gauss–Hermite rule for means under a standard normal; the weights sum to one."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / weights.sum()


def inside_cube(u: Any) -> Array:
    """Return points of the unit cube; those on its faces, which scrambled nets can touch, are moved inwards by 2⁻⁵³."""
    return np.clip(u, 2.0**-53, 1 - 2.0**-53)


@dataclass(frozen=True, eq=False, repr=False)
class Gaussian:
    """A normal distribution, given by a triangular ``factor`` F (``upper`` if so marked) or standard deviations s.

    ``directions`` ``(dim, r)`` are C of the low-rank form, with standard deviations only.
    """

    mean: Any
    factor: Array
    directions: Array | None = None
    upper: bool = False

    @classmethod
    def from_covariance(cls, mean: Array, cov: Array, precision: Array | None = None) -> Gaussian:
        """Return the Gaussian with covariance ``cov`` ``(dim, dim)``; its inverse is ``precision`` if given."""
        q = Gaussian(mean, cholesky(cov, lower=True))
        if precision is not None:
            vars(q)["precision"] = precision
        return q

    @staticmethod
    @np.errstate(all="ignore")
    def from_natural(precision: Array, shift: Array) -> Gaussian | None:
        """Return the Gaussian ∝ exp(rᵀx − ½xᵀQx) of natural parameters ``shift`` r and ``precision`` Q.

        None if Q is not positive definite, or singular within rounding error.
        """
        if not (np.isfinite(precision).all() and np.isfinite(shift).all()):
            return None
        try:
            lower = cholesky(precision, lower=True, check_finite=False)
        except LinAlgError:
            return None
        # The share of each pivot that earlier columns leave; at rounding error the matrix is singular.
        share = np.diagonal(lower) ** 2
        if np.any(share <= 4 * len(shift) * np.finfo(float).eps * np.diagonal(precision)):
            return None
        root, info = dtrtri(lower, lower=1)
        if info != 0 or not np.isfinite(root).all():
            return None
        root = np.tril(root)
        return Gaussian(root.T @ (root @ shift), root.T, upper=True)

    @property
    def dim(self) -> int:
        """Return the number of coordinates."""
        return len(self.factor)

    @property
    def representation(self) -> str:
        """Return ``"dense"``, ``"diagonal"`` or ``"low_rank"``."""
        return "dense" if self.factor.ndim == 2 else "diagonal" if self.directions is None else "low_rank"

    @property
    def cholesky(self) -> Array:
        """Return the lower factor ``(dim, dim)`` of the covariance, or the standard deviations ``(dim,)`` if diagonal."""
        return cholesky(self.cov, lower=True) if self.upper or self.directions is not None else self.factor

    @property
    def cov(self) -> Array:
        """Return the covariance ``(dim, dim)``."""
        if self.representation == "diagonal":
            return np.diag(self.factor**2)
        if self.dim > MAX_DENSE_DIM:
            raise ModelError(f"the covariance of {self.dim} coordinates is too large; use marginal(indices).cov or sd")
        root = self._rows(np.arange(self.dim)) if self.directions is not None else self.factor
        return root @ root.T

    @cached_property
    def precision(self) -> Array:
        """Return the inverse covariance ``(dim, dim)``."""
        if self.representation == "diagonal":
            return np.diag(self.factor**-2.0)
        lower = self.directions is None and not self.upper
        return cho_solve((self.factor, True), np.eye(self.dim)) if lower else inv(self.cov)

    @property
    def sd(self) -> Array:
        """Return the marginal standard deviations ``(dim,)``."""
        if self.factor.ndim == 2:
            return np.sqrt((self.factor**2).sum(axis=1))
        return self.factor.copy() if self.directions is None else self.factor * _widened_norms(self.directions)

    @cached_property
    def log_determinant(self) -> float:
        """Return the log determinant of the covariance."""
        value = float(np.log(np.diagonal(self.factor) if self.factor.ndim == 2 else self.factor).sum())
        if self.directions is not None:
            c = self.directions
            value += float(np.linalg.slogdet(np.eye(c.shape[1]) + c.T @ c)[1])
        return 2.0 * value

    def take(self, rows: Any, n: int) -> Gaussian:
        """Return the scale of some of ``n`` points, which is the same for all."""
        return self

    def colour(self, z: Array) -> Array:
        """Return ``F z`` for every row: whitened displacements to displacements of x."""
        if self.directions is not None:
            z = z + (z @ self.directions) @ self.directions.T
        return z @ self.factor.T if self.factor.ndim == 2 else z * self.factor

    def whiten_gradient(self, gradient: Array) -> Array:
        """Return ``Fᵀ g`` for every row: gradients in whitened coordinates."""
        if self.factor.ndim == 2:
            return gradient @ self.factor
        scaled = gradient * self.factor
        return scaled if self.directions is None else scaled + (scaled @ self.directions) @ self.directions.T

    def place(self, z: Array) -> Array:
        """Return the points with whitened coordinates ``z``, mean + F z; for standard normal rows these are draws."""
        return self.mean + self.colour(z)

    def whiten(self, x: Array) -> Array:
        """Return ``F⁻¹(x − mean)`` for every row, the inverse of :meth:`place`."""
        centred = x - self.mean
        if self.factor.ndim == 2:
            return solve_triangular(self.factor, centred.T, lower=not self.upper, check_finite=False).T
        scaled = centred / self.factor
        return scaled if self.directions is None else widen_inverse(scaled, self.directions)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` independent draws ``(n, dim)``."""
        return self.place(rng.standard_normal((n, self.dim)))

    def from_uniform(self, u: Array) -> Array:
        """Return the images of points of the unit cube ``(n, dim)`` under the inverse normal distribution."""
        return self.place(ndtri(inside_cube(u)))

    def log_density(self, x: Array) -> Array:
        """Return the normalised log density ``(n,)`` at points ``(n, dim)``."""
        z = self.whiten(x)
        return self._log_density_at(np.einsum("nd,nd->n", z, z))

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return the normalised log density ``(n,)`` and its gradient −Σ⁻¹ (x − mean), ``(n, dim)``."""
        if self.directions is not None:
            z = self.whiten(x)
            return self._log_density_at(np.einsum("nd,nd->n", z, z)), -widen_inverse(z, self.directions) / self.factor
        centred = x - self.mean
        # One product instead of two triangular solves, which take three times as long.
        gradient = -centred / self.factor**2 if self.factor.ndim == 1 else -centred @ self.precision
        return self._log_density_at(-np.einsum("nd,nd->n", centred, gradient)), gradient

    def _log_density_at(self, square: Array) -> Array:
        """Return the log density from squared Mahalanobis distances."""
        return -0.5 * (square + self.dim * LOG_2PI + self.log_determinant)

    @property
    def log_normaliser(self) -> float:
        """Return log ∫ exp(rᵀx − ½xᵀQx) dx = (dim/2) log 2π − ½ log det Q + ½ rᵀQ⁻¹r of the natural parameters."""
        return -float(self.log_density(np.zeros((1, self.dim)))[0])

    def marginal(self, indices: Any) -> Gaussian:
        """Return the Gaussian of the coordinates ``indices`` ``(k,)``."""
        kept = np.atleast_1d(indices)
        if self.representation == "diagonal":
            return Gaussian(self.mean[kept], self.factor[kept])
        rows = self._rows(kept)
        return Gaussian.from_covariance(self.mean[kept], rows @ rows.T)

    def conditional(self, indices: Any, values: Any, free: Any = None) -> Gaussian:
        """Return the Gaussian of the others, in the order of ``free``, given ``values`` of the coordinates ``indices``."""
        given = np.atleast_1d(indices)
        free = np.setdiff1d(np.arange(self.dim), given) if free is None else free
        if self.representation == "diagonal":
            return Gaussian(self.mean[free], self.factor[free])
        cov = self.cov
        gain = cho_solve(cho_factor(cov[np.ix_(given, given)]), cov[np.ix_(given, free)]).T
        mean = self.mean[free] + gain @ (np.atleast_1d(values) - self.mean[given])
        return Gaussian.from_covariance(mean, cov[np.ix_(free, free)] - gain @ cov[np.ix_(given, free)])

    def kl_to(self, other: Gaussian) -> float:
        """Return the divergence KL(self ‖ ``other``)."""
        shift, precision = self.mean - other.mean, other.precision
        if self.representation == "diagonal":
            trace = float(np.diagonal(precision) @ self.factor**2)
        else:
            root = self._rows(np.arange(self.dim)) if self.directions is not None else self.factor
            trace = float(np.einsum("ij,ij->", root, precision @ root))
        square = float(shift @ precision @ shift)
        return 0.5 * (square + trace - self.dim + other.log_determinant - self.log_determinant)

    def _rows(self, kept: Any) -> Array:
        """Return rows of F."""
        if self.directions is None:
            return self.factor[kept]
        c = self.directions
        return self.factor[kept, None] * (np.eye(self.dim)[kept] + c[kept] @ c.T)


def widen_inverse(z: Array, c: Array) -> Array:
    """Return rows (I + C Cᵀ)⁻¹ z, by Woodbury's identity."""
    return z - np.linalg.solve(np.eye(c.shape[1]) + c.T @ c, (z @ c).T).T @ c.T


def _widened_norms(c: Array) -> Array:
    """Return the norms of the rows of I + C Cᵀ ``(dim,)``."""
    return np.sqrt(1 + 2 * (c**2).sum(axis=1) + np.einsum("jr,rs,js->j", c, c.T @ c, c))
