"""SMC runs as InferenceData: draws, the ladder per chain and stage, lineages, and the evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ppl_backends.numerics.weights import log_mean_exp
from ppl_backends.results import build_inference_data
from ppl_backends.smc.evidence import EvidenceEstimate, combine_evidence, sums_by_lineage
from ppl_backends.smc.health import Verdict
from ppl_backends.smc.ladder import ladder_group
from ppl_backends.smc.path import TemperingPath
from ppl_backends.smc.records import SMCResult, Stage
from ppl_backends.smc.sampler import SampledPriorPath
from ppl_backends.targets.integral import PriorIntegral, stated_integral
from ppl_backends.targets.propriety import improper_note
from ppl_backends.targets.protocol import Array, Index


def smc_inference_data(
    path: TemperingPath,
    kernel_name: str,
    runs: Sequence[SMCResult],
    verdict: Verdict,
    unfinished: str,
    *,
    rng: np.random.Generator,
    sampling_time: float,
    log_likelihood: bool,
    log_prior: bool,
    attrs: Mapping[str, Any] | None = None,
    looks_beyond: bool = False,
) -> Any:
    """Return the result of :func:`~ppl_backends.sample_smc`; ``attrs`` are further attributes.

    Heavy tails are looked for beyond the draws (``looks_beyond``) where the density of the target is that of the draws.
    """
    reached, evidence = all(run.complete for run in runs), verdict.evidence
    path_sampling = log_mean_exp([run.path_sampling.log_evidence for run in runs])
    integral = prior_normalizer(path, runs)
    attrs = dict(attrs or {}) | {
        "log_evidence": evidence.log_evidence if reached else None,
        "log_evidence_se": evidence.standard_error if reached else None,
        "log_evidence_df": evidence.df if reached else None,
        "log_evidence_method": verdict.method if reached else None,
        "log_evidence_path_sampling": float(path_sampling) if reached else None,
        "log_evidence_trusted": int(reached and verdict.trusted),
        "warnings": "; ".join(said for said in (unfinished, verdict.warnings) if said),
        "complete": int(not unfinished),
        "initial": path.description,
        "kernel": kernel_name,
        "log_evidence_note": improper_note(path.target),
    }
    if integral is not None:
        attrs |= integral.attrs(evidence.log_evidence if reached else None)
    return build_inference_data(
        path.target,
        np.stack([run.x for run in runs]),
        method="tempering SMC",
        accuracy="exact" if reached and verdict.trusted else "approximate",
        sampling_time=sampling_time,
        rng=rng,
        attrs=attrs,
        sample_stats=ladder_stats(runs),
        extra_groups=_weighted_points(runs) | _ladder(runs),
        log_likelihood=log_likelihood,
        log_prior=log_prior,
        looks_beyond=looks_beyond,
    )


def evidence_attrs(tempering: EvidenceEstimate, bridge: EvidenceEstimate | None) -> dict[str, float]:
    """Return the evidences of both methods, whichever is reported."""
    found = {"tempering": tempering} if bridge is None else {"tempering": tempering, "bridge": bridge}
    attrs = {f"log_evidence_{name}": estimate.log_evidence for name, estimate in found.items()}
    return attrs | {f"log_evidence_{name}_se": estimate.standard_error for name, estimate in found.items()}


def prior_normalizer(path: TemperingPath, runs: Sequence[SMCResult]) -> PriorIntegral | None:
    """Return the log integral of the prior if it is known, from the runs that drew it or from the target."""
    if path.integral is None:
        return stated_integral(path.target)
    if not isinstance(path, SampledPriorPath):
        return path.integral._replace(log_integral=runs[0].start.log_normalizer)
    found = combine_evidence(
        *np.array([(run.start.log_normalizer, run.start.variance, run.start.df) for run in runs]).T
    )
    return PriorIntegral(found.log_evidence, found.standard_error, found.df)


def with_prior_error(evidence: EvidenceEstimate, path: TemperingPath) -> EvidenceEstimate:
    """Return the evidence of runs that start from a prior whose integral is an estimate, which they share."""
    return evidence if path.integral is None else with_error_of(path.integral, evidence)


def with_error_of(integral: PriorIntegral, evidence: EvidenceEstimate) -> EvidenceEstimate:
    """Return the evidence with the error of an estimated integral added to its own."""
    error, df = integral.added_to(evidence.standard_error, evidence.df)
    return evidence._replace(standard_error=error, df=df)


_STAGE_FIGURES: dict[str, Callable[[Stage], float]] = {
    "beta": lambda stage: stage.beta,
    "log_marginal_likelihood": lambda stage: stage.log_evidence,
    "ess": lambda stage: stage.ess,
    "n_lineages": lambda stage: stage.n_lineages,
    "n_distinct": lambda stage: stage.n_distinct,
    "accept_rate": lambda stage: stage.moves.acceptance if stage.moves else np.nan,
    "n_moves": lambda stage: stage.moves.n_moves if stage.moves else 0,
    "scale": lambda stage: stage.moves.scale if stage.moves else np.nan,
    "correlation": lambda stage: stage.moves.correlation if stage.moves else np.nan,
    "squared_jump": lambda stage: stage.moves.squared_jump if stage.moves else np.nan,
    "stuck": lambda stage: stage.moves.stuck if stage.moves else np.nan,
    "divergent": lambda stage: stage.moves.divergent if stage.moves else np.nan,
    "undefined": lambda stage: stage.moves.undefined if stage.moves else np.nan,
    "n_modes": lambda stage: stage.moves.n_modes if stage.moves else 1,
    "n_non_centred": lambda stage: stage.moves.non_centred if stage.moves else 0,
    "n_evaluations": lambda stage: stage.moves.gradients if stage.moves else 0,
}


def ladder_stats(
    runs: Sequence[SMCResult], coordinate: str = "unconstrained_parameter"
) -> dict[str, tuple[tuple[str, ...], Array]]:
    """Return per chain and stage the ladder, NaN-padded to the longest; per chain and draw the lineage.

    ``coordinate`` is the name of the dimension for figures of each coordinate.
    """
    longest, dim = max(len(run.stages) for run in runs), runs[0].x.shape[1]
    stats: dict[str, tuple[tuple[str, ...], Array]] = {}
    for name, figure in _STAGE_FIGURES.items():
        stats[name] = (("chain", "stage"), padded([[figure(stage) for stage in run.stages] for run in runs], longest))
    for name in ("mean", "sd"):
        ladder = padded([[getattr(stage, name) for stage in run.stages] for run in runs], longest, dim)
        stats[f"ladder_{name}"] = (("chain", "stage", coordinate), ladder)
    stats["undefined_start"] = (("chain",), np.array([run.start.undefined for run in runs]))
    stats["log_evidence_single_run"] = (("chain",), np.array([run.log_evidence for run in runs]))
    stats["log_evidence_single_run_se"] = (("chain",), np.array([run.lineage.variance**0.5 for run in runs]))
    stats["log_evidence_path_sampling"] = (
        ("chain",),
        np.array([run.path_sampling.log_evidence for run in runs]),
    )
    stats["sampling_seconds"] = (("chain",), np.array([run.seconds for run in runs]))
    ess = np.stack([lineage_ess(run.x, run.lineage.ancestor) for run in runs])
    stats["lineage_ess"] = (("chain", coordinate), ess)
    stats["lp"] = (("chain", "draw"), np.stack([run.log_density for run in runs]))
    stats["ancestor"] = (("chain", "draw"), np.stack([run.lineage.ancestor for run in runs]))
    return stats


def padded(rows: Sequence[Any], width: int, *shape: int) -> Array:
    """Return rows of different lengths, of elements of a shape, as a table ``(rows, width, *shape)`` padded with NaN."""
    table = np.full((len(rows), width, *shape), np.nan)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return table


def lineage_ess(x: Array, ancestor: Index) -> Array:
    """Return the effective number of draws per coordinate from the variance of the mean over independent lineages.

    Σ_e (Σ_{i: E_i = e} (x_i − x̄))² / n² estimates the variance of the mean. The ESS is the variance of x over it, at
    most n.
    """
    n = len(x)
    centred = x - x.mean(axis=0)
    variance_of_mean = (sums_by_lineage(centred, ancestor) ** 2).sum(axis=0) / n**2
    return np.minimum(n, x.var(axis=0) / np.maximum(variance_of_mean, 1e-300))


def _weighted_points(runs: Sequence[SMCResult]) -> dict[str, dict]:
    """Return group ``proposal`` with the weighted points if every run was one importance step."""
    weighted = [run.weighted for run in runs if run.weighted is not None]
    if len(weighted) < len(runs):
        return {}
    dims = ("chain", "point")
    return {
        "proposal": {
            "x": ((*dims, "unconstrained_parameter"), np.stack([points for points, _ in weighted])),
            "log_weight": (dims, np.stack([log_weights for _, log_weights in weighted])),
        }
    }


def _ladder(runs: Sequence[SMCResult]) -> dict[str, dict]:
    """Return group ``ladder`` with the particles of every temperature, if they were kept."""
    ladders = [run.ladder for run in runs if run.ladder is not None]
    return {"ladder": ladder_group(ladders)} if ladders else {}
