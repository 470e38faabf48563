r"""The path over the data: p(θ | y_{1:t}) for t = 0 … n, block by block (IBIS; Chopin 2002).

Where tempering raises the whole likelihood to a power, this path lets observations in, in their order. Given particles of
p(θ | y_{1:t}), the weights of the next rows are their likelihoods; rows are let in as long as the effective sample size of
the weights stays above its threshold, and then the particles are resampled and moved, by a kernel that leaves
p(θ | y_{1:t+b}) invariant and looks at those t + b rows alone. One row that is too much by itself (the first one under a
vague prior) is let in by degrees: inside its block the path tempers.

On the way every row is predicted before it is let in: the mean weight that it adds is p(y_i | y_{1:i−1}), and their product
the evidence.

A run stores what it takes to go on, so that :func:`~ppl_backends.update_smc` can let new rows in later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from ppl_backends.errors import ModelError
from ppl_backends.kernels.protocol import Kernel
from ppl_backends.smc.evidence import PathSampling
from ppl_backends.smc.moves import MoveSettings
from ppl_backends.smc.path import PathState, PriorPath
from ppl_backends.smc.sampler import SMCState, Stage, advance, run_tempering
from ppl_backends.smc.schedule import Schedule
from ppl_backends.smc.start import Start
from ppl_backends.targets.power import PowerTarget
from ppl_backends.targets.protocol import Array, BaseTarget, sanitize

__all__ = ["BlockPath", "DataPath", "DataRun", "begin", "beginning", "run_data_path"]

_CHUNK_ELEMENTS = 1 << 20  # of the table points × rows in which the next rows are looked at


class DataPath(PriorPath):
    """The observations of a target, and its prior, from which the path over them begins.

    Parameters
    ----------
    target : BaseTarget
        With ``observations``.
    prior : PriorPath
        Draws the particles before any data.

    Raises
    ------
    ModelError
        If the target does not know its observations one by one.
    """

    description = "prior"

    def __init__(self, target: BaseTarget, prior: PriorPath) -> None:
        super().__init__(target)
        if isinstance(target, PowerTarget):
            raise ModelError(f"{target.label}: path='data' lets observations in whole; power= needs path='tempering'")
        if target.observations is None:
            raise ModelError(f"{target.label}: path='data' needs the observations one by one, and none are known")
        self.prior, self.observations = prior, target.observations
        self.n = self.observations.n

    def __reduce__(self):
        """The target brings its observations along as a recipe."""
        return DataPath, (self.target, self.prior)

    def start(self, n: int, rng: np.random.Generator, run: Callable[..., Any]) -> Start:
        """Draws of the prior."""
        return self.prior.start(n, rng, run)

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return self.target.dim

    @property
    def label(self) -> str:
        """What errors call the model."""
        return self.target.label

    @property
    def has_gradient(self) -> bool:
        """Whether sums over rows have gradients."""
        if not self.target.has_gradient or self.observations.no_gradient:
            return False
        try:
            self.observations.sum(np.zeros((1, self.target.dim)), np.arange(1), gradient=True)
        except ModelError:
            return False
        return True

    def log_prior(self, x: Array, gradient: bool) -> tuple[Array, Array | None]:
        """Log prior ``(n,)`` and its gradient ``(n, dim)``, without a look at the data where the target knows how."""
        return self.target.evaluate_prior(x, gradient)

    def potentials(self, x: Array, gradient: bool) -> tuple[Array, Array | None]:
        """Terms that are neither prior nor rows: PyMC's Potentials."""
        return self.target.evaluate_potentials(x, gradient)

    def sum(self, x: Array, start: int, stop: int, gradient: bool) -> tuple[Array, Array | None]:
        """Log likelihood of the rows from ``start`` to ``stop`` ``(n,)``, and its gradient ``(n, dim)``."""
        if start == stop:
            return np.zeros(len(x)), np.zeros_like(x) if gradient else None
        rows = np.arange(start, stop)
        if gradient:
            return sanitize(*self.observations.sum(x, rows, gradient=True))
        return sanitize(self.observations.sum(x, rows))


class BlockPath(PriorPath):
    """From p(θ | y_{1:start}) to p(θ | y_{1:stop}); a tempering path, of which one step usually is the whole.

    Before the first row the Potentials, which are no rows, count as part of the increment.
    """

    description = "prior"

    def __init__(self, data: DataPath, start: int, stop: int) -> None:
        super().__init__(data.target)
        self.data, self.first, self.stop = data, start, stop

    def evaluate(self, x: Array, beta: float, gradient: bool) -> PathState:
        """Base: prior and rows so far; increment: the rows of the block."""
        data = self.data
        prior, prior_slope = data.log_prior(x, gradient)
        others, others_slope = data.potentials(x, gradient)
        seen, seen_slope = data.sum(x, 0, self.first, gradient)
        rows, rows_slope = data.sum(x, self.first, self.stop, gradient)
        base, increment = [prior, seen], [rows]
        slopes, increment_slopes = [prior_slope, seen_slope], [rows_slope]
        (base if self.first else increment).append(others)
        (slopes if self.first else increment_slopes).append(others_slope)
        if not gradient:
            return PathState(x, _added(base), _added(increment), None, None, beta)
        return PathState(x, _added(base), _added(increment), _added(slopes), _added(increment_slopes), beta)


def _added(parts: list[Any]) -> Array:
    return np.sum(parts, axis=0)


