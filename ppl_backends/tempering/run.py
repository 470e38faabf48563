"""One run of all chains: a start, tuning rounds, and draws; Ctrl-C returns the draws made so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from ppl_backends.importance.outside import OutsidePoints
from ppl_backends.smc.core import Start
from ppl_backends.smc.evidence import effective_lineages
from ppl_backends.smc.path import TemperingPath
from ppl_backends.smc.schedule import next_beta
from ppl_backends.smc.start import StartFigures, start_inside
from ppl_backends.targets.protocol import Array
from ppl_backends.tempering.barrier import first_betas
from ppl_backends.tempering.replicas import at_points, calibrated, kernels_of
from ppl_backends.tempering.scan import Ensemble, Plan, Record, ScanFigures, scan, tuned

_FIRST_INTERVALS = 12
_FEWEST_STARTS = 512
_FIRST_ESS = 0.5  # relative ESS of the first step from the reference, which gives the initial temperatures
_CHECKED = 512  # states at the target that are moved once more to check the density


class Support(NamedTuple):
    """The share of the draws of the reference that are in the support, and the number of independent draws."""

    share: float
    draws: float

    @classmethod
    def of(cls, start: Start) -> Support:
        """Return the share of the draws that a start needed."""
        n, drawn = len(start.population.x), start.figures.n_draws
        if drawn > n:  # only points inside are kept
            return cls(float(np.exp(start.log_normalizer - start.figures.log_normalizer)), float(drawn))
        assert start.lineage is not None
        inside = float(np.mean(start.population.increment > -np.inf))
        return cls(inside, effective_lineages(start.lineage.ancestor))

    def with_fresh(self, inside: Array, chains: int) -> Support:
        """Return the share of these and of fresh draws, given the share of every scan; NaN where there are none."""
        inside = inside[np.isfinite(inside)]
        draws = self.draws + chains * len(inside)
        return Support((self.draws * self.share + chains * float(inside.sum())) / draws, draws)


class Run(NamedTuple):
    """Results of a run.

    Attributes
    ----------
    x : ndarray (chains, draws, dim)
        States at β = 1.
    log_density : ndarray (chains, draws)
    increment : ndarray (chains, draws, levels)
    rejection : ndarray (chains, draws, levels - 1)
    trips : ndarray (chains, draws)
        Round trips completed.
    support : Support
        Of the reference.
    acceptance : ndarray (levels,)
    betas, scale : ndarray (levels,)
    visited : ndarray (m, dim)
        States at all temperatures.
    undefined : float
        Share of the last moves that proposed a point where the density is NaN or +inf.
    moves : int
        Moves of every replica in a scan.
    start : StartFigures
    draws : int
        Number of draws asked for.
    """

    x: Array
    log_density: Array
    increment: Array
    rejection: Array
    trips: Array
    support: Support
    acceptance: Array
    betas: Array
    scale: Array
    visited: Array
    undefined: float
    moves: int
    start: StartFigures
    draws: int

    @property
    def complete(self) -> bool:
        """Return whether all draws were made."""
        return self.x.shape[1] == self.draws


@dataclass
class _Kept:
    """The draws made so far."""

    x: list[Array] = field(default_factory=list)
    log_density: list[Array] = field(default_factory=list)
    figures: list[ScanFigures] = field(default_factory=list)


def run_ensemble(
    path: TemperingPath,
    kernel: str,
    chains: int,
    draws: int,
    tune: int,
    plan: Plan,
    rng: np.random.Generator,
    report: Callable[[float, Ensemble, ScanFigures], None] | None = None,
) -> Run:
    """Run all chains; after Ctrl-C return the draws made so far, or raise KeyboardInterrupt if there are none."""
    ensemble, start, support = begin(path, kernel, chains, plan, rng)
    kept, record, done = _Kept(), Record.of(ensemble, draws), 0

    def tell(now: Ensemble, figures: ScanFigures) -> None:
        nonlocal done
        done += 1
        if report is not None:
            report(done / (tune + draws), now, figures)

    try:
        ensemble = tuned(ensemble, rng, tune, plan, tell)
        for _ in range(draws):
            ensemble, figures = scan(ensemble, rng, tune=False)
            record.add(ensemble, figures)
            cold = ensemble.replicas.take(slice(ensemble.levels - 1, None, ensemble.levels))
            kept.x.append(cold.x)
            kept.log_density.append(cold.log_density)
            kept.figures.append(figures)
            tell(ensemble, figures)
    except KeyboardInterrupt:
        if len(kept.figures) < 2:
            raise
    return _result(ensemble, kept, record, (start, support), draws, rng)


def begin(
    path: TemperingPath, kernel: str, chains: int, plan: Plan, rng: np.random.Generator
) -> tuple[Ensemble, StartFigures, Support]:
    """Return chains whose replicas are all draws of the reference, restricted to the support."""
    intervals = plan.intervals or _FIRST_INTERVALS
    n = chains * (intervals + 1)
    start = start_inside(path, max(n, _FEWEST_STARTS), rng)
    inside = np.flatnonzero(np.isfinite(start.population.increment))
    x = start.population.x[inside]
    betas = first_betas(next_beta(start.population.increment, 0.0, _FIRST_ESS), intervals)
    replicas = at_points(path, x[np.arange(n) * len(x) // n], np.tile(betas, chains))
    kernels = kernels_of(kernel)
    explorer = calibrated(path, kernels, [x] * (intervals + 1))
    explorer = replace(explorer, moves=plan.moves or 1)
    index = np.tile(np.arange(intervals + 1), (chains, 1))
    return Ensemble(replicas, betas, explorer, index, np.zeros_like(index)), start.figures, Support.of(start)


def _result(
    ensemble: Ensemble,
    kept: _Kept,
    record: Record,
    begun: tuple[StartFigures, Support],
    draws: int,
    rng: np.random.Generator,
) -> Run:
    n, figures, (start, support) = len(kept.figures), kept.figures, begun
    return Run(
        np.stack(kept.x[:n], axis=1),
        np.stack(kept.log_density[:n], axis=1),
        np.stack([one.increment for one in figures], axis=1),
        np.stack([one.rejection for one in figures], axis=1),
        np.stack([one.trips for one in figures], axis=1),
        support.with_fresh(np.array([one.inside for one in figures]), ensemble.chains),
        np.mean([one.acceptance for one in figures], axis=0),
        ensemble.betas,
        ensemble.explorer.scale,
        np.concatenate(record.x).reshape(-1, kept.x[0].shape[1]),
        _undefined(ensemble, np.concatenate(kept.x), rng),
        ensemble.explorer.moves,
        start,
        draws,
    )


def _undefined(ensemble: Ensemble, x: Array, rng: np.random.Generator) -> float:
    """Return the share of moves from some of the draws ``(n, dim)`` that propose a point of density NaN or +inf."""
    path, explorer = ensemble.explorer.path, ensemble.explorer
    x = x[:: -(-len(x) // _CHECKED)]
    outside = OutsidePoints(x)
    watched = replace(explorer, moves=1, watch=outside.see)
    watched.move(rng, at_points(path, x, np.ones(len(x))), np.full(len(x), ensemble.levels - 1), False)
    return min(1.0, outside.n_undefined(path.target) / len(x))
