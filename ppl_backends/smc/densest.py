"""The densest points of the target among all points that moves evaluate, accepted or not.

If a mode is too narrow to hold particles on the path, a few of the many points of trajectories still hit it.
"""

from __future__ import annotations

import numpy as np

from ppl_backends.targets.protocol import Array

_KEPT = 8


class Densest:
    """A few points ``(m, dim)`` of highest log density."""

    def __init__(self, dim: int) -> None:
        self.x, self.log_density = np.empty((0, dim)), np.empty(0)

    def see(self, x: Array, log_density: Array) -> None:
        """Record the points of an evaluation ``(n, dim)`` that are denser than the kept ones."""
        floor = self.log_density[-1] if len(self.log_density) == _KEPT else -np.inf
        above = np.flatnonzero(log_density > floor)
        above = above[np.isfinite(log_density[above])]
        if not len(above):
            return
        value = np.concatenate([self.log_density, log_density[above]])
        order = np.argsort(-value, kind="stable")[:_KEPT]
        self.x, self.log_density = np.concatenate([self.x, x[above]])[order], value[order]
