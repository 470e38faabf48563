"""Fit the means of effects given the coordinates that determine them.

The mean of an effect is (1 − w)d + wh, and both d and h may depend on the coordinates u. In a neck w tends to one and h is
left. Outside it slopes do not follow the fitted precisions exactly. If h takes up the difference, its curve along the
neck misses the effects there by many of their scales. Schwarz's criterion chooses one of three forms:

- d is constant, and h has all regressors;
- the same, and a multiple of s that is left to z, because a skewed effect is on average a multiple of s away from its mode;
- d has all regressors, and h those without the coordinate along which the effect narrows most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.kernels.noncentring.change import Scales, features
from ppl_backends.kernels.noncentring.roots import CLEARLY, POINTS_A_REGRESSOR
from ppl_backends.targets.protocol import Array, Index

LARGEST_DESIGN = 20_000_000  # numbers, in the regressions of all means
_RIDGE = 1e-8
_LEAST_VARIED = 0.1  # standard deviation of log s from which an effect may follow s
_LEAST_OF_DATA = 1e-6  # largest share of the data in a precision, above which d may vary
_EDGE = 3  # columns 1, 1 − w and s, which are always kept or left out as a whole


def fit_means(
    x: Array, u: Array, products: Index, scales: Scales, log_scale: Array, copies: float
) -> tuple[Array, Array]:
    """Return a, b and q ``(1 + n_features, k)`` of h, and the same of d − a.

    Effects x ``(n, k)``, without noise, are regressed on 1, 1 − w, s, and u and its products times w and times 1 − w, with
    precisions as weights. Coefficients of u and its products that are not significant are zero. If nearly all precision is
    the prior's, d cannot be estimated and stays near a. ``log_scale`` ``(1 + 2 n_others, k)`` is α, c and e.
    """
    n, k = x.shape
    u = features(u, products)
    m = u.shape[1]
    used = u[:, : 0 if _EDGE + m > n // POINTS_A_REGRESSOR else None]
    columns = _EDGE + 2 * m
    varies = columns <= n // POINTS_A_REGRESSOR and columns * x.size <= LARGEST_DESIGN
    shares = [scales.w, 1.0 - scales.w] if varies and scales.w.min() < 1.0 - _LEAST_OF_DATA else [scales.w]
    fit = _regressions(x, used, scales, shares, copies)
    plain = np.zeros((k, fit.size.shape[1]), bool)
    plain[:, :2] = plain[:, _EDGE : _EDGE + used.shape[1]] = True
    following = plain.copy()
    following[:, 2] = scales.log_s.std(axis=0) > _LEAST_VARIED
    forms = [fit.pruned(plain), fit.pruned(following)]
    if len(shares) > 1:
        forms.append(fit.pruned(_apart(plain, log_scale, products)))
    found, criterion = (np.array(part) for part in zip(*forms, strict=True))
    # Effects are like each other, and a multiple of s does no harm where an effect has none
    criterion = np.nan_to_num(criterion, nan=np.inf)
    best = np.argmin(criterion + np.median(criterion, axis=1, keepdims=True), axis=0)
    chosen = found[best, np.arange(k)].T
    mean, of_data = np.zeros((2, 1 + m, k))
    mean[0], of_data[0] = chosen[:2]
    for part, coefficients in zip([mean, of_data], np.split(chosen[_EDGE:], len(shares)), strict=False):
        part[1 : 1 + used.shape[1]] = coefficients
    return mean, of_data


def _apart(plain: NDArray[np.bool_], log_scale: Array, products: Index) -> NDArray[np.bool_]:
    """Return the columns ``(k, p)`` if d varies, and h does not along the neck; ``plain`` ones where τ is constant."""
    size = np.abs(np.split(log_scale[1:], 2)).sum(axis=0)
    root = np.argmax(size, axis=0)[:, None]
    of_h = np.hstack([np.arange(len(size)) != root, (products != root[:, :, None]).all(axis=2)])
    edge = plain[:, :_EDGE]
    return np.where(size.any(axis=0)[:, None], np.hstack([edge, of_h, np.ones_like(of_h)]), plain)


class _Regressions(NamedTuple):
    """Regressions of effects x ``(n, k)`` with the precisions as weights.

    Columns are ``edge`` ``(3, n, k)``, and each of the ``shares`` ``(n, k)`` times ``used`` ``(n, m)``. The normal equations
    ``gram`` ``(k, p, p)`` and ``right`` ``(k, p)`` are those of columns divided by their ``size`` ``(k, p)``.
    """

    x: Array
    edge: Array
    shares: list[Array]
    used: Array
    precision: Array
    gram: Array
    right: Array
    size: Array
    copies: float

    def pruned(self, kept: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Return coefficients ``(k, p)``, zero if they are not ``kept`` or not significant, and the criterion ``(k,)``."""
        every, inverse = self._solve(kept)
        error = self._squares(every)[:, None] * inverse
        kept = kept.copy()
        kept[:, _EDGE:] &= (every**2 >= CLEARLY**2 * self.copies * error)[:, _EDGE:]
        some, _ = self._solve(kept)
        n = len(self.x) / self.copies
        return some / self.size, n * np.log(self._squares(some)) + kept.sum(axis=1) * np.log(n)

    def _solve(self, kept: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Return the coefficients of scaled columns, zero unless ``kept``, and the diagonals of the inverses ``(k, p)``."""
        last = 1 + int(np.flatnonzero(kept.any(axis=0))[-1])
        gram, own = self.gram[:, :last, :last], kept[:, :last]
        inverse = np.linalg.inv(np.where(own[:, :, None] & own[:, None, :], gram, np.eye(last)))
        found, diagonal = np.zeros_like(self.size), np.zeros_like(self.size)
        found[:, :last] = np.einsum("kpq,kq->kp", inverse, self.right[:, :last] * own)
        diagonal[:, :last] = np.einsum("kpp->kp", inverse)
        return found, diagonal

    def _squares(self, coefficients: Array) -> Array:
        """Return the mean weighted square ``(k,)`` of what is not explained."""
        by_edge, by_share = np.split((coefficients / self.size).T, [_EDGE])
        left = self.x - np.einsum("ink,ik->nk", self.edge, by_edge)
        for share, own in zip(self.shares, np.split(by_share, len(self.shares)), strict=True):
            left -= share * (self.used @ own)
        return np.asarray((self.precision * left**2).mean(axis=0))


def _regressions(x: Array, used: Array, scales: Scales, shares: list[Array], copies: float) -> _Regressions:
    """Return the regressions with their normal equations."""
    (n, k), m = x.shape, used.shape[1]
    w, precision = scales.w, scales.s**-2
    edge = np.stack([np.ones_like(w), 1.0 - w, scales.s])
    blocks = [slice(_EDGE + i * m, _EDGE + (i + 1) * m) for i in range(len(shares))]
    gram = np.empty((k, _EDGE + m * len(shares), _EDGE + m * len(shares)))
    gram[:, :_EDGE, :_EDGE] = np.einsum("ink,jnk,nk->kij", edge, edge, precision)
    for i, (share, block) in enumerate(zip(shares, blocks, strict=True)):
        by_edge = ((precision * share * edge).transpose(2, 0, 1).reshape(-1, n) @ used).reshape(k, _EDGE, m)
        gram[:, :_EDGE, block], gram[:, block, :_EDGE] = by_edge, by_edge.transpose(0, 2, 1)
        for other, across in zip(shares[: i + 1], blocks, strict=False):
            both = weighted_gram(used, precision * share * other)
            gram[:, block, across] = gram[:, across, block] = both
    gram[:, 1, 1] += 1.0 / np.maximum(4.0 * x.var(axis=0), 1e-300)  # d − a ~ N(0, 4 var x) by itself
    size = np.sqrt(np.maximum(np.einsum("kpp->kp", gram), 1e-300))
    scaled = gram / (size[:, :, None] * size[:, None, :]) + _RIDGE * np.eye(gram.shape[1])
    weighted = precision * x
    right = np.vstack([(edge * weighted).sum(axis=1), *(used.T @ (share * weighted) for share in shares)]).T / size
    return _Regressions(x, edge, shares, used, precision, scaled, right, size, copies)


def weighted_gram(columns: Array, weights: Array) -> Array:
    """Return the sums ``(k, p, p)`` of products of columns ``(n, p)``, with k sets of weights ``(n, k)``."""
    p, k = columns.shape[1], weights.shape[1]
    gram = np.empty((k, p, p))
    if k < p:
        for j in range(k):
            gram[j] = (columns * weights[:, j : j + 1]).T @ columns
        return gram
    by_set = np.ascontiguousarray(weights.T)
    for i in range(p):  # one product of matrices for all sets, several times as fast
        gram[:, i, i:] = gram[:, i:, i] = by_set @ (columns[:, i:] * columns[:, i : i + 1])
    return gram
