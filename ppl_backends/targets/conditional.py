"""A block of a target's coordinates, the others held at given values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation, JointEvaluation, as_points

__all__ = ["ConditionalTarget"]


class ConditionalTarget(BaseTarget):
    """The coordinates ``free`` of a target, at values of the others that change between steps.

    Parameters
    ----------
    full : BaseTarget
    free : array of int (k,)
        Coordinates that move, in the order of the block's own points.
    values : array (dim,)
        A point of the full target; its entries at ``free`` are ignored.

    Attributes
    ----------
    others : ndarray of int
        Coordinates that are held.
    point : ndarray (full.dim,)
        Where they are held; see :meth:`set_others`.
    """

    def __init__(self, full: BaseTarget, free: Any, values: Any) -> None:
        self.full, self.free = full, np.asarray(free, dtype=np.intp)
        self.others: NDArray[np.intp] = np.setdiff1d(np.arange(full.dim), self.free)
        self.point: Array = np.array(values, dtype=np.float64)
        self.dim = len(self.free)
        self.names = tuple(full.names[j] for j in self.free)
        self.has_split, self.has_gradient, self.label = full.has_split, full.has_gradient, full.label

    def set_others(self, point: Array) -> bool:
        """Hold the other coordinates where the full ``point`` ``(full.dim,)`` has them; whether any of them moved."""
        moved = not np.array_equal(self.point[self.others], point[self.others])
        if moved:
            self.point[self.others] = point[self.others]
        return moved

    def embed(self, x: Array) -> Array:
        """Points ``(n, dim)`` of the block as points ``(n, full.dim)``."""
        x = as_points(x, self.dim)
        full = np.tile(self.point, (len(x), 1))
        full[:, self.free] = x
        return full

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation | JointEvaluation:
        """The full target at the embedded points, with gradients in the block's coordinates."""
        found = self.full.evaluate(self.embed(x), gradient)
        if not gradient:
            return found
        if isinstance(found, JointEvaluation):
            assert found.gradient is not None
            return found._replace(gradient=found.gradient[:, self.free])
        assert found.log_prior_gradient is not None
        assert found.log_likelihood_gradient is not None
        return found._replace(
            log_prior_gradient=found.log_prior_gradient[:, self.free],
            log_likelihood_gradient=found.log_likelihood_gradient[:, self.free],
        )
