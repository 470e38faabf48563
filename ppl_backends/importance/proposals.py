"""Proposals of importance sampling as maps from the unit cube, for scrambled nets and for random points.

Each has ``n_uniforms`` (the dimension of its cube), ``from_uniform(u)`` and ``log_density(x)``. The most important
coordinate comes first, because Sobol points are best in the first coordinates: the radius of a Student t, or the
choice of a mixture's component.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaincinv, gammaln, stdtrit

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.mixture import MixtureApproximation, component_of
from ppl_backends.errors import ModelError
from ppl_backends.importance.axis_tails import AxisTails
from ppl_backends.numerics.gaussian import inside_cube, widen_inverse
from ppl_backends.targets.protocol import Array

STUDENT_DF = 5.0
DEFENSIVE_SHARE = 0.125  # a power of two: a net of 2^m points then has exactly 2^(m-3) of them in the t component


class Proposal(Protocol):
    """A density with a map from points of the unit cube to its points."""

    n_uniforms: int
    stratified: bool  # whether to stratify the first coordinate of random points

    def from_uniform(self, u: Array) -> Array:
        """Return points ``(n, dim)`` from points of the cube ``(n, n_uniforms)``."""
        ...

    def log_density(self, x: Array) -> Array:
        """Return the normalised log density ``(n,)``."""
        ...


class GaussianProposal:
    """The approximation itself as proposal."""

    stratified = False

    def __init__(self, approximation: Any) -> None:
        self.n_uniforms = len(approximation.mean)
        self.from_uniform = approximation.from_uniform
        self.log_density = approximation.log_density


class StudentT:
    """Multivariate Student t: x = mean + s F z √(ν/g), g ~ χ²_ν, with the approximation's mean and covariance F Fᵀ."""

    stratified = False

    def __init__(self, approximation: GaussianApproximation, df: float = STUDENT_DF, scale: float = 1.0) -> None:
        self.gaussian, self.df, self.scale = approximation, df, scale
        self.n_uniforms = approximation.dim + 1
        dim = approximation.dim
        self._log_constant = (
            gammaln((df + dim) / 2)
            - gammaln(df / 2)
            - 0.5 * dim * np.log(df * np.pi)
            - 0.5 * approximation.log_determinant
            - dim * np.log(scale)
        )

    def from_uniform(self, u: Array) -> Array:
        """Return points of the t; the first coordinate of the cube gives g."""
        g = 2 * gammaincinv(self.df / 2, inside_cube(u[:, 0]))
        mean = self.gaussian.mean
        return mean + (self.gaussian.from_uniform(u[:, 1:]) - mean) * (self.scale * np.sqrt(self.df / g))[:, None]

    def log_density(self, x: Array) -> Array:
        """Return the normalised log density ``(n,)``."""
        z = self.gaussian.whiten(x)
        return self.at_whitened(z, (z**2).sum(axis=1))

    def at_whitened(self, z: Array, square: Array) -> Array:
        """Return the log density ``(n,)`` at whitened coordinates ``z`` ``(n, dim)`` with sums of squares ``square``."""
        return self._log_constant - 0.5 * (self.df + self.gaussian.dim) * np.log1p(square / (self.df * self.scale**2))

    def whitened_slope(self, z: Array, square: Array) -> Array:
        """Return the gradient ``(n, dim)`` of :meth:`at_whitened` in z."""
        return z * (-(self.df + self.gaussian.dim) / (self.df * self.scale**2 + square))[:, None]

    def nearest_scale(self, z: Array, square: Array, weights: Array) -> float:
        """Return the scale after one step of EM on weighted points, with expanded parameters (Liu, Rubin & Wu 1998)."""
        pull = weights / (self.df + square / self.scale**2)
        return float(np.sqrt(pull @ square / (self.gaussian.dim * pull.sum())))

    def with_scale(self, scale: float) -> StudentT:
        """Return the t with another scale."""
        return StudentT(self.gaussian, self.df, scale)


