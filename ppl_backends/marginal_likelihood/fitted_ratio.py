r"""The share of a posterior that a density q fitted to other draws does not cover, before and after moves.

A draw enters the bridge by its term h = 1/(1 + r), with r = γ/(Zq). Where q is close to the posterior, h is a half for
every draw, and it does not matter how many draws are there. Where q is much lower, h is zero, and the draws alone say how
much mass there is. A sampler that rarely enters this part, or has long and rare visits, has too few draws there in most
runs, and the autocorrelation of the draws that it has does not show it. Moves that leave the posterior invariant carry
draws into it, and the log evidence changes by about as much as the share of draws there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.marginal_likelihood.bridging import variance_of_mean
from ppl_backends.marginal_likelihood.draws import Draws
from ppl_backends.targets.protocol import Array, Index

_COVERED = 2.0  # times the proposal, above which the density is not covered


class Change(NamedTuple):
    """A mean of paired changes with its standard error."""

    mean: float
    error: float

    @property
    def z(self) -> float:
        """Return the mean in standard errors; zero if nothing changes."""
        return self.mean / self.error if self.error > 0 else 0.0


class FittedRatio:
    """log γ − log q at draws, with q fitted to the other halves of the chains by ``fit``."""

    def __init__(self, draws: Draws, fit: Callable[[Array], Any]) -> None:
        self.draws, self._fit = draws, fit
        self._first = np.arange(draws.x.shape[1]) < draws.x.shape[1] // 2
        self._densities = [
            (half, fit(draws.x[:, ~half].reshape(-1, draws.x.shape[2]))) for half in (self._first, ~self._first)
        ]

    def at(self, points: Any, kept: slice) -> Array:
        """Return the ratio ``(chain, draw)`` at points with ``x`` and ``log_density``, which were the draws ``kept``."""
        shape = self.draws.log_density[:, kept].shape
        x, ratio = points.x.reshape(*shape, -1), points.log_density.reshape(shape).copy()
        for half, q in self._densities:
            own = half[kept]
            ratio[:, own] -= q.log_density(x[:, own].reshape(-1, x.shape[2])).reshape(shape[0], -1)
        return ratio

    @cached_property
    def _at_draws(self) -> Array:
        return self.at(self.draws, slice(None))

    def uncovered(self, rng: np.random.Generator) -> float:
        """Return the share of the posterior above twice q, at the draws, less that of a density that is fitted as q is.

        Draws of q in place of the draws give the second, which is due to the error of a fit in many coordinates.
        """
        with np.errstate(all="ignore"):  # draws of a density with heavy tails
            _, q = self._densities[0]
            x = q.sample(self.draws.n, rng)
            again = FittedRatio(self.draws.at(x, q.log_density(x), slice(None)), self._fit)
        return max(0.0, self._share - again._share)

    @property
    def _share(self) -> float:
        return float(np.nanmean(_above(self._at_draws - self._log_z)))

    @property
    def _log_z(self) -> float:
        return float(np.nanmedian(self._at_draws))

    def change(self, before: Array, after: Array, kept: slice) -> Change:
        """Return by how much the uncovered share grows from ratios before moves to those after them."""
        old, new = (_above(ratio - self._log_z) for ratio in (before, after))
        return mean_change(new - old, self.draws.ancestor_of(kept))


def _above(apart: Array) -> Array:
    """Return the share of a density that is above twice another, from the logs of their ratio."""
    return np.maximum(0.0, -np.expm1(np.log(_COVERED) - np.maximum(apart, 0.0)))


def mean_change(change: Array, ancestor: Index | None) -> Change:
    """Return the mean of changes ``(chain, draw)``, with an error that includes autocorrelation and the chains' spread."""
    mean = change.mean(axis=1)
    variance = variance_of_mean(change - mean[:, None], ancestor).mean() / len(mean)
    if len(mean) > 1:
        variance = max(variance, mean.var(ddof=1) / len(mean))
    return Change(float(mean.mean()), float(variance**0.5))
