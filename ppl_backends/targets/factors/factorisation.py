"""Factors: a posterior written as p(θ, y) = exp(c) · N(θ; m₀, Q₀⁻¹) · ∏ᵢ tᵢ(aᵢᵀθ + bᵢ), and the target that it defines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ppl_backends.errors import ModelError, PriorSamplingError
from ppl_backends.numerics.arrays import for_kernels
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.targets.factors.design import as_design
from ppl_backends.targets.factors.families import Normal
from ppl_backends.targets.factors.prior import GaussianPrior
from ppl_backends.targets.factors.sites import (
    Array,
    CompiledFamily,
    FunctionSites,
    PoweredSites,
    SiteFamily,
    StackedSites,
)
from ppl_backends.targets.observations import Observations
from ppl_backends.targets.protocol import BaseTarget, Evaluation, as_points, sanitize

BLOCK_BYTES = 2**26
"""Largest size of one temporary of points × sites."""
COMPILED_SITES, COMPILED_DIM = 20_000, 32
"""With at least this many sites in at most this many coordinates, a compiled loop sums them without temporaries."""

_ROUNDING = 1e-12  # of the precision that normal observations add; less of it is left by taking them out


class Factors:
    """The factors of a posterior in which every non-Gaussian term depends on one linear predictor.

    p(θ, y) = exp(c) · N(θ; m₀, Q₀⁻¹) · ∏ᵢ tᵢ(aᵢᵀθ + bᵢ), with c the ``log_constant``, m₀ the ``prior_mean`` and Q₀ the
    ``prior_precision``.

    Parameters
    ----------
    design : array or scipy sparse matrix (n, d), or a sequence of them
        Rows aᵢ. A sequence is stacked and needs a sequence of sites.
    offset : float or array (n,), or None
        The bᵢ.
    log_site : SiteFamily, a sequence of them, or callable
        The log tᵢ. A callable is ``log_site(s)`` or ``log_site(s, rows)`` with ``s`` ``(k, n)`` and returns ``(k, n)``;
        with ``rows`` ``(m,)``, which may repeat, ``s`` is ``(k, m)`` and only those sites are evaluated.
    prior_mean : float or array (d,)
    prior_precision : float, array (d,) (a diagonal), or matrix (d, d), dense or sparse
        May be singular along directions that sites cover; the Gaussian is then normalised on the range of Q₀.
    log_constant : float
    observed : array (n,) of bool, optional
        Which sites are observations; the others (such as a Cauchy prior) belong to the prior. All by default.
    site_derivatives : callable, optional
        Called as ``log_site``; returns the first and second derivative in s. Differences are taken otherwise.
    names : sequence of str, optional
        Names of the coordinates of θ.
    normal_rows : tuple of (design, offset, Normal, array of cᵢ), optional
        Observations exp(cᵢ) N(yᵢ; aᵢᵀθ + bᵢ, sdᵢ²) in the Gaussian part; leave-one-out densities need them.
    n_auxiliary : int
        Number of last coordinates that are auxiliary variables, to be integrated out, and not the model's.

    Raises
    ------
    ModelError
        If shapes disagree or numbers are not finite.

    Examples
    --------
    A probit regression with a N(0, 4) prior on both coefficients.

    >>> import numpy as np
    >>> from ppl_backends.targets.factors import Factors, Probit
    >>> X = np.array([[1.0, -0.5], [1.0, 0.3], [1.0, 1.2]])
    >>> factors = Factors(X, 0.0, Probit([0, 1, 1]), prior_mean=0.0, prior_precision=0.25)
    >>> factors.n_sites, factors.dim
    (3, 2)
    >>> factors.log_density(np.zeros((1, 2))).round(4)
    array([-5.3036])
    """

    hyper_names: tuple[str, ...] = ()  # none: they are given, as in ConditionalFactors at every φ

    def __init__(
        self,
        design: Any,
        offset: Any,
        log_site: SiteFamily | Sequence[SiteFamily] | Callable[..., Array],
        prior_mean: Any,
        prior_precision: Any,
        *,
        log_constant: float = 0.0,
        observed: Any = None,
        site_derivatives: Callable[..., tuple[Array, Array]] | None = None,
        names: Sequence[str] | None = None,
        normal_rows: tuple[Any, Array, Normal, Array] | None = None,
        n_auxiliary: int = 0,
    ) -> None:
        self.n_auxiliary = n_auxiliary
        self.design = stacked_design(design)
        self.n_sites, self.dim = self.design.shape
        self.sites = _site_family(log_site, self.n_sites, site_derivatives)
        if self.sites.n == 1 and self.n_sites > 1:
            self.sites = self.sites.take(np.zeros(self.n_sites, dtype=int))
        if self.sites.n != self.n_sites:
            raise ModelError(f"{self.sites.n} sites for a design of {self.n_sites} rows; the numbers must be equal")
        self.offset = np.ascontiguousarray(_offset(offset, self.n_sites))
        self.prior = GaussianPrior(prior_mean, prior_precision, self.dim)
        self.log_constant = float(log_constant)
        if not np.isfinite(self.log_constant):
            raise ModelError(f"log_constant={log_constant}: it must be finite")
        self.observed = np.ones(self.n_sites, dtype=bool) if observed is None else np.asarray(observed, dtype=bool)
        if self.observed.shape != (self.n_sites,):
            raise ModelError(f"observed has shape {self.observed.shape}; expected ({self.n_sites},)")
        self.names = tuple(names) if names is not None else tuple(f"theta[{j}]" for j in range(self.dim))
        if len(self.names) != self.dim:
            raise ModelError(f"{len(self.names)} names for {self.dim} coordinates")
        self.normal_rows = normal_rows

    @property
    def start(self) -> Array:
        """Return a φ of no elements."""
        return np.empty(0)

    @property
    def coordinates(self) -> NDArray[np.intp]:
        """Return all coordinates: there are no hyper-parameters."""
        return np.arange(self.dim)

    @property
    def hyper_coordinates(self) -> NDArray[np.intp]:
        """Return no coordinates."""
        return np.empty(0, dtype=np.intp)

    def at(self, phi: Any = ()) -> Factors:
        """Return these factors: there are no hyper-parameters."""
        return self

    def log_hyper_prior(self, phi: Any = ()) -> float:
        """Return zero: there are no hyper-parameters."""
        return 0.0

    def log_site(self, s: Array, rows: NDArray[np.integer] | None = None) -> Array:
        """Return log tᵢ at predictors ``s`` ``(k, n)``, or at ``(k, m)`` for the sites ``rows`` ``(m,)``."""
        return self.sites.log_site(np.asarray(s, dtype=np.float64), rows)

    def site_derivatives(self, s: Array, rows: NDArray[np.integer] | None = None) -> tuple[Array, Array]:
        """Return the first and second derivative of log tᵢ, shaped as ``s``."""
        return self.sites.derivatives(np.asarray(s, dtype=np.float64), rows)

    def predictor(self, theta: Array) -> Array:
        """Return the predictors aᵢᵀθ + bᵢ ``(k, n)`` at rows ``(k, d)``."""
        return np.asarray((self.design @ theta.T).T) + self.offset

    def log_density(self, theta: Array) -> Array:
        """Return log p(θ, y) ``(k,)`` at rows ``(k, d)``."""
        return FactorsTarget(self).log_density(theta)

    def take(self, rows: NDArray[np.integer]) -> Factors:
        """Return the same prior with the sites ``rows`` only."""
        return Factors(
            self.design[rows],
            self.offset[rows],
            self.sites.take(np.asarray(rows)),
            self.prior.mean,
            self.prior.precision,
            log_constant=self.log_constant,
            observed=self.observed[rows],
            names=self.names,
        )

    def likelihood(self) -> Factors:
        """Return the observed sites alone, under a flat prior."""
        if self.observed.all():
            return Factors(self.design, self.offset, self.sites, 0.0, 0.0, names=self.names)
        rows = np.flatnonzero(self.observed)
        return Factors(self.design[rows], self.offset[rows], self.sites.take(rows), 0.0, 0.0, names=self.names)

    @property
    def log_concave(self) -> bool:
        """Return whether all sites are known to be log-concave, so that there is at most one mode."""
        return all(family.log_concave for family, _, _ in self.sites.pieces(None))

    def tempered(self, power: float) -> Factors:
        """Return the same prior with the observed sites to a power, including normal ones within the Gaussian."""
        mean, precision, normal_rows = self.prior.mean, self.prior.precision, None
        if self.normal_rows is not None:
            mean, precision, normal_rows = self._tempered_normal(power)
        return Factors(
            self.design,
            self.offset,
            PoweredSites(self.sites, np.where(self.observed, float(power), 1.0)),
            mean,
            precision,
            log_constant=self.log_constant,
            observed=self.observed,
            names=self.names,
            normal_rows=normal_rows,
        )

    def _tempered_normal(self, power: float) -> tuple[Array, Array, tuple[Any, Array, Normal, Array] | None]:
        """Return the mean and precision of the Gaussian with its normal observations to a power, and these observations."""
        assert self.normal_rows is not None
        design, offset, family, log_scale = self.normal_rows
        weight = (1 - power) / family.sd**2
        precision = self.prior.add_to(np.zeros((self.dim, self.dim)))
        right = precision @ self.prior.mean - np.asarray(design.T @ (weight * (family.y - offset)))
        gram = as_design(design).gram(weight)
        small = _ROUNDING * np.sqrt(np.outer(np.diagonal(gram), np.diagonal(gram)))
        precision = np.where(np.abs(precision - gram) <= small, 0.0, precision - gram)
        mean = np.linalg.lstsq(precision, right, rcond=None)[0]
        if power == 0:
            return mean, precision, None
        constant = (1 - power) * (0.5 * LOG_2PI + np.log(family.sd)) - 0.5 * np.log(power)
        tempered = Normal(family.y, family.sd / np.sqrt(power))
        return mean, precision, (design, offset, tempered, power * log_scale + constant)

    def __repr__(self) -> str:
        kind = "sparse" if sparse.issparse(self.design) else "dense"
        return f"Factors(n_sites={self.n_sites}, dim={self.dim}, design={kind}, sites={type(self.sites).__name__})"


class FactorsTarget(BaseTarget):
    """Hand-written factors as a target, so that importance sampling and SMC run on them.

    The Gaussian and the sites that are not observations form the prior.

    Parameters
    ----------
    factors : Factors

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.approximations.ep import Factors, FactorsTarget, Logit
    >>> target = FactorsTarget(Factors(np.eye(2), 0.0, Logit([0, 1]), 0.0, 1.0))
    >>> idata = pb.sample_importance(target, draws=500, chains=4, random_seed=1)
    >>> idata.posterior.attrs["accuracy"]
    'exact'
    """

    label = "factors"
    has_split = True
    factors: Factors
    observations: _SiteObservations | None

    def __init__(self, factors: Factors) -> None:
        self.factors = factors
        self.dim, self.names = factors.dim, factors.names
        self.observations = _SiteObservations(factors) if factors.observed.any() else None
        self.log_concave = factors.log_concave

    @cached_property
    def likelihood_factors(self) -> Factors | None:
        """Return the observed sites under a flat prior; None if there are none."""
        return self.factors.likelihood() if self.factors.observed.any() else None

    @cached_property
    def _likelihood_of_many_rows(self) -> _ManyRows | None:
        """Return the likelihood as a compiled loop, for many rows of few coordinates of one known family."""
        factors = self.factors
        if factors.n_sites < COMPILED_SITES or factors.dim > COMPILED_DIM or sparse.issparse(factors.design):
            return None
        family = factors.sites.compiled() if factors.observed.all() else None
        return None if family is None else _ManyRows(factors, family)

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation:
        x = as_points(x, self.dim)
        if self._likelihood_of_many_rows is not None:
            return self._evaluate_many_rows(self._likelihood_of_many_rows, x, gradient)
        rows = max(1, BLOCK_BYTES // (8 * self.factors.n_sites))
        parts = [self._evaluate_block(x[k : k + rows], gradient) for k in range(0, max(1, len(x)), rows)]
        joined: list[Any] = [None if parts[0][k] is None else np.concatenate([p[k] for p in parts]) for k in range(4)]
        prior, prior_slope = sanitize(joined[0], joined[2])
        likelihood, slope = sanitize(joined[1], joined[3])
        return Evaluation(prior, likelihood, prior_slope, slope)

    def _evaluate_many_rows(self, likelihood: _ManyRows, x: Array, gradient: bool) -> Evaluation:
        prior = self.factors.prior
        log_prior, prior_slope = sanitize(prior.log_density(x), -prior.apply(x - prior.mean))
        log_likelihood, slope = sanitize(*likelihood(x))
        return Evaluation(log_prior, log_likelihood, prior_slope if gradient else None, slope if gradient else None)

    def _evaluate_block(self, x: Array, gradient: bool) -> tuple[Any, ...]:
        factors, observed = self.factors, self.factors.observed
        s = factors.predictor(x)
        value = factors.log_site(s)
        prior = factors.prior.log_density(x) + value[:, ~observed].sum(axis=1)
        likelihood = value[:, observed].sum(axis=1) + factors.log_constant
        if not gradient:
            return prior, likelihood, None, None
        slope = factors.site_derivatives(s)[0]
        prior_slope = np.asarray(np.where(observed, 0.0, slope) @ factors.design)
        prior_slope -= factors.prior.apply(x - factors.prior.mean)
        return prior, likelihood, prior_slope, np.asarray(np.where(observed, slope, 0.0) @ factors.design)

    def evaluate_potentials(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        """Return the constant, the part of the log likelihood that is of no row."""
        return np.full(len(x), self.factors.log_constant), np.zeros_like(x) if gradient else None

    def hessian(self, x: Array, part: str = "joint") -> Array:
        """Return Aᵀ diag(∂² log t) A, minus Q₀ in the joint density, ``(n, dim, dim)``."""
        if part not in ("joint", "likelihood"):
            raise ModelError(f"part={part!r}: expected 'joint' or 'likelihood'")
        x, factors = as_points(x, self.dim), self.factors
        curvature = factors.site_derivatives(factors.predictor(x))[1]
        if part == "likelihood":
            curvature = np.where(factors.observed, curvature, 0.0)
        design = as_design(factors.design)
        blocks = np.stack([design.gram(row) for row in curvature])
        return blocks if part == "likelihood" else blocks - factors.prior.add_to(np.zeros((self.dim, self.dim)))

    def sample_prior(self, n: int, rng: np.random.Generator) -> Array:
        """Return draws of the Gaussian part, if that is the whole prior."""
        if not self.factors.prior.proper or not self.factors.observed.all():
            raise PriorSamplingError(
                "factors: a prior with sites, or an improper one, cannot be drawn from; use initial='ep'"
            )
        return self.factors.prior.sample(n, rng)

    def constrain(self, x: Array, rng: np.random.Generator | None = None) -> dict[str, Array]:
        return {"theta": as_points(x, self.dim)}

    def unconstrain(self, values: Any) -> Array:
        return as_points(values["theta"], self.dim)

    def pointwise_log_likelihood(self, x: Array) -> dict[str, Array]:
        return {} if self.observations is None else {"y": self.observations.log_likelihood(x)}


class _ManyRows:
    """The log likelihood of rows of one compiled family, and its gradient; constants come from the family itself."""

    def __init__(self, factors: Factors, family: CompiledFamily) -> None:
        columns = map(for_kernels, (factors.offset, family.y, family.extra))
        self._arguments = (np.ascontiguousarray(factors.design), *columns, family.family)
        zero = np.zeros((1, factors.dim))
        exact = factors.log_site(factors.predictor(zero)).sum() + factors.log_constant
        self._constant = float(exact - self._sums(zero)[0][0])

    def _sums(self, x: Array) -> tuple[Array, Array]:
        from ppl_backends.targets.factors.compiled import totals

        return totals(*self._arguments, np.ascontiguousarray(x))

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Return the log likelihood ``(k,)`` and its gradient ``(k, d)`` at ``x`` ``(k, d)``."""
        value, slope = self._sums(x)
        return value + self._constant, slope


