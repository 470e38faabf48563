r"""Changes of variables that straighten funnels: effects standardised by the mean and the scale that they hang on.

In a hierarchy the effects xⱼ have means and scales that other coordinates u decide, and the data know of each as well:

    xⱼ | u ~ N(aⱼ + bⱼ'u, τⱼ²),  log τⱼ = αⱼ + cⱼ'u,    and from the data a precision Pⱼ around dⱼ.

No one step fits the neck and the mouth of such a funnel. Given u the effect has precision sⱼ⁻² = τⱼ⁻² + Pⱼ, of which the
prior has the share wⱼ = sⱼ²/τⱼ², and the mean mⱼ = (1 − wⱼ)dⱼ + wⱼ(aⱼ + bⱼ'u). In zⱼ = (xⱼ − mⱼ)/sⱼ it is a standard normal,
whatever u. With w near one everywhere this is the non-centred parametrisation, where the data decide nothing is left to do,
and between them it is the partially non-centred one (Papaspiliopoulos, Roberts & Sköld 2007). The density of (u, z) is that
of x times ∏ⱼ sⱼ.

Nothing is known of the model but gradients at points of its density π. Given all other coordinates E[(∂ⱼ log π)²] =
E[−∂ⱼ² log π], which for a Gaussian is the precision. So first log |∂ⱼ log π| is regressed on the coordinates: one becomes a
*root* where it clearly explains the slopes of others. Then the precisions are fitted by the likelihood of the slopes, as
N(0, τⱼ⁻² + Pⱼ), and the means by least squares with these weights. The mean of a hierarchy is as narrow as its effects are,
given them: of coordinates that spread together after the change, the one that the others are closest to is left as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from ppl_backends.kernels.protocol import Density
from ppl_backends.numerics.population import Population
from ppl_backends.targets.protocol import Array, Index

_CLEARLY = 4.5  # standard errors of a slope
_SHOWS = 2.5  # the same of an effect whose root is known by others
_LEAST_EFFECT = 0.25  # change of log s with a standard deviation of a root
_LARGEST_LEFT = 0.5  # of such effects after the change
_LEAST_LEFT = 0.05  # share of a coordinate's variance beside the roots, from which it may be one as well
_MOST_ROOTS = 20
_FEWEST_POINTS = 50
_MOST_COORDINATES = 1000  # each is looked at for the scales of all others
_POINTS_A_REGRESSOR = 5
_OUTLYING = 3.0  # standard deviations at which coordinates are cut in regressions
_ROUNDS = 30  # of Fisher scoring
_LARGEST = 10.0  # square of a slope, over the variance fitted, at which it is cut
_LONGEST_STEP = 1.0
_RANGE = 40.0  # of logarithms of scales
_RIDGE = 1e-8
_NO_DATA = -1000.0  # log P where P is zero
_CLEARLY_LIKELIER = 5.0  # nats


class _Scales(NamedTuple):
    """Conditional scales at points: s, log s, and the share w of the prior in the precision, all ``(n, k)``."""

    s: Array
    log_s: Array
    w: Array


@dataclass(frozen=True)
class NonCentring:
    """The change of variables, of k coordinates given the others.

    Attributes
    ----------
    effects, others : ndarray of int
        Coordinates x that are changed, and those that are not, u.
    centre : ndarray (n_others,)
        Of u, from which it is measured.
    log_scale : ndarray (1 + n_others, k)
        α and c.
    log_precision : ndarray (k,)
        log P, −1000 where P is zero.
    mean : ndarray (2 + n_others, k)
        a, d − a and b.
    """

    effects: Index
    others: Index
    centre: Array
    log_scale: Array
    log_precision: Array
    mean: Array

    def to_z(self, x: Array) -> Array:
        """Return points ``(n, dim)`` in the new variables."""
        u = x[:, self.others] - self.centre
        scales = self._scales(u)
        z = x.copy()
        z[:, self.effects] = (x[:, self.effects] - self._mean(u, scales)) / scales.s
        return z

    def to_x(self, z: Array) -> tuple[Array, Array]:
        """Return points in the old variables, and log |dx/dz| ``(n,)``."""
        u = z[:, self.others] - self.centre
        scales = self._scales(u)
        x = z.copy()
        x[:, self.effects] = self._mean(u, scales) + scales.s * z[:, self.effects]
        return x, scales.log_s.sum(axis=1)

    def log_determinant(self, points: Array) -> Array:
        """Return log |dx/dz| ``(n,)`` at points in either variables: it depends on those that they share."""
        total: Array = self._scales(points[:, self.others] - self.centre).log_s.sum(axis=1)
        return total

    def gradient(self, z: Array, gradient: Array) -> Array:
        """Return the gradient of the log density of z, from that of x in x."""
        u = z[:, self.others] - self.centre
        scales = self._scales(u)
        slope = gradient[:, self.effects]
        # d log s / d log τ = w,  dw / d log τ = −2w(1 − w)
        shift = u @ self.mean[2:] - self.mean[1]
        along = slope * (scales.s * z[:, self.effects] - 2.0 * (1.0 - scales.w) * shift) + 1.0
        found = gradient.copy()
        found[:, self.effects] = slope * scales.s
        found[:, self.others] += (slope * scales.w) @ self.mean[2:].T + (along * scales.w) @ self.log_scale[1:].T
        return found

    def _mean(self, u: Array, scales: _Scales) -> Array:
        """Return m = a + (1 − w)(d − a) + wb'u."""
        mean: Array = self.mean[0] + (1.0 - scales.w) * self.mean[1] + scales.w * (u @ self.mean[2:])
        return mean

    def _scales(self, u: Array) -> _Scales:
        return _scales(self.log_scale[0] + u @ self.log_scale[1:], self.log_precision)


