"""Directions without end: the posterior rises for ever along them, although all other coordinates are integrated out.

Data that fit exactly as a scale goes to zero have a likelihood without bound. If the likelihood grows faster than the
volume of the other coordinates shrinks, the posterior is improper. Tempered posteriors are improper from some β < 1 on,
and near this β particles wander off, so that stages take ever longer. A funnel is different: its density has no bound
either, but its volume shrinks as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ppl_backends.approximations.inla.conditional import conditional_modes
from ppl_backends.approximations.lost_mode import name_of
from ppl_backends.approximations.newton import LARGEST_NEWTON_DIM
from ppl_backends.errors import ModelError
from ppl_backends.smc.rounding import RoundingEnd
from ppl_backends.targets.conditional import ConditionalTarget
from ppl_backends.targets.protocol import Array, BaseTarget, Index

_WIDER = 1.5  # standard deviation of the particles over that of the start, above which they spread
_END = 0.02  # share of the particles beyond the point where the line starts
# Least step along the line, the same in standard deviations of the particles, and the number of steps. All steps divide a
# scale by 7e10.
_STEP, _DEVIATIONS, _STEPS = 5.0, 2.0, 5
_RISE = 0.25  # nats a step


@dataclass
class EndlessWatch:
    """Look along the line in which particles spread beyond those of the start; once for each set of coordinates."""

    target: BaseTarget
    start: Array | None = None  # standard deviations ``(dim,)``
    known: set[tuple[int, ...]] = field(default_factory=set)

    def reason(self, x: Array, log_density: Array) -> str:
        """Return along which coordinate the posterior rises for ever; empty if along none that particles spread in."""
        target = self.target
        if not target.has_gradient or target.is_estimated or target.dim > LARGEST_NEWTON_DIM:
            return ""
        spread = x.std(axis=0)
        if self.start is None:
            self.start = spread
        wider = tuple(int(j) for j in np.flatnonzero(spread > _WIDER * self.start))
        if not wider or wider in self.known:
            return ""
        self.known.add(wider)
        return rise_along(target, x[np.isfinite(log_density)], np.array(wider), target.names)


def rise_along(target: BaseTarget, x: Array, held: Index, names: Sequence[str] = ()) -> str:
    """Return by how much the posterior of some coordinates rises beyond particles ``(n, dim)``; empty if it does not.

    Laplace's method integrates the other coordinates out along the line of the principal axis of the particles, in the
    direction in which they reach farther from their median.
    """
    axis = np.linalg.eigh(np.atleast_2d(np.cov(x[:, held].T)))[1][:, -1]
    along = x[:, held] @ axis
    low, middle, high = np.quantile(along, [_END, 0.5, 1.0 - _END])
    if middle - low > high - middle:
        axis, along, high = -axis, -along, -low
    worst = int(np.argmax(np.abs(axis)))
    step = max(_STEP, _DEVIATIONS * float(along.std())) / abs(axis[worst])
    point = x[int(np.argmin(np.abs(along - high)))].copy()
    reached: list[float] = []
    target = target.with_fixed_batch_size()
    for _ in range(_STEPS + 1):
        point, log_density = _integrated(target, point, held)
        if not np.isfinite(log_density) or (reached and log_density - reached[-1] < _RISE):
            return ""
        reached.append(log_density)
        point[held] += step * axis
    rise = (reached[-1] - reached[0]) / (_STEPS * step * abs(axis[worst]))
    where = "falls" if axis[worst] < 0 else "rises"
    return RoundingEnd(
        f"the posterior is improper: with all else integrated out, its log density rises by {rise:.2g} for every unit by "
        f"which `{name_of(int(held[worst]), names)}` {where} on the unconstrained scale, without an end (give a scale a "
        "prior that excludes zero, or use intervals for rounded data)"
    )


def _integrated(target: BaseTarget, point: Array, held: Index) -> tuple[Array, float]:
    """Return the mode given the coordinates ``held`` of a point, and the log density of these by Laplace's method."""
    free, point = np.setdiff1d(np.arange(target.dim), held), point.copy()
    with np.errstate(all="ignore"):
        if not len(free):
            return point, float(target.log_density(point[None])[0])
        try:
            found = conditional_modes(ConditionalTarget(target, free, point), point[None, free], np.array([-1]))
        except ModelError:
            return point, float("nan")
    point[free] = found.x[0]
    return point, float(found.log_integral[0])
