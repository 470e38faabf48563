r"""The evidence lower bound L(q) = E_q[log p(θ, y) − log q(θ)] ≤ log p(y): points, averages, and its estimate.

Noise is scrambled Sobol points through the normal quantile (Buchholz, Wenzel & Mandt 2018). Where one sample is kept fixed
(as in DADVI, Giordano, Ingram & Broderick 2024), it is symmetrised and standardised: every z comes with −z, and the second
moments are those of the normal law, all of them where there are points enough. The sample average is then exact for a
quadratic log density, which is what a control variate would do; only the rest of the density is left to the points.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.special import ndtri
from scipy.stats.qmc import Sobol

from ppl_backends.approximations.variational.families import Family
from ppl_backends.importance.weights import pareto_k, tail_share
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["BoundEstimate", "SampleAverage", "estimate_bound", "normal_noise", "standardised_noise"]

_BITS = 53  # fewer let points touch the faces of the cube
_SEED = "rng" if "rng" in inspect.signature(Sobol.__init__).parameters else "seed"
SOBOL_DIM = 4096  # coordinates beyond these are random
REPLICATES = 8


@lru_cache(maxsize=4)
def _net(log_n: int, dim: int) -> NDArray[np.uint64]:
    """The first 2^log_n Sobol points as 53-bit integers ``(n, dim)``, their generating matrices scrambled once."""
    options: dict[str, Any] = {_SEED: np.random.default_rng(0)}
    return (Sobol(dim, scramble=True, bits=_BITS, **options).random_base2(log_n) * 2.0**_BITS).astype(np.uint64)


def normal_noise(n: int, dim: int, rng: np.random.Generator, qmc: bool = True) -> Array:
    """``n`` standard normal rows ``(n, dim)``: the first points of a scrambled Sobol net, or random ones.

    Matrix scrambling, which takes most of the time, is done once; every call has a random digital shift of its own,
    which makes each point uniform and independent calls independent given the net.
    """
    if not qmc:
        return rng.standard_normal((n, dim))
    first = min(dim, SOBOL_DIM)
    net = _net(int(np.ceil(np.log2(max(n, 1)))), first)[:n]
    u = (net ^ rng.integers(0, 1 << _BITS, size=first, dtype=np.uint64)) * 2.0**-_BITS
    z = ndtri(np.clip(u, 2.0**-53, 1 - 2.0**-53))
    return z if dim == first else np.hstack([z, rng.standard_normal((n, dim - first))])


def standardised_noise(n: int, dim: int, rng: np.random.Generator, qmc: bool = True, factors: int = 0) -> Array:
    """Symmetric noise ``(n, factors + dim)``, n even, with unit variances.

    No two columns are correlated where n ≥ 4 (factors + dim), and in smaller ones no factor is with any column.
    """
    half = normal_noise(n // 2, factors + dim, rng, qmc)
    if n >= 4 * half.shape[1]:
        return _mirrored(_decorrelated(half))
    if 0 < 2 * factors <= len(half):
        common = _decorrelated(half[:, :factors])
        own = half[:, factors:] - common @ (common.T @ half[:, factors:]) / len(half)
        half = np.hstack([common, own])
    return _mirrored(half / np.sqrt((half**2).mean(axis=0)))


def _decorrelated(z: Array) -> Array:
    """Columns with the second moments of the standard normal law."""
    root = cholesky(z.T @ z / len(z), lower=True, check_finite=False)
    return solve_triangular(root, z.T, lower=True, check_finite=False).T


def _mirrored(z: Array) -> Array:
    return np.concatenate([z, -z])


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
    """

    elbo: float
    standard_error: float
    pareto_k: float
    tail_share: float
    outside: float


def estimate_bound(target: BaseTarget, q: Any, draws: int, rng: np.random.Generator, qmc: bool = True) -> BoundEstimate:
    """Mean of log p − log q over eight independent scrambles with ``draws`` points in all.

    ``q`` has ``dim``, ``color`` and ``log_density``.
    """
    each = max(2, -(-draws // REPLICATES))
    x = np.concatenate([q.color(normal_noise(each, q.dim, rng, qmc)) for _ in range(REPLICATES)])
    with np.errstate(all="ignore"):
        log_ratio = target.log_density(x) - q.log_density(x)
    outside = float(np.mean(~np.isfinite(log_ratio)))
    tail = pareto_k(log_ratio), tail_share(log_ratio), outside
    if outside > 0:
        return BoundEstimate(-np.inf, np.nan, *tail)
    means = log_ratio.reshape(REPLICATES, each).mean(axis=1)
    return BoundEstimate(float(means.mean()), float(means.std(ddof=1) / np.sqrt(REPLICATES)), *tail)
