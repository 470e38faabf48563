"""Verdicts on a run from its figures, and the choice of the reported evidence."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import chi2

from ppl_backends.approximations.lost_mode import LostMode, lost_mode_reason, name_of
from ppl_backends.errors import SamplerWarning, user_level
from ppl_backends.importance.outside import reasons_of_undefined
from ppl_backends.numerics.gaps import modes
from ppl_backends.numerics.weights import (
    FEWEST_INDEPENDENT,
    LARGEST_PARETO_K,
    few_independent,
    heavy_tail,
    pareto_k,
    tail_share,
)
from ppl_backends.smc.evidence import (
    Columns,
    EvidenceEstimate,
    ess_of_means,
    evidence_of_runs,
    precision_of_sds,
    precision_of_stuck_points,
    sums_by_lineage,
    variance_of_means,
)
from ppl_backends.smc.moves import MoveSummary
from ppl_backends.smc.necks import ShortSteps, reasons_of_neck
from ppl_backends.smc.records import SMCResult
from ppl_backends.smc.rounding import RoundingEnd
from ppl_backends.targets.protocol import Array, Index

MEMORY_LEFT = 0.15  # correlation with the particles before the moves, above which a stage did not mix
# The same at the last temperature, on average over the runs, below which bridges to the particles are trusted.
_UNCORRELATED = 0.1
# Least number of initial particles with descendants: per chain for its evidence, in total for draws that mixed since.
_FEW_LINEAGES = 20
# Initial particles with descendants, above which no mixing is required: particles that never move are importance
# sampling, and the lineages give its error.
_ENOUGH_LINEAGES = 50
_FEW_DISTINCT = 0.05  # of the draws
# Effective draws of a mean, or their share of all draws if that is less, below which finished runs are repeated on a finer
# ladder.
_COARSE, _COARSE_SHARE = 200.0, 0.08
_OFTEN_DIVERGENT = 0.02  # of the last trajectories in a funnel, above which runs are repeated as well
_FEWER = 0.9  # share of the coordinates that the last moves standardise, below which a funnel was entered late
_DISAGREEMENT = 4.0  # standard errors between two evidences of the same runs
PRECISE = 0.1  # largest standard error of a bridge that may replace tempering
# Nats; if a ladder lost more than that, the last particles are not trusted either.
_LARGEST_REPAIR = 1.0


class Figures(NamedTuple):
    """Runs, and the figures that show whether they can be trusted.

    ``ess`` is the effective sample size of the mean or the standard deviation of the worst coordinate, ``apart``
    describes chains in different places, ``disagreement`` is a reason against the evidence, ``divergent`` is the share
    of the last trajectories that diverged. ``heavy`` is the Pareto k of the weights of runs of one step, if their tail is
    heavy, else 0. ``short_steps`` and ``lost`` are results of trials after the runs.
    """

    runs: Sequence[SMCResult]
    evidence: EvidenceEstimate
    ess: float
    apart: Apart | None
    disagreement: str
    divergent: float
    heavy: float = 0.0
    short_steps: ShortSteps | None = None
    lost: LostMode | None = None


def figures_of(
    runs: Sequence[SMCResult],
    evidence: EvidenceEstimate | None = None,
    variance: Callable[[Columns], Array] = variance_of_means,
) -> Figures:
    """Return the figures of runs, before any trial of shorter steps; the ``evidence`` is that of tempering by default.

    ``variance`` returns that of means of columns over all runs.
    """
    samples = [(run.x, run.lineage.ancestor) for run in runs]
    k, share = tail_of_single_steps(runs)
    return Figures(
        runs,
        _evidence_of(runs, share) if evidence is None else evidence,
        _effective_draws(runs, samples, variance),
        chains_apart(*zip(*samples, strict=True)),
        _disagreement_with_path_sampling(runs),
        float(np.mean([run.stages[-1].moves.divergent for run in in_one_mode(runs)] or [0.0])),
        k if heavy_tail(k, share) else 0.0,
    )


def _effective_draws(runs: Sequence[SMCResult], samples: Columns, variance: Callable[[Columns], Array]) -> float:
    """Return the effective number of draws of the mean or the standard deviation of the worst coordinate."""
    found = [ess_of_means(samples, variance), precision_of_sds(samples, variance)]
    moved = [run.x for run in runs if run.stages[-1].moves is not None]  # the others have copies by their weights
    found += [precision_of_stuck_points(moved)] if moved else []
    return float(min(each.min() for each in found))


def _evidence_of(runs: Sequence[SMCResult], share: float) -> EvidenceEstimate:
    """Return the evidence of tempering.

    ``share`` is the share of the weight in a heavy tail of a single step. The variance of the weights does not include the
    error of this tail, which is about as large as the share, so it is added here.
    """
    found = evidence_of_runs(runs)
    return found._replace(standard_error=float(np.hypot(found.standard_error, share)))


def tail_of_single_steps(runs: Sequence[SMCResult]) -> tuple[float, float]:
    """Return the Pareto k of the weights of all runs of one step, and the share of the weight in that tail.

    Both are 0 if k is small. The weights of one run may show no heavy tail because few of its points are in it.
    """
    weights = [run.only_weights for run in runs if run.only_weights is not None]
    if not weights:
        return 0.0, 0.0
    log_weights = np.concatenate(weights)
    k = pareto_k(log_weights)
    return (k, tail_share(log_weights)) if k > LARGEST_PARETO_K else (0.0, 0.0)


def in_one_mode(runs: Sequence[SMCResult]) -> list[SMCResult]:
    """Return the runs whose last moves were made within a single mode."""
    return [run for run in runs if run.stages[-1].moves is not None and run.stages[-1].moves.n_modes == 1]


def is_too_coarse(figures: Figures) -> bool:
    """Return whether means or evidence of finished runs have too few effective draws or heavy weights, or disagree.

    So are runs whose last trajectories diverge in a funnel that they entered late: on a finer ladder its change of variables
    is found earlier. A finer ladder does not help if few draws of the start were inside the support.
    """
    runs = figures.runs
    if not all(run.complete for run in runs) or any(run.start.n_draws > len(run.x) for run in runs):
        return False
    n = sum(len(run.x) for run in runs)
    return figures.ess < min(_COARSE, _COARSE_SHARE * n) or shows_coarse_ladder(figures)


def shows_coarse_ladder(figures: Figures) -> bool:
    """Return whether evidences disagree, weights are heavy, or trajectories diverge in a funnel that was entered late."""
    diverge = figures.divergent > _OFTEN_DIVERGENT and any(map(_enters_funnel_late, in_one_mode(figures.runs)))
    return figures.evidence.runs_disagree or bool(figures.disagreement) or figures.heavy > 0 or diverge


def _enters_funnel_late(run: SMCResult) -> bool:
    """Return whether moves of a stage standardised clearly fewer coordinates of a funnel than the last ones."""
    return min(run.non_centred) < _FEWER * run.non_centred[-1]


def split_finished(runs: Sequence[SMCResult], chains: int, interrupted: bool) -> tuple[list[SMCResult], str]:
    """Return the runs to keep, those at β = 1 or else all, and a text about the others."""
    finished = [run for run in runs if run.complete]
    if len(finished) == chains:
        return finished, ""
    reached = [run.stages[-1].beta for run in runs if not run.complete]
    why = "interrupted: " if interrupted else ""
    spoiled = next((run.ended for run in runs if isinstance(run.ended, RoundingEnd)), "")
    if spoiled:  # the other chains may only have missed that point
        return [run for run in runs if not run.complete], (
            f"{why}{spoiled}: {len(reached)} of {chains} chains stopped before beta = 1 (at {min(reached):.3g}), so there is "
            "no evidence"
        )
    if finished:
        left = f"{chains - len(finished)} of {chains} chains stopped before beta = 1 and are left out"
        return finished, f"{why}{left}: accept fewer chains, or repeat the call (a checkpoint continues the run)"
    return list(runs), (
        f"{why}all chains stopped before beta = 1 (at {min(reached):.3g}), so the draws are not of the posterior and there "
        "is no evidence: repeat the call with enough time (a checkpoint continues the run)"
    )


def reasons_of_lone_chain(runs: Sequence[SMCResult], chains: int) -> list[str]:
    """Return a reason if only one of several chains finished: nothing then shows what a chain misses."""
    if len(runs) > 1 or chains == 1 or not runs[0].complete:
        return []
    return [
        f"only one of {chains} chains finished, so no agreement of chains could be checked: repeat the call with enough time "
        "(a checkpoint continues the run)"
    ]


def distrust(figures: Figures, len_chain: int | None = None, names: Sequence[str] = ()) -> list[str]:
    """Return reasons, each with its figure, not to trust the evidence and the draws; empty for a healthy result.

    Runs that did not reach the posterior are not judged.
    """
    runs, evidence = figures.runs, figures.evidence
    if not all(run.complete for run in runs):
        return []
    reasons = _not_mixed(runs, len_chain) + reasons_of_neck(figures.divergent, figures.short_steps, names)
    reasons += _few_particles(figures) + _cut_off(runs) + _apart(figures, names) + _lost(figures, names)
    if figures.heavy:
        reasons.append(
            f"Pareto k of the weights of the only step is {figures.heavy:.2f} > {LARGEST_PARETO_K}: use "
            "ess_threshold=0.9, so that more steps are taken"
        )
    return reasons + evidence.reasons + [figures.disagreement] * bool(figures.disagreement)


def _not_mixed(runs: Sequence[SMCResult], len_chain: int | None) -> list[str]:
    """Return a reason if particles still correlate with their positions before the moves."""
    stages = [stage for run in runs for stage in [*run.start.stages, *run.stages]]
    moves = [stage.moves for stage in stages if stage.moves is not None]
    if not moves or all(run.stages[-1].n_lineages >= _ENOUGH_LINEAGES for run in runs):
        return []
    slow = [move for move in moves if is_correlated(move)]
    # With few chains the correlations are noisy, and one of many stages may be an outlier by chance.
    if len(slow) <= 0.1 * len(moves) and all(move.correlation <= max(MEMORY_LEFT, 2.25 * move.noise) for move in slow):
        return []
    worst = max(slow, key=lambda move: move.correlation)
    return [
        f"{len(slow)} of {len(moves)} stages did not mix (autocorrelation {worst.correlation:.2f} after "
        f"{worst.n_moves} moves, acceptance {worst.acceptance:.2f}): "
        + (f"set a len_chain above {len_chain}" if len_chain else "increase max_moves")
    ]


def _cut_off(runs: Sequence[SMCResult]) -> list[str]:
    """Return a reason if the density is NaN or +inf near the posterior."""
    last = [(run, run.stages[-1].moves) for run in runs]
    share = float(np.mean([run.start.undefined if moves is None else moves.undefined for run, moves in last]))
    return reasons_of_undefined(share, "at the last temperature")


def _few_particles(figures: Figures, in_all: bool = False) -> list[str]:
    """Return reasons if few initial particles have descendants, in a chain or ``in_all``, or many are copies."""
    runs, reasons = figures.runs, []
    n = len(runs[0].x)
    lineages = [run.stages[-1].n_lineages for run in runs]
    if (sum(lineages) if in_all else min(lineages)) < _FEW_LINEAGES:
        drawn = runs[int(np.argmin(lineages))].start.n_draws
        of = f" of {drawn:,} draws of the start" if drawn > n else ""
        reasons.append(f"only {min(lineages)} initial particles{of} have descendants: increase draws")
    distinct = min(run.stages[-1].n_distinct for run in runs)
    if distinct < _FEW_DISTINCT * n:
        reasons.append(f"only {distinct} of {n:,} draws of a chain are different points: increase draws or max_moves")
    return reasons + _few_independent_draws(figures)


def _apart(figures: Figures, names: Sequence[str] = ()) -> list[str]:
    """Return a reason if the chains disagree."""
    apart = figures.apart
    if apart is None:
        return []
    return [
        f"the chains are in different places: in `{name_of(apart.coordinate, names)}` the mean of one chain is "
        f"{apart.distance:.2f} standard deviations from that of all chains, {apart.errors:.0f} times its error: increase "
        "draws"
    ]


def _lost(figures: Figures, names: Sequence[str] = ()) -> list[str]:
    """Return a reason if all particles have left a mode."""
    return [] if figures.lost is None else [lost_mode_reason(figures.lost, names)]


def _few_independent_draws(figures: Figures) -> list[str]:
    """Return a reason if means or sds rest on few lineages, or differ between runs."""
    ess = figures.ess
    if not few_independent(ess):
        return []
    return [
        f"the draws are worth {ess:.0f} independent ones, fewer than {FEWEST_INDEPENDENT:.0f}, so the Monte Carlo error of a "
        f"posterior mean or sd on the unconstrained scale is {100 / ess**0.5:.0f} % of the sd: increase draws"
    ]


def _disagreement_with_path_sampling(runs: Sequence[SMCResult]) -> str:
    """Return a reason if path sampling disagrees; it uses half of the particles after their moves."""
    differences = [run.log_evidence - run.path_sampling.log_evidence for run in runs]
    error = np.sqrt(np.mean([run.path_sampling.variance_of_difference for run in runs]) / len(runs))
    difference = float(np.mean(differences))
    if abs(difference) <= _DISAGREEMENT * error + 1e-6:
        return ""
    return (
        f"path sampling gives a log evidence {abs(difference):.2f} {'below' if difference > 0 else 'above'} this one, "
        f"{abs(difference) / error:.0f} times the error of the difference: increase max_moves or draws"
    )


def is_correlated(move: MoveSummary) -> bool:
    """Return whether the moves of a stage did not mix."""
    return move.correlation > max(MEMORY_LEFT, 1.5 * move.noise)


class Verdict(NamedTuple):
    """The reported evidence, its method, and the reasons against that of tempering.

    If tempering is not trusted, ``replaced`` says what was reported instead. Checks may be ``interrupted``.
    """

    evidence: EvidenceEstimate
    method: str
    reasons: list[str]
    replaced: str = ""
    interrupted: bool = False

    @property
    def trusted(self) -> bool:
        """Return whether there is no reason against the reported evidence."""
        return bool(self.replaced) or not self.reasons

    @property
    def warnings(self) -> str:
        """Return all reasons, joined into one text."""
        return "; ".join([self.replaced, *self.reasons] if self.replaced else self.reasons)


def _with_displacement(bridge: EvidenceEstimate, figures: Figures) -> EvidenceEstimate:
    """Return the evidence of the bridges with an error for the particles' correlation with the path.

    If tempering is off by more than its noise, the particles were displaced along the path. The last moves leave a fraction
    of the displacement, which is their autocorrelation, in the particles of the bridges. It is not known better than its
    noise.
    """
    moves = [run.stages[-1].moves for run in figures.runs]
    moved = [(move.correlation, move.noise) for move in moves if move is not None] or [(0.0, 0.0)]
    correlation, noise = np.mean(moved, axis=0)
    left = max(correlation, noise / len(moved) ** 0.5)
    tempering = figures.evidence
    beyond = max(0.0, abs(tempering.log_evidence - bridge.log_evidence) - tempering.standard_error)
    return _with_further_error(bridge, left * beyond)


def _with_missed_mass(estimate: EvidenceEstimate, figures: Figures) -> EvidenceEstimate:
    """Return an evidence with an error for the mass that the last particles miss in a neck."""
    missed = None if figures.short_steps is None else figures.short_steps.missed
    if missed is None:
        return estimate
    return _with_further_error(estimate, max(0.0, missed.mass))


def _with_further_error(estimate: EvidenceEstimate, error: float) -> EvidenceEstimate:
    return estimate._replace(standard_error=float(np.hypot(estimate.standard_error, error)))


def judge(
    figures: Figures,
    bridge: EvidenceEstimate | None,
    *,
    len_chain: int | None = None,
    replaceable: bool = True,
    prior_error: float = 0.0,
    names: Sequence[str] = (),
    by_mode: bool = False,
) -> Verdict:
    """Return the evidence to report: that of bridge sampling, or of tempering.

    Bridge sampling is reported if this is allowed (``replaceable``), the last particles are healthy and in one mode, or
    the bridges are ``by_mode``, and the bridges are precise and within a nat of tempering, and tempering is distrusted
    or has the larger error. Else the error of tempering includes what the errors of the two do not explain of their
    difference. ``prior_error``, of the prior's integral, is already part of the error of tempering.
    """
    evidence, reasons = _with_missed_mass(figures.evidence, figures), distrust(figures, len_chain, names)
    bridge = None if bridge is None else _with_missed_mass(bridge, figures)
    if bridge is None or bridge.runs_disagree or not bridge.standard_error <= PRECISE:
        return Verdict(evidence, "tempering", reasons)
    difference = evidence.log_evidence - bridge.log_evidence
    error = float(np.hypot(evidence.standard_error, bridge.standard_error))
    if not agrees(evidence, bridge):
        reasons.append(
            f"bridge sampling from the last particles gives {bridge.log_evidence:.3f} ± {bridge.standard_error:.3f}, a "
            f"difference of {abs(difference) / error:.0f} times its error: increase max_moves or draws"
        )
    wanted = bool(reasons) or float(np.hypot(bridge.standard_error, prior_error)) < evidence.standard_error
    if not (replaceable and wanted and may_replace(evidence, bridge) and draws_are_healthy(figures, by_mode)):
        # Particles that lag behind on the path move the evidence, and the last of them are nearer to the posterior.
        beyond = max(0.0, abs(difference) - error)
        return Verdict(_with_further_error(evidence, beyond), "tempering", reasons)
    bridge = _with_displacement(bridge, figures)
    method = "bridge sampling by mode" if by_mode else "bridge sampling"
    if not reasons:
        return Verdict(bridge, method, reasons)
    replaced = (
        f"the log evidence reported is by bridge sampling from the last particles ({bridge.log_evidence:.3f} ± "
        f"{bridge.standard_error:.3f}), because that of tempering ({evidence.log_evidence:.3f} ± "
        f"{evidence.standard_error:.3f}) cannot be trusted"
    )
    return Verdict(bridge, method, reasons, replaced)


def may_replace(evidence: EvidenceEstimate, bridge: EvidenceEstimate) -> bool:
    """Return whether bridges agree with each other, are precise, and are within a nat of tempering."""
    difference = abs(evidence.log_evidence - bridge.log_evidence)
    return not bridge.runs_disagree and bridge.standard_error <= PRECISE and difference <= _LARGEST_REPAIR


def agrees(evidence: EvidenceEstimate, bridge: EvidenceEstimate) -> bool:
    """Return whether tempering and bridges agree within their errors."""
    error = float(np.hypot(evidence.standard_error, bridge.standard_error))
    return abs(evidence.log_evidence - bridge.log_evidence) <= _DISAGREEMENT * error + 1e-6


def draws_are_healthy(figures: Figures, separated: bool = False) -> bool:
    """Return whether the last moves of every run mixed and missed no region, and all particles are in one mode.

    If modes may be ``separated``, moves mixed within each.
    """
    runs = figures.runs
    if not moves_mixed(figures, separated) or _few_particles(figures, in_all=True) or figures.apart or figures.lost:
        return False
    return separated or int(modes(np.concatenate([run.x for run in runs])).max()) == 0


def moves_mixed(figures: Figures, separated: bool) -> bool:
    """Return whether the last moves of every run mixed, within modes if these may be ``separated``."""
    runs = figures.runs
    moved = [move for move in (run.stages[-1].moves for run in runs) if move is not None]
    if len(moved) < len(runs) or (not separated and any(move.n_modes > 1 for move in moved)):
        return False
    if reasons_of_neck(figures.divergent, figures.short_steps) or _cut_off(runs):
        return False
    within = _within_modes(moved)
    noise = float(np.mean([move.noise for move in within])) / len(within) ** 0.5
    correlation = float(np.mean([move.correlation for move in within]))
    return not any(is_correlated(move) for move in within) and correlation <= max(_UNCORRELATED, noise)


def _within_modes(moved: Sequence[MoveSummary]) -> list[MoveSummary]:
    """Return the moves whose correlation is that within modes.

    A run with few particles in a mode does not see it, and its correlation is that between modes, which does not fall. If
    it made as many moves as runs that saw the mode and mixed, it mixed as well.
    """
    most = max(move.n_modes for move in moved)
    seeing = [move for move in moved if move.n_modes == most]
    enough = min(move.n_moves for move in seeing)
    return [move for move in moved if move.n_modes == most or move.n_moves < enough]


def warn_if_distrusted(unfinished: str, reasons: Sequence[str], replaced: str = "") -> None:
    """Warn once (:class:`SamplerWarning`) with all reasons; ``replaced`` says what was reported instead."""
    said = [unfinished] if unfinished else []
    if reasons:
        said.append((replaced or "do not trust this evidence yet") + ": " + "; ".join(reasons))
    if said:
        warnings.warn(f"SMC: {'; '.join(said)}", SamplerWarning, stacklevel=user_level())


_LEVEL = 1e-4  # level of the test over all coordinates
_LARGE = 0.3  # standard deviations of the draws below which a disagreement is negligible


class Apart(NamedTuple):
    """A coordinate in which a chain differs from all chains: by how many sds of the draws, and by how many errors."""

    coordinate: int
    distance: float
    errors: float


def chains_apart(x: Sequence[Array], lineages: Sequence[Index]) -> Apart | None:
    """Return the coordinate in which chains disagree most, if they disagree by more than their errors explain.

    The standard error of a chain's mean comes from its lineages. Means of normal scores of the pooled ranks are
    compared, because these have a variance for tails of any weight, and means of their squares, as R̂ compares ranks
    and folded ranks (Vehtari et al. 2021, Bayesian Analysis 16(2)). Cochran's Q sums squared distances from the common
    mean.
    """
    chains, (n, dim) = len(x), x[0].shape
    if chains < 2:
        return None
    pooled = np.concatenate(x)
    scores, of_ranks = np.empty_like(pooled), ndtri((np.arange(len(pooled)) + 0.5) / len(pooled))
    np.put_along_axis(scores, np.argsort(pooled, axis=0), of_ranks[:, None], axis=0)
    columns = np.hstack([scores, (scores**2 - 1) / np.sqrt(2)]).reshape(chains, n, 2 * dim)
    mean = columns.mean(axis=1)
    variance = np.stack([_variance_of_mean(*pair) for pair in zip(columns - mean[:, None], lineages, strict=True)])
    away = mean - (mean / variance).sum(axis=0) / (1 / variance).sum(axis=0)
    significant = chi2.sf((away**2 / variance).sum(axis=0), chains - 1) * 2 * dim < _LEVEL
    distance = np.where(significant, np.abs(away), 0.0)
    chain, column = np.unravel_index(np.argmax(distance), distance.shape)
    if distance[chain, column] <= _LARGE:
        return None
    errors = float(distance[chain, column] / np.sqrt(variance[chain, column]))
    return Apart(int(column) % dim, float(distance[chain, column]), errors)


def _variance_of_mean(centred: Array, lineage: Index) -> Array:
    """Return the variance ``(k,)`` of the mean of columns ``(n, k)`` by lineages; at least that of n independent draws."""
    n = len(centred)
    return np.maximum((sums_by_lineage(centred, lineage) ** 2).sum(axis=0), (centred**2).sum(axis=0)) / n**2 + 1e-12