def _scales(log_tau: Array, log_precision: Array) -> _Scales:
    """Return s, log s and w of the scales τ and the precisions of the data."""
    log_prior = -2.0 * np.clip(log_tau, -_RANGE, _RANGE)
    total = np.logaddexp(log_prior, log_precision)
    return _Scales(np.exp(-0.5 * total), -0.5 * total, np.exp(log_prior - total))


@dataclass(frozen=True)
class NonCentredPoints(Population):
    """Points z in the new variables; ``here`` is the population of the same points in the old ones."""

    here: Any
    log_determinant: Array
    gradient: Array

    @property
    def log_density(self) -> Array:
        """Return the log density of z ``(n,)``."""
        density: Array = self.here.log_density + self.log_determinant
        return density


def non_centred(change: NonCentring, population: Any, density: Density[Any]) -> tuple[NonCentredPoints, Density[Any]]:
    """Return a population and its density in the new variables, for a kernel to move."""

    def points(z: Array, here: Any, log_determinant: Array) -> NonCentredPoints:
        slope = change.gradient(z, here.gradient)
        # A force of the position alone, whatever it is, leaves trajectories reversible
        return NonCentredPoints(z, here, log_determinant, np.where(np.isfinite(slope), slope, 0.0))

    def at(z: Array, rng: np.random.Generator) -> NonCentredPoints:
        with np.errstate(over="ignore", invalid="ignore"):  # far out, on a trajectory that diverges
            x, log_determinant = change.to_x(z)
            return points(z, density(x, rng), log_determinant)

    z = change.to_z(population.x)
    return points(z, population, change.log_determinant(z)), at


def find_noncentring(x: Array, gradient: Array) -> NonCentring | None:
    """Find the change of variables, from points ``(n, dim)`` of a density and gradients of its logarithm; None for none."""
    inside = np.isfinite(gradient).all(axis=1) & np.isfinite(x).all(axis=1)
    x, gradient = x[inside], gradient[inside]
    if len(x) < _FEWEST_POINTS or not 1 < x.shape[1] <= _MOST_COORDINATES:
        return None
    try:
        with np.errstate(all="ignore"):  # particles in far tails overflow
            change = _find(x, gradient)
            if change is None or not np.isfinite(change.to_z(x)).all():
                return None
    except np.linalg.LinAlgError:
        return None
    return change


