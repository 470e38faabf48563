"""Whether trajectories that diverged matter: the last particles moved once more, with shorter steps.

A trajectory diverges where its step is too long for the place it is in. Where that is the neck of a funnel, particles near it
are kept out of it, and no figure of the run shows what they miss. Where it is any narrow place that shorter trajectories pass
through, the particles have their shares right. Moves leave the posterior invariant whatever their step, so moves with a
quarter of it tell the two apart: particles that represent the posterior stay distributed as they are, and particles that were
kept out of a neck go further in.

The test looks where the trouble is: along the one coordinate with which the energy error of the run's own step is correlated
most, on the side where that error is larger. It is one-sided, and has power that a test of all coordinates lacks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from ppl_backends.kernels.hmc import Hmc
from ppl_backends.kernels.metric import cross_fitted_metric
from ppl_backends.kernels.protocol import Kernel, KernelParameters
from ppl_backends.smc.health import Figures, ShortSteps, in_one_mode
from ppl_backends.smc.moves import share_of_divergent
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.smc.records import SMCResult
from ppl_backends.targets.protocol import Array

_SUSPECT = 0.0005  # share of the last trajectories that diverged, above which shorter steps are tried
_SHORTER, _MOVES = 0.25, 8
_POINTS, _FEWEST_POINTS = 2000, 1000  # of all chains together
_COST = 0.5  # of the evaluations that the runs made
_BLOCKS = 100  # groups of siblings, at most
_TAIL = 0.02


def try_short_steps(
    path: TemperingPath, kernel: Kernel, figures: Figures, rng: np.random.Generator
) -> ShortSteps | None:
    """Return what shorter steps do to the last particles, where some of the last trajectories diverged."""
    if not all(run.complete for run in figures.runs) or figures.divergent <= _SUSPECT:
        return None
    return move_with_short_steps(path, kernel, in_one_mode(figures.runs), rng)


def move_with_short_steps(
    path: TemperingPath, kernel: Kernel, runs: Sequence[SMCResult], rng: np.random.Generator
) -> ShortSteps:
    """Move some of the last particles of every run with a quarter of its step."""
    points = _affordable(runs)
    before, after, errors, divergent = [], [], [], []
    for run in runs:
        x = run.x[:: max(1, len(run.x) * len(runs) // points)]
        metric = cross_fitted_metric(x, path.reference)

        def evaluate(points: Array, rng: np.random.Generator) -> PathState:
            return path.evaluate(points, 1.0, True)

        state = evaluate(x, rng)
        _, tried = kernel.step(rng, state, evaluate, KernelParameters(metric, run.scale))
        errors.append(np.abs(np.nan_to_num(tried.log_ratio, posinf=0.0, neginf=-np.inf)))
        for _ in range(_MOVES):
            state, info = kernel.step(rng, state, evaluate, KernelParameters(metric, _SHORTER * run.scale))
            divergent.append(share_of_divergent(info))
        before.append(x)
        after.append(state.x)
    coordinate, upwards = _where(np.concatenate(before), np.concatenate(errors))
    sign = 1.0 if upwards else -1.0
    shift = _shift([sign * x[:, coordinate] for x in before], [sign * x[:, coordinate] for x in after])
    return ShortSteps(float(np.mean(divergent)), shift, coordinate, upwards)


def _affordable(runs: Sequence[SMCResult]) -> int:
    """Return the number of particles to move, so that it costs no more than half of what the runs did, where it can be."""
    made = sum(
        len(run.x) * stage.moves.gradients for run in runs for stage in (*run.start.stages, *run.stages) if stage.moves
    )
    shortest = min(run.scale for run in runs)
    return int(np.clip(_COST * made / (_MOVES * int(Hmc().n_steps(_SHORTER * shortest))), _FEWEST_POINTS, _POINTS))


def _where(x: Array, errors: Array) -> tuple[int, bool]:
    """Return the coordinate with which energy errors ``(n,)`` are correlated most by rank, and whether it rises with them."""
    ranks = stats.rankdata(errors)
    correlations = np.nan_to_num([np.corrcoef(stats.rankdata(column), ranks)[0, 1] for column in x.T])
    coordinate = int(np.argmax(np.abs(correlations)))
    return coordinate, bool(correlations[coordinate] > 0)


def _shift(before: Sequence[Array], after: Sequence[Array]) -> float:
    """Return by how many standard errors the upper side of a coordinate has grown: its second moment, or its last 2 %.

    Errors come from blocks of adjacent particles, siblings being adjacent.
    """
    pooled = np.concatenate(before)
    centre, sd, last = np.median(pooled), pooled.std(), np.quantile(pooled, 1.0 - _TAIL)
    differences = []
    for old, new in zip(before, after, strict=True):
        change = np.stack(
            [
                np.clip((new - centre) / sd, 0, 6) ** 2 - np.clip((old - centre) / sd, 0, 6) ** 2,
                (new > last).astype(float) - (old > last),
            ]
        )
        blocks = np.array_split(change, min(_BLOCKS, len(old)), axis=1)
        differences.append(np.stack([block.mean(axis=1) for block in blocks]))
    means = np.concatenate(differences)
    error = means.std(axis=0, ddof=1) / len(means) ** 0.5
    return float(np.max(means.mean(axis=0) / np.maximum(error, 1e-12)))
