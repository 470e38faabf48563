"""Small steps on {0, 1}^m: switch one bit, or exchange an included with an excluded one; symmetric proposals."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ppl_backends.kernels.protocol import Density, Kernel, KernelInfo, S, accept


class AddDeleteSwap(Kernel):
    """Switch a bit drawn uniformly or, with equal probability, exchange two bits of which one is on."""

    name: ClassVar[str] = "add_delete_swap"

    def step(
        self, rng: np.random.Generator, population: S, density: Density[S], parameters: Any = None
    ) -> tuple[S, KernelInfo]:
        x: Any = population.x
        n, m = x.shape
        rows = np.arange(n)
        first, second = rng.integers(m, size=(2, n))
        swap = rng.random(n) < 0.5
        proposed = x.copy()
        proposed[rows, first] ^= True
        proposed[rows[swap], second[swap]] ^= True
        # Two equal bits, or the same bit twice, are no exchange: such a proposal is the current point.
        null = swap & (x[rows, first] == x[rows, second])
        proposed[null] = x[null]
        moves = np.flatnonzero(~null)
        candidate = density(proposed[moves], rng)
        there = population.take(moves)
        moved, info = accept(rng, there, candidate, self.log_ratio(there, candidate), np.where(swap[moves], 2.0, 1.0))
        full = [np.zeros(n, dtype=part.dtype) for part in info]
        for whole, part in zip(full, info, strict=True):
            whole[moves] = part
        return population.scatter(moves, moved), KernelInfo(*full)
