"""Runs of SMC over models, their agreement, and whether they can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import f as f_distribution

from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.evidences.gaussian import GaussianEvidence
from ppl_backends.model_search.evidences.walk_kernels import Form
from ppl_backends.model_search.moves import SearchMoves
from ppl_backends.model_search.path import ModelPath, ModelState, SurrogatePath
from ppl_backends.model_search.results import Listed, Searched
from ppl_backends.model_search.space import Bits, ModelSpace
from ppl_backends.model_search.surrogate import find_surrogate
from ppl_backends.smc.chains import Shows, run_chains
from ppl_backends.smc.checkpoint import ChainStore, Checkpoint
from ppl_backends.smc.core import Parts, SMCState, Step, begin, run_smc
from ppl_backends.smc.evidence import EvidenceEstimate, PathSampling, ess_of_means, evidence_of_runs
from ppl_backends.smc.records import SMCResult, Stage
from ppl_backends.smc.results import ladder_stats
from ppl_backends.smc.sampler import Watcher
from ppl_backends.smc.schedule import Resampling, Schedule
from ppl_backends.targets.protocol import Array

# Between runs: of log evidences, and of inclusion probabilities, above which a search warns.
_SPREAD, _INCLUSION = 0.5, 0.1
_LEVEL = 1e-4  # of the test that two runs' inclusion probabilities differ by more than their lineages explain
_STUCK = 0.25  # autocorrelation after the moves of the last stage


def run_search(
    space: ModelSpace,
    evidence: Evidence,
    n: int,
    rng: np.random.Generator,
    *,
    report: Callable[[SMCState], None] | None = None,
    store: ChainStore | None = None,
) -> SMCResult:
    """Run ``n`` particles from the prior of models to their posterior, through a surrogate's if there is one.

    ``report`` is called after every stage. A ``store`` saves the run then; a saved run in it is continued.
    """
    run = store.load() if store else None
    if run is None:
        run = begin_search(find_surrogate(space, evidence, rng), space, evidence, n, rng)
    return finish_search(run, space, evidence, n, Watcher(None, report, store))


def begin_search(
    surrogate: Evidence | None, space: ModelSpace, evidence: Evidence, n: int, rng: np.random.Generator
) -> SMCState:
    """Return a run of ``n`` particles before its first stage, to the posterior of a surrogate first unless it is None."""
    path = ModelPath(space, evidence if surrogate is None else surrogate)
    records: dict[str, Any] = {"path_sampling": PathSampling(0.0, np.zeros(n))}
    if surrogate is not None:
        records["surrogate"] = Surrogate(surrogate)
    return begin(path.start(n, rng), rng, records=records)


def finish_search(run: SMCState, space: ModelSpace, evidence: Evidence, n: int, watch: Watcher) -> SMCResult:
    """Run to the end from the current stage."""
    if "surrogate" not in run.records:
        run, ended = run_smc(run, ModelPath(space, evidence), _parts(n, False), watch)
        return SMCResult.of(run, ended)
    onward, ended = SurrogatePath(space, evidence, run.records["surrogate"].evidence), ""
    if not run.stages or run.stages[-1].surrogate:
        run, ended = run_smc(run, onward.below, _parts(n, True), watch)
        run = run if ended else onward.continued(run)
    if not ended:
        run, ended = run_smc(run, onward, _parts(n, False), watch)
    return SMCResult.of(run, ended)


@dataclass(frozen=True)
class Surrogate:
    """The surrogate evidence of a run, the same at all stages."""

    evidence: Evidence

    def after(self, step: Step) -> Surrogate:
        """Return the surrogate unchanged."""
        return self


@dataclass(frozen=True)
class ModelStage(Stage):
    """One temperature; ``surrogate`` says whether the evidences were those of the surrogate."""

    surrogate: bool = False


# Additional content of a chain's checkpoint, compared with all SMC runs.
SAVED = (ModelState, ModelStage, Surrogate, GaussianEvidence, Form)


def _parts(n: int, surrogate: bool) -> Parts:
    return Parts(Schedule(), Resampling(n), SearchMoves(), partial(_figures, surrogate))


def _figures(surrogate: bool, step: Step) -> ModelStage:
    """Return the figures of a stage."""
    x, after = step.before.population.x, step.after
    mean = step.weights @ x
    distinct = len(np.unique(np.packbits(after.population.x, axis=1), axis=0))
    reached = after.stage.position, after.log_evidence, float(after.ess or 0.0)
    spread = np.sqrt(np.maximum(mean * (1 - mean), 0.0))
    return ModelStage(
        *reached, mean, spread, after.lineage.n_lineages, step.moved.summary, after.seconds, distinct, surrogate
    )


def stage_stats(runs: Sequence[SMCResult]) -> dict[str, Any]:
    """Return the figures of all stages, and which of them were under the surrogate."""
    stats = ladder_stats(runs, "candidate")
    table = np.full(stats["beta"][1].shape, np.nan)
    for row, run in zip(table, runs, strict=True):
        row[: len(run.stages)] = [stage.surrogate for stage in run.stages]
    return {**stats, "surrogate": (("chain", "stage"), table)}


class Runs(NamedTuple):
    """Finished runs with their common results; ``reasons`` are reasons for distrust."""

    runs: Sequence[SMCResult]
    searched: Searched
    evidence: EvidenceEstimate
    reasons: list[str]
    interrupted: bool


def run_searches(
    space: ModelSpace,
    evidence: Evidence,
    draws: int,
    generators: Sequence[np.random.Generator],
    executor: Executor | None,
    progressbar: bool,
    checkpoint: Checkpoint | None = None,
) -> Runs:
    """Run independent chains and judge them together."""
    jobs = [partial(run_search, space, evidence, draws, rng) for rng in generators]
    runs, interrupted = run_chains(
        jobs, shows=_SHOWS, executor=executor, checkpoint=checkpoint, progressbar=progressbar
    )
    estimate = evidence_of_runs(runs)
    bits: Bits = np.stack([run.population.x for run in runs])
    share = np.stack([run.population.share for run in runs])
    inclusion = share.mean(axis=(0, 1))
    error = _errors([(run.population.share, run.lineage.ancestor) for run in runs], inclusion)
    searched = Searched(bits, inclusion, error, _listed(space, runs))
    return Runs(runs, searched, estimate, _reasons(space, runs, share, estimate), interrupted)


def _errors(samples: Sequence[tuple[Array, Any]], inclusion: Array) -> Array:
    """Return standard errors; for a bit that is equal in all particles, that of a share of less than one lineage."""
    variance = np.concatenate([share for share, _ in samples]).var(axis=0)
    binary = inclusion * (1.0 - inclusion)
    ess = ess_of_means(samples)
    finite = np.isfinite(ess)
    total = float(sum(len(np.unique(ancestor)) for _, ancestor in samples))
    least = 1.0 / max(float(np.median(ess[finite])) if finite.any() else total, 1.0)
    error: Array = np.sqrt(np.where(finite, variance / np.maximum(ess, 1e-300), 0.0))
    return np.where(binary > 0, error, least)


def _reasons(space: ModelSpace, runs: Sequence[SMCResult], share: Array, estimate: EvidenceEstimate) -> list[str]:
    """Return reasons not to trust the runs; a single run is judged only by its moves."""
    reasons = []
    last = [run.stages[-1].moves for run in runs if run.stages]
    left = float(np.mean([moves.correlation for moves in last if moves is not None] or [0.0]))
    if left > _STUCK:
        reasons.append(f"the last stage did not mix (autocorrelation {left:.2f})")
    if len(runs) == 1:
        return reasons
    if estimate.spread > _SPREAD or (estimate.runs_disagree and estimate.spread > 0.5 * _SPREAD):
        reasons.append(f"log evidences of the runs have a standard deviation of {estimate.spread:.2g}")
    by_run = share.mean(axis=1)
    spread = np.ptp(by_run, axis=0)
    worst = int(np.argmax(spread))
    chance = _range_by_chance(runs, by_run)
    if spread[worst] > max(_INCLUSION, chance[worst]):
        reasons.append(
            f"inclusion probabilities differ between runs, that of {space.names[worst]} by {spread[worst]:.2f}"
        )
    return reasons


def _range_by_chance(runs: Sequence[SMCResult], by_run: Array) -> Array:
    """Return the range that inclusions of runs with independent particles would not exceed."""
    mean, n = by_run.mean(axis=0), len(runs[0].population.x)
    critical = np.sqrt(f_distribution.isf(_LEVEL, len(runs), 100))
    chance: Array = 2.0 * critical * np.sqrt(np.maximum(mean * (1 - mean), 0.0) / n)
    return chance


def _listed(space: ModelSpace, runs: Sequence[SMCResult]) -> Listed:
    """Return the models among the last particles, with their frequencies as probabilities."""
    x = np.concatenate([run.population.x for run in runs])
    joint = np.concatenate([run.population.base + run.population.increment for run in runs])
    log_evidence = joint - space.log_prior(x)  # the base of a path contains its surrogate
    _, first, which, counts = np.unique(
        np.packbits(x, axis=1), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    # For a model with several estimates, their mean, because all estimate the same evidence.
    top = log_evidence.max()
    evidence = np.log(np.bincount(which.ravel(), np.exp(log_evidence - top)) / counts) + top
    return Listed(x[first], evidence, counts / len(x)).best()


def _shown(run: SMCState) -> tuple[float, dict[str, float | str]]:
    stage = run.stages[-1]
    figures: dict[str, float | str] = {"β": stage.beta, "ESS": f"{stage.ess:.0f}", "log Z": f"{stage.log_evidence:.2f}"}
    if stage.moves is not None:
        figures |= {"acceptance": stage.moves.acceptance, "moves": f"{stage.moves.n_moves}"}
    return 0.9 * stage.beta**0.25 if stage.surrogate else stage.beta, figures


_SHOWS = Shows(("β", "ESS", "acceptance", "moves", "log Z"), _shown)
