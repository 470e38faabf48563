"""All models, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.evidences.laplace import ImportanceEvidence
from ppl_backends.model_search.space import Bits, ModelSpace
from ppl_backends.targets.protocol import Array

_BLOCK = 4096  # models between two updates of the progress bar


class Enumerated(NamedTuple):
    """Every model with its log evidence and posterior probability, and figures derived from them.

    Attributes
    ----------
    bits : ndarray (models, m)
    log_evidence, probability : ndarray (models,)
    inclusion, inclusion_se : ndarray (m,)
        The error is that of estimated evidences; 0 if they are computed.
    total, total_se : float
        Log of the prior-weighted mean of the evidences.
    """

    bits: Bits
    log_evidence: Array
    probability: Array
    inclusion: Array
    inclusion_se: Array
    total: float
    total_se: float


def enumerate_models(
    space: ModelSpace, evidence: Evidence, rng: np.random.Generator, show: Callable[[float], None] | None = None
) -> Enumerated:
    """Return all models of a space with their posterior probabilities."""
    bits = space.all()
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(bits), _BLOCK)]
    log_evidence, log_prior, variance = np.empty(len(bits)), np.empty(len(bits)), np.zeros(len(bits))
    for rows in blocks:
        log_prior[rows] = space.log_prior(bits[rows])
        columns = space.columns(bits[rows])
        if isinstance(evidence, ImportanceEvidence):
            log_evidence[rows], variance[rows] = evidence.with_variance(columns, rng)
        else:
            log_evidence[rows] = evidence(columns, rng)
        if show is not None:
            show(min(1.0, rows.stop / len(bits)))
    if callable(space.prior):
        log_prior = log_prior - logsumexp(log_prior)
    total = float(logsumexp(log_evidence + log_prior))
    probability = np.exp(log_evidence + log_prior - total)
    inclusion = np.sum([probability[rows] @ bits[rows] for rows in blocks], axis=0)
    error = probability**2 * variance  # of each model's share of the total
    inclusion_se = np.sqrt(np.sum([error[rows] @ (bits[rows] - inclusion) ** 2 for rows in blocks], axis=0))
    return Enumerated(bits, log_evidence, probability, inclusion, inclusion_se, total, float(error.sum() ** 0.5))
