"""The prior of a Gibbs posterior as a target: a Gaussian, a PyMC model without likelihood, or a Stan program's prior."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import as_floats
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.options import checked, has_moments, integer, number
from ppl_backends.targets.factors import GaussianPrior, NormalMixture
from ppl_backends.targets.names import coordinates_by_variable, coordinates_of
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation, Index, as_points


class _CoefficientPrior(BaseTarget):
    """A proper prior of a vector ``theta`` as a target without data."""

    has_split = is_prior = True
    log_prior_normalizer = 0.0

    def initial_points(self, n: int, rng: np.random.Generator) -> Array:
        return self.sample_prior(n, rng)

    def constrain(self, x: Array, rng: np.random.Generator | None = None) -> dict[str, Array]:
        return {"theta": as_points(x, self.dim)}

    def unconstrain(self, values: Any) -> Array:
        return as_points(values["theta"], self.dim)


class GaussianPriorTarget(_CoefficientPrior):
    """N(mean, cov) of a vector ``theta`` as a target without data; ``labels`` name its coefficients."""

    label = "Gaussian prior"

    def __init__(self, mean: Any, cov: Any, dim: int, labels: Sequence[str] | None = None) -> None:
        cov = as_floats("prior=(mean, cov): cov", cov)
        if cov.ndim > 2 or not np.isfinite(cov).all() or np.any((cov if cov.ndim < 2 else np.diag(cov)) <= 0):
            raise ModelError("prior=(mean, cov): cov must be a positive number, a vector of variances, or a covariance")
        try:
            precision = 1 / cov if cov.ndim < 2 else np.linalg.inv(cov)
        except np.linalg.LinAlgError:
            raise ModelError("prior=(mean, cov): cov is singular") from None
        self.gaussian = GaussianPrior(mean, precision, dim)
        self.cov = cov
        self.dim, self.names = dim, tuple(f"theta[{j}]" for j in range(dim))
        self.dims = {"theta": ["coefficient"]}
        self.coords = {"coefficient": list(labels) if labels is not None else list(range(dim))}

    @property
    def covariance(self) -> Array:
        """Return the covariance ``(dim, dim)``."""
        return self.cov if self.cov.ndim == 2 else np.diag(np.broadcast_to(self.cov, (self.dim,)))

    @cached_property
    def normal(self) -> Gaussian:
        """Return the normal distribution itself."""
        precision = self.gaussian.add_to(np.zeros((self.dim, self.dim)))
        return Gaussian.from_covariance(self.gaussian.mean, self.covariance, precision)

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation:
        x = as_points(x, self.dim)
        value = self.gaussian.log_density(x)
        if not gradient:
            return Evaluation(value, np.zeros(len(x)))
        return Evaluation(value, np.zeros(len(x)), -self.gaussian.apply(x - self.gaussian.mean), np.zeros_like(x))

    def hessian(self, x: Array, part: str = "joint") -> Array:
        """Return −Q₀ at every point; zero for the likelihood, which is constant."""
        if part == "likelihood":
            return np.zeros((len(x), self.dim, self.dim))
        return np.tile(-self.gaussian.add_to(np.zeros((self.dim, self.dim))), (len(x), 1, 1))

    def sample_prior(self, n: int, rng: np.random.Generator) -> Array:
        return self.gaussian.sample(n, rng)


class SpikeSlab(_CoefficientPrior):
    """Independent spikes and slabs as a prior: every coefficient is N(0, slab²) with some probability, else N(0, spike²).

    Parameters
    ----------
    dim : int
        Number of coefficients.
    inclusion : float
        Probability of the slab.
    slab, spike : float
        Standard deviations.

    References
    ----------
    Ridgway, J., Alquier, P., Chopin, N. and Liang, F. (2014). PAC-Bayesian AUC classification and scoring. *NIPS* 27.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import GibbsPosterior, SpikeSlab, fit_pair_ep, inclusion_probabilities
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 3))
    >>> y = np.sign(X @ [1.0, 0.0, -1.0] + 0.3 * rng.normal(size=60))
    >>> q = fit_pair_ep(GibbsPosterior(SpikeSlab(3), "auc", X, y, learning_rate=60.0))
    >>> inclusion_probabilities(q).round(1)
    array([1. , 0.3, 0.9])
    """

    label = "spike-and-slab prior"

    @checked(dim=integer(1), inclusion=number(above=0, below=1), slab=number(above=0), spike=number(above=0))
    def __init__(self, dim: int, inclusion: float = 0.5, slab: float = 1.0, spike: float = 1e-6) -> None:
        if spike >= slab:
            raise ModelError(f"SpikeSlab: spike={spike} must be below slab={slab}")
        self.dim, self.inclusion, self.slab, self.spike = dim, inclusion, slab, spike
        self.names = tuple(f"theta[{j}]" for j in range(dim))
        self.dims = {"theta": ["coefficient"]}
        self.sites = NormalMixture([1.0 - inclusion, inclusion], [0.0, 0.0], [spike, slab], n=dim)

    def with_spike(self, spike: float) -> SpikeSlab:
        """Return the same prior with ``spike`` as the standard deviation of the spikes."""
        return SpikeSlab(self.dim, self.inclusion, self.slab, spike)

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation:
        x = as_points(x, self.dim)
        value = self.sites.log_site(x).sum(axis=1)
        if not gradient:
            return Evaluation(value, np.zeros(len(x)))
        slope = -(self.sites.shares(x) / self.sites.sds**2).sum(axis=-1) * x
        return Evaluation(value, np.zeros(len(x)), slope, np.zeros_like(x))

    def sample_prior(self, n: int, rng: np.random.Generator) -> Array:
        sd = np.where(rng.random((n, self.dim)) < self.inclusion, self.slab, self.spike)
        return sd * rng.standard_normal((n, self.dim))


def resolve_prior(prior: Any, p: int | None, data: Any, labels: Sequence[str] | None, options: Any) -> BaseTarget:
    """Return the prior that a user gave, as a target whose ``log_prior`` (or joint density) it is.

    ``p`` is the number of columns of the design, if there is one; ``data`` and ``options`` are for as_target.
    """
    if isinstance(prior, tuple) and len(prior) == 2:
        mean, cov = prior
    elif has_moments(prior) and not isinstance(prior, BaseTarget):
        mean, cov = prior.mean, prior.cov
    else:
        return _model_prior(prior, data, options)
    sizes = [len(np.atleast_1d(part)) for part in (mean, cov) if np.ndim(part)]
    dim = p if p is not None else max(sizes, default=1)
    return GaussianPriorTarget(mean, cov, dim, labels)


def _model_prior(prior: Any, data: Any, options: Any) -> BaseTarget:
    from ppl_backends.targets.convert import as_target

    target = as_target(prior, data, **options)
    if target.is_prior:
        return target
    if target.split_problem is not None:
        raise ModelError(f"{target.split_problem}; a Gibbs posterior uses only the prior")
    alone = target.prior_target()
    if alone is not None:
        return alone
    if target.observed_data:
        names = ", ".join(map(repr, target.observed_data))
        raise ModelError(f"the prior has a likelihood, of {names}: a Gibbs posterior has a loss in its place")
    if target.has_potentials:
        raise ModelError(
            "the prior has Potentials, which its draws ignore: a Gibbs posterior has a loss in their place"
        )
    return target


def coefficient_columns(prior: BaseTarget, names: Any, p: int) -> Index:
    """Return which unconstrained coordinates are the ``p`` coefficients of a linear score.

    ``names`` are variables in the order of the columns of X; None selects the variable if only one fits.
    """
    if names is None:
        own = {name: len(found) for name, found in coordinates_by_variable(prior.names).items()}
        fitting = [name for name, n in own.items() if n == p and not name.endswith("__")]
        if len(fitting) != 1:
            found = ", ".join(f"{name} ({n})" for name, n in own.items())
            raise ModelError(f"name the {p} coefficients among {found}: coefficients='name' or a list of names")
        names = fitting
    wanted = [names] if isinstance(names, str) else list(names)
    columns = [j for name in wanted for j in coordinates_of(name, prior.names)]
    if len(columns) != p:
        raise ModelError(f"coefficients={wanted!r} are {len(columns)} real coordinates and X has {p} columns")
    point = 0.7 * np.sin(np.arange(1.0, prior.dim + 1))[None]
    values = prior.constrain(point)
    unknown = [name for name in wanted if name not in values]
    if unknown:
        raise ModelError(
            f"coefficients={wanted!r}: the prior has no variable {unknown[0]!r}; it has {', '.join(values)}"
        )
    given = np.concatenate([np.ravel(values[name]) for name in wanted])
    if given.shape != (p,) or not np.allclose(given, point[0, columns]):
        raise ModelError(
            f"coefficients={wanted!r} are constrained; a linear score needs real ones (write the risk as an expression)"
        )
    return np.array(columns)
