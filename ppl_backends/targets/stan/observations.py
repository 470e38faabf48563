"""The observations of a Stan program: its likelihood on subsets of the rows of its data, without recompiling.

The likelihood of a set of rows is the log density of the model on only those rows minus the log prior, including all
constants. Constructing the model on a subset takes about 20 µs and is done in C++ on several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import with_rows
from ppl_backends.targets.observations import Observations
from ppl_backends.targets.protocol import Array, as_points
from ppl_backends.targets.stan.data import to_arrays
from ppl_backends.targets.stan.library import BatchedModel, CompiledModel, RowData

Index = NDArray[np.integer]
CHECK_TOLERANCE = 1e-5  # relative; solvers of differential equations choose other steps for other rows
POINTWISE_EVALUATIONS = 1 << 16  # of one-row models in one call, which limits the memory of gradients


@dataclass(frozen=True)
class Rows:
    """Rows of data: the integer that counts them, their number, and the axis of each variable that runs over them."""

    count: str
    n: int
    axes: dict[str, int]

    def select(self, data: Mapping[str, Any], index: Index) -> dict[str, Any]:
        """Return data of only the rows ``index``."""
        arrays = to_arrays(data)
        chosen = {name: np.take(arrays[name], index, axis=axis) for name, axis in self.axes.items()}
        return {**data, **chosen, self.count: len(index)}

    def append(self, data: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
        """Return data with the rows of ``new`` appended."""
        arrays, more = to_arrays(data), to_arrays(new)
        joined = {name: with_rows(name, arrays[name], more[name], axis) for name, axis in self.axes.items()}
        lengths = {joined[name].shape[axis] for name, axis in self.axes.items()}
        if len(lengths) > 1:
            raise ModelError(f"the new rows of {', '.join(self.axes)} differ in number")
        others = {name: value for name, value in new.items() if name not in self.axes}
        return {**data, **others, **joined, self.count: lengths.pop()}


def read_rows(rows: Mapping[str, Sequence[str]], data: Mapping[str, Any], label: str) -> Rows:
    """Check ``rows=`` against the data."""
    if not isinstance(rows, Mapping):
        raise ModelError(
            f"{label}: rows={rows!r}: expected the count and the data that have one row for each observation, such as "
            "{'N': ['x', 'y']}"
        )
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


class RowObservations(Observations):
    """Observations that are rows of data variables, as ``rows=`` names them."""

    def __init__(
        self,
        model: BatchedModel,
        data: Mapping[str, Any],
        rows: Rows,
        cores: int,
        initial_points: Callable[[int, np.random.Generator], Array],
        prior: CompiledModel | None = None,
    ) -> None:
        self._model, self._rows, self._cores, self._label, self.n = model, rows, cores, model.label, rows.n
        self._data = RowData(model.library, to_arrays(data), model.label, rows.count, rows.axes)
        self._prior = prior or self._subset(np.empty(0, dtype=np.intp))
        self._check(initial_points(2, np.random.default_rng(0)))

    def _subset(self, index: Index) -> BatchedModel:
        model = self._data.model(index)
        if model.names != self._model.names:
            raise ModelError(
                f"{self._label}: {self._rows.count} also sizes a parameter, so that there are no subsets of rows"
            )
        return model

    def _check(self, x: Array) -> None:
        """Check that the density is the prior plus a sum over rows: compare two random halves with the whole."""
        halves = [np.sort(half) for half in np.array_split(np.random.default_rng(0).permutation(self.n), 2)]
        prior, whole = self._prior.evaluate(x, False, 1)[0], self._model.evaluate(x, False, 1)[0]
        sum_of_halves = sum(self._subset(half).evaluate(x, False, 1)[0] - prior for half in halves)
        error = float(np.max(np.abs(whole - prior - sum_of_halves)))
        if not error <= CHECK_TOLERANCE * (1 + float(np.max(np.abs(whole)))):
            raise ModelError(
                f"{self._label}: rows={{{self._rows.count!r}: {list(self._rows.axes)}}}: the log density is not a sum "
                f"over these rows (two halves differ from the whole by {error:.3g})"
            )

    def log_likelihood(self, x: Array, index: Index | None = None) -> Array:
        x = as_points(x, self._model.dim)
        index = self.checked(index, len(x))
        prior = self._prior.evaluate(x, False, self._cores)[0]
        each_row = np.arange(index.size + 1)
        if index.ndim == 2:
            points = np.repeat(np.arange(len(x)), index.shape[1])
            values, _ = self._data.evaluate_sets(index.ravel(), each_row, points, each_row, x, False, self._cores)
            return _likelihood(values.reshape(index.shape), prior[:, None])
        points = np.tile(np.arange(len(x)), len(index))
        values, _ = self._data.evaluate_sets(index, each_row, points, each_row * len(x), x, False, self._cores)
        return _likelihood(values.reshape(len(index), len(x)).T, prior[:, None])

    def sum(
        self, x: Array, index: Index | None = None, weights: Array | None = None, gradient: bool = False
    ) -> Array | tuple[Array, Array]:
        x = as_points(x, self._model.dim)
        index = self.checked(index, len(x))
        prior, prior_slope = self._prior.evaluate(x, gradient, self._cores)
        if index.ndim == 1 and weights is None:
            everything = len(index) == self.n and bool((index == np.arange(self.n)).all())
            model = self._model if everything else self._subset(np.sort(index))
            value, slope = model.evaluate(x, gradient, self._cores)
            points: Index = np.arange(len(x))
            factors = np.ones(len(x))
        else:
            shape = (len(x), index.shape[-1])
            factor = 1.0 if weights is None else np.asarray(weights, dtype=float)
            spread, factor = np.broadcast_to(index, shape), np.broadcast_to(factor, shape)
            rows, starts, points, factors = _groups_of_equal_weight(spread, factor)
            each_group = np.arange(len(points) + 1)
            value, slope = self._data.evaluate_sets(rows, starts, points, each_group, x, gradient, self._cores)
        likelihood = _likelihood(value, prior[points])
        total = np.zeros(len(x))
        np.add.at(total, points, factors * likelihood)
        if slope is None or prior_slope is None:
            return total
        slope = np.where(np.isfinite(likelihood)[:, None], slope - prior_slope[points], 0.0)
        total_slope = np.zeros_like(x)
        np.add.at(total_slope, points, factors[:, None] * slope)
        return total, total_slope

    def log_prior_and_potentials(self, x: Array, gradient: bool = False) -> Any:
        value, slope = self._prior.evaluate(as_points(x, self._model.dim), gradient, self._cores)
        return (value, slope) if gradient else value

    def score_and_hessian(self, x0: Array) -> tuple[Array, Array]:
        x = as_points(x0, self._model.dim)
        _, prior = self._prior.evaluate(x, True, 1)
        scores = np.empty((self.n, self._model.dim))
        for start in range(0, self.n, POINTWISE_EVALUATIONS):
            block = np.arange(start, min(self.n, start + POINTWISE_EVALUATIONS))
            each_row, points = np.arange(len(block) + 1), np.zeros(len(block), dtype=np.intp)
            _, slope = self._data.evaluate_sets(block, each_row, points, each_row, x, True, self._cores)
            scores[block] = np.subtract(slope, prior)  # type: ignore[arg-type]
        hessian = self._model.hessian(x, self._cores) - self._prior.hessian(x, self._cores)
        return scores, hessian[0]


def _groups_of_equal_weight(index: Index, weights: Array) -> tuple[Index, Index, Index, Array]:
    """Return rows of each point grouped by weight, in data order; weight 0 is left out."""
    points = np.repeat(np.arange(len(index)), index.shape[1])
    kept = weights.ravel() != 0
    points, rows, factors = points[kept], index.ravel()[kept], weights.ravel()[kept]
    order = np.lexsort((rows, factors, points))
    points, rows, factors = points[order], rows[order], factors[order]
    begins = np.flatnonzero((np.diff(points, prepend=-1) != 0) | (np.diff(factors, prepend=np.nan) != 0))
    return rows, np.append(begins, len(rows)), points[begins], factors[begins]


def _likelihood(joint: Array, prior: Array) -> Array:
    """Return the joint minus prior; -inf if either is."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(prior), joint - prior, -np.inf)


class PointwiseObservations(Observations):
    """Observations given only by the generated quantity ``log_lik``: values without gradients, at the cost of all rows."""

    def __init__(self, log_lik: Callable[[Array], Array], dim: int, label: str) -> None:
        self._log_lik, self._dim, self._label = log_lik, dim, label
        self.no_gradient = f"{label}: log_lik has no gradient; name the data that are rows, rows={{'N': ['x', 'y']}}"
        self.n = int(np.prod(log_lik(np.zeros((1, dim))).shape[1:]))

    def log_likelihood(self, x: Array, index: Index | None = None) -> Array:
        x = as_points(x, self._dim)
        index = self.checked(index, len(x))
        values = self._log_lik(x).reshape(len(x), self.n)
        return values[:, index] if index.ndim == 1 else np.take_along_axis(values, index, axis=1)
