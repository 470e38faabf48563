"""Autocorrelation of particles with their positions before the moves.

It is measured within separated modes. No move of a local kernel crosses between them, and none needs to: a kernel that
mixes within each mode leaves the target invariant, the weights estimate the masses of the modes, as they estimate the
evidence, and the lineages give the error of these masses.
"""

from __future__ import annotations

import numpy as np

from ppl_backends.numerics.robust import median_and_width
from ppl_backends.smc.schedule import next_beta
from ppl_backends.targets.protocol import Array, Index

_ROUNDING = 1e-12  # relative


class WeightAutocorrelation:
    """Correlation of the incremental weights before and after the moves.

    The next step is computed from the particles before the moves; at β = 1, which has no next step, only log weights
    are compared.
    """

    def __init__(self, increment: Array, beta: float, labels: Index) -> None:
        self.noise = 2.0 / np.sqrt(len(increment))  # two standard errors of a correlation that is zero
        supported = increment[increment > -np.inf]  # the others are clipped to their lowest
        self.low, self.high = np.quantile(supported if len(supported) else np.zeros(1), [0.001, 0.999])
        self.step, self.labels = 0.0, labels
        if beta < 1.0:
            self.step = next_beta(increment, beta, 0.5) - beta
        self.before = self._functions(increment)

    def _functions(self, increment: Array) -> Array:
        """Return log weights and weights as columns, centred within modes and of length one."""
        log_weight = np.clip(increment, self.low, self.high)
        columns = np.stack([log_weight, np.exp(self.step * (log_weight - self.high))], axis=1)
        rounding = _ROUNDING * np.abs(columns).max(axis=0) * len(columns) ** 0.5  # of a constant likelihood
        columns = _centred(columns, self.labels)
        length = np.linalg.norm(columns, axis=0)
        return np.where(length > rounding, columns / np.maximum(length, 1e-300), 0.0)

    def left(self, increment: Array) -> float:
        """Return the larger of the two correlations with the increments before the moves."""
        return float((self.before * self._functions(increment)).sum(axis=0).max())


def correlation_left(before: Array, after: Array, labels: Index) -> Array:
    """Return the correlation over particles of z + z² before and after a move, per coordinate, with z robustly standardised.

    Particles are standardised, and correlations computed, within the modes given by ``labels`` ``(n,)``.
    """
    old, new = np.empty_like(before), np.empty_like(after)
    for label in range(labels.max() + 1):
        rows = labels == label
        centre, width = median_and_width(before[rows])
        width = np.where(width > 0, width, 1.0)
        for x, z in ((before, old), (after, new)):
            z[rows] = np.clip((x[rows] - centre) / width, -5.0, 5.0)
    old, new = _centred(old + old**2, labels), _centred(new + new**2, labels)
    norm = np.sqrt((old**2).sum(axis=0) * (new**2).sum(axis=0))
    return np.clip((old * new).sum(axis=0) / np.maximum(norm, 1e-300), 0.0, 1.0)


def _centred(columns: Array, labels: Index) -> Array:
    """Return columns minus their means within each mode."""
    if not labels.any():
        return columns - columns.mean(axis=0)
    counts = np.bincount(labels)
    means = np.stack([np.bincount(labels, column) / counts for column in columns.T], axis=1)
    centred: Array = columns - means[labels]
    return centred
