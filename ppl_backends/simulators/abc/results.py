"""Results of ABC as InferenceData: of a weighted last stage, or of populations."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import SamplerWarning, user_level
from ppl_backends.importance.outside import LARGEST_UNDEFINED, reasons_of_undefined
from ppl_backends.numerics.weights import systematic_resampling
from ppl_backends.results import build_inference_data, dims_of
from ppl_backends.simulators.abc.adjustment import adjusted
from ppl_backends.simulators.abc.failing import reason_of_failing
from ppl_backends.simulators.abc.importance import mean_with_error
from ppl_backends.simulators.abc.populations import PopulationsResult, PopulationStage, picked
from ppl_backends.simulators.abc.problem import AbcProblem
from ppl_backends.simulators.abc.sequential import Plan, SequentialResult
from ppl_backends.smc.evidence import ess_of_means, evidence_of_runs
from ppl_backends.targets.protocol import Array

__all__ = ["Found", "of_populations", "of_weighted_points", "to_inference_data"]

SMALLEST_SIZE = 100  # effective size below which a result is not trusted
UNITS_SEEN, SHOWN = 200, 5  # data sets, and standard deviations in a message
MOST = 0.9  # share of ε that summaries which never vary account for, at which they are why it does not fall
WIDE = 10.0  # ε over the standard deviation of a summary, times the root of their number, at which it does not count

Variables = dict[str, tuple[tuple[str, ...], Any]]


class Found(NamedTuple):
    """Result of a sampler.

    Attributes
    ----------
    draws : ndarray (chain, draw, dim)
    method : str
    epsilon : float
    reason : str
        Why the tolerance did not fall further.
    evidence : tuple
        Log evidence, its standard error, degrees of freedom and source.
    trouble : str
        Reason for distrust; empty if there is none.
    attrs : dict
        Further attributes of this method.
    stats : dict
        Figures per draw and per stage.
    groups : dict
    """

    draws: Array
    method: str
    epsilon: float
    reason: str
    evidence: tuple[float, float, float, str]
    trouble: str
    attrs: dict[str, Any]
    stats: Variables
    groups: dict[str, Variables]


def of_weighted_points(
    problem: AbcProblem, plan: Plan, result: SequentialResult, adjust: str | None, rng: np.random.Generator
) -> Found:
    """Resample the last stage chain by chain, and judge whether it can be trusted."""
    stage, weights = result.stage, result.weights
    ancestor = np.stack([_resampled(stage.chain == c, weights.weight, plan.points, rng) for c in range(plan.chains)])
    points = stage.x
    if adjust is not None and stage.block.summaries is not None:
        observed = problem.observed_summaries
        points = adjusted(points, stage.block.summaries, observed, weights.weight, adjust == "heteroscedastic")
    evidence = result.records[-1].evidence
    stats: Variables = {"ancestor": (("chain", "draw"), ancestor)}
    if stage.block.near is not None:
        stats["distance"] = (("chain", "draw"), stage.block.near[ancestor])
    groups = {"estimates": _weighted_estimates(problem, plan, result, rng)}
    if stage.block.data is not None and plan.data_sets >= 2:
        groups["posterior_predictive"] = _predictive(problem, [each[ancestor] for each in stage.block.data])
    attrs = {
        "log_evidence_unbiased": int(not result.chosen_here),
        "simulations": int(sum(record.simulations for record in result.records)),
        "n_components": result.n_components,
        "draw_order": "order of the points, siblings adjacent; not a time series",
    }
    return Found(
        points[ancestor],
        f"ABC ({'RQMC' if plan.qmc else 'Monte Carlo'}, {'sequential' if plan.sequential else 'importance'})",
        result.epsilon,
        result.reason,
        evidence._replace(standard_error=float(np.hypot(evidence.standard_error, problem.log_prior_integral_se))),
        _distrust(problem, result),
        attrs,
        stats | _stages(problem, result),
        groups,
    )


def of_populations(
    problem: AbcProblem, plan: Plan, result: PopulationsResult, adjust: str | None, rng: np.random.Generator
) -> Found:
    """Combine the particles of all chains."""
    runs = result.runs
    which = [picked(run, rng) for run in runs]
    x = [run.population.x for run in runs]
    if adjust is not None:
        x = _adjusted_populations(problem, result, [near for near, _ in which], adjust == "heteroscedastic")
    rows = [np.arange(plan.points) * len(each) // plan.points for each in x]
    evidence = evidence_of_runs(runs)
    size, estimates = _population_estimates(problem, result, rng)
    distance = [
        run.population.distances[np.arange(len(near)), near] for run, (near, _) in zip(runs, which, strict=True)
    ]
    per_draw = {"ancestor": [run.lineage.ancestor for run in runs], "distance": distance}
    stats: Variables = {
        name: (("chain", "draw"), np.stack([each[row] for each, row in zip(values, rows, strict=True)]))
        for name, values in per_draw.items()
    }
    groups = {"estimates": estimates}
    if runs[0].population.data is not None:
        flat = [
            run.population.data[np.arange(len(o)), o][row] for run, (_, o), row in zip(runs, which, rows, strict=True)
        ]
        groups["posterior_predictive"] = _predictive(problem, _unflattened(problem, np.stack(flat)))
    attrs = {
        "log_evidence_unbiased": 0,
        "simulations": result.simulations,
        "moves": result.kernel,
        "draw_order": "siblings adjacent; not a time series",
    }
    return Found(
        np.stack([each[row] for each, row in zip(x, rows, strict=True)]),
        "ABC (SMC)",
        result.epsilon,
        result.reason,
        (evidence.log_evidence, evidence.standard_error, evidence.df, "lineages and spread of chains"),
        _distrust_populations(problem, plan, result, size, evidence.runs_disagree),
        attrs,
        stats | _population_stages(problem, result),
        groups,
    )


def to_inference_data(
    problem: AbcProblem, found: Found, adjust: str | None, seconds: float, rng: np.random.Generator
) -> Any:
    """Return the result as InferenceData, and warn of its faults."""
    reasons = (
        found.trouble,
        reason_of_failing(found.attrs["failing"]),
        problem.fault(found.epsilon) or _ignored(problem, found),
    )
    found = found._replace(trouble="; ".join(filter(None, reasons)))
    if found.trouble:
        warnings.warn(f"sample_abc: {found.trouble}", SamplerWarning, stacklevel=user_level())
    experiment = problem.experiment
    log_evidence, error, df, source = found.evidence
    attrs = {
        "log_evidence": log_evidence,
        "log_evidence_se": error,
        "log_evidence_df": df if np.isfinite(df) else None,
        "log_evidence_se_from": source,
        "log_evidence_trusted": int(not found.trouble),
        "log_kernel_volume": problem.log_kernel_volume(found.epsilon),
        "epsilon": found.epsilon,
        "kernel": problem.kernel,
        "discrepancy": "; ".join(part.label for part in experiment.discrepancies),
        "ended_by": found.reason,
        "batched": int(experiment.at_once),
        "batches_refused": "; ".join(f"{name}: {why}" for name, why in problem.reasons.items()),
        "adjusted": adjust or "",
        "warnings": found.trouble,
    }
    return build_inference_data(
        problem.target,
        found.draws,
        method=found.method,
        accuracy="approximate",
        sampling_time=seconds,
        rng=rng,
        attrs=attrs | found.attrs,
        sample_stats=found.stats,
        extra_groups=found.groups,
    )


def _resampled(own: NDArray[np.bool_], weight: Array, draws: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return the points that one chain's draws are copies of; of all chains' points if its own have no weight."""
    index = np.flatnonzero(own & (weight > 0))
    index = index if len(index) else np.flatnonzero(weight > 0)
    return index[systematic_resampling(weight[index] / weight[index].sum(), draws, rng)]


