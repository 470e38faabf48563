r"""Tests of whether ranks are uniform: χ² over bins, and simultaneous bands of the empirical distribution function.

If n ranks are uniform on {0, …, L}, the number of ranks at or below z is binomial. A band of pointwise intervals of
one level has a smaller simultaneous level. Simulation finds the pointwise level that gives the simultaneous level
asked for (Säilynoja, Bürkner & Vehtari 2022, Algorithm 2).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.stats import binom, chi2

from ppl_backends.targets.protocol import Array

_SIMULATIONS = 2000
_FEWEST_IN_BIN, _MOST_BINS, _PLACES = 25, 20, 100


def chi_squared(ranks: Array, n_ranks: int) -> tuple[Array, Array]:
    """Return χ² statistics and p-values ``(k,)`` of ranks ``(n, k)`` in ``{0, ..., n_ranks − 1}``, in equal bins."""
    counts = histogram(ranks, n_ranks)
    expected = len(ranks) / counts.shape[1]
    statistic = ((counts - expected) ** 2).sum(axis=1) / expected
    return statistic, chi2.sf(statistic, counts.shape[1] - 1)


def histogram(ranks: Array, n_ranks: int) -> Array:
    """Return counts ``(k, bins)`` in bins with equal numbers of possible ranks and at least 25 expected counts."""
    most = max(2, min(_MOST_BINS, len(ranks) // _FEWEST_IN_BIN))
    bins = max([b for b in range(1, most + 1) if n_ranks % b == 0 and b > 1] or [n_ranks])
    place = ranks * bins // n_ranks
    return np.stack([np.bincount(column, minlength=bins) for column in place.T])


def places_of(n_ranks: int) -> Array:
    """Return at most 100 ranks at which distribution functions are evaluated."""
    return np.unique(np.linspace(1, n_ranks - 1, min(n_ranks - 1, _PLACES)).astype(int))


def empirical(ranks: Array, places: Array) -> Array:
    """Return the share of ranks ``(n, k)`` below each place ``(k, places)``."""
    return np.stack([np.searchsorted(np.sort(column), places, side="left") for column in ranks.T]) / len(ranks)


@lru_cache(maxsize=32)
def _least_tails(n: int, n_ranks: int) -> Array:
    """Return sorted smallest two-sided tail probabilities over all places, of simulated uniform ranks."""
    rng, places = np.random.default_rng(0), places_of(n_ranks)
    edges = np.concatenate([[0], places, [n_ranks]])
    counts = rng.multinomial(n, np.diff(edges) / n_ranks, size=_SIMULATIONS)[:, :-1]
    return np.sort(_tails(np.cumsum(counts, axis=1), n, places / n_ranks).min(axis=1))


def _tails(below: Array, n: int, probability: Array) -> Array:
    """Return two-sided tail probabilities of binomial counts."""
    return 2 * np.minimum(binom.cdf(below, n, probability), binom.sf(below - 1, n, probability))


def ecdf_p_values(ranks: Array, n_ranks: int) -> Array:
    """Return p-values ``(k,)`` of the largest deviation of the distribution function from a straight line.

    Simulations resolve no p-value below 1/2001. For a large deviation the sum of the tail probabilities of all places, which
    bounds the p-value, is smaller.
    """
    n, places = len(ranks), places_of(n_ranks)
    below = np.rint(empirical(ranks, places) * n)
    least = _tails(below, n, places / n_ranks).min(axis=1)
    simulated = (1 + np.searchsorted(_least_tails(n, n_ranks), least, side="right")) / (1 + _SIMULATIONS)
    return np.minimum(simulated, len(places) * least)


def simultaneous_band(n: int, n_ranks: int, probability: float) -> tuple[Array, Array]:
    """Return simultaneous bounds ``(places,)`` of the distribution function of uniform ranks."""
    tail = np.quantile(_least_tails(n, n_ranks), 1 - probability)
    share = places_of(n_ranks) / n_ranks
    return binom.ppf(tail / 2, n, share) / n, binom.isf(tail / 2, n, share) / n
