"""Sequential ABC by adaptive importance sampling (Buchholz 2018, algorithm 10).

    t = 0: θ from the prior
    t = 1, 2, …: choose ε_t; fit q_t; θ from q_t; simulate; w = p L̂_{ε_t} / q_t

ε_t is the tolerance at which the effective size of the weights is a given share of the points, by bisection in [0,
ε_{t−1}]; if it is hardly lower than before, ε_t is the median distance of the hits. The last stage has a tolerance and
a proposal that were fixed before it was simulated, so that its evidence is unbiased; only this stage is returned.

The proposal is fitted to points weighted by (p/q)√E[K²], not by the weights themselves: with nets, whose own variance
is of lower order, p√Var(K) is the density of least variance per simulation. It has heavier tails, where hits are rare
and weights large.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.importance.outside import share_undefined_near
from ppl_backends.simulators.abc.importance import AbcEvidence, allocate, estimate, smoothed_moments
from ppl_backends.simulators.abc.kernels import log_kernel
from ppl_backends.simulators.abc.problem import AbcProblem
from ppl_backends.simulators.abc.proposals import AbcProposal, fit_mixture, prior_proposal
from ppl_backends.simulators.abc.stages import Budget, Picking, Stage, Weights, simulate_stage, weigh
from ppl_backends.targets.protocol import Array

__all__ = ["FewPoints", "Plan", "Record", "SequentialResult", "run_sequential"]

EFFECTIVE_SHARE = 0.2  # α: effective size over points at the next tolerance
FEWEST_HITS = 20
SLOWEST = 0.9
STALLED = 0.999
MOST_STAGES = 60
BISECTIONS = 60
EVIDENCE_ERROR, MORE_POINTS = 0.015, 16
INTERRUPTED = "interrupted by Ctrl-C"
LEAST_SHARE = 0.02  # effective size over points, below which populations replace mixtures
ADAPTATION_SHARE = 0.5  # share of a budget that stages before the last may use


class Plan(NamedTuple):
    """Sizes of stages.

    Attributes
    ----------
    sequential : bool
        If False, all points are from the prior.
    qmc : bool
    chains : int
    pilot_points : int
        Points of a stage before the last, in all chains together.
    points : int
        Points of a chain in the last stage, in addition to the prior's share.
    data_sets : int
        M, mean number of data sets per point.
    adaptive : bool
        Whether the last stage may have up to 16 times the points, if data are drawn at once, for an error of 1.5 %.
    floor : float
        Acceptance at which the tolerance stops falling if the last one is not given.
    hits, cap : int
        Negative-binomial weights in the last stage: r and K, or 0.
    may_give_up : bool
        Whether to raise :class:`FewPoints` if a last stage would have a very small effective size.
    """

    sequential: bool
    qmc: bool
    chains: int
    pilot_points: int
    points: int
    data_sets: int
    adaptive: bool
    floor: float
    hits: int = 0
    cap: int = 0
    may_give_up: bool = False


class FewPoints(Exception):
    """Raised if proposals find too few points and another method is allowed."""


class Record(NamedTuple):
    """Figures of one stage, at the tolerance chosen from it (the last: at its own)."""

    epsilon: float
    acceptance: float
    simulations: int
    points: int
    effective_size: float
    not_finite: int
    undefined: float
    evidence: AbcEvidence


class SequentialResult(NamedTuple):
    """The last stage, its weights, and the stages before it.

    Attributes
    ----------
    stage : Stage
    weights : Weights
    epsilon : float
    records : list of Record
    reason : str
        Why the tolerance did not fall further.
    n_components : int
        Number of components of the last proposal; 0 for the prior.
    chosen_here : bool
        Whether the tolerance was chosen from the last stage, which biases its evidence.
    """

    stage: Stage
    weights: Weights
    epsilon: float
    records: list[Record]
    reason: str
    n_components: int
    chosen_here: bool = False


Report = Callable[[Record, int], None]


def run_sequential(
    problem: AbcProblem,
    plan: Plan,
    budget: Budget,
    rngs: list[np.random.Generator],
    executor: Executor | None,
    report: Report,
) -> SequentialResult:
    """Lower the tolerance stage by stage and simulate the last one.

    Raises
    ------
    ModelError
        If no data set comes near the observed one, with the reason.
    """
    course = _Course(prior_proposal(problem, plan.qmc, rngs[-1]))
    parts = problem, plan, course, budget, rngs, executor
    records = course.records
    try:
        if plan.sequential or problem.epsilon is None:
            _lower(*parts, report)
        else:
            course.epsilon, course.reason = problem.epsilon, "the tolerance asked for"
        if course.reason == INTERRUPTED:
            return _at_hand(problem, course)
        if plan.may_give_up and _too_few(problem, course):
            raise FewPoints
        stage = _last_stage(*parts)
    except KeyboardInterrupt:
        course.reason = INTERRUPTED
        return _at_hand(problem, course)
    epsilon, reason = course.epsilon, course.reason
    weights = weigh(stage, problem.kernel, epsilon, plan.hits)
    if stage.interrupted and not weights.weight.any():
        return _at_hand(problem, course)
    records.append(_record(problem, stage, weights, epsilon, plan.qmc))
    report(records[-1], budget.used)
    if not weights.weight.any():
        raise ModelError(
            f"no simulated data set is within ε = {epsilon:.3g} of the observed, out of {budget.used} ({reason}); allow more "
            "simulations or a larger epsilon"
        )
    return SequentialResult(stage, weights, epsilon, records, reason, len(course.proposal.students))


@dataclass
class _Course:
    """Progress of the stages.

    Attributes
    ----------
    proposal : AbcProposal
        Proposal of the next stage.
    epsilon : float
        Tolerance of the next stage.
    stage : Stage or None
        The last one that was simulated.
    n_components : int
        Number of components of the proposal from which it was drawn.
    reason : str
        Why the next stage is the last.
    records : list of Record
    """

    proposal: AbcProposal
    epsilon: float = np.inf
    stage: Stage | None = None
    n_components: int = 0
    reason: str = ""
    records: list[Record] = field(default_factory=list)


def _at_hand(problem: AbcProblem, course: _Course) -> SequentialResult:
    """Return the current stage, at the tolerance chosen from it, after Ctrl-C."""
    if course.stage is None or not np.isfinite(course.epsilon):
        raise KeyboardInterrupt
    weights = weigh(course.stage, problem.kernel, course.epsilon)
    if not weights.weight.any():
        raise KeyboardInterrupt
    return SequentialResult(
        course.stage, weights, course.epsilon, course.records, INTERRUPTED, course.n_components, chosen_here=True
    )


def _too_few(problem: AbcProblem, course: _Course) -> bool:
    """Return whether a mixture of few components is a poor proposal, with a very small effective size."""
    if course.stage is None:
        return False
    weights = weigh(course.stage, problem.kernel, course.epsilon)
    alive = np.sum(course.stage.log_ratio > -np.inf)
    if not weights.weight.any():
        return False
    return bool(course.n_components > 0 and weights.effective_size < LEAST_SHARE * alive)


def _lower(
    problem: AbcProblem,
    plan: Plan,
    course: _Course,
    budget: Budget,
    rngs: list[np.random.Generator],
    executor: Executor | None,
    report: Report,
) -> None:
    """Run the stages before the last; set its proposal, its tolerance, and the reason why it is the last."""
    allowance, records = ADAPTATION_SHARE * budget.left, course.records
    while not course.reason:
        n, last = _pilot_size(plan, allowance - budget.used), course.epsilon
        stage = _stage_of(problem, plan, course.proposal, n, budget, rngs, executor)
        if stage.interrupted and course.stage is not None:
            course.reason = INTERRUPTED
            return
        epsilon, weights = next_tolerance(stage, problem.kernel, last, problem.epsilon or 0.0)
        if not np.isfinite(epsilon):
            raise ModelError(
                f"no simulated data set is at a finite distance of the observed, out of {budget.used}: the data that the "
                "simulator returns, or their summaries, are NaN or infinite at all draws of the prior"
            )
        course.stage, course.epsilon, course.n_components = stage, epsilon, len(course.proposal.students)
        records.append(_record(problem, stage, weights, epsilon, plan.qmc))
        report(records[-1], budget.used)
        if plan.sequential and weights.effective_size > 0:
            course.proposal = _next_proposal(problem, stage, weights, epsilon, rngs[-1])
        course.reason = (
            INTERRUPTED if stage.interrupted else _end(problem, plan, budget, allowance, last, epsilon, records)
        )


def _pilot_size(plan: Plan, left: float) -> int:
    """Return the points of a chain in a stage before the last; a power of two, fewer if the budget is small."""
    size = 2 ** int(np.log2(max(plan.pilot_points // plan.chains, 16)))
    while size > 16 and size * plan.chains * plan.data_sets * 1.2 > left:
        size //= 2
    return size


def _stage_of(
    problem: AbcProblem,
    plan: Plan,
    proposal: AbcProposal,
    n: int,
    budget: Budget,
    rngs: list[np.random.Generator],
    executor: Executor | None,
    picking: Picking | None = None,
    pilot: Stage | None = None,
) -> Stage:
    """Draw the points of all chains and simulate at them."""
    parts = [proposal.points(n, plan.qmc, rng) for rng in rngs[: plan.chains]]
    x = np.concatenate(parts)
    chain = np.repeat(np.arange(plan.chains), [len(part) for part in parts])
    log_ratio = _log_ratio(problem, proposal, x, n)
    counts = np.full(len(x), plan.data_sets, dtype=np.intp)
    if pilot is not None and picking is not None and not proposal.is_prior:
        seen = weigh(pilot, picking.kernel, picking.epsilon).variance * pilot.block.counts
        counts = allocate(_log_ratio(problem, proposal, pilot.x, n), seen, log_ratio, plan.data_sets, rngs[-1])
    return simulate_stage(problem, x, chain, log_ratio, counts, picking, budget, rngs[-1], executor)


def _log_ratio(problem: AbcProblem, proposal: AbcProposal, x: Array, n: int) -> Array:
    """Return log p L/q ``(m,)`` at points, with nets of ``n``."""
    log_ratio = proposal.log_ratio(x, n)
    alive = log_ratio > -np.inf
    log_ratio[alive] += problem.log_likelihood(x[alive])
    return log_ratio


def next_tolerance(stage: Stage, kernel: str, last: float, target: float) -> tuple[float, Weights]:
    """Return the next tolerance, no larger than the last and no smaller than the target, and the weights at it.

    Parameters
    ----------
    last : float
        Infinite at first.
    target : float
        0 for none.
    """
    finite = stage.block.distances[np.isfinite(stage.block.distances)]
    if not len(finite):
        return np.inf, weigh(stage, kernel, np.inf)
    aim = EFFECTIVE_SHARE * np.sum(stage.log_ratio > -np.inf)
    high = min(last, _largest(kernel, finite))
    at_target = weigh(stage, kernel, target)
    if at_target.effective_size >= aim or high <= target:
        return max(target, 0.0), at_target
    if weigh(stage, kernel, high).effective_size >= aim:
        low = target
        for _ in range(BISECTIONS):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if weigh(stage, kernel, middle).effective_size >= aim else (middle, high)
            if high - low < 1e-4 * high:
                break
        if high < SLOWEST * last:
            return high, weigh(stage, kernel, high)
    epsilon = max(min(high, _median_of_hits(stage, kernel, high)), target)
    return epsilon, weigh(stage, kernel, epsilon)


def _largest(kernel: str, distances: Array) -> float:
    """Return a tolerance at which all finite distances have nearly equal weights."""
    top = max(float(distances.max()), 0.0)
    return top if kernel == "uniform" else 10 * top


def _median_of_hits(stage: Stage, kernel: str, epsilon: float) -> float:
    """Return the weighted median distance of data sets within ε; for soft kernels reduce ε in the same proportion."""
    distances = stage.block.distances
    weights = np.exp(log_kernel(kernel, distances, epsilon))
    if not weights.any():
        return epsilon
    if kernel != "uniform":
        return 0.7 * epsilon
    order = np.argsort(distances[weights > 0])
    return float(distances[weights > 0][order[len(order) // 2]])


def _next_proposal(
    problem: AbcProblem, stage: Stage, weights: Weights, epsilon: float, rng: np.random.Generator
) -> AbcProposal:
    """Fit the next proposal to points weighted by (p/q)√E[K² | θ]."""
    _, second = smoothed_moments(stage, problem.kernel, epsilon)
    importance = weights.ratio * np.sqrt(second)
    return fit_mixture(problem, stage.x, importance / importance.sum(), rng, weights.effective_size)


def _end(
    problem: AbcProblem,
    plan: Plan,
    budget: Budget,
    allowance: float,
    last: float,
    epsilon: float,
    records: list[Record],
) -> str:
    """Return why this tolerance is the last one; empty if it is not."""
    record = records[-1]
    if problem.epsilon is not None and epsilon <= problem.epsilon:
        return "the tolerance asked for is reached"
    if not plan.sequential:
        return "all points are the prior's"
    if problem.epsilon is None and record.acceptance <= plan.floor:
        return f"acceptance {record.acceptance:.2g} is at the floor"
    if record.acceptance * record.simulations < FEWEST_HITS:
        return f"only {record.acceptance * record.simulations:.0f} hits in a stage"
    if epsilon >= STALLED * last:
        return "the tolerance no longer falls"
    if budget.used + record.simulations > allowance:
        return "half of max_simulations is used up"
    if budget.out_of_time:
        return "max_time is over"
    return f"{MOST_STAGES} stages" if len(records) >= MOST_STAGES else ""


def _last_stage(
    problem: AbcProblem,
    plan: Plan,
    course: _Course,
    budget: Budget,
    rngs: list[np.random.Generator],
    executor: Executor | None,
) -> Stage:
    """Simulate the stage that is returned, of the planned size or as large as the budget allows."""
    picking = Picking(problem.kernel, course.epsilon, plan.hits, plan.cap)
    n, m = 2 ** int(np.ceil(np.log2(plan.points))), max(plan.data_sets, plan.hits)
    if plan.adaptive and problem.experiment.at_once:
        n *= _more_points(problem, plan, course)
    while n > 16 and n * plan.chains * m * 1.2 > budget.left:
        n //= 2
    return _stage_of(problem, plan, course.proposal, n, budget, rngs, executor, picking, course.stage)


def _more_points(problem: AbcProblem, plan: Plan, course: _Course) -> int:
    """Return the factor, a power of two, on the number of points for an evidence error of 1.5 % according to the pilot.

    It adds points, not data sets per point, because this also reduces the points' share of the variance.
    """
    if course.stage is None:
        return 1
    weights = weigh(course.stage, problem.kernel, course.epsilon)
    if not weights.weight.any():
        return 1
    relative = np.sum(weights.ratio**2 * weights.variance) / weights.weight.sum() ** 2
    factor = relative * len(course.stage.x) / (plan.points * plan.chains) / EVIDENCE_ERROR**2
    return 2 ** int(np.ceil(np.log2(np.clip(factor, 1, MORE_POINTS))))


def _record(problem: AbcProblem, stage: Stage, weights: Weights, epsilon: float, qmc: bool) -> Record:
    distances = stage.block.distances
    simulated = np.repeat(stage.log_ratio > -np.inf, stage.block.counts)
    found = stage.x[weights.weight > 0]
    undefined = share_undefined_near(problem.target, found, stage.x, stage.log_ratio) if len(found) else 0.0
    return Record(
        epsilon,
        weights.acceptance,
        stage.n_simulations,
        len(stage.x),
        weights.effective_size,
        int(np.sum(~np.isfinite(distances[simulated]))),
        undefined,
        estimate(stage, weights, qmc),
    )
