"""Student sites and their closed-form tilted moments: those of Cauchy sites, and of all at the power of a parabola."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammaln, wofz

from ppl_backends.errors import ModelError
from ppl_backends.targets.factors.sites import Array, Fraction, Rows, SiteFamily, TiltedMoments

SMOOTH = 400.0  # squared distance of a Cauchy site's poles from a cavity, over its variance, above which nodes are best
HERMITE_NODES, HERMITE_WEIGHTS = (part[:, None] for part in np.polynomial.hermite_e.hermegauss(16))
HERMITE_WEIGHTS = HERMITE_WEIGHTS / np.sqrt(2 * np.pi)


class StudentT(SiteFamily):
    """Student density of ``y`` about s (or, as a prior, of s about ``y``); ``nu=1`` is Cauchy, with closed-form moments.

    To the power −2/(ν + 1) each of them is a parabola (Ridgway 2015, example 1.3.5; Jylänki, Vanhatalo & Vehtari
    2011), whose moments under a normal distribution are polynomials.

    Parameters
    ----------
    y : array (n,) or float
        Location.
    nu : array (n,) or float
        Degrees of freedom.
    scale : array (n,) or float

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import Factors, StudentT, fit_ep
    >>> sites = StudentT([0.5, -1.0], nu=3.0)
    >>> fit_ep(Factors(np.eye(2), 0.0, sites, 0.0, 1.0)).converged
    True
    """

    y: Array
    nu: Array
    scale: Array
    constant: Array

    def __init__(self, y: Any = 0.0, nu: Any = 1.0, scale: Any = 1.0) -> None:
        nu, scale = np.asarray(nu, dtype=np.float64), np.asarray(scale, dtype=np.float64)
        if np.any(nu <= 0) or np.any(scale <= 0):
            raise ModelError("StudentT: nu and scale must be positive")
        constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi) - np.log(scale)
        super().__init__(y=y, nu=nu, scale=scale, constant=constant)

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        y, nu, scale, constant = self._at(rows, "y", "nu", "scale", "constant")
        return constant - 0.5 * (nu + 1) * np.log1p(((s - y) / scale) ** 2 / nu)

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        y, nu, scale = self._at(rows, "y", "nu", "scale")
        z = s - y
        spread = nu * scale**2 + z**2
        return -(nu + 1) * z / spread, -(nu + 1) * (nu * scale**2 - z**2) / spread**2

    def fractions(self, asked: Fraction, rows: Rows = None) -> Any:
        (nu,) = self._at(rows, "nu")
        return asked if not isinstance(asked, str) and asked > 0 else -2.0 / (nu + 1.0)

    def tilted(self, mean: Array, variance: Array, power: Any, rows: Rows = None) -> TiltedMoments | None:
        """Return closed-form moments of Cauchy sites, and of all at the power −2/(ν + 1)."""
        y, nu, scale, constant = self._at(rows, "y", "nu", "scale", "constant")
        if np.all(power == -2.0 / (nu + 1.0)):
            moments = _parabola_moments(mean - y, variance, nu * scale**2)
            return TiltedMoments(moments.log_z + power * constant, moments.mean + y, moments.variance)
        if np.any(power != 1.0) or np.any(nu != 1.0):
            return None
        moments = _cauchy_moments(mean - y, variance, scale)
        return moments._replace(mean=moments.mean + y)


def _parabola_moments(mean: Array, variance: Array, width: Array) -> TiltedMoments:
    """Return the moments of (1 + s²/width)·N(s; mean, variance): with s = mean + √variance z the factor is a + b z + c z²."""
    a, b, c = 1.0 + mean**2 / width, 2.0 * mean * np.sqrt(variance) / width, variance / width
    total = a + c
    first = b / total
    return TiltedMoments(np.log(total), mean + np.sqrt(variance) * first, variance * ((a + 3.0 * c) / total - first**2))


@np.errstate(all="ignore")
def _cauchy_moments(mean: Array, variance: Array, scale: Array) -> TiltedMoments:
    """Return the moments of Cauchy(s; 0, scale)·N(s; mean, variance).

    The density is the imaginary part of 1/π(s − iγ), and E 1/(s − iγ) is a multiple of Faddeeva's function. If γ or
    the mean is many standard deviations, those terms cancel, but the site is then so smooth that few nodes integrate
    it.
    """
    sd = np.sqrt(variance)
    g = 1j * np.sqrt(np.pi / 2) / sd * wofz((-mean + 1j * scale) / (np.sqrt(2) * sd))
    first = scale * g.real / g.imag
    moments = TiltedMoments(np.log(g.imag / np.pi), first, scale / g.imag - scale**2 - first**2)
    smooth = mean**2 + scale**2 > SMOOTH * variance
    if not smooth.any():
        return moments
    mean, sd, scale = mean[smooth], sd[smooth], scale[smooth]
    s = mean + sd * HERMITE_NODES
    weight = HERMITE_WEIGHTS * scale / (np.pi * (s**2 + scale**2))
    total = weight.sum(axis=0)
    centre = (weight * HERMITE_NODES).sum(axis=0) / total
    spread = (weight * HERMITE_NODES**2).sum(axis=0) / total - centre**2
    for whole, part in zip(moments, (np.log(total), mean + sd * centre, sd**2 * spread), strict=True):
        whole[smooth] = part
    return moments
