"""Check of approximate evidences: unbiased estimates for draws of models, and what they change.

If the evidence of model m is off by the factor 1/r_m, the inclusion of a candidate is off by the difference between its mean
weighted by r and its plain mean. Both are averages over draws of models. A factor that all models share changes nothing
but the evidence of the whole search. A candidate that is the same in all these models is checked at a neighbour of one
of them: its odds change by the ratio of their r. These changes and their noise are part of the standard errors of the search.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit, logsumexp

from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.evidences.laplace import ImportanceEvidence
from ppl_backends.model_search.evidences.table import seconds_per_model
from ppl_backends.model_search.forms import Form
from ppl_backends.model_search.results import Listed, Searched
from ppl_backends.model_search.space import Bits, ModelSpace
from ppl_backends.targets.protocol import Array, Index

POINTS, MODELS, FEWEST_MODELS = 512, 64, 8
LONG = 0.5  # seconds
LARGEST_CHANGE, LARGEST_SHIFT = 0.05, 0.5  # of an inclusion, and of the log evidence
LARGEST_UNCONVERGED = 0.01  # probability of models whose evidence did not converge
MODES_SOUGHT = 64  # most probable models whose other modes are sought
NOISES = 2.0  # standard errors that are added to these


class Certificate(NamedTuple):
    """A check: its fault (empty if there is none), figures, and errors of inclusions ``(m,)`` and of the log evidence."""

    trouble: str
    figures: dict[str, float | int]
    inclusion_error: Array | float = 0.0
    log_evidence_error: float = 0.0


def certify_evidence(form: Form, space: ModelSpace, evidence: Evidence, found: Searched) -> Certificate:
    """Compare an approximate evidence with unbiased estimates for some of the drawn models.

    The figures are ``inclusion_change``, the largest one, and ``log_evidence_shift``. There are none if the evidence is
    exact. Estimates that are too noisy to certify the evidence are a fault too.
    """
    proposal: Any = evidence
    if evidence.exact:
        return Certificate("", {})
    rng, bits = np.random.default_rng(0), np.concatenate(found.bits)
    seconds = seconds_per_model("importance_laplace", form, space.n_candidates, POINTS)
    n = int(np.clip(LONG / seconds, FEWEST_MODELS, MODELS))
    models, counts = np.unique(bits[rng.integers(len(bits), size=n)], axis=0, return_counts=True)
    columns, p = space.columns(models), counts / n
    estimates = ImportanceEvidence(proposal, POINTS, tails=True)
    estimated, variance = estimates.with_variance(columns, rng)
    approximate = evidence(columns, rng)
    error = estimated - approximate
    shift = float(logsumexp(error, b=p))
    ratio = np.exp(error - shift)
    change = (p * ratio) @ models - p @ models
    apart = models - (p * ratio) @ models
    # The models are draws, and their evidences are estimates.
    noise = np.sqrt((p * (ratio - 1) ** 2) @ apart**2 / n + (p**2 * ratio**2 * variance) @ apart**2)
    checked = _Checked(models, approximate, error, variance)
    unseen, *of_unseen = _of_neighbours(space, evidence, estimates, checked, found.inclusion, n, rng)
    change[unseen], noise[unseen] = of_unseen
    noise_of_shift = np.sqrt(p @ (ratio - 1) ** 2 / n + p**2 @ (ratio**2 * variance))
    figures: dict[str, float | int] = {
        "inclusion_change": float(np.abs(change).max(initial=0.0)),
        "log_evidence_shift": shift,
    }
    trouble = _judged(change, noise, shift, float(noise_of_shift), space.names)
    if trouble:
        instead = "'ep' or 'importance_ep'" if evidence.name == "laplace" else "'importance_ep'"
        trouble = f"unbiased estimates for {n} drawn models {trouble}: use evidence={instead}"
    return Certificate(trouble, figures, np.hypot(change, noise), float(np.hypot(shift, noise_of_shift)))


class _Checked(NamedTuple):
    """Models ``(k, m)`` with their evidences, logs of their estimates over these, and relative variances of the estimates."""

    models: Bits
    log_evidence: Array
    error: Array
    variance: Array


def _of_neighbours(
    space: ModelSpace,
    evidence: Evidence,
    estimates: ImportanceEvidence,
    checked: _Checked,
    inclusion: Array,
    most: int,
    rng: np.random.Generator,
) -> tuple[Index, Array, Array]:
    """Return candidates that are the same in all checked models, at most ``most``; the change of their inclusions, its noise.

    Each is switched in one of these models. The ratio of the two evidences is the candidate's odds if no model has it.
    """
    on = checked.models[0]
    same = np.flatnonzero((checked.models == on).all(axis=0))
    away = np.where(on, 1.0 - inclusion, inclusion)
    same = same[np.argsort(-away[same], kind="stable")][:most]
    row = rng.integers(len(checked.models), size=len(same))
    near = checked.models[row]
    near[np.arange(len(same)), same] ^= True
    allowed = np.isfinite(space.log_prior(near))
    same, row, near = same[allowed], row[allowed], near[allowed]
    if not len(same):
        return same, np.zeros(0), np.zeros(0)
    there = space.columns(near)
    with np.errstate(invalid="ignore"):
        approximate, (estimated, variance) = evidence(there, rng), estimates.with_variance(there, rng)
        log_ratio = approximate - checked.log_evidence[row]
        log_ratio += space.log_prior(near) - space.log_prior(checked.models[row])
        further = estimated - approximate - checked.error[row]
    known = np.isfinite(further)
    same, row, further = same[known], row[known], further[known]
    away = away[same]
    odds_of_neighbour = expit(np.minimum(log_ratio[known], -np.log(most)))
    changed = expit(logit(np.where(away > 0, away, odds_of_neighbour)) + further)
    noise = changed * (1.0 - changed) * np.sqrt(variance[known] + checked.variance[row])
    return same, np.where(on[same], -1.0, 1.0) * (changed - away), noise


def _judged(change: Array, noise: Array, shift: float, noise_of_shift: float, names: tuple[str, ...]) -> str:
    """Return what the estimates change by more than their noise, or what is too noisy to be certified."""
    change, noise = np.append(change, 0.0), np.append(noise, 0.0)  # a space of one model has no inclusions
    worst, noisiest = int(np.argmax(np.abs(change) - NOISES * noise)), int(np.argmax(noise))
    if np.abs(change[worst]) > LARGEST_CHANGE + NOISES * noise[worst]:
        return f"change the inclusion of {names[worst]} by {change[worst]:+.2f}"
    if abs(shift) > LARGEST_SHIFT + NOISES * noise_of_shift:
        return f"change the log evidence of the search by {shift:+.2g}"
    if not NOISES * noise[noisiest] <= LARGEST_CHANGE:
        return (
            "are too noisy to check its evidences: their error in the inclusion of "
            f"{names[noisiest]} is {NOISES * noise[noisiest]:.2g} (limit {LARGEST_CHANGE})"
        )
    if not NOISES * noise_of_shift <= LARGEST_SHIFT:
        error = NOISES * noise_of_shift
        return f"are too noisy to check its evidences: their error in the log evidence is {error:.2g} (limit {LARGEST_SHIFT})"
    return ""


def certify_convergence(space: ModelSpace, evidence: Evidence, models: Listed) -> Certificate:
    """Return the number of listed models whose evidence did not converge, and their probability; a large one is a fault."""
    unconverged = evidence.unconverged(space.columns(models.bits))
    if not unconverged.any():
        return Certificate("", {})
    share = float(models.probability[unconverged].sum())
    figures: dict[str, float | int] = {"unconverged_models": int(unconverged.sum()), "unconverged_probability": share}
    if share <= LARGEST_UNCONVERGED:
        return Certificate("", figures)
    first = models.bits[unconverged][np.argmax(models.probability[unconverged])]
    return Certificate(
        f"{evidence.name.upper()} did not converge for {unconverged.sum()} of {len(unconverged)} models, which have "
        f"{100 * share:.3g} % of the probability, the first with {_described(first, space)}: use evidence='importance_ep'",
        figures,
    )


def certify_modes(space: ModelSpace, evidence: Evidence, models: Listed) -> Certificate:
    """Return how much probability other modes of the most probable models move; a large one is a fault.

    A model whose evidence misses the mode with most of its mass is improbable, so that its share in the sum of the
    corrected probabilities counts.
    """
    best = np.argsort(-models.probability, kind="stable")[:MODES_SOUGHT]
    gain = evidence.gain_of_other_modes(space.columns(models.bits[best]))
    if not (gain > 0).any():
        return Certificate("", {})
    p = models.probability[best]
    corrected = p * np.exp(gain)
    moved = float(0.5 * np.abs(corrected / corrected.sum() - p / p.sum()).sum())
    shift = float(np.log(corrected.sum() / p.sum()))
    if moved <= LARGEST_CHANGE and shift <= LARGEST_SHIFT:
        return Certificate("", {"other_modes_move": moved}, moved, shift)
    first, who = models.bits[best[np.argmax(gain)]], "importance sampling" if evidence.exact else evidence.name.upper()
    return Certificate(
        f"{who} misses modes of {(gain > 0).sum()} of {len(best)} models, the largest with "
        f"{_described(first, space)}, which move {100 * moved:.3g} % of the probability and {shift:.2g} nats of the log "
        "evidence: use sample_smc and compare_evidence",
        {"other_modes_move": moved},
        moved,
        shift,
    )


def _described(bits: Bits, space: ModelSpace) -> str:
    """Return the names of a model's candidates, at most the first three."""
    on = [name for name, bit in zip(space.names, bits, strict=True) if bit]
    return (", ".join(on[:3]) + (f" and {len(on) - 3} more" if len(on) > 3 else "")) or "no candidate"
