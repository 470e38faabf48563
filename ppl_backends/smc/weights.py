"""Incremental weights: the next exponent by ESS bisection, and systematic resampling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp

from ppl_backends.targets.protocol import Array

__all__ = ["effective_sample_size", "next_exponent", "normalised_weights", "systematic_resampling"]


def normalised_weights(log_weights: Array) -> tuple[Array, float]:
    """Weights that sum to one, and the log of the mean unnormalised weight."""
    total = logsumexp(log_weights)
    return np.exp(log_weights - total), float(total - np.log(len(log_weights)))


def effective_sample_size(log_weights: Array) -> float:
    """(Σw)² / Σw², between 1 and n; 0 where every weight is zero."""
    total = logsumexp(log_weights)
    if not np.isfinite(total):
        return 0.0
    return float(np.exp(2 * total - logsumexp(2 * log_weights)))


def next_exponent(increment: Array, exponent: float, ess_fraction: float) -> float:
    """Largest λ' ≤ 1 whose incremental weights exp{(λ' − λ)·increment} keep an ESS of ``ess_fraction`` of the points.

    Buchholz (2018), equation 5.1 and Algorithm 13. Points outside the support have weight zero at every λ' > λ, so the ESS
    is measured against those inside.

    Parameters
    ----------
    increment : ndarray (n,)
    exponent : float
        The present λ.
    ess_fraction : float
    """
    finite = increment[increment > -np.inf]
    wanted = ess_fraction * len(finite)

    def excess(step: float) -> float:
        return effective_sample_size(step * finite) - wanted

    longest = 1.0 - exponent
    if excess(longest) >= 0:
        return 1.0
    # The step can be many orders of magnitude below one (vague priors): bisect on the log scale.
    shortest = longest
    while excess(shortest) < 0 and shortest > 1e-300:
        shortest *= 1e-3
    log_step = brentq(lambda s: excess(np.exp(s)), np.log(shortest), np.log(min(shortest * 1e3, longest)), xtol=1e-6)
    return min(1.0, exponent + float(np.exp(log_step)))


def systematic_resampling(weights: Array, rng: np.random.Generator) -> NDArray[np.intp]:
    """Ancestor of every new particle; each parent has ⌊nW⌋ or ⌈nW⌉ offspring, siblings stay adjacent."""
    n = len(weights)
    positions = (rng.random() + np.arange(n)) / n
    cumulative = np.cumsum(weights)
    cumulative /= cumulative[-1]
    return np.minimum(np.searchsorted(cumulative, positions), n - 1)
