"""Runs over rows as InferenceData that a later run can continue, and back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from ppl_backends.errors import ModelError
from ppl_backends.kernels.protocol import Kernel
from ppl_backends.kernels.tuning import acceptance_tuning
from ppl_backends.results.inference_data import as_inference_data, group, group_names, with_states
from ppl_backends.smc.core import SMCState, Start, begin
from ppl_backends.smc.evidence import EvidenceEstimate, LineageVariance, combine_evidence
from ppl_backends.smc.health import (
    Verdict,
    distrust,
    figures_of,
    reasons_of_lone_chain,
    split_finished,
    warn_if_distrusted,
)
from ppl_backends.smc.records import SMCResult, Stage
from ppl_backends.smc.results import padded, smc_inference_data, with_prior_error
from ppl_backends.smc.rows import Prequential, RowsPath
from ppl_backends.smc.start import StartFigures
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.state_space.target import axis_of_rows

_CHECKED_POINTS = 8
_SAME = 1e-6  # relative difference of log densities that should be equal


def before_stages(
    path: RowsPath,
    kernel: Kernel,
    start: Start,
    rng: np.random.Generator,
    seen: Prequential,
    scale: float | None = None,
) -> SMCState:
    """Return a run whose first stage is its current particles, so that every following block is moved."""
    x, n, log_evidence = start.population.x, len(start.population.x), start.log_normalizer
    lineage = start.lineage or LineageVariance(n)
    figures = start.figures or StartFigures(log_evidence, lineage.variance, lineage.df)
    tuning = acceptance_tuning(kernel, kernel.initial_scale(x.shape[1]) if scale is None else scale, x.shape[1])
    records = {**path.records(log_evidence, n), "rows": seen}
    with np.errstate(all="ignore"):
        mean, sd = x.mean(axis=0), x.std(axis=0)
    reached = path.all_of(seen.seen)
    stage = Stage(reached.position, log_evidence, float(n), mean, sd, lineage.n_lineages, None, 0.0)
    begun = begin(start._replace(lineage=lineage, figures=figures), rng, tuning, records)
    return replace(begun, stage=reached, stages=(stage,))


def ibis_inference_data(
    path: RowsPath,
    kernel: str,
    runs: Sequence[SMCResult],
    asked: tuple[int, bool],
    *,
    rng: np.random.Generator,
    clock: float,
    log_likelihood: bool,
    log_prior: bool,
    states: bool = False,
) -> Any:
    """Return InferenceData with the rows seen, their scores, and the state that continues the run.

    ``asked`` is the number of chains asked for, and whether Ctrl-C ended them; ``clock`` is the time of the call's start.
    """
    runs, unfinished = split_finished(runs, *asked)
    figures = figures_of(runs)
    reasons = distrust(figures, names=path.target.names) + path.reasons(runs)
    reasons += path.causes(runs) if reasons else []
    reasons += reasons_of_lone_chain(runs, asked[0])
    verdict = Verdict(with_prior_error(figures.evidence, path), "tempering", reasons)
    warn_if_distrusted(unfinished, verdict.reasons)
    idata = smc_inference_data(
        path,
        kernel,
        runs,
        verdict,
        unfinished,
        rng=rng,
        sampling_time=time.perf_counter() - clock,
        log_likelihood=log_likelihood,
        log_prior=log_prior,
    )
    idata = _with_state(path, idata, runs, [run.records["rows"] for run in runs])
    return with_states(idata, path.states_of(runs, rng), *axis_of_rows(path.target)) if states else idata


def _with_state(path: RowsPath, idata: Any, runs: Sequence[SMCResult], rows: Sequence[Prequential]) -> Any:
    """Return the same InferenceData with the groups and figures that this path adds."""
    groups = {name: group(idata, name) for name in group_names(idata)}
    stats, new = groups["sample_stats"], _evidence_of_new(runs, rows)
    groups["posterior"] = groups["posterior"].assign_attrs(
        **path.attributes,
        path="data",
        n_observations=min(each.seen for each in rows),
        log_evidence_new=new.log_evidence,
        log_evidence_new_se=new.standard_error,
    )
    contribution = np.stack([run.lineage.contribution for run in runs])
    figures = {
        name: (("chain", "stage"), padded(values, stats.sizes["stage"]))
        for name, values in path.stage_figures(runs).items()
    }
    groups["sample_stats"] = stats.assign({**figures, "lineage_contribution": (("chain", "draw"), contribution)})
    x, seen = np.stack([run.x for run in runs]), max(each.seen for each in rows)
    coords: dict[str, Any] = {"chain": np.arange(x.shape[0]), "draw": np.arange(x.shape[1])}
    coords["unconstrained_parameter"] = stats["unconstrained_parameter"]
    groups["unconstrained_posterior"] = xr.Dataset({"x": (tuple(coords), x), **path.kept(runs)}, coords=coords)
    groups["prequential"] = xr.Dataset(
        {"log_score": (("chain", "observation"), padded([each.log_scores for each in rows], seen))},
        coords={"chain": np.arange(len(runs)), "observation": np.arange(seen)},
    )
    return as_inference_data(groups)


def _evidence_of_new(runs: Sequence[SMCResult], rows: Sequence[Prequential]) -> EvidenceEstimate:
    """Return the evidence of the rows that the runs added since they were started or continued."""
    found = []
    for run, each in zip(runs, rows, strict=True):
        since = LineageVariance(len(run.x))
        since.contribution = run.lineage.contribution - each.contribution
        found.append((run.log_evidence - run.stages[0].log_evidence, since.variance, since.df))
    return combine_evidence(*np.array(found).T)


def n_chains(idata: Any) -> int:
    """Return the number of chains of a result; refuse a result that cannot be continued."""
    posterior = group(idata, "posterior")
    if posterior.attrs.get("path") != "data":
        raise ModelError("update_smc: this result cannot be continued; give a result of sample_ibis or of update_smc")
    return posterior.sizes["chain"]


def restored(idata: Any, path: RowsPath, kernel: Kernel, generators: Sequence[np.random.Generator]) -> list[SMCState]:
    """Return the chains as they were when the result was made; refuse another model or other rows."""
    attrs, stats, target = group(idata, "posterior").attrs, group(idata, "sample_stats"), path.target
    points, scores = group(idata, "unconstrained_posterior"), group(idata, "prequential")["log_score"].values
    if [str(name) for name in points["unconstrained_parameter"].values] != list(target.names):
        raise ModelError(f"update_smc: the parameters of {target.label} are not those of the result")
    seen_by_chain = np.nanmax(stats["n_observations"].values, axis=1).astype(int)
    if seen_by_chain.max() > path.n:
        raise ModelError(
            f"update_smc: the result includes {seen_by_chain.max()} observations, {target.label} has {path.n}"
        )
    runs = []
    for chain, rng in enumerate(generators):
        x, seen = np.ascontiguousarray(points["x"].values[chain]), int(seen_by_chain[chain])
        population = path.again(x, seen, points, chain)
        _check_rows(population.log_density, stats["lp"].values[chain], seen, target.label)
        lineage = LineageVariance(len(x))
        lineage.ancestor = stats["ancestor"].values[chain].astype(np.intp)
        lineage.contribution = stats["lineage_contribution"].values[chain].copy()
        scales = stats["scale"].values[chain]
        known = scales[np.isfinite(scales)]
        log_evidence = float(stats["log_evidence_single_run"].values[chain])
        figures = StartFigures(float(attrs.get("log_prior_normalizer", 0.0)))
        start = Start(population, log_evidence, lineage, figures)
        rows = Prequential((float(seen),), scores[chain, :seen], lineage.contribution)
        runs.append(before_stages(path, kernel, start, rng, rows, float(known[-1]) if len(known) else None))
    if seen_by_chain.min() == path.n:
        raise ModelError(f"update_smc: no new rows: the result includes all {path.n} observations of {target.label}")
    return runs


def _check_rows(now: Array, then: Array, seen: int, label: str) -> None:
    """Refuse new data under which the density of the rows seen has changed."""
    now, then = now[:_CHECKED_POINTS], then[:_CHECKED_POINTS]
    if not np.allclose(now, then, rtol=_SAME, atol=_SAME):
        raise ModelError(
            f"update_smc: the first {seen} observations of {label} are not those of the result "
            f"(log density {now[0]:.6g} with the model, {then[0]:.6g} in the result)"
        )
