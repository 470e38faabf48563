"""Random-walk Metropolis: x' = x + h L z, z ~ N(0, I).

Optimal scale 2.38/√d, acceptance 0.234 (Roberts, Gelman & Gilks 1997).
"""

from __future__ import annotations

import numpy as np

from ppl_backends.kernels.protocol import Density, Kernel, KernelInfo, KernelParameters, S, accept, column


class RandomWalk(Kernel):
    """Random-walk Metropolis."""

    name = "random_walk"

    def initial_scale(self, dim: int) -> float:
        return float(2.38 / np.sqrt(dim))

    def step(
        self, rng: np.random.Generator, population: S, density: Density[S], parameters: KernelParameters
    ) -> tuple[S, KernelInfo]:
        jump = column(parameters.scale) * rng.standard_normal(population.x.shape)
        proposal = density(population.x + parameters.metric.colour(jump), rng)
        return accept(rng, population, proposal, self.log_ratio(population, proposal), (jump**2).sum(axis=1))
