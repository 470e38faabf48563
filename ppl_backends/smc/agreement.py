"""Whether the chains' draws agree on where the posterior is, as far as the errors that each chain reports explain.

The standard error of a chain's mean comes from its lineages, which are independent. Means of normal scores of the pooled
ranks are compared, since tails of any weight leave these a variance, and means of their squares, as R̂ compares ranks and
folded ranks (Vehtari et al. 2021). Cochran's Q adds up squared distances from the common mean in standard errors.

Vehtari, A., Gelman, A., Simpson, D., Carpenter, B. and Bürkner, P.-C. (2021). Rank-normalization, folding, and localization.
*Bayesian Analysis* 16(2), 667–718.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import chi2

from ppl_backends.smc.evidence import sums_by_lineage
from ppl_backends.targets.protocol import Array, Index

__all__ = ["Apart", "chains_apart"]

_LEVEL = 1e-4  # of the test over all coordinates
_LARGE = 0.3  # standard deviations of the draws, below which a disagreement does not matter


class Apart(NamedTuple):
    """A coordinate in which a chain is elsewhere than all: by how many standard deviations of the draws, and errors."""

    coordinate: int
    distance: float
    errors: float


def chains_apart(x: Sequence[Array], lineages: Sequence[Index]) -> Apart | None:
    """Return the coordinate in which chains disagree most, if they disagree by more than their errors explain.

    Parameters
    ----------
    x : sequence of ndarray (n, dim)
        Draws of every chain.
    lineages : sequence of ndarray (n,)
        The initial particle that each draw descends from.
    """
    chains, (n, dim) = len(x), x[0].shape
    if chains < 2:
        return None
    pooled = np.concatenate(x)
    scores = ndtri((np.argsort(np.argsort(pooled, axis=0), axis=0) + 0.5) / len(pooled))
    columns = np.hstack([scores, (scores**2 - 1) / np.sqrt(2)]).reshape(chains, n, 2 * dim)
    mean = columns.mean(axis=1)
    variance = np.stack([_variance_of_mean(*pair) for pair in zip(columns - mean[:, None], lineages, strict=True)])
    away = mean - (mean / variance).sum(axis=0) / (1 / variance).sum(axis=0)
    significant = chi2.sf((away**2 / variance).sum(axis=0), chains - 1) * 2 * dim < _LEVEL
    distance = np.where(significant, np.abs(away), 0.0)
    chain, column = np.unravel_index(np.argmax(distance), distance.shape)
    if distance[chain, column] <= _LARGE:
        return None
    errors = float(distance[chain, column] / np.sqrt(variance[chain, column]))
    return Apart(int(column) % dim, float(distance[chain, column]), errors)


def _variance_of_mean(centred: Array, lineage: Index) -> Array:
    """Variance ``(k,)`` of the mean of columns ``(n, k)``, whose lineages are independent; no less than of n draws."""
    n = len(centred)
    return np.maximum((sums_by_lineage(centred, lineage) ** 2).sum(axis=0), (centred**2).sum(axis=0)) / n**2 + 1e-12
