"""The marginal of one coordinate by Laplace's method for all others, to judge the width of a Gaussian along it.

Weights of a Gaussian's points underestimate the width of the posterior where the points are few, as in the neck of a
funnel. Laplace's method integrates the other coordinates out at values far from the Gaussian's mean too.

Tierney, L. & Kadane, J. B. (1986). Accurate approximations for posterior moments and marginal densities. *JASA* 81(393).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline

from ppl_backends.approximations.newton import LARGEST_NEWTON_DIM, Climbs, newton
from ppl_backends.errors import ModelError
from ppl_backends.progress import ChainProgress
from ppl_backends.targets.protocol import Array, BaseTarget
from ppl_backends.targets.wrapped import WrappedTarget

_STEPS = np.linspace(-6.0, 6.0, 25)  # standard deviations of the Gaussian
_FINE = 20  # points of integration a step
_MOST_ITERATIONS = 30
_SETTLED = 0.01  # standard deviations from the conditional mode
_FEWEST = 5  # values, for a marginal


class _Held(WrappedTarget):
    """A density with one coordinate held where it is: its slope there is zero."""

    def __init__(self, target: BaseTarget, coordinate: int) -> None:
        super().__init__(target)
        self._held = coordinate

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        value, gradient = self.target.log_density_and_gradient(x)
        gradient = gradient.copy()
        gradient[:, self._held] = 0.0
        return value, gradient

    def hessian(self, x: Array, part: str = "joint") -> Array:
        hessian = self.target.hessian(x, part).copy()
        hessian[:, self._held] = hessian[:, :, self._held] = 0.0
        hessian[:, self._held, self._held] = -1.0
        return hessian


def moments_along(target: BaseTarget, q: Any, coordinate: int) -> tuple[float, float] | None:
    """Return the shift of a mean and the ratio of standard deviations, posterior to Gaussian, along one coordinate.

    The shift is in the Gaussian's standard deviations. None if too few of the other coordinates' modes are found.
    """
    if not 1 < q.dim <= LARGEST_NEWTON_DIM:
        return None
    along = q.cov[:, coordinate] / q.sd[coordinate]  # the Gaussian's conditional means
    with np.errstate(all="ignore"), ChainProgress("Laplace", 1, (), enabled=False) as silent:
        try:
            modes = newton(_Held(target, coordinate), q.mean + _STEPS[:, None] * along, _MOST_ITERATIONS, silent)
        except ModelError:
            return None
    return _moments(modes)


def _moments(modes: Climbs) -> tuple[float, float] | None:
    """Return mean and standard deviation of the marginal on the grid, from Gaussians at the other coordinates' modes."""
    found = (
        np.isfinite(modes.log_density) & (modes.decrement < _SETTLED) & np.isfinite(modes.precision).all(axis=(1, 2))
    )
    sign, log_determinant = np.linalg.slogdet(modes.precision[found])
    found[np.flatnonzero(found)[sign <= 0]] = False
    if found.sum() < _FEWEST:
        return None
    log_marginal = modes.log_density[found] - 0.5 * log_determinant[sign > 0]
    steps = _STEPS[found]
    fine = np.linspace(steps[0], steps[-1], _FINE * len(_STEPS))
    log_density = CubicSpline(steps, log_marginal)(fine)
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    mean = density @ fine
    return float(mean), float(np.sqrt(density @ (fine - mean) ** 2))
