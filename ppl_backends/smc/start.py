"""Where a run begins: draws of the start of the path, with what is known of their log normaliser.

A prior that can be drawn from, and a Gaussian, give independent draws and are normalised. The prior of a Stan program is a
density only: it is sampled by a run of its own, from independent Cauchy variables (whose tails are at least as heavy as
those of any usual prior, so the weights are bounded) to the prior, and the evidence of that run is the log of the prior's
normaliser, with which the program's evidence has to be multiplied: log ½ for every half-normal written as a normal with a
lower bound, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.errors import PriorSamplingError
from ppl_backends.targets.propriety import improper_coordinate
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["IndependentCauchy", "StartFigures", "cauchy_around", "check_proper"]


class StartFigures(NamedTuple):
    """What is kept of a start.

    Attributes
    ----------
    log_normalizer : float
        Log of the integral of the path's base; 0 for a normalised one.
    variance, df : float
        Of that, where it is an estimate, and its degrees of freedom.
    stages : tuple
        Of the run that drew the particles, where one did.
    undefined : float
        Share of the draws whose density is NaN or +inf.
    n_draws : int
        More than particles, where few of them are inside the support.
    """

    log_normalizer: float
    variance: float = 0.0
    df: float = 1.0
    stages: tuple[Any, ...] = ()
    undefined: float = 0.0
    n_draws: int = 0


@dataclass(frozen=True)
class IndependentCauchy:
    """Independent Cauchy coordinates, as an approximation that a path can start from.

    Attributes
    ----------
    location, scale : ndarray (dim,)
    """

    location: Array
    scale: Array
    method: str = "independent Cauchy"
    representation: str = "independent"

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return len(self.location)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draws ``(n, dim)``."""
        return self.location + self.scale * rng.standard_cauchy((n, self.dim))

    def log_density(self, x: Array) -> Array:
        """Log density ``(n,)``."""
        z = (x - self.location) / self.scale
        return -(np.log1p(z**2) + np.log(np.pi * self.scale)).sum(axis=1)

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Log density ``(n,)`` and gradient ``(n, dim)``."""
        z = (x - self.location) / self.scale
        return self.log_density(x), -2.0 * z / (1.0 + z**2) / self.scale


_GRID = np.sinh(np.linspace(-10.0, 10.0, 121))  # from -11013 to 11013, finest around zero
_CENTRES = 9
_SWEEPS = 2


def cauchy_around(target: BaseTarget) -> IndependentCauchy:
    """Independent Cauchy variables with the medians and widths of a density's slices along the axes.

    A slice through a point is put on a grid and normalised; its median and half the distance between its 16 % and 84 %
    quantiles are kept. Slices go through a few random points, from which medians are taken, since through a single one
    they can be degenerate (a hierarchical prior is a pole where all its members are equal). A second sweep takes its
    points from where the first one found the density.
    """
    rng = np.random.default_rng(0)  # the same start in every run
    location, scale = np.zeros(target.dim), np.ones(target.dim)
    for _ in range(_SWEEPS):
        centres = location + scale * rng.standard_normal((_CENTRES, target.dim))
        slices = np.array([_slices(target, centre, scale) for centre in centres])  # (centres, 2, dim)
        location, scale = np.median(slices, axis=0)
    return IndependentCauchy(location, scale)


def _slices(target: BaseTarget, centre: Array, scale: Array) -> tuple[Array, Array]:
    """Medians and widths ``(dim,)`` of the density's slices through ``centre``; those given where a slice is empty."""
    nodes = centre[:, None] + scale[:, None] * _GRID  # (dim, grid)
    points = np.repeat(centre[None, :], nodes.size, axis=0)
    points[np.arange(nodes.size), np.repeat(np.arange(target.dim), len(_GRID))] = nodes.ravel()
    with np.errstate(all="ignore"):
        log_density = target.log_density(points).reshape(nodes.shape)
    median, width = centre.copy(), scale.copy()
    for j in np.flatnonzero(np.isfinite(log_density).any(axis=1)):
        mass = np.exp(log_density[j] - log_density[j].max()) * np.gradient(nodes[j])
        low, median[j], high = np.interp([0.158655, 0.5, 0.841345], np.cumsum(mass) / mass.sum(), nodes[j])
        width[j] = max(0.5 * (high - low), 1e-8)
    return median, width


def check_proper(target: BaseTarget) -> None:
    """Refuse to sample an improper prior.

    Raises
    ------
    PriorSamplingError
        Naming the coordinate along which it does not fall.
    """
    name = improper_coordinate(target)
    if name is not None:
        raise PriorSamplingError(f"{target.label}: the prior is improper along {name}; use initial='laplace'")
