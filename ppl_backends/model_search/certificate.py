"""Check of approximate evidences: unbiased estimates for draws of models, and what they change.

If the evidence of model m is off by the factor 1/r_m, the inclusion of a candidate is off by the difference between its mean
weighted by r and its plain mean. Both are averages over draws of models. A factor that all models share changes nothing
but the evidence of the whole search.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.evidences.laplace import ImportanceEvidence
from ppl_backends.model_search.evidences.table import seconds_per_model
from ppl_backends.model_search.forms import Form
from ppl_backends.model_search.space import Bits, ModelSpace

POINTS, MODELS, FEWEST_MODELS = 512, 64, 8
LONG = 0.5  # seconds
LARGEST_CHANGE, LARGEST_SHIFT = 0.05, 0.5  # of an inclusion, and of the log evidence
NOISES = 2.0  # standard errors that are added to these


class Certificate(NamedTuple):
    """What unbiased estimates change: the fault (empty if there is none), and figures."""

    trouble: str
    figures: dict[str, float]


def certify_evidence(form: Form, space: ModelSpace, evidence: Evidence, bits: Bits) -> Certificate:
    """Compare an approximate evidence with unbiased estimates for some of the drawn models ``(n, m)``.

    The figures are ``inclusion_change``, the largest one, and ``log_evidence_shift``. There are none if the evidence is
    exact or the model has no compiled likelihood.
    """
    proposal: Any = evidence
    if evidence.exact or evidence.compiled is None or not space.n_candidates:
        return Certificate("", {})
    rng = np.random.default_rng(0)
    seconds = seconds_per_model("importance_laplace", form, space.n_candidates, POINTS)
    n = int(np.clip(LONG / seconds, FEWEST_MODELS, MODELS))
    models, counts = np.unique(bits[rng.integers(len(bits), size=n)], axis=0, return_counts=True)
    columns, p = space.columns(models), counts / n
    estimated, variance = ImportanceEvidence(proposal, POINTS, tails=True).with_variance(columns, rng)
    error = estimated - evidence(columns, rng)
    shift = float(logsumexp(error, b=p))
    ratio = np.exp(error - shift)
    change = (p * ratio) @ models - p @ models
    apart = models - (p * ratio) @ models
    # The models are draws, and their evidences are estimates.
    noise = np.sqrt((p * (ratio - 1) ** 2) @ apart**2 / n + (p**2 * ratio**2 * variance) @ apart**2)
    noise_of_shift = np.sqrt(p @ (ratio - 1) ** 2 / n + p**2 @ (ratio**2 * variance))
    worst = int(np.argmax(np.abs(change) - NOISES * noise))
    figures = {"inclusion_change": float(np.abs(change).max()), "log_evidence_shift": shift}
    trouble = ""
    if not abs(change[worst]) <= LARGEST_CHANGE + NOISES * noise[worst]:
        trouble = f"change the inclusion of {space.names[worst]} by {change[worst]:+.2f}"
    elif not abs(shift) <= LARGEST_SHIFT + NOISES * noise_of_shift:
        trouble = f"change the log evidence of the search by {shift:+.2g}"
    if trouble:
        instead = "'ep' or 'importance_ep'" if evidence.name == "laplace" else "'importance_ep'"
        trouble = f"unbiased estimates for {n} drawn models {trouble}: use evidence={instead}"
    return Certificate(trouble, figures)
