"""Densities fitted to draws, for bridges and for importance sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.hierarchical import HierarchicalApproximation
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.errors import ModelError
from ppl_backends.importance.tails import fit_mixture, is_nearer, student_mixture
from ppl_backends.kernels.metric import metric_from_points
from ppl_backends.numerics.gaps import modes
from ppl_backends.numerics.gaussian import suffice_for_covariance
from ppl_backends.targets.protocol import Array


def fit_gaussian(x: Array) -> GaussianApproximation:
    """Return the Gaussian with the mean and covariance of points ``(n, dim)``; shrink the covariance if points are few."""
    if not suffice_for_covariance(*x.shape):
        metric = metric_from_points(x)
        return GaussianApproximation(metric.mean, cholesky=metric.factor, method="draws")
    return GaussianApproximation(x.mean(axis=0), np.atleast_2d(np.cov(x.T)), method="draws")


def fit_student(x: Array) -> Any:
    """Return a Gaussian mixed with Student t's of one and four degrees of freedom; without them if tails are light."""
    middle = metric_from_points(x)  # from quantiles, which exist for a Cauchy too
    gaussian = GaussianApproximation(middle.mean, cholesky=middle.factor, method="draws")
    return fit_mixture(student_mixture(gaussian), x, np.full(len(x), 1.0 / len(x))) or fit_gaussian(x)


def fit_modes(x: Array) -> Any:
    """Return a mixture with one Gaussian for each separated mode; a Gaussian if one has too few points for a covariance."""
    parts = _parts(x)
    if min(_n_distinct(part) for part in parts) <= x.shape[1]:
        return fit_gaussian(x)
    covs = [np.atleast_2d(np.cov(part.T)) for part in parts]
    return MixtureApproximation(
        [len(part) for part in parts], [part.mean(axis=0) for part in parts], covs, method="draws"
    )


FITS = {
    "gaussian": fit_gaussian,
    "student": fit_student,
    "mixture": fit_modes,
    "hierarchical": HierarchicalApproximation,
}
SYMMETRIC = ("gaussian", "student")
"""Densities that are symmetric about their mean, as Warp-III requires."""
WITH_TAILS = ("gaussian", "student", "mixture")
"""Densities to which importance sampling adds tails if they are needed."""


def fit_start(x: Array) -> Any:
    """Return the start of SMC and importance sampling: a Gaussian for each separated mode of the draws."""
    return fit_modes(x) if _has_modes(x) else fit_gaussian(x)


def choose_proposal(x: Array, name: str, allowed: Sequence[str]) -> str:
    """Return which of the ``allowed`` densities is fitted to draws ``(chain, draw, dim)``: the named or the best one.

    Draws in separated modes get a mixture, and draws too few for a covariance get a hierarchy. Otherwise each density
    is fitted to the first half of every chain and compared on the second half; it is chosen if it is clearly nearer
    than a Gaussian.
    """
    if name != "auto":
        if name not in allowed:
            raise ModelError(f"proposal={name!r}: this method takes {' or '.join(map(repr, allowed))}")
        return name
    dim, half = x.shape[2], x.shape[1] // 2
    if "hierarchical" in allowed and not suffice_for_covariance(x.size // dim // 2, dim):
        return "hierarchical"
    if "mixture" in allowed and _has_modes(x.reshape(-1, dim)):
        return "mixture"
    first, second = x[:, :half].reshape(-1, dim), x[:, half:].reshape(-1, dim)
    shares = np.full(len(second), 1.0 / len(second))
    found, height = "gaussian", fit_gaussian(first).log_density(second)
    for other in [other for other in ("student", "hierarchical") if other in allowed]:
        density = FITS[other](first).log_density(second)
        if is_nearer(density, height, shares):
            found, height = other, density
    return found


def _has_modes(x: Array) -> bool:
    """Return whether points are in several separated modes, with enough distinct points in each for a covariance."""
    parts = _parts(x)
    if len(parts) == 1:
        return False
    fewest = min(_n_distinct(part) for part in parts)
    return fewest > x.shape[1] and suffice_for_covariance(fewest // 2, x.shape[1])


def _parts(x: Array) -> list[Array]:
    """Return the points in each separated mode."""
    labels = modes(x)
    return [x[labels == label] for label in range(labels.max() + 1)]


def _n_distinct(part: Array) -> int:
    """Return the number of distinct points; 0 if a coordinate does not vary: rounded draws vary between "modes" alone."""
    return 0 if np.ptp(part, axis=0).min() == 0 else len(np.unique(part, axis=0))
