r"""The path over the data: p(θ | y_{1:t}) for t = 0 … n, block by block (IBIS; Chopin 2002).

Tempering raises the whole likelihood to a power; this path adds observations in their order. Given particles of p(θ |
y_{1:t}), the weights of the next rows are their likelihoods. Rows are added as long as the effective sample size of
the weights stays above its threshold. Then the particles are resampled and moved by a kernel that leaves p(θ |
y_{1:t+b}) invariant and evaluates only those t + b rows. A single row with too uneven weights (such as the first row
under a vague prior) is tempered inside its block.

Every row is predicted before it is added: the mean weight that it contributes is p(y_i | y_{1:i−1}), and the product
of these is the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from ppl_backends.errors import ModelError
from ppl_backends.kernels.protocol import Density, Kernel
from ppl_backends.smc.core import SMCState, Start, Step
from ppl_backends.smc.evidence import PathSampling
from ppl_backends.smc.moves import MoveSettings, UntilMixed
from ppl_backends.smc.path import PathState, PriorPath, TemperingPath
from ppl_backends.smc.schedule import Schedule
from ppl_backends.targets.integral import PriorIntegral, stated_integral
from ppl_backends.targets.observations import Observations
from ppl_backends.targets.power import PowerTarget
from ppl_backends.targets.protocol import Array, BaseTarget, sanitize

_CHUNK_ELEMENTS = 1 << 20  # elements of the table points × rows in which the next rows are evaluated


@dataclass(frozen=True)
class RowState(PathState):
    """Particles of p(θ | y_{1:first}) p(y_{first+1:stop} | θ)^β."""

    first: int
    stop: int


class Block(NamedTuple):
    """Rows that are added together, up to ``stop``.

    ``increment`` is their log likelihood at the particles, with the Potentials in the first block. ``log_others`` is
    the log mean of the part of it that does not come from rows. ``log_scores`` are log predictive densities of each
    row.
    """

    stop: int
    increment: Array
    log_scores: Array
    log_others: float


class Rows(NamedTuple):
    """A stage of the path: the rows before ``first`` are included, those up to ``stop`` with power ``beta``.

    ``step`` is the step from the stage before it, ``n`` the number of all rows, and ``block`` is given at the first
    stage of each block. ``n_particles`` is the size of the filters, if particles have filters.
    """

    first: int
    stop: int
    beta: float
    step: float
    n: int
    block: Block | None = None
    n_particles: int = 0

    @property
    def rows(self) -> float:
        """Return the number of included rows; a fraction inside a block."""
        return self.first + self.beta * (self.stop - self.first)

    @property
    def position(self) -> float:
        """Return the share of included rows."""
        return self.rows / max(self.n, 1)


class RowsPath(TemperingPath):
    """The observations of a target in their order, starting from its prior."""

    description = "prior"
    attributes: Mapping[str, Any] = MappingProxyType({"method": "SMC over rows"})  # of results

    def __init__(self, target: BaseTarget, prior: PriorPath) -> None:
        super().__init__(target)
        self.prior, self.n = prior, observations_of(target).n
        self.integral = stated_integral(target) or PriorIntegral(0.0)

    def start(self, n: int, rng: np.random.Generator) -> Start:
        drawn = self.prior.draw(n, rng)
        return drawn._replace(population=self.seen(drawn.population, 0))

    def seen(self, x: Array, rows: int) -> RowState:
        """Return the points as particles of p(θ | y_{1:rows})."""
        return self._at(x, self.all_of(rows), False)

    def all_of(self, rows: int) -> Rows:
        """Return the stage with the first ``rows`` rows."""
        return Rows(rows, rows, 1.0, 0.0, self.n)

    def next(self, population: Any, weights: Array | None, schedule: Schedule) -> tuple[Rows, Array]:
        """Add the next rows, or a further fraction of rows that are tempered."""
        first, stop, increment, block = population.first, population.stop, population.increment, None
        before = population.beta
        if before == 1.0:
            block = self.next_block(population, schedule.least_share)
            first, stop, increment, before, schedule = stop, block.stop, block.increment, 0.0, schedule.within()
            if not np.any(increment > -np.inf):
                raise ModelError(f"{self.target.label}: {self.impossible(first)}")
        beta = schedule.next(increment, before, weights)
        step = beta - before
        return Rows(first, stop, beta, step, self.n, block), step * increment

    def impossible(self, row: int) -> str:
        """Return what is wrong if an observation has probability zero at every particle."""
        return (
            f"observation {row} has probability zero at every particle; sample_smc would say the same of all observations "
            "together"
        )

    def next_block(self, population: Any, least_share: float) -> Block:
        """Return the next rows: at least one, and more as long as the ESS of their weights is above its threshold."""
        width = max(1, population.stop - population.first)
        return next_block(self, population.x, population.stop, least_share, width)

    def is_last(self, stage: Rows) -> bool:
        return stage.stop == self.n and stage.beta == 1.0

    def extend(self, population: RowState, stage: Rows, rng: np.random.Generator) -> RowState:
        """Return the particles with the rows of a new block evaluated, or at another power of the same rows."""
        if stage.block is None:
            return replace(population, beta=stage.beta)
        return self._at(population.x, stage, self.uses_gradient)

    def density(self, stage: Rows) -> Density[PathState]:
        """Return the map from points to particles of the stage; it evaluates only the rows before ``stop``."""
        return lambda x, rng: self._at(x, stage, self.uses_gradient)

    def end_log_density(self, population: PathState) -> None:
        """Return None: there is no search for lost modes."""

    def moves(self, kernel: Kernel, settings: MoveSettings) -> Any:
        """Return the moves of a stage."""
        return UntilMixed(kernel, settings)

    def records(self, log_evidence: float, n: int) -> dict[str, Any]:
        """Return the records of a run other than its rows, before its first stage."""
        return {"path_sampling": PathSampling(log_evidence, np.zeros(n))}

    def stage_figures(self, runs: Sequence[SMCState]) -> dict[str, list[Sequence[float]]]:
        """Return figures of every stage that only paths over rows have: name → figures of each run."""
        return {"n_observations": [run.records["rows"].rows for run in runs]}

    def kept(self, runs: Sequence[SMCState]) -> dict[str, Any]:
        """Return the variables, in addition to points, that results keep so that runs can be continued."""
        return {}

    def reasons(self, runs: Sequence[SMCState]) -> list[str]:
        """Return reasons, each with its figure, not to trust results of this path."""
        return []

    def causes(self, runs: Sequence[SMCState]) -> list[str]:
        """Return likely causes, each with its figure, of results that are not trusted."""
        return []

    def states_of(self, runs: Sequence[SMCState], rng: np.random.Generator) -> Array:
        """Return paths of states ``(chain, draw, n_rows[, d])`` if particles have filters."""
        raise NotImplementedError

    def again(self, x: Array, rows: int, points: Any, chain: int) -> RowState:
        """Return the particles of a result's chain as they were; ``points`` is their group in the result."""
        return self.seen(x, rows)

    def _at(self, x: Array, stage: Rows, gradient: bool) -> RowState:
        """Evaluate base (prior and rows so far) and increment (the rows of the block).

        In the first block the Potentials, which are no rows, count as part of the increment.
        """
        parts = [
            self.target.evaluate_prior(x, gradient),
            self._sum(x, 0, stage.first, gradient),
            self._sum(x, stage.first, stage.stop, gradient),
        ]
        parts.insert(2 if stage.first else 3, self.target.evaluate_potentials(x, gradient))
        split = 3 if stage.first else 2
        base, increment = _added(parts[:split], 0), _added(parts[split:], 0)
        slope = _added(parts[:split], 1) if gradient else None
        increment_slope = _added(parts[split:], 1) if gradient else None
        return RowState(x, base, increment, slope, increment_slope, stage.beta, stage.first, stage.stop)

    def _sum(self, x: Array, start: int, stop: int, gradient: bool) -> tuple[Array, Array | None]:
        """Return the log likelihood of the rows from ``start`` to ``stop`` ``(n,)``, and its gradient ``(n, dim)``."""
        if start == stop:
            return np.zeros(len(x)), np.zeros_like(x) if gradient else None
        rows = np.arange(start, stop)
        if gradient:
            return sanitize(*observations_of(self.target).sum(x, rows, gradient=True))
        return sanitize(observations_of(self.target).sum(x, rows))


