r"""Non-reversible parallel tempering: explore, swap, and follow replicas (Syed, Bouchard-Côté, Deligiannidis & Doucet 2022).

One scan t does, for every chain and with V = −increment,

1. *explore*: each replica moves by a kernel that leaves π_β of its β invariant; the one at β₀ = 0 is drawn anew if the
   reference can be sampled;
2. *swap*: replicas at βᵢ and βᵢ₊₁ change places with probability

       min{1, exp[(βᵢ₊₁ − βᵢ)(V(xᵢ₊₁) − V(xᵢ))]},

   for all even i if t is even and all odd i if t is odd (deterministic even-odd swaps, section 3.3), so that a replica
   whose swaps are accepted keeps its direction instead of diffusing;
3. *record* the state at β = 1, increments, rejection rates, and which replicas completed a round trip.

Tuning runs in rounds of doubling length (Algorithm 4). After each round the temperatures are set to equalise rejection
rates, their number is set to about 2Λ, and kernels are calibrated by the points of their temperature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.targets.protocol import Array, Index
from ppl_backends.tempering.barrier import Barrier
from ppl_backends.tempering.replicas import Explorer, Replicas, at_points, calibrated

FIRST_ROUND = 16  # scans
_MOST_MOVES = 16
_CORRELATED = 0.6  # correlation of V before and after the moves of a scan, above which a scan makes more moves
_FRESH = 64  # scans for which the reference is drawn at once: a single draw of a PyMC model costs as much as 64
_POINTS = 2000  # points of a temperature from which a metric is computed


class Ensemble(NamedTuple):
    """Chains of replicas.

    Attributes
    ----------
    replicas : Replicas
        ``(chains · levels)``.
    betas : ndarray (levels,)
    explorer : Explorer
    replica : ndarray (chains, levels) of int
        Index of the replica at each temperature.
    ends : ndarray (chains, levels) of int
        By replica: 1 if it visited the reference last, 2 if it has visited the target since, 0 before either.
    time : int
        Number of scans so far; its parity chooses the pairs that swap next.
    fresh : Replicas, optional
        Draws of the reference for the next scans.
    """

    replicas: Replicas
    betas: Array
    explorer: Explorer
    replica: Index
    ends: Index
    time: int = 0
    fresh: Replicas | None = None

    @property
    def chains(self) -> int:
        """Return the number of chains."""
        return len(self.replica)

    @property
    def levels(self) -> int:
        """Return the number of temperatures."""
        return len(self.betas)


class ScanFigures(NamedTuple):
    """Figures of one scan: rejection rates and increments, ``(chains, levels − 1)`` and ``(chains, levels)``.

    ``trips`` ``(chains,)`` are completed round trips, ``inside`` is the share of fresh draws in the support (NaN if
    there are none), ``acceptance`` is the acceptance rate of the moves ``(levels,)``, and ``before`` and
    ``moved`` are the increments before and after the moves, without the swap.
    """

    rejection: Array
    increment: Array
    trips: Index
    inside: float
    acceptance: Array
    before: Array
    moved: Array


def scan(ensemble: Ensemble, rng: np.random.Generator, tune: bool) -> tuple[Ensemble, ScanFigures]:
    """Make one scan."""
    # 1. Explore
    ensemble, acceptance, before, inside = _explore(ensemble, rng, tune)

    # 2. Swap
    chains, levels = ensemble.chains, ensemble.levels
    increment = ensemble.replicas.increment.reshape(chains, levels)
    log_ratio = log_swap_ratio(ensemble.betas, increment)
    accepted = np.log(rng.random(log_ratio.shape)) < log_ratio
    accepted[:, 1 - ensemble.time % 2 :: 2] = False
    order = _swapped(accepted)
    rows = (order + levels * np.arange(chains)[:, None]).ravel()
    replicas = replace(ensemble.replicas.take(rows), beta=ensemble.replicas.beta)
    index = np.take_along_axis(ensemble.replica, order, axis=1)

    # 3. Record
    ends, trips = _followed(ensemble.ends, index)
    figures = ScanFigures(
        -np.expm1(np.minimum(log_ratio, 0.0)),
        replicas.increment.reshape(chains, levels),
        trips,
        inside,
        acceptance,
        before,
        increment,
    )
    return ensemble._replace(replicas=replicas, replica=index, ends=ends, time=ensemble.time + 1), figures


def log_swap_ratio(betas: Array, increment: Array) -> Array:
    """Return the log ratio ``(chains, levels − 1)`` of swaps between neighbours; −inf if a density would be zero."""
    with np.errstate(invalid="ignore"):
        ratio: Array = np.diff(betas) * (increment[:, :-1] - increment[:, 1:])
    return np.where(increment[:, :-1] == -np.inf, -np.inf, ratio)


def _explore(ensemble: Ensemble, rng: np.random.Generator, tune: bool) -> tuple[Ensemble, Array, Array, float]:
    """Move all replicas; replace those at β = 0 by fresh draws if the reference can be sampled."""
    chains, levels, path = ensemble.chains, ensemble.levels, ensemble.explorer.path
    at, inside = np.tile(np.arange(levels), chains), np.nan
    before = ensemble.replicas.increment.reshape(chains, levels)
    if not path.draws_are_independent:
        moved = ensemble.explorer.move(rng, ensemble.replicas, at, tune)
        return ensemble._replace(replicas=moved.replicas, explorer=moved.explorer), moved.acceptance, before, inside
    warm = at > 0
    moved = ensemble.explorer.move(rng, ensemble.replicas.take(warm), at[warm], tune)
    replicas = ensemble.replicas.scatter(warm, moved.replicas)
    left = ensemble.fresh
    if left is None or not len(left.x):
        left = at_points(path, path.draw(_FRESH * chains, rng).population, np.zeros(_FRESH * chains))
    fresh, left = left.take(slice(chains)), left.take(slice(chains, None))
    kept = ensemble.replicas.take(~warm)
    drawn = kept.where(fresh.increment > -np.inf, fresh)  # the reference is restricted to the support
    inside = float(np.mean(fresh.increment > -np.inf))
    acceptance = np.where(np.arange(levels) == 0, inside, moved.acceptance)
    changed = ensemble._replace(replicas=replicas.scatter(~warm, drawn), explorer=moved.explorer, fresh=left)
    return changed, acceptance, before, inside


def _swapped(accepted: Any) -> Index:
    """Return the level ``(chains, levels)`` that each new state comes from; no two accepted swaps are adjacent."""
    chains, pairs = accepted.shape
    order = np.tile(np.arange(pairs + 1), (chains, 1))
    shift = np.zeros_like(order)
    shift[:, :-1] += accepted
    shift[:, 1:] -= accepted
    return order + shift


def _followed(ends: Index, index: Index) -> tuple[Index, Index]:
    """Return the end that each replica visited last, and the round trips ``(chains,)`` completed in this scan."""
    chain = np.arange(len(index))
    ends, coldest, hottest = ends.copy(), index[:, -1], index[:, 0]
    arrived = ends[chain, coldest] == 1
    ends[chain[arrived], coldest[arrived]] = 2
    trips = (ends[chain, hottest] == 2).astype(np.intp)
    ends[chain, hottest] = 1
    return ends, trips


@dataclass
class Record:
    """Figures of every scan of a round, and points of every temperature."""

    figures: list[ScanFigures]
    x: list[Array]
    every: int

    @classmethod
    def of(cls, ensemble: Ensemble, scans: int) -> Record:
        """Return an empty record, which keeps a few thousand points per temperature."""
        return cls([], [], max(1, -(-scans * ensemble.chains // _POINTS)))

    def add(self, ensemble: Ensemble, figures: ScanFigures) -> None:
        """Add a scan."""
        if len(self.figures) % self.every == 0:
            self.x.append(ensemble.replicas.x.reshape(ensemble.chains, ensemble.levels, -1))
        self.figures.append(figures)

    def barrier(self, betas: Array) -> Barrier:
        """Return the barrier from the mean rejection rates."""
        return Barrier(betas, np.mean([figures.rejection for figures in self.figures], axis=(0, 1)))

    def points(self, level: int) -> Array:
        """Return points of a temperature ``(m, dim)`` from the second half of the scans."""
        kept = self.x[len(self.x) // 2 :]
        return np.concatenate([x[:, level] for x in kept])

    def correlation(self) -> float:
        """Return the mean over temperatures of the correlation between increments before and after the moves."""
        before = np.concatenate([figures.before for figures in self.figures])[:, 1:]
        after = np.concatenate([figures.moved for figures in self.figures])[:, 1:]
        with np.errstate(invalid="ignore", divide="ignore"):
            a, b = (np.where(np.isfinite(v), v, np.nan) for v in (before, after))
            a, b = a - np.nanmean(a, axis=0), b - np.nanmean(b, axis=0)
            found = np.nanmean(a * b, axis=0) / np.sqrt(np.nanmean(a**2, axis=0) * np.nanmean(b**2, axis=0))
        return float(np.nanmean(found)) if np.isfinite(found).any() else 0.0


def round_lengths(tune: int) -> list[int]:
    """Return lengths of tuning rounds that double and sum to ``tune``."""
    rounds = max(1, int(np.log2(tune / FIRST_ROUND + 1))) if tune else 0
    lengths = [int(tune * 2**k / (2**rounds - 1)) for k in range(rounds)]
    return [length for length in lengths[:-1] if length] + [tune - sum(lengths[:-1])] if lengths else []


def tuned(ensemble: Ensemble, rng: np.random.Generator, tune: int, plan: Plan, report: Callable[..., None]) -> Ensemble:
    """Run the rounds that adapt temperatures and kernels (Algorithm 4)."""
    for length in round_lengths(tune):
        record = Record.of(ensemble, length)
        for _ in range(length):
            ensemble, figures = scan(ensemble, rng, tune=True)
            record.add(ensemble, figures)
            report(ensemble, figures)
        ensemble = adapted(ensemble, record, plan)
    return ensemble


class Plan(NamedTuple):
    """Quantities that tuning chooses if they are None: the number of intervals, and of moves per scan."""

    intervals: int | None = None
    moves: int | None = None


def adapted(ensemble: Ensemble, record: Record, plan: Plan) -> Ensemble:
    """Return the ensemble with temperatures, kernels and moves adapted to the figures of a round."""
    explorer, barrier = ensemble.explorer, record.barrier(ensemble.betas)
    betas = barrier.equalised(plan.intervals or barrier.wanted_intervals())
    nearest = np.clip(np.rint(np.interp(betas, ensemble.betas, np.arange(ensemble.levels))).astype(np.intp), 0, None)
    nearest[0], nearest[-1] = 0, ensemble.levels - 1
    moved = np.maximum(nearest, 1)  # the reference may be drawn independently, without moves that tune a step
    scales = [np.broadcast_to(step.average, ensemble.levels)[moved] for step in explorer.steps]
    points = {level: record.points(level) for level in set(nearest.tolist())}
    moves = plan.moves or _moves(explorer.moves, record.correlation())
    changed = replace(
        calibrated(explorer.path, explorer.kernels, [points[level] for level in nearest], scales), moves=moves
    )
    chains, levels = ensemble.chains, len(betas)
    rows = (nearest + ensemble.levels * np.arange(chains)[:, None]).ravel()
    replicas = replace(ensemble.replicas.take(rows), beta=np.tile(betas, chains))
    index = np.tile(np.arange(levels), (chains, 1))
    ends = _kept_ends(ensemble, nearest)
    return Ensemble(replicas, betas, changed, index, ends, ensemble.time, ensemble.fresh)


def _kept_ends(ensemble: Ensemble, nearest: Index) -> Index:
    """Return which end each replica visited last, at new temperatures that take the states of the ``nearest`` old ones.

    A round trip that began in an earlier round counts when it is complete. Of the copies of a state one keeps its history.
    """
    ends = np.take_along_axis(ensemble.ends, ensemble.replica[:, nearest], axis=1)
    copies = np.setdiff1d(np.arange(len(nearest)), np.unique(nearest, return_index=True)[1])
    ends[:, copies] = 0
    return ends


def _moves(now: int, correlation: float) -> int:
    """Return the number of moves per scan that reduces the correlation, given the correlation after ``now`` moves."""
    if correlation <= 0:
        return max(1, now // 2)
    one = min(correlation, 0.99) ** (1.0 / now)
    return int(np.clip(np.ceil(np.log(_CORRELATED) / np.log(one)), 1, _MOST_MOVES))
