"""Whether a run can be trusted, from figures it already has: mixing per stage, lineages, agreement of the runs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from ppl_backends.errors import SamplerWarning
from ppl_backends.smc.evidence import EvidenceEstimate
from ppl_backends.smc.sampler import SMCRun

__all__ = ["distrust", "warn_if_distrusted"]

_MEMORY_LEFT = 0.15  # correlation with the particles before the moves, above which a stage did not mix
_FEW_LINEAGES = 20


def distrust(runs: Sequence[SMCRun], evidence: EvidenceEstimate) -> list[str]:
    """Reasons, each with its figure, not to trust the evidence and the draws; empty for a healthy result."""
    reasons = []
    incomplete = [run for run in runs if not run.complete]
    if incomplete:
        reached = min(run.stages[-1].exponent for run in incomplete)
        reasons.append(f"{len(incomplete)} of {len(runs)} chains stopped before exponent 1 (at {reached:.3g})")
    moves = [stage.moves for run in runs for stage in [*run.start_stages, *run.stages] if stage.moves is not None]
    if moves:
        worst = max(moves, key=lambda move: move.correlation)
        if worst.correlation > _MEMORY_LEFT:
            slow = sum(move.correlation > _MEMORY_LEFT for move in moves)
            reasons.append(
                f"the particles did not forget where they were at {slow} of {len(moves)} stages (after {worst.n_moves} "
                f"moves a correlation of {worst.correlation:.2f} is left, acceptance {worst.acceptance:.2f}); raise "
                "max_moves"
            )
        fewest = min(run.stages[-1].n_lineages for run in runs)
        if fewest < _FEW_LINEAGES:
            reasons.append(f"only {fewest} initial particles have descendants; raise draws")
    if evidence.runs_disagree:
        reasons.append(
            f"the chains' log evidences spread by {evidence.spread:.2f} (standard deviation), more than the error each "
            "reports"
        )
    return reasons


def warn_if_distrusted(reasons: Sequence[str]) -> None:
    """One :class:`SamplerWarning` with all the reasons."""
    if reasons:
        text = "tempering SMC: do not trust this evidence yet: " + "; ".join(reasons)
        warnings.warn(text, SamplerWarning, stacklevel=3)
