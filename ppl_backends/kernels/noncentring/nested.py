"""The change of variables of a nested hierarchy: effects around means that are themselves effects.

If classes vary around the means of schools, which vary around a common mean, no single change standardises both. The classes
are standardised by the schools' means and the scale of the inner level first. The gradient in the new variables no longer
has the data's pull through the classes, so a second change of the means by their own mean and scale follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.kernels.noncentring.change import Given, NonCentring
from ppl_backends.targets.protocol import Array, Index

_SHOWN = 0.1  # correlation of slopes of two effects above which one may be the mean of the other


class GivenNested(NamedTuple):
    """Points ``y`` between the two changes, and what their unchanged coordinates determine in each."""

    y: Array
    outer: Given
    inner: Any


@dataclass(frozen=True)
class NestedNonCentring:
    """The change ``outer``, followed by ``inner``, which changes some of the coordinates that the first leaves.

    Attributes
    ----------
    outer : NonCentring
        Along the coordinates.
    inner : NonCentring or NestedNonCentring
    """

    outer: NonCentring
    inner: AnyNonCentring

    axes = None  #: both are along the coordinates

    @property
    def effects(self) -> Index:
        """Return the coordinates that are changed."""
        return np.concatenate([self.outer.effects, self.inner.effects])

    @property
    def others(self) -> Index:
        """Return the coordinates that neither changes."""
        return np.setdiff1d(self.outer.others, self.inner.effects)

    @property
    def directions(self) -> Array:
        """Return the directions a ``(n_others, dim)`` for which a'x are the others."""
        return np.asarray(np.eye(len(self.effects) + len(self.others))[self.others])

    @property
    def scaling(self) -> list[int]:
        """Return the coordinates that scale others."""
        return sorted({*self.outer.scaling, *self.inner.scaling})

    def to_z(self, x: Array) -> Array:
        """Return points ``(n, dim)`` in the new variables."""
        return self.inner.to_z(self.outer.to_z(x))

    def to_x(self, z: Array, given: Any = None) -> Array:
        """Return points in the old variables."""
        known = given or self.given(z)
        return self.outer.to_x(known.y, known.outer)

    def log_determinant(self, z: Array, given: Any = None) -> Array:
        """Return log |dx/dz| ``(n,)`` at points in the new variables."""
        known = given or self.given(z)
        return self.outer.log_determinant(known.y, known.outer) + self.inner.log_determinant(z, known.inner)

    def gradient(self, z: Array, gradient: Array, given: Any = None) -> Array:
        """Return the gradient of the log density of z, from that of x in x."""
        known = given or self.given(z)
        return self.inner.gradient(z, self.outer.gradient(known.y, gradient, known.outer), known.inner)

    def gradient_in_x(self, z: Array, gradient: Array) -> Array:
        """Return the gradient of the log density of x, from that of z in z; the inverse of :meth:`gradient`."""
        return self.outer.gradient_in_x(self.inner.to_x(z), self.inner.gradient_in_x(z, gradient))

    def given(self, z: Array) -> Any:
        """Return points between the changes, and what they determine, from points in the new variables."""
        of_inner: Any = self.inner.given(z)
        between = self.inner.to_x(z, of_inner)
        return GivenNested(between, self.outer.given(between), of_inner)


AnyNonCentring = NonCentring | NestedNonCentring


def means_among(slopes: Array, clearly: float) -> tuple[int, ...]:
    """Return the columns of effects that are means of others, from their slopes ``(n, k)`` in units of their scales.

    Slopes of a Gaussian have its precision as their covariance: effects that are independent given their mean each correlate
    with it and not with each other. So the effects that correlate with most others are taken out, until no two correlate.
    ``clearly`` is the correlation above which it is not by chance.
    """
    correlation = np.corrcoef(slopes.T) - np.eye(slopes.shape[1])
    squares = np.where(np.abs(correlation) > max(_SHOWN, clearly), correlation**2, 0.0)
    means = list[int]()
    while squares.any():
        linked = np.count_nonzero(squares, axis=1) + squares.mean(axis=1)
        means.append(int(np.argmax(linked)))
        squares[means[-1]] = squares[:, means[-1]] = 0.0
    return tuple(means)
