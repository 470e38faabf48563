"""Runs again from a density fitted to the last particles in their non-centred coordinates.

A path from a Gaussian to a funnel reaches the neck with few particles. There moves find no change of variables at first,
the particles lag behind, and the evidence of tempering is too low by several of its own errors. The last particles, which
were moved in non-centred coordinates since, are nearer to the posterior. A bridge from them replaces tempering. If there
is no bridge, the path starts again, from the density that would have been the other one of the bridge, mixed with
Student t's if the posterior's tails in the new coordinates need them. It is so near that few steps are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ppl_backends.importance.noncentred import NonCentred, fit_noncentred
from ppl_backends.smc.evidence import EvidenceEstimate
from ppl_backends.smc.health import PRECISE, Verdict
from ppl_backends.smc.path import BridgePath, TemperingPath
from ppl_backends.smc.records import SMCResult

_STRAINED = 1.5  # times the error of tempering by itself


def lacks_a_bridge(verdict: Verdict, attrs: Mapping[str, Any]) -> bool:
    """Return whether the evidence is that of tempering, without a precise bridge beside it."""
    return _reports_tempering(verdict) and not attrs.get("log_evidence_bridge_se", np.inf) <= PRECISE


def has_an_unused_bridge(verdict: Verdict, attrs: Mapping[str, Any]) -> bool:
    """Return whether the evidence is that of tempering although there is a bridge with a smaller error.

    Such a bridge may not replace tempering, because the last particles did not mix.
    """
    error = verdict.evidence.standard_error
    return _reports_tempering(verdict) and attrs.get("log_evidence_bridge_se", np.inf) < error


def is_strained(verdict: Verdict, evidence: EvidenceEstimate) -> bool:
    """Return whether the error of tempering is mostly its difference from a bridge that may not replace it, and large.

    Separated modes that the ladder gave wrong shares look like that. The draws have these shares, too.
    """
    error = verdict.evidence.standard_error
    return _reports_tempering(verdict) and error > PRECISE and error > _STRAINED * evidence.standard_error


def _reports_tempering(verdict: Verdict) -> bool:
    return verdict.method == "tempering" and not verdict.interrupted


def is_straightened(path: TemperingPath) -> bool:
    """Return whether the path starts in non-centred coordinates."""
    return isinstance(path.approximation, NonCentred)


def straightened_path(path: TemperingPath, runs: Sequence[SMCResult]) -> BridgePath | None:
    """Return the path from a density fitted to the last particles; None if runs reached no funnel late.

    There is none for separated modes either, because the particles' shares of them may be wrong.
    """
    if not path.draws_are_independent or not _reached_late(path, runs):
        return None
    x = np.concatenate([run.x for run in runs])
    fitted = fit_noncentred(path.target, x, path.evaluate(x, 1.0, True).gradient)
    if fitted is None:
        return None
    start = NonCentred(fitted.gaussian, fitted.change, f"non-centred draws of a run from {path.origin}")
    return BridgePath(path.target, start, None if fitted.tails is None else start._replace(q=fitted.tails))


def reasons_of_late_change(path: TemperingPath, runs: Sequence[SMCResult]) -> list[str]:
    """Return a reason for distrust if runs that cannot be made again reached a funnel late."""
    changed = _reached_late(path, runs)
    if not changed:
        return []
    return [
        f"the path leads into a funnel (its last moves standardised {changed} coordinates), so the evidence may be too low, "
        "and no precise bridge shows by how much: leave unbiased, max_time, len_chain and schedule at their defaults, "
        "so that the run can be made again from its last particles"
    ]


def _reached_late(path: TemperingPath, runs: Sequence[SMCResult]) -> int:
    """Return the number of coordinates of a funnel that the last moves standardised, 0 if none was reached late.

    An approximation has few draws in the neck. Draws of a prior come late only if moves of a stage standardised fewer
    coordinates than the last ones.
    """
    if is_straightened(path):
        return 0
    counts = [run.non_centred or [0] for run in runs]
    return max((each[-1] for each in counts if path.approximation is not None or min(each) < each[-1]), default=0)
