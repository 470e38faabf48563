"""Proposals with tails along single coordinates, for Gaussians, and mixtures of them, that miss a few skewed coordinates.

The log of a scale, of a rate or of an odds often has a tail that falls exponentially, on one side. If one of many
coordinates has such a tail, a few per cent of the posterior are where a Gaussian has nothing. Student t's in all
coordinates are too far from the other, Gaussian ones to help, and no weight of a sample shows what is missing.

The tail of a coordinate is looked for on the line along which this coordinate moves, and the others have their conditional
means under the Gaussian. Where the density on this line is above that of the approximation, a part of the proposal has
the mean and the standard deviation of what is missing: one coordinate is Student t there, and the others follow given it as
under the Gaussian.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln, logsumexp, ndtr, stdtrit

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.mixture import MixtureApproximation, component_of
from ppl_backends.numerics.gaussian import LOG_2PI, inside_cube
from ppl_backends.targets.protocol import Array, BaseTarget

_RADII = np.linspace(-12.0, 12.0, 49)  # of points on a line, in standard deviations
_FROM = 2.0  # standard deviations, where a tail begins
_LEAST = 0.003  # of the mass on a line, for a part of its own
_NARROWEST = 0.5  # standard deviations
_MOST_LINES = 200
_DF = 4.0
GRAIN = 32  # shares are multiples of 1/32: a net of 2^m points then has exactly its share of them in every component
_LARGEST_SHARE = 0.5
_LOG_CONSTANT = float(gammaln((_DF + 1) / 2) - gammaln(_DF / 2) - 0.5 * np.log(_DF * np.pi))


class Part(NamedTuple):
    """A Gaussian one of whose coordinates is Student t, at a ``middle`` and with a ``scale`` in standard deviations."""

    gaussian: GaussianApproximation
    coordinate: int
    middle: float
    scale: float

    def from_uniform(self, u: Array) -> Array:
        """Return points ``(n, dim)`` from points of the unit cube."""
        x = self.gaussian.from_uniform(u)
        along = self._standardised(x)
        moved = self.middle + self.scale * stdtrit(_DF, inside_cube(ndtr(along)))
        return x + np.outer(moved - along, direction(self.gaussian, self.coordinate))

    def ratio(self, x: Array) -> Array:
        """Return the log of the density in units of the Gaussian's ``(n,)``."""
        along = self._standardised(x)
        student = -0.5 * (_DF + 1) * np.log1p((along - self.middle) ** 2 / (_DF * self.scale**2))
        return _LOG_CONSTANT - np.log(self.scale) + student + 0.5 * (along**2 + LOG_2PI)

    def slope(self, x: Array) -> Array:
        """Return the derivative of :meth:`ratio` by the coordinate ``(n,)``."""
        along = self._standardised(x)
        off = along - self.middle
        return (along - (_DF + 1) * off / (_DF * self.scale**2 + off**2)) / self.gaussian.sd[self.coordinate]

    def _standardised(self, x: Array) -> Array:
        j = self.coordinate
        return (x[:, j] - self.gaussian.mean[j]) / self.gaussian.sd[j]


