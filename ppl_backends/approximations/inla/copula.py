r"""A joint distribution with given marginals: a Gaussian with a separate increasing map for every coordinate.

z ~ N(0, R), with R the correlations of the Gaussian at the mode, and xⱼ = Fⱼ⁻¹(Φ(zⱼ)): the marginals are those asked for,
the dependence is the Gaussian's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.integrate import cumulative_trapezoid
from scipy.interpolate import CubicSpline, PchipInterpolator
from scipy.special import ndtri

from ppl_backends.approximations.base import Approximation
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.marginals import Marginals
from ppl_backends.targets.protocol import Array, BaseTarget, JointEvaluation, as_points

NODES = np.linspace(-5.5, 5.5, 56)  # of the maps, which are linear beyond them
INVERSIONS = 8  # Newton steps from a point to its score


class MarginalMaps:
    """Increasing maps z → x ``(dim,)`` from standard normal scores to given marginals."""

    def __init__(self, marginals: Marginals) -> None:
        x = np.stack([_quantiles(g, p) for g, p in zip(marginals.grid, marginals.density, strict=True)], axis=1)
        self._x = x
        self._c = CubicSpline(NODES, x).c  # (4, nodes - 1, dim)

    def __call__(self, z: Array) -> tuple[Array, Array, Array]:
        """Return x at scores ``z`` ``(n, dim)``, and its first and second derivatives."""
        inside = np.clip(z, NODES[0], NODES[-1])
        piece = np.clip(((inside - NODES[0]) / (NODES[1] - NODES[0])).astype(int), 0, len(NODES) - 2)
        a, b, c, d = self._c[:, piece, np.arange(z.shape[1])]
        t = inside - NODES[piece]
        slope = np.maximum(c + t * (2 * b + 3 * t * a), 1e-300)
        return (
            d + t * (c + t * (b + t * a)) + slope * (z - inside),
            slope,
            np.where(z == inside, 2 * b + 6 * t * a, 0.0),
        )

    def inverse(self, x: Array) -> Array:
        """Return the scores of points ``(n, dim)``."""
        z = np.stack([np.interp(column, nodes, NODES) for column, nodes in zip(x.T, self._x.T, strict=True)], axis=1)
        for _ in range(INVERSIONS):
            value, slope, _ = self(z)
            z = z - np.clip((value - x) / slope, -1e6, 1e6)
        return z


def _quantiles(grid: Array, density: Array) -> Array:
    """Return the quantiles at Φ(nodes), from the probabilities of both ends, so that both tails are accurate."""
    below = cumulative_trapezoid(density, grid, initial=0.0)
    above = cumulative_trapezoid(density[::-1], -grid[::-1], initial=0.0)[::-1]
    total = below[-1]
    with np.errstate(divide="ignore"):
        score = np.where(below < above, ndtri(below / total), -ndtri(above / total))
    kept = np.isfinite(score) & (np.abs(score) < 8)
    kept[kept] = np.diff(score[kept], prepend=-np.inf) > 1e-9
    spline = PchipInterpolator(score[kept], grid[kept])
    low, high = score[kept][[0, -1]]
    slope_low, slope_high = spline(low, 1), spline(high, 1)
    inside = np.clip(NODES, low, high)
    return spline(inside) + np.where(low > NODES, slope_low, slope_high) * (NODES - inside)


class GaussianCopula(Approximation):
    """The distribution of improved Laplace: marginals, and the dependence of the Gaussian at the mode.

    Attributes
    ----------
    names : tuple of str
    mean, sd : ndarray (dim,)
        Moments of the marginals.
    cov : ndarray (dim, dim)
        Covariance from the marginal standard deviations and the correlations of the Gaussian.
    log_evidence, log_evidence_se : float
    gaussian_at_mode : GaussianApproximation
        The Laplace approximation.
    converged : bool
    trouble : str
    diagnostics : dict
    """

    gaussian_at_mode: GaussianApproximation
    _marginals: Marginals
    _maps: MarginalMaps
    _scores: GaussianApproximation  # N(0, R)
    representation = "copula"

    def __init__(self, gaussian: GaussianApproximation, marginals: Marginals, **about: Any) -> None:
        factor = gaussian.cholesky / gaussian.sd[:, None]  # of the correlations, which may round to a singular matrix
        scores = GaussianApproximation(np.zeros(gaussian.dim), cholesky=factor, names=gaussian.names)
        vars(self).update(
            mean=marginals.mean,
            gaussian_at_mode=gaussian,
            _marginals=marginals,
            _maps=MarginalMaps(marginals),
            _scores=scores,
        )
        self._describe(gaussian.dim, **about)

    @property
    def cov(self) -> Array:
        return self._scores.cov * np.outer(self._marginals.sd, self._marginals.sd)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        return self._maps(self._scores.sample(n, rng))[0]

    def from_uniform(self, u: Array) -> Array:
        return self._maps(self._scores.from_uniform(u))[0]

    def log_density(self, x: Array) -> Array:
        return self.log_density_and_gradient(x)[0]

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        z = self._maps.inverse(as_points(x, self.dim))
        _, slope, bend = self._maps(z)
        value, gradient = self._scores.log_density_and_gradient(z)
        return value - np.log(slope).sum(axis=1), (gradient - bend / slope) / slope

    @property
    def scores(self) -> GaussianApproximation:
        """Return N(0, R), the distribution of the scores z."""
        return self._scores

    def in_scores(self, target: BaseTarget) -> BaseTarget:
        """Return a target in the scores z, in which this approximation is N(0, R)."""
        return _InScores(target, self._maps)


class _InScores(BaseTarget):
    """A target as a function of scores, by increasing maps of its coordinates."""

    def __init__(self, target: BaseTarget, maps: MarginalMaps) -> None:
        self._target, self._maps = target, maps
        self.dim, self.names, self.label = target.dim, target.names, target.label

    def with_fixed_batch_size(self) -> BaseTarget:
        return _InScores(self._target.with_fixed_batch_size(), self._maps)

    def evaluate(self, x: Array, gradient: bool = False) -> JointEvaluation:
        x, slope, bend = self._maps(x)
        jacobian = np.log(slope).sum(axis=1)
        if not gradient:
            return JointEvaluation(self._target.log_density(x) + jacobian)
        value, found = self._target.log_density_and_gradient(x)
        return JointEvaluation(value + jacobian, found * slope + bend / slope)
