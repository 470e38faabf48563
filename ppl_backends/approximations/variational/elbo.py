r"""The evidence lower bound L(q) = E_q[log p(θ, y) − log q(θ)] ≤ log p(y): averages over points, and its estimate."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ppl_backends.approximations.noise import normal_noise
from ppl_backends.approximations.variational.families import Family
from ppl_backends.approximations.verdict import figures_of_weights
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["BoundEstimate", "SampleAverage", "VariationalFit", "estimate_bound"]

REPLICATES = 8


class SampleAverage:
    """The bound with its expectation replaced by the average over fixed noise: a deterministic function of parameters.

    Parameters
    ----------
    target : BaseTarget
    family : Family
    z : ndarray (n, factors + dim)
    """

    def __init__(self, target: BaseTarget, family: Family, z: Array) -> None:
        self.target, self.family, self.z = target, family, z
        self.evaluations = 0

    def __call__(self, p: Array) -> tuple[float, Array]:
        """Value and gradient; ``-inf`` where any point has no density."""
        with np.errstate(all="ignore"):  # long steps overflow
            x = self.family.points(p, self.z)
            if not np.isfinite(x).all():
                return -np.inf, np.zeros_like(p)
            value, slopes = self.target.log_density_and_gradient(x)
            self.evaluations += len(x)
            entropy, entropy_gradient = self.family.entropy(p)
            bound = float(value.mean()) + entropy
            if not np.isfinite(bound):
                return -np.inf, np.zeros_like(p)
            return bound, self.family.gradient(p, self.z, slopes) + entropy_gradient


class VariationalFit(NamedTuple):
    """Where an optimiser ended.

    Attributes
    ----------
    family : Family
        Based at the fit: its parameters are zero.
    change : float
        Root mean square change of means (in standard deviations) or of log scales, since the sample of half the size or
        between the averages of the last two phases.
    draws : int
        Points of the last sample or step.
    converged : bool
    history : list of tuple
        Per sample or phase: points, bound, iterations, change.
    """

    family: Family
    change: float
    draws: int
    converged: bool
    history: list[tuple[int, float, int, float]]

    @property
    def value(self) -> float:
        """The bound on the last sample, or its mean over the last phase."""
        return self.history[-1][1]


class BoundEstimate(NamedTuple):
    """The bound on points that the fit has not seen.

    Attributes
    ----------
    elbo : float
    standard_error : float
        From the spread of independent scrambles.
    pareto_k : float
        Of the weights p/q; above 0.7 the posterior is too far from q for weights to correct it.
    tail_share : float
        Share of the total weight that the tail of which k is the shape holds; next to nothing cannot do harm.
    outside : float
        Share of points where the posterior density is zero.
    distance : float
        √(2 KL(q ‖ p) / dim), by the weights; above one the posterior is elsewhere.
    """

    elbo: float
    standard_error: float
    pareto_k: float
    tail_share: float
    outside: float
    distance: float


def estimate_bound(target: BaseTarget, q: Any, draws: int, rng: np.random.Generator, qmc: bool = True) -> BoundEstimate:
    """Mean of log p − log q over eight independent scrambles with ``draws`` points in all.

    ``q`` has ``dim``, ``place`` and ``log_density``.
    """
    each = max(2, -(-draws // REPLICATES))
    x = np.concatenate([q.place(normal_noise(each, q.dim, rng, qmc)) for _ in range(REPLICATES)])
    with np.errstate(all="ignore"):
        log_ratio = target.log_density(x) - q.log_density(x)
    if not np.isfinite(log_ratio).any():
        return BoundEstimate(-np.inf, np.nan, np.inf, 0.0, 1.0, np.inf)
    figures = figures_of_weights(log_ratio, q.dim)
    about = (figures[name] for name in ("pareto_k", "tail_share", "outside", "distance"))
    if figures["outside"] > 0:
        return BoundEstimate(-np.inf, np.nan, *about)
    means = log_ratio.reshape(REPLICATES, each).mean(axis=1)
    return BoundEstimate(float(means.mean()), float(means.std(ddof=1) / np.sqrt(REPLICATES)), *about)
