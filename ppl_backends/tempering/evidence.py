r"""The evidence by stepping stones, from the increments ℓ = −V at every temperature.

With Z_i the integral of γ at βᵢ and δ = βᵢ₊₁ − βᵢ, both

    log Z_{i+1} − log Z_i = log E_i[exp(δℓ)] = −log E_{i+1}[exp(−δℓ)]

hold (Xie, Lewis, Fan, Kuo & Chen 2011), but the weights exp(−δℓ) have infinite variance if the posterior is much
narrower than the reference. Bennett (1976; Meng & Wong 1996) combines states at both temperatures optimally: with the
logistic function s, the log ratio c solves

    mean over βᵢ of s(δℓ − c) = mean over βᵢ₊₁ of s(c − δℓ),

whose terms are bounded. To first order its error is the mean of s(δℓᵢ − c) − s(c − δℓᵢ₊₁) over the sum of the means of
s(1 − s). These terms, summed over temperatures in every scan, form one time series. The variance of its batch means
includes correlations between scans and between temperatures. If log E_i[exp(δℓ)] differs from c by more than its
noise, states at a temperature are not draws of its distribution.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import expit

from ppl_backends.numerics.weights import log_mean_exp
from ppl_backends.smc.evidence import EvidenceEstimate, combine_evidence
from ppl_backends.targets.protocol import Array

_BATCHES = 20
_HALVINGS = 60


class SteppingStones(NamedTuple):
    """Log ratios of the integrals at both ends, by chain ``(chains,)``, and the variances of their errors.

    ``forward`` uses only the lower temperature of each pair, ``backward`` only the upper one. ``difference_variance``
    is the variance of ``log_evidence`` minus ``forward``. ``by_level`` ``(levels,)`` is the log evidence of all
    chains, accumulated over temperatures.
    """

    log_evidence: Array
    variance: Array
    forward: Array
    backward: Array
    difference_variance: Array
    df: float
    by_level: Array

    @property
    def combined(self) -> EvidenceEstimate:
        """Return the estimate from all chains."""
        return combine_evidence(self.log_evidence, self.variance, np.full(len(self.variance), self.df))

    @property
    def gap(self) -> tuple[float, float]:
        """Return forward minus the log evidence, and its standard error."""
        chains = len(self.forward)
        return float((self.forward - self.log_evidence).mean()), float(
            np.sqrt(self.difference_variance.mean() / chains)
        )


def stepping_stones(betas: Array, increment: Array) -> SteppingStones:
    """Return the log evidence from increments ``(chains, scans, levels)``."""
    step = np.diff(betas)
    below, above = step * increment[:, :, :-1], step * increment[:, :, 1:]
    ratio = log_ratios(below, above)
    up, down = expit(below - ratio[:, None]), expit(ratio[:, None] - above)
    slope = (up * (1 - up)).mean(axis=1) + (down * (1 - down)).mean(axis=1)
    terms = ((up - down) / np.maximum(slope, 1e-300)[:, None]).sum(axis=2)
    log_up, log_down = (log_mean_exp(logs, axis=1) for logs in (below, -above))
    forward_terms = np.exp(below - log_up[:, None]).sum(axis=2) - len(step)
    return SteppingStones(
        ratio.sum(axis=1),
        variance_of_mean(terms),
        log_up.sum(axis=1),
        -log_down.sum(axis=1),
        variance_of_mean(forward_terms - terms),
        float(max(1, min(_BATCHES, increment.shape[1]) - 1)),
        np.concatenate([[0.0], np.cumsum(ratio.mean(axis=0))]),
    )


def log_ratios(below: Array, above: Array) -> Array:
    """Return Bennett's log ratios ``(chains, pairs)`` from δℓ ``(chains, scans, pairs)`` below and above, by bisection."""
    largest, smallest, margin = below.max(axis=1), above.min(axis=1), np.log(below.shape[1]) + 1.0
    largest = np.where(np.isfinite(largest), largest, smallest)
    # Both ends have known signs of ``excess``. Smaller values below, such as -1e150, would leave no digits to the root.
    low, high = np.minimum(largest, smallest) - margin, np.maximum(largest, smallest) + margin
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        excess = expit(below - middle[:, None]).mean(axis=1) - expit(middle[:, None] - above).mean(axis=1)
        low, high = np.where(excess > 0, middle, low), np.where(excess > 0, high, middle)
    return np.asarray(0.5 * (low + high))


def variance_of_mean(series: Array) -> Array:
    """Return variances ``(chains,)`` of the means of time series ``(chains, scans)``, by batch means."""
    chains, scans = series.shape
    batches = min(_BATCHES, scans)
    length = scans // batches
    means = series[:, scans - batches * length :].reshape(chains, batches, length).mean(axis=2)
    return np.asarray(means.var(axis=1, ddof=1) / batches) if batches > 1 else np.full(chains, np.inf)
