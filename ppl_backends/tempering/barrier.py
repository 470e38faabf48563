r"""The communication barrier, and temperatures spaced by it.

Let r(β, β′) be the average rejection rate of swaps between β and β′. The local barrier λ(β) is its derivative, and
Λ(β) = ∫₀^β λ is the cumulative barrier; r(β, β′) ≈ Λ(β′) − Λ(β) (Syed, Bouchard-Côté, Deligiannidis & Doucet 2022,
section 4). Sums of estimated rejection rates estimate Λ at the temperatures; a monotone interpolation gives Λ between
them (Algorithm 2). Λ = Λ(1) is the global barrier: the number of rejected swaps on the way from the reference to the
target. Temperatures at equal steps of Λ give equal rejection rates, which maximise the rate of round trips (Algorithm
3). A chain makes τ = 1 / (2 + 2 Σ rᵢ/(1 − rᵢ)) round trips per scan, at most 1 / (2 + 2Λ). About 2Λ intervals, with
rejection rates near one half, give the most round trips per unit of work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator

from ppl_backends.targets.protocol import Array

FEWEST, MOST = 4, 256  # bounds of the number of intervals
_SMALLEST_RATE = 1e-4  # smallest rejection rate of an interval, so that the barrier increases strictly


@dataclass(frozen=True)
class Barrier:
    """The cumulative communication barrier, from rejection rates ``(levels − 1,)`` between ``betas`` ``(levels,)``.

    It is interpolated in log(β + β₁), because the first temperatures of a wide prior are evenly spaced in it.
    """

    betas: Array
    rejection: Array

    @property
    def cumulative(self) -> Array:
        """Return Λ(βᵢ) ``(levels,)`` (Algorithm 2)."""
        return np.concatenate([[0.0], np.cumsum(np.maximum(self.rejection, _SMALLEST_RATE))])

    @property
    def total(self) -> float:
        """Return Λ."""
        return float(self.rejection.sum())

    @property
    def round_trip_rate(self) -> float:
        """Return τ, the number of round trips of a chain per scan."""
        odds = self.rejection / np.maximum(1.0 - self.rejection, 1e-12)
        return float(1.0 / (2.0 + 2.0 * odds.sum()))

    @property
    def local(self) -> Array:
        """Return λ at the temperatures ``(levels,)``."""
        return np.asarray(self._interpolant.derivative()(self._place(self.betas)) / (self.betas + self.betas[1]))

    @property
    def _interpolant(self) -> PchipInterpolator:
        return PchipInterpolator(self._place(self.betas), self.cumulative)

    def _place(self, beta: Array) -> Array:
        place: Array = np.log(beta + self.betas[1])
        return place

    def equalised(self, intervals: int) -> Array:
        """Return temperatures ``(intervals + 1,)`` at equal steps of Λ (Algorithm 3)."""
        grid = np.linspace(self._place(self.betas[:1])[0], self._place(self.betas[-1:])[0], 50 * len(self.betas))
        grid = np.union1d(grid, self._place(self.betas))
        height = self._interpolant(grid)
        found = np.interp(np.linspace(0.0, height[-1], intervals + 1)[1:-1], height, grid)
        inner = np.exp(found) - self.betas[1]
        betas = np.concatenate([[0.0], inner, [1.0]])
        return betas if (np.diff(betas) > 0).all() else _spread(betas)

    def wanted_intervals(self) -> int:
        """Return the number of intervals, about 2Λ; if rates are near one, the right number may be larger."""
        return int(np.clip(np.ceil(2.0 * self.total), FEWEST, MOST))


def _spread(betas: Array) -> Array:
    """Return strictly increasing temperatures; separate those that rounding made equal."""
    return np.concatenate([[0.0], np.geomspace(max(betas[1], 1e-12), 1.0, len(betas) - 1)])


def first_betas(smallest: float, intervals: int) -> Array:
    """Return initial temperatures: 0, and a geometric sequence from ``smallest`` to 1."""
    betas = np.concatenate([[0.0], np.geomspace(min(smallest, 0.5), 1.0, intervals)])
    betas[-1] = 1.0  # also of a single interval
    return betas
