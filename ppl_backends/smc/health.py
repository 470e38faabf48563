"""Whether a run can be trusted, from figures it already has: mixing per stage, lineages, agreement of the runs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from ppl_backends.errors import SamplerWarning
from ppl_backends.smc.evidence import EvidenceEstimate
from ppl_backends.smc.sampler import SMCRun

__all__ = ["distrust", "warn_if_distrusted"]

_MEMORY_LEFT = 0.3  # correlation with the particles before the moves, above which a stage did not mix
_FEW_LINEAGES = 20


def distrust(runs: Sequence[SMCRun], evidence: EvidenceEstimate) -> list[str]:
    """Reasons, each with its figure, not to trust the evidence and the draws; empty for a healthy result."""
    reasons = []
    incomplete = [run for run in runs if not run.complete]
    if incomplete:
        reached = min(run.stages[-1].exponent for run in incomplete)
        reasons.append(f"{len(incomplete)} of {len(runs)} chains stopped before exponent 1 (at {reached:.3g})")
    stages = [stage for run in runs for stage in run.stages if stage.moves is not None]
    if stages:
        worst = max(stages, key=lambda stage: stage.moves.correlation)
        if worst.moves.correlation > _MEMORY_LEFT:
            slow = sum(stage.moves.correlation > _MEMORY_LEFT for stage in stages)
            reasons.append(
                f"the particles did not forget where they were at {slow} of {len(stages)} stages (after "
                f"{worst.moves.n_moves} moves a correlation of {worst.moves.correlation:.2f} is left, acceptance "
                f"{worst.moves.acceptance:.2f}); raise max_moves"
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


def efficiency(run: SMCRun) -> float:
    """ESS over n of a run that was one importance step, else NaN."""
    return run.stages[0].ess / len(run.x) if run.weighted is not None else np.nan
