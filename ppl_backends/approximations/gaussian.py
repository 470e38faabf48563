"""Gaussian approximations of a posterior on the unconstrained space.

A Gaussian is held by its mean and by a factor of its covariance: a lower Cholesky factor (``"dense"``, ``dim²``
numbers) or the standard deviations alone (``"diagonal"``, ``dim`` numbers). Both draw, whiten and evaluate through
that factor, so that nothing is ever inverted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, solve_triangular
from scipy.special import ndtri

from ppl_backends.errors import ModelError
from ppl_backends.options import check_memory, checked
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.targets.integral import stated_integral
from ppl_backends.targets.protocol import Array, BaseTarget, as_points

__all__ = ["MAX_DENSE_DIM", "GaussianApproximation"]

MAX_DENSE_DIM = 4000
"""Largest dimension held with a full covariance: the factor then takes 128 MB."""

LOG_2PI = float(np.log(2 * np.pi))


class GaussianApproximation:
    """A normal distribution N(mean, cov) on the unconstrained space, as Laplace, EP and Gaussian VI return it.

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
    names : sequence of str, optional
        Unconstrained names; those of ``target`` by default.
    target : BaseTarget, optional
        What the approximation is of; takes draws to model space.
    method : str
        What made it, e.g. ``"laplace"``.
    converged : bool
    log_evidence : float
        NaN where the method has none.
    diagnostics : mapping of str to float, optional
        The method's own figures.
    accuracy : str
        ``"approximate"``, unless the target is known to be Gaussian.
    trouble : str
        Why it did not converge; empty where it did.

    Attributes
    ----------
    dim : int
    representation : {"dense", "diagonal"}
        Dense up to ``MAX_DENSE_DIM`` coordinates; above it only the diagonal is accepted.

    Raises
    ------
    ModelError
        If shapes disagree or the matrix is not positive definite.

    Examples
    --------
    >>> import numpy as np
    >>> q = GaussianApproximation([0.0, 1.0], cov=[[1.0, 0.5], [0.5, 2.0]])
    >>> q
    GaussianApproximation(dim=2, representation='dense', method='laplace', converged=True, log_evidence=nan)
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
        names: Sequence[str] | None = None,
        target: BaseTarget | None = None,
        method: str = "laplace",
        converged: bool = True,
        log_evidence: float = float("nan"),
        diagnostics: Mapping[str, float] | None = None,
        accuracy: str = "approximate",
        trouble: str = "",
    ) -> None:
        self.mean: Array = np.array(mean, dtype=np.float64, ndmin=1)
        self.dim = len(self.mean)
        self._factor = _covariance_factor(self.dim, cov, precision, cholesky)
        if not np.isfinite(self.mean).all() or not np.isfinite(self._factor).all():
            raise ModelError(f"the mean or covariance of a Gaussian over {self.dim} coordinates is not finite")
        if names is None:
            names = target.names if target is not None else [f"x[{j}]" for j in range(self.dim)]
        self.names = tuple(names)
        if len(self.names) != self.dim:
            raise ModelError(f"{len(self.names)} names for a Gaussian over {self.dim} coordinates")
        self.target = target
        self.method = method
        self.converged = bool(converged)
        self.log_evidence = float(log_evidence)
        self.diagnostics = dict(diagnostics or {})
        self.accuracy, self.trouble = accuracy, trouble

    @property
    def representation(self) -> str:
        """``"dense"`` (Cholesky factor) or ``"diagonal"`` (standard deviations)."""
        return "dense" if self._factor.ndim == 2 else "diagonal"

    @property
    def cholesky(self) -> Array:
        """Lower factor ``(dim, dim)`` of the covariance, or the standard deviations ``(dim,)`` where diagonal."""
        return self._factor

    @property
    def cov(self) -> Array:
        """Covariance ``(dim, dim)``."""
        return self._factor @ self._factor.T if self._factor.ndim == 2 else np.diag(self._factor**2)

    @property
    def precision(self) -> Array:
        """Inverse covariance ``(dim, dim)``."""
        if self._factor.ndim == 1:
            return np.diag(self._factor**-2.0)
        return cho_solve((self._factor, True), np.eye(self.dim))

    @property
    def sd(self) -> Array:
        """Marginal standard deviations ``(dim,)``."""
        return np.sqrt((self._factor**2).sum(axis=1)) if self._factor.ndim == 2 else self._factor.copy()

    @property
    def log_determinant(self) -> float:
        """Log determinant of the covariance."""
        diagonal = np.diagonal(self._factor) if self._factor.ndim == 2 else self._factor
        return 2.0 * float(np.log(diagonal).sum())

    def color(self, z: Array) -> Array:
        """Standard normal rows ``z`` ``(n, dim)`` to rows of this Gaussian: mean + L z."""
        return self.mean + (z @ self._factor.T if self._factor.ndim == 2 else z * self._factor)

    def whiten(self, x: Array) -> Array:
        """Inverse of :meth:`color`: L⁻¹ (x − mean), ``(n, dim)``."""
        centred = as_points(x, self.dim) - self.mean
        if self._factor.ndim == 1:
            return centred / self._factor
        return solve_triangular(self._factor, centred.T, lower=True, check_finite=False).T

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """``n`` independent draws ``(n, dim)``."""
        return self.color(rng.standard_normal((n, self.dim)))

    def from_uniform(self, u: Array) -> Array:
        """Points of the unit cube ``(n, dim)`` to points of this Gaussian, by the inverse normal distribution function.

        The cube's faces, which scrambled nets can touch, are moved inwards by 2⁻⁵³.
        """
        return self.color(ndtri(np.clip(as_points(u, self.dim), 2.0**-53, 1 - 2.0**-53)))

    def log_density(self, x: Array) -> Array:
        """Normalised log density ``(n,)`` at points ``(n, dim)``."""
        z = self.whiten(x)
        return self._log_density_at(np.einsum("nd,nd->n", z, z))

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Normalised log density ``(n,)`` and its gradient −Σ⁻¹ (x − mean), ``(n, dim)``."""
        centred = as_points(x, self.dim) - self.mean
        # One product in place of two triangular solves, which take three times as long.
        gradient = -centred / self._factor**2 if self._factor.ndim == 1 else -centred @ self._precision_once
        square = -np.einsum("nd,nd->n", centred, gradient)
        return self._log_density_at(square), gradient

    @cached_property
    def _precision_once(self) -> Array:
        return self.precision

    def _log_density_at(self, square: Array) -> Array:
        """From squared Mahalanobis distances."""
        return -0.5 * (square + self.dim * LOG_2PI + self.log_determinant)

    def marginal(self, indices: Any) -> GaussianApproximation:
        """The Gaussian of the coordinates ``indices`` ``(k,)``."""
        kept = np.atleast_1d(indices)
        cov = self._factor[kept] ** 2 if self._factor.ndim == 1 else self._factor[kept] @ self._factor[kept].T
        return GaussianApproximation(
            self.mean[kept], cov, names=[self.names[j] for j in kept], method=self.method, converged=self.converged
        )

    def conditional(self, indices: Any, values: Any) -> GaussianApproximation:
        """The Gaussian of the other coordinates given that those at ``indices`` ``(k,)`` equal ``values`` ``(k,)``."""
        given = np.atleast_1d(indices)
        free = np.setdiff1d(np.arange(self.dim), given)
        names = [self.names[j] for j in free]
        about: dict[str, Any] = {"names": names, "method": self.method, "converged": self.converged}
        if self._factor.ndim == 1:
            return GaussianApproximation(self.mean[free], cholesky=self._factor[free], **about)
        cov = self.cov
        gain = cho_solve(cho_factor(cov[np.ix_(given, given)]), cov[np.ix_(given, free)]).T
        mean = self.mean[free] + gain @ (np.atleast_1d(values) - self.mean[given])
        return GaussianApproximation(mean, cov[np.ix_(free, free)] - gain @ cov[np.ix_(given, free)], **about)

    @checked()
    def to_inference_data(self, draws: int = 1000, chains: int = 1, random_seed: SeedLike = None) -> Any:
        """Independent draws in model space as InferenceData, marked as approximate.

        Parameters
        ----------
        draws : int
            Draws a chain. The chains are independent too: convergence diagnostics say nothing here.
        chains : int
        random_seed : int or numpy.random.Generator, optional

        Returns
        -------
        arviz.InferenceData or xarray.DataTree
            ``posterior`` has the attributes ``method``, ``accuracy``, ``converged`` and, where known, ``log_evidence``.
        """
        return draws_in_model_space(self, draws, chains, random_seed)

    def __repr__(self) -> str:
        return (
            f"GaussianApproximation(dim={self.dim}, representation={self.representation!r}, method={self.method!r}, "
            f"converged={self.converged}, log_evidence={self.log_evidence:.6g})"
        )


def draws_in_model_space(approximation: Any, draws: int, chains: int, random_seed: SeedLike) -> Any:
    """Independent draws of an approximation as InferenceData."""
    from ppl_backends.results import build_inference_data

    check_memory(draws, chains, approximation.dim)
    started = time.perf_counter()
    rng, generated = spawn_generators(random_seed, 2)
    target = approximation.target if approximation.target is not None else _unnamed_target(approximation.names)
    integral = stated_integral(target)
    return build_inference_data(
        target,
        approximation.sample(chains * draws, rng).reshape(chains, draws, approximation.dim),
        method=approximation.method,
        accuracy=approximation.accuracy,
        sampling_time=time.perf_counter() - started,
        rng=generated,
        attrs={
            "converged": int(approximation.converged),
            "log_evidence": approximation.log_evidence if np.isfinite(approximation.log_evidence) else None,
            **({} if integral is None else integral.attrs(approximation.log_evidence)),
        },
    )


def _covariance_factor(dim: int, cov: Any, precision: Any, factor: Any) -> Array:
    """Lower Cholesky factor of the covariance, or standard deviations, from whichever matrix was given."""
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
    try:
        if kind == "precision":
            matrix = cho_solve((cholesky(matrix, lower=True), True), np.eye(dim))
        return cholesky(matrix, lower=True)
    except (LinAlgError, ValueError) as error:
        raise ModelError(f"the {kind} of a Gaussian over {dim} coordinates is not positive definite: {error}") from None


def _unnamed_target(names: Sequence[str]) -> BaseTarget:
    """A stand-in for an approximation of no target: one variable ``x`` on the unconstrained space."""
    target = BaseTarget()
    target.dim, target.names = len(names), tuple(names)
    return target
