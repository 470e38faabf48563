"""``sample_smc(path="data")`` and ``update_smc``: posteriors that grow with their data.

What comes back is InferenceData like everywhere else, with what it takes to go on inside: the particles on the unconstrained
space, which initial particle each descends from and what that one has contributed to the error of the evidence. So a result
can be written to a file today and updated tomorrow, in another process.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from ppl_backends.errors import ModelError
from ppl_backends.kernels.protocol import Kernel
from ppl_backends.kernels.table import KERNELS
from ppl_backends.options import checked, choice, instance, integer, none, number
from ppl_backends.parallel import map_independent
from ppl_backends.progress import ChainProgress
from ppl_backends.random import spawn_generators
from ppl_backends.results.inference_data import as_inference_data, group, inference_data
from ppl_backends.smc.data_path import BlockPath, DataPath, DataRun, begin, beginning, run_data_path
from ppl_backends.smc.evidence import LineageVariance, PathSampling, combine_evidence
from ppl_backends.smc.health import Verdict, distrust, split_finished, warn_if_distrusted
from ppl_backends.smc.moves import MoveSettings
from ppl_backends.smc.results import smc_inference_data, with_prior_error
from ppl_backends.smc.sampler import SMCResult, SMCState
from ppl_backends.smc.schedule import Schedule, make_schedule
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["sample_data_path", "update_smc"]

_CHECKED_POINTS = 8
_SAME = 1e-6  # relative difference of log densities that should be equal


class _Options(NamedTuple):
    """What every chain is run with."""

    draws: int
    schedule: Schedule
    moves: MoveSettings
    max_time: float | None


class _Job(NamedTuple):
    """One chain, complete, so that it can be sent elsewhere; ``run`` is None for one that begins."""

    data: DataPath
    kernel: Kernel
    options: _Options
    rng: np.random.Generator
    run: DataRun | None
    report: Any


def sample_data_path(
    target: BaseTarget,
    *,
    draws: int,
    chains: int,
    kernel: str,
    schedule: Schedule,
    moves: MoveSettings,
    executor: Executor | None,
    max_time: float | None,
    random_seed: Any,
    progressbar: bool,
    log_likelihood: bool,
    log_prior: bool,
) -> Any:
    """What :func:`~ppl_backends.sample_smc` does with ``path="data"``."""
    clock = time.perf_counter()
    *generators, result_rng, prior_rng = spawn_generators(random_seed, chains + 2)
    data = _data_path(target, prior_rng)
    options = _Options(draws, schedule, moves, max_time)
    runs = _run_chains(data, _kernel(kernel, data), options, generators, [None] * chains, executor, progressbar)
    before = np.zeros((chains, draws))
    return _result(data, kernel, runs, before, result_rng, clock, log_likelihood=log_likelihood, log_prior=log_prior)


@checked(
    idata=inference_data("posterior", "sample_stats"),
    new_data=none | instance(Mapping, "a mapping of names to new rows"),
    kernel=choice("auto", *KERNELS),
    ess_threshold=number(above=0, below=1) | choice("auto"),
    min_moves=integer(1),
    max_moves=integer(1),
)
def update_smc(
    idata: Any,
    model: Any,
    new_data: Mapping[str, Any] | None = None,
    *,
    data: Any = None,
    kernel: str = "auto",
    ess_threshold: float | str = "auto",
    min_moves: int = 1,
    max_moves: int = 100,
    cores: int | None = None,
    executor: Executor | None = None,
    max_time: float | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    log_likelihood: bool = False,
    log_prior: bool = False,
    **target_options: Any,
) -> Any:
    r"""Let new observations into a posterior, without starting again.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        From ``sample_smc(path="data")`` or from this function. It is not changed.
    model : pymc.Model, Stan program or Target
        The model. Without ``new_data`` it holds all observations, the new ones after those that ``idata`` has seen.
    new_data : mapping, optional
        The new rows alone, by name: values of ``pm.Data`` containers, or of the data variables that ``rows=`` names for a
        Stan program. They are put behind the rows of ``model``, along the first axis (in Stan along that of the rows).
    data : dict or path, optional
        Data of a Stan program, so far.
    kernel, ess_threshold, min_moves, max_moves, cores, executor, max_time, random_seed, progressbar
        As for :func:`~ppl_backends.sample_smc`.
    log_likelihood, log_prior : bool
        As for :func:`~ppl_backends.sample_smc`.
    **target_options
        Passed on to :func:`~ppl_backends.as_target`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        As from ``sample_smc(path="data")``. ``log_evidence`` is that of all rows; ``log_evidence_new`` and
        ``log_evidence_new_se`` are of the new ones given the old, log p(new | old).

    Raises
    ------
    ModelError
        If ``idata`` cannot be continued, or its rows are not the first ones of the model.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.targets.factors import Logit
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(30, 2)), rng.integers(0, 2, size=30)
    >>> def regression(n):
    ...     return pb.Factors(X[:n], 0.0, Logit(y[:n]), prior_mean=0.0, prior_precision=0.25)
    >>> options = {"random_seed": 1, "progressbar": False}
    >>> yesterday = pb.sample_smc(regression(20), path="data", draws=200, chains=2, **options)
    >>> today = pb.update_smc(yesterday, regression(30), **options)
    >>> int(today.posterior.attrs["n_observations"])
    30
    """
    clock = time.perf_counter()
    target = as_target(model, data, cores=cores, **target_options)
    if new_data is not None:
        target = target.append(new_data)
    *generators, prior_rng, result_rng = spawn_generators(random_seed, _chains(idata) + 2)
    path = _data_path(target, prior_rng)
    chosen = _kernel(kernel, path)
    runs = _restored(idata, path, chosen, generators)
    before = np.stack([run.progress.lineage.contribution for run in runs])
    options = _Options(
        before.shape[1], make_schedule("ess", ess_threshold), MoveSettings(min_moves, max_moves), max_time
    )
    runs = _run_chains(path, chosen, options, generators, runs, executor, progressbar)
    return _result(path, kernel, runs, before, result_rng, clock, log_likelihood=log_likelihood, log_prior=log_prior)


def _data_path(target: BaseTarget, rng: np.random.Generator) -> DataPath:
    from ppl_backends.smc.sample import prior_path

    return DataPath(target, prior_path(target, rng))  # type: ignore[arg-type]


def _kernel(name: str, data: DataPath) -> Kernel:
    from ppl_backends.smc.sample import choose_kernel

    return choose_kernel(name, data)  # type: ignore[arg-type]


def _run_chains(
    data: DataPath,
    kernel: Kernel,
    options: _Options,
    generators: Sequence[np.random.Generator],
    runs: Sequence[DataRun | None],
    executor: Executor | None,
    progressbar: bool,
) -> list[DataRun]:
    fields = ("rows", "ESS", "acceptance", "moves", "log Z")
    with ChainProgress("SMC", len(runs), fields, enabled=progressbar) as progress:
        jobs = [
            _Job(data, kernel, options, rng, run, None if executor else partial(_show, progress, data.n, chain))
            for chain, (rng, run) in enumerate(zip(generators, runs, strict=True))
        ]
        done = map_independent(_run, jobs, executor)
        for chain, run in enumerate(done):
            _show(progress, data.n, chain, run)
    return done


def _run(job: _Job) -> DataRun:
    settings: dict[str, Any] = {
        "schedule": job.options.schedule,
        "moves": job.options.moves,
        "max_time": job.options.max_time,
    }
    run = job.run or begin(job.data, job.kernel, job.options.draws, job.rng, settings)
    return run_data_path(job.data, job.kernel, run, **settings, report=job.report)


def _show(progress: ChainProgress, n: int, chain: int, run: DataRun) -> None:
    stage = run.progress.stages[-1]
    figures: dict[str, float | str] = {
        "rows": f"{run.seen}",
        "ESS": f"{stage.ess:.0f}",
        "log Z": f"{stage.log_evidence:.2f}",
    }
    if stage.moves is not None:
        figures |= {"acceptance": stage.moves.acceptance, "moves": f"{stage.moves.n_moves}"}
    progress.update(chain, run.seen / max(n, 1), **figures)


def _result(
    data: DataPath,
    kernel: str,
    runs: Sequence[DataRun],
    before: Array,
    rng: np.random.Generator,
    clock: float,
    *,
    log_likelihood: bool,
    log_prior: bool,
) -> Any:
    """InferenceData with the rows seen, their scores, and what it takes to go on."""
    finished, unfinished = split_finished([_finish(data, run) for run in runs], len(runs), False)
    chosen = [run for run in runs if not unfinished or run.seen == data.n] or list(runs)
    before = before[[runs.index(run) for run in chosen]] if len(chosen) < len(runs) else before
    evidence = with_prior_error(_combined(finished, before * 0.0, np.zeros(len(finished))), data.prior)
    verdict = Verdict(evidence, "tempering", distrust(finished, evidence))
    warn_if_distrusted(unfinished, verdict.reasons)
    idata = smc_inference_data(
        data,
        _kernel(kernel, data).name,
        finished,
        verdict,
        unfinished,
        rng=rng,
        sampling_time=time.perf_counter() - clock,
        log_likelihood=log_likelihood,
        log_prior=log_prior,
    )
    new = _combined(finished, before, np.array([run.progress.stages[0].log_evidence for run in chosen]))
    attrs = {
        "path": "data",
        "n_observations": min(run.seen for run in chosen),
        "log_evidence_new": new.log_evidence,
        "log_evidence_new_se": new.standard_error,
    }
    return _with_state(idata, chosen, attrs)


def _combined(runs: Sequence[SMCResult], before: Array, log_evidence_before: Array) -> Any:
    """The evidence of what the runs let in since then."""
    rows = []
    for run, contribution, log_evidence in zip(runs, before, log_evidence_before, strict=True):
        since = LineageVariance(len(contribution))
        since.contribution = run.lineage.contribution - contribution
        rows.append((run.log_evidence - log_evidence, since.variance, since.df))
    return combine_evidence(*np.array(rows).T)


def _finish(data: DataPath, run: DataRun) -> SMCResult:
    """As a run of tempering: the beta is the share of the rows let in."""
    total = max(data.n, 1)
    stages = tuple(replace(stage, beta=rows / total) for stage, rows in zip(run.progress.stages, run.rows, strict=True))
    state = run.progress.state
    if run.seen < data.n:  # with all rows so far in the base, so that beta zero is the posterior reached
        state = BlockPath(data, run.seen, run.seen).evaluate(state.x, 0.0, False)
    return SMCResult(**vars(replace(run.progress, stages=stages, state=state)))


def _with_state(idata: Any, runs: Sequence[DataRun], attrs: Mapping[str, Any]) -> Any:
    """The same InferenceData with the groups and figures that this path adds."""
    groups = _groups(idata)
    posterior, stats = groups["posterior"], groups["sample_stats"]
    rows = np.full((len(runs), stats.sizes["stage"]), np.nan)
    for chain, run in enumerate(runs):
        rows[chain, : len(run.rows)] = run.rows
    contribution = np.stack([run.progress.lineage.contribution for run in runs])
    seen = max(run.seen for run in runs)
    scores = np.full((len(runs), seen), np.nan)
    for chain, run in enumerate(runs):
        scores[chain, : run.seen] = run.log_scores
    x = np.stack([run.progress.state.x for run in runs])
    groups["posterior"] = posterior.assign_attrs(attrs)
    groups["sample_stats"] = stats.assign(
        n_observations=(("chain", "stage"), rows), lineage_contribution=(("chain", "draw"), contribution)
    )
    coords = {"unconstrained_parameter": stats["unconstrained_parameter"]}
    groups["unconstrained_posterior"] = xr.Dataset(
        {"x": (("chain", "draw", "unconstrained_parameter"), x)}, coords={**_indices(x), **coords}
    )
    groups["prequential"] = xr.Dataset(
        {"log_score": (("chain", "observation"), scores)},
        coords={"chain": np.arange(len(runs)), "observation": np.arange(seen)},
    )
    return as_inference_data(groups)


def _indices(x: Array) -> dict[str, Any]:
    return {"chain": np.arange(x.shape[0]), "draw": np.arange(x.shape[1])}


def _groups(idata: Any) -> dict[str, xr.Dataset]:
    """All groups of either kind of InferenceData."""
    names = idata.groups() if callable(getattr(idata, "groups", None)) else list(idata.children)
    return {name.strip("/"): group(idata, name.strip("/")) for name in names}


def _chains(idata: Any) -> int:
    attrs = group(idata, "posterior").attrs
    if attrs.get("path") != "data":
        raise ModelError(
            "update_smc: this result cannot go on; it takes one of sample_smc(path='data') or of update_smc"
        )
    return group(idata, "posterior").sizes["chain"]


def _restored(idata: Any, data: DataPath, kernel: Kernel, generators: Sequence[np.random.Generator]) -> list[DataRun]:
    """The chains as they were when the result was made.

    Raises
    ------
    ModelError
        If the model is another, or the rows seen are not its first ones.
    """
    attrs, stats = group(idata, "posterior").attrs, group(idata, "sample_stats")
    points = group(idata, "unconstrained_posterior")
    if [str(name) for name in points["unconstrained_parameter"].values] != list(data.target.names):
        raise ModelError(f"update_smc: the parameters of {data.target.label} are not those of the result")
    seen_by_chain = np.nanmax(stats["n_observations"].values, axis=1).astype(int)
    if seen_by_chain.max() > data.n:
        raise ModelError(
            f"update_smc: the result has seen {seen_by_chain.max()} observations, {data.target.label} has {data.n}"
        )
    scores = group(idata, "prequential")["log_score"].values
    runs = []
    for chain, rng in enumerate(generators):
        x, seen = np.ascontiguousarray(points["x"].values[chain]), int(seen_by_chain[chain])
        state = BlockPath(data, seen, seen).evaluate(x, 0.0, kernel.uses_gradient)
        _check_rows(state.log_density, stats["lp"].values[chain], seen, data)
        lineage = LineageVariance(len(x))
        lineage.ancestor = stats["ancestor"].values[chain].astype(np.intp)
        lineage.contribution = stats["lineage_contribution"].values[chain].copy()
        scales = stats["scale"].values[chain]
        known = scales[np.isfinite(scales)]
        log_evidence = float(stats["log_evidence_single_run"].values[chain])
        progress = SMCState(
            state=state,
            rng=rng,
            lineage=lineage,
            path_sampling=PathSampling(len(x), log_evidence),
            scale=float(known[-1]) if len(known) else kernel.initial_scale(data.target.dim),
            log_evidence=log_evidence,
            log_normalizer=float(attrs.get("log_prior_normalizer", 0.0)),
        )
        runs.append(DataRun(beginning(progress), seen, (float(seen),), scores[chain, :seen]))
    return runs


def _check_rows(now: Array, then: Array, seen: int, data: DataPath) -> None:
    """The density of the rows seen must be what it was."""
    now, then = now[:_CHECKED_POINTS], then[:_CHECKED_POINTS]
    if not np.allclose(now, then, rtol=_SAME, atol=_SAME):
        raise ModelError(
            f"update_smc: the first {seen} observations of {data.target.label} are not those that the result has seen "
            f"(log density {now[0]:.6g} there, {then[0]:.6g} in the result)"
        )
