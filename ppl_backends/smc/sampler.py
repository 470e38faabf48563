"""Adaptive tempering SMC: one run over one path.

Del Moral, Doucet & Jasra (2006); the adaptive ladder and its use from a fast approximation follow Chopin & Ridgway (2017,
Algorithm 4) and Buchholz (2018, Algorithm 12). Each stage reweights to the next exponent, resamples, and moves at the new
exponent, so the last particles have been moved at λ = 1 and are equally weighted. Where the start is already so good that
the first step reaches λ = 1 with weights of light tail, the run *is* importance sampling: no move is made and the weighted
points are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.importance.weights import (
    effective_sample_size,
    normalised_weights,
    pareto_k,
    systematic_resampling,
    tail_share,
)
from ppl_backends.mcmc.kernels import Kernel
from ppl_backends.smc.evidence import LineageVariance
from ppl_backends.smc.moves import MoveSettings, MoveSummary, move_particles
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.smc.schedule import next_exponent
from ppl_backends.targets.protocol import Array, explain_point

__all__ = ["SMCRun", "Stage", "run_tempering"]

_MAX_STAGES = 1000
_LIGHT_TAIL = 0.5  # Pareto k below which the weights have a variance
_NEGLIGIBLE_TAIL = 0.02


@dataclass(frozen=True)
class Stage:
    """One temperature of the ladder.

    Attributes
    ----------
    exponent : float
        λ reached.
    log_evidence : float
        Running log evidence at λ.
    ess : float
        Effective sample size of the incremental weights.
    mean, sd : ndarray (dim,)
        Weighted moments of the particles at λ.
    n_lineages : int
        Initial particles with descendants after resampling.
    moves : MoveSummary or None
        None where the run was a single importance step.
    """

    exponent: float
    log_evidence: float
    ess: float
    mean: Array
    sd: Array
    n_lineages: int
    moves: MoveSummary | None


@dataclass(frozen=True)
class SMCRun:
    """What one run leaves.

    Attributes
    ----------
    x : ndarray (n, dim)
        Equally weighted particles at the last exponent, siblings adjacent.
    log_density : ndarray (n,)
        log γ at the last exponent.
    lineage : LineageVariance
        Initial particle each descends from, and the variance of the log evidence that follows.
    stages : list of Stage
    start_stages : sequence of Stage
        Ladder of the run that drew the start, where one did.
    log_evidence : float
        Includes ``log_normalizer``.
    log_normalizer : float
        Log of the integral of the path's base, as the start estimated it.
    weighted : tuple of (points (n, dim), log weights (n,)) or None
        The weighted points of a run that was one importance step.
    seconds : float
    complete : bool
        Whether λ = 1 was reached.
    """

    x: Array
    log_density: Array
    lineage: LineageVariance = field(repr=False)
    stages: list[Stage] = field(repr=False)
    start_stages: Sequence[Stage] = field(repr=False)
    log_evidence: float
    log_normalizer: float
    weighted: tuple[Array, Array] | None
    seconds: float
    complete: bool


def run_tempering(
    path: TemperingPath,
    kernel: Kernel,
    n: int,
    rng: np.random.Generator,
    *,
    ess_fraction: float = 0.5,
    moves: MoveSettings | None = None,
    max_time: float | None = None,
    report: Callable[[Stage], None] | None = None,
) -> SMCRun:
    """Run ``n`` particles along ``path``.

    Parameters
    ----------
    path : TemperingPath
    kernel : Kernel
    n : int
        Number of particles.
    rng : numpy.random.Generator
    ess_fraction : float
        ESS that each reweighting keeps, as a share of ``n``.
    moves : MoveSettings, optional
    max_time : float, optional
        Seconds after which no stage beyond the first is begun; the run is then marked incomplete.
    report : callable, optional
        Called with every finished stage.
    """
    clock = time.perf_counter()
    moves = moves or MoveSettings()
    settings: dict[str, Any] = {"ess_fraction": ess_fraction, "moves": moves, "max_time": max_time}
    start = path.start(n, rng, lambda inner, size, generator: run_tempering(inner, kernel, size, generator, **settings))
    state = path.evaluate(start.x, 0.0, kernel.uses_gradient)
    _check_start(path, state)
    stages: list[Stage] = []
    lineage, scale = start.lineage, kernel.initial_scale(state.x.shape[1])
    log_evidence, weighted = start.log_normalizer, None
    while state.exponent < 1.0 and len(stages) < _MAX_STAGES:
        if stages and max_time is not None and time.perf_counter() - clock > max_time:
            break
        exponent = next_exponent(state.increment, state.exponent, ess_fraction)
        log_weights = (exponent - state.exponent) * state.increment
        weights, log_mean = normalised_weights(log_weights)
        log_evidence += log_mean
        lineage.reweight(weights)
        mean, sd = _moments(state.x, weights)
        ancestors = systematic_resampling(weights, n, rng)
        lineage.resample(ancestors)
        summary = None
        if exponent == 1.0 and not stages and _weights_are_enough(log_weights):
            weighted = (state.x, log_weights)
            state = state.take(ancestors).at(exponent)
        else:
            state = state.take(ancestors).at(exponent)
            state, summary = move_particles(state, path, kernel, scale, moves, rng)
            scale = summary.scale
        ess = effective_sample_size(log_weights)
        stages.append(Stage(exponent, log_evidence, ess, mean, sd, lineage.n_lineages, summary))
        if report is not None:
            report(stages[-1])
    return SMCRun(
        x=state.x,
        log_density=state.log_density,
        lineage=lineage,
        stages=stages,
        start_stages=start.stages,
        log_evidence=log_evidence,
        log_normalizer=start.log_normalizer,
        weighted=weighted,
        seconds=time.perf_counter() - clock,
        complete=state.exponent == 1.0,
    )


def _weights_are_enough(log_weights: Array) -> bool:
    """Whether one importance step needs no move after it: its weights have a light tail, or next to nothing in it.

    The ESS alone does not tell: where weights are heavy-tailed it looks best in the very runs that missed the tail.
    """
    return pareto_k(log_weights) <= _LIGHT_TAIL or tail_share(log_weights) <= _NEGLIGIBLE_TAIL


def _moments(x: Array, weights: Array) -> tuple[Array, Array]:
    """Weighted mean and standard deviation per coordinate."""
    mean = weights @ x
    return mean, np.sqrt(weights @ (x - mean) ** 2)


def _check_start(path: TemperingPath, state: PathState) -> None:
    """Refuse a start with no point inside the support, saying what is in the way."""
    if np.any(state.increment > -np.inf):
        return
    said = explain_point(path.target, state.x[0])
    reason = f": {said}" if said else ""
    raise ModelError(
        f"{path.target.label}: the log density is -inf or NaN at all {len(state.x)} starting points "
        f"drawn from the {path.description}{reason}; check the data against the model's support"
    )
