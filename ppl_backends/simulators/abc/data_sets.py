"""Data sets at points, an equal number at each, in blocks with separate streams of random numbers."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from ppl_backends.parallel import map_independent
from ppl_backends.simulators.abc.kernels import log_kernel
from ppl_backends.simulators.abc.problem import AbcProblem, Experiment
from ppl_backends.simulators.abc.stages import BLOCKS_A_WAVE, Budget, loaded, points_a_block
from ppl_backends.targets.protocol import Array

__all__ = ["DataSets", "Keeping", "OutOfBudget", "Source"]

KEPT = 2  # data sets of a point: at least one of them does not determine the weight
MOST_AT_ONCE = 64  # data sets of a point between two checks of its hits


class OutOfBudget(Exception):
    """Raised if no further data set may be simulated; the message gives the reason."""


class Keeping(NamedTuple):
    """Flags: keep summaries of all data sets, and keep the first two data sets."""

    summaries: bool
    data: bool


class DataSets(NamedTuple):
    """Simulations at ``n`` points.

    Attributes
    ----------
    distances : ndarray (n, M)
    summaries : ndarray (n, M, k) or None
    data : ndarray (n, 2, size) or None
        The first two data sets, of all simulators, as one row of numbers.
    """

    distances: Array
    summaries: Array | None
    data: Array | None


class Source:
    """Simulates data sets at points.

    Parameters
    ----------
    problem : AbcProblem
    budget : Budget
    executor : Executor or None
    keeping : Keeping
    """

    def __init__(self, problem: AbcProblem, budget: Budget, executor: Executor | None, keeping: Keeping) -> None:
        self.problem, self.budget, self.executor, self.keeping = problem, budget, executor, keeping
        self.not_finite = 0

    def __call__(self, x: Array, m: int, rng: np.random.Generator) -> DataSets:
        """Return ``m`` data sets at each of the points ``(n, dim)``.

        Raises
        ------
        OutOfBudget
            If simulations or time are exhausted.
        """
        if len(x) * m > self.budget.left:
            raise OutOfBudget("max_simulations is used up")
        experiment = self.problem.experiment
        payload: Any = (experiment, m, self.keeping)
        payload = payload if self.executor is None else cloudpickle.dumps(payload)
        rows = points_a_block(experiment, np.full(len(x), m, dtype=np.intp))
        items = [
            (payload, self.problem.values(x[i : i + rows], rng), rng.integers(2**63, size=4).tolist())
            for i in range(0, len(x), rows)
        ]
        size = 1 if self.executor is None else BLOCKS_A_WAVE
        done: list[DataSets] = [_places(0, m, self.problem, self.keeping)]
        for first in range(0, len(items), size):
            if self.budget.out_of_time:
                raise OutOfBudget("max_time is over")
            wave = items[first : first + size]
            done += map_independent(_simulate, wave, self.executor)
            self.budget.spend(m * sum(len(each.distances) for each in done[-len(wave) :]))
        parts = zip(*done, strict=True)
        drawn = DataSets(*(None if part[0] is None else np.concatenate(part) for part in parts))  # type: ignore[arg-type]
        self.problem.look_at(drawn.distances)
        self.not_finite += int(np.sum(~np.isfinite(drawn.distances)))
        return drawn

    def until(
        self, x: Array, hits: int, epsilon: float, limits: NDArray[np.intp], rng: np.random.Generator
    ) -> tuple[NDArray[np.intp], DataSets]:
        """Return numbers of data sets until ``hits`` are within ε at points, and the data sets within ε.

        Before the first tolerance, at ε = ∞, every data set counts, also one at no finite distance. A point has ``limits``
        ``(n,)`` data sets at most. One that has not enough hits by then has a number above its limit, and infinite
        distances in place of missing ones.
        """
        n = len(x)
        counts, found = np.zeros(n, dtype=np.intp), np.zeros(n, dtype=np.intp)
        kept = _places(n, hits, self.problem, self.keeping)
        at_once = self.problem.experiment.at_once
        going, several = np.flatnonzero(limits > 0), 1
        while len(going):
            drawn = self(x[going], several, rng)
            inside = (log_kernel(self.problem.kernel, drawn.distances, epsilon) > -np.inf) | (epsilon == np.inf)
            for trial in range(several):
                wanted = (found[going] < hits) & (counts[going] < limits[going])
                counts[going] += wanted
                near = wanted & inside[:, trial]
                rows = going[near]
                kept.distances[rows, found[rows]] = drawn.distances[near, trial]
                if kept.summaries is not None and drawn.summaries is not None:
                    kept.summaries[rows, found[rows]] = drawn.summaries[near, trial]
                found[rows] += 1
            going = going[(found[going] < hits) & (counts[going] < limits[going])]
            several = min(2 * several, MOST_AT_ONCE) if at_once else 1
        return np.where(found < hits, limits + 1, counts), kept


def _places(n: int, m: int, problem: AbcProblem, keeping: Keeping) -> DataSets:
    """Return arrays for data sets, with infinite distances."""
    summaries = np.zeros((n, m, len(problem.observed_summaries))) if keeping.summaries else None
    data = np.zeros((n, KEPT, problem.experiment.size)) if keeping.data else None
    return DataSets(np.full((n, m), np.inf), summaries, data)


def _simulate(item: tuple[Any, list[dict[str, NDArray]], Any]) -> DataSets:
    """Simulate the data sets of one block, in any process."""
    payload, values, seed = item
    experiment: Experiment
    keeping: Keeping
    experiment, m, keeping = loaded(payload) if isinstance(payload, bytes) else payload
    repeated = [{name: np.repeat(value, m, axis=0) for name, value in each.items()} for each in values]
    distances, summaries, data = experiment.run(repeated, np.random.default_rng(seed))
    n = len(distances) // m
    first = [each.reshape(n, m, -1)[:, :KEPT].astype(np.float64) for each in data] if keeping.data else []
    return DataSets(
        distances.reshape(n, m),
        summaries.reshape(n, m, -1) if keeping.summaries else None,
        np.concatenate(first, axis=2) if first else None,
    )
