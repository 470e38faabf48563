"""Particles at which the log density is little more than rounding error, so that no ladder of temperatures ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ppl_backends.approximations.lost_mode import name_of
from ppl_backends.targets.protocol import Array

# Particles collapse if their standard deviation is below this many representable numbers.
_FEWEST_APART = 1000
# Particles that are compared with adjacent numbers, and the change of the log density that is an error. A density with such
# a slope would be constant only over 1e-16 of a coordinate.
_COMPARED, _ERROR = 16, 1.0


class RoundingEnd(str):
    """The reason for the end of a run at particles where the log density is little more than rounding error."""

    __slots__ = ()


def collapse(x: Array, names: Sequence[str] = ()) -> str:
    """Return where particles differ by little more than rounding; empty if nowhere."""
    at = collapsed_at(x)
    if at is None:
        return ""
    return RoundingEnd(
        f"particles differ by little more than rounding in `{name_of(at, names)}`, as if the likelihood had no bound where a "
        "scale is zero (give the scale a prior that excludes zero, or use intervals for rounded data)"
    )


def collapsed_at(x: Array) -> int | None:
    """Return a coordinate in which particles ``(n, dim)`` differ by little more than rounding, or None.

    A likelihood without bound, such as that of equal data as their scale goes to zero, draws all particles to one point
    at powers of it that have no integral. Differences of log densities are rounding errors there, and a ladder has no end.
    """
    spread, largest = x.std(axis=0), np.abs(x).max(axis=0).astype(np.float64)  # x is boolean in a search of models
    copies = (x == x[0]).all(axis=0)  # their standard deviation may be above zero by rounding
    near = np.flatnonzero(~copies & (spread < _FEWEST_APART * np.spacing(largest)))
    return int(near[0]) if len(near) else None


def noise_at(log_density: Callable[[Array], Array], x: Array, increment: Array, names: Sequence[str] = ()) -> str:
    """Return where and by how much the log density changes between adjacent numbers; empty if by less than one.

    Differences of large terms, as of log gamma functions of 1e20, leave rounding errors, and the particles where they are
    largest have the most descendants. So those with the largest log ``increment`` are compared.
    """
    rows = x[np.argsort(-increment, kind="stable")[:_COMPARED]]
    beside, here = np.nextafter(rows, np.inf), log_density(rows)

    def change(moved: Array) -> float:
        """Return the median change, zero where a log density is not finite."""
        with np.errstate(invalid="ignore"):
            changes = np.abs(log_density(moved) - here)
        return float(np.median(np.where(np.isfinite(changes), changes, 0.0)))

    largest = change(beside)
    if largest <= _ERROR:
        return ""
    alone = [change(np.where(np.arange(x.shape[1]) == j, beside, rows)) for j in range(x.shape[1])]
    worst = int(np.argmax(alone))
    return RoundingEnd(
        f"the log density changes by {largest:.2g} between adjacent numbers around `{name_of(worst, names)}` = "
        f"{np.median(rows[:, worst]):.3g} on the unconstrained scale, so it is rounding error there (bound the parameter, or "
        "give it a prior with lighter tails)"
    )
