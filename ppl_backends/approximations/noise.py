"""Standard normal points: scrambled Sobol nets, and symmetric sets with exact second moments.

Noise is scrambled Sobol points through the normal quantile (Buchholz, Wenzel & Mandt 2018). If one sample is kept
fixed (as in DADVI, Giordano, Ingram & Broderick 2024), it is symmetrised and standardised: every z comes with −z, and
its second moments are those of the normal distribution, all of them if there are enough points. The sample average is
then exact for a quadratic log density, like a control variate; only the rest of the density has an error.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.special import ndtri

from ppl_backends.numerics.gaussian import inside_cube
from ppl_backends.numerics.nets import INNER_BITS, sobol
from ppl_backends.targets.protocol import Array

SOBOL_DIM = 4096  # coordinates beyond these are random


@lru_cache(maxsize=4)
def _net(log_n: int, dim: int) -> NDArray[np.uint64]:
    """Return the first 2^log_n Sobol points as 53-bit integers ``(n, dim)``, with generating matrices scrambled once."""
    net = sobol(dim, np.random.default_rng(0), INNER_BITS).random_base2(log_n)
    return (net * 2.0**INNER_BITS).astype(np.uint64)


def normal_noise(n: int, dim: int, rng: np.random.Generator, qmc: bool = True) -> Array:
    """Return ``n`` standard normal rows ``(n, dim)``: the first points of a scrambled Sobol net, or random ones.

    Matrix scrambling, which takes most of the time, is done once; every call has its own random digital shift, which
    makes each point uniform and independent calls independent given the net.
    """
    if not qmc:
        return rng.standard_normal((n, dim))
    first = min(dim, SOBOL_DIM)
    net = _net(int(np.ceil(np.log2(max(n, 1)))), first)[:n]
    u = (net ^ rng.integers(0, 1 << INNER_BITS, size=first, dtype=np.uint64)) * 2.0**-INNER_BITS
    z = ndtri(inside_cube(u))
    return z if dim == first else np.hstack([z, rng.standard_normal((n, dim - first))])


def standardised_noise(n: int, dim: int, rng: np.random.Generator, qmc: bool = True, factors: int = 0) -> Array:
    """Return symmetric noise ``(n, factors + dim)``, n even, with unit variances.

    Columns are uncorrelated if n ≥ 4 (factors + dim); in smaller samples the factors are uncorrelated with all columns.
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
    """Return columns with the second moments of the standard normal distribution."""
    root = cholesky(z.T @ z / len(z), lower=True, check_finite=False)
    return solve_triangular(root, z.T, lower=True, check_finite=False).T


def _mirrored(z: Array) -> Array:
    return np.concatenate([z, -z])
