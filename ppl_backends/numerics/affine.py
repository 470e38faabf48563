"""The matrix of an affine function from few evaluations of it.

The first time it is computed column by column. If most of its elements are zero, it is stored as sparse, and
afterwards columns that share no row are computed together (Curtis, Powell & Reid 1974): thousands of group effects
take one evaluation. An evaluation at a random point checks that zeros are still zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ppl_backends.numerics.arrays import Array

BLOCK_BYTES = 2**26
LARGE, SPARSE_SHARE = 200_000, 0.1  # elements, and share of nonzero ones, below which a matrix is stored as sparse
MAX_COLORS = 64
TOLERANCE = 1e-9


class AffineFunction:
    """A function that is affine in some coordinates of its argument."""

    def __init__(self, function: Callable[[Array], Array], moving: NDArray[np.integer]) -> None:
        self._function, self._moving = function, moving
        self._pattern: tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]] | None = None
        self._is_small = False  # known after the first evaluation

    def at(self, x: Array) -> tuple[Any, Array]:
        """Return the matrix ``(m, len(moving))``, dense or CSR, and the values ``(m,)`` at zero; the rest as in ``x``."""
        origin = x.copy()
        origin[self._moving] = 0.0
        if self._is_small:
            return self._at_once(origin)
        offset = self._function(origin[None])[0]
        self._is_small = len(self._moving) * len(offset) <= LARGE
        matrix = None if self._pattern is None else self._by_color(origin, offset)
        if matrix is None:
            matrix = self._by_column(origin, offset)
            self._pattern = _coloring(matrix) if sparse.issparse(matrix) else None
        return matrix, offset

    def _at_once(self, origin: Array) -> tuple[Array, Array]:
        """Return the matrix and offset by one evaluation."""
        points = np.tile(origin, (1 + len(self._moving), 1))
        points[np.arange(len(self._moving)) + 1, self._moving] = 1.0
        values = self._function(points)
        return (values[1:] - values[0]).T, values[0]

    def _by_column(self, origin: Array, offset: Array) -> Any:
        d, m = len(self._moving), len(offset)
        step = max(1, BLOCK_BYTES // (8 * max(m, len(origin))))
        blocks: list[Any] = []
        whole = np.empty((0, 0))
        for start in range(0, d, step):
            columns = self._moving[start : start + step]
            points = np.tile(origin, (len(columns), 1))
            points[np.arange(len(columns)), columns] = 1.0
            values = self._function(points) - offset
            thin = d * m > LARGE and np.count_nonzero(values) < SPARSE_SHARE * values.size
            if thin and not whole.size:
                blocks.append(sparse.csr_matrix(values))
                continue
            if not whole.size:  # row by row from the start: a copy could take gigabytes
                whole = np.empty((m, d))
                for k, block in enumerate(blocks):
                    whole[:, k * step : (k + 1) * step] = block.toarray().T
            whole[:, start : start + len(columns)] = values.T
        return whole if whole.size or not blocks else sparse.vstack(blocks, format="csc").T.tocsr()

    def _by_color(self, origin: Array, offset: Array) -> Any:
        """Return the matrix by its known pattern; None if the pattern has changed."""
        assert self._pattern is not None
        starts, columns, color = self._pattern
        probe = np.random.default_rng(0).normal(size=len(self._moving))
        points = np.tile(origin, (color.max(initial=0) + 2, 1))
        points[color, self._moving] = 1.0
        points[-1, self._moving] = probe
        values = self._function(points) - offset
        rows = np.repeat(np.arange(len(offset)), np.diff(starts))
        matrix = sparse.csr_matrix((values[color[columns], rows], columns, starts), shape=(len(offset), len(color)))
        expected = matrix @ probe
        allowed = TOLERANCE * (1 + np.abs(offset) + abs(matrix) @ np.abs(probe))
        return matrix if np.all(np.abs(values[-1] - expected) <= allowed) else None


def _coloring(matrix: Any) -> tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]] | None:
    """Return row starts, column indices, and a color for every column so that those of one color share no row.

    None if it needs too many colors.
    """
    by_column = matrix.tocsc()
    starts, rows = by_column.indptr, by_column.indices
    used: list[NDArray[np.bool_]] = []
    color = np.zeros(by_column.shape[1], dtype=int)
    for j in np.argsort(-np.diff(starts), kind="stable"):
        own = rows[starts[j] : starts[j + 1]]
        color[j] = next((c for c, taken in enumerate(used) if not taken[own].any()), len(used))
        if color[j] == len(used):
            if len(used) == MAX_COLORS:
                return None
            used.append(np.zeros(by_column.shape[0], dtype=bool))
        used[color[j]][own] = True
    return matrix.indptr, matrix.indices, color
