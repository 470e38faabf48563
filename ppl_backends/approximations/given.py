"""What a caller hands over as an approximation, be it of another library."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.approximations.base import Approximation
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["GivenApproximation", "as_approximation", "is_poor_start"]

_MEMBERS = ("from_uniform", "sample", "log_density", "log_density_and_gradient")


def as_approximation(given: Any, target: BaseTarget | None = None) -> Approximation:
    """Return what a caller handed over, with the members of every approximation.

    An object of another library counts as it is where it can be drawn from and evaluated, else by its mean and covariance.

    Raises
    ------
    ModelError
        If it is over another number of coordinates than ``target``.
    """
    if target is not None and np.size(given.mean) != target.dim:
        raise ModelError(f"the approximation has {np.size(given.mean)} coordinates, {target.label} has {target.dim}")
    if isinstance(given, Approximation):
        return given
    if all(hasattr(given, member) for member in _MEMBERS):
        return GivenApproximation(given, target)
    return GaussianApproximation(given.mean, given.cov, target=target)


class GivenApproximation(Approximation):
    """An approximation of another library, which draws and evaluates itself."""

    representation = "given"
    _given: Any

    def __init__(self, given: Any, target: BaseTarget | None = None) -> None:
        mean = np.asarray(given.mean, dtype=np.float64)
        vars(self).update(mean=mean, _given=given, **{member: getattr(given, member) for member in _MEMBERS})
        self._describe(len(mean), target=target, method=str(getattr(given, "method", type(given).__name__)))

    @property
    def cov(self) -> Array:
        """Covariance ``(dim, dim)``."""
        return np.asarray(self._given.cov)


def is_poor_start(approximation: Any) -> bool:
    """Return whether samplers should not begin at an approximation: a Laplace approximation that is far off.

    It has no mode, or its points are on average more than a standard deviation off in every coordinate:
    2 KL(q ‖ p) > dim. One that is merely not ``converged`` serves, since what begins there is corrected.
    """
    if approximation.method != "laplace" or approximation.converged:
        return False
    return not approximation.diagnostics.get("distance", np.inf) <= 1.0
