"""Errors of EP's moments from weighted points, with the error of each estimate.

Expansions in pairs of sites miss what many sites do together: a loss of pairs does not change along the length of θ, so
that hundreds of sites with jumps depend on one direction, each of them slightly. Points weighted by posterior over
proposal have no such limit as long as the weights are even. Some of the points are wider than EP's Gaussian, because
weights of points of a Gaussian that is too narrow have a long tail. Some are stretched along the direction in which a
correction given one quantity changes most, where a mode may be that no other points reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from ppl_backends.approximations.noise import standardised_noise
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.numerics.weights import (
    FEWEST_INDEPENDENT,
    LARGEST_PARETO_K,
    effective_sample_size,
    normalised_weights,
    pareto_k,
)
from ppl_backends.targets.protocol import Array

PILOT, POINTS, MORE = 256, 4096, 32_768
MOST_OF_MASS = 0.9  # of a mixture, in parts whose weights are reliable or even
MOST_VALUES = 2**24  # of sites at points
WIDER, STRETCHED = 1.4, 4.0  # scales of a share of the points in all directions, and of another along one of them
SETTLED = 0.05  # error of a moment in the pilot run, with its noise, below which no more points are needed
ERRORS = 2.0  # standard errors
LARGE, CLEAR = 0.1, 0.15  # relative error of a standard deviation that is one for sure; that no error may reach
LEAST_EFFICIENCY = 0.2  # of weights that are even


class WeightedMoments(NamedTuple):
    """Posterior against Gaussian along some directions: means in its deviations, ratios of deviations, standard errors.

    ``log_shift`` is that of the log evidence. ``effective`` is the number of independent draws that the points are worth.
    Weights that are ``reliable`` but not ``even`` may miss a mode without a trace in the standard errors.
    """

    shift: Array
    ratio: Array
    shift_se: Array
    ratio_se: Array
    log_shift: float
    effective: float
    reliable: bool
    even: bool

    @property
    def least(self) -> Array:
        """Return the smallest error of each standard deviation within the noise."""
        return np.maximum(np.abs(self.ratio - 1) - ERRORS * self.ratio_se, 0.0)

    @property
    def most(self) -> float:
        """Return the largest error of a mean or standard deviation within the noise."""
        sd = np.abs(self.ratio - 1) + ERRORS * self.ratio_se
        return float(max(sd.max(), (np.abs(self.shift) + ERRORS * self.shift_se).max()))


def weighted_moments(
    q: Any, log_density: Callable[[Array], Array], directions: Array, n_values: int, along: Array | None = None
) -> WeightedMoments:
    """Return moments along ``directions`` ``(m, d)``, of unit length in coordinates in which q is standard normal.

    ``along`` is a unit vector in the same coordinates: the direction in which some points are stretched. The points are
    the same in every call. There are more of them if a few leave it open whether an error is large, as far as the density's
    ``n_values`` at each of them allow it.
    """
    rng = np.random.default_rng(0)
    found = _moments(q, log_density, directions, standardised_noise(PILOT, q.dim, rng), [])
    if found.most < SETTLED or found.effective * POINTS < FEWEST_INDEPENDENT * PILOT:
        return found
    shapes = [(np.zeros(q.dim), WIDER), *([] if along is None else [(along, STRETCHED)])]
    for points in (POINTS, MORE):
        if points > POINTS and points * max(n_values, len(directions)) > MOST_VALUES:
            break
        found = _moments(q, log_density, directions, rng.standard_normal((points, q.dim)), shapes)
        if not found.even or found.most < CLEAR or found.least.max() > LARGE:
            break
    return found


def _moments(
    q: Any, log_density: Callable[[Array], Array], directions: Array, z: Array, shapes: Sequence[tuple[Array, float]]
) -> WeightedMoments:
    """Return moments from standard normal points ``z``, of which shares have other ``shapes``.

    A shape is a unit vector and the scale along it, or zeros and the scale in all directions.
    """
    z = z.copy()
    for part, (unit, scale) in zip(np.array_split(np.arange(len(z)), len(shapes) + 1)[1:], shapes, strict=False):
        z[part] *= 1.0 if unit.any() else scale
        z[part] += (scale - 1) * np.outer(z[part] @ unit, unit)
    square = (z**2).sum(axis=1)
    parts = [-0.5 * square]
    for unit, scale in shapes:
        stretched, n = ((z @ unit) ** 2, 1) if unit.any() else (square, q.dim)
        parts.append(-0.5 * (square - (1 - 1 / scale**2) * stretched) - n * np.log(scale))
    log_q = logsumexp(parts, axis=0) - np.log(len(parts)) - 0.5 * q.dim * LOG_2PI - np.log(np.diag(q.cholesky)).sum()
    with np.errstate(all="ignore"):
        log_weights = log_density(q.mean + z @ q.cholesky.T) - log_q
    log_weights = np.where(np.isfinite(log_weights), log_weights, -np.inf)
    effective = effective_sample_size(log_weights)
    m = len(directions)
    if not effective:
        nothing = np.zeros(m)  # finite, so that a mixture gives this part no weight
        return WeightedMoments(nothing, nothing, nothing, nothing, -np.inf, 0.0, False, False)
    weights, log_mean = normalised_weights(log_weights)
    along = z @ directions.T
    mean = weights @ along
    apart = (along - mean) ** 2
    variance = weights @ apart
    square_weights = weights**2
    reliable = effective >= FEWEST_INDEPENDENT and pareto_k(log_weights) <= LARGEST_PARETO_K
    return WeightedMoments(
        mean,
        np.sqrt(variance),
        np.sqrt(square_weights @ apart),
        np.sqrt(square_weights @ (apart - variance) ** 2 / variance) / 2,
        log_mean - q.log_evidence,
        effective,
        bool(reliable),
        bool(reliable and effective >= LEAST_EFFICIENCY * len(z)),
    )


def mixed_moments(parts: Sequence[WeightedMoments], weights: Array, means: Array, sds: Array) -> WeightedMoments:
    """Return the moments of a mixture of Gaussians with ``weights`` ``(k,)``, ``means`` and ``sds`` ``(k, d)``.

    The evidences of the parts change their weights.
    """
    log_new = np.log(weights) + [part.log_shift for part in parts]
    new, log_mean = normalised_weights(log_new)
    old_mean, old_sd = _mixture(weights, means, sds)
    mean, sd = _mixture(new, means + sds * [part.shift for part in parts], sds * [part.ratio for part in parts])
    within = new @ (sds * [part.ratio for part in parts]) / sd
    return WeightedMoments(
        (mean - old_mean) / old_sd,
        sd / old_sd,
        new @ (sds * [part.shift_se for part in parts]) / old_sd,
        within * (new @ np.array([part.ratio_se for part in parts])),
        log_mean + np.log(len(parts)),
        float(new @ [part.effective for part in parts]),
        bool(new @ [part.reliable for part in parts] > MOST_OF_MASS),
        bool(new @ [part.even for part in parts] > MOST_OF_MASS),
    )


def _mixture(weights: Array, means: Array, sds: Array) -> tuple[Array, Array]:
    mean = weights @ means
    return mean, np.sqrt(weights @ (sds**2 + (means - mean) ** 2))
