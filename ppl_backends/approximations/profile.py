"""The marginal of one coordinate by Laplace's method for all others, to judge the width of a Gaussian along it.

Weights of a Gaussian's points underestimate the width of the posterior where the points are few, as in the neck of a
funnel. Laplace's method integrates the other coordinates out at values far from the Gaussian's mean too.

Tierney, L. & Kadane, J. B. (1986). Accurate approximations for posterior moments and marginal densities. *JASA* 81(393).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline

from ppl_backends.approximations.inla.conditional import conditional_modes
from ppl_backends.approximations.newton import LARGEST_NEWTON_DIM
from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array, BaseTarget

_STEPS = np.linspace(-6.0, 6.0, 25)  # standard deviations of the Gaussian
_FINE = 20  # points of integration a step
_FEWEST = 5  # values, for a marginal


def moments_along(target: BaseTarget, q: Any, coordinate: int) -> tuple[float, float] | None:
    """Return the shift of a mean and the ratio of standard deviations, posterior to Gaussian, along one coordinate.

    The shift is in the Gaussian's standard deviations. None if too few of the other coordinates' modes are found.
    """
    if not 1 < q.dim <= LARGEST_NEWTON_DIM:
        return None
    along = q.cov[:, coordinate] / q.sd[coordinate]  # the Gaussian's conditional means
    start = q.mean + _STEPS[:, None] * along
    with np.errstate(all="ignore"):
        try:
            modes = conditional_modes(target, start, np.full(len(start), coordinate))
        except ModelError:
            return None
    return _moments(modes.log_integral)


def _moments(log_marginal: Array) -> tuple[float, float] | None:
    """Return mean and standard deviation of a marginal with these logs on the grid, where they are finite."""
    found = np.isfinite(log_marginal)
    if found.sum() < _FEWEST:
        return None
    steps = _STEPS[found]
    fine = np.linspace(steps[0], steps[-1], _FINE * len(_STEPS))
    log_density = CubicSpline(steps, log_marginal[found])(fine)
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    mean = density @ fine
    return float(mean), float(np.sqrt(density @ (fine - mean) ** 2))
