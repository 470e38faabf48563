r"""Mixtures by mean-field coordinate ascent, with the number of components chosen by the evidence lower bound.

Gaussian components have Normal–Wishart priors, categorical ones (latent classes) independent Dirichlet priors, and the
weights a Dirichlet prior; the approximation is a product of labels and parameters. Given the labels' probabilities r,
the optimal factor of the parameters is their conjugate posterior for fractional counts, so that after every sweep

    L = log Z(prior + counts) − log Z(prior) + entropy(r),

a difference of conjugate normalisers. The choice of the number of components by the largest bound is consistent
(Chérif-Abdellatif & Alquier 2018). The bound is that of one labelling of the components; the K! equivalent
relabellings are not counted.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np
from scipy.special import digamma, logsumexp, multigammaln, xlogy

from ppl_backends.errors import ApproximationWarning, ModelError, user_level
from ppl_backends.mean_field.ascent import Ascent, best_of, log_beta, warn_unconverged
from ppl_backends.numerics.arrays import as_floats
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.options import Option, array, checked, integer, number
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.targets.protocol import Array


class _Mixture:
    """Labels and weights; subclasses define the components."""

    method = "mean-field coordinate ascent"
    accuracy = "approximate"
    elbo_se = 0.0

    elbo: float
    trace: Array
    restarts: Array
    converged: bool
    selection: dict[int, float]

    def __init__(self, x: Array, k: int, weight_prior: float) -> None:
        self.k, self._x, self._weight_prior = k, x, weight_prior

    def _result_of(self, run: Ascent, restarts: Array, selection: dict[int, float]) -> Self:
        """Return the result of a finished run, with its figures."""
        result = copy.copy(self)
        result.elbo, result.trace, result.converged = float(run.trace[-1]), run.trace, run.converged
        result.restarts, result.selection = restarts, selection
        return result

    def _update(self, labels: Array) -> float:
        """Return the conjugate posterior given label probabilities ``(n, K)``, and Σ log Z(posterior) − log Z(prior)."""
        raise NotImplementedError

    def _expected_log_density(self, x: Array) -> Array:
        """Return E_q log p(x | component) ``(n, K)``."""
        raise NotImplementedError

    def _distances(self, x: Array, centre: Array) -> Array:
        """Return squared distances to one point, for the starts."""
        raise NotImplementedError

    def _begin(self, rng: np.random.Generator) -> None:
        """Initialise labels by the nearest of K spread-out data points (k-means++)."""
        n = len(self._x)
        nearest = self._distances(self._x, self._x[rng.integers(n)])
        distances = [nearest]
        for _ in range(self.k - 1):
            total = nearest.sum()
            chosen = rng.choice(n, p=nearest / total) if total > 0 else rng.integers(n)
            distances.append(self._distances(self._x, self._x[chosen]))
            nearest = np.minimum(nearest, distances[-1])
        labels = np.zeros((n, self.k))
        labels[np.arange(n), np.argmin(distances, axis=0)] = 1.0
        self._maximise(labels)

    def _maximise(self, labels: Array) -> float:
        prior = np.full(self.k, self._weight_prior)
        self.concentrations = prior + labels.sum(axis=0)
        return float(log_beta(self.concentrations) - log_beta(prior)) + self._update(labels)

    def sweep(self) -> float:
        """Update labels, then parameters; return the bound afterwards."""
        labels = self.responsibilities(self._x)
        return self._maximise(labels) - float(xlogy(labels, labels).sum())

    @property
    def weights(self) -> Array:
        """Return the posterior means of the mixture weights ``(K,)``."""
        return self.concentrations / self.concentrations.sum()

    @property
    def n_used(self) -> int:
        """Return the number of components whose label probabilities sum to at least one."""
        return int((self.concentrations - self._weight_prior >= 1).sum())

    def responsibilities(self, x: Any) -> Array:
        """Return the probability ``(n, K)`` that each observation belongs to each component."""
        log_weight = digamma(self.concentrations) - digamma(self.concentrations.sum())
        score = log_weight + self._expected_log_density(self._checked(x))
        return np.exp(score - logsumexp(score, axis=1, keepdims=True))

    def predict(self, x: Any) -> Array:
        """Return the most probable component of each observation ``(n,)``."""
        return np.argmax(self.responsibilities(x), axis=1)

    def _checked(self, x: Any) -> Array:
        return np.asarray(x)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(components={self.k}, used={self.n_used}, elbo={self.elbo:.6g}, "
            f"converged={self.converged})"
        )


class GaussianMixture(_Mixture):
    """The approximate posterior of a Gaussian mixture; see :func:`fit_gaussian_mixture`.

    Attributes
    ----------
    k : int
        Components.
    concentrations, weights : ndarray (K,)
        Parameters of the weights' Dirichlet posterior, and its mean.
    means : ndarray (K, d)
    covariances : ndarray (K, d, d)
        Inverses of the expected precisions.
    elbo : float
    trace : ndarray
        The bound after each sweep; it never decreases.
    restarts : ndarray
        Final bound of every start.
    selection : dict of int to float
        Highest bound for every number of components tried.
    converged : bool

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.mean_field import fit_gaussian_mixture
    >>> rng = np.random.default_rng(1)
    >>> x = np.r_[rng.normal(-3, 1, (50, 2)), rng.normal(3, 1, (50, 2))]
    >>> fit = fit_gaussian_mixture(x, [2], random_seed=1, progressbar=False)
    >>> fit.k, fit.means.shape, fit.weights.round(1)
    (2, (2, 2), array([0.5, 0.5]))
    """

    def __init__(self, x: Array, k: int, weight_prior: float, mean_precision: float) -> None:
        super().__init__(x, k, weight_prior)
        self._dim = x.shape[1]
        self._mean_prior, self._kappa = x.mean(axis=0), mean_precision
        self._scatter_prior, self._dof = np.diag(x.var(axis=0)), self._dim + 2.0
        self._norm = 1 / x.var(axis=0)
        self._prior_normaliser = _normal_wishart(
            np.array([self._kappa]), np.array([self._dof]), self._scatter_prior[None]
        )

    def _update(self, labels: Array) -> float:
        counts = labels.sum(axis=0)
        safe = np.maximum(counts, 1e-300)
        centre = (labels.T @ self._x) / safe[:, None]
        self._kappas, self._dofs = self._kappa + counts, self._dof + counts
        self.means = (self._kappa * self._mean_prior + counts[:, None] * centre) / self._kappas[:, None]
        scatter = np.empty((self.k, self._dim, self._dim))
        for j in range(self.k):
            deviation = self._x - centre[j]
            scatter[j] = (labels[:, j, None] * deviation).T @ deviation
        shift = centre - self._mean_prior
        pull = (self._kappa * counts / self._kappas)[:, None, None] * shift[:, :, None] * shift[:, None, :]
        self._scatter = self._scatter_prior + scatter + pull
        self._roots = np.linalg.cholesky(self._scatter)
        gained = _normal_wishart(self._kappas, self._dofs, self._scatter) - self._prior_normaliser
        return float(gained.sum()) - 0.5 * len(self._x) * self._dim * LOG_2PI

    def _expected_log_density(self, x: Array) -> Array:
        d = self._dim
        score = np.empty((len(x), self.k))
        log_determinant = -2 * np.log(np.diagonal(self._roots, axis1=1, axis2=2)).sum(axis=1) + d * np.log(2)
        log_determinant += digamma(0.5 * (self._dofs[:, None] - np.arange(d))).sum(axis=1)
        for j in range(self.k):
            white = np.linalg.solve(self._roots[j], (x - self.means[j]).T)
            score[:, j] = -0.5 * self._dofs[j] * (white**2).sum(axis=0)
        return score + 0.5 * (log_determinant - d * LOG_2PI - d / self._kappas)

    def _distances(self, x: Array, centre: Array) -> Array:
        return ((x - centre) ** 2 * self._norm).sum(axis=1)

    def _checked(self, x: Any) -> Array:
        x = as_floats("x", x)
        if x.ndim != 2 or x.shape[1] != self._dim:
            raise ModelError(f"x has shape {x.shape}; expected (n, {self._dim})")
        return x

    @property
    def covariances(self) -> Array:
        """Return the inverses of the expected precisions ``(K, d, d)``."""
        return self._scatter / self._dofs[:, None, None]


class CategoricalMixture(_Mixture):
    """The approximate posterior of a mixture of independent categorical variables; see :func:`fit_categorical_mixture`.

    Attributes
    ----------
    k, concentrations, weights, elbo, trace, restarts, selection, converged
        As for :class:`GaussianMixture`.
    probabilities : list of ndarray (K, levels)
        Posterior mean of every variable's distribution within each component.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.mean_field import fit_categorical_mixture
    >>> x = np.repeat([[0, 1, 1], [1, 0, 0]], 20, axis=0)
    >>> fit = fit_categorical_mixture(x, [2], random_seed=1, progressbar=False)
    >>> fit.k, [p.shape for p in fit.probabilities]
    (2, [(2, 2), (2, 2), (2, 2)])
    """

    def __init__(self, x: Array, levels: Array, k: int, weight_prior: float, level_prior: float) -> None:
        super().__init__(x, k, weight_prior)
        self._levels, self._level_prior = levels, level_prior
        self._one_hot_x = self._one_hot(x)

    def _one_hot(self, x: Array) -> list[Array]:
        return [np.eye(levels)[x[:, column]] for column, levels in enumerate(self._levels)]

    def _update(self, labels: Array) -> float:
        self._counts = [self._level_prior + labels.T @ indicator for indicator in self._one_hot_x]
        prior = sum(float(log_beta(np.full(levels, self._level_prior))) for levels in self._levels)
        return float(sum(log_beta(counts).sum() for counts in self._counts)) - self.k * prior

    def _expected_log_density(self, x: Array) -> Array:
        hot = self._one_hot_x if x is self._x else self._one_hot(x)
        score = np.zeros((len(x), self.k))
        for indicator, counts in zip(hot, self._counts, strict=True):
            score += indicator @ (digamma(counts) - digamma(counts.sum(axis=1, keepdims=True))).T
        return score

    def _distances(self, x: Array, centre: Array) -> Array:
        return (x != centre).sum(axis=1).astype(np.float64) ** 2

    def _checked(self, x: Any) -> Array:
        x = np.asarray(x)
        if x.ndim != 2 or x.shape[1] != len(self._levels) or x.dtype.kind not in "iu":
            raise ModelError(f"x has shape {x.shape} and type {x.dtype}; expected integers (n, {len(self._levels)})")
        if x.min() < 0 or (x >= self._levels).any():
            raise ModelError("x has a level that the data of the fit do not have")
        return x

    @property
    def probabilities(self) -> list[Array]:
        """Return the posterior means of the level probabilities of each variable ``(K, levels)``."""
        return [counts / counts.sum(axis=1, keepdims=True) for counts in self._counts]


OPTIONS = {
    "components": integer(1) | Option("several", lambda numbers: [integer(1).read(k) for k in numbers]),
    "weight_prior": number(above=0),
    "restarts": integer(1),
    "tolerance": number(above=0),
    "max_sweeps": integer(1),
}


@checked(x=array("an array of finite numbers (n, d)"), mean_precision=number(above=0), **OPTIONS)
def fit_gaussian_mixture(
    x: Any,
    components: int | Iterable[int] = range(1, 9),
    *,
    weight_prior: float = 1.0,
    mean_precision: float = 0.05,
    restarts: int = 5,
    tolerance: float = 1e-7,
    max_sweeps: int = 1000,
    random_seed: SeedLike = None,
    progressbar: bool = True,
) -> GaussianMixture:
    """Fit Gaussian mixtures with full covariances; keep the number of components with the highest bound.

    Parameters
    ----------
    x : array (n, d)
    components : int or iterable of int
        Numbers of components to try.
    weight_prior : float
        Concentration of the Dirichlet prior of the weights.
    mean_precision : float
        Precision of the components' means around the mean of the data, in units of each component's own precision. The
        prior covariance of a component is the diagonal of variances of the data, with d + 2 degrees of freedom.
    restarts : int
        Starts per number of components, from k-means++ points.
    tolerance : float
        Relative increase of the bound at which to stop.
    max_sweeps : int
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool

    Returns
    -------
    GaussianMixture
        With ``selection``, the bound of every number of components tried.

    Warns
    -----
    ApproximationWarning
        If the bound of a number of components still increased in the last sweep.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x = np.concatenate([rng.normal(size=(100, 2)) - 4, rng.normal(size=(150, 2)) + 4])
    >>> fit = fit_gaussian_mixture(x, range(1, 5), random_seed=1, progressbar=False)
    >>> fit.k, np.sort(fit.weights).round(1)
    (2, array([0.4, 0.6]))
    """
    x = as_floats("x", x)
    if x.ndim != 2 or len(x) < 2 or not np.isfinite(x).all() or (x.var(axis=0) == 0).any():
        raise ModelError(f"x has shape {x.shape}; expected finite numbers (n, d) with no constant column")

    def make(k: int) -> GaussianMixture:
        return GaussianMixture(x, k, weight_prior, mean_precision)

    return _select(
        "Gaussian mixture", make, components, len(x), restarts, tolerance, max_sweeps, random_seed, progressbar
    )


@checked(level_prior=number(above=0), **OPTIONS)
def fit_categorical_mixture(
    x: Any,
    components: int | Iterable[int] = range(1, 9),
    *,
    weight_prior: float = 1.0,
    level_prior: float = 1.0,
    restarts: int = 5,
    tolerance: float = 1e-7,
    max_sweeps: int = 1000,
    random_seed: SeedLike = None,
    progressbar: bool = True,
) -> CategoricalMixture:
    """Fit latent classes: within a component the variables are independent and categorical.

    Parameters
    ----------
    x : array of int (n, variables)
        Levels, counted from zero.
    components : int or iterable of int
        Numbers of components to try.
    weight_prior, level_prior : float
        Concentrations of the Dirichlet priors of the weights and of every variable's levels.
    restarts, tolerance, max_sweeps, random_seed, progressbar
        As for :func:`fit_gaussian_mixture`.

    Returns
    -------
    CategoricalMixture
        With ``selection``, the bound of every number of components tried.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> label = rng.integers(2, size=300)
    >>> x = (rng.random((300, 6)) < np.array([0.1, 0.9])[label, None]).astype(int)
    >>> fit_categorical_mixture(x, range(1, 4), random_seed=1, progressbar=False).k
    2
    """
    x = np.array(x)  # a copy: the caller may change his own, and ask for predictions at it
    if x.ndim != 2 or len(x) < 2 or x.dtype.kind not in "iu" or x.min() < 0:
        raise ModelError(
            f"x has shape {x.shape} and type {x.dtype}; expected levels 0, 1, … as integers (n, variables)"
        )
    levels = x.max(axis=0) + 1

    def make(k: int) -> CategoricalMixture:
        return CategoricalMixture(x, levels, k, weight_prior, level_prior)

    return _select(
        "Categorical mixture", make, components, len(x), restarts, tolerance, max_sweeps, random_seed, progressbar
    )


def _select(
    description: str,
    make: Any,
    components: int | Iterable[int],
    n: int,
    restarts: int,
    tolerance: float,
    max_sweeps: int,
    random_seed: SeedLike,
    progressbar: bool,
) -> Any:
    """Return the best fit over numbers of components and starts."""
    numbers = [components] if isinstance(components, int) else sorted(set(components))
    if not numbers or numbers[-1] > n:
        raise ModelError(f"components={components!r}: expected numbers from 1 to {n}, the number of observations")
    found: dict[int, tuple[Ascent, Array]] = {}
    for k, seed in zip(numbers, spawn_generators(random_seed, len(numbers)), strict=True):
        tries = 1 if k == 1 else restarts

        def starts(k: int = k, seed: np.random.Generator = seed, tries: int = tries) -> Iterator[Any]:
            for rng in spawn_generators(seed, tries):
                state = make(k)
                state._begin(rng)
                yield state

        text = f"{description}, {k} components"
        found[k] = best_of(text, starts(), tries, tolerance, max_sweeps, progressbar)
    selection = {int(k): float(run.trace[-1]) for k, (run, _) in found.items()}
    run, bounds = found[max(selection, key=lambda k: selection[k])]
    warn_unconverged(description.lower(), run)
    stopped = [str(k) for k, (other, _) in found.items() if not other.converged]
    if stopped and run.converged:
        warnings.warn(
            f"{description.lower()}: not converged in {max_sweeps} sweeps with {' and '.join(stopped)} components, of which "
            "one may have the highest bound: increase max_sweeps",
            ApproximationWarning,
            stacklevel=user_level(),
        )
    return run.state._result_of(run, bounds, selection)


def _normal_wishart(kappa: Array, dof: Array, scatter: Array) -> Array:
    """Return log normalisers of Normal–Wishart distributions ``(K,)``, without powers of π."""
    d = scatter.shape[-1]
    log_determinant = -np.linalg.slogdet(scatter)[1]
    gamma = np.array([multigammaln(0.5 * nu, d) for nu in dof])
    return -0.5 * d * np.log(kappa) + 0.5 * dof * (log_determinant + d * np.log(2)) + gamma
