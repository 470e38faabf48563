"""Rectangles of X = Λ f + noise with few factors f: the noise is integrated exactly and the factors by points.

P = E Π_i P(lower_i ≤ λ_i'f + √ψ_i Z ≤ upper_i) over k factors. The points are scrambled Sobol points on a product of
Student distributions at EP's mean and covariance, because along a factor that is unbounded on one side the integrand
has the tail of the prior, which is wider than EP's.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, stdtrit

from ppl_backends.orthants.ep import factor_ep
from ppl_backends.orthants.intervals import LOG_ROOT_2PI, Array, log_interval

LARGEST_RANK = 50
BLOCK_BYTES = 2**23


def find_factors(cov: Array) -> tuple[Array, Array] | None:
    """Return loadings and diagonal of a covariance, or of its correlations, that are ψ I plus a matrix of low rank."""
    dim = len(cov)
    scale = np.sqrt(np.diag(cov))
    for factor in (np.ones(dim), scale):
        values, vectors = np.linalg.eigh(cov / np.outer(factor, factor))
        smallest = values[0]
        rank = int((values > smallest + 1e-9 * values[-1]).sum())
        if rank <= min(LARGEST_RANK, dim // 2) and smallest > 1e-9 * values[-1]:
            smallest = values[: dim - rank].mean()
            loadings = vectors[:, dim - rank :] * np.sqrt(values[dim - rank :] - smallest)
            return factor[:, None] * loadings, smallest * factor**2
    return None


def log_weights(loadings: Array, noise: Array, lower: Array, upper: Array, uniforms: list[Array]) -> Array:
    """Return log weights ``(replicates, n)`` of points from uniform numbers ``(n, k)``; their means estimate P."""
    rank = loadings.shape[1]
    _, mean, cov = factor_ep(loadings, noise, lower, upper)
    factor = np.linalg.cholesky(cov)
    df = 3.0 + 2.0 * rank
    constant = gammaln(0.5 * (df + 1)) - gammaln(0.5 * df) - 0.5 * np.log(df * np.pi)
    log_scale = np.log(np.diag(factor)).sum()
    sd = np.sqrt(noise)[:, None]
    rows = max(1, BLOCK_BYTES // (8 * len(loadings)))

    def weigh(u: Array) -> Array:
        t = stdtrit(df, u.T)
        f = mean[:, None] + factor @ t
        log_proposal = (constant - 0.5 * (df + 1) * np.log1p(t**2 / df)).sum(axis=0) - log_scale
        at = loadings @ f
        inside = log_interval((lower[:, None] - at) / sd, (upper[:, None] - at) / sd).sum(axis=0)
        return inside - 0.5 * (f**2).sum(axis=0) - rank * LOG_ROOT_2PI - log_proposal

    return np.array([
        np.concatenate([weigh(u[first : first + rows]) for first in range(0, len(u), rows)]) for u in uniforms
    ])  # fmt: skip