class IndependentT:
    """Independent Student t variables along orthogonal axes of the whitened space: x = mean + s F A z, zⱼ ~ t_ν.

    Along a single whitened coordinate the density falls as |z|^−(ν+1), for any dimension. The density of a
    multivariate t falls as |z|^−(ν+dim), which is slower only if all coordinates are large at once.
    """

    stratified = False

    def __init__(
        self,
        approximation: GaussianApproximation,
        df: float = STUDENT_DF,
        axes: Array | None = None,
        scale: float = 1.0,
    ) -> None:
        self.gaussian, self.df, self.axes, self.scale = approximation, df, axes, scale
        self.n_uniforms = approximation.dim
        one = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * np.log(df * np.pi) - np.log(scale)
        self._log_constant = approximation.dim * one - 0.5 * approximation.log_determinant

    def from_uniform(self, u: Array) -> Array:
        """Return points by the inverse distribution function of the t."""
        z = self.scale * stdtrit(self.df, inside_cube(u))
        return self.gaussian.place(z if self.axes is None else z @ self.axes.T)

    def log_density(self, x: Array) -> Array:
        """Return the normalised log density ``(n,)``."""
        z = self.gaussian.whiten(x)
        return self.at_whitened(z, (z**2).sum(axis=1))

    def at_whitened(self, z: Array, square: Array) -> Array:
        """Return the log density ``(n,)`` at whitened coordinates ``z`` ``(n, dim)`` with sums of squares ``square``."""
        z = z if self.axes is None else z @ self.axes
        return self._log_constant - 0.5 * (self.df + 1) * np.log1p(z**2 / (self.df * self.scale**2)).sum(axis=1)

    def whitened_slope(self, z: Array, square: Array) -> Array:
        """Return the gradient ``(n, dim)`` of :meth:`at_whitened` in z."""
        z = z if self.axes is None else z @ self.axes
        slope = -(self.df + 1) * z / (self.df * self.scale**2 + z**2)
        return slope if self.axes is None else slope @ self.axes.T

    def nearest_scale(self, z: Array, square: Array, weights: Array) -> float:
        """Return the scale after one step of EM on weighted points, with expanded parameters (Liu, Rubin & Wu 1998)."""
        squares = (z if self.axes is None else z @ self.axes) ** 2
        pull = weights[:, None] / (self.df + squares / self.scale**2)
        return float(np.sqrt((pull * squares).sum() / pull.sum()))

    def with_scale(self, scale: float) -> IndependentT:
        """Return the distribution with another scale."""
        return IndependentT(self.gaussian, self.df, self.axes, scale)


