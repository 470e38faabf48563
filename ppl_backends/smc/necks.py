"""Verdicts on divergent trajectories: whether the last particles miss the neck of a funnel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ppl_backends.approximations.lost_mode import name_of

# Share of the last trajectories that diverged, above which it is a reason for distrust if no shorter steps were tried.
_DIVERGENT = 0.005
# Share of trajectories that diverge with a quarter of the step, relative to those that diverged before, or to all. In regions
# of one narrow width almost none diverge; in a neck that narrows further, an eighth to a half do.
_STILL_DIVERGENT, _LEAST_DIVERGENT = 0.1, 0.0002
# Standard errors by which shorter steps may move particles to where the energy error is large, and by which they do so
# whatever the mass is that the particles there miss
_SHIFTED, _SURELY_SHIFTED = 2.5, 4.0
# Relative to the mass of the particles. In a neck four standard deviations out twice of it moves a standard deviation by
# 15 %, and the moves that measure it may not reach all of it.
_NEGLIGIBLE_MASS = 0.01


class MissedMass(NamedTuple):
    """Mass that the particles miss in a neck, relative to theirs, and the share that still diverges.

    ``error`` is its standard error by the moves, and ``noise`` the standard deviation of the mass of particles that represent
    the posterior.
    """

    mass: float
    error: float
    noise: float
    divergent: float

    @property
    def is_negligible(self) -> bool:
        """Return whether the mass, as far as chance does not explain it, moves neither the evidence nor means by much."""
        unexplained = max(0.0, self.mass - 2.0 * self.noise)
        return unexplained + 2.0 * self.error + self.divergent <= _NEGLIGIBLE_MASS

    @property
    def total_error(self) -> float:
        """Return the standard error of the mass as that of the posterior."""
        return float(np.hypot(self.error, self.noise))

    @property
    def is_clear(self) -> bool:
        """Return whether the mass is larger than its error explains."""
        return self.mass > 2.0 * self.total_error


class ShortSteps(NamedTuple):
    """Effect of moves with a quarter of the step on the last particles.

    ``divergent`` is the share of their trajectories that diverged. ``shift`` is how much further particles went to
    where the energy error is large, in standard errors, along a ``coordinate``, ``upwards`` or downwards. The prior of other
    coordinates may depend on it (``shapes_others``). ``missed`` is from moves of the particles there alone.
    """

    divergent: float
    shift: float
    coordinate: int
    upwards: bool
    shapes_others: bool = True
    missed: MissedMass | None = None

    @property
    def goes_further(self) -> bool:
        """Return whether particles go further to where the energy error is large."""
        return self.shift > _SHIFTED

    @property
    def surely_goes_further(self) -> bool:
        """Return whether they go so far that the mass that they miss need not be measured."""
        return self.shift > _SURELY_SHIFTED

    @property
    def misses_little(self) -> bool:
        """Return whether the mass that they miss is measured, and no reason for distrust."""
        missed = self.missed
        return missed is not None and missed.is_negligible and not (self.goes_further and missed.is_clear)

    def still_diverges(self, before: float) -> bool:
        """Return whether about as many trajectories diverge as with the original step."""
        return self.divergent > max(_STILL_DIVERGENT * before, _LEAST_DIVERGENT)


def reasons_of_neck(divergent: float, short_steps: ShortSteps | None, names: Sequence[str] = ()) -> list[str]:
    """Return reasons for distrust if a share ``divergent`` of the last trajectories diverged."""
    said = f"{100 * divergent:.1f} % of the last trajectories diverged (energy error above 20)"
    if short_steps is None:
        return [f"{said}, and the draws may miss the region where they did"] if divergent > _DIVERGENT else []
    name = name_of(short_steps.coordinate, names)
    place = f"`{name}` is {'large' if short_steps.upwards else 'small'}"
    advice = advice_for_neck(name, short_steps.shapes_others)
    missed = short_steps.missed
    if short_steps.misses_little:
        return []
    if short_steps.goes_further:
        return [
            f"{said}, and with a quarter of the step particles move by {short_steps.shift:.1f} standard errors to where "
            f"{place}, so the draws have too few points there: {advice}"
        ]
    if not (short_steps.still_diverges(divergent) or (missed is not None and missed.is_clear)):
        return []
    said = f"{said}, {100 * short_steps.divergent:.1f} % with a quarter of the step, mostly where {place}"
    if missed is not None:
        said += (
            f", and the draws miss {100 * missed.mass:.1f} ± {100 * missed.total_error:.1f} % of the posterior there"
        )
    return [f"{said}: {advice}"]


def advice_for_neck(name: str, shapes_others: bool = True) -> str:
    """Return what to do about a neck along a coordinate of that name, on which the prior of others may depend."""
    if shapes_others:
        return f"write the variables that scale with {name} non-centred (standardised, then multiplied by their scale)"
    return (
        f"no prior depends on {name}: if it is a factor, give it and the variables that it is multiplied by priors with "
        "lighter tails, or write their product as one variable (centred); if it is a scale of observations, give it a prior "
        "with less mass near zero, or integrate out the variables that these observations determine where it is small"
    )
