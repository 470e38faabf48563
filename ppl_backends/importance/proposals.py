"""Proposals of importance sampling as maps from the unit cube, so that scrambled nets and random points both serve.

Each has ``n_uniforms`` (the dimension of its cube), ``from_uniform(u)`` and ``log_density(x)``. The coordinate that
matters most, the radial one of a Student t and the choice of a mixture's component, comes first, where Sobol points are
best.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaincinv, gammaln, stdtrit

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array

__all__ = [
    "DEFENSIVE_SHARE",
    "STUDENT_DF",
    "Defensive",
    "GaussianProposal",
    "IndependentT",
    "Mixture",
    "Proposal",
    "StudentMixture",
    "StudentT",
    "gaussian_of",
    "make_proposal",
]

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


class GaussianProposal:
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
        g = 2 * gammaincinv(self.df / 2, _inside(u[:, 0]))
        mean = self.gaussian.mean
        return mean + (self.gaussian.from_uniform(u[:, 1:]) - mean) * np.sqrt(self.df / g)[:, None]

    def log_density(self, x: Array) -> Array:
        """Normalised log density ``(n,)``."""
        z = self.gaussian.whiten(x)
        return self.at_whitened(z, (z**2).sum(axis=1))

    def at_whitened(self, z: Array, square: Array) -> Array:
        """Log density ``(n,)`` at points of whitened coordinates ``z`` ``(n, dim)``, whose squares add up to ``square``."""
        return self._log_constant - 0.5 * (self.df + self.gaussian.dim) * np.log1p(square / self.df)

    def whitened_slope(self, z: Array, square: Array) -> Array:
        """Gradient ``(n, dim)`` of that in z."""
        return z * (-(self.df + self.gaussian.dim) / (self.df + square))[:, None]


class IndependentT:
    """Independent Student t variables along orthogonal axes of what the approximation whitens: x = mean + L A z, zⱼ ~ t_ν.

    Along a single one of these coordinates its density falls as |z|^−(ν+1), whatever the dimension; that of a multivariate t
    falls as |z|^−(ν+dim), which is slower only where all coordinates are large together.

    Parameters
    ----------
    approximation : GaussianApproximation
    df : float
        ν.
    axes : ndarray (dim, dim), optional
        A, orthonormal columns; those of the whitened coordinates by default.
    """

    stratified = False

    def __init__(self, approximation: GaussianApproximation, df: float = STUDENT_DF, axes: Array | None = None) -> None:
        self.gaussian, self.df, self.axes = approximation, df, axes
        self.n_uniforms = approximation.dim
        one = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * np.log(df * np.pi)
        self._log_constant = approximation.dim * one - 0.5 * approximation.log_determinant

    def from_uniform(self, u: Array) -> Array:
        """Points by the inverse distribution function of the t."""
        z = stdtrit(self.df, _inside(u))
        return self.gaussian.place(z if self.axes is None else z @ self.axes.T)

    def log_density(self, x: Array) -> Array:
        """Normalised log density ``(n,)``."""
        z = self.gaussian.whiten(x)
        return self.at_whitened(z, (z**2).sum(axis=1))

    def at_whitened(self, z: Array, square: Array) -> Array:
        """Log density ``(n,)`` at points of whitened coordinates ``z`` ``(n, dim)``, whose squares add up to ``square``."""
        z = z if self.axes is None else z @ self.axes
        return self._log_constant - 0.5 * (self.df + 1) * np.log1p(z**2 / self.df).sum(axis=1)

    def whitened_slope(self, z: Array, square: Array) -> Array:
        """Gradient ``(n, dim)`` of that in z."""
        z = z if self.axes is None else z @ self.axes
        slope = -(self.df + 1) * z / (self.df + z**2)
        return slope if self.axes is None else slope @ self.axes.T


class StudentMixture:
    """A mixture of an approximation with Student t's around it; it bounds the weights of targets of no heavier tails.

    The mixture's density is in the denominator of every weight (deterministic mixture; Hesterberg 1995). The first coordinate
    of the cube, which is stratified, allocates the components; a component's share of it is stretched to (0, 1) and serves
    where the component needs a coordinate more than it has dimensions.

    Parameters
    ----------
    approximation : approximation
    students : sequence of StudentT or IndependentT
        Around the Gaussian with the approximation's moments.
    shares : array
        Of the Student t's, in their order, and at last of the approximation; positive, with sum one.
    """

    stratified = True

    def __init__(self, approximation: Any, students: Sequence[StudentT | IndependentT], shares: Any) -> None:
        self.approximation, self.students = approximation, tuple(students)
        self.shares: Array = np.asarray(shares, dtype=np.float64)
        self._ends = np.cumsum(self.shares)
        self.dim = len(approximation.mean)
        self.n_uniforms = self.dim + 1
        self._gaussian = self.students[0].gaussian
        factor = self._gaussian.cholesky
        self._root = 1.0 / factor if factor.ndim == 1 else solve_triangular(factor, np.eye(self.dim), lower=True)

    def from_uniform(self, u: Array) -> Array:
        """Points of the mixture."""
        which = np.minimum(np.searchsorted(self._ends, u[:, 0], side="right"), len(self.students))
        x = np.empty((len(u), self.dim))
        for k, component in enumerate((*self.students, self.approximation)):
            rows = u[which == k]
            if isinstance(component, StudentT):
                rest = (rows[:, :1] - self._ends[k] + self.shares[k]) / self.shares[k]
                x[which == k] = component.from_uniform(np.hstack([rest, rows[:, 1:]]))
            else:
                x[which == k] = component.from_uniform(rows[:, 1:])
        return x

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """``n`` independent draws ``(n, dim)``."""
        return self.from_uniform(rng.random((n, self.n_uniforms)))

    def log_density(self, x: Array) -> Array:
        """Normalised log density ``(n,)`` of the mixture."""
        total: Array = np.logaddexp.reduce(np.log(self.shares)[:, None] + self.component_log_densities(x), axis=0)
        return total

    def component_log_densities(self, x: Array) -> Array:
        """Log densities ``(k, n)`` of the components, in the order of their shares."""
        z = self._whiten(x)
        return self._parts(z, np.einsum("nd,nd->n", z, z), self.approximation.log_density(x))

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Normalised log density ``(n,)`` and its gradient ``(n, dim)``."""
        z = self._whiten(x)
        square = np.einsum("nd,nd->n", z, z)
        own, own_slope = self.approximation.log_density_and_gradient(x)
        parts = np.log(self.shares)[:, None] + self._parts(z, square, own)
        total = np.logaddexp.reduce(parts, axis=0)
        belongs = np.exp(parts - total)
        slope = np.zeros_like(z)
        for student, share in zip(self.students, belongs, strict=False):
            slope += share[:, None] * student.whitened_slope(z, square)
        return total, self._pull(slope) + belongs[-1][:, None] * own_slope

    def _parts(self, z: Array, square: Array, own: Array) -> Array:
        return np.stack([*(student.at_whitened(z, square) for student in self.students), own])

    def _whiten(self, x: Array) -> Array:
        """L⁻¹(x − mean) by one product, in place of a triangular solve that takes three times as long."""
        centred = x - self._gaussian.mean
        return centred * self._root if self._root.ndim == 1 else centred @ self._root.T

    def _pull(self, slope: Array) -> Array:
        """L⁻ᵀ of every row."""
        return slope * self._root if self._root.ndim == 1 else slope @ self._root


