"""SMC-ABC: populations that are weighted, resampled and moved along falling tolerances, with the loop of ``sample_smc``.

Every chain is a separate run. If the last tolerance is not given, the first chain finds it, and the others use it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.kernels.protocol import Kernel
from ppl_backends.kernels.table import make_kernel
from ppl_backends.kernels.tuning import make_tuning
from ppl_backends.simulators.abc.data_sets import Keeping, OutOfBudget, Source
from ppl_backends.simulators.abc.hit_kernel import RHit
from ppl_backends.simulators.abc.problem import AbcProblem
from ppl_backends.simulators.abc.sequential import MOST_STAGES, STALLED, Plan
from ppl_backends.simulators.abc.stages import Budget
from ppl_backends.simulators.abc.tolerances import Tolerance, TolerancePath, Tolerances
from ppl_backends.smc.core import Parts, SMCState, Step, Watch, begin, run_smc
from ppl_backends.smc.moves import MoveSettings, UntilMixed, WasteFree
from ppl_backends.smc.sample import chain_length
from ppl_backends.smc.schedule import Resampling

__all__ = ["PopulationStage", "PopulationsResult", "run_populations"]

KERNEL = "mixed"
DATA_SETS = 2  # least number of data sets, so that one of them does not determine the weight
FEWEST, STAGES_AT_LEAST = 100, 10  # particles of a chain; least number of stages that a budget must allow


class PopulationStage(NamedTuple):
    """Figures of one stage of one chain."""

    epsilon: float
    log_evidence: float
    log_evidence_se: float
    effective_size: float
    acceptance: float
    n_moves: int
    simulations: int
    not_finite: int
    points: int
    beta: float
    undefined: float


class PopulationsResult(NamedTuple):
    """The chains that reached the last tolerance.

    Attributes
    ----------
    runs : list of SMCState
    epsilon : float
    reason : str
        Why the tolerance did not fall further.
    unfinished : list of str
        Why each of the other chains did not reach it.
    interrupted : bool
    kernel : str
    simulations : int
        Number of data sets of the whole call, with those of other methods and of chains that are left out.
    """

    runs: list[SMCState]
    epsilon: float
    reason: str
    unfinished: list[str]
    interrupted: bool
    kernel: str
    simulations: int


Report = Callable[[int, PopulationStage, int], None]


def run_populations(
    problem: AbcProblem,
    plan: Plan,
    budget: Budget,
    rngs: list[np.random.Generator],
    executor: Executor | None,
    report: Report,
    keeps_summaries: bool,
) -> PopulationsResult:
    """Run all chains, one after the other; those that do not reach the last tolerance are left out.

    Raises
    ------
    ModelError
        If the first chain has nothing at a finite distance, or ends before its first tolerance, or its simulator fails.
    """
    target, reason, runs, unfinished, kernel = problem.epsilon, "", list[SMCState](), list[str](), ""
    interrupted = False
    for chain in range(plan.chains):
        job = _Chain(problem, plan, budget.part(plan.chains - chain), executor, target, keeps_summaries, budget.used)
        try:
            run, ended = job.run(rngs[chain], partial(report, chain))
        except KeyboardInterrupt:
            if not runs:
                raise
            run, ended = runs[0], "interrupted"
        except ModelError as error:  # no stage, or the simulator fails at a point of this chain
            if not runs:
                raise
            run, ended = runs[0], str(error)
        budget.spend(job.budget.used)
        if not runs:
            _check_tolerance(run.stage, ended)
            reached = "the tolerance is zero" if problem.epsilon is None else "the tolerance asked for is reached"
            target, reason, kernel = run.stage.epsilon, ended or reached, job.kernel_name
            runs.append(run)
        elif ended:
            unfinished.append(ended)
        else:
            runs.append(run)
        if ended == "interrupted":
            interrupted, unfinished = True, [ended] * (plan.chains - len(runs))
            break
    assert target is not None
    return PopulationsResult(runs, target, reason, unfinished, interrupted, kernel, budget.used)


def _check_tolerance(stage: Tolerance, ended: str) -> None:
    """Raise an error if a chain ended before its first tolerance: simulated data have not changed its particles yet."""
    if not ended or np.isfinite(stage.epsilon):
        return
    if ended == "interrupted":
        raise KeyboardInterrupt
    raise ModelError(
        f"{ended} before the first tolerance, with ordinary likelihoods raised to the power {stage.beta:.2g}; allow more"
    )


@dataclass
class _Chain:
    """One chain."""

    problem: AbcProblem
    plan: Plan
    budget: Budget
    executor: Executor | None
    target: float | None
    keeps_summaries: bool
    used_before: int
    kernel_name: str = KERNEL

    def run(self, rng: np.random.Generator, report: Callable[[PopulationStage, int], None]) -> tuple[SMCState, str]:
        """Return the final state of the chain, and the reason for its end; "" at the last tolerance."""
        plan = self.plan
        m = plan.hits - 1 if plan.hits else DATA_SETS if plan.adaptive else plan.data_sets
        n = self._size(m)
        keeping = Keeping(self.keeps_summaries, m > 1 and not plan.hits)
        source = Source(self.problem, self.budget, self.executor, keeping)
        path = TolerancePath(self.problem, source, m, self.target or 0.0, plan.qmc)
        kernel: Kernel = RHit(path, plan.hits, plan.cap) if plan.hits else make_kernel(KERNEL)
        self.kernel_name = kernel.name
        try:
            start = path.start(n, rng)
        except OutOfBudget as error:
            raise ModelError(
                f"{error} before the first stage of {n} points with {m} data sets each; allow more"
            ) from None
        if not np.isfinite(start.population.distances).any():
            raise ModelError(
                f"no simulated data set is at a finite distance of the observed, out of {self.budget.used}: the data that "
                "the simulator returns, or their summaries, are NaN or infinite at all draws of the prior"
            )
        length, settings = chain_length("auto", n), MoveSettings()
        moved = n if length is None else -(-n // length)
        run = begin(start, rng, make_tuning("acceptance", kernel, moved, self.problem.dim, rng))
        move = UntilMixed(kernel, settings) if length is None else WasteFree(kernel, settings, length)
        parts = Parts(Tolerances(path.last), Resampling(moved), move, self._figures(source, path))
        watch = _Watch(run, self, report)
        try:
            return run_smc(run, path, parts, watch)
        except OutOfBudget as error:
            if not watch.last.stages:
                raise ModelError(f"{error} before the first stage of {n} points ended; allow more") from None
            return watch.last, str(error)

    def _size(self, m: int) -> int:
        """Return the number of particles; fewer if the budget is small."""
        n = self.plan.points
        while n > FEWEST and n * m * STAGES_AT_LEAST > self.budget.left:
            n //= 2
        return n

    def _figures(self, source: Source, path: TolerancePath) -> Callable[[Step], PopulationStage]:
        def figures(step: Step) -> PopulationStage:
            after, moves = step.after, step.moved.summary
            return PopulationStage(
                after.stage.epsilon,
                after.log_evidence,
                after.lineage.variance**0.5,
                float(after.ess or 0.0),
                moves.acceptance,
                moves.n_moves,
                self.budget.used,
                source.not_finite,
                len(after.population.x),
                after.stage.beta,
                path.undefined,
            )

        return figures


class _Watch(Watch):
    """End a chain if its budget, its acceptance or its tolerance requires it."""

    def __init__(self, run: SMCState, chain: _Chain, report: Callable[[PopulationStage, int], None]) -> None:
        self.last, self._chain, self._report = run, chain, report

    def stops(self, run: SMCState) -> str:
        """Return why the run stops; empty if it continues."""
        if not run.stages:
            return ""
        chain, last = self._chain, run.stages[-1]
        before = run.stages[-2].epsilon if len(run.stages) > 1 else np.inf
        if last.beta == 1.0 and last.epsilon < np.inf:
            if chain.target is None and last.acceptance <= chain.plan.floor:
                return f"acceptance {last.acceptance:.2g} of the moves is at the floor"
            if last.epsilon >= STALLED * before:
                return "the tolerance no longer falls"
        if chain.budget.left <= 0:
            return "max_simulations is used up"
        if chain.budget.out_of_time:
            return "max_time is over"
        return f"{MOST_STAGES} stages" if len(run.stages) >= MOST_STAGES else ""

    def see(self, run: SMCState) -> None:
        """Record a finished stage."""
        self.last = run
        self._report(run.stages[-1], self._chain.used_before + self._chain.budget.used)


def picked(run: SMCState, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return the data set of each particle that its kernel picks ``(n,)``, and one of the first two that is another."""
    points, stage = run.population, run.stage
    assert isinstance(stage, Tolerance)
    weights = np.exp(points.log_kernels(stage.epsilon))
    ends = np.cumsum(weights, axis=1)
    near = (ends < rng.random(len(ends))[:, None] * ends[:, -1:]).sum(axis=1).clip(max=weights.shape[1] - 1)
    return near, np.where(near == 0, 1, 0)
