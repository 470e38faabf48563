"""One stage: points, their simulated data sets in blocks that can run anywhere, and the weights that these give.

Parameters are points of scrambled nets, the simulator keeps ordinary randomness: a mixed sequence (Buchholz & Chopin 2019,
section 3.4). A block of points has a stream of random numbers of its own: results do not depend on where it is simulated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import lru_cache
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from ppl_backends.parallel import map_independent
from ppl_backends.simulators.abc.kernels import log_kernel
from ppl_backends.simulators.abc.problem import AbcProblem, Experiment
from ppl_backends.targets.protocol import Array

__all__ = [
    "BLOCKS_A_WAVE",
    "Budget",
    "Picking",
    "Stage",
    "Weights",
    "loaded",
    "points_a_block",
    "simulate_stage",
    "weigh",
]

SIMULATIONS_A_BLOCK = 2**14
BYTES_A_BLOCK = 2**24
POINTS_A_BLOCK = 32  # for simulators that draw data sets one by one
BLOCKS_A_WAVE = 32  # submitted to an executor between two checks of the time


class Picking(NamedTuple):
    """The kernel by which one data set of a point is kept; with negative-binomial weights also the stopping rule.

    Attributes
    ----------
    kernel : str
    epsilon : float
    hits : int
        r, or 0 for a fixed number of data sets per point.
    cap : int
        Largest number of data sets of a point, with ``hits``.
    """

    kernel: str
    epsilon: float
    hits: int = 0
    cap: int = 0


class Block(NamedTuple):
    """Results of the simulations of some points.

    Attributes
    ----------
    counts : ndarray of int (n,)
        Number of data sets simulated.
    distances : ndarray (counts.sum(),)
        In the order of the points.
    near : ndarray (n,) or None
        Distance of the data set that was picked by its kernel.
    summaries : ndarray (n, k) or None
        Summaries of that data set.
    data : list of ndarray (n, ...) or None
        For each point a data set with the simulator's distribution, given that the point was drawn by its weight.
    """

    counts: NDArray[np.intp]
    distances: Array
    near: Array | None
    summaries: Array | None
    data: list[NDArray] | None


class Stage(NamedTuple):
    """Points with their simulations.

    Attributes
    ----------
    x : ndarray (n, dim)
    chain : ndarray of int (n,)
        The scramble that a point belongs to.
    log_ratio : ndarray (n,)
        log p L / q, with L ordinary likelihoods.
    block : Block
    complete : bool
        Whether all planned points were simulated; the points of an interrupted net are not a net.
    interrupted : bool
        Whether Ctrl-C ended it.
    """

    x: Array
    chain: NDArray[np.intp]
    log_ratio: Array
    block: Block
    complete: bool
    interrupted: bool = False

    @property
    def n_simulations(self) -> int:
        """Return the number of data sets simulated."""
        return int(self.block.counts.sum())


class Weights(NamedTuple):
    """Weights of a stage's points at one tolerance, up to the factor exp(log_scale).

    Attributes
    ----------
    ratio : ndarray (n,)
        p L / q.
    hit : ndarray (n,)
        L̂, the estimate of E[K | θ].
    variance : ndarray (n,)
        Unbiased estimate of the variance of L̂; NaN if a point has one data set.
    acceptance : float
        Mean of K over data sets, unscaled.
    log_scale : float
    """

    ratio: Array
    hit: Array
    variance: Array
    acceptance: float
    log_scale: float

    @property
    def weight(self) -> Array:
        """Return importance weight times likelihood, w = p L L̂ / q ``(n,)``."""
        return self.ratio * self.hit

    @property
    def effective_size(self) -> float:
        """Return (Σw)² / Σw², 0 if all weights are zero."""
        w = self.weight
        return float(w.sum() ** 2 / np.sum(w**2)) if w.any() else 0.0


class Budget:
    """Remaining simulations and seconds.

    Parameters
    ----------
    max_simulations : int or None
    max_time : float or None
    """

    def __init__(self, max_simulations: int | None, max_time: float | None) -> None:
        self.left = np.inf if max_simulations is None else float(max_simulations)
        self._end = np.inf if max_time is None else time.perf_counter() + max_time
        self.used = 0

    def spend(self, n: int) -> None:
        """Count ``n`` simulated data sets."""
        self.used, self.left = self.used + n, self.left - n

    def part(self, n: int) -> Budget:
        """Return an ``n``-th of the remainder as a separate budget."""
        part = Budget(None, None)
        now = time.perf_counter()
        part.left = self.left if np.isinf(self.left) else float(self.left // n)
        part._end = now + max(self._end - now, 0.0) / n
        return part

    @property
    def out_of_time(self) -> bool:
        """Return whether the time limit has passed."""
        return time.perf_counter() > self._end


def simulate_stage(
    problem: AbcProblem,
    x: Array,
    chain: NDArray[np.intp],
    log_ratio: Array,
    counts: NDArray[np.intp],
    picking: Picking | None,
    budget: Budget,
    rng: np.random.Generator,
    executor: Executor | None = None,
) -> Stage:
    """Simulate ``counts`` data sets at every point; points of zero density are not simulated.

    Points are processed in random order, so that those done when a budget ends are a random sample.
    """
    alive = rng.permutation(np.flatnonzero(log_ratio > -np.inf))
    dead = np.flatnonzero(log_ratio == -np.inf)
    racing = picking is not None and picking.hits > 0
    most = np.full(len(counts), picking.cap, dtype=np.intp) if picking is not None and racing else counts
    rows = points_a_block(problem.experiment, counts[alive])
    payload = cloudpickle.dumps((problem.experiment, picking))
    done: list[Block] = []
    kept, interrupted = 0, False
    while kept < len(alive):
        if done and (budget.out_of_time or budget.left <= 0):
            break
        # Waves of a race depend on the budget that is left, so they do not depend on the executor.
        size = 1 if executor is None and not (racing and np.isfinite(budget.left)) else BLOCKS_A_WAVE
        wave = [alive[i : i + rows] for i in range(kept, len(alive), rows)[:size]]
        groups = _affordable(wave, most, budget.left)
        if not groups:
            break
        items = [
            (payload, problem.values(x[index], rng), counts[index], rng.integers(2**63, size=4).tolist())
            for index in groups
        ]
        try:
            found = map_independent(_simulate_block, items, executor)
        except KeyboardInterrupt:
            if not done:
                raise
            interrupted = True
            break
        done += found
        problem.look_at(np.concatenate([block.distances for block in found]))
        kept += sum(len(index) for index in groups)
        budget.spend(int(sum(block.counts.sum() for block in found)))
    whole = _stage(problem, x, chain, log_ratio, alive[:kept], dead, done, kept == len(alive))
    return whole._replace(interrupted=interrupted)


def _affordable(groups: list[NDArray[np.intp]], most: NDArray[np.intp], left: float) -> list[NDArray[np.intp]]:
    """Return the points of a wave for which the budget suffices, with ``most`` data sets at each."""
    kept = []
    for index in groups:
        planned = np.cumsum(most[index])
        room = planned <= left
        if room.any():
            kept.append(index[room])
            left -= planned[room][-1]
        if not room.all():
            break
    return kept


def points_a_block(experiment: Experiment, counts: NDArray[np.intp]) -> int:
    """Return the number of points of a block; it depends only on the problem, not on the worker."""
    size = max(1, experiment.size)
    most = min(SIMULATIONS_A_BLOCK, max(1, BYTES_A_BLOCK // (8 * size)))
    mean = max(1.0, float(counts.mean())) if len(counts) else 1.0
    rows = max(1, int(most / mean))
    return rows if experiment.at_once else min(rows, POINTS_A_BLOCK)


@lru_cache(maxsize=2)
def loaded(payload: bytes) -> Any:
    """Return the objects that were pickled for the blocks of a stage."""
    return cloudpickle.loads(payload)


def _simulate_block(item: tuple[bytes, list[dict[str, NDArray]], NDArray[np.intp], Any]) -> Block:
    """Simulate the data sets of one block, in any process."""
    payload, values, counts, seed = item
    experiment: Experiment
    experiment, picking = loaded(payload)
    rng = np.random.default_rng(seed)
    if picking is not None and picking.hits:
        return _until_hits(experiment, values, len(counts), picking, rng)
    repeated = [{name: np.repeat(value, counts, axis=0) for name, value in each.items()} for each in values]
    distances, summaries, data = experiment.run(repeated, rng)
    if picking is None:
        return Block(counts, distances, None, None, None)
    ends = np.cumsum(counts)
    value = log_kernel(picking.kernel, distances, picking.epsilon)
    scaled = np.exp(value - max(value.max(initial=-np.inf), -1e300))
    hit = _pick(scaled, ends, rng)
    others = np.repeat(np.add.reduceat(scaled, ends - counts), counts) - scaled
    other = _pick(np.maximum(others, 0.0), ends, rng)
    return Block(counts, distances, distances[hit], summaries[hit], [each[other] for each in data])


def _pick(weights: Array, ends: NDArray[np.intp], rng: np.random.Generator) -> NDArray[np.intp]:
    """Return an index per point, in proportion to the weights of its data sets; the first if all are zero."""
    total = np.concatenate([[0.0], np.cumsum(weights)])
    starts = np.concatenate([[0], ends[:-1]])
    aim = total[starts] + rng.random(len(ends)) * (total[ends] - total[starts])
    return np.clip(np.searchsorted(total, aim, side="right") - 1, starts, ends - 1)


def _until_hits(
    experiment: Experiment, values: list[dict[str, NDArray]], n: int, picking: Picking, rng: np.random.Generator
) -> Block:
    """Simulate at every point until ``hits`` data sets are within ε, at most ``cap`` (negative-binomial weights)."""
    counts, hits = np.zeros(n, dtype=np.intp), np.zeros(n, dtype=np.intp)
    owners: list[NDArray[np.intp]] = []
    kept: list[Array] = []
    summaries: Array | None = None
    near = np.full(n, np.inf)
    going = np.arange(n)
    while len(going):
        rows = [{name: value[going] for name, value in each.items()} for each in values]
        distances, found, _ = experiment.run(rows, rng)
        summaries = np.zeros((n, found.shape[1])) if summaries is None else summaries
        inside = log_kernel(picking.kernel, distances, picking.epsilon) > -np.inf
        summaries[going[inside]], near[going[inside]] = found[inside], distances[inside]
        owners.append(going)
        kept.append(distances)
        counts[going] += 1
        hits[going] += inside
        going = going[(hits[going] < picking.hits) & (counts[going] < picking.cap)]
    order = np.argsort(np.concatenate(owners), kind="stable")
    return Block(counts, np.concatenate(kept)[order], near, summaries, None)


def _stage(
    problem: AbcProblem,
    x: Array,
    chain: NDArray[np.intp],
    log_ratio: Array,
    order: NDArray[np.intp],
    dead: NDArray[np.intp],
    done: Sequence[Block],
    complete: bool,
) -> Stage:
    """Join the blocks, and add the points of zero density with one infinitely distant data set each."""
    # For an unfinished stage, keep the same share of points outside the support as inside.
    share = 1.0 if complete else len(order) / max(1, int(np.sum(log_ratio > -np.inf)))
    dead = dead[: round(share * len(dead))]
    index = np.concatenate([order, dead])
    k = len(problem.observed_summaries)
    counts = np.concatenate([*(block.counts for block in done), np.ones(len(dead), dtype=np.intp)]).astype(np.intp)
    distances = np.concatenate([*(block.distances for block in done), np.full(len(dead), np.inf)])
    near, summaries, data = None, None, None
    if done and done[0].near is not None:
        near = np.concatenate([*(block.near for block in done if block.near is not None), np.full(len(dead), np.inf)])
    if done and done[0].summaries is not None:
        parts = [block.summaries for block in done if block.summaries is not None]
        summaries = np.concatenate([*parts, np.zeros((len(dead), k))])
    if done and done[0].data is not None:
        columns = zip(*(block.data for block in done if block.data is not None), strict=True)
        data = [_with_rows(np.concatenate(column), len(dead)) for column in columns]
    return Stage(x[index], chain[index], log_ratio[index], Block(counts, distances, near, summaries, data), complete)


def _with_rows(data: NDArray, n: int) -> NDArray:
    return np.concatenate([data, np.zeros((n, *data.shape[1:]), dtype=data.dtype)])


def weigh(stage: Stage, kernel: str, epsilon: float, hits: int = 0) -> Weights:
    """Return the weights of a stage at a tolerance.

    Fixed numbers of data sets: L̂ is the mean of K (3.3). Negative binomial: L̂ = (r−1)/(k−1) if the r-th hit is the
    k-th data set, and hits/K if the cap K is reached first. Both are the only unbiased estimate that is a function of
    the stopping point (Girshick, Mosteller & Savage 1946), as is the second moment, which gives the variance.
    """
    counts, ends = stage.block.counts, np.cumsum(stage.block.counts)
    logs = log_kernel(kernel, stage.block.distances, epsilon)
    simulated = np.repeat(stage.log_ratio > -np.inf, counts)
    acceptance = float(np.exp(logs[simulated]).mean()) if simulated.any() else 0.0
    top, high = max(logs.max(initial=-np.inf), -1e300), max(stage.log_ratio.max(initial=-np.inf), -1e300)
    value = np.exp(logs - top)
    if not len(counts):
        return Weights(np.zeros(0), np.zeros(0), np.zeros(0), 0.0, 0.0)
    total = np.add.reduceat(value, ends - counts)
    mean = total / counts
    with np.errstate(divide="ignore", invalid="ignore"):
        if hits:
            full = total >= hits
            mean = np.where(full, (hits - 1) / np.maximum(counts - 1, 1), mean)
            square = np.where(
                full,
                (hits - 1) * (hits - 2) / np.maximum((counts - 1) * (counts - 2), 1),
                total * (total - 1) / (counts * np.maximum(counts - 1.0, 1.0)),
            )
            variance = np.where(counts > 1, mean**2 - square, 0.0)
        else:
            apart = np.add.reduceat((value - np.repeat(mean, counts)) ** 2, ends - counts)
            variance = np.where(stage.log_ratio == -np.inf, 0.0, apart / (counts - 1.0) / counts)
    return Weights(np.exp(stage.log_ratio - high), mean, variance, acceptance, float(top + high))
