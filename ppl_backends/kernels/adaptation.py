"""Step sizes adapted to an acceptance rate while a chain tunes, with an adaptation that vanishes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["DualAveraging"]

GAMMA, T0, KAPPA = 0.05, 10.0, 0.75


class DualAveraging(NamedTuple):
    """Nesterov's dual averaging of a log step size (Hoffman & Gelman 2014, section 3.2), of one chain or of several at once.

    Attributes
    ----------
    target : float
        Acceptance rate to reach.
    centre : float
        Log of the initial step size, which early steps shrink towards.
    log_scale : float or ndarray (n,)
        Of the next step.
    log_average : float or ndarray (n,)
        Of the steps after tuning.
    error : float or ndarray (n,)
        Running mean of target − acceptance.
    steps : int
    largest : float
        That the step may become.

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
    steps: int
    largest: float = np.inf

    @classmethod
    def begin(cls, scale: float, target: float, largest: float = np.inf) -> DualAveraging:
        """Start from a calibrated ``scale``, which stays in use if nothing is adapted."""
        log_scale = float(np.log(scale))
        return cls(target, log_scale, log_scale, log_scale, 0.0, 0, largest)

    @property
    def scale(self) -> Any:
        """Of the next step while tuning."""
        return np.minimum(np.exp(self.log_scale), self.largest)

    @property
    def average(self) -> Any:
        """Of the steps after tuning."""
        return np.minimum(np.exp(self.log_average), self.largest)

    @property
    def metric(self) -> None:
        """None: that in use stays."""
        return None

    def update(self, acceptance: Any, x: Any = None) -> DualAveraging:
        """Return what follows a step of that acceptance probability; where it ended, ``x``, does not matter."""
        count = self.steps + 1
        weight = 1.0 / (count + T0)
        error = (1 - weight) * self.error + weight * (self.target - acceptance)
        log_scale = self.centre - np.sqrt(count) / GAMMA * error
        share = count**-KAPPA
        log_average = share * log_scale + (1 - share) * self.log_average
        return self._replace(error=error, steps=count, log_scale=log_scale, log_average=log_average)
