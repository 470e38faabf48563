"""Points that may be near a narrow mode, among all points that moves evaluate, accepted or not.

If a mode is too narrow to hold particles on the path, a few of the many points of trajectories still come near it. Close by
they are denser than others. From farther away the gradient leads to it (:mod:`~ppl_backends.approximations.unlike`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ppl_backends.approximations.unlike import SmoothGradient, directions, smooth_gradient, unlike
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.targets.protocol import Array

_KEPT = 8


class Densest:
    """A few points ``(m, dim)`` of highest log density, and as many where the gradient is least like that at the others."""

    def __init__(self, gaussian: Gaussian) -> None:
        self._gaussian = replace(gaussian)  # its precision, once computed, is not a part of the given one
        self._densest, self._steepest = _Highest(gaussian.dim), _Highest(gaussian.dim)
        self._smooth: SmoothGradient | None = None

    def see(self, x: Array, log_density: Array) -> None:
        """Record the points of an evaluation ``(n, dim)`` that are denser than the kept ones."""
        self._densest.see(log_density, np.zeros_like(x), x, log_density)

    def see_gradients(self, x: Array, log_density: Array, gradient: Array) -> None:
        """Record points ``(n, dim)`` within the Gaussian whose gradients are less like smooth ones than those kept.

        The gradients are those of one density, and the first of them are fitted.
        """
        if self._smooth is None:
            self._smooth = smooth_gradient(x, gradient)
        self._steepest.see(*unlike(self._gaussian, x, gradient, self._smooth), x, log_density)

    @property
    def x(self) -> Array:
        """Return all points kept."""
        return np.concatenate([self._densest.x, self._steepest.x])

    @property
    def log_density(self) -> Array:
        """Return the log density at them."""
        return np.concatenate([self._densest.log_density, self._steepest.log_density])

    @property
    def ahead(self) -> Array:
        """Return the vectors ``(m, 2, dim)`` along which to look for a narrow mode, zero for the densest points."""
        return directions(self._gaussian, np.concatenate([self._densest.difference, self._steepest.difference]))


class _Highest:
    """The points at which a key is highest, and how far their gradients are from smooth ones."""

    def __init__(self, dim: int) -> None:
        self.key, self.difference = np.empty(0), np.empty((0, dim))
        self.x, self.log_density = np.empty((0, dim)), np.empty(0)

    def see(self, key: Array, difference: Array, x: Array, log_density: Array) -> None:
        above = np.flatnonzero(key > (self.key[-1] if len(self.key) == _KEPT else -np.inf))
        above = above[np.isfinite(log_density[above]) & np.isfinite(key[above])]
        if not len(above):
            return
        keys = np.concatenate([self.key, key[above]])
        order = np.argsort(-keys, kind="stable")[:_KEPT]
        self.key, self.x = keys[order], np.concatenate([self.x, x[above]])[order]
        self.difference = np.concatenate([self.difference, difference[above]])[order]
        self.log_density = np.concatenate([self.log_density, log_density[above]])[order]