class Defensive(StudentMixture):
    """(1 − ε)·approximation + ε·Student t, ε = 1/8."""

    def __init__(self, approximation: Any, share: float = DEFENSIVE_SHARE) -> None:
        super().__init__(approximation, [StudentT(gaussian_of(approximation))], [share, 1 - share])


class Mixture:
    """Proposals of the same kind around the Gaussians of a mixture.

    The first coordinate of the cube, which is stratified, chooses the component; what is left of it within the component's
    share, stretched to (0, 1), is that component's first coordinate.

    Parameters
    ----------
    weights : ndarray (k,)
    parts : list of Proposal
    """

    stratified = True

    def __init__(self, weights: Array, parts: list[Proposal]) -> None:
        self.weights, self.parts = weights, parts
        self.n_uniforms = parts[0].n_uniforms

    def from_uniform(self, u: Array) -> Array:
        """Points of the mixture."""
        ends = np.cumsum(self.weights)
        which = np.minimum(np.searchsorted(ends, u[:, 0]), len(ends) - 1)
        rest = (u[:, 0] - (ends - self.weights)[which]) / self.weights[which]
        stretched = np.column_stack([np.clip(rest, 0.0, 1.0), u[:, 1:]])
        groups = [np.flatnonzero(which == k) for k in range(len(self.parts))]
        points = [part.from_uniform(stretched[at]) for part, at in zip(self.parts, groups, strict=True)]
        return np.concatenate(points)[np.argsort(np.concatenate(groups))]

    def log_density(self, x: Array) -> Array:
        """Normalised log density ``(n,)`` of the mixture."""
        logs = [np.log(w) + part.log_density(x) for w, part in zip(self.weights, self.parts, strict=True)]
        return np.logaddexp.reduce(logs)


def make_proposal(name: str, approximation: Any) -> Proposal:
    """The proposal of that name around an approximation.

    Parameters
    ----------
    name : {"gaussian", "t", "defensive"}
    approximation : approximation
        ``"gaussian"`` uses its own density; ``"t"`` its mean and covariance; ``"defensive"`` both. Of a mixture of modes,
        every Gaussian has a t of its own.

    Raises
    ------
    ModelError
        If the name is none of these.
    """
    if name not in ("gaussian", "t", "defensive"):
        raise ModelError(f"proposal={name!r}: expected 'gaussian', 't' or 'defensive'")
    if name == "gaussian":
        return GaussianProposal(approximation)
    if isinstance(approximation, MixtureApproximation) and not approximation.overlapping:
        return Mixture(approximation.weights, [make_proposal(name, part) for part in approximation.components()])
    return StudentT(gaussian_of(approximation)) if name == "t" else Defensive(approximation)


def gaussian_of(approximation: Any) -> GaussianApproximation:
    """The Gaussian with the mean and covariance of an approximation."""
    if isinstance(approximation, GaussianApproximation):
        return approximation
    return GaussianApproximation(approximation.mean, approximation.cov)


def _inside(u: Array) -> Array:
    """Points of the cube, those on its faces moved inwards."""
    return np.clip(u, 2.0**-53, 1 - 2.0**-53)
