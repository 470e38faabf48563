"""Rectangles of Gaussian vectors in the form that samplers use: one coordinate after the other.

With X = L z and z standard normal, the bounds on X become an interval for each coordinate z_k given the earlier ones.
Rows are divided by their leading entry, so that row i reads lower_i ≤ z_k + c_i(z_1, ..., z_{k−1}) ≤ upper_i, where k
is the *lead* of the row. A singular covariance gives several rows the same lead (Genz & Kwong 2000); their intervals
are intersected. The order of the variables is Gibson's (Gibson, Glasbey & Elston 1994): greedily the one with the
smallest probability given the means of the earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ppl_backends.orthants.intervals import Array, log_interval, moments

SINGULAR = 1e-12  # conditional variance, relative to the variance, below which a variable is a function of the others


@dataclass(frozen=True)
class Rectangle:
    """A rectangle in sequential form.

    Attributes
    ----------
    rows : ndarray (n_rows, rank)
        Coefficients of z divided by the leading one, which is 1; the first ``rank`` rows have leads 0, 1, ...
    lower, upper : ndarray (n_rows,)
    lead : ndarray (n_rows,)
    loadings : ndarray (dim, rank)
        X = ``loadings`` @ z, in the order of the user's variables.
    """

    rows: Array
    lower: Array
    upper: Array
    lead: NDArray[np.intp]
    loadings: Array = field(repr=False)

    @property
    def rank(self) -> int:
        """Return the number of coordinates."""
        return self.rows.shape[1]

    @cached_property
    def extra(self) -> dict[int, list[int]]:
        """Return the number of rows beyond the first of each lead."""
        found: dict[int, list[int]] = {}
        for row in range(self.rank, len(self.rows)):
            found.setdefault(int(self.lead[row]), []).append(row)
        return found

    def scaled(self, radius: float) -> Rectangle:
        """Return the rectangle with its bounds multiplied by a positive number."""
        return replace(self, lower=radius * self.lower, upper=radius * self.upper)

    def interval(self, k: int, offset: Array, z: Array, scale: Array | float = 1.0) -> tuple[Array, Array]:
        """Return the interval of coordinate k, given the offset c_k of its first row and the coordinates before it."""
        lower, upper = self.lower[k] * scale - offset, self.upper[k] * scale - offset
        for row in self.extra.get(k, ()):
            other = self.rows[row, :k] @ z[:k]
            lower = np.maximum(lower, self.lower[row] * scale - other)
            upper = np.minimum(upper, self.upper[row] * scale - other)
        return lower, upper


def order_rectangle(cov: Array, lower: Array, upper: Array, *, reorder: bool = True) -> Rectangle:
    """Return the sequential form of P(lower ≤ X ≤ upper), X ~ N(0, ``cov``), in Gibson's order or as given."""
    dim = len(cov)
    variance = np.diag(cov).copy()
    smallest = SINGULAR * np.diag(cov)
    cov, order = cov.copy(), np.arange(dim)
    factor, centre, lead = np.zeros((dim, dim)), np.zeros(dim), np.full(dim, -1)
    lower, upper = lower.copy(), upper.copy()
    rank = 0
    while (free := rank + np.flatnonzero((variance[rank:] > smallest[rank:]) & (lead[rank:] < 0))).size:
        pick = free[0]
        if reorder:
            scale = np.sqrt(variance[free])
            pick = free[
                np.argmin(log_interval((lower[free] - centre[free]) / scale, (upper[free] - centre[free]) / scale))
            ]
        for vector in (variance, smallest, order, centre, lead, lower, upper, factor, cov, cov.T):
            vector[[rank, pick]] = vector[[pick, rank]]
        scale = np.sqrt(variance[rank])
        rest = slice(rank + 1, dim)
        factor[rank, rank], lead[rank] = scale, rank
        factor[rest, rank] = (cov[rest, rank] - factor[rest, :rank] @ factor[rank, :rank]) / scale
        factor[rest, rank][lead[rest] >= 0] = 0.0
        bounds = (np.array([bound[rank] - centre[rank]]) / scale for bound in (lower, upper))
        centre[rest] += factor[rest, rank] * moments(*bounds).mean
        variance[rest] -= factor[rest, rank] ** 2
        ended = (lead[rest] < 0) & (variance[rest] <= smallest[rest])
        lead[rest][ended] = rank
        rank += 1
    loadings = np.zeros((dim, rank))
    loadings[order] = factor[:, :rank]
    return _leading_ones(factor[:, :rank], lower, upper, lead, loadings)


def _leading_ones(factor: Array, lower: Array, upper: Array, lead: NDArray[np.intp], loadings: Array) -> Rectangle:
    """Divide rows by their leading entries and merge rows with the same combination."""
    rank = factor.shape[1]
    leading = factor[np.arange(len(factor)), lead]
    rows = factor / leading[:, None]
    rows[np.arange(len(rows)), lead] = 1.0
    lower, upper = np.where(leading > 0, lower, upper) / leading, np.where(leading > 0, upper, lower) / leading
    keep = list(range(rank))
    for row in range(rank, len(rows)):
        first = lead[row]
        if np.allclose(rows[row], rows[first], rtol=0, atol=1e-9):
            lower[first], upper[first] = max(lower[first], lower[row]), min(upper[first], upper[row])
        else:
            keep.append(row)
    return Rectangle(rows[keep], lower[keep], upper[keep], lead[keep], loadings)
