r"""The communication barrier, and the temperatures that it asks for.

Let r(β, β′) be the average rejection rate of swaps between β and β′. The local barrier λ(β) is its derivative, and
Λ(β) = ∫₀^β λ the cumulative one; r(β, β′) ≈ Λ(β′) − Λ(β) (Syed, Bouchard-Côté, Deligiannidis & Doucet 2022, section 4).
Sums of estimated rejection rates estimate Λ at the temperatures, and a monotone interpolation elsewhere (Algorithm 2).
Λ = Λ(1) is the global barrier, the number of swaps that are rejected on the way from the reference to the target. With
temperatures at equal steps of Λ all rejection rates are equal, which makes round trips most frequent (Algorithm 3). Their
number of a chain is τ = 1 / (2 + 2 Σ rᵢ/(1 − rᵢ)) a scan, at most 1 / (2 + 2Λ). About 2Λ intervals, with rates near one
half, do most for the work that they cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator

from ppl_backends.targets.protocol import Array

FEWEST, MOST = 4, 256  # intervals
_SMALLEST_RATE = 1e-4  # of an interval, so that the barrier increases strictly


@dataclass(frozen=True)
class Barrier:
    """The cumulative communication barrier, from rejection rates ``(levels − 1,)`` between ``betas`` ``(levels,)``.

    It is interpolated in log(β + β₁), in which the first temperatures of a wide prior are evenly spread.
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
        """Return τ, round trips of a chain in a scan."""
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
        """Return the number of intervals that the barrier asks for, about 2Λ; rates near one say only that it is larger."""
        return int(np.clip(np.ceil(2.0 * self.total), FEWEST, MOST))


def _spread(betas: Array) -> Array:
    """Return temperatures that increase strictly, where rounding made some equal."""
    return np.concatenate([[0.0], np.geomspace(max(betas[1], 1e-12), 1.0, len(betas) - 1)])


def first_betas(smallest: float, intervals: int) -> Array:
    """Return temperatures to begin with: 0, and a geometric sequence from ``smallest`` to 1."""
    return np.concatenate([[0.0], np.geomspace(min(smallest, 0.5), 1.0, intervals)])
