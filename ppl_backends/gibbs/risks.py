"""Empirical risks r_n(θ) as batched functions of points: of linear scores, of functions, and of PyTensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.gibbs.auc import auc_hinge_risk, auc_risk, pair_risk
from ppl_backends.gibbs.losses import Hinge, Loss, PairLoss, ZeroOne
from ppl_backends.targets.factors.sites import Array
from ppl_backends.targets.observations import Observations
from ppl_backends.targets.protocol import Index, as_points

BLOCK_BYTES = 2**26


class LinearRisk:
    """Mean loss of the scores s = Xθ + offset, where θ are the coordinates ``columns``."""

    def __init__(self, loss: Loss, X: Array, y: Array, offset: Array, columns: Index, dim: int) -> None:
        self.loss, self.X, self.y, self.offset, self.columns, self.dim = loss, X, y, offset, columns, dim
        self.n = len(X)
        self.has_gradient = loss.has_gradient
        self.pairs = isinstance(loss, PairLoss)
        self.positive = y > 0
        self.above, self.below = np.flatnonzero(self.positive), np.flatnonzero(~self.positive)

    def all_pairs(self) -> tuple[Index, Index]:
        """Return the rows of each class in every pair ``(n₊ n₋,)``; that of the first class varies more slowly."""
        return np.repeat(self.above, len(self.below)), np.tile(self.below, len(self.above))

    def pair_labels(self, i: Index, j: Index) -> Array:
        """Return the labels of pairs: 1, or the products of the weights of a :class:`~ppl_backends.gibbs.losses.Weighted`."""
        return np.abs(self.y[i] * self.y[j])

    def differences(self, i: Index, j: Index) -> tuple[Array, Array]:
        """Return rows and offsets of pairs."""
        return self.X[i] - self.X[j], self.offset[i] - self.offset[j]

    def scores(self, theta: Array) -> Array:
        """Return ``(k, n)`` at coefficients ``(k, p)``."""
        return theta @ self.X.T + self.offset

    def evaluate(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        """Return risk and gradient, in blocks of points."""
        step = max(1, BLOCK_BYTES // (8 * self.n))
        parts = [self._evaluate_block(x[k : k + step], gradient) for k in range(0, len(x), step)]
        value = np.concatenate([part[0] for part in parts])
        return value, np.concatenate([part[1] for part in parts]) if gradient else None

    def _evaluate_block(self, x: Array, gradient: bool) -> tuple[Array, Array | None]:
        scores = self.scores(x[:, self.columns])
        with np.errstate(over="ignore"):
            value, slope = self._of_scores(scores, gradient)
        if not gradient:
            return value, None
        result = np.zeros_like(x)
        if slope is not None:
            result[:, self.columns] = slope @ self.X
        return value, result

    def _of_scores(self, scores: Array, gradient: bool) -> tuple[Array, Array | None]:
        """Return risk ``(k,)`` and its gradient in the scores; None means zero."""
        wanted = gradient and self.has_gradient
        if not isinstance(self.loss, PairLoss):
            value = self.loss.value(scores, self.y).mean(axis=1)
            return value, self.loss.slope(scores, self.y) / self.n if wanted else None
        inner = self.loss.inner
        if isinstance(inner, ZeroOne):
            return auc_risk(scores, self.positive), None
        if isinstance(inner, Hinge):
            return auc_hinge_risk(scores, self.positive, wanted)
        return pair_risk(scores, self.positive, inner, wanted, np.abs(self.y))

    def hessian(self, x: Array) -> Array:
        """Return Hessian ``(k, dim, dim)`` of the risk, for losses of single observations."""
        curvature = self.loss.curvature(self.scores(x[:, self.columns]), self.y) / self.n
        result = np.zeros((len(x), self.dim, self.dim))
        for k, weights in enumerate(curvature):
            result[k][np.ix_(self.columns, self.columns)] = self.X.T @ (weights[:, None] * self.X)
        return result


class FunctionRisk:
    """Mean over the last axis of losses that a function computes from values in model space.

    ``function`` takes a dict of name → ``(k, *shape)``, which ``constrain`` makes of points, and returns losses ``(k,
    m)``, one column per observation or pair; ``n`` counts observations, m by default.
    """

    has_gradient = False

    def __init__(
        self,
        function: Callable[[Mapping[str, Array]], Array],
        constrain: Callable[[Array], Mapping[str, Array]],
        point: Array,
        n: int | None,
    ) -> None:
        self.function, self.constrain = function, constrain
        found = self.losses(point)
        self.n = int(found.shape[1] if n is None else n)

    def losses(self, x: Array) -> Array:
        """Return losses ``(k, m)``."""
        losses = np.asarray(self.function(self.constrain(x)), dtype=np.float64)
        if losses.ndim != 2 or len(losses) != len(x):
            raise ModelError(
                f"the loss function returned shape {losses.shape} for {len(x)} points; expected (n_points, n_losses)"
            )
        return losses

    def evaluate(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        """Return risk; its gradient is unknown and returned as zero."""
        return self.losses(x).mean(axis=1), np.zeros_like(x) if gradient else None


class LossObservations(Observations):
    """−``rate`` ℓᵢ as rows of data, for losses of single observations."""

    def __init__(self, risk: LinearRisk, rate: float) -> None:
        self._risk, self._rate, self.n = risk, rate, risk.n

    def _scores(self, x: Array, index: NDArray[np.integer]) -> tuple[Array, Array]:
        """Return scores ``(k, m)`` and, for one set of rows per point, those rows of X ``(k, m, p)``."""
        theta = x[:, self._risk.columns]
        rows = self._risk.X[index]
        if index.ndim == 1:
            return theta @ rows.T + self._risk.offset[index], rows
        return np.einsum("kmp,kp->km", rows, theta) + self._risk.offset[index], rows

    def log_likelihood(self, x: Array, index: NDArray[np.integer] | None = None) -> Array:
        """Return −(λ/n) ℓᵢ ``(k, m)``, for all observations, for ``index`` ``(m,)``, or for one set per point."""
        x = as_points(x, self._risk.dim)
        index = np.arange(self.n) if index is None else np.asarray(index)
        return -self._rate * self._risk.loss.value(self._scores(x, index)[0], self._risk.y[index])

    def sum(
        self, x: Array, index: NDArray[np.integer] | None = None, weights: Array | None = None, gradient: bool = False
    ) -> Any:
        x, index = as_points(x, self._risk.dim), np.arange(self.n) if index is None else np.asarray(index)
        scores, rows = self._scores(x, index)
        y, scale = self._risk.y[index], 1.0 if weights is None else weights
        value = (-self._rate * scale * self._risk.loss.value(scores, y)).sum(axis=1)
        if not gradient:
            return value
        slope = -self._rate * scale * self._risk.loss.slope(scores, y)
        result = np.zeros((len(x), self._risk.dim))
        result[:, self._risk.columns] = slope @ rows if index.ndim == 1 else np.einsum("km,kmp->kp", slope, rows)
        return value, result
