"""Mixtures of Gaussians as approximations of a posterior on the unconstrained space."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import LinAlgError
from scipy.special import logsumexp, ndtri

from ppl_backends.approximations.base import Approximation
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.errors import ModelError
from ppl_backends.numerics.gaussian import LOG_2PI, inside_cube
from ppl_backends.targets.protocol import Array, Index, as_points

BLOCK_BYTES = 2**25
MANY_POINTS = 100  # from here one component at a time is faster than all at once, because less memory is used


class MixtureApproximation(Approximation):
    """Σₖ wₖ N(meanₖ, covₖ) on the unconstrained space.

    Parameters
    ----------
    weights : array (k,)
        Positive; they are scaled to sum to one.
    means : array (k, dim)
    covs : array (k, dim, dim)
    method : str
        Name of the method, for messages and results.
    **about
        ``names``, ``target``, ``converged``, ``log_evidence`` and ``diagnostics``: see
        :class:`~ppl_backends.approximations.base.Approximation`.

    Attributes
    ----------
    dim : int
    mean, sd : ndarray (dim,)
    cov : ndarray (dim, dim)

    Raises
    ------
    ModelError
        If shapes disagree, a weight is not positive or a covariance not positive definite.

    Examples
    --------
    >>> q = MixtureApproximation([0.5, 0.5], [[-1.0], [1.0]], [[[1.0]], [[1.0]]])
    >>> q.mean, q.cov
    (array([0.]), array([[2.]]))
    >>> q.log_density(np.zeros((1, 1))).round(4)
    array([-1.4189])
    """

    representation = "mixture"
    weights: Array
    means: Array
    _cov: Array
    _factors: Array
    _roots: Array
    _log_peak: Array

    def __init__(self, weights: Any, means: Any, covs: Any, *, method: str = "mixture", **about: Any) -> None:
        weights, means, covs = (np.array(part, dtype=np.float64) for part in (weights, means, covs))
        k, dim = means.shape
        if weights.shape != (k,) or covs.shape != (k, dim, dim):
            raise ModelError(f"weights {weights.shape}, means {means.shape} and covs {covs.shape} disagree")
        if not np.all(weights > 0) or not np.isfinite(means).all():
            raise ModelError("the weights of a mixture must be positive and its means finite")
        weights = weights / weights.sum()
        try:
            factors = np.linalg.cholesky(covs)
        except LinAlgError:
            raise ModelError("a covariance of the mixture is not positive definite") from None
        mean = weights @ means
        apart = means - mean
        log_scales = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
        vars(self).update(
            weights=weights,
            means=means,
            mean=mean,
            _cov=np.einsum("k,kij->ij", weights, covs) + (weights * apart.T) @ apart,
            _factors=factors,
            _roots=np.linalg.inv(factors),  # triangular
            _log_peak=np.log(weights) - 0.5 * dim * LOG_2PI - log_scales,
        )
        self._describe(dim, method=method, **about)

    @property
    def n_components(self) -> int:
        """Return the number of Gaussians."""
        return len(self.weights)

    @property
    def cov(self) -> Array:
        return self._cov

    def components(self) -> list[GaussianApproximation]:
        """Return the Gaussians, without their weights."""
        return [
            GaussianApproximation(mean, cholesky=factor, names=self.names, target=self.target, method=self.method)
            for mean, factor in zip(self.means, self._factors, strict=True)
        ]

    def component_sds(self) -> Array:
        """Return marginal standard deviations of every component ``(k, dim)``."""
        return np.sqrt((self._factors**2).sum(axis=2))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return self._color(rng.choice(self.n_components, size=n, p=self.weights), rng.standard_normal((n, self.dim)))

    def from_uniform(self, u: Array) -> Array:
        u = inside_cube(as_points(u, self.dim))
        which, rest = component_of(u[:, 0], self.weights)
        z = ndtri(inside_cube(np.column_stack([rest, u[:, 1:]])))
        return self._color(which, z)

    def _color(self, which: np.ndarray, z: Array) -> Array:
        x = np.empty_like(z)
        for k in np.unique(which):
            at = which == k
            x[at] = self.means[k] + z[at] @ self._factors[k].T
        return x

    def log_density(self, x: Array) -> Array:
        return np.concatenate([logsumexp(self._parts(block)[0], axis=0) for block in self._blocks(x)])

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        values, gradients = [], []
        for block in self._blocks(x):
            parts, white = self._parts(block)
            values.append(logsumexp(parts, axis=0))
            share = np.exp(parts - values[-1])
            gradients.append(-self._pull(share, white))
        return np.concatenate(values), np.concatenate(gradients)

    def _blocks(self, x: Array) -> list[Array]:
        """Return the points in pieces whose temporaries fit ``BLOCK_BYTES``."""
        x = as_points(x, self.dim)
        rows = max(1, BLOCK_BYTES // (8 * self.means.size))
        return [x[start : start + rows] for start in range(0, max(1, len(x)), rows)]

    def _parts(self, x: Array) -> tuple[Array, Array]:
        """Return log of every component's share of the density ``(k, n)``, and whitened points ``(k, n, dim)``."""
        if len(x) < MANY_POINTS:
            white = (x - self.means[:, None]) @ np.swapaxes(self._roots, 1, 2)
        else:
            white = np.empty((self.n_components, len(x), self.dim))
            for out, mean, root in zip(white, self.means, self._roots, strict=True):
                np.matmul(x - mean, root.T, out=out)
        return self._log_peak[:, None] - 0.5 * np.einsum("kni,kni->kn", white, white), white

    def _pull(self, share: Array, white: Array) -> Array:
        """Return Σₖ shareₖ rootₖᵀ whiteₖ ``(n, dim)``."""
        if share.shape[1] < MANY_POINTS:
            return np.einsum("kn,kni,kij->nj", share, white, self._roots, optimize=True)
        total = np.zeros(white.shape[1:])
        for weight, points, root in zip(share, white, self._roots, strict=True):
            total += (weight[:, None] * points) @ root
        return total

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(dim={self.dim}, n_components={self.n_components}, method={self.method!r}, "
            f"converged={self.converged}, log_evidence={self.log_evidence:.6g})"
        )


def component_of(u: Array, weights: Array) -> tuple[Index, Array]:
    """Return which component numbers in (0, 1) ``(n,)`` choose, and where in the component's share of (0, 1) they are."""
    ends = np.cumsum(weights)
    which = np.minimum(np.searchsorted(ends, u), len(ends) - 1)
    return which, (u - (ends - weights)[which]) / weights[which]
