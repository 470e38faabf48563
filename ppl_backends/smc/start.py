"""Where a run begins: draws of the start of the path, with what is known of their log normaliser.

A prior that can be drawn from, and a Gaussian, give independent draws and are normalised. The prior of a Stan program is a
density only: it is sampled by a run of its own, from independent Cauchy variables (whose tails are at least as heavy as
those of any usual prior, so the weights are bounded) to the prior, and the evidence of that run is the log of the prior's
normaliser, with which the program's evidence has to be multiplied: log ½ for every half-normal written as a normal with a
lower bound, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppl_backends.errors import PriorSamplingError
from ppl_backends.smc.evidence import LineageVariance
from ppl_backends.targets.propriety import improper_coordinate
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["IndependentCauchy", "Start", "cauchy_around", "check_proper"]


@dataclass(frozen=True)
class Start:
    """Particles at λ = 0.

    Attributes
    ----------
    x : ndarray (n, dim)
    log_normalizer : float
        Log of the integral of the path's base; 0 for a normalised one.
    lineage : LineageVariance
        Carries the error of ``log_normalizer`` on into the run.
    """

    x: Array
    log_normalizer: float
    lineage: LineageVariance


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
_SWEEPS = 3


def cauchy_around(target: BaseTarget) -> IndependentCauchy:
    """Independent Cauchy variables with the medians and widths of a density's slices along the axes.

    Each coordinate's slice through the present centre is put on a grid and normalised; its median moves the centre and
    half the distance between its 16 % and 84 % quantiles is the width. A few sweeps settle both.
    """
    centre, width = np.zeros(target.dim), np.ones(target.dim)
    for _ in range(_SWEEPS):
        nodes = centre[:, None] + width[:, None] * _GRID  # (dim, grid)
        points = np.repeat(centre[None, :], nodes.size, axis=0)
        points[np.arange(nodes.size), np.repeat(np.arange(target.dim), len(_GRID))] = nodes.ravel()
        log_density = target.log_density(points).reshape(nodes.shape)
        if not np.isfinite(log_density).any(axis=1).all():
            break  # the centre itself is outside the support: keep what the last sweep gave
        mass = np.exp(log_density - log_density.max(axis=1, keepdims=True)) * np.gradient(nodes, axis=1)
        cumulative = np.cumsum(mass, axis=1) / mass.sum(axis=1, keepdims=True)
        low, centre, high = (
            np.array([np.interp(level, share, node) for share, node in zip(cumulative, nodes, strict=True)])
            for level in (0.158655, 0.5, 0.841345)
        )
        width = np.maximum(0.5 * (high - low), 1e-8)
    return IndependentCauchy(centre, width)


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
