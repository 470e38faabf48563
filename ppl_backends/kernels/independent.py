"""The independence sampler: proposals that depend little, or not at all, on the current point.

They come from N(m, Σ) of the metric: y' = √(1−h²) y + h z in whitened coordinates y about m. At h = 1, the largest and
initial scale, they are independent of the current point, and one acceptance decorrelates. If too few are accepted, h
decreases, and the proposal is the autoregressive one that leaves N(m, Σ) invariant (Neal 1998), in the limit a random
walk. If the target has heavier tails than N(m, Σ), chains stay at points in the tails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ppl_backends.kernels.protocol import Density, Kernel, KernelInfo, KernelParameters, S, accept, column
from ppl_backends.numerics.population import Population
from ppl_backends.targets.protocol import Array


class Reference(Protocol):
    """A distribution used as proposal."""

    def sample(self, n: int, rng: np.random.Generator) -> Array: ...


@dataclass(frozen=True)
class Weighed(Population):
    """Points with the log density of the target, and of the proposal distribution."""

    log_density: Array
    log_reference: Array
    gradient: None = None


class Independent(Kernel):
    """The independence sampler.

    Parameters
    ----------
    reference : Reference, optional
        Replaces the metric's Gaussian as proposal. Populations then consist of :class:`Weighed` points.
    """

    name = "independent"
    largest_scale = 1.0

    def __init__(self, reference: Reference | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.reference = reference
        if reference is not None:
            self.stats = {"log_weight": float}

    def initial_scale(self, dim: int) -> float:
        return 1.0

    def step(
        self, rng: np.random.Generator, population: S, density: Density[S], parameters: KernelParameters
    ) -> tuple[S, KernelInfo]:
        if self.reference is not None:
            return self._from_reference(rng, population, density)
        metric, h = parameters.metric, np.minimum(column(parameters.scale), 1.0)
        y = metric.whiten(population.x)
        proposed = np.sqrt(1.0 - h**2) * y + h * self._normals(rng, y.shape)
        proposal = density(metric.place(proposed), rng)
        back = 0.5 * ((proposed**2).sum(axis=1) - (y**2).sum(axis=1))
        log_ratio = self.log_ratio(population, proposal) + back
        return accept(rng, population, proposal, log_ratio, ((proposed - y) ** 2).sum(axis=1))

    def statistics(self, before: Any, after: Any, parameters: Any, info: KernelInfo) -> Mapping[str, Any]:
        if self.reference is None:
            return super().statistics(before, after, parameters, info)
        return {"log_weight": before.log_density - before.log_reference + info.log_ratio}

    def _from_reference(self, rng: np.random.Generator, population: Any, density: Any) -> tuple[Any, KernelInfo]:
        """Propose draws of the reference."""
        assert self.reference is not None
        proposal = density(self.reference.sample(len(population.x), rng), rng)
        back = population.log_reference - proposal.log_reference
        jump = ((proposal.x - population.x) ** 2).sum(axis=1)
        return accept(rng, population, proposal, self.log_ratio(population, proposal) + back, jump)
