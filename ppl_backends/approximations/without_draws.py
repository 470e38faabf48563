"""A mode of the posterior that chains do not visit.

Chains of a step that an approximation calibrates start from draws of it. If that is a Gaussian at one of several modes, all
chains stay there, and R̂ does not show it. The same holds for draws of other samplers. Climbs from draws of the prior outside
of the chains' draws look for another mode; without a prior, they start from points around the origin. Further climbs start
from points around the draws, 4 to 45 times as wide as these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.special import expit

from ppl_backends.approximations.elsewhere import NEGLIGIBLE_SHARE, is_log_concave
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.lost_mode import (
    TIMES,
    LostMode,
    can_be_sought,
    farthest,
    largest,
    log_mass_of,
    lost_mode_reason,
)
from ppl_backends.approximations.modes import beyond, find_modes_around
from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array, BaseTarget

DRAWS = 1000  # of an approximation, which stand for it
ADVICE = ": use sample_smc(initial='auto'), which starts from all modes that it finds"


def mode_without_chains(
    target: BaseTarget, draws: Array, rng: np.random.Generator, log_mass: float | None = None
) -> LostMode | None:
    """Return a mode with more than 1 % of the mass that has less than half as many of the draws ``(n, dim)``, or None.

    The mass at a mode is that within an ellipsoid, where the Gaussian there is denser than that of the draws. The mass of
    the draws is that within an ellipsoid, unless its log is given as ``log_mass``. If it is not given, and the draws are
    too far from a Gaussian to tell it, there is no search.
    """
    if target.is_estimated or is_log_concave(target) or not can_be_sought(target):
        return None
    try:
        own = GaussianApproximation(draws.mean(axis=0), np.atleast_2d(np.cov(draws.T)))
    except (ModelError, LinAlgError):  # fewer different draws than coordinates
        return None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        log_mass = log_mass_of(target.log_density, own, rng) if log_mass is None else log_mass
        if log_mass is None:
            return None
        others = find_modes_around(target, own, rng)
        return largest(_without_draws(target, own, other, draws, log_mass, rng) for other in others)


def mode_missed_by(q: Any, target: BaseTarget) -> str:
    """Return in words a mode of the posterior that an approximation misses; empty if there is none.

    A search for modes of hyper-parameters runs nested approximations, so it has few starts; climbs on the density cost far
    less. Draws of the approximation stand for it; they are the same in every call.
    """
    draws_rng, rng = (np.random.default_rng(seed) for seed in (0, 1))
    lost = mode_without_chains(target.with_fixed_batch_size(), q.sample(DRAWS, draws_rng), rng)
    return "" if lost is None else lost_mode_reason(lost, target.names, "")


def _without_draws(
    target: BaseTarget,
    own: GaussianApproximation,
    other: GaussianApproximation,
    draws: Array,
    log_mass: float,
    rng: np.random.Generator,
) -> LostMode | None:
    """Return the other mode if it has too few of the draws."""

    def nearer(x: Array) -> NDArray[np.bool_]:
        return np.asarray(other.log_density(x) > own.log_density(x))

    log_other = log_mass_of(lambda x: np.where(nearer(x), target.log_density(x), -np.inf), other, rng)
    if log_other is None:
        return None
    share = float(expit(log_other - log_mass))
    held = float(np.mean(nearer(draws) & ~beyond(draws, other)))
    if share <= NEGLIGIBLE_SHARE or TIMES * held >= share:
        return None
    return LostMode(share, other.mean, farthest(other.mean, draws), held, other)
