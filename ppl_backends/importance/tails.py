r"""Proposals with heavy tails, for targets with heavier tails than their approximation.

If log p falls more slowly than log q, the weights p/q have infinite variance, at every power of them. Then neither
importance sampling nor a path q^{1−λ} p^λ that starts from draws of a Gaussian q can estimate its error. No single
density has heavy enough tails everywhere. A multivariate t falls too fast along the axes of a product of t's, a
product of t's falls too fast along the diagonals of a multivariate t, and both fit the centre poorly if their degrees
of freedom are few. The proposal is therefore a mixture of the approximation with both, of one and of four degrees of
freedom.

A pilot run fits the shares of the mixture and the scales of the t's. The scales need fitting because the Laplace
approximation of a t with d coordinates is (1 + d/ν)^½ times too narrow. The pilot weighs draws of the mixture with
equal shares, which reach into the tails. EM on the weighted points finds the shares and scales of the mixture nearest
to the target in Kullback–Leibler divergence (Cappé, Douc, Guillin, Marin & Robert 2008), with each share at least
1/32. The mixture is used if it is nearer to the target than the approximation by more than three standard errors of
the pilot. A second pilot has the independent t's along the axes in which the target has the heaviest tails; its
mixture is used if it is nearer than the first. The same EM, on particles instead of weighted points, fits the density
of a bridge, and proposals for the particles of a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.errors import ModelError
from ppl_backends.importance.axis_tails import GRAIN, AxisTails, axis_tails
from ppl_backends.importance.proposals import IndependentT, StudentMixture, StudentT, gaussian_of
from ppl_backends.kernels.metric import metric_from_points
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.numerics.weights import normalised_weights
from ppl_backends.targets.protocol import Array, BaseTarget

PILOT_POINTS = 4096
_DEGREES_OF_FREEDOM = (1.0, 4.0)
_EM_ROUNDS, _FIRST_ROUNDS = 10, 2
_STEPS_A_ROUND = 5  # EM steps in the shares, which are cheaper than one in the scales
_SCALES = (0.25, 32.0)  # bounds of the scale of a Student t in units of the approximation's
_CUT = 20  # rank of the weight at which larger ones are cut
_LARGEST_TURNED = 50  # coordinates above which no axes are searched for
_CLEARLY = 3.0  # standard errors
_LARGEST_GAIN = (
    5.0  # of log density at one point: far out a Gaussian is practically zero, and its logarithm has no variance
)


def with_tails(
    target: BaseTarget,
    approximation: Any,
    by_variance: bool = False,
    degrees: Sequence[float] = _DEGREES_OF_FREEDOM,
) -> StudentMixture | AxisTails | None:
    """Return the mixture of an approximation with Student t's nearest to the target, or None if tails are not needed.

    ``by_variance`` also takes it if its weights vary clearly less than those of the approximation. The t's have these
    ``degrees`` of freedom.

    Cappé, Douc, Guillin, Marin & Robert (2008), Statistics and Computing 18, 447–459.
    """
    found = _with_students(target, approximation, by_variance, degrees)
    along = _along_axes(target, approximation, by_variance)
    if along is None:
        return found
    tailed = _with_students(target, along, by_variance, degrees) or along
    return tailed if found is None or _covers(target, tailed, found) else found


def _with_students(
    target: BaseTarget, approximation: Any, by_variance: bool, degrees: Sequence[float]
) -> StudentMixture | None:
    """Return the mixture of an approximation with Student t's, or None if it is not better."""
    rng = np.random.default_rng(0)  # the same mixture in every call
    found, _, _ = _pilot(target, student_mixture(approximation, degrees=degrees), rng, by_variance)
    if found is None or not (1 < found.dim <= _LARGEST_TURNED and target.has_gradient):
        return found
    axes = heavy_axes(target, gaussian_of(approximation), rng)
    turned, x, weights = _pilot(target, student_mixture(approximation, axes, degrees), rng, by_variance)
    if turned is None or not is_nearer(turned.log_density(x), found.log_density(x), weights):
        return found
    return turned


def _covers(target: BaseTarget, proposal: Any, other: Any) -> bool:
    """Return whether a proposal is clearly nearer than another, and its weights vary no more, at draws of the other.

    Tails along single coordinates are near to a density whose coordinates have tails, and do not reach where several are in
    their tails at once.
    """
    x = other.sample(PILOT_POINTS, np.random.default_rng(2))
    weights, log_density = _weighed(target, other, x)
    logs = proposal.log_density(x), other.log_density(x)
    mean_weights = [float(weights @ np.exp(np.minimum(log_density - log_q, _LARGEST_GAIN))) for log_q in logs]
    return is_nearer(*logs, weights) and mean_weights[0] <= mean_weights[1]


