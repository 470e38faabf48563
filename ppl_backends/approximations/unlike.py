r"""Gradients unlike those at other points of a mode, which show a narrow mode from a distance.

Let p₀ be the density of a wide mode, p₁ that of a narrow one, and ρ = p₁/(p₀ + p₁). The gradient of log(p₀ + p₁) is

    ∇log p₀ + ρ δ,   δ = ∇log p₁ − ∇log p₀,

and δ leads to the narrow mode. For a narrow normal of standard deviation w, at a distance r from its centre, log ρ falls as
−r²/2w², so an error ε of ∇log p₀ hides ρδ beyond r² = R² + 2w² log(r/εw²), where R is the radius within which ρ > ½. With
w = 0.1 in 20 dimensions R is 0.98, and r is 1.05 for ε = 0.1 but 1.27 for ε = 10⁻¹²: a ball of that radius has 180 times the
volume.

∇log p₀ is fitted by least squares to the gradients at many points, as a linear function of the coordinates and their squares.
The tenth with the largest residuals is left out of the fit. Residuals are rounding errors in a normal mode, and small in a
small part of any smooth one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import lstsq

from ppl_backends.approximations.modes import bound_of_ellipsoid
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.targets.protocol import Array

_ROWS = 4  # points of a fit, for each of its columns
_WITH_SQUARES = 30  # most dimensions in which squares are columns, as the cost of a fit is cubic
_TRIMMED = 0.1
_LARGEST = 1e100  # gradient, above which squares overflow and decide the fit
# Distances ahead, in standard deviations. A ball is not stepped over if its radius is at least half of its distance.
_LENGTHS = 3.0 ** -np.arange(5.0)


class SmoothGradient(NamedTuple):
    """A gradient as a quadratic function without products, of coordinates that are ``centre``d and scaled."""

    centre: Array
    scale: Array
    coefficients: Array

    def at(self, x: Array) -> Array:
        """Return the gradients ``(n, dim)`` at points."""
        dim = x.shape[1]
        found: Array = _columns((x - self.centre) / self.scale, len(self.coefficients) > dim + 1) @ self.coefficients
        return found


def smooth_gradient(x: Array, gradient: Array) -> SmoothGradient | None:
    """Fit gradients at points ``(n, dim)``; return None for too few points."""
    moderate = (np.abs(gradient) < _LARGEST).all(axis=1)  # False if it is not finite
    x, gradient, dim = x[moderate], gradient[moderate], x.shape[1]
    squares = dim <= _WITH_SQUARES and len(x) >= _ROWS * (2 * dim + 1)
    most = _ROWS * ((2 if squares else 1) * dim + 1)
    if len(x) < most:
        return None
    rows = np.linspace(0, len(x) - 1, most).astype(np.intp)
    x, gradient = x[rows], gradient[rows]
    centre, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-150)
    columns, kept = _columns((x - centre) / scale, squares), np.arange(most)
    for _ in range(3):
        coefficients = lstsq(columns[kept], gradient[kept], lapack_driver="gelsy", check_finite=False)[0]
        residual = (((gradient - columns @ coefficients) * scale) ** 2).sum(axis=1)
        kept = np.flatnonzero(residual <= np.quantile(residual, 1.0 - _TRIMMED))
    return SmoothGradient(centre, scale, coefficients)


def _columns(z: Array, squares: bool) -> Array:
    return np.hstack([np.ones((len(z), 1)), z, *([z**2] if squares else [])])


def unlike(gaussian: Gaussian, x: Array, gradient: Array, smooth: SmoothGradient | None = None) -> tuple[Array, Array]:
    """Return the squared lengths ``(n,)`` of gradients minus smooth ones, and these differences ``(n, dim)``.

    The ``gaussian`` has the smooth gradient if there is no other, and whitens the lengths. They are −∞ at points that are
    farther out than its draws.
    """
    centred = x - gaussian.mean
    slope = centred @ gaussian.precision
    difference = gradient + slope if smooth is None else gradient - smooth.at(x)
    near = np.einsum("nd,nd->n", centred, slope) <= bound_of_ellipsoid(gaussian.dim)
    white = gaussian.whiten_gradient(difference)
    return np.where(near, np.einsum("nd,nd->n", white, white), -np.inf), difference


def directions(gaussian: Gaussian, difference: Array) -> Array:
    """Return vectors of unit length, in standard deviations of a Gaussian, along differences of gradients ``(n, dim)``.

    A narrow mode is ahead along Σδ if it has the shape of the wide one, and along δ if it is spherical in its units.
    """
    along = np.stack([gaussian.colour(gaussian.whiten_gradient(difference)), difference * gaussian.sd**2], axis=1)
    length = np.linalg.norm(gaussian.whiten(along.reshape(-1, gaussian.dim) + gaussian.mean), axis=1)
    return along / np.maximum(length, 1e-300).reshape(along.shape[:2])[..., None]


def ahead(x: Array, vectors: Array) -> Array:
    """Return points ``(m, dim)`` at several distances from points ``(n, dim)``, along vectors ``(n, k, dim)`` of each."""
    return (x[:, None, None] + _LENGTHS[:, None, None] * vectors[:, None]).reshape(-1, x.shape[1])
