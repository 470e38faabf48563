"""The order in which Stan stores unconstrained coordinates.

Stan names them in column-major order of all indices. It stores one element of an array after the other, in row-major order
of the array's indices; only coordinates within a vector or matrix are in column-major order. For ``array[2] vector[3] v``
the names are ``v.1.1, v.2.1, v.1.2, …``, and the coordinates are those of ``v[1]`` and then those of ``v[2]``. A compiled
program does not tell how many of the indices are the array's, so that some coordinates are changed to see which elements
change with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ppl_backends.targets.protocol import Array, Index
from ppl_backends.targets.stan.library import CompiledModel
from ppl_backends.targets.stan.variables import Variable, parse_names

_PROBES = 16  # coordinates of a variable that are changed, at most
_CHANGE = 0.1


class _Order(NamedTuple):
    """Positions ``(n,)``, among Stan's names, of those of the stored coordinates, if ``n_array`` indices are an array's."""

    names: Index
    n_array: int


def stored_names(model: CompiledModel) -> tuple[str, ...]:
    """Return Stan's names of the unconstrained coordinates in the order in which these are stored."""
    order = np.arange(model.dim)
    for named, variable in arrays(model):
        if named.ndim > 1:
            columns = _stored(model, named, variable)
            order[np.sort(columns)] = columns
    return tuple(model.names[j] for j in order)


def arrays(model: CompiledModel) -> Iterator[tuple[Index, Variable]]:
    """Yield every array of real parameters, after its unconstrained coordinates by index, as Stan names them."""
    parameters = {variable.name: variable for variable in model.parameters if variable.imaginary is None}
    for named in parse_names(model.names):
        if named.name in parameters and named.columns.ndim:
            yield named.columns, parameters[named.name]


def base_point(model: CompiledModel) -> Array:
    """Return a point ``(dim,)`` without zeros, because the direction of a unit vector at zero is not defined."""
    return np.random.default_rng(0).uniform(0.5, 1.5, model.dim)


def _stored(model: CompiledModel, named: Index, variable: Variable) -> Index:
    """Return the positions of the names of a variable in the order of its coordinates; ``named`` has those by index."""
    in_stans_order = np.sort(named, axis=None)
    orders = [
        _Order(np.sort(named.reshape(*named.shape[:n], -1), axis=-1).ravel(), n)
        for n in range(named.ndim, 0, -1)
        if named.shape[:n] == variable.columns.shape[:n]
    ]
    orders = [order for order in orders if (order.names != in_stans_order).any()]
    if not orders:
        return in_stans_order
    doubtful = np.flatnonzero(np.any([order.names != in_stans_order for order in orders], axis=0))
    probed = np.unique(np.r_[doubtful[: _PROBES // 2], doubtful[-_PROBES // 2 :]])
    changed = _changed(model, in_stans_order[probed], variable)
    for order in orders:
        size = named.size // int(np.prod(named.shape[: order.n_array]))
        if all(_within(rows, probe // size, order.n_array) for rows, probe in zip(changed, probed, strict=True)):
            return order.names
    return in_stans_order


def _changed(model: CompiledModel, coordinates: Index, variable: Variable) -> Array:
    """Return which elements ``(n, *shape)`` of a variable change with each of the coordinates."""
    x = np.tile(base_point(model), (len(coordinates) + 1, 1))
    x[1 + np.arange(len(coordinates)), coordinates] += _CHANGE
    elements = model.parameter_values(x)[:, variable.columns]
    differ: Array = elements[1:] != elements[:1]
    return differ


def _within(changed: Array, element: int, n_array: int) -> bool:
    """Return whether only elements ``(*shape)`` of one element of the array changed, and some did."""
    rows = np.flatnonzero(changed) // (changed.size // int(np.prod(changed.shape[:n_array])))
    return len(rows) > 0 and bool((rows == element).all())
