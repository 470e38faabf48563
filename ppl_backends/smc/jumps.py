"""Log densities that jump, as at a change point: gradients do not show jumps, and trajectories do not mix across them.

A jump is looked for on segments between particles. The log density and its slope are evaluated at points of a segment. The
interval whose change the slopes explain least is bisected until every smooth density is resolved. A change that is left
there is a jump.
"""

from __future__ import annotations

import numpy as np

from ppl_backends.smc.path import TemperingPath
from ppl_backends.targets.protocol import Array

_SEGMENTS, _INTERVALS = 16, 32
_BISECTIONS = 24  # to intervals of 2e-9 of a segment
_JUMP = 1.0  # smallest change of the log density that counts
_OFTEN = 0.25  # of the segments; fewer jumps are at the edge of the mass


class DensityJumpsError(Exception):
    """The end of a run whose trajectories did not mix, because the log density jumps between particles."""


def density_jumps(path: TemperingPath, x: Array, beta: float) -> bool:
    """Return whether the log density of a temperature often jumps between its particles ``(n, dim)``."""
    different = np.unique(x, axis=0)
    if len(different) < 2:
        return False
    rng = np.random.default_rng(0)
    first, second = (different[rng.integers(len(different), size=_SEGMENTS)] for _ in range(2))
    return float(np.mean(_largest_jumps(path, first, second - first, beta) > _JUMP)) >= _OFTEN


def _largest_jumps(path: TemperingPath, start: Array, across: Array, beta: float) -> Array:
    """Return the sizes of the jumps on segments from ``start`` to ``start + across``; NaN next to density zero."""

    def along(t: Array) -> tuple[Array, Array]:
        """Return log densities and slopes ``(segments, k)`` at shares ``(segments, k)`` of the segments."""
        points = start[:, None] + t[..., None] * across[:, None]
        state = path.evaluate(points.reshape(-1, start.shape[1]), beta, True)
        gradient = np.asarray(state.gradient).reshape(points.shape)
        return state.log_density.reshape(t.shape), (gradient * across[:, None]).sum(axis=2)

    rows = np.arange(len(start))
    with np.errstate(all="ignore"):
        t = np.tile(np.linspace(0.0, 1.0, _INTERVALS + 1), (len(start), 1))
        value, slope = along(t)
        for _ in range(1 + _BISECTIONS):
            change = _unexplained(t, value, slope)
            worst = np.argmax(np.nan_to_num(change, nan=-1.0, posinf=-1.0), axis=1)
            both = rows[:, None], worst[:, None] + np.arange(2)
            ends = t[both]
            inside, its_slope = along(ends.mean(axis=1, keepdims=True))
            t = np.insert(ends, [1], ends.mean(axis=1, keepdims=True), axis=1)
            value, slope = np.insert(value[both], [1], inside, axis=1), np.insert(slope[both], [1], its_slope, axis=1)
        return np.asarray(_unexplained(t, value, slope).max(axis=1))


def _unexplained(t: Array, value: Array, slope: Array) -> Array:
    """Return by how much changes of the log density differ from those by the trapezoidal rule for its slopes."""
    return np.abs(np.diff(value, axis=1) - 0.5 * (slope[:, 1:] + slope[:, :-1]) * np.diff(t, axis=1))