class AxisTails:
    """An approximation mixed with parts that have a tail along one coordinate.

    The first coordinate of the cube, which is stratified, chooses the approximation or a part. ``shares`` are those of
    the parts.
    """

    stratified = True

    def __init__(self, approximation: Any, parts: list[Part], masses: Array) -> None:
        self.approximation, self.parts = approximation, parts
        self.dim, self.mean = len(approximation.mean), approximation.mean
        self.n_uniforms = self.dim + 1
        total = min(masses.sum() / (1.0 + masses.sum()), _LARGEST_SHARE)
        self.shares: Array = max(1, round(total * GRAIN)) / GRAIN * masses / masses.sum()

    @property
    def cov(self) -> Array:
        """Return the covariance of the approximation without tails."""
        return np.asarray(self.approximation.cov)

    def from_uniform(self, u: Array) -> Array:
        """Return points ``(n, dim)`` of the mixture."""
        which, _ = component_of(u[:, 0], np.append(self.shares, 1.0 - self.shares.sum()))
        x = np.empty((len(u), self.dim))
        for j, component in enumerate([*self.parts, self.approximation]):
            x[which == j] = component.from_uniform(u[which == j, 1:])
        return x

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` independent draws ``(n, dim)``."""
        return self.from_uniform(rng.random((n, self.n_uniforms)))

    def log_density(self, x: Array) -> Array:
        """Return the normalised log density ``(n,)``."""
        own = np.log1p(-self.shares.sum()) + self.approximation.log_density(x)
        logs = [own]
        for gaussian, members in self._by_gaussian():
            base = gaussian.log_density(x)
            logs += [base + np.log(share) + part.ratio(x) for part, share in members]
        return np.asarray(logsumexp(logs, axis=0))

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return the normalised log density ``(n,)`` and its gradient ``(n, dim)``."""
        own, slope = self.approximation.log_density_and_gradient(x)
        logs, slopes = [np.log1p(-self.shares.sum()) + own], [slope]
        for gaussian, members in self._by_gaussian():
            base, slope = gaussian.log_density_and_gradient(x)
            for part, share in members:
                logs.append(base + np.log(share) + part.ratio(x))
                slopes.append(slope.copy())
                slopes[-1][:, part.coordinate] += part.slope(x)
        total = np.asarray(logsumexp(logs, axis=0))
        return total, np.asarray(
            sum(np.exp(log - total)[:, None] * slope for log, slope in zip(logs, slopes, strict=True))
        )

    def _by_gaussian(self) -> Iterator[tuple[GaussianApproximation, list[tuple[Part, float]]]]:
        """Yield every Gaussian that has parts, with these parts and their shares."""
        for gaussian in dict.fromkeys(part.gaussian for part in self.parts):
            yield gaussian, [each for each in zip(self.parts, self.shares, strict=True) if each[0].gaussian is gaussian]


def direction(gaussian: GaussianApproximation, coordinate: int) -> Array:
    """Return how the mean of all coordinates moves ``(dim,)`` if one of them moves by its standard deviation."""
    if gaussian.representation == "diagonal":
        return gaussian.sd * (np.arange(gaussian.dim) == coordinate)
    return np.asarray(gaussian.factor @ gaussian.factor[coordinate] / gaussian.sd[coordinate])


def axis_tails(target: BaseTarget, approximation: Any) -> AxisTails | None:
    """Return the approximation with tails along the coordinates whose lines have some; None if none has.

    It must be a dense or diagonal Gaussian, or a mixture of such.
    """
    mixed = isinstance(approximation, MixtureApproximation)
    gaussians = approximation.components() if mixed else [approximation]
    weights = approximation.weights if mixed else [1.0]
    if len(gaussians) * target.dim > _MOST_LINES or any(one.representation == "low_rank" for one in gaussians):
        return None
    parts, masses = list[Part](), list[float]()
    for gaussian, weight in zip(gaussians, weights, strict=True):
        for missing in _missing(target, approximation, gaussian):
            parts.append(missing[0])
            masses.append(weight * missing[1])
    return AxisTails(approximation, parts, np.array(masses)) if parts else None


def _missing(target: BaseTarget, approximation: Any, gaussian: GaussianApproximation) -> Iterator[tuple[Part, float]]:
    """Yield parts for the ends of the lines through a Gaussian's mean where mass is missing, with that mass."""
    directions = np.array([direction(gaussian, j) for j in range(target.dim)])
    x = (gaussian.mean + _RADII[:, None] * directions[:, None]).reshape(-1, target.dim)
    with np.errstate(all="ignore"):  # far out
        found, own = (density.log_density(x).reshape(target.dim, -1) for density in (target, approximation))
    found, own = (np.where(np.isnan(value), -np.inf, value) for value in (found, own))
    for j, (on_line, expected) in enumerate(zip(found, own, strict=True)):
        if not on_line.max() > -np.inf:
            continue
        excess = np.exp(on_line - logsumexp(on_line)) - np.exp(expected - logsumexp(expected))
        for side in (_RADII < -_FROM, _RADII > _FROM):
            weights = np.where(side, np.maximum(excess, 0.0), 0.0)
            mass = float(weights.sum())
            if mass > _LEAST:
                middle = float(weights @ _RADII) / mass
                sd = np.sqrt(float(weights @ (_RADII - middle) ** 2) / mass)
                yield Part(gaussian, j, middle, max(sd, _NARROWEST) * np.sqrt((_DF - 2) / _DF)), mass
