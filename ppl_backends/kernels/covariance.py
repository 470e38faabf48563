"""Covariance and scale of proposals, learnt while a chain tunes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.kernels.adaptation import DualAveraging
from ppl_backends.kernels.protocol import KernelParameters
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.targets.protocol import Array

__all__ = ["AdaptiveProposal", "WindowedCovariance", "as_covariance"]

FIRST_WINDOW = 100
LONGEST_STEP = 2.0  # in calibrated ones: simulators may fail at points that are far out


class WindowedCovariance(NamedTuple):
    """The covariance in use, and the points of the window that will replace it.

    Windows last 100, 200, 400, … steps; at the end of each its covariance, shrunk a little, comes into use and the next
    window begins with nothing, so that the way to the posterior is forgotten.

    Attributes
    ----------
    factor : ndarray (dim, dim)
        Lower Cholesky factor of the covariance in use.
    mean, scatter : ndarray (dim,), (dim, dim)
        Of the points of the present window.
    n_points, length : int
        Points in the window, and when it ends.
    """

    factor: Array
    mean: Array
    scatter: Array
    n_points: int
    length: int

    @classmethod
    def begin(cls, covariance: Array) -> WindowedCovariance:
        """Start with a covariance ``(dim, dim)``."""
        dim = len(covariance)
        return cls(_cholesky(covariance), np.zeros(dim), np.zeros((dim, dim)), 0, FIRST_WINDOW)

    def update(self, x: Array) -> WindowedCovariance:
        """With one more point; compare :attr:`factor` to see whether a new covariance came into use."""
        n = self.n_points + 1
        mean = self.mean + (x - self.mean) / n
        more = self._replace(mean=mean, scatter=self.scatter + np.outer(x - self.mean, x - mean), n_points=n)
        return more.renew(2 * self.length) if n >= self.length else more

    def renew(self, length: int) -> WindowedCovariance:
        """Take the window's covariance into use, if its points ever moved, and begin another of that length."""
        dim, n = len(self.mean), self.n_points
        factor = self.factor
        if n > 1 and (np.diagonal(self.scatter) > 0).all():
            covariance = self.scatter / (n - 1)
            share = n / (n + 5.0)
            spread = np.diag(np.diagonal(covariance))
            factor = _cholesky(share * covariance + (1 - share) * spread)
        return WindowedCovariance(factor, np.zeros(dim), np.zeros((dim, dim)), 0, length)


def _cholesky(covariance: Array) -> Array:
    factor: Array = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
    return factor


class AdaptiveProposal(NamedTuple):
    """Shape and scale of one chain's proposals.

    Attributes
    ----------
    windows : WindowedCovariance
    step : DualAveraging
        Of the scale, in standard deviations of the covariance in use.
    calibrated : float
        The scale that each covariance begins with.
    learns : bool
        Whether the covariance is learnt, or was given.
    """

    windows: WindowedCovariance
    step: DualAveraging
    calibrated: float
    learns: bool

    @classmethod
    def begin(cls, covariance: Array | None, dim: int, calibrated: float, rate: float) -> AdaptiveProposal:
        """With the covariance given, else the identity until the first window ends; ``rate`` is the acceptance to reach."""
        windows = WindowedCovariance.begin(np.eye(dim) if covariance is None else covariance)
        return cls(windows, DualAveraging.begin(calibrated, rate), calibrated, covariance is None)

    @property
    def metric(self) -> Gaussian:
        """The covariance in use."""
        return Gaussian(0.0, self.windows.factor)

    @property
    def scale(self) -> Any:
        """Of the next step while tuning."""
        return np.minimum(self.step.scale, LONGEST_STEP * self.calibrated)

    @property
    def average(self) -> Any:
        """Of the steps after tuning.

        Raises
        ------
        ModelError
            If nothing has been learnt of a covariance that was not given.
        """
        if self.learns and self.windows.length == FIRST_WINDOW and self.windows.n_points == 0:
            raise ModelError("the step learns its proposals while tuning: with tune=0 give covariance=")
        return np.minimum(self.step.average, LONGEST_STEP * self.calibrated)

    @property
    def parameters(self) -> KernelParameters:
        """What a kernel moves with at first."""
        return KernelParameters(self.metric, self.scale, adaptation=self)

    def update(self, acceptance: Any, x: Array) -> AdaptiveProposal:
        """Return what follows a step that ended at ``x`` ``(1, dim)``; a new covariance starts the scale anew."""
        step, windows = self.step.update(acceptance), self.windows
        if self.learns:
            windows = windows.update(x[0])
            if windows.factor is not self.windows.factor:
                step = DualAveraging.begin(self.calibrated, self.step.target)
        return self._replace(windows=windows, step=step)


def as_covariance(given: Any, dim: int) -> Array | None:
    """The covariance that a user gave, checked; None where it is to be learnt."""
    if given is None:
        return None
    covariance = np.asarray(given, dtype=np.float64)
    if covariance.shape != (dim, dim) or np.linalg.eigvalsh(covariance + covariance.T).min() <= 0:
        raise ModelError(f"covariance has shape {covariance.shape}: expected a positive definite ({dim}, {dim}) matrix")
    return covariance
