"""The marginal of one coordinate by Laplace's method for all others, to judge the width of a Gaussian along it.

Weights of a Gaussian's points underestimate the width of the posterior where the points are few, as in the neck of a
funnel. Laplace's method integrates the other coordinates out at values far from the Gaussian's mean too. A tail that
hardly changes moments of a coordinate can change those of its exponential, which is what a user reads.

Tierney, L. & Kadane, J. B. (1986). Accurate approximations for posterior moments and marginal densities. *JASA* 81(393).
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.stats import norm

from ppl_backends.approximations.inla.conditional import conditional_modes
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.approximations.newton import LARGEST_NEWTON_DIM
from ppl_backends.approximations.verdict import judge_moments
from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import real_parts
from ppl_backends.targets.protocol import Array, BaseTarget

_TAIL = np.array([7.0, 8.5, 10.0, 12.0])  # where a t with 3 degrees of freedom still has a sixth of its variance
_STEPS = np.concatenate([-_TAIL[::-1], np.linspace(-6.0, 6.0, 25), _TAIL])  # standard deviations of the Gaussian
_FINE = 20  # points of integration a step
_FEWEST = 5  # values, for a marginal
_SKEWED = 0.2  # difference of the ranges on both sides, over their sum; the exponential of N(0, 0.14²) has 0.2
_MOST = 4  # coordinates
_AGREE = 0.2  # difference in a coordinate's mean or standard deviation up to which Laplace's method is used
_LARGEST_END = 0.2  # share of a second moment at the ends of the grid, above which there may be none


class Marginal(NamedTuple):
    """Probabilities ``(n,)`` on a grid of one coordinate, in standard deviations of a Gaussian from its mean."""

    at: Array
    probability: Array

    @property
    def own_moments(self) -> tuple[float, float]:
        """Return the shift of the coordinate's mean and the ratio of standard deviations, posterior to Gaussian."""
        return _moments(self.at, self.probability)

    def moments(self, values: Array, density: Array) -> tuple[float, float]:
        """Return the shift of the mean of a function of the coordinate, and the ratio of standard deviations.

        They are those of the posterior against the approximation, which has the ``density`` on the fine grid and whose
        deviation is the unit. ``values`` are on the coarse grid.
        """
        fine = CubicSpline(_STEPS, values)(self.at)
        (mean, sd), (other_mean, other_sd) = _moments(fine, self.probability), _moments(fine, density / density.sum())
        return (mean - other_mean) / other_sd, sd / other_sd

    def covers(self, values: Array) -> bool:
        """Return whether the grid covers the second moment of a function of the coordinate: its ends have a small share."""
        square = self.probability * CubicSpline(_STEPS, values)(self.at) ** 2
        ends = np.abs(self.at) > _STEPS[-1] - 1.0
        return bool(square[ends].sum() < _LARGEST_END * square.sum())


class OwnVariable(NamedTuple):
    """A variable that is a function of one coordinate, with its values on the grid of :class:`Marginal`."""

    name: str
    coordinate: int
    values: Array


def fault_in_model_space(target: BaseTarget, q: Any, shift: Array, ratio: Array, skip: Any = ()) -> str:
    """Return which moment of a skewed variable is off; "" for none.

    Laplace's marginal is used if its own moments of the coordinate agree with ``shift`` and ``ratio`` ``(dim,)``, those of
    the posterior against the approximation. Coordinates in ``skip`` are not judged.
    """
    marginals: dict[int, Marginal | None] = {}
    for variable in skewed_variables(target, q, skip):
        j = variable.coordinate
        if j not in marginals:
            marginals[j] = marginal_along(target, q, j)
        marginal = marginals[j]
        if marginal is None or not marginal.covers(variable.values):
            continue
        apart = np.array(marginal.own_moments) - (shift[j], ratio[j])
        if np.abs(apart).max() > _AGREE:
            continue
        if said := judge_moments(*marginal.moments(variable.values, _density_along(q, j, marginal.at)), variable.name):
            return said
    return ""


