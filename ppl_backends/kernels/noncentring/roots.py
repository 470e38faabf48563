"""Find which coordinates determine the scales and means of others, from points of a density and its gradients.

Given all other coordinates E[(∂ⱼ log π)²] = E[−∂ⱼ² log π], which for a Gaussian is the precision. So log |∂ⱼ log π| is
regressed on the coordinates; a coordinate is a *root* if it clearly explains the slopes of others. The mean of a
Gaussian with variance s², given the other coordinates, is xⱼ + s²∂ⱼ log π, without any noise. If the square of a
coordinate explains its nonlinear part, that coordinate is a root of a curve.

Effects may be along other axes: coordinates are those of y = A⁻¹x. The direction that determines their scales is a
coordinate, if a root was found among these, or the direction on which logarithms of slopes are regressed best. Axes along
which second moments of gradients differ between its two ends are effects. A few observations of many coefficients, whose
scale is unknown, have such a funnel: only the means that were observed are narrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import linalg
from scipy.stats import norm

from ppl_backends.kernels.noncentring.change import size
from ppl_backends.numerics.robust import median_and_width
from ppl_backends.targets.protocol import Array, Index

CLEARLY = 4.5  # standard errors of a slope
_BY_CHANCE = 1e-3  # slopes that are clear by chance, of all that are compared
_SHOWS = 2.5  # the same of an effect whose root is known from others
_LEAST_EFFECT = 0.25  # change of log s, or of a mean in units of s, with a standard deviation of a root
_LEAST_LEFT = 0.05  # share of a coordinate's variance not explained by the roots, above which it may be a root too
_MOST_ROOTS = 20
_MOST_TURNED = 100  # coordinates
_AXES_ROUNDS = 3
_WIDEST = 0.01  # share of the points that have the same, largest weight
_SCALED = 1.0  # change of the logarithm of a variance along an axis
POINTS_A_REGRESSOR = 5
_OUTLYING = 3.0  # standard deviations at which coordinates are cut in regressions
LARGEST_SLOPE = 6.0  # of a log density, by a standard deviation; larger ones are cut


class Roots(NamedTuple):
    """Coordinates ``roots`` that decide scales or means of ``effects``.

    ``slopes`` ``(2, dim, n_effects)`` are those of logarithms of scales on all standardised coordinates, and on their sizes;
    zero except on roots of scales.
    """

    roots: Index
    effects: Index
    slopes: Array

    def without(self, which: int | list[int]) -> Roots:
        """Return the same roots without one or several of the effects."""
        return Roots(self.roots, np.delete(self.effects, which), np.delete(self.slopes, which, axis=2))


def no_roots(dim: int) -> Roots:
    """Return no roots, for ``dim`` coordinates."""
    return Roots(np.empty(0, int), np.empty(0, int), np.empty((2, dim, 0)))


def find_roots(x: Array, gradient: Array, possible: Index, asking: Index) -> Iterator[Roots]:
    """Yield roots of the ``possible`` coordinates whose scales depend on others; then nested ones as well, if there are any.

    A nested root is a coordinate whose scale other roots explain. Roots are chosen one after the other, each time the one
    that explains most of the coordinates ``asking``, which are some of the possible ones; roots are not effects.
    """
    if not len(asking):
        return
    response = -_logs(gradient[:, possible])
    response = np.minimum(response, np.quantile(response, 0.995, axis=0))  # slopes near zero
    standard, _ = standardised(x)
    sizes = size(standard)
    columns = np.hstack([standard, sizes - sizes.mean(axis=0)])
    outer = _choose_roots(columns, response, possible, asking, nested=False)
    yield outer
    nested = _choose_roots(columns, response, possible, asking, nested=True)
    if not np.array_equal(nested.roots, outer.roots):
        yield nested


def _choose_roots(columns: Array, response: Array, possible: Index, asking: Index, nested: bool) -> Roots:
    """Return roots and their effects; ``columns`` ``(n, 2 dim)`` are the coordinates and their sizes."""
    n, dim = len(columns), columns.shape[1] // 2
    asks = np.isin(possible, asking)
    roots: list[int] = []
    found = _slopes_on_roots(columns, response, roots)
    while len(roots) < min(_MOST_ROOTS, n // (2 * POINTS_A_REGRESSOR)):
        strength = (_clear_slopes(columns, response[:, asks], roots, asking) ** 2).sum(axis=(0, 2))
        if not nested:
            strength[possible[(np.abs(found) > _LEAST_EFFECT).any(axis=0)]] = 0.0
        if not strength.any():
            break
        roots.append(int(np.argmax(strength)))
        found = _slopes_on_roots(columns, response, roots)
    found[:, np.isin(possible, roots)] = 0.0
    shown = found.any(axis=0)
    slopes = np.zeros((2 * dim, shown.sum()))
    slopes[_regressors(columns, roots)[0]] = found[:, shown]
    return Roots(np.array(roots, dtype=int), possible[shown], slopes.reshape(2, dim, -1))


def _slopes_on_roots(columns: Array, response: Array, roots: list[int]) -> Array:
    """Return slopes ``(2 n_roots, k)`` of the responses on all roots and their sizes together, if they are clear, else 0.

    An effect that hardly shows its root is in the same neck, so the threshold is lower than for a new root.
    """
    _, basis = _regressors(columns, roots)
    slopes, *_ = np.linalg.lstsq(basis, response, rcond=None)
    error = (response - basis @ slopes).std(axis=0) * np.diag(np.linalg.pinv(basis.T @ basis))[1:, None] ** 0.5
    clearly = np.repeat([_SHOWS, CLEARLY], len(roots))[:, None]
    return np.where(np.abs(slopes[1:]) > clearly * error * copies_of(columns) ** 0.5, slopes[1:], 0.0)


def with_curves(found: Roots, x: Array, gradient: Array, possible: Index) -> Roots:
    """Return roots and effects, including ``possible`` ones whose means, at constant scales, depend on squares of others."""
    n, dim = x.shape
    if dim + 1 > n // POINTS_A_REGRESSOR or not len(possible):
        return found
    standard, spread = standardised(x)
    scale = np.maximum((gradient**2).mean(axis=0), 1e-300) ** -0.5
    mean = x / scale + np.clip(gradient * scale, -LARGEST_SLOPE, LARGEST_SLOPE)
    slopes = _slopes_beside_others((x - x.mean(axis=0)) / spread, standard**2, mean, copies_of(x))
    np.fill_diagonal(slopes, 0.0)
    slopes[found.effects] = slopes[:, found.effects] = slopes[:, found.roots] = 0.0
    slopes[:, np.setdiff1d(np.arange(dim), possible)] = 0.0
    for _ in range(_MOST_ROOTS):
        strength = (slopes**2).sum(axis=1)
        if not strength.any():
            break
        root = int(np.argmax(strength))
        bent = np.flatnonzero(slopes[root])
        found = Roots(
            np.union1d(found.roots, root),
            np.r_[found.effects, bent],
            np.concatenate([found.slopes, np.zeros((2, dim, len(bent)))], axis=2),
        )
        slopes[[root, *bent]] = slopes[:, [root, *bent]] = 0.0
    return found


def _slopes_beside_others(x: Array, columns: Array, responses: Array, copies: float) -> Array:
    """Return slopes ``(dim, dim)`` of responses j on each column, given all coordinates ``x`` but j, if clear, else 0."""
    linear, _ = np.linalg.qr(np.column_stack([np.ones(len(x)), x]))
    columns, responses = columns - columns.mean(axis=0), responses - responses.mean(axis=0)
    # Columns and responses are projected off the residual of coordinate j given the others.
    inverse = np.linalg.inv(x.T @ x)
    alone = x @ inverse / np.sqrt(np.diag(inverse))
    left, known = (alone.T @ columns).T, (alone * responses).sum(axis=0)
    columns, responses = (part - linear @ (linear.T @ part) for part in (columns, responses))
    square = np.maximum((columns**2).sum(axis=0)[:, None] + left**2, 1e-300)
    slopes = (columns.T @ responses + left * known) / square
    residual = (responses**2).sum(axis=0) + known**2 - slopes**2 * square
    return _where_clear(slopes, residual, square, len(x), copies)


def funnel_axes(x: Array, gradient: Array, roots: Index) -> Iterator[Array]:
    """Yield axes A ``(dim, dim)``, the first of which may determine the scales along others.

    It is along the first of ``roots``, which are coordinates, and then along any direction. There are none for too few
    points, or too many coordinates.
    """
    n, dim = x.shape
    if dim > min(_MOST_TURNED, n // (2 * POINTS_A_REGRESSOR)):
        return
    _, spread = standardised(x)
    points = _Standardised((x - np.median(x, axis=0)) / spread, gradient * spread)
    for known in (True, False) if 0 < len(roots) < dim else (False,):
        regressors = roots[:1] if known else np.arange(dim)
        axes = points.funnel_axes(points.log_size_beside(roots) if known else points.log_size(), regressors)
        if axes is not None:
            yield spread[:, None] * (axes / np.linalg.norm(axes, axis=0))


class _Standardised(NamedTuple):
    """Points in units of their spreads, and slopes of the log density ``(n, dim)`` in these units."""

    x: Array
    slope: Array

    def log_size(self) -> Array:
        """Return log lengths ``(n,)`` of the slopes relative to their second moments."""
        factor = np.linalg.cholesky(self.slope.T @ self.slope)
        square = (linalg.solve_triangular(factor, self.slope.T, lower=True) ** 2).sum(axis=0)
        return np.asarray(0.5 * np.log(np.maximum(square, 1e-300)))

    def log_size_beside(self, roots: Index) -> Array:
        """Return means ``(n,)`` of logarithms of the slopes along all coordinates but the roots."""
        return np.asarray(_logs(np.delete(self.slope, roots, axis=1)).mean(axis=1))

    def funnel_axes(self, log_size: Array, regressors: Index) -> Array | None:
        """Return axes, from log sizes of slopes that a direction explains, which is among the coordinates ``regressors``."""
        x, slope = self
        n, dim = x.shape
        direction = np.zeros(dim)
        # If the direction is known, effects are across it
        basis = np.eye(dim) if len(regressors) == dim else np.delete(np.eye(dim), regressors, axis=1)
        across = slope @ basis
        for _ in range(_AXES_ROUNDS):
            direction[regressors], *_ = np.linalg.lstsq(x[:, regressors], log_size - log_size.mean(), rcond=None)
            along = x @ direction  # logarithm of the size of slopes along the effects
            # Where effects are wide, their part of the gradient is nearly zero, and they are known best.
            weights = np.exp(-2.0 * np.maximum(along, np.quantile(along, _WIDEST)))
            moments = [(w * across.T) @ across / w.sum() for w in (weights, along > np.median(along))]
            if not np.isfinite(moments).all():
                return None
            ratio, common = linalg.eigh(*moments)
            change = np.abs(np.log(np.maximum(ratio, 1e-300)))
            if len(change) == dim:
                change[np.argmin(change)] = 0.0  # at least one is a root
            scaled = basis @ common[:, change > _SCALED]
            k = scaled.shape[1]
            if not k:
                return None
            turn, _ = np.linalg.qr(np.column_stack([scaled, direction, np.eye(dim)]))
            along = x @ turn[:, k]
            logs = _logs(slope @ scaled)
            correlated = (along - along.mean()) @ logs
            log_size = logs @ correlated / (np.sign(correlated.sum()) * np.abs(correlated).sum())
        # Slopes by x are A⁻ᵀ times those by y. Only those of the effects and of the direction are not linear in x, so the
        # regression has no noise. Rows of A⁻¹ for effects have to be exact, because effects are narrow in the neck.
        of_effects = slope @ scaled
        rows, *_ = np.linalg.lstsq(np.column_stack([of_effects, x, np.ones(n)]), across, rcond=None)
        rows = rows[:k] @ basis.T
        if k > 1:
            along = along - along.mean()
            rows = self._independent(rows, of_effects, along * (along @ log_size) / (along @ along))
        return np.linalg.inv(np.vstack([turn[:, k:].T, rows]))

    def _independent(self, rows: Array, slopes: Array, along: Array) -> Array:
        """Return rows of A⁻¹ for effects e that are independent, from ``rows`` ``(k, dim)`` that span the same space.

        A slope then depends on its own effect alone, so its mean can be fitted without noise. Their ``slopes`` ``(n, k)``
        are −w Λ(e − h), beside linear parts, with log w twice the log size ``along`` ``(n,)``.
        """
        k, half = len(rows), np.exp(along)[:, None]
        given = np.column_stack([half * (self.x @ rows.T), half, self.x / half])
        coefficients, *_ = np.linalg.lstsq(given, slopes / half, rcond=None)
        precision = -0.5 * (coefficients[:k] + coefficients[:k].T)
        try:
            return np.asarray(np.linalg.cholesky(precision).T @ rows)
        except np.linalg.LinAlgError:  # slopes of no Gaussian
            return rows


def _logs(values: Array) -> Array:
    return np.asarray(np.log(np.maximum(np.abs(values), 1e-300)))


def _regressors(columns: Array, roots: list[int]) -> tuple[Index, Array]:
    """Return the indices of roots and of their sizes among columns, and these columns with a constant one."""
    chosen = np.r_[roots, np.add(roots, columns.shape[1] // 2)].astype(int)
    return chosen, np.column_stack([np.ones(len(columns)), columns[:, chosen]])


def _clear_slopes(columns: Array, response: Array, roots: list[int], possible: Index) -> Array:
    """Return slopes ``(2, dim, n_possible)`` of the responses on one more coordinate, and its size, given the roots.

    Slopes that are not significant are 0.
    """
    q, _ = np.linalg.qr(_regressors(columns, roots)[1])
    slopes = slopes_on(columns - q @ (q.T @ columns), response - q @ (q.T @ response), copies_of(columns))
    slopes = slopes.reshape(2, -1, len(possible))
    slopes[:, possible, np.arange(len(possible))] = 0.0
    slopes[:, :, np.isin(possible, roots)] = 0.0
    return slopes


def standardised(x: Array) -> tuple[Array, Array]:
    """Return coordinates with mean zero in units of their spread, cut far out, and the spread."""
    middle, width = median_and_width(x)
    spread = np.maximum(width, 1e-300)
    standard = np.clip((x - middle) / spread, -_OUTLYING, _OUTLYING)
    return standard - standard.mean(axis=0), spread


def copies_of(x: Array) -> float:
    """Return the mean number of copies of a point."""
    return len(x) / len(np.unique(x[:, 0]))


def slopes_on(columns: Array, responses: Array, copies: float) -> Array:
    """Return slopes ``(p, k)`` of the responses on each column alone, if they are clear, else 0; all have mean zero.

    ``copies`` is the mean number of copies of a point; columns with almost no remaining variance have slope zero.
    """
    square = np.maximum((columns**2).sum(axis=0), 1e-300)[:, None]
    slopes = columns.T @ responses / square
    return _where_clear(slopes, (responses**2).sum(axis=0) - slopes**2 * square, square, len(columns), copies)


def _where_clear(slopes: Array, residual: Array, square: Array, n: int, copies: float) -> Array:
    """Return slopes if they are clear, else 0, from sums of squares of residuals and of regressors."""
    error = np.sqrt(copies * np.maximum(residual, 0.0) / n / square)
    clearly = max(CLEARLY, float(norm.isf(_BY_CHANCE / max(1, slopes.size))))
    clear = np.abs(slopes) > np.maximum(clearly * error, _LEAST_EFFECT)
    return np.where(clear & (square > _LEAST_LEFT * n), slopes, 0.0)
