"""A multivariate Student t fitted to points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaln

from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.robust import median_and_width

_SWEEPS = 50


@dataclass(frozen=True)
class Student:
    """Multivariate Student t; ``factor`` is the lower Cholesky factor of the scale matrix."""

    location: Array
    factor: Array
    df: float

    @classmethod
    def fit(cls, x: Array, df: float = 5.0) -> Student:
        """Fit location and scale to points ``(n, dim)`` by maximum likelihood: EM, after Lange et al. (1989)."""
        n, dim = x.shape
        location, width = median_and_width(x)
        factor = np.diag(np.where(width > 0, width, 1.0))
        for _ in range(_SWEEPS):
            z = solve_triangular(factor, (x - location).T, lower=True)
            weights = (df + dim) / (df + (z**2).sum(axis=0))
            location = weights @ x / weights.sum()
            scaled = np.sqrt(weights)[:, None] * (x - location)
            factor = np.linalg.cholesky(scaled.T @ scaled / n)
        return cls(location, factor, df)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return independent draws ``(n, dim)``."""
        z = rng.standard_normal((n, len(self.location))) @ self.factor.T
        return self.location + z * np.sqrt(self.df / rng.chisquare(self.df, n))[:, None]

    def log_density(self, x: Array) -> Array:
        """Return the log density ``(n,)``."""
        dim = len(self.location)
        z = solve_triangular(self.factor, (x - self.location).T, lower=True)
        constant = gammaln(0.5 * (self.df + dim)) - gammaln(0.5 * self.df) - 0.5 * dim * np.log(self.df * np.pi)
        peak = constant - np.log(np.diag(self.factor)).sum()
        return peak - 0.5 * (self.df + dim) * np.log1p((z**2).sum(axis=0) / self.df)
