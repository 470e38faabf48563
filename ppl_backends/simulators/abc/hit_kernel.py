r"""The r-hit kernel: data sets are simulated at both points until enough of them are near (Lee 2012).

At a proposal θ' data sets are simulated until the r-th is within ε, N' of them; at θ until the (r−1)-th, N of them.
The proposal is accepted with probability min{1, p(θ')N / (p(θ)(N' − 1))}. With b the probability of a hit, the
probability of the counts of a step times b(θ), over that of the reverse step, which has N + 1 and N' − 1 data sets,
times b(θ'), is (N' − 1)/N. So p(θ) b(θ) is invariant, for r ≥ 2. Both points are simulated anew, because a count kept
with its point would bias the chain.

A step is rejected if N' > K or N ≥ K. The reverse of such a step is rejected too, so the cap does not change the
invariant distribution. Neither does the early stop of simulations at θ' once rejection is certain, with the uniform
number of the step drawn first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.kernels.protocol import Kernel, KernelInfo, KernelParameters, column
from ppl_backends.simulators.abc.data_sets import DataSets
from ppl_backends.simulators.abc.tolerances import TolerancePath

__all__ = ["RHit"]


class RHit(Kernel):
    """A random walk that is accepted by comparing numbers of simulations; for particles of a path with the uniform kernel.

    Parameters
    ----------
    path : TolerancePath
        A path whose particles have r − 1 data sets.
    hits : int
        r, at least 2.
    cap : int
        K, largest number of data sets at a point.
    """

    name = "r-hit"

    def __init__(self, path: TolerancePath, hits: int, cap: int) -> None:
        super().__init__()
        self.path, self.hits, self.cap = path, hits, cap

    def initial_scale(self, dim: int) -> float:
        """Return 2.38 / √dim."""
        return float(2.38 / np.sqrt(dim))

    def step(
        self, rng: np.random.Generator, population: Any, density: Any, parameters: KernelParameters
    ) -> tuple[Any, KernelInfo]:
        """Make one proposal for every point; the hits of the current point are drawn again."""
        n, cap, until = len(population.x), self.cap, self.path.source.until
        epsilon = population.stage.epsilon
        jump = column(parameters.scale) * rng.standard_normal(population.x.shape)
        proposal = self.path.without_data(population.x + parameters.metric.colour(jump), population)
        change = np.fmax(proposal.log_base - population.log_base, -np.inf)
        log_u = np.log(rng.random(n))
        count, near = until(population.x, self.hits - 1, epsilon, np.full(n, cap - 1), rng)
        known = count < cap

        # Accepted if log u < change + log N − log(N' − 1), so N' is below 1 + N exp(change − log u).
        with np.errstate(over="ignore"):
            most = np.where(known, 1.0 + count * np.exp(change - log_u), 0.0)
        limits = np.where(change > -np.inf, np.minimum(np.ceil(most), cap), 0).astype(np.intp)
        proposed, nearer = until(proposal.x, self.hits, epsilon, limits, rng)
        reached = known & (proposed <= limits)
        log_ratio = np.where(reached, change + np.log(count) - np.log(np.maximum(proposed - 1.0, 0.5)), -np.inf)
        accepted = reached & (log_u < log_ratio)

        current = population.where(known, population.with_data(near))
        fewer = DataSets(nearer.distances[:, 1:], None if nearer.summaries is None else nearer.summaries[:, 1:], None)
        moved = current.where(accepted, proposal.with_data(fewer))
        evaluations = (np.minimum(count, cap - 1) + np.minimum(proposed, limits)).astype(np.float64)
        info = KernelInfo(accepted.astype(np.float64), accepted, (jump**2).sum(axis=1), evaluations, log_ratio)
        return moved, info
