"""Simplexes and unit vectors of a Stan program in draws of few digits, such as those of CmdStan's files.

Stan takes a simplex back to the unconstrained space only if its sum is one to 1e-8, and a unit vector only if its length
is. Files with six or eight digits, which are CmdStan's defaults, have no such sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ppl_backends.targets.protocol import Array, Index
from ppl_backends.targets.stan.library import CompiledModel
from ppl_backends.targets.stan.storage import arrays, base_point

_ROUNDING = 1e-6  # of one element; sums that are farther from one are left to Stan, which refuses them


class UnitSums(NamedTuple):
    """Columns ``(n, length)`` of flat values whose rows have the sum, or the sum of squares, one."""

    columns: Index
    power: int


def unit_sums(model: CompiledModel) -> list[UnitSums]:
    """Return the simplexes and unit vectors among the parameters."""
    points = base_point(model) * np.array([[1.0], [-0.7]])
    values = model.parameter_values(points)
    found = []
    for named, variable in arrays(model):
        shape = variable.columns.shape
        for axis in range(len(shape)):
            fewer = (*shape[:axis], shape[axis] - 1, *shape[axis + 1 :])
            power = {fewer: 1, shape: 2}.get(named.shape)
            if power is None:
                continue
            columns = np.moveaxis(variable.columns, axis, -1).reshape(-1, shape[axis])
            elements = values[:, columns]
            if np.allclose((elements**power).sum(axis=-1), 1.0, rtol=1e-10) and (power == 2 or (elements > 0).all()):
                found.append(UnitSums(columns, power))
    return found


def with_unit_sums(values: Array, sums: Sequence[UnitSums]) -> Array:
    """Return flat values ``(n, columns)`` in which sums that differ from one by rounding are exactly one."""
    values = values.copy()
    for columns, power in sums:
        elements = values[:, columns]
        size = (elements**power).sum(axis=-1, keepdims=True) ** (1 / power)
        rounded = np.abs(size - 1.0) <= _ROUNDING * columns.shape[1]
        values[:, columns] = np.where(rounded, elements / np.where(rounded, size, 1.0), elements)
    return values
