"""Kernels of approximate Bayesian computation: weights of simulated data sets by their distance d from the observed one.

Each has K(0) = 1, so that E[K] under the prior is an acceptance probability. Divided by the volume ∫ K(‖s‖) ds, it
estimates the density of the summaries at the observed ones, by which evidences of different tolerances can be
compared.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import gammaln

from ppl_backends.numerics.arrays import Array

__all__ = ["KERNELS", "log_kernel", "log_kernel_volume"]


KERNELS: dict[str, tuple[Callable[[Array], Array], Callable[[int], float]]] = {
    "uniform": (lambda r: np.where(r <= 1, 0.0, -np.inf), lambda k: 0.0),
    "gaussian": (lambda r: -0.5 * r**2, lambda k: 0.5 * k * np.log(2) + gammaln(0.5 * k + 1)),
    "laplace": (lambda r: -r, lambda k: gammaln(k + 1)),
    "epanechnikov": (lambda r: np.log(np.maximum(1 - r**2, 0.0)), lambda k: np.log(2 / (k + 2))),
}
"""Kernels by name: log K at a distance of r tolerances, and log ∫₀^∞ K(r) k r^{k−1} dr, the volume over a k-ball's."""


def log_kernel(name: str, distance: Array, epsilon: float) -> Array:
    """Return log K_ε at distances; ``-inf`` if a distance is NaN or infinite.

    Examples
    --------
    >>> log_kernel("gaussian", np.array([0.0, 2.0, np.nan]), 1.0)
    array([ -0.,  -2., -inf])
    """
    known = np.isfinite(distance)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if epsilon > 0:
            value = KERNELS[name][0](np.where(known, distance, np.inf) / epsilon)
        else:
            value = np.where(distance <= 0, 0.0, -np.inf)
    return np.where(known, value, -np.inf)


def log_kernel_volume(name: str, epsilon: float, n_summaries: int, norm: int) -> float:
    """Return log ∫ K_ε(‖s‖) ds over ``n_summaries`` dimensions.

    Parameters
    ----------
    norm : {1, 2}
        Whether the distance is the sum of absolute differences, or Euclidean.

    Examples
    --------
    >>> round(float(np.exp(log_kernel_volume("gaussian", 0.5, 2, 2))), 6) == round(2 * np.pi * 0.25, 6)
    True
    """
    k = n_summaries
    ball = k * np.log(2) - gammaln(k + 1) if norm == 1 else 0.5 * k * np.log(np.pi) - gammaln(0.5 * k + 1)
    return float(ball + KERNELS[name][1](k) + k * np.log(epsilon))
