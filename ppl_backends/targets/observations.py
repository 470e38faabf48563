"""The rows of data over which a likelihood is a sum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array, Index
from ppl_backends.numerics.differences import central_differences

_SCORE_BYTES = 2**25  # of a block of rows, for differences


class Observations:
    """The rows of data over which the likelihood is a sum, in data order.

    Subclasses define ``n`` and :meth:`log_likelihood`, and :meth:`sum` if it has gradients.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.approximations.ep import Factors, FactorsTarget, Logit
    >>> rows = FactorsTarget(Factors(np.eye(2), 0.0, Logit([0, 1]), 0.0, 1.0)).observations
    >>> rows.n, rows.log_likelihood(np.zeros((1, 2)), np.array([1])).round(2)
    (2, array([[-0.69]]))
    """

    n: int  #: number of observations
    no_gradient: str = ""  #: why :meth:`sum` gives no gradients; empty if it does

    def log_likelihood(self, x: Array, index: NDArray[np.integer] | None = None) -> Array:
        """Return log likelihoods ``(n_points, m)``; ``index`` is ``(m,)``, shared, or ``(n_points, m)``, a set per point."""
        raise NotImplementedError

    def sum(
        self,
        x: Array,
        index: NDArray[np.integer] | None = None,
        weights: Array | None = None,
        gradient: bool = False,
    ) -> Any:
        """Return the weighted sum over a subset ``(n_points,)``, and on request its gradient ``(n_points, dim)``.

        Parameters
        ----------
        x : ndarray (n_points, dim)
        index : ndarray (m,) or (n_points, m), optional
            Rows, shared or one set for each point; all by default.
        weights : ndarray, shape of ``index``, optional
        gradient : bool
        """
        if gradient:
            raise ModelError(self.no_gradient)
        values = self.log_likelihood(x, index)
        return (values if weights is None else values * weights).sum(axis=1)

    def log_prior_and_potentials(self, x: Array, gradient: bool = False) -> Any:
        """Return the log density minus that of the rows ``(n_points,)``, with its gradient on request."""
        raise ModelError("the log density cannot be separated from that of its observations")

    def score_and_hessian(self, x0: Array) -> tuple[Array, Array]:
        """Return every row's gradient ``(n, dim)`` and the Hessian ``(dim, dim)`` of the sum at ``x0`` ``(dim,)``.

        It uses central differences, in blocks of rows.
        """
        x = np.atleast_2d(np.asarray(x0, dtype=np.float64))
        dim = x.shape[1]
        scores, hessian = np.empty((self.n, dim)), np.zeros((dim, dim))
        rows = max(1, _SCORE_BYTES // (16 * dim))
        for start in range(0, self.n, rows):
            block = np.arange(start, min(self.n, start + rows))
            scores[block] = central_differences(lambda points: self.log_likelihood(points, block), x)[0].T  # noqa: B023
            hessian += central_differences(lambda points: self.sum(points, block, gradient=True)[1], x)[0]  # noqa: B023
        return scores, 0.5 * (hessian + hessian.T)

    def checked(self, index: Any, n_points: int) -> Index:
        """Return row numbers, all by default; check that they are integers ``(m,)`` or (``n_points``, m)."""
        index = np.arange(self.n) if index is None else np.ascontiguousarray(index)
        if index.ndim not in (1, 2) or (index.ndim == 2 and len(index) != n_points) or index.dtype.kind not in "iu":
            raise ModelError(f"index has shape {index.shape}; expected integers (m,) or ({n_points}, m)")
        if index.size and (index.min() < 0 or index.max() >= self.n):
            raise ModelError(f"index runs from {index.min()} to {index.max()}; there are {self.n} observations")
        return index.astype(np.intp, copy=False)

    def check(self) -> None:
        """Raise ModelError if rows depend on each other, if that needs a check."""
