"""The kernel form: with fewer sites than coordinates, EP runs in the space of the sites' predictors.

The sites depend on θ only through s − (A m₀ + b) = A(θ − m₀), whose prior is N(0, K) with K = A Q₀⁻¹ Aᵀ. Writing K = F
Fᵀ gives factors of the same form with design F, prior N(0, I) and at most n coordinates: O(n²d) to set up, O(n³) a
sweep (Rasmussen & Williams 2006, section 3.6, where site precisions must be positive; here they need not be).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.linalg import eigh

from ppl_backends.approximations.ep.shards import ArrayShard
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.targets.factors.factorisation import Factors
from ppl_backends.targets.factors.prior import GaussianPrior
from ppl_backends.targets.factors.sites import Array


class Reduction(NamedTuple):
    """The smaller problem, with prior N(0, I), and the map back: E(θ | z) = m₀ + gain z, with ``gain`` ``(d, r)``."""

    shard: ArrayShard
    prior: GaussianPrior
    gain: Array

    def mean(self, factors: Factors, q: Gaussian) -> Array:
        """Return the posterior mean of θ ``(d,)``."""
        return np.asarray(factors.prior.mean + self.gain @ q.mean, dtype=np.float64)

    def cov(self, factors: Factors, q: Gaussian) -> Array:
        """Return the posterior covariance of θ ``(d, d)``: Q₀⁻¹ − G Gᵀ + G V Gᵀ."""
        prior_cov = factors.prior.apply_covariance(np.eye(factors.dim))
        half = self.gain @ q.factor
        prior_cov -= self.gain @ self.gain.T
        prior_cov += half @ half.T
        return prior_cov

    def variances(self, factors: Factors, q: Gaussian) -> Array:
        """Return the diagonal of :meth:`cov` without computing the matrix."""
        half = self.gain @ q.factor
        left = np.maximum(factors.prior.variances() - (self.gain**2).sum(axis=1), 0.0)
        return np.asarray(left + (half**2).sum(axis=1))


def reduce(factors: Factors) -> Reduction:
    """Return factors with a proper prior in the coordinates on which their sites depend."""
    transposed = factors.design.T.toarray() if sparse.issparse(factors.design) else factors.design.T
    cov_and_design = factors.prior.apply_covariance(transposed)  # Q₀⁻¹ Aᵀ
    kernel = np.asarray(factors.design @ cov_and_design)
    values, vectors = eigh(0.5 * (kernel + kernel.T))
    kept = values > 1e-13 * len(values) * max(values[-1], 0.0)
    if not kept.any():  # a design of zeros
        kept[-1], values[-1] = True, 1.0
        vectors[:, -1] = 0.0
    root, basis = np.sqrt(values[kept]), vectors[:, kept]
    offset = factors.offset + np.asarray(factors.design @ factors.prior.mean)
    shard = ArrayShard(basis * root, offset, factors.sites)
    return Reduction(shard, GaussianPrior(0.0, 1.0, len(root)), cov_and_design @ (basis / root))
