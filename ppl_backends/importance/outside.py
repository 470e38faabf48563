"""Points of density zero, and the number of them at which the density is NaN or +inf.

NaN and +inf count as zero density. This is right at a point far from the posterior where a solver fails. Among the
particles it cuts off a part of the posterior. A target distinguishes the cases (:meth:`BaseTarget.undefined`). It is
asked about a few points only, because most targets have no such points.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ppl_backends.targets.protocol import Array, BaseTarget

LARGEST_UNDEFINED = 0.005  # share of points or moves; for moves it is about twice the mass that is cut off

_ASKED = 200  # points at which the target is asked
_KEPT = 10  # points kept of one evaluation
_MARGIN = 0.5  # of the particles' range, on either side; points further out carry no mass


class OutsidePoints:
    """Points of density zero among or near particles ``(n, dim)``."""

    def __init__(self, particles: Array) -> None:
        low, high = particles.min(axis=0), particles.max(axis=0)
        self._low, self._high = low - _MARGIN * (high - low), high + _MARGIN * (high - low)
        self._n, self._kept = 0, list[Array]()

    def are_near(self, x: Array) -> NDArray[np.bool_]:
        """Return which of the points ``(n, dim)`` are among or near the particles."""
        return np.asarray(((x >= self._low) & (x <= self._high)).all(axis=1))

    def see(self, x: Array, log_density: Array) -> None:
        """Record the undefined points of an evaluation at ``(n, dim)``."""
        zero = log_density == -np.inf
        if not zero.any():
            return
        points = x[zero]
        near = points[self.are_near(points)]
        self._n += len(near)
        if len(near):
            self._kept.append(near[:: -(-len(near) // _KEPT)])

    def n_undefined(self, target: BaseTarget) -> float:
        """Return the number of points whose density is NaN or +inf, estimated from a sample."""
        return self._n * share_undefined(target, np.concatenate(self._kept)) if self._kept else 0.0


def share_undefined(target: BaseTarget, points: Array) -> float:
    """Return the share of points ``(n, dim)`` whose density is NaN or +inf, estimated from some of them; 0 for no points."""
    if not len(points):
        return 0.0
    with np.errstate(all="ignore"):  # overflow at these points is expected
        return float(target.undefined(points[:: -(-len(points) // _ASKED)]).mean())


def share_undefined_near(target: BaseTarget, particles: Array, x: Array, log_density: Array) -> float:
    """Return the share, among the points ``(n, dim)`` in or near the particles, of those whose density is NaN or +inf."""
    near = OutsidePoints(particles).are_near(x)
    zero = near & (log_density == -np.inf)
    return share_undefined(target, x[zero]) * float(zero.sum()) / max(1, int(near.sum()))


def reasons_of_undefined(share: float, where: str) -> list[str]:
    """Return the reason not to trust a run whose moves met undefined densities, if the share of these moves is large."""
    if share <= LARGEST_UNDEFINED:
        return []
    return [
        f"{100 * share:.1f} % of the moves {where} met a log density that is NaN or +inf and counts as zero, so a part of "
        "the posterior may be missing: find the operation of the model that is not finite there"
    ]
