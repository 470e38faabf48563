"""A multivariate Student t fitted to points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaln

from ppl_backends.numerics.arrays import Array

__all__ = ["Student"]


_SWEEPS = 50


@dataclass(frozen=True)
class Student:
    """Multivariate Student t.

    Attributes
    ----------
    location : ndarray (dim,)
    factor : ndarray (dim, dim)
        Lower Cholesky factor of the scale matrix.
    df : float

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal([1.0, -1.0], [1.0, 5.0], size=(5000, 2))
    >>> fitted = Student.fit(x)
    >>> bool(np.abs(fitted.location - [1.0, -1.0]).max() < 0.3)
    True
    """

    location: Array
    factor: Array
    df: float

    @classmethod
    def fit(cls, x: Array, df: float = 5.0) -> Student:
        """Fit location and scale to points ``(n, dim)`` by maximum likelihood, with the EM algorithm of Lange et al. (1989).

        Raises
        ------
        numpy.linalg.LinAlgError
            If the points do not span the space.
        """
        n, dim = x.shape
        low, location, high = np.quantile(x, [0.158655, 0.5, 0.841345], axis=0)
        factor = np.diag(np.where(high > low, 0.5 * (high - low), 1.0))
        for _ in range(_SWEEPS):
            z = solve_triangular(factor, (x - location).T, lower=True)
            weights = (df + dim) / (df + (z**2).sum(axis=0))
            location = weights @ x / weights.sum()
            scaled = np.sqrt(weights)[:, None] * (x - location)
            factor = np.linalg.cholesky(scaled.T @ scaled / n)
        return cls(location, factor, df)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Independent draws ``(n, dim)``."""
        z = rng.standard_normal((n, len(self.location))) @ self.factor.T
        return self.location + z * np.sqrt(self.df / rng.chisquare(self.df, n))[:, None]

    def log_density(self, x: Array) -> Array:
        """Log density ``(n,)``."""
        dim = len(self.location)
        z = solve_triangular(self.factor, (x - self.location).T, lower=True)
        constant = gammaln(0.5 * (self.df + dim)) - gammaln(0.5 * self.df) - 0.5 * dim * np.log(self.df * np.pi)
        peak = constant - np.log(np.diag(self.factor)).sum()
        return peak - 0.5 * (self.df + dim) * np.log1p((z**2).sum(axis=0) / self.df)