def _added(parts: Sequence[Any], which: int) -> Array:
    """Return the sum of the values (0) or of the gradients (1)."""
    return np.sum([part[which] for part in parts], axis=0)


def observations_of(target: BaseTarget) -> Observations:
    """Return the observations of a target; refuse a target that does not provide them one by one."""
    if isinstance(target, PowerTarget):
        raise ModelError(f"{target.label}: sample_ibis adds whole observations; power= needs sample_smc")
    if target.state_space is not None and target.observations is None:
        raise ModelError(
            f"{target.label}: sample_ibis takes a state-space model only if it is pb.state_space.linear_gaussian and the "
            "only data; use pb.sample_smc2"
        )
    if target.observations is None:
        raise ModelError(f"{target.label}: sample_ibis needs the observations one by one, and the target has none")
    return target.observations


def rows_have_gradients(target: BaseTarget) -> bool:
    """Return whether sums over the observations of a target have gradients."""
    observations = observations_of(target)
    if not target.has_gradient or observations.no_gradient:
        return False
    try:
        observations.sum(np.zeros((1, target.dim)), np.arange(1), gradient=True)
    except ModelError:
        return False
    return True


@dataclass(frozen=True)
class Prequential:
    """Rows included after every stage (a fraction inside a block of several stages), and their predictions.

    ``log_scores`` are log p(y_i | y_{1:i−1}), and ``contribution`` are the contributions of the lineages to the error
    of the evidence when the run was started or continued. The last ``block`` is kept with the ``log_evidence`` before
    it.
    """

    rows: tuple[float, ...]
    log_scores: Array
    contribution: Array
    block: Block | None = None
    log_evidence: float = 0.0

    @property
    def seen(self) -> int:
        """Return the number of rows that have a score."""
        return len(self.log_scores)

    def after(self, step: Step) -> Prequential:
        """Add a stage, and the scores of its block if the block is complete."""
        stage = step.after.stage
        block, log_evidence = self.block, self.log_evidence
        if stage.block is not None:
            block, log_evidence = stage.block, step.before.log_evidence
        assert block is not None
        scores = self.log_scores
        if stage.beta == 1.0:
            new = block.log_scores
            if len(new) == 1:  # a row of several stages is predicted by all of them
                new = np.array([step.after.log_evidence - log_evidence - block.log_others])
            scores = np.append(scores, new)
        return Prequential((*self.rows, stage.rows), scores, self.contribution, block, log_evidence)


