"""Regions that draws of a posterior hardly reach, found by heating: draws move under p(x)^β, with β from 1 down to 0.3.

A part of the posterior that is neither a mode nor around one, such as a bent tail of few per cent, has no place in a fit at
the modes, and climbs from it end at a mode that is known. Heated draws reach it, since a tail of a few per cent at β = 1 has
a large share at β = 0.3. A Gaussian is fitted to those outside of the ellipsoids of the draws, weighted by p^{1−β}. Its
weighted draws give another, and the draws of three, weighted together (Cornuet et al. 2012), measure the mass outside of the
ellipsoids. It is missed if it exceeds the mass that the draws have there by 1 % of the evidence and by three standard errors
of both. Only values are needed, no gradients.

References: J.-M. Cornuet, J.-M. Marin, A. Mira and C. P. Robert (2012), Adaptive multiple importance sampling,
Scandinavian Journal of Statistics 39, 798–812.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.special import logsumexp

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.modes import beyond
from ppl_backends.approximations.wide_modes import in_blocks, weighted_gaussian
from ppl_backends.numerics.gaps import modes
from ppl_backends.numerics.weights import effective_sample_size, normalised_weights
from ppl_backends.targets.protocol import Array

_POWERS = 0.3 ** (np.arange(1, 4) / 3.0)
_PARTICLES, _FEWEST_PARTICLES, _MOVES = 1024, 256, 8
_LENGTHS, _JITTER = (0.4, 0.8, 1.7), 0.01  # of steps along differences of particles, and of noise added to them
_LARGEST_DIM = 50  # above it few heated draws decide a Gaussian
_DRAWS, _ROUNDS = 2, 3  # of a Gaussian, times the particles, and such Gaussians
_EACH = len(_POWERS) * _MOVES + 1 + _DRAWS * _ROUNDS  # evaluations a particle
_WIDER = 2.0  # times the covariance of heated draws
_FEWEST = 20.0  # effective draws, below which a mass is not known

LogDensity = Callable[[Array], Array]


class Region(NamedTuple):
    """A region outside of draws: the log of its mass, with a relative ``error``, a Gaussian, and which points are there."""

    log_mass: float
    error: float
    gaussian: GaussianApproximation
    contains: Callable[[Array], NDArray[np.bool_]]


def region_when_heated(
    log_density: LogDensity, draws: Array, rows: int, rng: np.random.Generator, evaluations: float | None = None
) -> Region | None:
    """Return the region outside of equally weighted draws ``(n, dim)`` that heated draws find; None if it is not measured.

    ``log_density`` is called with ``rows`` points at once, for at most ``evaluations``; None for as many as take a second.
    """
    dim = draws.shape[1]
    if dim > _LARGEST_DIM or len(draws) < rows:
        return None
    most = _in_a_second(log_density, draws[:rows]) if evaluations is None else evaluations
    affordable = min(_PARTICLES, most / _EACH)
    if affordable < _FEWEST_PARTICLES:
        return None
    n = min(-(-int(affordable) // rows), len(draws) // rows) * rows
    labels = modes(draws)
    try:
        own = [_gaussian_of(draws[labels == k]) for k in range(labels.max() + 1)]
    except (LinAlgError, ValueError):
        return None

    def outside(points: Array) -> NDArray[np.bool_]:
        return np.asarray(np.all([beyond(points, gaussian) for gaussian in own], axis=0))

    seen, log_weights = _heated(log_density, draws[rng.permutation(len(draws))[:n]], rows, rng)
    log_weights = np.where(outside(seen), log_weights, -np.inf)
    if not effective_sample_size(log_weights) > dim + 1:
        return None
    rounds, x, value = list[GaussianApproximation](), np.empty((0, dim)), np.empty(0)
    try:
        around = weighted_gaussian(seen, normalised_weights(log_weights)[0], _WIDER)
        for _ in range(_ROUNDS):
            rounds.append(around)
            x = np.concatenate([x, around.sample(_DRAWS * n, rng)])
            value = np.concatenate([value, in_blocks(log_density, x[len(value) :], rows)])
            log_q = logsumexp([gaussian.log_density(x) for gaussian in rounds], axis=0) - np.log(len(rounds))
            log_weights = np.where(outside(x), value - log_q, -np.inf)
            weights, log_mass = normalised_weights(log_weights)
            around = weighted_gaussian(x, weights)
    except (LinAlgError, ValueError):
        return None
    effective = effective_sample_size(log_weights)
    return Region(log_mass, effective**-0.5, around, outside) if effective >= _FEWEST else None


def _in_a_second(log_density: LogDensity, x: Array) -> float:
    """Return how many points are evaluated in a second on the processor."""
    log_density(x)  # compiles
    clock = time.process_time()
    log_density(x)
    return len(x) / max(time.process_time() - clock, 1e-6)


def _gaussian_of(x: Array) -> GaussianApproximation:
    return weighted_gaussian(x, np.full(len(x), 1.0 / len(x)))


def _heated(log_density: LogDensity, x: Array, rows: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return states of particles ``(n, dim)`` under heated densities, and the logs of their weights p^{1−β}."""
    n, dim = x.shape
    value = in_blocks(log_density, x, rows)
    seen, weights = list[Array](), list[Array]()
    for power in _POWERS:
        for _ in range(_MOVES):
            apart = x[rng.permutation(n)] - x[rng.permutation(n)]
            length = rng.choice(_LENGTHS, n) / np.sqrt(dim)
            proposed = x + length[:, None] * apart + _JITTER * apart.std(axis=0) * rng.standard_normal((n, dim))
            at_proposed = in_blocks(log_density, proposed, rows)
            accepted = np.log(rng.random(n)) < power * (at_proposed - value)
            x, value = np.where(accepted[:, None], proposed, x), np.where(accepted, at_proposed, value)
        seen.append(x)
        weights.append((1.0 - power) * value)
    return np.concatenate(seen), np.concatenate(weights)
