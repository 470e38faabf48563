r"""The evidence lower bound L(q) = E_q[log p(θ, y) − log q(θ)] ≤ log p(y): averages over points, and its estimate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.approximations.noise import normal_noise
from ppl_backends.approximations.variational.families import Family
from ppl_backends.approximations.verdict import figures_of_weights
from ppl_backends.targets.protocol import Array, BaseTarget

REPLICATES = 8


class SampleAverage:
    """The bound with its expectation replaced by the average over fixed noise: a function of parameters."""

    def __init__(self, target: BaseTarget, family: Family, z: Array) -> None:
        self.target, self.family, self.z = target, family, z

    def __call__(self, p: Array) -> tuple[float, Array]:
        """Return value and gradient; ``-inf`` if the density is zero at any point."""
        with np.errstate(all="ignore"):  # long steps overflow
            x = self.family.points(p, self.z)
            if not np.isfinite(x).all():
                return -np.inf, np.zeros_like(p)
            value, slopes = self.target.log_density_and_gradient(x)
            entropy, entropy_gradient = self.family.entropy(p)
            bound = float(value.mean()) + entropy
            if not np.isfinite(bound):
                return -np.inf, np.zeros_like(p)
            return bound, self.family.gradient(p, self.z, slopes) + entropy_gradient


class Search(NamedTuple):
    """Limits of an optimiser: points of its first and largest sample, and iterations in total or with a fixed sample."""

    draws: int
    max_draws: int
    tolerance: float
    max_iterations: int
    qmc: bool = True
    report: Callable[[int, float, float], None] = lambda draws, bound, change: None


class VariationalFit(NamedTuple):
    """Result of an optimiser; the parameters of its family, based at the fit, are zero.

    ``change`` is the last root mean square change of means (in standard deviations) or of log scales, ``draws`` the
    size of the last sample, and ``history`` has points, bound, iterations and change of each sample or phase.
    """

    family: Family
    change: float
    draws: int
    converged: bool
    history: list[tuple[int, float, int, float]]

    @property
    def value(self) -> float:
        """Return the bound on the last sample, or its mean over the last phase."""
        return self.history[-1][1]


class BoundEstimate(NamedTuple):
    """The bound on fresh ``points`` ``(n, dim)``, and diagnostics of their weights p/q (see :func:`figures_of_weights`)."""

    elbo: float
    standard_error: float
    pareto_k: float
    tail_share: float
    outside: float
    distance: float
    points: Array
    log_weights: Array


def estimate_bound(target: BaseTarget, q: Any, draws: int, rng: np.random.Generator, qmc: bool = True) -> BoundEstimate:
    """Return the mean of log p − log q over eight independent scrambles with ``draws`` points in total."""
    each = max(2, -(-draws // REPLICATES))
    x = np.concatenate([q.place(normal_noise(each, q.dim, rng, qmc)) for _ in range(REPLICATES)])
    with np.errstate(all="ignore"):
        log_ratio = target.log_density(x) - q.log_density(x)
    if not np.isfinite(log_ratio).any():
        return BoundEstimate(-np.inf, np.nan, np.inf, 0.0, 1.0, np.inf, x, log_ratio)
    figures = figures_of_weights(log_ratio, q.dim)
    about = [*(figures[name] for name in ("pareto_k", "tail_share", "outside", "distance")), x, log_ratio]
    if figures["outside"] > 0:
        return BoundEstimate(-np.inf, np.nan, *about)
    means = log_ratio.reshape(REPLICATES, each).mean(axis=1)
    return BoundEstimate(float(means.mean()), float(means.std(ddof=1) / np.sqrt(REPLICATES)), *about)