def _along_axes(target: BaseTarget, approximation: Any, by_variance: bool) -> AxisTails | None:
    """Return the approximation with tails along single ones of several coordinates if this is nearer to the target."""
    tailed = axis_tails(target, approximation) if target.dim > 1 else None
    if tailed is None:
        return None
    x = tailed.sample(PILOT_POINTS, np.random.default_rng(1))
    weights, log_density = _weighed(target, tailed, x)
    better = _is_better(
        tailed.log_density(x), approximation.log_density(x), weights, log_density if by_variance else None
    )
    return tailed if better else None


def _pilot(
    target: BaseTarget, mixture: StudentMixture, rng: np.random.Generator, by_variance: bool
) -> tuple[StudentMixture | None, Array, Array]:
    """Weigh draws of a mixture and fit it to them; return the mixture or None, the points and their weights."""
    x = mixture.sample(PILOT_POINTS, rng)
    weights, log_density = _weighed(target, mixture, x)
    if not weights.any():
        return None, x, weights
    return fit_mixture(mixture, x, weights, log_density if by_variance else None), x, weights


def _weighed(target: BaseTarget, proposal: Any, x: Array) -> tuple[Array, Array]:
    """Return weights of a proposal's draws ``(n,)``, all zero if few have one, and the target's normalised log density."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # points far out in the tails
        log_q = proposal.log_density(x)
        cut = cut_weights(target.log_density(x) - log_q)
    if cut is None:
        return np.zeros(len(x)), log_q
    weights, log_mean = normalised_weights(cut)
    return weights, cut + log_q - log_mean


def cut_weights(log_weights: Array) -> Array | None:
    """Return log weights, none above the twentieth largest, so that single points do not decide; None if fewer are there."""
    log_weights = np.where(np.isnan(log_weights), -np.inf, log_weights)
    if np.sum(log_weights > -np.inf) < _CUT:
        return None
    return np.minimum(log_weights, np.sort(log_weights)[-_CUT])


def student_mixture(
    approximation: Any, axes: Array | None = None, degrees: Sequence[float] = _DEGREES_OF_FREEDOM
) -> StudentMixture:
    """Return the approximation and Student t's around it, in equal shares; independent t's are along ``axes``."""
    gaussian, students = gaussian_of(approximation), list[StudentT | IndependentT]()
    for df in degrees:
        students.append(StudentT(gaussian, df))
        if gaussian.dim > 1:
            students.append(IndependentT(gaussian, df, axes))
    return StudentMixture(approximation, students, np.full(len(students) + 1, 1.0 / (len(students) + 1)))


def fit_mixture(
    mixture: StudentMixture, x: Array, weights: Array, log_density: Array | None = None
) -> StudentMixture | None:
    """Fit shares and scales of a mixture to weighted points; return None if the approximation alone fits as well.

    With the log density of the target at the points, the mixture also fits better if weights from it have a clearly
    smaller variance.
    """
    used = weights > 0
    x, weights = x[used], weights[used]
    log_density = None if log_density is None else log_density[used]
    fitted, z = mixture, mixture.whiten(x)
    known = z, np.einsum("nd,nd->n", z, z), mixture.approximation.log_density(x)
    for done in range(1, _EM_ROUNDS + 1):
        fitted = _em_round(fitted, *known, weights)
        if done == _FIRST_ROUNDS and not _is_better(fitted.log_density(x), known[-1], weights, log_density):
            return None
    fitted = fitted.with_parts(fitted.students, _on_grid(fitted.shares))
    if not _is_better(fitted.log_density(x), known[-1], weights, log_density):
        return None
    return fitted


def _is_better(proposal: Array, other: Array, weights: Array, log_density: Array | None) -> bool:
    """Return whether a proposal is clearly nearer to the target than another, or its weights clearly vary less.

    A tail that holds two per cent of the mass hardly changes the divergence, but can be most of the variance of the
    weights, and of the error of their mean.
    """
    if is_nearer(proposal, other, weights):
        return True
    if log_density is None:
        return False
    ratios = [np.exp(np.minimum(log_density - log_q, _LARGEST_GAIN)) for log_q in (proposal, other)]
    return _exceeds(ratios[1] - ratios[0], weights)


def _em_round(mixture: StudentMixture, z: Array, square: Array, own: Array, weights: Array) -> StudentMixture:
    """Return the mixture after EM steps in its shares and one in the scales of the Student t's; ``own`` is log q."""
    parts, shares = mixture.parts(z, square, own), mixture.shares
    for _ in range(_STEPS_A_ROUND):
        joint = np.log(shares)[:, None] + parts
        belongs = np.exp(joint - np.logaddexp.reduce(joint, axis=0)) * weights
        shares = np.maximum(belongs.sum(axis=1), 1e-6)
    students = [
        student.with_scale(np.clip(student.nearest_scale(z, square, belonging), *_SCALES))
        for student, belonging in zip(mixture.students, belongs, strict=False)
    ]
    return mixture.with_parts(students, shares)


