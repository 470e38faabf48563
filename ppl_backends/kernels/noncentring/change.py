r"""The change of variables: effects standardised by a mean and a scale that depend on other coordinates.

In a hierarchy the effects xⱼ have means and scales that depend on other coordinates u, and the data inform each effect too:

    xⱼ | u ~ N(hⱼ(u), τⱼ²),  log τⱼ = αⱼ + cⱼ'u + eⱼ'|u|,    and from the data a precision Pⱼ around dⱼ.

No single step size fits the neck and the mouth of such a funnel. Given u the effect has precision sⱼ⁻² = τⱼ⁻² + Pⱼ, of
which the prior has the share wⱼ = sⱼ²/τⱼ², and the mean mⱼ = (1 − wⱼ)dⱼ(u) + wⱼhⱼ(u). The means hⱼ = aⱼ + bⱼ'u + Σ
qⱼᵢₗuᵢuₗ and dⱼ include products of coordinates, because effects that are informed by data and standardised by a model
lie on such a curve, and so does a banana. In zⱼ = (xⱼ − mⱼ)/sⱼ the effect is standard normal for any u. If w is near one
everywhere, this is the non-centred parametrisation. If the data determine everything, it changes nothing. Between them
it is the partially non-centred parametrisation (Papaspiliopoulos, Roberts & Sköld 2007). The density of (u, z) is that
of x times ∏ⱼ sⱼ.

The others u are standardised. A scale may be smallest, or largest, in the middle: |u| is √(u² + ¼), which is smooth,
and stays below four. If a funnel does not lie along a coordinate, all of the above applies to y = A⁻¹x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.kernels.protocol import Density
from ppl_backends.numerics.population import Population
from ppl_backends.targets.protocol import Array, Index

RANGE = 40.0  # of logarithms of scales
_FAR = 4.0  # standard deviations


class Scales(NamedTuple):
    """Conditional scales at points: s, log s, and the share w of the prior in the precision, all ``(n, k)``."""

    s: Array
    log_s: Array
    w: Array


def scales_of(log_tau: Array, log_precision: Array) -> Scales:
    """Return s, log s and w of the scales τ and the precisions P of the data."""
    prior_precision = np.exp(-2.0 * np.clip(log_tau, -RANGE, RANGE))
    precision = prior_precision + np.exp(log_precision)
    return Scales(1.0 / np.sqrt(precision), -0.5 * np.log(precision), prior_precision / precision)


class Given(NamedTuple):
    """Standardised others u ``(n, n_others)``, and the scales, h − a and d − a of the effects ``(n, k)`` given them."""

    u: Array
    scales: Scales
    h: Array
    d: Array


@dataclass(frozen=True)
class NonCentring:
    """The change of variables of k coordinates given the others.

    Attributes
    ----------
    effects, others : ndarray of int
        Coordinates that are changed, and the unchanged ones u.
    centre, spread : ndarray (n_others,)
        Centre and spread that standardise the others.
    log_scale : ndarray (1 + 2 n_others, k)
        α, c and e.
    log_precision : ndarray (k,)
        log P, −1000 where P is zero.
    products : ndarray of int (n_products, 2)
        Pairs (i, l) of coordinates of u.
    mean, of_data : ndarray (1 + n_others + n_products, k)
        a, b and q, and the same of d − a.
    axes : ndarray (dim, dim), optional
        A, if coordinates are those of y = A⁻¹x.
    """

    effects: Index
    others: Index
    centre: Array
    spread: Array
    log_scale: Array
    log_precision: Array
    products: Index
    mean: Array
    of_data: Array
    axes: Array | None = None

    @property
    def directions(self) -> Array:
        """Return the directions a ``(n_others, dim)`` for which a'x are the others."""
        dim = len(self.effects) + len(self.others)
        return np.asarray((np.eye(dim) if self.axes is None else np.linalg.inv(self.axes))[self.others])

    @property
    def scaling(self) -> list[int]:
        """Return the coordinates that scale others; none if a direction does."""
        if self.axes is not None:
            return []
        slopes = np.abs(self.log_scale[1:]).sum(axis=1).reshape(2, -1).sum(axis=0)
        return [int(j) for j in self.others[slopes > 0]]

    def to_z(self, x: Array) -> Array:
        """Return points ``(n, dim)`` in the new variables."""
        z = x.copy() if self.axes is None else np.asarray(np.linalg.solve(self.axes, x.T).T)
        given = self.given(z)
        z[:, self.effects] = (z[:, self.effects] - self._mean(given)) / given.scales.s
        return z

    def to_x(self, z: Array, given: Any = None) -> Array:
        """Return points in the old variables."""
        given = given or self.given(z)
        y = z.copy()
        y[:, self.effects] = self._mean(given) + given.scales.s * z[:, self.effects]
        return y if self.axes is None else y @ self.axes.T

    def log_determinant(self, z: Array, given: Any = None) -> Array:
        """Return log |dx/dz| ``(n,)`` at points in the new variables."""
        volume = 0.0 if self.axes is None else float(np.linalg.slogdet(self.axes)[1])
        total: Array = (given or self.given(z)).scales.log_s.sum(axis=1) + volume
        return total

    def gradient(self, z: Array, gradient: Array, given: Any = None) -> Array:
        """Return the gradient of the log density of z, from that of x in x."""
        u, scales, h, d = given or self.given(z)
        found = gradient.copy() if self.axes is None else gradient @ self.axes
        slope = found[:, self.effects]
        # d log s / d log τ = w,  dw / d log τ = −2w(1 − w)
        along = slope * (scales.s * z[:, self.effects] - 2.0 * (1.0 - scales.w) * (h - d)) + 1.0
        by_feature = (slope * scales.w) @ self.mean[1:].T + (slope * (1.0 - scales.w)) @ self.of_data[1:].T
        by_scale, by_size = np.split((along * scales.w) @ self.log_scale[1:].T, 2, axis=1)
        by_u = by_feature[:, : u.shape[1]] + by_scale + by_size * size_slope(u)
        for (i, j), by_product in zip(self.products, by_feature[:, u.shape[1] :].T, strict=True):
            by_u[:, i] += by_product * u[:, j]
            by_u[:, j] += by_product * u[:, i]
        found[:, self.effects] = slope * scales.s
        found[:, self.others] += by_u / self.spread
        return found

    def gradient_in_x(self, z: Array, gradient: Array) -> Array:
        """Return the gradient of the log density of x, from that of z in z; the inverse of :meth:`gradient`."""
        given = self.given(z)
        of_effects = np.zeros_like(gradient)
        of_effects[:, self.effects] = gradient[:, self.effects] / given.scales.s
        through_effects = self.gradient(z, self._turned_back(of_effects), given)
        found = of_effects
        found[:, self.others] = gradient[:, self.others] - through_effects[:, self.others]
        return self._turned_back(found)

    def _turned_back(self, gradient: Array) -> Array:
        """Return the gradient by x, from that by y = A⁻¹x."""
        return gradient if self.axes is None else np.asarray(np.linalg.solve(self.axes.T, gradient.T).T)

    def _mean(self, given: Given) -> Array:
        """Return m = a + (1 − w)(d(u) − a) + w(h(u) − a)."""
        w = given.scales.w
        mean: Array = self.mean[0] + (1.0 - w) * given.d + w * given.h
        return mean

    def given(self, y: Array) -> Given:
        """Return the standardised others of points in either variables, and what they determine."""
        u: Array = (y[:, self.others] - self.centre) / self.spread
        log_tau = self.log_scale[0] + np.hstack([u, size(u)]) @ self.log_scale[1:]
        seen = features(u, self.products)
        d = self.of_data[0] + seen @ self.of_data[1:]
        return Given(u, scales_of(log_tau, self.log_precision), seen @ self.mean[1:], d)


