"""Random-walk and independent proposals alternately, for targets without gradients.

Independent proposals decorrelate at once if the target is close to the Gaussian fitted to it, but points in its tails
do not move. A random walk moves these, but is slow elsewhere. Both are Metropolis steps with separate scales.
:class:`~ppl_backends.kernels.tuning.CycleTuning` stores the scales and the shares of the two.
"""

from __future__ import annotations

import numpy as np

from ppl_backends.kernels.independent import Independent
from ppl_backends.kernels.protocol import Density, Kernel, KernelInfo, KernelParameters, S
from ppl_backends.kernels.random_walk import RandomWalk


class Cycle(Kernel):
    """Alternate a random walk and independent proposals; the parameters, or else a random choice, select the next."""

    name = "mixed"
    parts: tuple[Kernel, ...] = (RandomWalk(), Independent())

    def initial_scale(self, dim: int) -> float:
        return self.parts[0].initial_scale(dim)

    def step(
        self, rng: np.random.Generator, population: S, density: Density[S], parameters: KernelParameters
    ) -> tuple[S, KernelInfo]:
        """Make one proposal for every point, all of the same kind."""
        part = int(rng.integers(len(self.parts))) if parameters.part is None else parameters.part
        return self.parts[part].step(rng, population, density, parameters)
