"""A second run, finer than the first, where the first shows that it was too coarse.

Where modes separate, one that has little mass there and much later on is held by few chains, and particles of the others do
not cross to it. A step that keeps half of all particles may keep next to none of those. No figure shows it then; at the end
the means rest on few lineages, or differ between runs. So the second run begins four times as many chains at every
temperature, each of as many moves, and keeps nine tenths of the particles at every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ppl_backends.smc.evidence import EvidenceEstimate
from ppl_backends.smc.health import disagreement_with_path_sampling, few_independent_draws
from ppl_backends.smc.records import SMCResult
from ppl_backends.smc.schedule import Schedule

__all__ = ["finer", "is_too_coarse"]

_SHARE = 0.9  # of the particles, which a step keeps
_MORE_CHAINS, _SHORTEST = 4, 2  # times as many, and states that are kept of each at least


def is_too_coarse(runs: Sequence[SMCResult], evidence: EvidenceEstimate) -> bool:
    """Return whether means or evidence of finished runs rest on too little, or contradict each other.

    Where few draws of the start were inside the support, no ladder mends it.
    """
    if not all(run.complete for run in runs) or any(run.n_start_draws > len(run.x) for run in runs):
        return False
    return (
        evidence.runs_disagree
        or bool(few_independent_draws(runs, enough=2.0))
        or bool(disagreement_with_path_sampling(runs))
    )


def finer(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a finer run, where the ladder was left to the run."""
    changed: dict[str, Any] = {"schedule": Schedule(fraction=_SHARE)}
    length, moves = options["len_chain"], options["moves"]
    if length is not None:
        changed["len_chain"] = max(_SHORTEST, length // _MORE_CHAINS)
        changed["moves"] = replace(moves, minimum=min(max(moves.minimum, length - 1), moves.maximum))
    return {**options, **changed}
