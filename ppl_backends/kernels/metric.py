r"""The scale of a posterior for kernels: Σ = L Lᵀ, estimated robustly from points.

Kernels work in whitened coordinates y = L⁻¹x, in which the target is roughly isotropic with unit scale; only the
independent kernel needs L⁻¹ and a centre, the others need L z and Lᵀ g.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ppl_backends.numerics.gaps import modes_along_axes
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.numerics.robust import median_and_width
from ppl_backends.targets.blocks import threads_worth_having
from ppl_backends.targets.protocol import Array, Index

# Points further out than this many robust standard deviations are cut to it in the correlations.
_WINSOR = 3.0
_MUCH_NARROWER = 0.5
_POINTS_A_DIRECTION = 20  # distinct ones, from which they determine all directions


def metric_from_points(x: Array, reference: Gaussian | None = None) -> Gaussian:
    """Return a robust covariance of points ``(n, dim)``: quantile scales, winsorised and shrunken correlations.

    If a ``reference`` close to the covariance is given, the covariance is estimated in coordinates that it whitens,
    and shrunk towards the correlations of the reference, because hundreds of points determine the correlations of
    hundreds of coordinates poorly.

    Scales are half the distance between the 16 % and 84 % quantiles, so that a Cauchy tail does not inflate them.
    Correlations are those of the standardised points cut at ±3, shrunk towards zero by the intensity that minimises the
    expected squared error (Schäfer & Strimmer 2005, target D), which keeps the matrix positive definite when dim > n.
    The cut and the shrinkage widen a narrow ridge of collinear coordinates. If there are points enough to determine
    every direction, the directions in which they are much narrower than this covariance have their own scales.
    """
    if reference is not None:
        rest = metric_from_points(reference.whiten(x))
        factor = reference.factor @ rest.factor if rest.factor.ndim == 2 else reference.factor * rest.factor
        return Gaussian(reference.place(np.atleast_2d(rest.mean))[0], factor)
    with threads_worth_having(x.size * x.shape[1]):
        found = _robust_metric(x)
        distinct = len(np.unique(x[:, 0]))  # copies of a few points lie on a ridge, too
        return found if distinct < _POINTS_A_DIRECTION * x.shape[1] else _narrowed(found, x)


def scales_from_points(x: Array, reference: Gaussian | None = None) -> Gaussian:
    """Return the robust scales of equally weighted points ``(n, dim)``, without correlations.

    The ``reference`` is not used, because points determine scales well. The factor of the result is ``(dim,)``.
    """
    centre, scale = median_and_width(x)
    spread = np.abs(x - centre).max(axis=0)
    return Gaussian(centre, np.where(scale > 0, scale, np.where(spread > 0, spread, 1.0)))


METRICS: dict[str, Callable[[Array, Gaussian | None], Gaussian]] = {
    "dense": metric_from_points,
    "diagonal": scales_from_points,
}


def _robust_metric(x: Array) -> Gaussian:
    n, dim = x.shape
    scales = scales_from_points(x)
    if dim == 1:
        return scales
    centre, scale = scales.mean, scales.factor
    z = np.clip((x - centre) / scale, -_WINSOR, _WINSOR)
    z -= z.mean(axis=0)
    z /= np.maximum(z.std(axis=0), 1e-12)
    correlation = z.T @ z / n
    off_diagonal = correlation - np.diag(np.diag(correlation))
    # Var(r_ij) is estimated by the spread of the products z_i z_j over points.
    second = (z**2).T @ (z**2) / n
    noise = (second - correlation**2) / max(n - 1, 1)
    np.fill_diagonal(noise, 0.0)
    total = (off_diagonal**2).sum()
    shrinkage = 1.0 if total == 0 else float(np.clip(noise.sum() / total, 0.0, 1.0))
    if shrinkage == 1.0:
        return Gaussian(centre, scale)
    correlation = (1.0 - shrinkage) * off_diagonal + np.eye(dim)
    try:
        return Gaussian(centre, scale[:, None] * np.linalg.cholesky(correlation))
    except np.linalg.LinAlgError:  # collinear points: keep only eigenvalues above rounding
        eigenvalues, vectors = np.linalg.eigh(correlation)
        root = vectors * np.sqrt(np.maximum(eigenvalues, 1e-10 * eigenvalues[-1]))
        return Gaussian(centre, scale[:, None] * np.linalg.qr(root.T)[1].T)


def _narrowed(metric: Gaussian, x: Array) -> Gaussian:
    """Return the metric with the scales of the points in the directions in which they are much narrower."""
    with np.errstate(over="ignore", invalid="ignore"):  # points in far tails
        y = metric.whiten(x)
        covariance = np.atleast_2d(np.cov(y.T))
    if not np.isfinite(covariance).all() or not median_and_width(x)[1].all():  # most points may share a value
        return metric
    _, axes = np.linalg.eigh(covariance)
    _, width = median_and_width(y @ axes)
    narrow = (width > 0) & (width < _MUCH_NARROWER)
    if not narrow.any():
        return metric
    root = (np.diag(metric.factor) if metric.factor.ndim == 1 else metric.factor) @ (
        axes * np.where(narrow, width, 1.0)
    )
    factor = np.linalg.qr(root.T)[1].T
    return Gaussian(metric.mean, factor * np.sign(np.diag(factor)))


@dataclass(frozen=True)
class SplitMetric:
    """Two metrics, each for one half of the points and estimated from the other.

    If a metric is estimated from the points that it moves, each point stretches the proposals in its own direction,
    and the kernel is no longer invariant: the error per point is of order dim / n, and it accumulates in the evidence
    over stages.
    """

    first: Gaussian
    second: Gaussian
    n_first: int | None = None
    """Number of points in the first half; half of them by default."""
    points: tuple[Array, Array] | None = None
    """Points from which each metric was estimated."""

    def take(self, rows: Index, n: int) -> SplitMetric:
        """Return the metric of some of ``n`` points, given by increasing indices ``rows``."""
        return replace(self, n_first=int(np.searchsorted(rows, self._boundary(n))))

    def halves(self, n: int) -> list[tuple[slice, Array]]:
        """Return for each half its slice of the ``n`` points, and the other half's points in its whitened coordinates."""
        assert self.points is not None
        at = self._boundary(n)
        return [
            (slice(0, at), self.first.whiten(self.points[0])),
            (slice(at, n), self.second.whiten(self.points[1])),
        ]

    def _boundary(self, n: int) -> int:
        return n // 2 if self.n_first is None else self.n_first

    def colour(self, z: Array) -> Array:
        """Return ``L z`` with each part's factor."""
        at = self._boundary(len(z))
        return np.concatenate([self.first.colour(z[:at]), self.second.colour(z[at:])])

    def whiten_gradient(self, gradient: Array) -> Array:
        """Return ``Lᵀ g`` with each part's factor."""
        at = self._boundary(len(gradient))
        return np.concatenate([self.first.whiten_gradient(gradient[:at]), self.second.whiten_gradient(gradient[at:])])

    def place(self, y: Array) -> Array:
        """Return points with whitened coordinates ``y``, each about its part's centre."""
        at = self._boundary(len(y))
        return np.concatenate([self.first.place(y[:at]), self.second.place(y[at:])])

    def whiten(self, x: Array) -> Array:
        """Return whitened coordinates, by each part's factor."""
        at = self._boundary(len(x))
        return np.concatenate([self.first.whiten(x[:at]), self.second.whiten(x[at:])])


