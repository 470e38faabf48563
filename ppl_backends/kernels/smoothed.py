r"""Independent proposals from the particles of the other half, smoothed.

A population of particles contains more information about its target than a centre and a covariance: two modes, a
curved ridge, one long tail. Proposals come from a mixture of Student t around the particles of the half that does not
contain the particle,

    q(x) = Σ_j w_j t₅(x; m + a (x_j − m), h² Σ),  a = √(1 − h²),

whose centres are shrunk towards the mean so that the mixture has the covariance of the particles for any bandwidth
(West 1993). The bandwidth is Silverman's, for the number of distinct particles and their dimension: if they are too
few to estimate a shape, the mixture is nearly one Student t.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from ppl_backends.kernels.cycle import Cycle
from ppl_backends.kernels.metric import SplitMetric
from ppl_backends.kernels.protocol import Density, Kernel, KernelInfo, KernelParameters, S, accept
from ppl_backends.kernels.random_walk import RandomWalk
from ppl_backends.targets.protocol import Array

TAILS = 5.0  # degrees of freedom
_MOST = 1000  # centres


@dataclass(frozen=True)
class Mixture:
    """Student t with scale ``h`` around ``centres`` ``(m, dim)``, with ``weights`` ``(m,)``, in whitened coordinates."""

    centres: Array
    weights: Array
    h: float

    @classmethod
    def around(cls, y: Array) -> Mixture:
        """Return the mixture around points ``(n, dim)``, which may include copies."""
        y = y[:: -(-len(y) // _MOST)]
        points, counts = np.unique(y, axis=0, return_counts=True)
        weights, dim = counts / len(y), y.shape[1]
        size = 1.0 / (weights**2).sum()
        h = min(1.0, float((4.0 / ((dim + 2) * size)) ** (1.0 / (dim + 4))))
        mean = weights @ points
        return cls(mean + np.sqrt(1.0 - h**2) * (points - mean), weights, h)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return independent draws ``(n, dim)``."""
        centres = self.centres[rng.choice(len(self.weights), size=n, p=self.weights)]
        z = rng.standard_normal(centres.shape) / np.sqrt(rng.chisquare(TAILS, n) / TAILS)[:, None]
        drawn: Array = centres + self.h * z
        return drawn

    def log_density(self, y: Array) -> Array:
        """Return the log density ``(n,)``, up to a constant."""
        c = self.centres
        square = np.maximum((y**2).sum(axis=1)[:, None] + (c**2).sum(axis=1) - 2.0 * y @ c.T, 0.0) / self.h**2
        kernels = -0.5 * (TAILS + y.shape[1]) * np.log1p(square / TAILS)
        found: Array = logsumexp(kernels, axis=1, b=self.weights)
        return found


class Smoothed(Kernel):
    """The independence sampler with proposals from the smoothed particles of the metric's halves."""

    name = "smoothed"
    largest_scale = 1.0

    def initial_scale(self, dim: int) -> float:
        """Return one: there is nothing to tune."""
        return 1.0

    def step(
        self, rng: np.random.Generator, population: S, density: Density[S], parameters: KernelParameters
    ) -> tuple[S, KernelInfo]:
        """Propose for every point once."""
        metric = parameters.metric
        assert isinstance(metric, SplitMetric)
        y = metric.whiten(population.x)
        proposed, back = np.empty_like(y), np.empty(len(y))
        for rows, points in metric.halves(len(y)):
            mixture = Mixture.around(points)
            proposed[rows] = mixture.sample(len(y[rows]), rng)
            back[rows] = mixture.log_density(y[rows]) - mixture.log_density(proposed[rows])
        proposal = density(metric.place(proposed), rng)
        log_ratio = self.log_ratio(population, proposal) + back
        return accept(rng, population, proposal, log_ratio, ((proposed - y) ** 2).sum(axis=1))


class SmoothedCycle(Cycle):
    """Alternate a random walk and proposals from smoothed particles."""

    name = "smoothed and random walk"
    parts = (RandomWalk(), Smoothed())
