"""Sparse symmetric positive definite matrices: factor, determinant, solutions, draws and the needed part of the inverse.

SciPy's SuperLU factors P A Pᵀ = L D Lᵀ with a minimum-degree ordering and no pivoting, so that U = D Lᵀ; dense columns
come last. Takahashi's recursion gives the elements of the inverse in the pattern of L, including variances, at the
cost of the factor.

Rue, H., Martino, S. (2007). Approximate Bayesian inference for hierarchical Gaussian Markov random field models. *Journal of
Statistical Planning and Inference* 137(10).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError
from scipy import sparse
from scipy.sparse.linalg import splu

from ppl_backends.numerics.arrays import Array, Index
from ppl_backends.numerics.jit import jit

# A column is dense with more elements than the first, and than the second times √d.
_FEW, _DENSE = 16, 10.0


class SparseCholesky:
    """The factor of a sparse symmetric positive definite matrix ``(d, d)``.

    Parameters
    ----------
    matrix : sparse matrix
    order : ndarray (d,), optional
        Order in which coordinates are eliminated, from another matrix of that pattern; computed by default.

    Attributes
    ----------
    log_determinant : float
    order : ndarray (d,)

    Raises
    ------
    LinAlgError
        If the matrix is not positive definite.
    """

    def __init__(self, matrix: Any, order: Index | None = None) -> None:
        matrix = sparse.csc_matrix(matrix)
        first = _dense_last(matrix) if order is None else order
        if first is None:
            self._lu = _factor(matrix, "MMD_AT_PLUS_A")
        else:
            self._lu = _factor(matrix[first][:, first], "NATURAL")
        self._first = np.arange(matrix.shape[0]) if first is None else first
        self._pivots = self._lu.U.diagonal()
        if not (np.array_equal(self._lu.perm_r, self._lu.perm_c) and np.all(self._pivots > 0)):
            raise LinAlgError("a sparse matrix is not positive definite")
        self._place = self._lu.perm_c[np.argsort(self._first)]  # position of a coordinate in L
        self.order: Index = np.argsort(self._place)
        self.log_determinant = float(np.log(self._pivots).sum())

    def solve(self, right: Array) -> Array:
        """Return A⁻¹ times ``right``, ``(d,)`` or ``(d, k)``."""
        solved = np.empty(np.shape(right))
        solved[self._first] = self._lu.solve(right[self._first])
        return solved

    def colour(self, z: Array) -> Array:
        """Return draws ``(n, d)`` of N(0, A⁻¹) from standard normal rows."""
        lower = self._lower()
        scaled = np.ascontiguousarray((z / np.sqrt(self._pivots)).T)
        solve_transposed(lower.indptr, lower.indices, lower.data, scaled)
        return scaled[self._place].T

    def inverse_in_pattern(self) -> sparse.csr_matrix:
        """Return the elements of A⁻¹ in the pattern of L and its transpose, as a symmetric sparse matrix."""
        lower = self._lower()
        data = takahashi(lower.indptr, lower.indices, lower.data, self._pivots)
        half = sparse.csc_matrix((data, lower.indices, lower.indptr), shape=lower.shape)
        whole = sparse.csr_matrix(half + sparse.tril(half, -1).T)
        return whole[self._place][:, self._place]

    def _lower(self) -> sparse.csc_matrix:
        """Return L with sorted rows, the unit diagonal first."""
        lower = sparse.csc_matrix(self._lu.L)
        lower.sort_indices()
        return lower


def _factor(matrix: sparse.csc_matrix, ordering: str) -> Any:
    """Return SuperLU's factor without pivoting; raise LinAlgError if the matrix is singular."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", sparse.SparseEfficiencyWarning)
        try:
            return splu(
                matrix,
                permc_spec=ordering,
                diag_pivot_thresh=0.0,
                relax=1,  # on symmetric matrices relaxed supernodes and panels take longer than they save
                panel_size=1,
                options={"SymmetricMode": True},
            )
        except RuntimeError as error:
            raise LinAlgError(f"a sparse matrix is singular: {error}") from None


def _dense_last(matrix: sparse.csc_matrix) -> Index | None:
    """Return an ordering in which dense columns, such as that of an intercept, come last; None if there are none.

    A minimum-degree ordering of d columns of which one is dense takes d² operations (Davis 2006, section 7.1).
    """
    dense = np.diff(matrix.indptr) > max(_FEW, _DENSE * np.sqrt(matrix.shape[0]))
    if not dense.any() or dense.all():
        return None
    others = np.flatnonzero(~dense)
    order = others[np.argsort(_factor(matrix[others][:, others], "MMD_AT_PLUS_A").perm_c)]
    return np.concatenate([order, np.flatnonzero(dense)])


@jit
def solve_transposed(starts, rows, values, x):
    """Solve Lᵀ y = x in place, for the columns of ``x`` ``(d, k)``; L has a unit diagonal, first in each column."""
    d = len(starts) - 1
    for j in range(d - 1, -1, -1):
        for at in range(starts[j] + 1, starts[j + 1]):
            for k in range(x.shape[1]):
                x[j, k] -= values[at] * x[rows[at], k]


@jit
def takahashi(starts, rows, values, pivots):
    """Return the inverse of L D Lᵀ at the elements of L, column by column from the last."""
    d = len(pivots)
    inverse = np.zeros(len(values))
    for j in range(d - 1, -1, -1):
        first, end = starts[j], starts[j + 1]
        # Every pair of rows below is an element of L: the sums over k run through the columns of the inverse found so far.
        for at in range(first + 1, end):
            k = rows[at]
            other = first + 1
            for position in range(starts[k], starts[k + 1]):
                i = rows[position]
                while other < end and rows[other] < i:
                    other += 1
                if other == end:
                    break
                if rows[other] != i:
                    continue
                inverse[other] -= values[at] * inverse[position]
                if i != k:
                    inverse[at] -= values[other] * inverse[position]
        total = 1.0 / pivots[j]
        for at in range(first + 1, end):
            total -= values[at] * inverse[at]
        inverse[first] = total
    return inverse


def covariances_in_pattern(design: Any, inverse: sparse.csr_matrix) -> Array:
    """Return the covariances of aᵢᵀθ and θⱼ for elements aᵢⱼ of the sparse ``design``, in the order of its data.

    ``inverse`` is the covariance of θ for pairs of elements of any row of the design, as from :class:`SparseCholesky`.
    """
    inverse.sort_indices()
    return _row_covariances(design.indptr, design.indices, design.data, inverse.indptr, inverse.indices, inverse.data)


@jit
def _row_covariances(starts, columns, values, inverse_starts, inverse_columns, inverse):
    covariances = np.zeros(len(values))
    for i in range(len(starts) - 1):
        for at in range(starts[i], starts[i + 1]):
            first, end = inverse_starts[columns[at]], inverse_starts[columns[at] + 1]
            for other in range(starts[i], starts[i + 1]):
                place = first + np.searchsorted(inverse_columns[first:end], columns[other])
                if place < end and inverse_columns[place] == columns[other]:
                    covariances[at] += values[other] * inverse[place]
    return covariances