@dataclass(frozen=True)
class PointTails:
    """A mixture with Student t's fitted to points: the Gaussian of their quantiles, and scales and shares of the parts."""

    middle: Gaussian
    scales: Array
    shares: Array

    @cached_property
    def mixture(self) -> StudentMixture:
        """Return the density."""
        whole = student_mixture(GaussianApproximation(self.middle.mean, cholesky=self.middle.factor))
        parts = zip(whole.students, self.scales, strict=True)
        return whole.with_parts([student.with_scale(float(scale)) for student, scale in parts], self.shares)


def tails_of_points(x: Array) -> PointTails | None:
    """Fit a mixture with Student t's to points; return None if it is not clearly nearer to them than a Gaussian."""
    middle = metric_from_points(x)  # from quantiles, which exist for a Cauchy too
    shares = np.full(len(x), 1.0 / len(x))
    tailed = fit_mixture(student_mixture(GaussianApproximation(middle.mean, cholesky=middle.factor)), x, shares)
    if tailed is None:
        return None
    try:
        gaussian = MixtureApproximation([len(x)], [x.mean(axis=0)], [np.atleast_2d(np.cov(x.T))])
    except ModelError:  # a singular covariance: there are too few points
        return None
    if not is_nearer(tailed.log_density(x), gaussian.log_density(x), shares):
        return None
    return PointTails(middle, np.array([student.scale for student in tailed.students]), tailed.shares)


def is_nearer(log_density: Array, other: Array, weights: Array) -> bool:
    """Return whether one density is clearly nearer to weighted points than another; both are given at the points ``(n,)``."""
    return _exceeds(np.minimum(log_density - other, _LARGEST_GAIN), weights)


def _exceeds(gain: Array, weights: Array) -> bool:
    """Return whether the mean of a gain is above zero by more than three of its standard errors."""
    mean = float(weights @ gain)
    return mean > _CLEARLY * float(np.sqrt(weights**2 @ (gain - mean) ** 2))


def _on_grid(shares: Array) -> Array:
    """Round shares to multiples of 1/32, at least 1/32."""
    free = GRAIN - len(shares)
    counts = free * shares / shares.sum()
    whole = np.floor(counts)
    whole[np.argsort(whole - counts)[: free - int(whole.sum())]] += 1
    return (1 + whole) / GRAIN


_RADIUS = 20.0  # standard deviations: far enough to be in the tails, near enough for ascent to converge
_STARTS = 2  # times the dimension
_STEPS, _FIRST_STEP, _SHRINKAGE = 100, 0.5, 0.95  # in radians
_APART = 0.9  # least sine of the angle between a new axis and the span of earlier axes


def heavy_axes(target: BaseTarget, gaussian: GaussianApproximation, rng: np.random.Generator) -> Array:
    """Find orthonormal axes ``(dim, dim)``, as columns in whitened coordinates, along which a density has the heaviest tails.

    A product of heavy-tailed variables has its tail mass along their axes: on a large sphere the density is highest
    there, and a ridge leads to each axis. A Gaussian with the curvature of the mode whitens mixed variables up to a
    rotation, so the axes are orthogonal in its coordinates. Gradient ascent on the sphere finds them, from many random
    directions at once.
    """
    axes = np.empty((0, gaussian.dim))
    while len(axes) < gaussian.dim:  # climbs may all miss an axis: the next round starts orthogonal to the axes found
        direction = _outside(rng.standard_normal((_STARTS * gaussian.dim, gaussian.dim)), axes)
        for step in range(_STEPS):
            _, slope = _both_sides(target, gaussian, direction)
            slope -= np.sum(slope * direction, axis=1, keepdims=True) * direction
            direction = _outside(direction + _FIRST_STEP * _SHRINKAGE**step * _outside(slope, axes), axes)
        height, _ = _both_sides(target, gaussian, direction)
        for row in direction[np.argsort(-height)]:
            rest = row - axes.T @ (axes @ row)
            if len(axes) < gaussian.dim and np.linalg.norm(rest) > _APART:
                axes = np.vstack([axes, rest / np.linalg.norm(rest)])
    return axes.T


def _outside(rows: Array, axes: Array) -> Array:
    """Return the parts of the rows orthogonal to the axes, scaled to length one; zero if a row is in their span."""
    rest = rows - (rows @ axes.T) @ axes
    rest /= np.maximum(np.abs(rest).max(axis=1, keepdims=True), 1e-300)  # squares of steep slopes overflow
    return rest / np.maximum(np.linalg.norm(rest, axis=1, keepdims=True), 1e-300)


def _both_sides(target: BaseTarget, gaussian: GaussianApproximation, direction: Array) -> tuple[Array, Array]:
    """Return the sum of the log densities at both ends of a diameter of the sphere, and its gradient in the direction."""
    ends = np.concatenate([gaussian.place(_RADIUS * direction), gaussian.place(-_RADIUS * direction)])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        value, slope = target.log_density_and_gradient(ends)
    slope = np.nan_to_num(gaussian.whiten_gradient(slope), posinf=0.0, neginf=0.0)
    n = len(direction)
    return np.nan_to_num(value[:n] + value[n:], nan=-np.inf), slope[:n] - slope[n:]
