"""The observations of a Stan program: its likelihood on subsets of the rows of its data, without recompiling.

The likelihood of a set of rows is the log density of the model on those rows alone minus that of the model on no rows:
the prior, constants and all. Constructing the model on a subset takes some 20 µs and is done in C++ on several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array, as_points
from ppl_backends.targets.stan.data import to_arrays
from ppl_backends.targets.stan.library import BatchedModel, RowData

__all__ = ["PointwiseObservations", "RowObservations", "Rows", "read_rows"]

Index = NDArray[np.integer]
POINTWISE_EVALUATIONS = 1 << 16  # of one-row models in one call, which bounds the memory of gradients


class Rows(NamedTuple):
    """Which integer counts the observations, how many there are, and which axis of each variable runs over them."""

    count: str
    n: int
    axes: dict[str, int]

    def select(self, data: Mapping[str, Any], index: Index) -> dict[str, Any]:
        """Data of the rows ``index`` alone."""
        arrays = to_arrays(data)
        chosen = {name: np.take(arrays[name], index, axis=axis) for name, axis in self.axes.items()}
        return {**data, **chosen, self.count: len(index)}


def read_rows(rows: Mapping[str, Sequence[str]], data: Mapping[str, Any], label: str) -> Rows:
    """Check ``rows=`` against the data.

    Raises
    ------
    ModelError
        If a name is no data variable, or a variable has no axis of that length.
    """
    if len(rows) != 1:
        raise ModelError(f"{label}: rows= names {len(rows)} counts; expected one, such as {{'N': ['x', 'y']}}")
    (count, names), arrays = next(iter(rows.items())), to_arrays(data)
    names = [names] if isinstance(names, str) else list(names)
    for name in (count, *names):
        if name not in arrays:
            raise ModelError(f"{label}: rows= names {name!r}, which is not in the data ({', '.join(arrays)})")
    if arrays[count].ndim or arrays[count].dtype.kind != "i":
        raise ModelError(f"{label}: rows= says that {count!r} counts the observations, but it is not an integer")
    n, axes = int(arrays[count]), {}
    for name in names:
        if n not in arrays[name].shape:
            shape = arrays[name].shape
            raise ModelError(f"{label}: rows= names {name!r} of shape {shape}, which has no axis of length {count}={n}")
        axes[name] = arrays[name].shape.index(n)
    return Rows(count, n, axes)


class RowObservations:
    """Observations that are rows of data variables, as ``rows=`` names them.

    Parameters
    ----------
    model : BatchedModel
        On all rows.
    data : mapping
    rows : Rows
    cores : int
    initial_points : callable
        ``(n, rng) → (n, dim)``, for the check.

    Raises
    ------
    ModelError
        If the program does not accept subsets, or its log density is not a sum over the rows.
    """

    def __init__(
        self,
        model: BatchedModel,
        data: Mapping[str, Any],
        rows: Rows,
        cores: int,
        initial_points: Callable[[int, np.random.Generator], Array],
    ) -> None:
        self._model, self._rows, self._cores, self._label = model, rows, cores, model.label
        self._data = RowData(model.library, to_arrays(data), model.label, rows.count, rows.axes)
        self._prior = self._subset(np.empty(0, dtype=np.intp))
        self._check(initial_points(2, np.random.default_rng(0)))

    @property
    def n(self) -> int:
        """Number of observations."""
        return self._rows.n

    def _subset(self, index: Index) -> BatchedModel:
        model = self._data.model(index)
        if model.names != self._model.names:
            raise ModelError(
                f"{self._label}: {self._rows.count} also sizes a parameter, so that there are no subsets of rows"
            )
        return model

    def _check(self, x: Array) -> None:
        """Prove that the density is prior plus a sum over rows: two random halves against the whole."""
        halves = np.array_split(np.random.default_rng(0).permutation(self.n), 2)
        prior, whole = self._prior.evaluate(x, False, 1)[0], self._model.evaluate(x, False, 1)[0]
        sum_of_halves = sum(self._subset(half).evaluate(x, False, 1)[0] - prior for half in halves)
        error = float(np.max(np.abs(whole - prior - sum_of_halves)))
        if not error <= 1e-8 * (1 + float(np.max(np.abs(whole)))):
            raise ModelError(
                f"{self._label}: rows={{{self._rows.count!r}: {list(self._rows.axes)}}}: the log density is not a sum "
                f"over these rows (two halves differ from the whole by {error:.3g})"
            )

    def log_likelihood(self, x: Array, index: Index | None = None) -> Array:
        """Pointwise log likelihood ``(n_points, m)``; ``index`` is ``(m,)``, or ``(n_points, m)`` with one set a point."""
        x = as_points(x, self._model.dim)
        index = self._checked(index, len(x))
        prior = self._prior.evaluate(x, False, self._cores)[0]
        if index.ndim == 2:
            flat = index.reshape(-1)
            points = np.repeat(np.arange(len(x)), index.shape[1])
            values, _ = self._data.evaluate_sets(flat[:, None], points[:, None], x, False, self._cores)
            return values.reshape(index.shape) - prior[:, None]
        everywhere = np.broadcast_to(np.arange(len(x)), (len(index), len(x)))
        values, _ = self._data.evaluate_sets(index[:, None], everywhere, x, False, self._cores)
        return values.reshape(len(index), len(x)).T - prior[:, None]

    def sum(
        self, x: Array, index: Index | None = None, weights: Array | None = None, gradient: bool = False
    ) -> Array | tuple[Array, Array]:
        """Weighted sum of log likelihoods over a subset ``(n_points,)``, and its gradient ``(n_points, dim)``.

        Parameters
        ----------
        x : ndarray (n_points, dim)
        index : ndarray (m,) or (n_points, m), optional
            Rows, shared or one set for each point; all by default.
        weights : ndarray, shape of ``index``, optional
            Rows of equal weight are evaluated together, so that few distinct weights are cheap; zero pads.
        gradient : bool
        """
        x = as_points(x, self._model.dim)
        index = self._checked(index, len(x))
        if index.ndim == 1 and weights is None:
            model = self._model if len(index) == self.n and np.array_equal(index, np.arange(self.n)) else None
            value, slope = (model or self._subset(index)).evaluate(x, gradient, self._cores)
            prior, prior_slope = self._prior.evaluate(x, gradient, self._cores)
            return _difference(value, prior, slope, prior_slope)
        index = np.broadcast_to(index, (len(x), index.shape[-1]))
        weights = np.broadcast_to(1.0 if weights is None else np.asarray(weights, dtype=float), index.shape)
        sets, points, factors = _sets_of_equal_weight(index, weights)
        value, slope = self._data.evaluate_sets(sets, points[:, None], x, gradient, self._cores)
        prior, prior_slope = self._prior.evaluate(x, gradient, self._cores)
        total = np.zeros(len(x))
        np.add.at(total, points, factors * (value - prior[points]))
        if slope is None or prior_slope is None:
            return total
        total_slope = np.zeros_like(x)
        np.add.at(total_slope, points, factors[:, None] * (slope - prior_slope[points]))
        return total, total_slope

    def score_and_hessian(self, x0: Array) -> tuple[Array, Array]:
        """Gradient of every observation's log likelihood ``(n, dim)``, and their summed Hessian ``(dim, dim)``, at x0.

        The scores are computed in blocks of rows.
        """
        x = as_points(x0, self._model.dim)
        prior = self._prior.evaluate(x, True, 1)[1]
        scores = np.empty((self.n, self._model.dim))
        for start in range(0, self.n, POINTWISE_EVALUATIONS):
            block = np.arange(start, min(self.n, start + POINTWISE_EVALUATIONS))
            points = np.zeros((len(block), 1), dtype=np.intp)
            scores[block] = self._data.evaluate_sets(block[:, None], points, x, True, self._cores)[1]
        hessian = self._model.hessian(x, self._cores) - self._prior.hessian(x, self._cores)
        return scores - prior, hessian[0]

    def _checked(self, index: Index | None, n_points: int) -> Index:
        return _checked_index(index, n_points, self.n, self._label)


def _sets_of_equal_weight(index: Index, weights: Array) -> tuple[list[Index], Index, Array]:
    """Rows of each point grouped by weight: the groups, the point and the weight of each; weight 0 is left out."""
    points = np.repeat(np.arange(len(index)), index.shape[1])
    kept = weights.reshape(-1) != 0
    points, flat, factors = points[kept], index.reshape(-1)[kept], weights.reshape(-1)[kept]
    order = np.lexsort((factors, points))
    points, flat, factors = points[order], flat[order], factors[order]
    starts = np.flatnonzero(np.diff(points, prepend=-1).astype(bool) | (np.diff(factors, prepend=np.nan) != 0))
    return np.split(flat, starts[1:]) if len(starts) else [], points[starts], factors[starts]


def _difference(
    value: Array, prior: Array, slope: Array | None, prior_slope: Array | None
) -> Array | tuple[Array, Array]:
    """Likelihood from joint and prior: -inf where the joint is."""
    with np.errstate(invalid="ignore"):
        likelihood = np.where(np.isfinite(prior), value - prior, -np.inf)
    if slope is None or prior_slope is None:
        return likelihood
    return likelihood, np.where(np.isfinite(likelihood)[:, None], slope - prior_slope, 0.0)


def _checked_index(index: Index | None, n_points: int, n: int, label: str) -> Index:
    if index is None:
        return np.arange(n)
    index = np.asarray(index)
    if index.ndim not in (1, 2) or (index.ndim == 2 and len(index) != n_points) or index.dtype.kind not in "iu":
        raise ModelError(f"{label}: index has shape {index.shape}; expected integers (m,) or ({n_points}, m)")
    if index.size and (index.min() < 0 or index.max() >= n):
        raise ModelError(f"{label}: index runs from {index.min()} to {index.max()}; there are {n} observations")
    return index


class PointwiseObservations:
    """Observations known by the generated quantity ``log_lik`` alone: values without gradients, at the cost of all.

    Parameters
    ----------
    log_lik : callable
        Points ``(n, dim)`` → ``(n, *shape)``.
    dim : int
    label : str
    """

    def __init__(self, log_lik: Callable[[Array], Array], dim: int, label: str) -> None:
        self._log_lik, self._dim, self._label = log_lik, dim, label
        self._n = int(np.prod(log_lik(np.zeros((1, dim))).shape[1:]))

    @property
    def n(self) -> int:
        """Number of observations."""
        return self._n

    def log_likelihood(self, x: Array, index: Index | None = None) -> Array:
        """Pointwise log likelihood ``(n_points, m)``; ``index`` is ``(m,)``, or ``(n_points, m)`` with one set a point."""
        x = as_points(x, self._dim)
        index = _checked_index(index, len(x), self.n, self._label)
        values = self._log_lik(x).reshape(len(x), self.n)
        return values[:, index] if index.ndim == 1 else np.take_along_axis(values, index, axis=1)

    def sum(
        self, x: Array, index: Index | None = None, weights: Array | None = None, gradient: bool = False
    ) -> Array | tuple[Array, Array]:
        """Weighted sum of log likelihoods over a subset ``(n_points,)``."""
        if gradient:
            raise ModelError(
                f"{self._label}: log_lik has no gradient; say which data are rows, rows={{'N': ['x', 'y']}}"
            )
        values = self.log_likelihood(x, index)
        return (values if weights is None else values * weights).sum(axis=1)
