r"""``pb.LatentGaussian``: latent Gaussian models with sparse precisions, of 10⁴ to 10⁵ coordinates.

    θ | φ ~ N(m(φ), Q(φ)⁻¹),   Cθ = 0,        y ~ ∏ᵢ tᵢ(aᵢᵀθ + bᵢ; φ),        φ ~ p(φ)

Random walks, autoregressions, conditional autoregressions on graphs and stochastic differential equations on meshes
are of this kind. The precision is a function of φ that returns a sparse matrix; a PyMC graph would store it as a dense
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import LinAlgError
from scipy import sparse
from scipy.linalg import qr

from ppl_backends.errors import ModelError
from ppl_backends.numerics.differences import central_differences
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.numerics.sparse_cholesky import SparseCholesky
from ppl_backends.options import shown
from ppl_backends.targets.factors.factorisation import Factors
from ppl_backends.targets.factors.prior import vector
from ppl_backends.targets.factors.sites import Array, SiteFamily
from ppl_backends.targets.protocol import BaseTarget, Evaluation, as_points, sanitize

INTRINSIC = 1e-8  # largest relative size of a precision along constraints that counts as zero


class LatentFactors(NamedTuple):
    """exp(c) N(θ; m, Q⁻¹) ∏ tᵢ(aᵢᵀθ + bᵢ) at one φ; with constraints, the Gaussian is that on Cθ = 0."""

    mean: Array  # (d,)
    precision: sparse.csc_matrix  # (d, d)
    design: sparse.csr_matrix  # (n, d)
    offset: Array  # (n,)
    sites: SiteFamily
    log_constant: float  # including that of the Gaussian
    constraints: Array | None = None  # (k, d)

    @classmethod
    def of_factors(cls, factors: Factors) -> LatentFactors:
        """Return the factors of a model unchanged."""
        prior = factors.prior
        precision = sparse.diags(prior.precision) if prior.precision.ndim == 1 else prior.precision
        return cls(
            prior.mean,
            sparse.csc_matrix(precision),
            sparse.csr_matrix(factors.design),
            factors.offset,
            factors.sites,
            factors.log_constant + 0.5 * (prior.log_determinant - prior.rank * LOG_2PI),
        )

    def log_likelihood(self, theta: Array) -> float:
        """Return Σ log tᵢ at one θ ``(d,)``."""
        return float(self.sites.log_site((self.design @ theta + self.offset)[None])[0].sum())

    def log_prior(self, theta: Array) -> float:
        """Return c + log N(θ; m, Q⁻¹) at one θ ``(d,)``."""
        apart = theta - self.mean
        return self.log_constant - 0.5 * float(apart @ (self.precision @ apart))


class LatentGaussian(BaseTarget):
    """A latent Gaussian model with a sparse precision, for :func:`~ppl_backends.fit_inla`; without constraints, a target.

    Its coordinates are the hyper-parameters φ ``(p,)``, then the latent variables θ ``(d,)``.

    Parameters
    ----------
    precision : scipy sparse matrix (d, d), or callable
        Q, or ``precision(phi)`` that returns it, with ``phi`` ``(p,)``.
    likelihood : SiteFamily, or callable
        The sites t, such as ``Poisson(y)`` or ``Logit(y)`` of :mod:`ppl_backends.targets.factors`, or
        ``FunctionSites(function, n)`` for log t as a function of the predictors; or ``likelihood(phi)`` that returns them.
    design : array or scipy sparse matrix (n, d), optional
        The rows aᵢ; the identity by default.
    offset : float or array (n,)
    mean : float or array (d,)
    constraints : array (k, d), optional
        C of Cθ = 0. If Q is singular, as that of a random walk, the rows span its null space.
    hyper_prior : callable, optional
        ``hyper_prior(phi)`` returns log p(φ), on the whole real line, for example with the Jacobian of a logarithm.
    hyper_start : array (p,), optional
        Initial φ. None by default: there are no hyper-parameters.
    hyper_names : sequence of str, optional

    Raises
    ------
    ModelError
        If shapes disagree, or Q is not symmetric.

    Examples
    --------
    A first-order random walk of Poisson counts with its precision exp(φ).

    >>> import numpy as np, ppl_backends as pb
    >>> from scipy import sparse, stats
    >>> from ppl_backends.targets.factors import Poisson
    >>> steps = sparse.diags_array([-1.0, 1.0], offsets=[0, 1], shape=(49, 50))
    >>> walk = sparse.csc_matrix(steps.T @ steps + 0.01 * sparse.eye_array(50))
    >>> y = np.random.default_rng(1).poisson(np.exp(1 + np.sin(np.arange(50) / 8)))
    >>> model = pb.LatentGaussian(
    ...     lambda phi: np.exp(phi[0]) * walk,
    ...     Poisson(y),
    ...     hyper_start=[1.0],
    ...     hyper_prior=lambda phi: stats.norm.logpdf(phi[0], 2, 2),
    ... )
    >>> q = pb.fit_inla(model, progressbar=False)
    >>> q.mean.shape, q.converged
    ((51,), True)
    """

    label = "latent Gaussian model"
    has_split = True

    def __init__(
        self,
        precision: Any,
        likelihood: Any,
        *,
        design: Any = None,
        offset: Any = 0.0,
        mean: Any = 0.0,
        constraints: Any = None,
        hyper_prior: Callable[[Array], float] | None = None,
        hyper_start: Any = None,
        hyper_names: Sequence[str] | None = None,
    ) -> None:
        if not (callable(precision) or sparse.issparse(precision) or np.ndim(precision) == 2):
            raise ModelError(
                f"precision={shown(precision)}: expected a matrix (d, d), or a function of phi that returns it"
            )
        if not (callable(likelihood) or isinstance(likelihood, SiteFamily)):
            raise ModelError(f"likelihood={shown(likelihood)}: expected sites such as Poisson(y), or a function of phi")
        p = 0 if hyper_start is None else np.size(hyper_start)
        self.start = vector([] if hyper_start is None else hyper_start, p, "hyper_start")
        self._precision, self._likelihood, self._hyper_prior = precision, likelihood, hyper_prior
        self.hyper_names = tuple(hyper_names or [f"hyper[{j}]" for j in range(p)])
        if len(self.hyper_names) != p:
            raise ModelError(f"{len(self.hyper_names)} hyper_names for hyper_start of {p} values")
        d = self._matrix(self.start).shape[0]
        self._design = sparse.csr_matrix(sparse.identity(d) if design is None else design, dtype=np.float64)
        n = self._design.shape[0]
        if self._design.shape[1] != d or self._sites(self.start).n != n:
            raise ModelError(
                f"design {self._design.shape}, {self._sites(self.start).n} sites and a precision of {d} coordinates disagree"
            )
        self._offset, self._mean = vector(offset, n, "offset"), vector(mean, d, "mean")
        self._constraints = None if constraints is None else np.atleast_2d(np.asarray(constraints, dtype=np.float64))
        if self._constraints is not None and self._constraints.shape[1] != d:
            raise ModelError(f"constraints have shape {self._constraints.shape}; expected (k, {d})")
        self.dim = p + d
        self.names = (*self.hyper_names, *(f"latent[{j}]" for j in range(d)))
        self.hyper_coordinates, self.coordinates = np.arange(p), np.arange(p, p + d)

    @property
    def latent_gaussian(self) -> LatentGaussian:
        """Return the description itself."""
        return self

    def _matrix(self, phi: Array) -> sparse.csc_matrix:
        matrix = sparse.csc_matrix(self._precision(phi) if callable(self._precision) else self._precision)
        if matrix.shape[0] != matrix.shape[1]:
            raise ModelError(f"precision has shape {matrix.shape}; expected (d, d)")
        if abs(matrix - matrix.T).max() > 1e-8 * abs(matrix).max():
            raise ModelError(f"precision at {phi} is not symmetric")
        return matrix

    def _sites(self, phi: Array) -> SiteFamily:
        return self._likelihood if isinstance(self._likelihood, SiteFamily) else self._likelihood(phi)

    def log_hyper_prior(self, phi: Array) -> float:
        """Return log p(φ)."""
        return 0.0 if self._hyper_prior is None else float(self._hyper_prior(np.asarray(phi, dtype=np.float64)))

    def at(self, phi: Any) -> LatentFactors:
        """Return the factors of θ given φ.

        Raises
        ------
        ModelError
            If the precision is not positive definite, except for singularity along the constraints.
        """
        phi = np.asarray(phi, dtype=np.float64)
        matrix = self._matrix(phi)
        rank, mean = matrix.shape[0], self._mean
        if self._constraints is not None:
            rank, mean = rank - len(self._constraints), constrained_mean(mean, matrix, self._constraints)
        constant = 0.5 * (log_determinant(matrix, self._constraints) - rank * LOG_2PI)
        return LatentFactors(mean, matrix, self._design, self._offset, self._sites(phi), constant, self._constraints)

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation:
        """Return log p(φ) + log p(θ | φ) and the log likelihood; it needs one factor of the precision per point."""
        x = as_points(x, self.dim)
        if self._constraints is not None:
            raise ModelError(
                "a latent Gaussian model with constraints is not a density in its coordinates; use fit_inla"
            )
        prior, likelihood = self._values(x)
        if not gradient:
            return Evaluation(*(sanitize(part)[0] for part in (prior, likelihood)))
        p = len(self.start)
        slopes, proper = np.zeros((2, len(x), self.dim)), np.flatnonzero(np.isfinite(prior))
        if p:
            joined = central_differences(lambda points: np.stack(self._values(points), axis=1), x[proper], np.arange(p))
            slopes[:, proper, :p] = np.moveaxis(joined, 2, 0)
        for k in proper:
            given, theta = self.at(x[k, :p]), x[k, p:]
            slopes[0, k, p:] = -(given.precision @ (theta - given.mean))
            first = given.sites.derivatives((given.design @ theta + given.offset)[None])[0][0]
            slopes[1, k, p:] = given.design.T @ first
        prior, prior_slope = sanitize(prior, slopes[0])
        likelihood, slope = sanitize(likelihood, slopes[1])
        return Evaluation(prior, likelihood, prior_slope, slope)

    def _values(self, x: Array) -> tuple[Array, Array]:
        """Return the log prior and the log likelihood ``(n,)`` of all points; zero density if Q is not proper."""
        p = len(self.start)
        prior, likelihood = np.full(len(x), -np.inf), np.zeros(len(x))
        for k, point in enumerate(x):
            try:
                given = self.at(point[:p])
            except (ModelError, LinAlgError):
                continue
            prior[k] = self.log_hyper_prior(point[:p]) + given.log_prior(point[p:])
            likelihood[k] = given.log_likelihood(point[p:])
        return prior, likelihood

    def constrain(self, x: Array, rng: np.random.Generator | None = None) -> dict[str, Array]:
        """Return ``hyper`` ``(n, p)``, if there are any, and ``latent`` ``(n, d)``."""
        x, p = as_points(x, self.dim), len(self.start)
        return ({"hyper": x[:, :p]} if p else {}) | {"latent": x[:, p:]}

    def unconstrain(self, values: Any) -> Array:
        parts = [np.asarray(values[name]) for name in (["hyper"] if len(self.start) else []) + ["latent"]]
        return as_points(np.concatenate(parts, axis=1), self.dim)

    def initial_points(self, n: int, rng: np.random.Generator) -> Array:
        return np.concatenate([self.start, self._mean]) + 0.1 * rng.standard_normal((n, self.dim))


def constrained_mean(mean: Array, precision: sparse.csc_matrix, constraints: Array) -> Array:
    """Return the mean of N(m, Q⁻¹) given Cθ = 0; with m itself, the density on Cθ = 0 is not normalised."""
    apart = constraints @ mean
    if not np.any(apart):
        return mean
    along = constraints.T
    if not _is_intrinsic(precision, constraints):
        along = SparseCholesky(precision).solve(np.ascontiguousarray(along))  # Q⁻¹Cᵀ
    return mean - along @ np.linalg.solve(constraints @ along, apart)


def _is_intrinsic(precision: sparse.csc_matrix, constraints: Array) -> bool:
    """Return whether a precision is singular along the constraints."""
    along = np.abs(precision @ constraints.T).max()
    return bool(along <= INTRINSIC * abs(precision).max() * np.abs(constraints).max())


def log_determinant(precision: sparse.csc_matrix, constraints: Array | None) -> float:
    """Return the log determinant of a precision, on Cθ = 0 if there are constraints.

    If Q is singular along the rows of C, it is the product of the other eigenvalues: the determinant of the matrix
    without as many rows and columns as C has rows, times det(C Cᵀ)/det(C_S)², C_S being the columns left out.
    """
    try:
        if constraints is None:
            return SparseCholesky(precision).log_determinant
        gram = constraints @ constraints.T
        if not _is_intrinsic(precision, constraints):
            factor = SparseCholesky(precision)
            inner = constraints @ factor.solve(np.ascontiguousarray(constraints.T))
            return factor.log_determinant + np.linalg.slogdet(inner)[1] - np.linalg.slogdet(gram)[1]
        left_out = qr(constraints, mode="r", pivoting=True)[1][: len(constraints)]
        kept = np.setdiff1d(np.arange(precision.shape[0]), left_out)
        rest = SparseCholesky(precision[kept][:, kept]).log_determinant
        return float(rest + np.linalg.slogdet(gram)[1] - 2 * np.linalg.slogdet(constraints[:, left_out])[1])
    except LinAlgError:
        raise ModelError("the precision is not positive definite; give its null space as constraints=") from None