class StudentMixture:
    """A mixture of an approximation with Student t's around it; weights are bounded if the target's tails are not heavier.

    The mixture's density is in the denominator of every weight (deterministic mixture; Hesterberg 1995). The first
    coordinate of the cube, which is stratified, chooses the component. The position within the component's share,
    stretched to (0, 1), is an additional coordinate for components that need more coordinates than dimensions.
    ``shares`` are the shares of the Student t's, followed by that of the approximation.
    """

    stratified = True

    def __init__(self, approximation: Any, students: Sequence[StudentT | IndependentT], shares: Any) -> None:
        self.approximation, self.students = approximation, tuple(students)
        self.shares: Array = np.asarray(shares, dtype=np.float64)
        self._ends = np.cumsum(self.shares)
        self.dim = len(approximation.mean)
        self.n_uniforms = self.dim + 1
        self.mean: Array = self.students[0].gaussian.mean
        self._gaussian = self.students[0].gaussian
        self._root: Array | None = None  # F⁻¹, or 1/s; of a low-rank factor it is not needed
        if self._gaussian.representation == "dense":
            self._root = solve_triangular(self._gaussian.factor, np.eye(self.dim), lower=True)
        elif self._gaussian.representation == "diagonal":
            self._root = 1.0 / self._gaussian.factor

    def with_parts(self, students: Sequence[StudentT | IndependentT], shares: Any) -> StudentMixture:
        """Return the approximation mixed with other Student t's."""
        return StudentMixture(self.approximation, students, shares)

    def from_uniform(self, u: Array) -> Array:
        """Return points of the mixture."""
        which = np.minimum(np.searchsorted(self._ends, u[:, 0], side="right"), len(self.students))
        x = np.empty((len(u), self.dim))
        for k, component in enumerate((*self.students, self.approximation)):
            rows = u[which == k]
            if isinstance(component, (StudentT, AxisTails)):
                rest = (rows[:, :1] - self._ends[k] + self.shares[k]) / self.shares[k]
                x[which == k] = component.from_uniform(np.hstack([rest, rows[:, 1:]]))
            else:
                x[which == k] = component.from_uniform(rows[:, 1:])
        return x

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` independent draws ``(n, dim)``."""
        return self.from_uniform(rng.random((n, self.n_uniforms)))

    def log_density(self, x: Array) -> Array:
        """Return the normalised log density ``(n,)`` of the mixture."""
        total: Array = np.logaddexp.reduce(np.log(self.shares)[:, None] + self.component_log_densities(x), axis=0)
        return total

    def component_log_densities(self, x: Array) -> Array:
        """Return log densities ``(k, n)`` of the components, in the order of ``shares``."""
        z = self.whiten(x)
        return self.parts(z, np.einsum("nd,nd->n", z, z), self.approximation.log_density(x))

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return the normalised log density ``(n,)`` and its gradient ``(n, dim)``."""
        z = self.whiten(x)
        square = np.einsum("nd,nd->n", z, z)
        own, own_slope = self.approximation.log_density_and_gradient(x)
        parts = np.log(self.shares)[:, None] + self.parts(z, square, own)
        total = np.logaddexp.reduce(parts, axis=0)
        belongs = np.exp(parts - total)
        slope = np.zeros_like(z)
        for student, share in zip(self.students, belongs, strict=False):
            slope += share[:, None] * student.whitened_slope(z, square)
        return total, self._pull(slope) + belongs[-1][:, None] * own_slope

    def parts(self, z: Array, square: Array, own: Array) -> Array:
        """Return log densities ``(k, n)`` of the components at whitened points; ``own`` is the approximation's."""
        return np.stack([*(student.at_whitened(z, square) for student in self.students), own])

    def whiten(self, x: Array) -> Array:
        """Return F⁻¹(x − mean); a matrix product is three times as fast as a triangular solve."""
        if self._root is None:
            return self._gaussian.whiten(x)
        centred = x - self._gaussian.mean
        return centred * self._root if self._root.ndim == 1 else centred @ self._root.T

    def _pull(self, slope: Array) -> Array:
        """Return F⁻ᵀ times every row."""
        if self._root is None:
            assert self._gaussian.directions is not None
            return widen_inverse(slope, self._gaussian.directions) / self._gaussian.factor
        return slope * self._root if self._root.ndim == 1 else slope @ self._root


class Mixture:
    """Proposals of the same kind around the Gaussians of a mixture.

    The first coordinate of the cube, which is stratified, chooses the component. The position within the component's
    share, stretched to (0, 1), is that component's first coordinate.
    """

    stratified = True

    def __init__(self, weights: Array, parts: list[Proposal]) -> None:
        self.weights, self.parts = weights, parts
        self.n_uniforms = parts[0].n_uniforms

    def from_uniform(self, u: Array) -> Array:
        """Return points of the mixture."""
        which, rest = component_of(u[:, 0], self.weights)
        stretched = np.column_stack([np.clip(rest, 0.0, 1.0), u[:, 1:]])
        groups = [np.flatnonzero(which == k) for k in range(len(self.parts))]
        points = [part.from_uniform(stretched[at]) for part, at in zip(self.parts, groups, strict=True)]
        return np.concatenate(points)[np.argsort(np.concatenate(groups))]

    def log_density(self, x: Array) -> Array:
        """Return the normalised log density ``(n,)`` of the mixture."""
        logs = [np.log(w) + part.log_density(x) for w, part in zip(self.weights, self.parts, strict=True)]
        return np.logaddexp.reduce(logs)


def make_proposal(name: str, approximation: Any) -> Proposal:
    """Return the proposal of that name around an approximation, or around every Gaussian of a mixture of modes.

    ``"gaussian"`` is the approximation's own density; ``"t"`` has its mean and covariance; ``"defensive"`` mixes both, with
    an eighth of the t.
    """
    if name not in ("gaussian", "t", "defensive"):
        raise ModelError(f"proposal={name!r}: expected 'gaussian', 't' or 'defensive'")
    if name == "gaussian":
        return GaussianProposal(approximation)
    if isinstance(approximation, MixtureApproximation) and not approximation.overlapping:
        return Mixture(approximation.weights, [make_proposal(name, part) for part in approximation.components()])
    student = StudentT(gaussian_of(approximation))
    if name == "t":
        return student
    return StudentMixture(approximation, [student], [DEFENSIVE_SHARE, 1 - DEFENSIVE_SHARE])


def gaussian_of(approximation: Any) -> GaussianApproximation:
    """Return the Gaussian with the mean and covariance of an approximation."""
    if isinstance(approximation, GaussianApproximation):
        return approximation
    return GaussianApproximation(approximation.mean, approximation.cov)
