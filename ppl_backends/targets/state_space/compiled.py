"""Particle filters as one compiled loop over rows and particles, for few particles and for forked processes.

It is the same filter as :mod:`~ppl_backends.targets.state_space.filter`, with the same normals, without JAX. The run
time of a row is that of its particles, whereas a row in JAX takes tens of microseconds for any number of particles. A
filter draws its normals in one stream from its seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numba
import numpy as np
from numba.core.errors import NumbaError

from ppl_backends.numerics.arrays import Array
from ppl_backends.targets.jax_process import double_precision
from ppl_backends.targets.state_space.filter import Filter, Seeds, Values
from ppl_backends.targets.state_space.model import Parameters, StateSpaceModel
from ppl_backends.targets.state_space.scalar import Input, TranslationError, translated

jit = numba.njit(error_model="numpy", nogil=True)

MOST_TOGETHER = 32  # values that are sorted by insertion


def normals_from(seeds: Seeds, n_normals: int) -> Array:
    """Return the standard normals ``(n_theta, n_normals)`` of the filters of these seeds."""
    return np.array([_normals(seed, n_normals) for seed in seeds]).reshape(len(seeds), n_normals)


def _normals(seed: Any, n: int) -> Array:
    return np.random.Generator(np.random.SFC64(int(seed))).standard_normal(n)


class CompiledFilter:
    """A filter whose functions have been translated to Numba.

    Parameters
    ----------
    particle_filter : Filter
        A bootstrap or guided filter.
    parameters : mapping of str to ndarray (n_theta, *shape)
        Parameters whose names and shapes the filter is made for.

    Raises
    ------
    TranslationError
        If the method or an operation of a function cannot be translated to Numba.
    """

    def __init__(self, particle_filter: Filter, parameters: Values) -> None:
        if particle_filter.method not in ("bootstrap", "guided"):
            raise TranslationError(f"method='{particle_filter.method}'")
        self.filter = particle_filter
        self.names, self._example = (
            sorted(parameters),
            {name: np.asarray(value)[:1] for name, value in parameters.items()},
        )
        self.state_dim = int(np.prod(particle_filter.state_shape(parameters), dtype=int))
        y, rows = particle_filter.y, particle_filter.covariates
        before = np.full_like(y, np.nan)
        before[1:] = y[:-1]
        parts = [y, before, *(rows[name] for name in sorted(rows))]
        self._rows = np.concatenate([part.reshape(len(y), -1) for part in parts], axis=1)
        shapes = tuple((name, np.shape(parameters[name])[1:]) for name in self.names)
        self._scalar = not particle_filter.state_shape(parameters)
        row_shapes = (y.shape[1:], *((name, rows[name].shape[1:]) for name in sorted(rows)))
        guided = particle_filter.method == "guided"
        some_missing = bool(particle_filter.missing.any())
        with double_precision():
            self._run = _loop(
                particle_filter.model, guided, some_missing, self.state_dim, self._scalar, shapes, row_shapes
            )
        try:  # compiles, in the parent of forked processes
            self.run(self._example, 2, np.zeros(1, dtype=np.uint64))
        except NumbaError as error:
            raise TranslationError(f"Numba refuses it: {str(error).splitlines()[0]}") from None

    def __reduce__(self) -> Any:
        return type(self), (self.filter, self._example)

    def n_normals(self, n_x: int) -> int:
        """Return the number of standard normals that a filter uses."""
        return self.filter.n_normals(n_x)

    def run(self, parameters: Values, n_x: int, seeds: Seeds) -> Array:
        """Return log likelihoods ``(n_theta,)`` of filters with these seeds."""
        each = (_normals(seed, self.n_normals(n_x)) for seed in seeds)
        return self._all(parameters, n_x, each, False)

    def run_with_normals(self, parameters: Values, n_x: int, normals: Array, smooth: bool = True) -> Array:
        """Return log likelihoods ``(n_theta,)`` as functions of given normals ``(n_theta, n_normals(n_x))``."""
        return self._all(parameters, n_x, iter(normals), smooth)

    def _all(self, parameters: Values, n_x: int, normals: Any, smooth: bool) -> Array:
        columns = [np.asarray(parameters[name], dtype=np.float64) for name in self.names]
        points = np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1)
        missing, below, rows = self.filter.missing, self.filter.resample_below, self._rows
        return np.array(
            [
                self._run(point, rows, missing, own.reshape(len(rows), -1), n_x, self.state_dim, below, smooth)
                for point, own in zip(points, normals, strict=True)
            ]
        )


def _moves(model: StateSpaceModel, dim: int, scalar: bool, shapes: Any, row_shapes: Any) -> Callable[..., Any]:
    """Return a function ``(name, move, first)`` that compiles a move of one row."""

    def inputs(first: bool) -> dict[str, Any]:
        given: dict[str, Any] = {"t": Input("t", (), dtype=np.int64)}
        values, row, k = {}, {}, 0
        for name, shape in shapes:
            values[name] = _from("par", k, (1, 1, *shape))
            k += int(np.prod(shape, dtype=int))
        own = int(np.prod(row_shapes[0], dtype=int))
        given["y"], row["y_previous"] = _from("row", 0, row_shapes[0]), _from("row", own, row_shapes[0])
        k = 2 * own
        for name, shape in row_shapes[1:]:
            row[name] = _from("row", k, (1, 1, *shape))
            k += int(np.prod(shape, dtype=int))
        n = model.n_normals
        given |= {"values": values, "row": row}
        given["z"] = Input(f"z[i * {n} + {{}}]", (1, 1) if n == 1 else (1, 1, n), inner=True)
        if not first:
            given["x"] = Input("x[i, {}]", (1, 1) if scalar else (1, 1, dim), inner=True)
        return given

    def compiled(name: str, move: Callable[..., Any], first: bool) -> Any:
        def function(values: Any, row: Any, t: Any, y: Any, z: Any, x: Any = None) -> Any:
            return move(model, Parameters(values, row), 0 if first else t, x, y, z)

        return translated(name, function, inputs(first), ["new[i, {}]", "log_weight[i]"])

    return compiled


def _from(name: str, start: int, shape: tuple[int, ...]) -> Any:
    """Return entries of an array from a position on."""
    return Input(f"{name}[{start} + {{}}]", shape)


@lru_cache(maxsize=16)
def _loop(
    model: StateSpaceModel, guided: bool, some_missing: bool, dim: int, scalar: bool, shapes: Any, row_shapes: Any
) -> Any:
    """Return the compiled filter of a model: one parameter value to its log likelihood."""
    from ppl_backends.targets.state_space.step import from_model, from_proposal

    compiled = _moves(model, dim, scalar, shapes, row_shapes)
    at_first = guided and model.log_initial is not None
    start = compiled("first", from_proposal if at_first else from_model, True)
    move = compiled("later", from_proposal if guided else from_model, False)
    blind_start, blind_move = start, move
    if some_missing:
        blind_start = compiled("first_missing", from_model, True) if at_first else start
        blind_move = compiled("later_missing", from_model, False) if guided else move

    @jit
    def run(par, rows, missing, normals, n_x, dim, below, smooth):
        x, new, parents = np.empty((n_x, dim)), np.empty((n_x, dim)), np.empty((n_x, dim))
        log_weights, log_g = np.full(n_x, -np.log(n_x)), np.empty(n_x)
        weights, total = np.empty(n_x), 0.0
        for t in range(len(rows)):
            z, row = normals[t], rows[t]
            if t == 0:
                if missing[t]:
                    blind_start(par, row, t, x, z, new, log_g)
                else:
                    start(par, row, t, x, z, new, log_g)
            else:
                source = x
                if smooth or below >= 1.0 or 1.0 / np.sum(weights**2) < below * n_x:
                    resample(x, weights, 0.5 * math.erfc(-z[-1] / math.sqrt(2.0)), smooth, parents)
                    log_weights[:] = -np.log(n_x)
                    source = parents
                if missing[t]:
                    blind_move(par, row, t, source, z, new, log_g)
                else:
                    move(par, row, t, source, z, new, log_g)
            if missing[t]:
                log_g[:] = 0.0
            x, new = new, x
            increment = normalise(log_weights, log_g, weights)
            total += increment
            if increment == -np.inf:
                return increment
        return total

    return run


@jit
def normalise(log_weights, log_g, weights):
    """Add the log weights of a row, and return the log of their sum; NaN counts as zero density."""
    largest = -np.inf
    for i in range(len(weights)):
        log_weights[i] += log_g[i]
        if not log_weights[i] < np.inf:
            log_weights[i] = -np.inf
        largest = max(largest, log_weights[i])
    if largest == -np.inf:
        return largest
    total = 0.0
    for i in range(len(weights)):
        weights[i] = np.exp(log_weights[i] - largest)
        total += weights[i]
    log_total = largest + np.log(total)
    for i in range(len(weights)):
        weights[i] /= total
        log_weights[i] -= log_total
    return log_total


@jit
def resample(x, weights, offset, smooth, parents):
    """Fill ``parents`` by systematic resampling; particles are sorted first if it must be smooth.

    Points before the end of every interval of cumulated weight are counted, and the counts cumulated: no branch
    depends on a weight.
    """
    n, total, last = len(x), 0.0, 0
    order = sorted_places(x[:, 0]) if smooth else np.arange(n)
    ends = np.zeros(n + 1, np.int64)
    for j in range(n):
        weight = weights[order[j]]
        last = j if weight > 0 else last
        total += weight
        ends[int(min(max(np.ceil(total * n - offset), 0.0), n))] += 1
    place = 0
    for k in range(n):
        place += ends[k]
        i = order[min(place, last)]
        for d in range(x.shape[1]):
            parents[k, d] = x[i, d]


@jit
def sorted_places(values):
    """Return the positions of values in sorted order.

    Values are counted into as many equal intervals as there are values, and the few of an interval are sorted by
    insertion. If one interval has many, as with an outlier, or a value is not finite, a general sort is used.
    """
    n, low, high, finite = len(values), values[0], values[0], True
    for i in range(n):
        low = values[i] if values[i] < low else low
        high = values[i] if values[i] > high else high
        finite &= abs(values[i]) < np.inf
    per = n / (high - low)
    if not (finite and 0.0 < per < np.inf):
        return np.argsort(values)
    place, size = np.empty(n, np.int64), np.zeros(n, np.int64)
    for i in range(n):
        place[i] = min(int((values[i] - low) * per), n - 1)
    for i in range(n):
        size[place[i]] += 1
    total, most = 0, 0
    for k in range(n):
        most = max(most, size[k])
        size[k], total = total, total + size[k]
    if most > MOST_TOGETHER:
        return np.argsort(values)
    order = np.empty(n, np.int64)
    for i in range(n):
        order[size[place[i]]] = i
        size[place[i]] += 1
    for k in range(1, n):
        i, j = order[k], k
        while j > 0 and values[order[j - 1]] > values[i]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i
    return order