def next_block(path: RowsPath, x: Array, seen: int, ess_fraction: float, width: int) -> Block:
    """Return the rows up to the last before the ESS of their weights falls below the threshold; at least one.

    Rows are evaluated in chunks, the first of ``width``, each twice as long as the previous one.
    """
    n = len(x)
    log_weight = path.target.evaluate_potentials(x, False)[0] if seen == 0 else np.zeros(n)
    start, before, scores = seen, float(_log_sum(log_weight)), list[Array]()
    increment, log_others = log_weight, before - float(np.log(n))
    longest = max(1, _CHUNK_ELEMENTS // n)
    while start < path.n:
        stop = min(start + min(width, longest), path.n)
        terms = observations_of(path.target).log_likelihood(x, np.arange(start, stop))
        defined = np.where(np.isnan(terms) | (terms == np.inf), -np.inf, terms)
        cumulative = log_weight[:, None] + np.cumsum(defined, axis=1)
        total = _log_sum(cumulative)
        with np.errstate(invalid="ignore"):
            ess = np.exp(2.0 * total - _log_sum(2.0 * cumulative))
            scores.append(np.diff(total, prepend=before))
        low = np.flatnonzero(~(ess >= ess_fraction * n))
        if low.size:
            kept = max(int(low[0]), seen + 1 - start)
            start, increment = start + kept, cumulative[:, kept - 1] if kept else log_weight
            break
        increment = log_weight = cumulative[:, -1]
        before, start, width = float(total[-1]), stop, 2 * width
    return Block(start, increment, np.concatenate(scores)[: start - seen], log_others)


def _log_sum(log_weights: Array) -> Array:
    """Return the log of the sum over points, ``-inf`` if all are zero."""
    with np.errstate(divide="ignore"):
        return logsumexp(log_weights, axis=0)
