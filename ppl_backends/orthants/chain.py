"""The particle filter for covariances of chains: autoregressions and rankings (Ridgway 2015, section 3.3).

In a chain the interval of a coordinate depends on earlier coordinates through one number, the state s_k = α_k s_{k−1}
+ β_k z_k: c_k = γ_k s_{k−1}. Autoregressions have the state x_k; covariances with two diagonals, as those of
differences of neighbours in a ranking, have the state z_k. Particles need no moves after resampling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ppl_backends.orthants.intervals import Array, quantile
from ppl_backends.orthants.ordering import Rectangle
from ppl_backends.orthants.path import CoordinatePath, PartlyDrawn
from ppl_backends.orthants.tilt import Tilt
from ppl_backends.smc.core import Start


@dataclass(frozen=True)
class Chain:
    """Recursion of a chain's state and its effect on the next interval: α, β and γ, each ``(dim,)``."""

    keep: Array
    gain: Array
    effect: Array


def find_chain(rectangle: Rectangle) -> Chain | None:
    """Return the chain of a rectangle whose variables are in their given order, or None if it is not a chain."""
    rows, rank = rectangle.rows, rectangle.rank
    if len(rows) > rank or rank < 3:
        return None
    scale = np.diag(rectangle.loadings)
    factor = rows * scale[:, None]
    size = np.abs(rows).max()
    below = np.diag(rows, -1)
    if np.abs(np.tril(rows, -2)).max() <= 1e-10 * size:
        return Chain(np.zeros(rank), np.ones(rank), np.concatenate([[0.0], below]))
    # x_k = φ_k x_{k−1} + scale_k z_k if every row is a multiple of the one above
    keep = np.concatenate([[0.0], np.diag(factor, -1) / scale[:-1]])
    expected = np.zeros_like(factor)
    expected[1:] = keep[1:, None] * factor[:-1]
    if np.abs(np.tril(factor - expected, -1)).max() <= 1e-10 * np.abs(factor).max():
        return Chain(keep, scale, keep / scale)
    return None


class ChainPath(CoordinatePath):
    """The coordinates of a chain; particles keep only the state: now, and at the end of the next stage."""

    def __init__(self, rectangle: Rectangle, chain: Chain, tilt: Tilt, uniforms: Array) -> None:
        super().__init__(rectangle, tilt, uniforms)
        self.chain = chain

    def start(self, n: int, rng: np.random.Generator) -> Start:
        """Return particles before the first coordinate."""
        return Start(PartlyDrawn(np.zeros((2, n)).T))

    def drawing(self, population: PartlyDrawn) -> Callable[[int], Array]:
        """Return the function that draws coordinate k, updates the state, and returns the logs of the weights."""
        states, chain, tilt, rectangle = population.x.T, self.chain, self.tilt, self.rectangle
        states[1] = states[0]

        def draw(k: int) -> Array:
            mean = tilt.mean[k]
            offset = chain.effect[k] * states[1]
            shift = offset + mean
            x, log_p = quantile(self.uniforms[k], rectangle.lower[k] - shift, rectangle.upper[k] - shift)
            states[1] = chain.keep[k] * states[1] + chain.gain[k] * (x + mean)
            return log_p + (0.5 * mean**2 - tilt.push[k] * offset)

        return draw

    def extend(self, population: PartlyDrawn, stage: int, rng: np.random.Generator) -> PartlyDrawn:
        """Return the particles at the new states."""
        states = population.x.T
        return PartlyDrawn(np.array([states[1], states[1]]).T, stage)
