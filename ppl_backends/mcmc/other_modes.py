"""A mode of the posterior that chains do not visit.

Chains of a step that an approximation calibrates start from draws of it. If that is a Gaussian at one of several modes, all
chains stay there, and R̂ does not show it. Climbs from draws of the prior outside of the chains' draws look for another mode.
"""

from __future__ import annotations

import numpy as np
from numpy.linalg import LinAlgError
from scipy.special import expit

from ppl_backends.approximations.elsewhere import NEGLIGIBLE_SHARE, is_log_concave
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.missed_modes import TIMES, LostMode, can_be_sought, farthest, log_mass_of
from ppl_backends.approximations.modes import beyond, find_other_mode
from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array, BaseTarget


def mode_without_chains(target: BaseTarget, draws: Array, rng: np.random.Generator) -> LostMode | None:
    """Return a mode with more than 1 % of the mass that has less than half as many of the draws ``(n, dim)``, or None.

    Masses are those within an ellipsoid around a Gaussian: that of the draws, and that at the mode. There is no search if
    the draws are too far from a Gaussian to tell the mass around them.
    """
    if target.is_estimated or is_log_concave(target) or not can_be_sought(target):
        return None
    try:
        own = GaussianApproximation(draws.mean(axis=0), np.atleast_2d(np.cov(draws.T)))
    except (ModelError, LinAlgError):  # fewer different draws than coordinates
        return None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        log_mass = log_mass_of(target.log_density, own, rng)
        other = None if log_mass is None else find_other_mode(target, own)
        log_other = None if other is None else log_mass_of(target.log_density, other, rng)
    if other is None or log_mass is None or log_other is None:
        return None
    share = float(expit(log_other - log_mass))
    held = float(np.mean(~beyond(draws, other)))
    if share <= NEGLIGIBLE_SHARE or TIMES * held >= share:
        return None
    return LostMode(share, other.mean, farthest(other.mean, draws), held, other)