def _distrust(problem: AbcProblem, result: SequentialResult) -> str:
    """Return the fault of a last stage with its figure, or ""."""
    size = result.weights.effective_size
    reasons = [f"the effective sample size is {size:.0f} < {SMALLEST_SIZE}: increase draws or data_sets"]
    reasons = reasons if size < SMALLEST_SIZE else []
    reasons += _not_reached(problem, result.epsilon, result.reason)
    undefined = result.records[-1].undefined
    if undefined > LARGEST_UNDEFINED:
        reasons.append(
            f"the log density is NaN or +inf, and counts as zero, at {100 * undefined:.1f} % of the points near the "
            "posterior, so a part of it may be missing: find the operation of the model that is not finite there"
        )
    if result.chosen_here:
        reasons.append(
            f"Ctrl-C ended the run before its last stage, and the current stage is returned; its evidence is biased because "
            f"ε = {result.epsilon:.3g} was chosen from it"
        )
    elif not result.stage.complete:
        reasons.append("max_simulations, max_time or Ctrl-C stopped the last stage, and the points so far are returned")
    return "; ".join(reasons)


def _distrust_populations(
    problem: AbcProblem, plan: Plan, result: PopulationsResult, size: float, disagree: bool
) -> str:
    """Return the fault of populations with its figure, or ""."""
    reasons = _not_reached(problem, result.epsilon, result.reason)
    if size < SMALLEST_SIZE:
        reasons.append(f"the effective sample size of a mean is {size:.0f} < {SMALLEST_SIZE}: increase draws or chains")
    undefined = float(np.mean([run.stages[-1].undefined for run in result.runs]))
    reasons += reasons_of_undefined(undefined, "at the last tolerance")
    if disagree:
        reasons.append("the chains' evidences differ by more than their errors: increase draws")
    if result.unfinished:
        ended = "Ctrl-C" if result.interrupted else ", ".join(dict.fromkeys(result.unfinished))
        reasons.append(
            f"{len(result.unfinished)} of {plan.chains} chains did not reach ε = {result.epsilon:.3g} ({ended}) and are left "
            "out"
        )
    elif result.interrupted:
        reasons.append("Ctrl-C ended the run, and the stages so far are returned")
    return "; ".join(reasons)