@dataclass(frozen=True)
class DataRun:
    """A run over the rows seen so far.

    Attributes
    ----------
    progress : SMCState
        Between two blocks: particles at beta 1 of the last one.
    seen : int
        Rows let in.
    rows : tuple of float
        Rows let in after every stage; a fraction inside a block that took several.
    log_scores : ndarray (seen,)
        log p(y_i | y_{1:i−1}) of every row, estimated before it was let in.
    """

    progress: SMCState
    seen: int
    rows: tuple[float, ...]
    log_scores: Array


class _Block(NamedTuple):
    """The next rows: where they end, the log predictive density of each, and the log mean of what comes before them."""

    stop: int
    log_scores: Array
    log_others: float


def begin(data: DataPath, kernel: Kernel, n: int, rng: np.random.Generator, options: dict[str, Any]) -> DataRun:
    """Particles before any data; ``options`` are those of :func:`~ppl_backends.smc.sampler.run_tempering`."""
    start = data.start(n, rng, lambda inner, size, other: run_tempering(inner, kernel, size, other, **options))
    state = BlockPath(data, 0, 0).evaluate(start.x, 0.0, kernel.uses_gradient)
    progress = SMCState(
        state=state,
        rng=rng,
        lineage=start.lineage,
        path_sampling=PathSampling(n, start.log_normalizer),
        scale=kernel.initial_scale(data.target.dim),
        log_evidence=start.log_normalizer,
        log_normalizer=start.log_normalizer,
        start_stages=start.stages,
    )
    return DataRun(beginning(progress), 0, (0.0,), np.empty(0))


def beginning(progress: SMCState) -> SMCState:
    """With the particles as they are as first stage, so that every block that follows is moved."""
    x, n = progress.state.x, len(progress.state.x)
    with np.errstate(all="ignore"):
        mean, sd = x.mean(axis=0), x.std(axis=0)
    stage = Stage(0.0, progress.log_evidence, float(n), mean, sd, progress.lineage.n_lineages, None, 0.0)
    return replace(progress, stages=(stage,))


def run_data_path(
    data: DataPath,
    kernel: Kernel,
    run: DataRun,
    *,
    schedule: Schedule,
    moves: MoveSettings,
    max_time: float | None,
    report: Callable[[DataRun], None] | None = None,
) -> DataRun:
    """Let in the rows of ``data`` that ``run`` has not seen.

    Parameters
    ----------
    data : DataPath
    kernel : Kernel
    run : DataRun
        Its particles are of p(θ | y_{1:seen}).
    schedule : Schedule
        By the ESS.
    moves : MoveSettings
    max_time : float, optional
        Seconds after which no further block is begun.
    report : callable, optional
        Called after every block.
    """
    clock = time.perf_counter()
    width = 1
    while run.seen < data.n:
        if len(run.rows) > 1 and max_time is not None and time.perf_counter() - clock > max_time:
            break
        block = next_block(data, run.progress.state.x, run.seen, schedule.least_share, width)
        path = BlockPath(data, run.seen, block.stop)
        progress, rows, width = run.progress, list(run.rows), block.stop - run.seen
        state = path.evaluate(progress.state.x, 0.0, kernel.uses_gradient)
        if not np.any(state.increment > -np.inf):
            raise ModelError(
                f"{data.target.label}: observation {run.seen} has probability zero at every particle; path='tempering' "
                "would say the same of all observations together"
            )
        progress = replace(progress, state=state)
        while progress.state.beta < 1.0:
            progress = advance(progress, path, kernel, schedule, moves)
            rows.append(run.seen + progress.state.beta * width)
        scores = block.log_scores
        if width == 1:  # a row that took several steps is predicted by all of them
            scores = np.array([progress.log_evidence - run.progress.log_evidence - block.log_others])
        run = DataRun(progress, block.stop, tuple(rows), np.append(run.log_scores, scores))
        if report is not None:
            report(run)
    return run


def next_block(data: DataPath, x: Array, seen: int, ess_fraction: float, width: int) -> _Block:
    """The rows up to the last one before the effective sample size of their weights falls below the threshold; at least one.

    Rows are looked at in chunks, the first of ``width``, each twice as long as the one before.
    """
    n = len(x)
    log_weight = data.potentials(x, False)[0] if seen == 0 else np.zeros(n)
    start, before, scores = seen, float(_log_sum(log_weight)), list[Array]()
    log_others = before - float(np.log(n))
    longest = max(1, _CHUNK_ELEMENTS // n)
    while start < data.n:
        stop = min(start + min(width, longest), data.n)
        terms = data.observations.log_likelihood(x, np.arange(start, stop))
        cumulative = log_weight[:, None] + np.cumsum(np.where(np.isnan(terms), -np.inf, terms), axis=1)
        total = _log_sum(cumulative)
        with np.errstate(invalid="ignore"):
            ess = np.exp(2.0 * total - _log_sum(2.0 * cumulative))
            scores.append(np.diff(total, prepend=before))
        low = np.flatnonzero(~(ess >= ess_fraction * n))
        if low.size:
            start = max(start + int(low[0]), seen + 1)
            break
        log_weight, before, start, width = cumulative[:, -1], float(total[-1]), stop, 2 * width
    return _Block(start, np.concatenate(scores)[: start - seen], log_others)


def _log_sum(log_weights: Array) -> Array:
    """Log of the sum over points, ``-inf`` where all are zero."""
    with np.errstate(divide="ignore"):
        return logsumexp(log_weights, axis=0)