def _find(x: Array, gradient: Array) -> NonCentring | None:
    roots = find_roots(x, gradient)
    if roots is None:
        return None
    effects, slopes = roots
    while len(effects):
        change = _fit(x, gradient, effects, slopes)
        level = _level(change, x, slopes)
        if level is None:
            return change
        effects, slopes = np.delete(effects, level), np.delete(slopes, level, axis=1)
    return None


def _fit(x: Array, gradient: Array, effects: Index, slopes: Array) -> NonCentring:
    """Fit the change of these coordinates, by roots where ``slopes`` ``(dim, k)`` are not zero."""
    others = np.setdiff1d(np.arange(x.shape[1]), effects)
    centre = np.median(x[:, others], axis=0)
    u = x[:, others] - centre
    copies = _copies(x)
    log_scale, log_precision = _fit_precisions(u, gradient[:, effects], slopes[others], copies)
    scales = _scales(log_scale[0] + u @ log_scale[1:], log_precision)
    return NonCentring(effects, others, centre, log_scale, log_precision, _fit_means(x[:, effects], u, scales, copies))


def _level(change: NonCentring, x: Array, slopes: Array) -> int | None:
    """Return which of the effects the others are around, where they share a mean that is one of them; None if there is none.

    The mean of a hierarchy is as narrow as its effects, given them. Where it is standardised as they are, by the roots alone,
    all z spread where the scales are small, together.
    """
    z = np.clip(change.to_z(x)[:, change.effects], -1e6, 1e6)
    roots = np.flatnonzero(slopes.any(axis=1))
    standard, _ = _standardised(x[:, roots])
    away = np.abs(z - np.median(z, axis=0))
    spread = np.log(np.maximum(away, 0.01 * np.median(away, axis=0) + 1e-300))
    slopes = _slopes_on(standard, spread - spread.mean(axis=0), _copies(x))
    # The scales grow along the slopes of their logarithms: what is left must go the other way.
    left = slopes * np.sign(change.log_scale[1 + np.searchsorted(change.others, roots)])
    if not np.any(left < -_LARGEST_LEFT):
        return None
    ranks = np.apply_along_axis(rankdata, 0, z)
    return int(np.argmax((np.atleast_2d(np.corrcoef(ranks.T)) ** 2).sum(axis=0)))