def _not_reached(problem: AbcProblem, epsilon: float, reason: str) -> list[str]:
    if problem.epsilon is None or epsilon <= problem.epsilon:
        return []
    return [
        f"the requested tolerance {problem.epsilon:.3g} was not reached: the last is ε = {epsilon:.3g} ({reason}); increase "
        "pilot_points and max_simulations, or use fewer summaries"
    ]


def _ignored(problem: AbcProblem, found: Found) -> str:
    """Return the fault of summaries that simulations do not reach, or that do not change the distance; or ""."""
    predicted, parts = found.groups.get("posterior_predictive"), problem.experiment.discrepancies
    if predicted is None or len(parts) > 1 or parts[0].norm is None:
        return ""
    data = predicted[problem.experiment.simulators[0].name][1]
    data = data.reshape(-1, *data.shape[2:])
    seen = parts[0].summaries(data[:: max(1, len(data) // UNITS_SEEN)])
    spread, count, observed = seen.std(axis=0), seen.shape[1], problem.observed_summaries
    gaps = np.where(np.ptp(seen, axis=0) == 0, np.abs(seen[0] - observed), 0.0)
    missed = np.flatnonzero(gaps)
    if len(missed) and len(seen) > 1 and np.linalg.norm(gaps) > MOST * found.epsilon:
        value, wanted = (each[missed[0]] * parts[0].scale.ravel()[missed[0]] for each in (seen[0], observed))
        return (
            f"{len(missed)} of {count} summaries are the same in {len(seen)} simulated data sets and differ from the "
            f"observed ones, the first at index {missed[0]} ({value:.3g}, observed {wanted:.3g}): the model may not "
            "produce such data; check them, or leave these summaries out"
        )
    ignored = np.flatnonzero((spread > 0) & (found.epsilon > WIDE * np.sqrt(count) * spread))
    if not len(ignored):
        return ""
    shown = ", ".join(f"{each:.2g}" for each in spread[:SHOWN]) + ", …" * (count > SHOWN)
    return (
        f"the distance does not depend on {len(ignored)} of {count} summaries, the first at index {ignored[0]}: their "
        f"standard deviations ({shown}) are too different for ε = {found.epsilon:.3g}; divide each summary by its own"
    )


def _stages(problem: AbcProblem, result: SequentialResult) -> Variables:
    """Return the figures of every stage."""
    records = result.records
    names = ("epsilon", "acceptance", "simulations", "points", "effective_size", "not_finite", "undefined")
    stats: Variables = {name: (("stage",), np.array([getattr(each, name) for each in records])) for name in names}
    stats["log_evidence"] = (("stage",), np.array([each.evidence.log_evidence for each in records]))
    stats["log_evidence_se"] = (("stage",), np.array([each.evidence.standard_error for each in records]))
    return stats | _volumes(problem, ("stage",), stats["epsilon"][1])


def _population_stages(problem: AbcProblem, result: PopulationsResult) -> Variables:
    """Return the figures of every stage of every chain, NaN if a chain has fewer."""
    tables = [np.array(run.stages, dtype=np.float64) for run in result.runs]
    longest = max(len(table) for table in tables)
    full = np.full((len(tables), longest, len(PopulationStage._fields)), np.nan)
    for chain, table in enumerate(tables):
        full[chain, : len(table)] = table
    counts = [PopulationStage._fields.index(name) for name in ("simulations", "not_finite")]  # since the start
    full[:, 1:, counts] = np.diff(full[:, :, counts], axis=1)
    dims = ("chain", "stage")
    stats: Variables = {name: (dims, full[:, :, i]) for i, name in enumerate(PopulationStage._fields)}
    return stats | _volumes(problem, dims, stats["epsilon"][1])


def _volumes(problem: AbcProblem, dims: tuple[str, ...], epsilon: Array) -> Variables:
    """Return log kernel volumes at tolerances; empty if distances are functions."""
    values = [problem.log_kernel_volume(each) if np.isfinite(each) else np.nan for each in epsilon.ravel()]
    if any(value is None for value in values):
        return {}
    return {"log_kernel_volume": (dims, np.array(values, dtype=np.float64).reshape(epsilon.shape))}


def _weighted_estimates(
    problem: AbcProblem, plan: Plan, result: SequentialResult, rng: np.random.Generator
) -> Variables:
    """Return weighted means with their errors, and sds, of every variable: dims (estimate, the model's own)."""
    stage, weights = result.stage, result.weights
    used = np.flatnonzero(weights.weight > 0)
    variables: Variables = {}
    for name, value in problem.target.constrain(stage.x[used], rng).items():
        if not np.iscomplexobj(value):
            full = np.zeros((len(stage.x), *value.shape[1:]))
            full[used] = value
            variables |= _named(problem, name, *mean_with_error(stage, weights, full, plan.qmc))
    return variables


def _population_estimates(
    problem: AbcProblem, result: PopulationsResult, rng: np.random.Generator
) -> tuple[float, Variables]:
    """Return the smallest effective number of draws of a mean, means with errors, and sds."""
    variables: Variables = {}
    samples = [(run.population.x, run.lineage.ancestor) for run in result.runs]
    size = float(ess_of_means(samples).min())
    values = [problem.target.constrain(x, rng) for x, _ in samples]
    for name, first in values[0].items():
        if np.iscomplexobj(first):
            continue
        flat = [np.asarray(each[name], dtype=np.float64).reshape(len(each[name]), -1) for each in values]
        ess = ess_of_means([(each, ancestor) for each, (_, ancestor) in zip(flat, samples, strict=True)])
        every, shape = np.concatenate(flat), first.shape[1:]
        sd = every.std(axis=0)
        figures = every.mean(axis=0), sd / np.sqrt(ess), sd
        variables |= _named(problem, name, *(figure.reshape(shape) for figure in figures))
    return size, variables


def _named(problem: AbcProblem, name: str, mean: Array, error: Array, sd: Array) -> Variables:
    """Return three figures of a variable, with its dimensions."""
    labels = tuple(dims_of(name, mean.ndim, problem.target.dims))
    return {f"{name}_{suffix}": (labels, figure) for suffix, figure in (("mean", mean), ("mean_se", error), ("sd", sd))}


def _predictive(problem: AbcProblem, data: list[NDArray]) -> Variables:
    """Return for each draw a data set on which its weight does not depend, from data ``(chain, draw, ...)``."""
    return {
        simulator.name: (("chain", "draw", *dims_of(simulator.name, len(simulator.shape), problem.target.dims)), each)
        for simulator, each in zip(problem.experiment.simulators, data, strict=True)
    }


def _unflattened(problem: AbcProblem, flat: Array) -> list[NDArray]:
    """Return the data of every simulator from rows ``(..., size)``."""
    shapes = [simulator.shape for simulator in problem.experiment.simulators]
    ends = np.cumsum([int(np.prod(shape, dtype=int)) for shape in shapes])
    parts = np.split(flat, ends[:-1], axis=-1)
    return [part.reshape(*flat.shape[:-1], *shape) for part, shape in zip(parts, shapes, strict=True)]


def _adjusted_populations(
    problem: AbcProblem, result: PopulationsResult, near: list[NDArray], heteroscedastic: bool
) -> list[Array]:
    """Return the particles of all chains, moved by one regression."""
    points = [run.population for run in result.runs]
    summaries = np.concatenate([p.summaries[np.arange(len(i)), i] for p, i in zip(points, near, strict=True)])
    x = np.concatenate([p.x for p in points])
    weights = np.full(len(x), 1 / len(x))
    moved = adjusted(x, summaries, problem.observed_summaries, weights, heteroscedastic)
    return np.split(moved, np.cumsum([len(p.x) for p in points])[:-1])
