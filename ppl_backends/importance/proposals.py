"""Proposals of importance sampling as maps from the unit cube, so that scrambled nets and random points both serve.

Each has ``n_uniforms`` (the dimension of its cube), ``from_uniform(u)`` and ``log_density(x)``. The coordinate that
matters most, the radial one of a Student t and the choice of a mixture's component, comes first, where Sobol points are
best.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from scipy.special import gammaincinv, gammaln

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array

__all__ = ["DEFENSIVE_SHARE", "STUDENT_DF", "Defensive", "Gaussian", "Proposal", "StudentT", "make_proposal"]

STUDENT_DF = 5.0
DEFENSIVE_SHARE = 0.125  # a power of two: a net of 2^m points then has exactly 2^(m-3) of them in the t component


class Proposal(Protocol):
    """A density that points of the unit cube are mapped to."""

    n_uniforms: int
    stratified: bool  # whether the first coordinate of random points is to be stratified

    def from_uniform(self, u: Array) -> Array:
        """Points ``(n, dim)`` from points of the cube ``(n, n_uniforms)``."""
        ...

    def log_density(self, x: Array) -> Array:
        """Normalised log density ``(n,)``."""
        ...


class Gaussian:
    """The approximation itself."""

    stratified = False

    def __init__(self, approximation: Any) -> None:
        self.n_uniforms = len(approximation.mean)
        self.from_uniform = approximation.from_uniform
        self.log_density = approximation.log_density


class StudentT:
    """Multivariate Student t with the approximation's mean, and its covariance as scale matrix.

    x = mean + L z √(ν/g) with g ~ χ²_ν.

    Parameters
    ----------
    approximation : GaussianApproximation
    df : float
        ν.
    """

    stratified = False

    def __init__(self, approximation: GaussianApproximation, df: float = STUDENT_DF) -> None:
        self.gaussian, self.df = approximation, df
        self.n_uniforms = approximation.dim + 1
        dim = approximation.dim
        self._log_constant = (
            gammaln((df + dim) / 2)
            - gammaln(df / 2)
            - 0.5 * dim * np.log(df * np.pi)
            - 0.5 * approximation.log_determinant
        )

    def from_uniform(self, u: Array) -> Array:
        """Points of the t; the first coordinate of the cube is that of g."""
        g = 2 * gammaincinv(self.df / 2, np.clip(u[:, 0], 2.0**-53, 1 - 2.0**-53))
        mean = self.gaussian.mean
        return mean + (self.gaussian.from_uniform(u[:, 1:]) - mean) * np.sqrt(self.df / g)[:, None]

    def log_density(self, x: Array) -> Array:
        """Normalised log density ``(n,)``."""
        z = self.gaussian.whiten(x)
        return self._log_constant - 0.5 * (self.df + self.gaussian.dim) * np.log1p((z**2).sum(axis=1) / self.df)


class Defensive:
    """(1 − ε)·Gaussian + ε·Student t, ε = 1/8; it bounds the weights of a target with tails no heavier than the t's.

    The mixture's density is in the denominator of every weight (deterministic mixture; Hesterberg 1995), and the first
    coordinate of the cube, which is stratified, allocates the components: below ε it is the t's, stretched to (0, 1)
    for its radius.
    """

    stratified = True

    def __init__(self, approximation: GaussianApproximation, share: float = DEFENSIVE_SHARE) -> None:
        self.gaussian, self.student, self.share = approximation, StudentT(approximation), share
        self.n_uniforms = approximation.dim + 1

    def from_uniform(self, u: Array) -> Array:
        """Points of the mixture."""
        heavy = u[:, 0] < self.share
        x = self.gaussian.from_uniform(u[:, 1:])
        stretched = np.column_stack([u[heavy, 0] / self.share, u[heavy, 1:]])
        x[heavy] = self.student.from_uniform(stretched)
        return x

    def log_density(self, x: Array) -> Array:
        """Normalised log density ``(n,)`` of the mixture."""
        return np.logaddexp(
            np.log1p(-self.share) + self.gaussian.log_density(x), np.log(self.share) + self.student.log_density(x)
        )


def make_proposal(name: str, approximation: Any) -> Proposal:
    """The proposal of that name around an approximation.

    Parameters
    ----------
    name : {"gaussian", "t", "defensive"}
    approximation : approximation
        ``"gaussian"`` uses its own density; the others its mean and covariance.

    Raises
    ------
    ModelError
        If the name is none of these.
    """
    if name == "gaussian":
        return Gaussian(approximation)
    if name not in ("t", "defensive"):
        raise ModelError(f"proposal={name!r}: expected 'gaussian', 't' or 'defensive'")
    if not isinstance(approximation, GaussianApproximation):
        approximation = GaussianApproximation(approximation.mean, approximation.cov)
    return StudentT(approximation) if name == "t" else Defensive(approximation)