def cross_fitted_metric(
    x: Array,
    reference: Gaussian | None = None,
    half: int | None = None,
    n_first: int | None = None,
    kind: str = "dense",
    *,
    local: bool = False,
) -> SplitMetric:
    """Return the metric of each half of the points, fitted to the other half.

    The points are split at ``half``, by default in the middle. If other points are moved, ``n_first`` of these are in
    the first half; by default half of them. ``kind`` is one of :data:`METRICS`. A ``local`` metric is for moves that do
    not cross gaps between modes: see :func:`without_gaps`.
    """
    half, estimate = len(x) // 2 if half is None else half, METRICS[kind]
    points = x[half:], x[:half]
    first, second = (estimate(without_gaps(part) if local else part, reference) for part in points)
    return SplitMetric(first, second, n_first, points)


def without_gaps(x: Array) -> Array:
    """Return points ``(n, dim)`` with the means of separated modes moved to the mean of all.

    Their covariance is that within modes. The distance of the modes would make the steps of a trajectory too long for
    each of them.
    """
    labels = modes_along_axes(x)
    if not labels.any():
        return x
    means = np.stack([x[labels == label].mean(axis=0) for label in range(labels.max() + 1)])
    return np.asarray(x - means[labels] + x.mean(axis=0))


@dataclass(frozen=True)
class ChainMetric:
    """A metric for every chain: its own factor ``(n, dim, dim)`` or ``(n, dim)`` after that of a reference.

    ``centre`` ``(n, dim)`` is in whitened coordinates of the reference.
    """

    reference: Gaussian
    factor: Array
    centre: Array

    def take(self, rows: Index, n: int) -> ChainMetric:
        """Return the metrics of some of the chains."""
        return replace(self, factor=self.factor[rows], centre=self.centre[rows])

    def colour(self, z: Array) -> Array:
        """Return ``L z``."""
        return self.reference.colour(self._own(z))

    def _own(self, z: Array) -> Array:
        found: Array = self.factor * z if self.factor.ndim == 2 else (self.factor @ z[:, :, None])[:, :, 0]
        return found

    def whiten_gradient(self, gradient: Array) -> Array:
        """Return ``Lᵀ g``."""
        first = self.reference.whiten_gradient(gradient)
        return self.factor * first if self.factor.ndim == 2 else (first[:, None, :] @ self.factor)[:, 0]

    def place(self, y: Array) -> Array:
        """Return points with whitened coordinates ``y``, about the centre."""
        return self.reference.place(self.centre + self._own(y))

    def whiten(self, x: Array) -> Array:
        """Return whitened coordinates."""
        y = self.reference.whiten(x) - self.centre
        own = y / self.factor if self.factor.ndim == 2 else np.linalg.solve(self.factor, y[:, :, None])[:, :, 0]
        return np.asarray(own, dtype=np.float64)


AnyMetric = Gaussian | SplitMetric | ChainMetric