class _SiteObservations(Observations):
    """The observed sites as rows of data."""

    def __init__(self, factors: Factors) -> None:
        self._factors = factors if factors.observed.all() else factors.likelihood()
        self.n = self._factors.n_sites
        self._prior, self._log_constant = factors.prior, factors.log_constant
        others = np.flatnonzero(~factors.observed)
        self._others = factors.take(others) if len(others) else None

    def log_likelihood(self, x: Array, index: NDArray[np.integer] | None = None) -> Array:
        factors, x = self._factors, as_points(x, self._factors.dim)
        if index is None:
            return factors.log_site(factors.predictor(x))
        index = np.asarray(index)
        if index.ndim == 1:
            s = np.asarray((factors.design[index] @ x.T).T) + factors.offset[index]
            return factors.log_site(s, index)
        design = factors.design[index.ravel()]
        points = np.repeat(x, index.shape[1], axis=0)
        product = design.multiply(points).sum(axis=1) if sparse.issparse(design) else (design * points).sum(axis=1)
        s = np.asarray(product).reshape(1, -1) + factors.offset[index.ravel()]
        return factors.log_site(s, index.ravel()).reshape(index.shape)

    def log_prior_and_potentials(self, x: Array, gradient: bool = False) -> Any:
        x = as_points(x, self._factors.dim)
        value = self._prior.log_density(x) + self._log_constant
        slope = -self._prior.apply(x - self._prior.mean)
        if self._others is not None:
            s = self._others.predictor(x)
            value = value + self._others.log_site(s).sum(axis=1)
            slope = slope + np.asarray(self._others.site_derivatives(s)[0] @ self._others.design)
        return (value, slope) if gradient else value

    def sum(
        self, x: Array, index: NDArray[np.integer] | None = None, weights: Array | None = None, gradient: bool = False
    ) -> Any:
        if not gradient:
            return super().sum(x, index, weights)
        factors, x = self._factors, as_points(x, self._factors.dim)
        index = np.arange(self.n) if index is None else np.asarray(index)
        weights = np.ones(index.shape) if weights is None else weights
        if index.ndim == 1:
            design = factors.design[index]
            s = np.asarray((design @ x.T).T) + factors.offset[index]
            slope = weights * factors.site_derivatives(s, index)[0]
            return (weights * factors.log_site(s, index)).sum(axis=1), np.asarray(slope @ design)
        rows = index.ravel()
        design = factors.design[rows]
        design = (design.toarray() if sparse.issparse(design) else design).reshape(*index.shape, -1)
        s = (np.einsum("kmd,kd->km", design, x) + factors.offset[index]).reshape(1, -1)
        value, slope = factors.log_site(s, rows)[0], factors.site_derivatives(s, rows)[0][0]
        slope = weights * slope.reshape(index.shape)
        return (weights * value.reshape(index.shape)).sum(axis=1), np.einsum("km,kmd->kd", slope, design)


