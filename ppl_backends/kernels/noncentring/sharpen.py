r"""Sharpen fitted scales and precisions by the slopes themselves, which have no noise.

The variance of slopes determines scales with the noise of a variance: 1,000 points give a precision P of data that is small
beside τ⁻² to a third. With a wrong P the fitted mean is curved. This does no harm where there are points. But in a neck
that no point has reached yet, scales are so small that effects are far from a curved mean. If effects and data are
Gaussian, the slope of an effect is

    ∂ log π/∂xⱼ = −τⱼ⁻²(xⱼ − hⱼ) − Pⱼ(xⱼ − dⱼ) − r'x

exactly, with r for the correlation of the data's Gaussian with other coordinates, if these are not too many. For data that
are not Gaussian, a square and a cube of xⱼ are added. The method of Gauss and Newton fits α, c, e, P, d, h and r to it by
least squares, in units of 1/s. Its result is used for those effects whose slopes it explains much better, if their variance
is not much less likely.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.kernels.noncentring.change import RANGE, scales_of
from ppl_backends.targets.protocol import Array, Index

_POINTS = 500
_ROUNDS = 20
_MOST_HALVINGS = 4
_LONGEST_STEP = 1.0  # of logarithms of scales
_CONVERGED = 0.1  # relative decrease of the sum of squares
_RIDGE = 1e-10
_CLEARLY_LESS, _LARGEST_LEFT = 0.25, 0.01  # share unexplained, of that before and of all
_AS_LIKELY = 5.0  # nats by which the fit may be less likely, as the variance of the slopes
_NO_INFLUENCE = 1e-8  # relative
_EXPLAINED = 1e-8  # share of a slope's square that is not worth explaining
_LARGEST = 6.0  # slope in units of 1/s, beyond which points count less
_MOST_WORK = 64_000_000  # products of numbers in a step
_POINTS_A_REGRESSOR = 3
_NEGLIGIBLE = 1e-6  # P, relative to the least τ⁻²
_EXACT = 1e-20


class Fitted(NamedTuple):
    """α, c and e ``(1 + 2 n_others, k)``, log P ``(k,)``, and a, b and q ``(1 + n_features, k)`` of h and of d − a."""

    log_scale: Array
    log_precision: Array
    mean: Array
    of_data: Array


class _Fit(NamedTuple):
    """A fit of k effects: α, c, e ``(p, k)``, a, b ``(1 + n_features, k)``, and P, Pd, a curve and r ``(4 + dim, k)``."""

    log_scale: Array
    mean: Array
    data: Array


class _Slopes(NamedTuple):
    """Effects and their slopes ``(n, k)`` with weights, and the regressors of log τ, of the prior's mean and of the data.

    ``free`` ``(p, k)`` says which coefficients of log τ are fitted. The regressors of the data ``(n, 4 + dim, k)`` differ
    between effects.
    """

    x: Array
    slope: Array
    weight: Array
    basis: Array
    free: NDArray[np.bool_]
    features: Array
    known: Array


def sharpened(
    x: Array,
    gradient: Array,
    effects: Index,
    regressors: tuple[Array, Array],
    copies: float,
    found: Fitted,
) -> Fitted:
    """Return the fit, replaced for effects whose slopes are then explained clearly better.

    ``regressors`` are those of log τ ``(n, 1 + 2 n_others)`` and of the means, at points x ``(n, dim)``. The sharpened d is
    constant.
    """
    log_scale, log_precision, mean, of_data = found
    used = np.flatnonzero(log_scale.any(axis=1))
    p, n = len(used) + 5 + regressors[1].shape[1], min(len(x), _POINTS)
    others = _affordable(n, p + x.shape[1], len(effects))
    if not others and not _affordable(n, p, len(effects)):
        return found
    rows = np.arange(n) * len(x) // n
    x, slope, basis = x[rows], gradient[rows][:, effects], regressors[0][rows][:, used]
    centre = mean[0]
    precision = np.exp(log_precision)
    known = np.vstack([precision, precision * of_data[0], np.zeros((2 + others * x.shape[1], len(effects)))])
    start = _Fit(log_scale[used], np.vstack([np.zeros_like(centre), mean[1:]]), known)
    scales = scales_of(basis @ start.log_scale, log_precision)
    data = _Slopes(
        x[:, effects] - centre,
        slope,
        scales.s / np.maximum(1.0, np.abs(scales.s * slope) / _LARGEST),
        basis,
        log_scale[used] != 0,
        np.column_stack([np.ones(n), regressors[1][rows]]),
        _of_data(x, effects, centre, others),
    )
    fit = _without_negative(data, _fit(data, start))
    varying = precision * (regressors[1][rows] @ of_data[1:])
    before, after = _unexplained(data._replace(slope=slope - varying), start), _unexplained(data, fit)
    less_likely = _log_likelihood(data, start) - _log_likelihood(data, fit)
    nearly_all = after < np.minimum(_LARGEST_LEFT, _CLEARLY_LESS * before)
    better = nearly_all & (before > _EXPLAINED) & (less_likely < _AS_LIKELY * copies)
    scale = log_scale.copy()
    scale[used] = np.where(better, fit.log_scale, start.log_scale)
    precision = fit.data[0]
    from_data = np.where(precision > 0, fit.data[1] / np.where(precision > 0, precision, 1.0), fit.mean[0])
    constant = np.zeros_like(of_data)
    constant[0] = from_data - fit.mean[0]
    return Fitted(
        scale,
        np.where(better, _log(precision), log_precision),
        np.where(better, np.vstack([centre + fit.mean[0], fit.mean[1:]]), mean),
        np.where(better, constant, of_data),
    )


def _affordable(n: int, p: int, k: int) -> bool:
    """Return whether there are enough points for p regressors of k effects, and not too much work in one step."""
    return n >= _POINTS_A_REGRESSOR * p and n * p**2 * k <= _MOST_WORK


def _of_data(x: Array, effects: Index, centre: Array, with_others: bool) -> Array:
    """Return regressors of the slopes of the data: the effect, a constant, a curve of it, and perhaps other coordinates."""
    standard = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-300)
    own = standard[:, effects]
    columns = [x[:, effects] - centre, -np.ones_like(own), own**2 - 1.0, own**3 - 3.0 * own]
    own_columns = np.stack(columns, axis=1)
    if not with_others:
        return own_columns
    return np.concatenate([own_columns, standard[:, :, None] * (np.arange(x.shape[1])[:, None] != effects)], axis=1)


def _log(precision: Array) -> Array:
    """Return log P, −1000 where P is zero."""
    return np.where(precision > 0, np.log(np.maximum(precision, 1e-300)), -1000.0)


def _without_negative(data: _Slopes, fit: _Fit) -> _Fit:
    """Return the fit with P zero, and no influence of the data, where P is negative or negligible."""
    least = _NEGLIGIBLE * np.exp(-2.0 * (data.basis @ fit.log_scale).max(axis=0))
    return fit._replace(data=np.where(fit.data[0] > least, fit.data, 0.0))


def _log_likelihood(data: _Slopes, fit: _Fit) -> Array:
    """Return the log likelihood ``(k,)`` of the slopes as Gaussians of variance τ⁻² + P."""
    scales = scales_of(data.basis @ fit.log_scale, _log(fit.data[0]))
    value: Array = (scales.log_s - 0.5 * np.minimum((scales.s * data.slope) ** 2, _LARGEST**2)).sum(axis=0)
    return value


def _fit(data: _Slopes, fit: _Fit) -> _Fit:
    """Fit by the method of Gauss and Newton, with steps halved until the sum of squares is less."""
    total = _unexplained(data, fit)
    for _ in range(_ROUNDS):
        step, size, before = _step(data, fit), np.ones(len(total)), total
        for _ in range(_MOST_HALVINGS):
            left = _unexplained(data, _moved(fit, step, size))
            if (left <= total).all():
                break
            size = np.where(left <= total, size, 0.5 * size)
        size = np.where(left <= total, size, 0.0)
        fit, total = _moved(fit, step, size), np.where(left <= total, left, total)
        if not ((total < (1.0 - _CONVERGED) * before) & (total > _EXACT)).any():
            break
    return fit


def _moved(fit: _Fit, step: _Fit, size: Array) -> _Fit:
    return _Fit(*(old + size * change for old, change in zip(fit, step, strict=True)))


def _of_prior(data: _Slopes, fit: _Fit) -> tuple[Array, Array]:
    """Return the weighted τ⁻² ``(n, k)`` and τ⁻²(x − h)."""
    weighted = data.weight * np.exp(-2.0 * np.clip(data.basis @ fit.log_scale, -RANGE, RANGE))
    return weighted, weighted * (data.x - data.features @ fit.mean)


def _residual(data: _Slopes, fit: _Fit) -> Array:
    """Return the weighted part of the slopes ``(n, k)`` that is not explained."""
    known = np.einsum("nqk,qk->nk", data.known, fit.data)
    left: Array = data.weight * (data.slope + known) + _of_prior(data, fit)[1]
    return left


def _unexplained(data: _Slopes, fit: _Fit) -> Array:
    """Return the share ``(k,)`` of the weighted squares of the slopes that is not explained."""
    weighted = data.weight * data.slope
    share: Array = (_residual(data, fit) ** 2).sum(axis=0) / np.maximum((weighted**2).sum(axis=0), 1e-300)
    return np.where(np.isfinite(share), share, np.inf)


def _step(data: _Slopes, fit: _Fit) -> _Fit:
    """Return the step of Gauss and Newton for every effect."""
    weighted, prior = _of_prior(data, fit)
    parts = [
        -2.0 * prior[:, None, :] * data.basis[:, :, None] * data.free,
        -weighted[:, None, :] * data.features[:, :, None],
        data.weight[:, None, :] * data.known,
    ]
    columns = np.concatenate(parts, axis=1)
    gram = np.einsum("npk,nqk->kpq", columns, columns, optimize=True)
    right = -np.einsum("npk,nk->kp", columns, _residual(data, fit))
    length = np.sqrt(np.maximum(np.einsum("kpp->kp", gram), 1e-300))
    none = length < _NO_INFLUENCE * length.max(axis=1, keepdims=True)
    scaled = np.where(none[:, :, None] | none[:, None, :], 0.0, gram / (length[:, :, None] * length[:, None, :]))
    scaled += (_RIDGE + none)[:, :, None] * np.eye(gram.shape[1])
    step = (np.linalg.solve(scaled, np.where(none, 0.0, right / length)[..., None])[..., 0] / length).T
    logs, rest = np.split(step, [data.basis.shape[1]])
    size = np.minimum(1.0, _LONGEST_STEP / np.maximum(np.abs(logs).max(axis=0), 1e-300))
    return _Fit(size * logs, *np.split(size * rest, [data.features.shape[1]]))
