r"""Proposals with tails, for a target whose own are heavier than those of its approximation.

Where log p falls more slowly than log q the weights p/q have no variance, at no power of them: neither importance sampling
nor a path q^{1−λ} p^λ that starts from draws of a Gaussian q can tell how wrong it is. No single density is heavy enough
everywhere. A multivariate t falls too fast along the axes of a product of t's, a product of t's too fast along the diagonals
of a multivariate t, and both are poor in the middle if their degrees of freedom are few. So the proposal is a mixture of the
approximation with both, of one and of four degrees of freedom.

Its shares come from a pilot. Draws of the mixture with equal shares, which see tails where the approximation has no draws,
are weighed, and EM on the weighted points leads the shares to the mixture nearest to the target in Kullback–Leibler
divergence (Cappé, Douc, Guillin, Marin & Robert 2008), each at least 1/32. That mixture is taken where it is nearer to the
target than the approximation by more than three standard errors of the pilot. A second pilot has the independent t's along
the axes in which the target is heaviest, and its mixture is taken where it is nearer than the first. The same EM, on
particles in place of weighted points, fits the density of a bridge.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.importance.axes import heavy_axes
from ppl_backends.importance.proposals import IndependentT, StudentMixture, StudentT, gaussian_of
from ppl_backends.numerics.weights import normalised_weights
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["fit_shares", "is_nearer", "student_mixture", "with_tails"]

PILOT_POINTS = 4096
_DEGREES_OF_FREEDOM = (1.0, 4.0)
_GRAIN = 32  # shares are multiples of 1/32: a net of 2^m points then has exactly its share of them in every component
_EM_STEPS = 10
_CUT = 20  # the largest weights count as much as the twentieth: single ones do not decide
_LARGEST_TURNED = 50  # coordinates, above which no axes are looked for
_CLEARLY = 3.0  # standard errors
_LARGEST_GAIN = (
    5.0  # of log density at one point: far out a Gaussian is as good as zero, and its logarithm has no variance
)


def with_tails(target: BaseTarget, approximation: Any) -> StudentMixture | None:
    """Return the mixture of an approximation with Student t's that is nearest to the target, None where tails are not needed.

    Parameters
    ----------
    target : BaseTarget
    approximation : approximation

    References
    ----------
    Cappé, O., Douc, R., Guillin, A., Marin, J.-M. and Robert, C. P. (2008). Adaptive importance sampling in general mixture
    classes. *Statistics and Computing* 18, 447–459.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations import GaussianApproximation
    >>> from ppl_backends.targets import FunctionTarget
    >>> cauchy = FunctionTarget(1, lambda x: (-np.log1p(x[:, 0] ** 2), -2 * x / (1 + x**2)))
    >>> bool(with_tails(cauchy, GaussianApproximation([0.0], [[0.5]])).shares[-1] < 0.2)
    True
    """
    rng = np.random.default_rng(0)  # the same mixture in every call
    found, _, _ = _pilot(target, student_mixture(approximation), rng)
    if found is None or not (1 < found.dim <= _LARGEST_TURNED and target.has_gradient):
        return found
    axes = heavy_axes(target, gaussian_of(approximation), rng)
    turned, x, weights = _pilot(target, student_mixture(approximation, axes), rng)
    if turned is None or not is_nearer(turned.log_density(x), found.log_density(x), weights):
        return found
    return turned


def _pilot(
    target: BaseTarget, mixture: StudentMixture, rng: np.random.Generator
) -> tuple[StudentMixture | None, Array, Array]:
    """Weigh draws of a mixture and fit its shares to them: the mixture or None, the points and their weights."""
    x = mixture.sample(PILOT_POINTS, rng)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # points far out in the tails
        log_weights = target.log_density(x) - mixture.log_density(x)
    log_weights = np.where(np.isnan(log_weights), -np.inf, log_weights)
    if np.sum(log_weights > -np.inf) < _CUT:
        return None, x, np.zeros(len(x))
    weights, _ = normalised_weights(np.minimum(log_weights, np.sort(log_weights)[-_CUT]))
    return fit_shares(mixture, x, weights), x, weights


def student_mixture(approximation: Any, axes: Array | None = None) -> StudentMixture:
    """Return the approximation and the Student t's around it, in equal shares; the independent ones along ``axes``."""
    gaussian, students = gaussian_of(approximation), list[StudentT | IndependentT]()
    for df in _DEGREES_OF_FREEDOM:
        students.append(StudentT(gaussian, df))
        if gaussian.dim > 1:
            students.append(IndependentT(gaussian, df, axes))
    return StudentMixture(approximation, students, np.full(len(students) + 1, 1.0 / (len(students) + 1)))


def fit_shares(mixture: StudentMixture, x: Array, weights: Array) -> StudentMixture | None:
    """Fit the shares of a mixture to weighted points; None where the approximation alone is as near to them.

    Parameters
    ----------
    mixture : StudentMixture
    x : ndarray (n, dim)
    weights : ndarray (n,)
        Normalised.
    """
    used = weights > 0
    parts, weights, shares = mixture.component_log_densities(x[used]), weights[used], mixture.shares
    for _ in range(_EM_STEPS):
        joint = np.log(shares)[:, None] + parts
        shares = np.maximum(np.exp(joint - np.logaddexp.reduce(joint, axis=0)) @ weights, 1e-6)
    shares = _on_grid(shares)
    fitted = np.logaddexp.reduce(np.log(shares)[:, None] + parts, axis=0)
    if not is_nearer(fitted, parts[-1], weights):
        return None
    return StudentMixture(mixture.approximation, mixture.students, shares)


def is_nearer(log_density: Array, other: Array, weights: Array) -> bool:
    """Return whether one density is clearly nearer than another to weighted points at which both are known ``(n,)``."""
    gain = np.minimum(log_density - other, _LARGEST_GAIN)
    mean = float(weights @ gain)
    return mean > _CLEARLY * float(np.sqrt(weights**2 @ (gain - mean) ** 2))


def _on_grid(shares: Array) -> Array:
    """Round shares to multiples of 1/32, none to zero."""
    free = _GRAIN - len(shares)
    counts = free * shares / shares.sum()
    whole = np.floor(counts)
    whole[np.argsort(whole - counts)[: free - int(whole.sum())]] += 1
    return (1 + whole) / _GRAIN
