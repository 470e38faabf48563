"""Observed entries of a matrix, with weights, as sparse matrices of one pattern."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import as_floats


class Entries(NamedTuple):
    """Centred entries and where they are, by rows.

    ``pattern`` holds the entries' weights, which sum to ``n``, and ``weighted`` their products with the entries;
    ``scatter`` is the weighted sum of squares of repeated observations about the mean of their entry.
    """

    entries: sparse.csr_matrix
    pattern: sparse.csr_matrix
    weighted: sparse.csr_matrix
    offset: float
    variance: float
    n: float
    scatter: float

    @property
    def transposed(self) -> Entries:
        """Return the same with rows and columns exchanged."""
        turned = [matrix.T.tocsr() for matrix in (self.entries, self.pattern, self.weighted)]
        return self._replace(entries=turned[0], pattern=turned[1], weighted=turned[2])


def read_entries(rows: Any, columns: Any, values: Any, shape: tuple[int, int] | None, weights: Any = None) -> Entries:
    """Return entries from triplets, with repeated ones merged where there are weights."""
    i, j, y = np.asarray(rows), np.asarray(columns), as_floats("values", values)
    if not (i.ndim == j.ndim == y.ndim == 1 and len(i) == len(j) == len(y) > 1):
        raise ModelError(
            f"triplets have shapes {i.shape}, {j.shape}, {y.shape}; expected three vectors of one length > 1"
        )
    if i.dtype.kind not in "iu" or j.dtype.kind not in "iu":
        raise ModelError("rows and columns must be integers")
    if not np.isfinite(y).all():
        raise ModelError("values has entries that are not finite; leave out missing entries")
    w = np.ones(len(y)) if weights is None else as_floats("weights", weights)
    if w.shape != y.shape or not ((w > 0) & np.isfinite(w)).all():
        raise ModelError(f"weights of shape {w.shape}: expected {len(y)} positive numbers, one for each entry")
    shape = (int(i.max()) + 1, int(j.max()) + 1) if shape is None else shape
    if min(i.min(), j.min()) < 0 or i.max() >= shape[0] or j.max() >= shape[1]:
        raise ModelError(f"an entry lies outside of the shape {shape}")
    place, which = np.unique(i.astype(np.int64) * shape[1] + j, return_inverse=True)
    if weights is None and len(place) < len(y):
        raise ModelError(f"{len(y) - len(place)} entries are given more than once")
    total = np.bincount(which, w)
    mean = np.bincount(which, w * y) / total
    n, offset = float(w.sum()), float(np.average(y, weights=w))
    variance = float(np.average((y - offset) ** 2, weights=w))
    if variance == 0:
        raise ModelError("all values are equal: there is nothing to complete")
    indices = np.divmod(place, shape[1])
    # explicit zeros stay: the pattern of all three matrices is the same
    entries, pattern, weighted = (
        sparse.csr_matrix((of, indices), shape=shape) for of in (mean - offset, total, total * (mean - offset))
    )
    return Entries(entries, pattern, weighted, offset, variance, n, float(w @ (y - mean[which]) ** 2))
