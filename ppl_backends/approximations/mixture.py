"""Mixtures of Gaussians as approximations of a posterior on the unconstrained space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError
from scipy.special import logsumexp, ndtri

from ppl_backends.approximations.gaussian import LOG_2PI, GaussianApproximation, draws_in_model_space
from ppl_backends.errors import ModelError
from ppl_backends.random import SeedLike
from ppl_backends.targets.protocol import Array, BaseTarget, as_points

__all__ = ["MixtureApproximation"]

SMALLEST = 2.0**-53
BLOCK_BYTES = 2**25
MANY_POINTS = 100  # from which on one component after the other is faster than all at once: less memory is touched


class MixtureApproximation:
    """Σₖ wₖ N(meanₖ, covₖ) on the unconstrained space.

    Parameters
    ----------
    weights : array (k,)
        Positive; scaled to sum to one.
    means : array (k, dim)
    covs : array (k, dim, dim)
    names : sequence of str, optional
        Unconstrained names; those of ``target`` by default.
    target : BaseTarget, optional
        What the approximation is of; takes draws to model space.
    method : str
    converged : bool
    log_evidence : float
        NaN where the method has none.
    diagnostics : mapping of str to float, optional
        The method's own figures.

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

    accuracy = "approximate"
    representation = "mixture"
    overlapping = False  # whether the Gaussians together stand for one broad hump, not for modes

    def __init__(
        self,
        weights: Any,
        means: Any,
        covs: Any,
        *,
        names: Sequence[str] | None = None,
        target: BaseTarget | None = None,
        method: str = "mixture",
        converged: bool = True,
        log_evidence: float = float("nan"),
        diagnostics: Mapping[str, float] | None = None,
    ) -> None:
        self.weights, self.means = np.asarray(weights, dtype=np.float64), np.asarray(means, dtype=np.float64)
        covs = np.asarray(covs, dtype=np.float64)
        k, self.dim = self.means.shape
        if self.weights.shape != (k,) or covs.shape != (k, self.dim, self.dim):
            raise ModelError(f"weights {self.weights.shape}, means {self.means.shape} and covs {covs.shape} disagree")
        if not np.all(self.weights > 0) or not np.isfinite(self.means).all():
            raise ModelError("the weights of a mixture must be positive and its means finite")
        self.weights = self.weights / self.weights.sum()
        try:
            self._factors = np.linalg.cholesky(covs)
            self._roots = np.linalg.inv(self._factors)  # triangular
        except LinAlgError:
            raise ModelError("a covariance of the mixture is not positive definite") from None
        self._log_peak = (
            np.log(self.weights)
            - 0.5 * self.dim * LOG_2PI
            - np.log(np.diagonal(self._factors, axis1=1, axis2=2)).sum(axis=1)
        )
        self.mean: Array = self.weights @ self.means
        apart = self.means - self.mean
        self.cov: Array = np.einsum("k,kij->ij", self.weights, covs) + (self.weights * apart.T) @ apart
        self.names = tuple(names if names is not None else target.names if target is not None else _names(self.dim))
        if len(self.names) != self.dim:
            raise ModelError(f"{len(self.names)} names for a mixture over {self.dim} coordinates")
        self.target, self.method, self.converged = target, method, bool(converged)
        self.log_evidence, self.diagnostics = float(log_evidence), dict(diagnostics or {})

    @property
    def n_components(self) -> int:
        """Number of Gaussians."""
        return len(self.weights)

    @property
    def sd(self) -> Array:
        """Marginal standard deviations ``(dim,)``."""
        return np.sqrt(np.diagonal(self.cov))

    def components(self) -> list[GaussianApproximation]:
        """The Gaussians, without their weights."""
        return [
            GaussianApproximation(mean, cholesky=factor, names=self.names, target=self.target, method=self.method)
            for mean, factor in zip(self.means, self._factors, strict=True)
        ]

    def component_sds(self) -> Array:
        """Marginal standard deviations of every component ``(k, dim)``."""
        return np.sqrt((self._factors**2).sum(axis=2))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """``n`` independent draws ``(n, dim)``."""
        return self._color(rng.choice(self.n_components, size=n, p=self.weights), rng.standard_normal((n, self.dim)))

    def from_uniform(self, u: Array) -> Array:
        """Points of the unit cube ``(n, dim)`` to points of this mixture.

        The first coordinate chooses the component, and what is left of it within the component's share, stretched to
        (0, 1), is that component's first coordinate.
        """
        u = np.clip(as_points(u, self.dim), SMALLEST, 1 - SMALLEST)
        ends = np.cumsum(self.weights)
        which = np.minimum(np.searchsorted(ends, u[:, 0]), self.n_components - 1)
        rest = (u[:, 0] - (ends - self.weights)[which]) / self.weights[which]
        z = ndtri(np.clip(np.column_stack([rest, u[:, 1:]]), SMALLEST, 1 - SMALLEST))
        return self._color(which, z)

    def _color(self, which: np.ndarray, z: Array) -> Array:
        x = np.empty_like(z)
        for k in np.unique(which):
            at = which == k
            x[at] = self.means[k] + z[at] @ self._factors[k].T
        return x

    def log_density(self, x: Array) -> Array:
        """Normalised log density ``(n,)`` at points ``(n, dim)``."""
        return np.concatenate([logsumexp(self._parts(block)[0], axis=0) for block in self._blocks(x)])

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Normalised log density ``(n,)`` and its gradient ``(n, dim)``."""
        values, gradients = [], []
        for block in self._blocks(x):
            parts, white = self._parts(block)
            values.append(logsumexp(parts, axis=0))
            share = np.exp(parts - values[-1])
            gradients.append(-self._pull(share, white))
        return np.concatenate(values), np.concatenate(gradients)

    def _blocks(self, x: Array) -> list[Array]:
        """The points in pieces whose temporaries fit ``BLOCK_BYTES``."""
        x = as_points(x, self.dim)
        rows = max(1, BLOCK_BYTES // (8 * self.means.size))
        return [x[start : start + rows] for start in range(0, max(1, len(x)), rows)]

    def _parts(self, x: Array) -> tuple[Array, Array]:
        """Log of every component's share of the density ``(k, n)``, and whitened points ``(k, n, dim)``."""
        if len(x) < MANY_POINTS:
            white = (x - self.means[:, None]) @ np.swapaxes(self._roots, 1, 2)
        else:
            white = np.empty((self.n_components, len(x), self.dim))
            for out, mean, root in zip(white, self.means, self._roots, strict=True):
                np.matmul(x - mean, root.T, out=out)
        return self._log_peak[:, None] - 0.5 * np.einsum("kni,kni->kn", white, white), white

    def _pull(self, share: Array, white: Array) -> Array:
        """Σₖ shareₖ rootₖᵀ whiteₖ ``(n, dim)``."""
        if share.shape[1] < MANY_POINTS:
            return np.einsum("kn,kni,kij->nj", share, white, self._roots, optimize=True)
        total = np.zeros(white.shape[1:])
        for weight, points, root in zip(share, white, self._roots, strict=True):
            total += (weight[:, None] * points) @ root
        return total

    def to_inference_data(self, draws: int = 1000, chains: int = 1, random_seed: SeedLike = None) -> Any:
        """Independent draws in model space as InferenceData, marked as approximate.

        Parameters
        ----------
        draws : int
            Draws a chain. The chains are independent too: convergence diagnostics say nothing here.
        chains : int
        random_seed : int or numpy.random.Generator, optional
        """
        return draws_in_model_space(self, draws, chains, random_seed)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(dim={self.dim}, n_components={self.n_components}, method={self.method!r}, "
            f"converged={self.converged}, log_evidence={self.log_evidence:.6g})"
        )


def _names(dim: int) -> list[str]:
    return [f"x[{j}]" for j in range(dim)]
