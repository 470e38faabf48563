"""Checks of factors on numbers: every function here returns an error in units of the tolerance.

Sites are evaluated at scalars that belong to different points at once. If a site depended on another, its value would
differ from that at its own point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ppl_backends.numerics.arrays import Array
from ppl_backends.targets.factors.recognise import rounding

TOLERANCE, AFFINE_TOLERANCE = 1e-10, 1e-8
SHUFFLES = 4


def sites_error(
    log_site: Callable[[Array], Array], s: Array, truth: Array, rng: np.random.Generator, shuffles: int = SHUFFLES
) -> float:
    """Return the largest error of sites at ``s`` ``(k, n)``, each at any of its scalars, against ``truth``."""
    worst = 0.0
    for _ in range(shuffles):
        choice = rng.integers(len(s), size=s.shape)
        found = log_site(np.take_along_axis(s, choice, axis=0))
        worst = max(worst, values_error(found, np.take_along_axis(truth, choice, axis=0)))
    return worst


def values_error(found: Array, truth: Array, tolerance: float = TOLERANCE) -> float:
    """Return the largest error of log densities; both must be finite, except if they underflow."""
    one, other = np.isfinite(found), np.isfinite(truth)
    if np.any((one & ~other & (found > -600)) | (other & ~one & (truth > -600))):  # below that, underflow
        return np.inf
    both = one & other
    found, truth = found[both], truth[both]
    allowed = tolerance * (1 + np.abs(truth)) + rounding(truth)
    return float(np.max(np.abs(found - truth) / allowed, initial=0.0))


def affine_error(design: Any, offset: Array, theta: Array, written: Array) -> float:
    """Return the largest error of ``design`` θ + ``offset`` at points ``(k, d)`` against ``written`` ``(k, m)``."""
    error = np.abs(np.asarray(design @ theta.T).T + offset - written)
    allowed = AFFINE_TOLERANCE * (1 + np.abs(written) + np.abs(theta).sum(axis=1, keepdims=True))
    return float(np.max(np.where(np.isnan(error), np.inf, error / allowed)))


def gaussian_error(quadratic: Array, written: Array, scale: Array) -> float:
    """Return the largest error of a Gaussian part ``(k,)`` against the terms as written."""
    finite = np.isfinite(written)
    return float(np.max(np.abs(quadratic - written)[finite] / (TOLERANCE * (1 + scale[finite])), initial=0.0))


def constant_and_error(factors: Any, theta: Array, truth: Array, tolerance: float) -> tuple[float, float, float]:
    """Return log ``truth`` ``(k,)`` minus the factors' log density, and its variation, absolute and in tolerances."""
    found, usable = factors.log_density(theta), np.isfinite(truth)
    gap = (truth - found)[usable]
    if not usable.any() or not np.isfinite(gap).all():
        return np.nan, np.inf, np.inf
    constant = float(np.median(gap))
    spread = np.abs(gap - constant)
    size = 1 + np.abs(truth[usable]) + np.abs(found[usable])
    return constant, float(spread.max()), float((spread / (tolerance * size)).max())