def find_roots(x: Array, gradient: Array) -> tuple[Index, Array] | None:
    """Return which coordinates have scales that depend on others, and slopes ``(dim, k)`` of their logarithms; None for none.

    Roots are chosen one after the other, each time the one that explains most; they are not scaled themselves.
    """
    n, dim = x.shape
    response = -np.log(np.maximum(np.abs(gradient), 1e-300))
    response = np.minimum(response, np.quantile(response, 0.995, axis=0))  # slopes next to zero
    standard, sd = _standardised(x)
    roots: list[int] = []
    while len(roots) < min(_MOST_ROOTS, n // _POINTS_A_REGRESSOR):
        slopes = _clear_slopes(standard, response, roots)
        strength = (slopes**2).sum(axis=1)
        if not strength.any():
            break
        roots.append(int(np.argmax(strength)))
    if not roots:
        return None
    basis = np.column_stack([np.ones(n), standard[:, roots]])
    found, *_ = np.linalg.lstsq(basis, response, rcond=None)
    error = (response - basis @ found).std(axis=0) * np.diag(np.linalg.pinv(basis.T @ basis))[1:, None] ** 0.5
    # An effect that hardly shows its root is in the same neck: less is asked for than of a root.
    found = np.where(np.abs(found[1:]) > _SHOWS * error * _copies(x) ** 0.5, found[1:], 0.0)
    found[:, roots] = 0.0
    effects = np.flatnonzero(found.any(axis=0))
    slopes = np.zeros((dim, len(effects)))
    slopes[roots] = found[:, effects] / sd[roots, None]
    return (effects, slopes) if len(effects) else None


def _clear_slopes(standard: Array, response: Array, roots: list[int]) -> Array:
    """Return slopes ``(dim, dim)`` of the responses on one more coordinate beside the roots, where they are clear, else 0."""
    copies = _copies(standard)
    q, _ = np.linalg.qr(np.column_stack([np.ones(len(standard)), standard[:, roots]]))
    slopes = _slopes_on(standard - q @ (q.T @ standard), response - q @ (q.T @ response), copies)
    np.fill_diagonal(slopes, 0.0)
    slopes[:, roots] = 0.0
    return slopes


def _standardised(x: Array) -> tuple[Array, Array]:
    """Return coordinates of mean zero, in units of their spread and cut where they are far out, and the spread."""
    low, middle, high = np.quantile(x, [0.158655, 0.5, 0.841345], axis=0)
    spread = np.maximum(0.5 * (high - low), 1e-300)
    standard = np.clip((x - middle) / spread, -_OUTLYING, _OUTLYING)
    return standard - standard.mean(axis=0), spread


def _copies(x: Array) -> float:
    """Return the mean number of copies of a point."""
    return len(x) / len(np.unique(x[:, 0]))


def _slopes_on(columns: Array, responses: Array, copies: float) -> Array:
    """Return slopes ``(p, k)`` of the responses on each column alone, where they are clear, else 0; all have mean zero.

    ``copies`` is how often a point comes up, on average; columns with next to no variance left have no slope.
    """
    n, square = len(columns), np.maximum((columns**2).sum(axis=0), 1e-300)[:, None]
    slopes = columns.T @ responses / square
    residual = np.maximum((responses**2).sum(axis=0) - slopes**2 * square, 0.0) / n
    clear = np.abs(slopes) > np.maximum(_CLEARLY * np.sqrt(copies * residual / square), _LEAST_EFFECT)
    return np.where(clear & (square > _LEAST_LEFT * n), slopes, 0.0)


def _fit_precisions(u: Array, slope: Array, start: Array, copies: float) -> tuple[Array, Array]:
    """Fit α, c ``(1 + n_others, k)`` and log P ``(k,)`` to slopes ``(n, k)`` of variance τ⁻² + P, from ``start`` for c.

    All P are zero unless others are clearly likelier. The coefficients c of a root are drawn together as far as they differ
    by no more than their errors (Efron & Morris 1973): particles are moved in what is fitted to them, and every coefficient
    of its own holds them back a little.
    """
    used = np.flatnonzero(start.any(axis=1))
    scale = np.maximum(u[:, used].std(axis=0), 1e-300)
    basis = np.column_stack([np.ones(len(u)), u[:, used] / scale])
    fit = _PrecisionFit(basis, np.maximum(slope**2, 1e-300))
    free = np.vstack([np.ones(slope.shape[1], dtype=bool), start[used] != 0])
    first = np.vstack([np.zeros(slope.shape[1]), start[used] * scale[:, None]])
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
    found[0], found[1 + used] = coefficients[0], coefficients[1:] / scale[:, None]
    return found, log_precision


class _PrecisionFit(NamedTuple):
    """Slopes g of variance τ⁻² + P, log τ linear in a basis ``(n, p)``, with ``squares`` g² ``(n, k)``."""

    basis: Array
    squares: Array

    def log_likelihood(self, coefficients: Array, log_precision: Array) -> Array:
        """Return it for every column ``(k,)``."""
        scales = _scales(self.basis @ coefficients, log_precision)
        value: Array = (scales.log_s - 0.5 * np.minimum(self.squares * scales.s**2, _LARGEST)).sum(axis=0)
        return value

    def scoring(self, coefficients: Array, log_precision: Array, free: Array, data: Any) -> tuple[Array, Array]:
        """Return coefficients ``(p, k)`` and log P by Fisher scoring in those that are free; in log P where ``data``."""
        free = np.vstack([free, np.zeros(free.shape[1], dtype=bool) | data])
        for _ in range(_ROUNDS):
            columns, scales = self._columns(coefficients, log_precision, free)
            excess = np.minimum(self.squares * scales.s**2, _LARGEST) - 1.0
            right = np.einsum("npk,nk->kp", columns, excess)
            step = np.linalg.solve(self._gram(columns), right[..., None])[..., 0].T * free
            step *= np.minimum(1.0, _LONGEST_STEP / np.maximum(np.abs(step).max(axis=0), 1e-300))
            coefficients, log_precision = coefficients + step[:-1], log_precision + step[-1]
            if np.abs(step).max() < 1e-3:
                break
        return coefficients, log_precision

    def standard_errors(self, coefficients: Array, log_precision: Array, free: Array) -> Array:
        """Return those of the coefficients ``(p, k)``."""
        all_free = np.vstack([free, (log_precision > _NO_DATA)[None]])
        columns, _ = self._columns(coefficients, log_precision, all_free)
        # Half of the sum of squared d log variance is the information
        variance = 2.0 * np.einsum("kpp->pk", np.linalg.inv(self._gram(columns)))
        return np.sqrt(variance[:-1])

    def _columns(self, coefficients: Array, log_precision: Array, free: Array) -> tuple[Array, _Scales]:
        """Return the derivatives of the log variance ``(n, p + 1, k)``: by log τ they are −2w, by log P 1 − w."""
        scales = _scales(self.basis @ coefficients, log_precision)
        w = scales.w[:, None, :]
        return np.concatenate([-2.0 * w * self.basis[:, :, None], 1.0 - w], axis=1) * free, scales

    def _gram(self, columns: Array) -> Array:
        gram: Array = np.einsum("npk,nqk->kpq", columns, columns, optimize=True)
        return gram + 1e-3 * np.eye(gram.shape[1])


def _drawn_together(values: Array, errors: Array, known: Array) -> Array:
    """Return values ``(p, k)`` drawn towards the mean of their row, of those that are ``known``."""
    weights = np.where(known, 1.0 / np.maximum(errors, 1e-300) ** 2, 0.0)
    mean = (weights * values).sum(axis=1, keepdims=True) / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    apart = (weights * (values - mean) ** 2).sum(axis=1, keepdims=True)
    kept = np.maximum(0.0, 1.0 - (known.sum(axis=1, keepdims=True) - 1.0) / np.maximum(apart, 1e-300))
    return np.where(known, mean + kept * (values - mean), 0.0)


def _fit_means(x: Array, u: Array, scales: _Scales, copies: float) -> Array:
    """Return a, d − a and b ``(2 + n_others, k)`` by least squares of x on 1, 1 − w and wu, weighted by precisions.

    Coefficients b that are not clear are zero. Where nearly all precision is the prior's, d is not to be known, and stays
    near a.
    """
    n, k = x.shape
    many = 2 + u.shape[1] > n // _POINTS_A_REGRESSOR
    w = scales.w[:, None, :]
    columns = np.concatenate([np.ones((n, 1, k)), 1.0 - w, w * (u[:, : 0 if many else None, None])], axis=1)
    columns = columns / scales.s[:, None, :]
    gram = np.einsum("npk,nqk->kpq", columns, columns, optimize=True)
    gram[:, 1, 1] += 1.0 / np.maximum(4.0 * x.var(axis=0), 1e-300)  # d − a ~ N(0, 4 var x) by itself
    size = np.sqrt(np.maximum(np.einsum("kpp->kp", gram), 1e-300))
    scaled = gram / (size[:, :, None] * size[:, None, :]) + _RIDGE * np.eye(gram.shape[1])
    right = np.einsum("npk,nk->kp", columns, x / scales.s) / size
    first = np.linalg.solve(scaled, right[..., None])[..., 0]
    unclear = first**2 < _CLEARLY**2 * copies * np.einsum("kpp->kp", np.linalg.inv(scaled))
    unclear[:, :2] = False
    kept = ~unclear
    scaled = scaled * (kept[:, :, None] & kept[:, None, :]) + unclear[:, :, None] * np.eye(gram.shape[1])
    found = np.zeros((2 + u.shape[1], k))
    found[: gram.shape[1]] = (np.linalg.solve(scaled, (right * kept)[..., None])[..., 0] / size).T
    return found
