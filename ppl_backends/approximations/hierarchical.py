r"""A density in which each coordinate has its own distribution given the earlier ones: a triangular map from a Gaussian.

Coordinates that explain most of the other coordinates' means or spreads come first; usually these are the
hyper-parameters of a hierarchy. They are called *hubs*. Each hub, and then every other coordinate, has a mean that is
a polynomial of second degree in the whitened hubs before it, and a log standard deviation that is linear in them.
Residuals of the other coordinates may depend linearly on residuals of earlier ones: on all of them if there are enough
draws for a covariance, else on the few with a significant correlation. The remainder has Jones & Pewsey's (2009)
sinh-arcsinh distribution, which is skewed and has heavier or lighter tails than a Gaussian.

Coefficients that are not significant are zero, so that 20,000 draws suffice for 2,000 coordinates. A funnel, a normal
hierarchy given its scales, and a Gaussian with any covariance are of this form.

Jones, M. C. and Pewsey, A. (2009). Sinh-arcsinh distributions. *Biometrika* 96, 761–780.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from scipy.special import ndtri

from ppl_backends.approximations.base import Approximation
from ppl_backends.numerics.gaussian import LOG_2PI, inside_cube
from ppl_backends.targets.protocol import Array, Index, as_points

_HUBS = 10
_SHOWS = 4.0  # standard errors of a coefficient or a correlation that is significant
_NEIGHBOURS = 8
_DRAWS_PER_SQUARE = 8
_STRUCTURE_DRAWS = 4000  # draws from which hubs and neighbours are chosen
_FURTHEST = 4.0  # whitened hubs are cut here if they curve a mean or change a spread
_SCALE_ROUNDS = 5
_LOG_NORMAL = 0.6352  # minus the mean of log |ξ| for standard normal ξ
_LARGEST_PULL = 9.0  # largest squared residual in the fit of a spread
_QUANTILES = 400
_BOUNDS = ((None, None), (None, None), (-2.0, 2.0), (np.log(0.4), np.log(2.5)))


class _Shape(NamedTuple):
    """e = a + b sinh((asinh ξ + ε)/δ) of standard normal ξ, for every column: ``(dim,)`` each."""

    a: Array
    b: Array
    skew: Array
    tail: Array

    def forward(self, xi: Array) -> Array:
        return self.a + self.b * np.sinh((np.arcsinh(xi) + self.skew) / self.tail)

    def inverse(self, e: Array) -> tuple[Array, Array]:
        """Return ξ, and log density of e, ``(n, dim)`` each."""
        y = (e - self.a) / self.b
        xi = np.sinh(np.clip(self.tail * np.arcsinh(y) - self.skew, -300.0, 300.0))
        slope = 0.5 * np.log1p(xi**2) - 0.5 * np.log1p(y**2) + np.log(self.tail / self.b)
        return xi, -0.5 * (xi**2 + LOG_2PI) + slope


class _Given(NamedTuple):
    """Coefficients of the mean ``(1 + 2 hubs, k)`` and log standard deviation ``(1 + hubs, k)`` of columns given hubs."""

    mean: Array
    log_sd: Array

    def at(self, hubs: Array) -> tuple[Array, Array]:
        """Return means and log standard deviations ``(n, k)`` at whitened hubs ``(n, hubs)``."""
        features = _features(hubs)
        linear = np.clip(features[:, : 1 + hubs.shape[1]], -_FURTHEST, _FURTHEST)
        return features @ self.mean, linear @ self.log_sd


class HierarchicalApproximation(Approximation):
    """A triangular map of a standard Gaussian, fitted to points; see the module's docstring.

    Points ``(n, dim)`` are standardised by ``mean`` and ``spread``; their coordinates are in the order ``order``.
    """

    representation = "given"
    order: Index
    spread: Array
    _parts: list[tuple[_Given, _Shape]]
    _rest: _Given
    _among: Any
    _shape: _Shape
    _points: Array

    def __init__(self, x: Array) -> None:
        mean, spread = x.mean(axis=0), x.std(axis=0)
        z = (x - mean) / spread
        hubs = _hubs(z)
        order = np.r_[hubs, np.setdiff1d(np.arange(x.shape[1]), hubs)]
        z = z[:, order]
        white, parts = np.empty((len(x), len(hubs))), []
        for j in range(len(hubs)):
            given = _fit_given(z[:, [j]], white[:, :j])
            centre, log_sd = given.at(white[:, :j])
            shape = _fit_shape((z[:, [j]] - centre) * np.exp(-log_sd))
            white[:, [j]], _ = shape.inverse((z[:, [j]] - centre) * np.exp(-log_sd))
            parts.append((given, shape))
        rest = _fit_given(z[:, len(hubs) :], white)
        centre, log_sd = rest.at(white)
        residual = (z[:, len(hubs) :] - centre) * np.exp(-log_sd)
        among = _fit_among(residual)
        shape = _fit_shape(residual - residual @ among.T)
        vars(self).update(
            mean=mean, spread=spread, order=order, _parts=parts, _rest=rest, _among=among, _shape=shape, _points=x
        )
        self._describe(x.shape[1], method="draws")

    @property
    def cov(self) -> Array:
        """Return the covariance ``(dim, dim)`` of the points that the density was fitted to."""
        return np.atleast_2d(np.cov(self._points.T))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return self._place(rng.standard_normal((n, self.dim)))

    def from_uniform(self, u: Array) -> Array:
        return self._place(ndtri(inside_cube(as_points(u, self.dim))))

    def _place(self, xi: Array) -> Array:
        """Return the points with whitened coordinates ``(n, dim)``, in their order."""
        n_hubs = len(self._parts)
        z, hubs = np.empty_like(xi), xi[:, :n_hubs]
        for j, (given, shape) in enumerate(self._parts):
            centre, log_sd = given.at(hubs[:, :j])
            z[:, [j]] = centre + np.exp(log_sd) * shape.forward(xi[:, [j]])
        centre, log_sd = self._rest.at(hubs)
        residual = _solve_among(self._among, self._shape.forward(xi[:, n_hubs:]))
        z[:, n_hubs:] = centre + np.exp(log_sd) * residual
        x = np.empty_like(z)
        x[:, self.order] = z
        return self.mean + self.spread * x

    def log_density(self, x: Array) -> Array:
        z = ((as_points(x, self.dim) - self.mean) / self.spread)[:, self.order]
        n_hubs = len(self._parts)
        hubs, total = np.empty((len(z), n_hubs)), np.full(len(z), -np.log(self.spread).sum())
        for j, (given, shape) in enumerate(self._parts):
            centre, log_sd = given.at(hubs[:, :j])
            hubs[:, [j]], logs = shape.inverse((z[:, [j]] - centre) * np.exp(-log_sd))
            total += (logs - log_sd)[:, 0]
        centre, log_sd = self._rest.at(hubs)
        residual = (z[:, n_hubs:] - centre) * np.exp(-log_sd)
        _, logs = self._shape.inverse(residual - residual @ self._among.T)
        density: Array = total + (logs - log_sd).sum(axis=1)
        return density


def _features(hubs: Array) -> Array:
    """Return 1, ξ and (ξ² − 1)/√2 of whitened hubs, with the last cut, ``(n, 1 + 2 hubs)``: orthonormal for a Gaussian."""
    cut = np.clip(hubs, -_FURTHEST, _FURTHEST)
    return np.hstack([np.ones((len(hubs), 1)), hubs, (cut**2 - 1.0) / np.sqrt(2.0)])


def _hubs(z: Array) -> Index:
    """Return the coordinates of standardised points that explain most of the others, the best first."""
    rows = _normal_scores(z[:: -(-len(z) // _STRUCTURE_DRAWS)])
    n = len(rows)
    tells = (rows.T @ rows / n) ** 2 + (rows.T @ _normal_scores(np.abs(rows)) / n) ** 2
    np.fill_diagonal(tells, 0.0)
    score = np.where(tells > _SHOWS**2 / n, tells, 0.0).sum(axis=1)
    return np.argsort(-score, kind="stable")[:_HUBS]


def _normal_scores(z: Array) -> Array:
    """Return normal quantiles of the ranks within each column."""
    ranks = np.argsort(np.argsort(z, axis=0), axis=0)
    return np.asarray(ndtri((ranks + 0.5) / len(z)))


def _fit_given(z: Array, hubs: Array) -> _Given:
    """Fit means by least squares and log standard deviations by scoring; keep significant coefficients.

    If standard deviations depend on hubs, means are fitted again with weights.
    """
    features = _features(hubs)
    linear = np.clip(features[:, : 1 + hubs.shape[1]], -_FURTHEST, _FURTHEST)
    mean = _least_squares(features, z)
    log_sd = _fit_scale(linear, z - features @ mean)
    for j in np.flatnonzero(log_sd[1:].any(axis=0)):
        weight = np.exp(-(linear @ log_sd[:, [j]]))
        mean[:, [j]] = _least_squares(features * weight, z[:, [j]] * weight)
        log_sd[:, [j]] = _fit_scale(linear, z[:, [j]] - features @ mean[:, [j]])
    return _Given(mean, log_sd)


def _least_squares(features: Array, z: Array) -> Array:
    """Return coefficients ``(features, k)``, zero if not significant by a test that allows for unequal variances."""
    inverse = np.linalg.pinv(features)
    found = inverse @ z
    error = np.sqrt(inverse**2 @ (z - features @ found) ** 2)
    found[1:] = np.where(np.abs(found[1:]) > _SHOWS * error[1:], found[1:], 0.0)
    return np.asarray(found)


def _fit_scale(linear: Array, residual: Array) -> Array:
    """Return coefficients ``(features, k)`` of the log standard deviation of residuals, zero if not significant.

    A regression of log |residual| starts scoring steps, which maximise the likelihood of the cut residuals.
    """
    square, inverse = np.maximum(residual**2, 1e-12), np.linalg.pinv(linear)
    start = 0.5 * np.log(square)
    log_sd = inverse @ start
    error = np.sqrt((inverse**2).sum(axis=1))[:, None]
    log_sd[1:] = np.where(np.abs(log_sd[1:]) > _SHOWS * error[1:] * start.std(axis=0), log_sd[1:], 0.0)
    log_sd[0] += _LOG_NORMAL
    shown = log_sd != 0.0
    shown[0] = True
    for _ in range(_SCALE_ROUNDS):
        pull = np.minimum(square * np.exp(-2.0 * (linear @ log_sd)), _LARGEST_PULL) - 1.0
        log_sd = np.where(shown, log_sd + 0.5 * (inverse @ pull), 0.0)
    return np.asarray(log_sd)


def _fit_among(residual: Array) -> Any:
    """Return regressions of residuals on earlier ones: a strictly lower triangular matrix, dense or sparse."""
    n, dim = residual.shape
    if dim < 2:
        return np.zeros((dim, dim))
    if _DRAWS_PER_SQUARE * dim**2 <= n:
        factor = np.linalg.cholesky(np.cov(residual.T) + 1e-12 * np.eye(dim))
        root = solve_triangular(factor, np.eye(dim), lower=True)
        return np.eye(dim) - np.diag(factor)[:, None] * root
    rows = residual[:: -(-n // _STRUCTURE_DRAWS)]
    rows = np.clip((rows - rows.mean(axis=0)) / rows.std(axis=0), -_FURTHEST, _FURTHEST)
    correlation = np.tril(rows.T @ rows / len(rows), -1)
    # Bound on the largest of dim²/2 correlations if all are zero
    bound = (_SHOWS + np.sqrt(2.0 * np.log(dim))) / np.sqrt(len(rows))
    correlation[np.abs(correlation) < bound] = 0.0
    found = sparse.lil_matrix((dim, dim))
    for j in np.flatnonzero(correlation.any(axis=1)):
        near = np.argsort(-np.abs(correlation[j]))[: min(_NEIGHBOURS, np.count_nonzero(correlation[j]))]
        found[j, near] = np.linalg.lstsq(residual[:, near], residual[:, j], rcond=None)[0]
    return found.tocsr()


def _solve_among(among: Any, noise: Array) -> Array:
    """Return residuals ``(n, dim)`` that equal ``noise`` after their regressions are subtracted."""
    if not sparse.issparse(among):
        return solve_triangular(np.eye(len(among)) - among, noise.T, lower=True, unit_diagonal=True).T
    residual = noise.copy()
    for j in np.flatnonzero(np.diff(among.indptr)):
        row = among.getrow(j)
        residual[:, j] += residual[:, row.indices] @ row.data
    return residual


def _fit_shape(e: Array) -> _Shape:
    """Fit sinh-arcsinh distributions to columns with skewness or non-Gaussian tails; Gaussians to the others."""
    n, dim = e.shape
    mean, sd = e.mean(axis=0), e.std(axis=0)
    shape = _Shape(mean, sd, np.zeros(dim), np.ones(dim))
    ordered = np.sort((e - mean) / sd, axis=0)
    cut = np.clip(ordered, -_FURTHEST, _FURTHEST)
    skew, tail = (cut**3).mean(axis=0) / np.sqrt(6.0 / n), ((cut**4).mean(axis=0) - 3.0) / np.sqrt(24.0 / n)
    at = np.unique(((np.arange(_QUANTILES) + 0.5) * n / _QUANTILES).astype(np.intp))
    for j in np.flatnonzero((np.abs(skew) > _SHOWS) | (np.abs(tail) > _SHOWS)):
        best = minimize(_minus_height, np.zeros(4), (ordered[at, j],), jac=True, method="L-BFGS-B", bounds=_BOUNDS)
        one = _fitted(best.x)
        shape.a[j], shape.b[j] = mean[j] + sd[j] * one.a, sd[j] * one.b
        shape.skew[j], shape.tail[j] = one.skew, one.tail
    return shape


def _fitted(parameters: Array) -> _Shape:
    a, log_b, skew, log_tail = parameters
    return _Shape(a, np.exp(log_b), skew, np.exp(log_tail))


def _minus_height(parameters: Array, e: Array) -> tuple[float, Array]:
    """Return minus the mean log density of points ``(n,)``, and its gradient by a, log b, ε and log δ."""
    shape = _fitted(parameters)
    y = (e - shape.a) / shape.b
    xi, logs = shape.inverse(e)
    by_argument = xi / np.sqrt(1.0 + xi**2) - xi * np.sqrt(1.0 + xi**2)  # by δ asinh y − ε
    by_y = by_argument * shape.tail / np.sqrt(1.0 + y**2) - y / (1.0 + y**2)
    slopes = np.stack([-by_y / shape.b, -y * by_y - 1.0, -by_argument, by_argument * shape.tail * np.arcsinh(y) + 1.0])
    return -float(logs.mean()), -slopes.mean(axis=1)
