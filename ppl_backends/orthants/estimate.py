"""Unbiased estimates of likelihoods that are products of rectangle probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.options import checked, integer
from ppl_backends.orthants.batch import log_rectangles
from ppl_backends.orthants.intervals import Array
from ppl_backends.orthants.problem import BOUNDS
from ppl_backends.orthants.solvers import scramble
from ppl_backends.random import SeedLike, spawn_generators

LARGEST = 2**22  # coordinates of points in one computation


@checked(lower=BOUNDS, upper=BOUNDS, n_points=integer(2))
def estimate_log_likelihood(
    mean: Any, cholesky: Any, lower: Any, upper: Any, random_seed: SeedLike = None, *, n_points: int = 64
) -> Array:
    """Return logs of unbiased estimates of Π_i P(lower_i ≤ X_i ≤ upper_i), X_i ~ N(mean_i, C C'), at several parameters.

    Each rectangle has its own random points, so that the product is unbiased, as
    :class:`ppl_backends.steps.PseudoMarginal` requires.

    Parameters
    ----------
    mean : array (m, n, dim)
        Means of ``n`` rectangles at ``m`` parameters.
    cholesky : array (m, dim, dim) or (m, n, dim, dim)
        Lower triangular.
    lower, upper : array (n, dim) or (m, n, dim)
    random_seed : int, sequence of int, SeedSequence, Generator or None
    n_points : int
        Points of each rectangle, rounded up to a power of two.

    Returns
    -------
    ndarray (m,)

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.orthants import estimate_log_likelihood
    >>> cholesky = np.linalg.cholesky([[[1.0, 0.5], [0.5, 1.0]]])
    >>> found = estimate_log_likelihood(np.zeros((1, 3, 2)), cholesky, np.zeros((3, 2)), np.inf, random_seed=1)
    >>> bool(abs(found[0] - 3 * np.log(1 / 3)) < 0.02)
    True
    """
    mean, cholesky = np.asarray(mean, dtype=float), np.asarray(cholesky, dtype=float)
    if mean.ndim != 3 or cholesky.ndim not in (3, 4) or len(cholesky) != len(mean):
        raise ModelError(
            f"mean has shape {mean.shape} and cholesky {cholesky.shape}: (m, n, dim) and (m, dim, dim) are expected"
        )
    m, n, dim = mean.shape
    factors = np.broadcast_to(cholesky if cholesky.ndim == 4 else cholesky[:, None], (m, n, dim, dim))
    low, high = (np.broadcast_to(bound, (m, n, dim)) for bound in (lower, upper))
    rng = spawn_generators(random_seed, 1)[0]
    n_points = 2 ** int(np.ceil(np.log2(n_points)))
    net = scramble(n_points, dim, np.random.SeedSequence(int(rng.integers(2**63))))
    found = np.full(m, -np.inf)
    usable = np.isfinite(mean).all(axis=(1, 2)) & (np.einsum("mnii->mni", factors) > 0).all(axis=(1, 2))
    at_once = max(1, LARGEST // (n * n_points * dim))
    for first in range(0, m, at_once):
        take = first + np.flatnonzero(usable[first : first + at_once])
        if take.size:
            rows = take.size * n
            # A net shifted at random, modulo one, for each rectangle: uniform points, independent between rectangles.
            points = np.clip((net + rng.random((rows, 1, dim))) % 1.0, 1e-16, 1 - 1e-16)
            a, b = (bound[take].reshape(rows, dim) for bound in (low, high))
            each = log_rectangles(mean[take].reshape(rows, dim), factors[take].reshape(rows, dim, dim), a, b, points)
            found[take] = each.log_p.reshape(-1, n).sum(axis=1)
    return found
