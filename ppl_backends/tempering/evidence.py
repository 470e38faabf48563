r"""The evidence by stepping stones, from the increments ℓ = −V at every temperature.

With Z_i the integral of γ at βᵢ and δ = βᵢ₊₁ − βᵢ, both

    log Z_{i+1} − log Z_i = log E_i[exp(δℓ)] = −log E_{i+1}[exp(−δℓ)]

hold (Xie, Lewis, Fan, Kuo & Chen 2011). Their logs are biased in opposite directions, and half the sum of the two is taken.
If they differ by more than their noise, states at a temperature are not draws of its distribution. To first order the error
of a log mean is the mean of w/E[w] − 1; these terms, summed over temperatures in every scan, are one series, whose variance
over batches of scans contains the correlation over scans and that between temperatures.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from ppl_backends.smc.evidence import EvidenceEstimate, combine_evidence
from ppl_backends.targets.protocol import Array

_BATCHES = 20


class SteppingStones(NamedTuple):
    """Log ratios of the integrals at both ends, by chain ``(chains,)``, and the variances of their errors.

    ``log_evidence`` is half the sum of ``forward`` and ``backward``; ``difference_variance`` that of their difference;
    ``by_level`` ``(levels,)`` accumulates the log evidence over temperatures, of all chains.
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
        """Return the estimate of all chains."""
        return combine_evidence(self.log_evidence, self.variance, np.full(len(self.variance), self.df))

    @property
    def gap(self) -> tuple[float, float]:
        """Return forward less backward, and its standard error."""
        chains = len(self.forward)
        return float((self.forward - self.backward).mean()), float(np.sqrt(self.difference_variance.mean() / chains))


def stepping_stones(betas: Array, increment: Array) -> SteppingStones:
    """Return the log evidence from increments ``(chains, scans, levels)``."""
    _, scans, _ = increment.shape
    step = np.diff(betas)
    up, down = step * increment[:, :, :-1], -step * increment[:, :, 1:]
    log_up, log_down = (logsumexp(logs, axis=1) - np.log(scans) for logs in (up, down))  # (chains, levels - 1)
    with np.errstate(invalid="ignore"):
        forward_terms = np.exp(up - log_up[:, None]).sum(axis=2) - len(step)
        backward_terms = np.exp(down - log_down[:, None]).sum(axis=2) - len(step)
    both = 0.5 * (log_up - log_down)
    return SteppingStones(
        both.sum(axis=1),
        variance_of_mean(0.5 * (forward_terms - backward_terms)),
        log_up.sum(axis=1),
        -log_down.sum(axis=1),
        variance_of_mean(forward_terms + backward_terms),
        float(min(_BATCHES, scans) - 1),
        np.concatenate([[0.0], np.cumsum(both.mean(axis=0))]),
    )


def variance_of_mean(series: Array) -> Array:
    """Return variances ``(chains,)`` of the means of series ``(chains, scans)``, by means over batches."""
    chains, scans = series.shape
    batches = min(_BATCHES, scans)
    length = scans // batches
    means = series[:, scans - batches * length :].reshape(chains, batches, length).mean(axis=2)
    return np.asarray(means.var(axis=1, ddof=1) / batches) if batches > 1 else np.full(chains, np.inf)
