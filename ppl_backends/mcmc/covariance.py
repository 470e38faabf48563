"""A covariance learnt while a chain tunes, in windows that double."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ppl_backends.targets.protocol import Array

__all__ = ["WindowedCovariance"]

FIRST_WINDOW = 100


class WindowedCovariance(NamedTuple):
    """The covariance in use, and the points of the window that will replace it.

    Windows last 100, 200, 400, … steps; at the end of each its covariance, shrunk a little, comes into use and the next
    window begins with nothing, so that the way to the posterior is forgotten.

    Attributes
    ----------
    factor : ndarray (dim, dim)
        Lower Cholesky factor of the covariance in use.
    mean, scatter : ndarray (dim,), (dim, dim)
        Of the points of the present window.
    n_points, length : int
        Points in the window, and when it ends.
    """

    factor: Array
    mean: Array
    scatter: Array
    n_points: int
    length: int

    @classmethod
    def begin(cls, covariance: Array) -> WindowedCovariance:
        """Start with a covariance ``(dim, dim)``."""
        dim = len(covariance)
        return cls(_cholesky(covariance), np.zeros(dim), np.zeros((dim, dim)), 0, FIRST_WINDOW)

    def update(self, x: Array) -> WindowedCovariance:
        """With one more point; compare :attr:`factor` to see whether a new covariance came into use."""
        n = self.n_points + 1
        mean = self.mean + (x - self.mean) / n
        more = self._replace(mean=mean, scatter=self.scatter + np.outer(x - self.mean, x - mean), n_points=n)
        return more.renew(2 * self.length) if n >= self.length else more

    def renew(self, length: int) -> WindowedCovariance:
        """Take the window's covariance into use, if its points ever moved, and begin another of that length."""
        dim, n = len(self.mean), self.n_points
        factor = self.factor
        if n > 1 and (np.diagonal(self.scatter) > 0).all():
            covariance = self.scatter / (n - 1)
            share = n / (n + 5.0)
            spread = np.diag(np.diagonal(covariance))
            factor = _cholesky(share * covariance + (1 - share) * spread)
        return WindowedCovariance(factor, np.zeros(dim), np.zeros((dim, dim)), 0, length)


def _cholesky(covariance: Array) -> Array:
    factor: Array = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
    return factor
