"""The Barker proposal (Livingstone & Zanella 2022, Algorithm 1): a random walk with signs biased towards the gradient.

In whitened coordinates, with g = Lᵀ∇log π(x), every coordinate of the noise hz, z ~ N(0, I), keeps its sign with
probability p(zⱼ) = 1 / (1 + exp(−hzⱼgⱼ)) and is flipped otherwise, which gives b; x' = x + L b. The density of a jump
bⱼ is 2 N(bⱼ; 0, h²) / (1 + exp(−bⱼgⱼ)), so that the proposal densities enter the ratio as Πⱼ (1 + exp(−bⱼgⱼ)) / (1 +
exp(bⱼg'ⱼ)). The gradient affects only directions: even if it is far too large, a jump is no longer than that of a
random walk. Optimal acceptance 0.40 at h ∝ d^(−1/6) (Vogrinc, Livingstone & Zanella 2023).
"""

from __future__ import annotations

import numpy as np

from ppl_backends.kernels.protocol import Density, Kernel, KernelInfo, KernelParameters, S, accept, column


class Barker(Kernel):
    """The Barker proposal of Livingstone & Zanella (2022), preconditioned by a covariance."""

    name, step_name = "barker", "Barker"
    uses_gradient = True
    target_acceptance = 0.4

    def initial_scale(self, dim: int) -> float:
        return float(2.4 / dim ** (1.0 / 6.0))

    def step(
        self, rng: np.random.Generator, population: S, density: Density[S], parameters: KernelParameters
    ) -> tuple[S, KernelInfo]:
        metric = parameters.metric
        z = column(parameters.scale) * rng.standard_normal(population.x.shape)
        slope = metric.whiten_gradient(population.gradient)
        kept = np.log(rng.random(z.shape)) < -np.logaddexp(0.0, -z * slope)
        jump = np.where(kept, z, -z)
        proposal = density(population.x + metric.colour(jump), rng)
        there, back = -jump * slope, jump * metric.whiten_gradient(proposal.gradient)
        proposals = (np.logaddexp(0.0, there) - np.logaddexp(0.0, back)).sum(axis=1)
        return accept(rng, population, proposal, self.log_ratio(population, proposal) + proposals, (z**2).sum(axis=1))
