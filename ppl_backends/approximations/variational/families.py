r"""Gaussian families as maps of standard normal noise, x = m + F z: F is diagonal, triangular, or has r more columns.

    diagonal     F = diag(s)                      2d parameters
    low_rank     F = diag(s) (B, I), B (d, r)     (2 + r) d
    dense        F lower triangular               d + d (d + 1) / 2

Parameters are measured from a base Gaussian (Laplace's, or the fit at the last sample size), in units of its widths: m
= m₀ + W a, log s = log s₀ + ρ, F = L₀ T. If the posterior is the base, the Hessian of the negative evidence lower
bound is the identity, up to a factor 2 on log scales. So quasi-Newton and gradient steps need no tuning.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from ppl_backends.numerics.gaussian import LOG_2PI, widen_inverse
from ppl_backends.targets.protocol import Array


class Location:
    """The mean m₀ + W a; W is a matrix ``(dim, dim)`` or scales ``(dim,)``."""

    def __init__(self, mean: Array, whitener: Array) -> None:
        self.mean, self.whitener = mean, whitener

    def at(self, a: Array) -> Array:
        """Return the mean ``(dim,)``."""
        return self.mean + (self.whitener @ a if self.whitener.ndim == 2 else self.whitener * a)

    def pull_back(self, slope: Array) -> Array:
        """Return the gradient in a from the gradient in m."""
        return self.whitener.T @ slope if self.whitener.ndim == 2 else self.whitener * slope


class Diagonal:
    """Independent coordinates, plus r common factors: x = m + s (z + B u), with noise (u, z) of r + dim columns.

    The factors use noise columns of their own. With the square root I + B Bᵀ of dim columns instead, directions
    orthogonal to a sample smaller than dim could widen at no cost. ``directions`` of zero are a saddle point; without
    them the family is mean-field.
    """

    def __init__(self, location: Location, scales: Array, directions: Array | None = None) -> None:
        self.location, self.scales, self.dim = location, scales, len(scales)
        self.directions = np.zeros((self.dim, 0)) if directions is None else directions
        self.factors = self.directions.shape[1]
        self.name = "low_rank" if self.factors else "diagonal"

    def start(self) -> Array:
        """Return parameters of the base."""
        return np.zeros(2 * self.dim + self.directions.size)

    def _parts(self, p: Array) -> tuple[Array, Array, Array]:
        d = self.dim
        directions = self.directions + p[2 * d :].reshape(self.directions.shape)
        return self.location.at(p[:d]), self.scales * np.exp(p[d : 2 * d]), directions

    def _white(self, z: Array, b: Array) -> Array:
        """Return z + B u ``(n, dim)``."""
        return z[:, self.factors :] + z[:, : self.factors] @ b.T if self.factors else z

    def points(self, p: Array, z: Array) -> Array:
        """Return x = m + s (z + B u)."""
        mean, scales, b = self._parts(p)
        return mean + scales * self._white(z, b)

    def gradient(self, p: Array, z: Array, slopes: Array) -> Array:
        """Return the gradient of a mean over points."""
        _, scales, b = self._parts(p)
        scaled = slopes * scales
        of_scales = (scaled * self._white(z, b)).mean(axis=0)
        of_directions = scaled.T @ z[:, : self.factors] / len(z)
        return np.concatenate([self.location.pull_back(slopes.mean(axis=0)), of_scales, of_directions.ravel()])

    def score(self, p: Array, z: Array) -> Array:
        """Return −s⁻¹ (I + B Bᵀ)⁻¹ (z + B u)."""
        _, scales, b = self._parts(p)
        return -widen_inverse(self._white(z, b), b) / scales

    def entropy(self, p: Array) -> tuple[float, Array]:
        """Return Σ log s + ½ log |I + BᵀB| + (d/2)(1 + log 2π)."""
        d = self.dim
        _, scales, b = self._parts(p)
        inner = np.eye(b.shape[1]) + b.T @ b
        value = float(np.log(scales).sum() + 0.5 * np.linalg.slogdet(inner)[1]) + 0.5 * d * (1 + LOG_2PI)
        return value, np.concatenate([np.zeros(d), np.ones(d), np.linalg.solve(inner, b.T).T.ravel()])

    def mean_and_sd(self, p: Array) -> tuple[Array, Array]:
        """Return mean and marginal standard deviations."""
        mean, scales, b = self._parts(p)
        return mean, scales * np.sqrt(1 + (b**2).sum(axis=1))

    def factor(self, p: Array) -> tuple[Array, Array | None]:
        """Return the scales, and C of the square factor diag(s)(I + C Cᵀ) of the same covariance."""
        _, scales, b = self._parts(p)
        if not self.factors:
            return scales, None
        vectors, singular, _ = np.linalg.svd(b, full_matrices=False)
        return scales, vectors * np.sqrt(np.sqrt(1 + singular**2) - 1)

    def rebased(self, p: Array) -> Diagonal:
        """Return the family with parameters measured from another member; the whitening of the mean is unchanged."""
        mean, scales, b = self._parts(p)
        return Diagonal(Location(mean, self.location.whitener), scales, b)


class FullRank:
    """Any Gaussian, by a lower triangular factor F = L₀ T; L₀ whitens the mean too."""

    name = "dense"
    factors = 0

    def __init__(self, mean: Array, cholesky: Array) -> None:
        self.mean, self.cholesky, self.dim = mean, cholesky, len(mean)
        self._rows, self._columns = np.tril_indices(self.dim)
        self._diagonal = np.flatnonzero(self._rows == self._columns)
        self._base_log_determinant = float(np.log(np.diagonal(cholesky)).sum())

    def start(self) -> Array:
        """Return parameters of the base."""
        return np.zeros(self.dim + len(self._rows))

    def _triangle(self, p: Array) -> Array:
        """Return T; its diagonal is the exponential of the parameters there."""
        t = p[self.dim :].copy()
        t[self._diagonal] = np.exp(t[self._diagonal])
        triangle = np.zeros((self.dim, self.dim))
        triangle[self._rows, self._columns] = t
        return triangle

    def _parts(self, p: Array) -> tuple[Array, Array]:
        return self.mean + self.cholesky @ p[: self.dim], self.cholesky @ self._triangle(p)

    def points(self, p: Array, z: Array) -> Array:
        """Return x = m + F z."""
        mean, factor = self._parts(p)
        return mean + z @ factor.T

    def gradient(self, p: Array, z: Array, slopes: Array) -> Array:
        """Return the gradient of a mean over points."""
        white = slopes @ self.cholesky
        outer = (white.T @ z)[self._rows, self._columns] / len(z)
        outer[self._diagonal] *= np.exp(p[self.dim :][self._diagonal])
        return np.concatenate([white.mean(axis=0), outer])

    def score(self, p: Array, z: Array) -> Array:
        """Return −F⁻ᵀ z."""
        return -solve_triangular(self._parts(p)[1], z.T, lower=True, trans="T", check_finite=False).T

    def entropy(self, p: Array) -> tuple[float, Array]:
        """Return log |F| + (d/2)(1 + log 2π)."""
        gradient = np.zeros(len(p))
        gradient[self.dim + self._diagonal] = 1.0
        value = self._base_log_determinant + float(p[self.dim :][self._diagonal].sum())
        return value + 0.5 * self.dim * (1 + LOG_2PI), gradient

    def mean_and_sd(self, p: Array) -> tuple[Array, Array]:
        """Return mean and marginal standard deviations."""
        mean, factor = self._parts(p)
        return mean, np.sqrt((factor**2).sum(axis=1))

    def factor(self, p: Array) -> tuple[Array, Array | None]:
        """Return the triangle."""
        return self._parts(p)[1], None

    def rebased(self, p: Array) -> FullRank:
        """Return the family with parameters measured from another member."""
        return FullRank(*self._parts(p))


Family = Diagonal | FullRank
"""``p`` is the flat parameter vector of a member, zero at the base; ``factors`` counts the columns of noise before
those of the coordinates."""


def make_family(name: str, mean: Array, cholesky: Array, rank: int, rng: np.random.Generator) -> Any:
    """Return the family of that name around a Gaussian given by its factor, a triangle or standard deviations.

    Mean-field starts from the conditional standard deviations, which are optimal if the posterior is Gaussian; low
    rank starts from these and the widest directions of the remainder.
    """
    dim = len(mean)
    if name == "dense":
        return FullRank(mean, cholesky if cholesky.ndim == 2 else np.diag(cholesky))
    if cholesky.ndim == 1:
        location, scales = Location(mean, cholesky), cholesky
        directions = 0.1 * rng.standard_normal((dim, rank)) / np.sqrt(dim)
    else:
        inverse = solve_triangular(cholesky, np.eye(dim), lower=True, check_finite=False)
        scales = 1 / np.sqrt((inverse**2).sum(axis=0))
        location = Location(mean, cholesky)
        directions = _widest(cholesky / scales[:, None], rank) if name == "low_rank" else np.zeros((dim, 0))
    return Diagonal(location, scales, directions if name == "low_rank" else None)


def _widest(root: Array, rank: int) -> Array:
    """Return B such that I + B Bᵀ has the ``rank`` largest eigenvalues of the matrix root rootᵀ, at least one."""
    vectors, singular, _ = np.linalg.svd(root)
    return vectors[:, :rank] * np.sqrt(np.maximum(singular[:rank] ** 2 - 1, 1e-4))
