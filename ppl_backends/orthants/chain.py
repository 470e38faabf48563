"""The particle filter for covariances of chains: autoregressions and rankings (Ridgway 2015, section 3.3).

In a chain the interval of a coordinate depends on those before it through one number, the state s_k = α_k s_{k−1} + β_k z_k:
c_k = γ_k s_{k−1}. Autoregressions have the state x_k; covariances with two diagonals, as those of differences of
neighbours in a ranking, have z_k itself. Particles need no moves after resampling.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppl_backends.orthants.intervals import Array, quantile
from ppl_backends.orthants.ordering import Rectangle
from ppl_backends.orthants.tilt import Tilt

__all__ = ["Chain", "ChainPath", "find_chain"]


@dataclass(frozen=True)
class Chain:
    """How the state of a chain moves on and what it means for the next interval: α, β and γ, each ``(dim,)``."""

    keep: Array
    gain: Array
    effect: Array


def find_chain(rectangle: Rectangle) -> Chain | None:
    """Return the chain of a rectangle whose variables are in their given order, or None where it is none."""
    rows, rank = rectangle.rows, rectangle.rank
    if len(rows) > rank or rank < 3:
        return None
    scale = np.diag(rectangle.loadings)
    factor = rows * scale[:, None]
    size = np.abs(rows).max()
    below = np.diag(rows, -1)
    if np.abs(np.tril(rows, -2)).max() <= 1e-10 * size:
        return Chain(np.zeros(rank), np.ones(rank), np.concatenate([[0.0], below]))
    # x_k = φ_k x_{k−1} + scale_k z_k where every row is a multiple of the one above
    keep = np.concatenate([[0.0], np.diag(factor, -1) / scale[:-1]])
    expected = np.zeros_like(factor)
    expected[1:] = keep[1:, None] * factor[:-1]
    if np.abs(np.tril(factor - expected, -1)).max() <= 1e-10 * np.abs(factor).max():
        return Chain(keep, scale, keep / scale)
    return None


class ChainPath:
    """The coordinates of a chain as a path for :func:`ppl_backends.orthants.loop.smc`; it keeps the states alone."""

    def __init__(self, rectangle: Rectangle, chain: Chain, tilt: Tilt, n: int) -> None:
        self.rectangle, self.chain, self.tilt, self.n = rectangle, chain, tilt, n
        self.z = np.zeros((1, n))

    @property
    def length(self) -> int:
        """Number of stages."""
        return self.rectangle.rank

    def extend(self, k: int, u: Array) -> Array:
        """Draw coordinate k and return the log increments of the weights."""
        state, chain, mean = self.z[0], self.chain, self.tilt.mean[k]
        offset = chain.effect[k] * state
        shift = offset + mean
        x, log_p = quantile(u, self.rectangle.lower[k] - shift, self.rectangle.upper[k] - shift)
        self.z[0] = chain.keep[k] * state + chain.gain[k] * (x + mean)
        return log_p + (0.5 * mean**2 - self.tilt.push[k] * offset)

    def take(self, k: int, index: NDArray[np.intp]) -> None:
        """Keep the particles of an index."""
        self.z = self.z[:, index]

    def move(self, k: int, rng: np.random.Generator) -> None:
        """Leave the particles: only their states matter from here on."""