def stacked_design(design: Any) -> Any:
    """Return a matrix, or stacked matrices, as float64, dense or CSR."""
    if isinstance(design, (list, tuple)) and design and (sparse.issparse(design[0]) or np.ndim(design[0]) == 2):
        any_sparse = any(sparse.issparse(block) for block in design)
        one = design[0] if len(design) == 1 else None  # a copy could take gigabytes
        design = one if one is not None else sparse.vstack(design) if any_sparse else np.vstack(design)
    if sparse.issparse(design):
        design = sparse.csr_matrix(design, dtype=np.float64)
        values = design.data
    else:
        design = np.asarray(design, dtype=np.float64)
        values = design
    if design.ndim != 2 or 0 in design.shape:
        raise ModelError(f"design has shape {design.shape}; expected (n_sites, dim) with at least one of each")
    if not np.isfinite(values).all():
        raise ModelError("design has values that are not finite")
    return design


def _site_family(log_site: Any, n: int, derivatives: Any) -> SiteFamily:
    if isinstance(log_site, SiteFamily):
        return log_site
    if isinstance(log_site, (list, tuple)):
        return StackedSites(log_site)
    if not callable(log_site):
        raise ModelError(f"log_site is {type(log_site).__name__}; expected a site family, a list of them or a function")
    takes_rows = "rows" in inspect.signature(log_site).parameters
    return FunctionSites(log_site, n, takes_rows, derivatives)


def _offset(offset: Any, n: int) -> Array:
    offset = np.asarray(0.0 if offset is None else offset, dtype=np.float64)
    if offset.shape not in ((), (1,), (n,)):
        raise ModelError(f"offset has shape {offset.shape}; expected a scalar or ({n},)")
    if not np.isfinite(offset).all():
        raise ModelError("offset has values that are not finite")
    return np.broadcast_to(offset, (n,))
