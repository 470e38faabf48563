"""VI for pair losses by stochastic gradients: a few pairs a step stand for all n₊n₋ (Alquier et al. 2016, section 7.3).

The gradient of E_q[r_n] + KL(q, π)/λ from B pairs drawn with replacement is unbiased, and its expectation over θ is exact.
Steps are scaled coordinate by coordinate (Adam), decay as (1 + t/τ)^−0.9, and the iterates of the last half are averaged.
"""

from __future__ import annotations

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.gibbs.gaussian_vi import GibbsVI, Solution, _pair_values, as_result
from ppl_backends.gibbs.losses import PairLoss
from ppl_backends.gibbs.posterior import GibbsPosterior
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.targets.factors.sites import Array
from ppl_backends.targets.protocol import Index

__all__ = ["fit_by_pairs"]

STEP, HALF_LIFE, DECAY = 0.05, 200.0, 0.9
N_CHECKPOINTS = 40
N_CHECK_PAIRS = 100_000


class _Coordinates:
    """Unconstrained coordinates of a family: m, and log σ, log s, or a triangular factor with logs on its diagonal."""

    def __init__(self, family: str, mean: Array, root: Array) -> None:
        self.family, self.d = family, len(mean)
        self.lower = np.tril_indices(self.d)
        self.on_diagonal = self.lower[0] == self.lower[1]
        self.origin, self.root = mean, root

    def start(self) -> Array:
        """The prior, or nearest to it."""
        scale = np.sqrt((self.root**2).sum(axis=1))
        if self.family == "dense":
            entries = self.root[self.lower]
            return np.concatenate([self.origin, np.where(self.on_diagonal, np.log(np.abs(entries) + 1e-300), entries)])
        return np.concatenate([self.origin, np.log(scale) if self.family == "diagonal" else [np.log(scale).mean()]])

    def gaussian(self, z: Array) -> Gaussian:
        """The Gaussian at coordinates ``z``."""
        rest = z[self.d :]
        if self.family == "dense":
            factor = np.zeros((self.d, self.d))
            factor[self.lower] = np.where(self.on_diagonal, np.exp(np.where(self.on_diagonal, rest, 0.0)), rest)
            return Gaussian(z[: self.d], factor)
        return Gaussian(z[: self.d], np.broadcast_to(np.exp(rest), (self.d,)))

    def chain(self, q: Gaussian, in_mean: Array, in_factor: Array) -> Array:
        """From the gradient in m and in C (or s ``(d,)``) to that in ``z``."""
        if self.family == "dense":
            entries = in_factor[self.lower]
            rest = np.where(self.on_diagonal, entries * q.factor[self.lower], entries)
        else:
            rest = in_factor * q.factor
            rest = rest if self.family == "diagonal" else np.atleast_1d(rest.sum())
        return np.concatenate([in_mean, rest])


def fit_by_pairs(
    posterior: GibbsPosterior, family: str, batch_size: int, n_iterations: int, random_seed: SeedLike
) -> GibbsVI:
    """Fit by ``n_iterations`` steps of ``batch_size`` pairs; the expected risk of the result is exact."""
    prior, risk = posterior.gaussian_prior, posterior._linear("fit_gibbs_vi")
    if prior is None or not isinstance(risk.loss, PairLoss):
        raise ModelError("sampled pairs need a Gaussian prior and a pair loss")
    if batch_size < 1 or n_iterations < 10:
        raise ModelError(f"batch_size={batch_size}, n_iterations={n_iterations}: expected at least 1 and 10")
    rng, check_rng = spawn_generators(random_seed, 2)
    precision, root = prior.normal.precision, prior.normal.factor
    above, below = np.flatnonzero(risk.positive), np.flatnonzero(~risk.positive)
    share = 2 * len(above) * len(below) / (risk.n * (risk.n - 1))
    coordinates = _Coordinates(family, prior.gaussian.mean, root)
    z = coordinates.start()
    first, second, average = np.zeros_like(z), np.zeros_like(z), np.zeros_like(z)
    inner, rate = risk.loss.inner, posterior.learning_rate
    check = _pairs(risk.X, risk.offset, above, below, N_CHECK_PAIRS, check_rng)
    checkpoints = set(np.unique(np.geomspace(1, n_iterations, N_CHECKPOINTS).astype(int)).tolist())
    trace, tail = [], n_iterations // 2
    for t in range(1, n_iterations + 1):
        q = coordinates.gaussian(z)
        design, offset = _pairs(risk.X, risk.offset, above, below, batch_size, rng)
        spread = q.whiten_gradient(design)
        found = inner.expectation(design @ q.mean + offset, np.einsum("nd,nd->n", spread, spread), np.ones(1))
        in_mean = share * (found.slope @ design) / batch_size + precision @ (q.mean - prior.gaussian.mean) / rate
        pull = share * found.curvature / batch_size
        if family == "dense":
            in_factor = design.T @ (pull[:, None] * spread)
            in_factor += (precision @ q.factor - np.diag(1 / np.diagonal(q.factor))) / rate
        else:
            s = q.factor
            in_factor = (pull @ design**2) * s + (np.diagonal(precision) * s - 1 / s) / rate
        gradient = coordinates.chain(q, in_mean, in_factor)
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        direction = first / (1 - 0.9**t) / (np.sqrt(second / (1 - 0.99**t)) + 1e-12)
        z = z - STEP * (1 + t / HALF_LIFE) ** -DECAY * direction
        if t > tail:
            average += (z - average) / (t - tail)
        if t in checkpoints:
            at = coordinates.gaussian(average if t > tail else z)
            trace.append((float(t), share * _mean_loss(inner, at, check), at.kl_to(prior.normal)))
    q = coordinates.gaussian(average)
    settled = _settled(np.array(trace), rate)
    solution = Solution(q, np.nan, np.nan, settled, n_iterations)
    return as_result(posterior, solution, family, trace, batch_size=float(batch_size))


def _pairs(
    X: Array, offset: Array, above: Index, below: Index, size: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Differences of ``size`` pairs drawn with replacement, and of their offsets."""
    i, j = above[rng.integers(len(above), size=size)], below[rng.integers(len(below), size=size)]
    return X[i] - X[j], offset[i] - offset[j]


def _mean_loss(inner, q: Gaussian, pairs: tuple) -> float:
    design, offset = pairs
    spread = q.whiten_gradient(design)
    return float(_pair_values(inner, design @ q.mean + offset, np.einsum("nd,nd->n", spread, spread)).mean())


def _settled(trace: Array, rate: float) -> bool:
    """Whether the objective per λ changed by less than 0.002 over the last half of the iterations."""
    objective = trace[:, 1] + trace[:, 2] / rate
    late = objective[trace[:, 0] > 0.5 * trace[-1, 0]]
    return bool(np.ptp(late) < 2e-3)
