"""Populations: records whose arrays have one row per point.

A population is a frozen dataclass. Its fields that are arrays, and those that are populations themselves, have a
leading axis over the points: ``x``, and everything that belongs to each point (log densities, gradients, a subset of
rows, the draws of an estimate). All points share any other field, including ``None``. Resampling, acceptance and
trajectories of several lengths need only the operations below, and use no field by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from ppl_backends.numerics.arrays import Index

__all__ = ["Population", "concatenate"]

Rows = slice | Index | NDArray[np.bool_]


@dataclass(frozen=True)
class Population:
    """Base of the records.

    Attributes
    ----------
    x : ndarray (n, dim)
        The points: float64, or booleans or integers on a discrete space.

    Examples
    --------
    >>> points = Population(np.array([[0.0], [1.0], [2.0]]))
    >>> points.where(np.array([True, False, False]), points.take([2, 1, 0])).x.ravel()
    array([2., 1., 2.])
    """

    x: NDArray[Any]

    def take(self, index: Any) -> Self:
        """Return the points ``index``, as after resampling."""
        return _joined(lambda rows: rows[0][index], [self])

    def where(self, accepted: NDArray[np.bool_], proposal: Self) -> Self:
        """Return the proposal where ``accepted`` ``(n,)``, else this."""

        def choose(rows: Sequence[NDArray]) -> NDArray:
            mask = accepted.reshape(-1, *(1,) * (rows[0].ndim - 1))
            return np.where(mask, rows[1], rows[0])

        return _joined(choose, [self, proposal])

    def renewed(self, found: Self) -> Self:
        """Return the density's results at new points of these rows, together with the fields that belong to the rows."""
        return found

    def scatter(self, index: Rows, rows: Self) -> Self:
        """Return a copy with ``rows`` in place of the points ``index``."""

        def put(arrays: Sequence[NDArray]) -> NDArray:
            changed = arrays[0].copy()
            changed[index] = arrays[1]
            return changed

        return _joined(put, [self, rows])


P = TypeVar("P", bound=Population)


def concatenate(populations: Sequence[P]) -> P:
    """Return the points of several populations, one after the other; shared fields are those of the first."""
    return _joined(np.concatenate, populations)


def _joined(function: Callable[[Sequence[NDArray]], NDArray], populations: Sequence[P]) -> P:
    """Return the record whose arrays are ``function`` of the populations' arrays, nested records included."""
    first, fields = populations[0], dict(vars(populations[0]))
    for name, value in fields.items():
        if isinstance(value, np.ndarray | Population):
            rows = [getattr(each, name) for each in populations]
            if any(row is None for row in rows):
                raise TypeError(f"{name} is missing in one of the populations")
            fields[name] = function(rows) if isinstance(value, np.ndarray) else _joined(function, rows)
    return type(first)(**fields)
