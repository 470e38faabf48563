"""Fit the change of variables to points of a density and its gradients.

Roots are found first (:mod:`~ppl_backends.kernels.noncentring.roots`). Then the precisions are fitted by the
likelihood of the slopes ∂ⱼ log π, as N(0, τⱼ⁻² + Pⱼ), and the means by least squares with these weights. The mean of a
hierarchy is as narrow as its effects are, given them. So if coordinates spread together after the change, the one that
the others are closest to is not changed. Nor are several means of a nested hierarchy, which a second change standardises
(:mod:`~ppl_backends.kernels.noncentring.nested`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.kernels.noncentring.change import RANGE, NonCentring, features, scales_of, size
from ppl_backends.kernels.noncentring.means import LARGEST_DESIGN, fit_means, weighted_gram
from ppl_backends.kernels.noncentring.nested import AnyNonCentring, NestedNonCentring, means_among
from ppl_backends.kernels.noncentring.roots import (
    CLEARLY,
    LARGEST_SLOPE,
    POINTS_A_REGRESSOR,
    Roots,
    copies_of,
    find_roots,
    funnel_axes,
    no_roots,
    slopes_on,
    standardised,
    with_curves,
)
from ppl_backends.kernels.noncentring.sharpen import Fitted, sharpened
from ppl_backends.targets.blocks import threads_worth_having
from ppl_backends.targets.protocol import Array, Index

_LARGEST_LEFT = 0.5  # of slopes of log s after the change, by a standard deviation of a root
_CLEARLY_NEARER = 1.0  # to a Gaussian
_LINEAR = 0.01  # nonlinear share of the variance of a slope below which the slope counts as linear
_NONLINEAR = 0.3  # nonlinear share from which a coordinate asks for a root: its scale varies by a third
_FOLLOWS = 0.1  # nonlinear share from which a coordinate is an effect of a root that others ask for
_FEWEST_POINTS, _POINTS = 50, 1000
_MOST_COORDINATES = 1000  # each is tested for the scales of all others
_MOST_LEVELS = 4
_ROUNDS = 20  # of Fisher scoring
_LARGEST = 10.0  # square of a slope, over the variance fitted, at which it is cut
_LONGEST_STEP = 1.0
_CONVERGED = 1e-3  # expected gain of one more round, in nats
_NO_DATA = -1000.0  # log P where P is zero
_CLEARLY_LIKELIER = 5.0  # nats


def find_noncentring(x: Array, gradient: Array) -> AnyNonCentring | None:
    """Return the change of variables, from points ``(n, dim)`` and gradients of a log density; None if none helps."""
    inside = np.isfinite(gradient).all(axis=1) & np.isfinite(x).all(axis=1)
    x, gradient = x[inside], gradient[inside]
    if len(x) < _FEWEST_POINTS or not 1 < x.shape[1] <= _MOST_COORDINATES:
        return None
    try:
        with np.errstate(all="ignore"), threads_worth_having(0):  # particles in far tails overflow
            change = _find(x, gradient)
            if change is None or not np.isfinite(change.to_z(x)).all():
                return None
    except np.linalg.LinAlgError:
        return None
    return change


def _find(x: Array, gradient: Array, among: Index | None = None) -> AnyNonCentring | None:
    """Find the change that makes the density clearly nearer to a Gaussian than simpler ones do; return None if none does.

    Scales along other axes are looked for only if at least half of the coordinates that ask for a root still do so with
    the best change along the coordinates. With ``among``, only these coordinates are changed, not along other axes.
    """
    step = max(1, len(x) // _POINTS)
    some, slope = x[::step], gradient[::step]  # to choose with
    nonlinear = _nonlinear(some, slope)
    best = _Nearest(nonlinear)
    if among is None:
        best = _nearest(_along_coordinates(some, slope, nonlinear), some, slope, best)
        if 2 * _asking(best.nonlinear).size >= _asking(nonlinear).size:
            with suppress(np.linalg.LinAlgError):  # a coordinate without slopes
                best = _nearest(_along_axes(some, slope, nonlinear), some, slope, best)
    else:
        asking = np.where(np.isin(np.arange(x.shape[1]), among), nonlinear, 0.0)
        best = _nearest(_along_roots(None, asking, some, slope), some, slope, best)
    if best.candidate is None or best.change is None:
        return None
    change = best.change if step == 1 else _fit(x, gradient, best.candidate.roots, best.candidate.axes)
    return _with_means(change, best.candidate.means, x, gradient)


def _with_means(change: NonCentring, means: Index, x: Array, gradient: Array) -> AnyNonCentring:
    """Return the change of effects, followed by that of the ``means`` that they vary around, if one helps."""
    if len(means) < 2:  # a single one is the root of a hierarchy
        return change
    z = change.to_z(x)
    inner = _find(z, change.gradient(z, gradient), means) if np.isfinite(z).all() else None
    return change if inner is None else NestedNonCentring(change, inner)


class _Candidate(NamedTuple):
    """Roots among coordinates along axes, the precisions if they are fitted already, and means that effects vary around."""

    roots: Roots
    axes: Array | None
    precisions: tuple[Array, Array] | None = None
    means: Index = np.empty(0, int)


class _Nearest(NamedTuple):
    """The candidate that is nearest to a Gaussian, its change, and the nonlinear shares ``(dim,)`` that it leaves."""

    nonlinear: Array
    candidate: _Candidate | None = None
    change: NonCentring | None = None


def _nearest(candidates: Iterator[_Candidate], x: Array, gradient: Array, best: _Nearest) -> _Nearest:
    """Return ``best``, or a candidate that is clearly nearer; none is tried once no coordinate asks for a root."""
    while _asking(best.nonlinear).size and (candidate := next(candidates, None)) is not None:
        change = _fit(x, gradient, candidate.roots, candidate.axes, candidate.precisions)
        z = change.to_z(x)
        if np.isfinite(z).all():
            left = _nonlinear(z, change.gradient(z, gradient))
            if _distance_from_gaussian(left) < _distance_from_gaussian(best.nonlinear) - _CLEARLY_NEARER:
                best = _Nearest(left, candidate, change)
    return best


def _along_coordinates(x: Array, gradient: Array, nonlinear: Array) -> Iterator[_Candidate]:
    """Yield roots of curves only, and of scales along the coordinates; ``nonlinear`` ``(dim,)`` are their shares."""
    yield from _along(None, no_roots(x.shape[1]), nonlinear, x, gradient)
    yield from _along_roots(None, nonlinear, x, gradient)


def _along_axes(x: Array, gradient: Array, nonlinear: Array) -> Iterator[_Candidate]:
    """Yield roots of scales along other axes, with these axes; ``nonlinear`` ``(dim,)`` are shares of the coordinates."""
    found = next(
        find_roots(x, gradient, np.flatnonzero(nonlinear >= _FOLLOWS), _asking(nonlinear)), no_roots(x.shape[1])
    )
    for axes in funnel_axes(x, gradient, found.roots):
        turned, slope = _turned(x, gradient, axes)
        shares = _nonlinear(turned, slope)
        shares[0] = 0.0  # it is the direction that determines scales
        yield from _along_roots(axes, shares, turned, slope)


def _along_roots(axes: Array | None, nonlinear: Array, x: Array, gradient: Array) -> Iterator[_Candidate]:
    """Yield roots of scales among the coordinates that follow others."""
    for roots in find_roots(x, gradient, np.flatnonzero(nonlinear >= _FOLLOWS), _asking(nonlinear)):
        yield from _along(axes, roots, nonlinear, x, gradient)


def _asking(nonlinear: Array) -> Index:
    """Return the coordinates that ask for a root."""
    return np.flatnonzero(nonlinear >= _NONLINEAR)


def _along(axes: Array | None, roots: Roots, nonlinear: Array, x: Array, gradient: Array) -> Iterator[_Candidate]:
    """Yield roots among coordinates along axes, without and with those of curves; nothing if there are no effects."""
    found, n_found = roots, len(roots.effects)
    roots, precisions, closest, means = _without_level(roots, x, gradient)
    if len(roots.effects):
        yield _Candidate(roots, axes, precisions, _left_out(found, roots, axes))
    if axes is None and 2 < len(roots.effects) == n_found:  # a level where few points are in the neck
        yield _Candidate(roots.without(closest), axes)
    around = found.without(list(means))
    if axes is None and 1 < len(around.effects) < n_found and not np.array_equal(around.effects, roots.effects):
        yield _Candidate(around, axes, None, _left_out(found, around, axes))
    curved = with_curves(roots, x, gradient, _asking(nonlinear))
    if len(curved.effects) > len(roots.effects):
        yield _Candidate(curved, axes)


def _left_out(found: Roots, kept: Roots, axes: Array | None) -> Index:
    """Return the effects that were not kept, because others vary around them; none along other axes."""
    return np.setdiff1d(found.effects, kept.effects) if axes is None else np.empty(0, int)


def _turned(x: Array, gradient: Array, axes: Array) -> tuple[Array, Array]:
    return np.asarray(np.linalg.solve(axes, x.T).T), gradient @ axes


def _distance_from_gaussian(nonlinear: Array) -> float:
    """Return the sum of logarithms of the nonlinear shares; all slopes of a Gaussian are linear."""
    return float(np.log(nonlinear + _LINEAR).sum())


def _nonlinear(z: Array, gradient: Array) -> Array:
    """Return 1 − R² ``(dim,)`` of slopes regressed on coordinates."""
    n, dim = z.shape
    z, gradient = z - z.mean(axis=0), gradient - gradient.mean(axis=0)
    total = np.maximum((gradient**2).sum(axis=0), 1e-300)
    if dim + 1 > n // POINTS_A_REGRESSOR:  # each on itself only
        explained = (z * gradient).sum(axis=0) ** 2 / np.maximum((z**2).sum(axis=0), 1e-300)
    else:
        q, _ = np.linalg.qr(z)
        explained = ((q.T @ gradient) ** 2).sum(axis=0)
    return np.maximum(1.0 - explained / total, 0.0)


def _fit(
    x: Array,
    gradient: Array,
    found: Roots,
    axes: Array | None,
    precisions: tuple[Array, Array] | None = None,
    sharp: bool = True,
) -> NonCentring:
    """Fit the change of the effects, of coordinates along axes; ``precisions`` if they are fitted to the same points."""
    if axes is not None:
        x, gradient = _turned(x, gradient, axes)
    effects, others = found.effects, np.setdiff1d(np.arange(x.shape[1]), found.effects)
    centre = np.median(x[:, others], axis=0)
    _, spread = standardised(x[:, others])
    u = (x[:, others] - centre) / spread
    copies, sized = copies_of(x), np.hstack([u, size(u)])
    start = found.slopes[:, others].reshape(-1, len(effects))
    log_scale, log_precision = precisions or _fit_precisions(sized, gradient[:, effects], start, copies)
    products = _products(np.searchsorted(others, found.roots), len(others), effects.size * len(x), len(x))
    # Without the noise of x, for a Gaussian density
    scales = scales_of(log_scale[0] + sized @ log_scale[1:], log_precision)
    centred = x[:, effects] + scales.s * np.clip(scales.s * gradient[:, effects], -LARGEST_SLOPE, LARGEST_SLOPE)
    means = fit_means(centred, u, products, scales, log_scale, copies)
    fitted = Fitted(log_scale, log_precision, *means)
    if sharp:
        regressors = np.column_stack([np.ones(len(x)), sized]), features(u, products)
        fitted = sharpened(x, gradient, effects, regressors, copies, fitted)
    log_scale, log_precision, mean, of_data = fitted
    return NonCentring(effects, others, centre, spread, log_scale, log_precision, products, mean, of_data, axes)


def _products(roots: Index, n_others: int, size: int, n: int) -> Index:
    """Return pairs ``(n_pairs, 2)`` of a root and another coordinate of u; none if there are too many."""
    pairs = np.array([(i, j) for i in roots for j in range(n_others) if j not in roots or i <= j], int).reshape(-1, 2)
    columns = 2 + n_others + len(pairs)
    return pairs if columns <= n // POINTS_A_REGRESSOR and columns * size <= LARGEST_DESIGN else pairs[:0]


class _Level(NamedTuple):
    """Roots without levels, precisions (None if not fitted), and the effect that the others are closest to.

    ``means`` are those of the effects found at first that others vary around, by the correlations of their slopes.
    """

    roots: Roots
    precisions: tuple[Array, Array] | None = None
    closest: int = 0
    means: tuple[int, ...] = ()


def _without_level(found: Roots, x: Array, gradient: Array) -> _Level:
    """Return the same roots without effects around which others spread.

    Such effects are means that the others share. The mean of a hierarchy is as narrow as its effects, given them. If it
    is standardised like them, by the roots alone, all z spread together at small scales.
    """
    roots = np.flatnonzero(found.slopes[0].any(axis=1))
    standard, _ = standardised(x[:, roots])
    means: tuple[int, ...] | None = None
    for _ in range(_MOST_LEVELS + 1):
        if not len(found.effects):
            break
        change = _fit(x, gradient, found._replace(roots=found.roots[:0]), None, sharp=False)
        means = _means(change, x, gradient) if means is None else means
        z = np.clip(change.to_z(x)[:, change.effects], -1e6, 1e6)
        away = np.abs(z - np.median(z, axis=0))
        spread = np.log(np.maximum(away, 0.01 * np.median(away, axis=0) + 1e-300))
        slopes = slopes_on(standard, spread - spread.mean(axis=0), copies_of(x))
        # The scales grow along the slopes of their logarithms: the remainder must go the other way.
        left = slopes * np.sign(change.log_scale[1 + np.searchsorted(change.others, roots)])
        if not np.any(left < -_LARGEST_LEFT):
            return _Level(found, (change.log_scale, change.log_precision), _closest(z), means)
        found = found.without(_closest(z))
    return _Level(found, means=means or ())


def _means(change: NonCentring, x: Array, gradient: Array) -> tuple[int, ...]:
    """Return which of the effects are means of others."""
    slopes = gradient[:, change.effects] * change.given(x).scales.s
    return means_among(np.clip(slopes, -LARGEST_SLOPE, LARGEST_SLOPE), CLEARLY * (copies_of(x) / len(x)) ** 0.5)


def _closest(z: Array) -> int:
    """Return the column with the largest rank correlations with the others."""
    ranks = np.argsort(np.argsort(z, axis=0), axis=0)  # copies of a point have adjacent ranks
    return int(np.argmax((np.atleast_2d(np.corrcoef(ranks.T)) ** 2).sum(axis=0)))


def _fit_precisions(u: Array, slope: Array, start: Array, copies: float) -> tuple[Array, Array]:
    """Fit α, c and e ``(1 + 2 n_others, k)`` and log P ``(k,)`` to slopes ``(n, k)`` of variance τ⁻² + P.

    Fisher scoring starts at ``start`` for c and e. All P are zero unless other values are clearly more likely. The
    coefficients of a root are shrunk towards their mean as far as they differ by no more than their errors (Efron &
    Morris 1973), because particles are moved by what is fitted to them, and every separate coefficient slows them down
    slightly.
    """
    used = np.flatnonzero(start.any(axis=1))
    basis = np.column_stack([np.ones(len(u)), u[:, used]])
    fit = _PrecisionFit(basis, np.maximum(slope**2, 1e-300))
    free = np.vstack([np.ones(slope.shape[1], dtype=bool), start[used] != 0])
    first = np.vstack([np.zeros(slope.shape[1]), start[used]])
    first[0] = -0.5 * ((np.log(fit.squares) + 2.0 * basis @ first).mean(axis=0) + 1.27)  # E log χ² = −1.27
    without = fit.scoring(first, np.full(slope.shape[1], _NO_DATA), free, False)
    with_data = fit.scoring(without[0], -2.0 * (basis @ without[0]).max(axis=0), free, True)
    gain = fit.log_likelihood(*with_data) - fit.log_likelihood(*without)
    known = bool(gain.sum() > copies * max(_CLEARLY_LIKELIER, len(gain)))
    coefficients, log_precision = with_data if known else without
    error = fit.standard_errors(coefficients, log_precision, free) * copies**0.5
    coefficients[1:] = _drawn_together(coefficients[1:], error[1:], free[1:])
    free[1:] = False
    coefficients, log_precision = fit.scoring(coefficients, log_precision, free, known)
    found = np.zeros((1 + u.shape[1], slope.shape[1]))
    found[0], found[1 + used] = coefficients[0], coefficients[1:]
    return found, log_precision


class _PrecisionFit(NamedTuple):
    """Slopes g of variance τ⁻² + P, log τ linear in a basis ``(n, p)``, with ``squares`` g² ``(n, k)``."""

    basis: Array
    squares: Array

    def log_likelihood(self, coefficients: Array, log_precision: Array) -> Array:
        """Return the log likelihood for every column ``(k,)``."""
        scales = scales_of(self.basis @ coefficients, log_precision)
        value: Array = (scales.log_s - 0.5 * np.minimum(self.squares * scales.s**2, _LARGEST)).sum(axis=0)
        return value

    def scoring(
        self, coefficients: Array, log_precision: Array, free: NDArray[np.bool_], data: Any
    ) -> tuple[Array, Array]:
        """Return coefficients ``(p, k)`` and log P by Fisher scoring in the free ones, and in log P if ``data``."""
        if not data:
            return self._scoring_of_scales(coefficients, free), log_precision
        fitted = np.vstack([coefficients, log_precision])
        free = np.vstack([free, np.ones(free.shape[1], dtype=bool)])
        moving = np.arange(free.shape[1])
        for _ in range(_ROUNDS):
            scales = scales_of(self.basis @ fitted[:-1, moving], fitted[-1, moving])
            excess = np.minimum(self.squares[:, moving] * scales.s**2, _LARGEST) - 1.0
            by_scale, by_data = -2.0 * self.basis.T @ (scales.w * excess), ((1.0 - scales.w) * excess).sum(axis=0)
            right = np.vstack([by_scale, by_data]) * free[:, moving]
            gram = self._gram(scales.w, free[:, moving])
            step = _cut(np.linalg.solve(gram, right.T[..., None])[..., 0].T * free[:, moving])
            fitted[:, moving] += step
            moving = moving[(step * right).sum(axis=0) >= _CONVERGED]
            if not len(moving):
                break
        return fitted[:-1], fitted[-1]

    def _scoring_of_scales(self, coefficients: Array, free: NDArray[np.bool_]) -> Array:
        """Return coefficients by Fisher scoring if all P are zero: the information is that of the basis, 4 B'B."""
        square, ridge = 4.0 * self.basis.T @ self.basis, 1e-3 * np.eye(self.basis.shape[1])
        inverse = np.stack([np.linalg.inv(square * np.outer(own, own) + ridge) for own in free.T])
        fitted, moving = coefficients.copy(), np.arange(free.shape[1])
        for _ in range(_ROUNDS):
            log_tau = np.clip(self.basis @ fitted[:, moving], -RANGE, RANGE)
            excess = np.minimum(self.squares[:, moving] * np.exp(2.0 * log_tau), _LARGEST) - 1.0
            right = -2.0 * (self.basis.T @ excess) * free[:, moving]
            step = _cut(np.einsum("kpq,qk->pk", inverse[moving], right) * free[:, moving])
            fitted[:, moving] += step
            moving = moving[(step * right).sum(axis=0) >= _CONVERGED]
            if not len(moving):
                break
        return fitted

    def standard_errors(self, coefficients: Array, log_precision: Array, free: NDArray[np.bool_]) -> Array:
        """Return the standard errors of the coefficients ``(p, k)``."""
        all_free = np.vstack([free, (log_precision > _NO_DATA)[None]])
        gram = self._gram(scales_of(self.basis @ coefficients, log_precision).w, all_free)
        # Half of the sum of squared d log variance is the information
        return np.sqrt(2.0 * np.einsum("kpp->pk", np.linalg.inv(gram))[:-1])

    def _gram(self, w: Array, free: NDArray[np.bool_]) -> Array:
        """Return sums over points ``(k, p + 1, p + 1)`` of products of derivatives of the log variance.

        By log τ they are −2w, by log P 1 − w.
        """
        p = self.basis.shape[1]
        gram = np.empty((w.shape[1], p + 1, p + 1))
        gram[:, :p, :p] = 4.0 * weighted_gram(self.basis, w**2)
        gram[:, p, :p] = gram[:, :p, p] = -2.0 * (w * (1.0 - w)).T @ self.basis
        gram[:, p, p] = ((1.0 - w) ** 2).sum(axis=0)
        return np.where(free.T[:, :, None] & free.T[:, None, :], gram, 0.0) + 1e-3 * np.eye(p + 1)


def _cut(step: Array) -> Array:
    """Return steps ``(p, k)``, shortened if they are too long."""
    cut: Array = step * np.minimum(1.0, _LONGEST_STEP / np.maximum(np.abs(step).max(axis=0), 1e-300))
    return cut


def _drawn_together(values: Array, errors: Array, known: Array) -> Array:
    """Return values ``(p, k)`` shrunk towards the mean of the ``known`` ones in their row."""
    weights = np.where(known, 1.0 / np.maximum(errors, 1e-300) ** 2, 0.0)
    mean = (weights * values).sum(axis=1, keepdims=True) / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    apart = (weights * (values - mean) ** 2).sum(axis=1, keepdims=True)
    kept = np.maximum(0.0, 1.0 - (known.sum(axis=1, keepdims=True) - 1.0) / np.maximum(apart, 1e-300))
    return np.where(known, mean + kept * (values - mean), 0.0)