def size(u: Array) -> Array:
    """Return |u|, smooth at zero and at most four, because scales further out are not known."""
    r = np.sqrt(u**2 + 0.25)
    return np.asarray(r / (1.0 + (r / _FAR) ** 4) ** 0.25)


def size_slope(u: Array) -> Array:
    """Return the derivative of :func:`size`."""
    r = np.sqrt(u**2 + 0.25)
    return np.asarray(u / r / (1.0 + (r / _FAR) ** 4) ** 1.25)


def features(u: Array, products: Index) -> Array:
    """Return u and products of its coordinates, side by side."""
    return np.hstack([u, u[:, products[:, 0]] * u[:, products[:, 1]]])


@dataclass(frozen=True)
class NonCentredPoints(Population):
    """Points z in the new variables; ``here`` is the population of the same points in the old ones."""

    here: Any
    log_determinant: Array
    gradient: Array

    @property
    def log_density(self) -> Array:
        """Return the log density of z ``(n,)``."""
        density: Array = self.here.log_density + self.log_determinant
        return density


def non_centred(change: Any, population: Any, density: Density[Any]) -> tuple[NonCentredPoints, Density[Any]]:
    """Return a population and its density in the new variables, for a kernel to move."""

    def points(z: Array, here: Any, given: Any) -> NonCentredPoints:
        slope = change.gradient(z, here.gradient, given)
        # Trajectories are reversible for any force that depends only on the position
        slope = np.where(np.isfinite(slope), slope, 0.0)
        return NonCentredPoints(z, here, change.log_determinant(z, given), slope)

    def at(z: Array, rng: np.random.Generator) -> NonCentredPoints:
        with np.errstate(over="ignore", invalid="ignore"):  # far out, on a trajectory that diverges
            given = change.given(z)
            return points(z, density(change.to_x(z, given), rng), given)

    z = change.to_z(population.x)
    return points(z, population, change.given(z)), at
