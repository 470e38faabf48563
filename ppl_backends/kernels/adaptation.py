"""Adaptation during tuning: a step size by dual averaging, and the shape of proposals by windows.

All kernels use it. Chains that move as one batch adapt separately, as they would alone, or pool their information if a
single chain has too little. For example, a chain that sticks at an overestimated likelihood gives no information about
the shape.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.kernels.metric import AnyMetric, ChainMetric
from ppl_backends.kernels.protocol import KernelParameters
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.targets.protocol import Array

GAMMA, T0, KAPPA = 0.05, 10.0, 0.75
FIRST_WINDOW = 100
# A trajectory is as long as a few standard deviations of its metric. With a metric a thousand times too small, windows
# would measure how far chains went
SHORT, MOST_SHORT, SPREAD = 20, 10, 3.0  # steps, times, and standard deviations after which a metric is too small
LONGEST_STEP = 2.0  # in calibrated units, if the shape is unknown: simulators may fail at points that are far out


class DualAveraging(NamedTuple):
    """Nesterov's dual averaging of a log step size (Hoffman & Gelman 2014, section 3.2), of one chain or of several at once.

    Attributes
    ----------
    target : float
        Acceptance rate to reach.
    centre : float
        Log of the initial step size, towards which early steps shrink.
    log_scale, log_average : float or ndarray (n,)
        Log scale of the next step, and of the steps after tuning.
    error : float or ndarray (n,)
        Running mean of target − acceptance.
    steps : int or ndarray (n,)
    largest : float
        Largest step.

    Examples
    --------
    >>> scale = DualAveraging.begin(1.0, target=0.65)
    >>> bool(scale.update(0.1).scale < 1.0)
    True
    """

    target: float
    centre: float
    log_scale: Any
    log_average: Any
    error: Any
    steps: Any
    largest: float = np.inf

    @classmethod
    def begin(cls, scale: float, target: float, largest: float = np.inf) -> DualAveraging:
        """Start from a calibrated ``scale``, which stays in use without adaptation."""
        log_scale = float(np.log(scale))
        return cls(target, log_scale, log_scale, log_scale, 0.0, 0, largest)

    @property
    def scale(self) -> Any:
        """Return the scale of the next step during tuning."""
        return np.minimum(np.exp(self.log_scale), self.largest)

    @property
    def average(self) -> Any:
        """Return the scale of the steps after tuning."""
        return np.minimum(np.exp(self.log_average), self.largest)

    def restarted(self, which: Any) -> DualAveraging:
        """Return the state in which some of the chains ``(n,)`` start again."""
        log_scale, log_average = (np.where(which, self.centre, value) for value in (self.log_scale, self.log_average))
        error, steps = (np.where(which, 0, value) for value in (self.error, self.steps))
        return self._replace(log_scale=log_scale, log_average=log_average, error=error, steps=steps)

    def update(self, acceptance: Any) -> DualAveraging:
        """Return the state after a step of that acceptance probability."""
        count = self.steps + 1
        weight = 1.0 / (count + T0)
        error = (1 - weight) * self.error + weight * (self.target - acceptance)
        log_scale = self.centre - np.sqrt(count) / GAMMA * error
        share = 1.0 / count**KAPPA
        log_average = share * log_scale + (1 - share) * self.log_average
        return self._replace(error=error, steps=count, log_scale=log_scale, log_average=log_average)


class Windows(NamedTuple):
    """The factors in use, and the moments of the window that will replace them.

    Windows last 100, 200, 400, … steps. At the end of each its covariance, slightly shrunk, is used, and the next
    window starts empty, so that the transient does not count. A chain whose variances show after 20, 40, … steps that the
    metric is several times too small uses them at once, and starts its window anew.

    Attributes
    ----------
    family : {"dense", "diagonal"}
        Dense covariances are shrunk towards their diagonal, variances towards one.
    factor : ndarray (n, dim, dim) or (n, dim), or None
        Lower Cholesky factors, or standard deviations, of every chain; None before the first window ends.
    mean, scatter : float or ndarray
        Moments of the points of the current window, ``(n, dim)`` and in the shape of ``factor``.
    n_points, length : int
        Points in the window, and its length.
    centre : ndarray (n, dim) or None
        Means of the window whose covariances are in use.
    skipped, short : int or ndarray (n,)
        Points of each chain that its current window does not count, and how often it started anew.
    """

    family: str
    factor: Array | None = None
    mean: Any = 0.0
    scatter: Any = 0.0
    n_points: int = 0
    length: int = FIRST_WINDOW
    centre: Any = None
    skipped: Any = 0
    short: Any = 0

    def update(self, x: Array) -> Windows:
        """Return the windows with one more point of every chain ``(n, dim)``."""
        n, from_old = self.n_points + 1, x - self.mean
        mean = self.mean + from_old / np.reshape(n - self.skipped, (-1, 1))
        from_new = x - mean
        product = from_old[:, :, None] * from_new[:, None, :] if self.family == "dense" else from_old * from_new
        more = self._replace(mean=mean, scatter=self.scatter + product, n_points=n)
        if n >= self.length:
            return more._next()
        return more._widened() if self.family == "diagonal" and n % SHORT == 0 else more

    def _widened(self) -> Windows:
        """Use the variances of chains that have spread much further than the standard deviations in use."""
        own = np.reshape(self.n_points - self.skipped, (-1, 1))
        in_use = np.ones_like(self.scatter) if self.factor is None else self.factor
        spread = np.sqrt(self.scatter / (own - 1))
        small = (spread > SPREAD * in_use).any(axis=1) & (self.short < MOST_SHORT)
        if not small.any():
            return self
        chosen = small[:, None]
        return self._replace(
            factor=np.where(chosen, np.sqrt(_shrunk(spread**2, own, 1.0)), in_use),
            mean=np.where(chosen, 0.0, self.mean),
            scatter=np.where(chosen, 0.0, self.scatter),
            centre=np.where(chosen, self.mean, 0.0 if self.centre is None else self.centre),
            skipped=np.where(small, self.n_points, self.skipped),
            short=self.short + small,
        )

    def _next(self) -> Windows:
        """Use the covariances of the chains that moved in every coordinate, and start another window."""
        own: Any = self.n_points if self.family == "dense" else np.reshape(self.n_points - self.skipped, (-1, 1))
        covariance = self.scatter / (own - 1)
        dim = covariance.shape[1]
        if self.family == "diagonal":
            last = np.ones_like(covariance) if self.factor is None else self.factor
            moved = np.asarray((covariance > 0).all(axis=1))
            factor = np.where(moved[:, None], np.sqrt(_shrunk(covariance, own, 1.0)), last)
        else:
            spread = covariance * np.eye(dim)
            moved = np.asarray((np.diagonal(covariance, axis1=1, axis2=2) > 0).all(axis=1))
            last = np.broadcast_to(np.eye(dim), covariance.shape) if self.factor is None else self.factor
            shrunk = np.where(moved[:, None, None], _shrunk(covariance, own, spread), np.eye(dim))
            factor = np.where(moved[:, None, None], np.linalg.cholesky(shrunk), last)
        return Windows(self.family, factor, length=2 * self.length, centre=self.mean, short=self.short)


def _shrunk(covariance: Array, n: Any, towards: Any) -> Any:
    """Return covariances of ``n`` points, shrunk as if five more had others."""
    share = n / (n + 5.0)
    return share * covariance + (1 - share) * towards


class Adaptation(NamedTuple):
    """Shape and scale of the proposals of chains.

    Attributes
    ----------
    reference : Gaussian
        Whitens coordinates before covariances are computed.
    step : DualAveraging
        Step of the scale, in the current metric.
    calibrated : float
        The initial scale of each metric.
    windows : Windows or None
        None if the shape stays the reference's.
    known : bool
        Whether the reference may be used before anything is learnt.
    pooled : bool
        Whether all chains of a batch share one shape and one scale; windows then count the points of all of them.
    """

    reference: Gaussian
    step: DualAveraging
    calibrated: float
    windows: Windows | None
    known: bool = True
    pooled: bool = False

    @classmethod
    def begin(
        cls, reference: Gaussian, scale: float, rate: float, largest: float = np.inf, learn: str | None = None
    ) -> Adaptation:
        """Start from a reference and a calibrated ``scale``, to reach an acceptance ``rate``; ``learn`` names a family."""
        windows = None if learn is None else Windows(learn)
        return cls(reference, DualAveraging.begin(scale, rate, largest), scale, windows)

    @classmethod
    def of_covariance(cls, given: Any, dim: int, scale: float, rate: float, pooled: bool = False) -> Adaptation:
        """Start from the covariance that a user gave; without one, learn it, starting at the identity.

        Raises
        ------
        ModelError
            If it is not a symmetric, positive definite matrix of that size.
        """
        largest = LONGEST_STEP * scale
        if given is None:
            unknown = cls.begin(Gaussian(0.0, np.ones(dim)), scale, rate, largest, "dense")
            return unknown._replace(known=False, pooled=pooled)
        covariance = np.asarray(given, dtype=np.float64)
        symmetric = covariance.shape == (dim, dim) and np.allclose(covariance, covariance.T)
        if not symmetric or np.linalg.eigvalsh(covariance).min() <= 0:
            raise ModelError(
                f"covariance has shape {covariance.shape}: expected a symmetric, positive definite ({dim}, {dim}) matrix"
            )
        return cls.begin(
            Gaussian(0.0, np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)), scale, rate, largest
        )._replace(pooled=pooled)

    @property
    def metric(self) -> AnyMetric:
        """Return the metric in use."""
        learnt = self.windows
        if learnt is None or learnt.factor is None:
            return self.reference
        return ChainMetric(self.reference, learnt.factor, learnt.centre)

    @property
    def average(self) -> Any:
        """Return the average scales, for use after tuning.

        Raises
        ------
        ModelError
            If the shape is unknown.
        """
        if not self.known and self.step.steps == 0 and self.windows is not None and self.windows.factor is None:
            raise ModelError("the step learns its proposals during tuning: with tune=0 give covariance=")
        return self.step.average

    @property
    def parameters(self) -> KernelParameters:
        """Return the kernel parameters of the first moves."""
        return KernelParameters(self.metric, self.step.scale, adaptation=self)

    def update(self, acceptance: Any, x: Array) -> Adaptation:
        """Return the state after a step that ended at ``x`` ``(n, dim)``; a new metric restarts the scale."""
        step = self.step.update(np.mean(acceptance) if self.pooled else acceptance)
        windows = self.windows
        if windows is not None:
            for points in x[:, None] if self.pooled else x[None]:
                short = windows.short
                windows = windows.update(self.reference.whiten(points))
                if np.any(windows.short != short):
                    step = step.restarted(windows.short != short)
                if windows.n_points == 0:
                    step = DualAveraging.begin(self.calibrated, step.target, step.largest)
        return self._replace(windows=windows, step=step)
