"""Rectangles of X = Λ f + noise with few factors f: the noise is integrated exactly and the factors by points.

P = E Π_i P(lower_i ≤ λ_i'f + √ψ_i Z ≤ upper_i) over k factors. The points are scrambled Sobol points on a product of
Student distributions, because along a factor that is unbounded on one side the integrand has the tail of the prior.
Their centre and scale are those of EP, or the mean and covariance of a weighted pilot where these fit better: EP's
variance is several times too small for a factor that is bounded on one side and seen with little noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import gammaln, stdtrit

from ppl_backends.numerics.nets import sobol
from ppl_backends.numerics.weights import normalised_weights
from ppl_backends.orthants.ep import factor_ep
from ppl_backends.orthants.intervals import LOG_ROOT_2PI, Array, log_interval

LARGEST_RANK = 50
BLOCK_BYTES = 2**23
PILOT_POINTS = 1024
MOST_PILOTS = 6
SMALL = 2.0  # largest weight of a pilot over the mean weight at which its proposal is kept


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


@dataclass(frozen=True)
class Integrand:
    """The integrand over the factors f: N(f; 0, I) Π_i P(lower_i ≤ λ_i'f + √ψ_i Z ≤ upper_i)."""

    loadings: Array
    noise: Array
    lower: Array
    upper: Array

    def scaled(self, radius: float) -> Integrand:
        """Return the integrand of a multiple of the bounds; for 1 itself, with the proposal that it has."""
        return self if radius == 1.0 else replace(self, lower=radius * self.lower, upper=radius * self.upper)

    @property
    def ep_log_p(self) -> float:
        """Return EP's log P."""
        return factor_ep(self.loadings, self.noise, self.lower, self.upper)[0].log_p

    def log_weights(self, uniforms: list[Array]) -> Array:
        """Return log weights ``(replicates, n)`` of points from uniforms ``(n, k)`` each; their means estimate P."""
        rows = max(1, BLOCK_BYTES // (8 * len(self.loadings)))

        def weigh(u: Array) -> Array:
            blocks = [u[first : first + rows] for first in range(0, len(u), rows)]
            return np.concatenate([self._weigh(*self.proposal, block)[1] for block in blocks])

        return np.array([weigh(u) for u in uniforms])

    def _weigh(self, mean: Array, factor: Array, uniforms: Array) -> tuple[Array, Array]:
        """Return points ``(k, n)`` of the proposal at uniform numbers ``(n, k)``, and log integrand over proposal."""
        rank = len(mean)
        df = 3.0 + 2.0 * rank
        constant = gammaln(0.5 * (df + 1)) - gammaln(0.5 * df) - 0.5 * np.log(df * np.pi)
        t = stdtrit(df, uniforms.T)
        f = mean[:, None] + factor @ t
        log_proposal = (constant - 0.5 * (df + 1) * np.log1p(t**2 / df)).sum(axis=0) - np.log(np.diag(factor)).sum()
        at, sd = self.loadings @ f, np.sqrt(self.noise)[:, None]
        inside = log_interval((self.lower[:, None] - at) / sd, (self.upper[:, None] - at) / sd).sum(axis=0)
        return f, inside - 0.5 * (f**2).sum(axis=0) - rank * LOG_ROOT_2PI - log_proposal

    @cached_property
    def proposal(self) -> tuple[Array, Array]:
        """Return mean and Cholesky factor of the proposal: EP's, then those of weighted pilots while these fit better."""
        _, mean, cov = factor_ep(self.loadings, self.noise, self.lower, self.upper)
        factor = np.asarray(np.linalg.cholesky(cov), dtype=np.float64)
        # The pilot's points are fixed, so that the proposal does not depend on the points of the estimate.
        pilot = sobol(len(mean), np.random.default_rng(0)).random(PILOT_POINTS)
        best, least = (mean, factor), np.inf
        for _ in range(MOST_PILOTS):
            f, log_w = self._weigh(mean, factor, pilot)
            w = normalised_weights(log_w)[0]
            # Points of a net need a bounded integrand, so that the largest weight decides and not the effective size.
            if not w.max() < least:
                break
            best, least = (mean, factor), w.max()
            if least <= SMALL / PILOT_POINTS:
                break
            mean = np.asarray(f @ w)
            centred = f - mean[:, None]
            try:
                factor = np.asarray(np.linalg.cholesky((centred * w) @ centred.T), dtype=np.float64)
            except np.linalg.LinAlgError:  # fewer effective points than factors
                break
        return best