def _density_along(q: Any, coordinate: int, at: Array) -> Array:
    """Return the approximation's density of a coordinate, up to a factor, at its standard deviations from the mean."""
    if not isinstance(q, MixtureApproximation):
        return np.asarray(np.exp(-0.5 * at**2))
    x = q.mean[coordinate] + q.sd[coordinate] * at
    parts = norm.pdf(x[:, None], q.means[:, coordinate], q.component_sds()[:, coordinate])
    return np.asarray(parts @ q.weights)


def marginal_along(target: BaseTarget, q: Any, coordinate: int) -> Marginal | None:
    """Return the marginal of one coordinate; None if too few of the other coordinates' modes are found."""
    if q.dim > LARGEST_NEWTON_DIM:
        return None
    along = q.cov[:, coordinate] / q.sd[coordinate]  # the Gaussian's conditional means
    start = q.mean + _STEPS[:, None] * along
    with np.errstate(all="ignore"):
        try:
            if q.dim == 1:
                log_marginal = target.log_density(start)
            else:
                log_marginal = conditional_modes(target, start, np.full(len(start), coordinate)).log_integral
        except ModelError:
            return None
    found = np.isfinite(log_marginal)
    if found.sum() < _FEWEST:
        return None
    steps = _STEPS[found]
    fine = np.linspace(steps[0], steps[-1], _FINE * len(_STEPS))
    log_density = CubicSpline(steps, log_marginal[found])(fine)
    density = np.exp(log_density - log_density.max())
    return Marginal(fine, density / density.sum())


def skewed_variables(target: BaseTarget, q: Any, skip: Any = ()) -> list[OwnVariable]:
    """Return variables in model space that are functions of one coordinate each, and skewed if it is Gaussian.

    Scales and degrees of freedom are, whose coordinates are logarithms. Those of up to four coordinates are returned, the
    most skewed first, and none of the coordinates in ``skip``.
    """
    if q.dim > LARGEST_NEWTON_DIM:
        return []
    own = np.eye(q.dim)[:, None] * np.array([-3.0, 0.0, 3.0])[:, None]  # (dim, 3, dim)
    z = np.concatenate([own, own + 0.5 * (1.0 - np.eye(q.dim))[:, None]]).reshape(-1, q.dim)
    found: list[tuple[float, int, str, int]] = []
    for name, values in _constrained(target, q.mean + q.sd * z).items():
        here, there = np.asarray(values, dtype=np.float64).reshape(2, q.dim, 3, -1)
        alone = np.isclose(here, there, rtol=1e-9, atol=0.0).all(axis=1) & (here[:, 0] != here[:, 2])
        skewness = np.abs(here[:, 2] + here[:, 0] - 2 * here[:, 1]) / np.maximum(
            np.abs(here[:, 2] - here[:, 0]), 1e-300
        )
        found += [(-skewness[j, k], int(j), name, int(k)) for j, k in zip(*np.nonzero(alone), strict=True)]
    found = sorted(one for one in found if one[0] < -_SKEWED and one[1] not in skip)
    coordinates = list(dict.fromkeys(j for _, j, _, _ in found))[:_MOST]
    if not coordinates:
        return []
    z = (np.eye(q.dim)[coordinates][:, None] * _STEPS[:, None]).reshape(-1, q.dim)
    on_grid = _constrained(target, q.mean + q.sd * z)
    variables = []
    for _, j, name, k in found:
        if j in coordinates:
            values = np.asarray(on_grid[name], dtype=np.float64)
            grid = values.reshape(len(coordinates), len(_STEPS), -1)[coordinates.index(j), :, k]
            if np.isfinite(grid).all():
                variables.append(OwnVariable(_labelled(name, values, k), j, grid))
    return variables


def _constrained(target: BaseTarget, x: Array) -> dict[str, Array]:
    """Return points in model space; where a value cannot be computed it is not finite, without a warning."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: real_parts(value) for name, value in target.constrain(x).items()}


def _labelled(name: str, values: Array, element: int) -> str:
    """Return the name of an element of a variable with these values ``(n, *shape)``."""
    index = ",".join(map(str, np.unravel_index(element, values.shape[1:])))
    return f"{name}[{index}]" if index else name


def _moments(x: Array, probability: Array) -> tuple[float, float]:
    mean = probability @ x
    return float(mean), float(np.sqrt(probability @ (x - mean) ** 2))
