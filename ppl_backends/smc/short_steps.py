"""Check of diverging trajectories: the last particles are moved once more, with shorter steps.

A trajectory diverges if its step is too long for the region. In the neck of a funnel, particles near it cannot enter
it, and no figure of the run shows what they miss. In other narrow regions, which shorter trajectories cross, the
particles have the right shares. Moves leave the posterior invariant for any step size, so moves with a quarter of the
step distinguish the cases: particles that represent the posterior keep their distribution, and particles that could
not enter a neck move further into it.

The test uses the one coordinate that correlates most with the energy error of the run's step, on the side where the
error is larger. It is one-sided and has more power than a test of all coordinates. Both sides of coordinates that scale
others are tested too, with a margin: in non-centred variables errors can be larger opposite to the neck.

The particles on the narrow side are moved by themselves (:mod:`~ppl_backends.smc.narrow_sides`) if trajectories diverge
with the shorter steps too, if particles go further in by more than a standard error, but not surely so (of several sides
the largest growth counts), or if earlier runs, which the start of these is from, missed mass there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from ppl_backends.kernels.hmc import Hmc
from ppl_backends.kernels.noncentring import AnyNonCentring
from ppl_backends.kernels.protocol import Kernel, KernelInfo
from ppl_backends.smc.coordinates import changed_coordinates, coordinates_of
from ppl_backends.smc.health import Figures, in_one_mode
from ppl_backends.smc.moves import DIVERGED, energy_error_of, share_of_divergent
from ppl_backends.smc.narrow_sides import Moves, Side, missed_mass, narrow_sides, side_along
from ppl_backends.smc.necks import ShortSteps
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.smc.records import SMCResult
from ppl_backends.targets.protocol import Array, BaseTarget

_SUSPECT = 0.0005  # share of the last trajectories that diverged, above which shorter steps are tried
SHORTER = 0.25
# Half of the moves suffice if none diverges and particles do not move further in by more than this many standard errors.
FIRST_MOVES, MOVES, CLEAR = 4, 8, 1.0
_POINTS, _FEWEST_POINTS = 2000, 1000  # of all chains
_COST = 0.5  # of the evaluations of the runs
_BLOCKS = 100  # largest number of groups of copies
_TAIL = 0.02
_FEW, _CHANGED = 64, 1e-3  # points at which gradients of the prior are compared, and their relative change
_LARGE_ERROR = 3.0  # of a trajectory that fails with a quarter of the step
_OTHER_SIDE = 1.0  # standard errors by which a side without large energy errors has to grow more


def try_short_steps(
    path: TemperingPath,
    kernel: Kernel,
    figures: Figures,
    rng: np.random.Generator,
    earlier: ShortSteps | None = None,
) -> ShortSteps | None:
    """Return the effect of shorter steps on the last particles, if some of the last trajectories diverged.

    ``earlier`` is the effect on earlier runs, which the start of these is from. If those missed mass in a neck, the particles
    are moved even if no trajectory diverges: the start may be without that mass.
    """
    missed_before = earlier is not None and (earlier.goes_further or earlier.missed is not None)
    if not all(run.complete for run in figures.runs) or (figures.divergent <= _SUSPECT and not missed_before):
        return None
    runs = in_one_mode(figures.runs) or figures.runs  # if there are no others, those not moved or in several modes
    found, walks = move_with_short_steps(path, kernel, runs, rng)
    if found.surely_goes_further:
        return found
    best = min(walks, key=lambda walk: float(np.mean(walk.divergent)))
    moves = Moves(path, kernel, SHORTER * min(_step_of(run, kernel) for run in runs), best.coordinates.change)
    x, sides = np.concatenate([run.x for run in runs]), list[Side]()
    fail_somewhere = found.still_diverges(figures.divergent) or (found.shift > CLEAR and not found.goes_further)
    if fail_somewhere:
        # Those of the original step, which lead further, start in more places
        failed = [np.concatenate([one for walk in walks for one in walk.failed[k:]]) for k in (1, 0)]
        sides = narrow_sides(x, failed, moves.directions(x.shape[1]))
    suspects = [found] if found.goes_further and (sides or not fail_somewhere) else []
    suspects += [earlier] if earlier is not None and missed_before else []
    for effect in suspects:
        along = side_along(effect.coordinate, effect.upwards, x.shape[1])
        sides = [along, *(side for side in sides if not side.is_along(along))]
    return found._replace(missed=missed_mass(moves, x, sides, rng)) if sides else found


def move_with_short_steps(
    path: TemperingPath, kernel: Kernel, runs: Sequence[SMCResult], rng: np.random.Generator
) -> tuple[ShortSteps, list[Walk]]:
    """Move some of the last particles of every run with a quarter of its step; return the effect, and the walks."""
    points = _affordable(runs, kernel)
    parts = [run.x[:: max(1, len(run.x) * len(runs) // points)] for run in runs]
    starts = np.concatenate(parts)
    # From the points of all runs: a single one may have too few
    change = coordinates_of(path.evaluate(starts, 1.0, True), path).change
    walks = [Walk(path, kernel, x, _step_of(run, kernel), rng, change) for x, run in zip(parts, runs, strict=True)]
    errors = np.concatenate([walk.energy_errors() for walk in walks])
    coordinate, upwards = where_energy_errors_are(starts, errors)
    for _ in range(MOVES // FIRST_MOVES):
        divergent = float(np.mean([walk.move(FIRST_MOVES) for walk in walks]))
        shift, place, up = _largest_growth(walks, coordinate, upwards)
        found = ShortSteps(divergent, shift, place, up, prior_depends_on(path.target, starts, place))
        if found.divergent == 0.0 and found.shift < CLEAR:
            break
    return found, walks


class Walk:
    """Particles of one run, moved with a quarter of its step, with a given change of variables or their own."""

    def __init__(
        self,
        path: TemperingPath,
        kernel: Kernel,
        x: Array,
        scale: float,
        rng: np.random.Generator,
        change: AnyNonCentring | None = None,
    ) -> None:
        self.path, self.kernel, self.start, self.scale, self.rng = path, kernel, x, scale, rng
        self.state = self._evaluate(x, rng)
        self.coordinates = (
            coordinates_of(self.state, path) if change is None else changed_coordinates(self.state, path, change)
        )
        self.divergent: list[float] = []
        # Points where trajectories of the original step started that failed, then of each short one
        self.failed: list[Array] = []

    @property
    def scaling(self) -> list[int]:
        """Return the coordinates that scale others; none if a direction does."""
        change = self.coordinates.change
        return [] if change is None else change.scaling

    def _evaluate(self, points: Array, rng: np.random.Generator) -> PathState:
        return self.path.evaluate(points, 1.0, True)

    def _step(self, scale: float) -> tuple[PathState, KernelInfo]:
        return self.coordinates.move(self.kernel, self.rng, self.state, self._evaluate, scale)

    def energy_errors(self) -> Array:
        """Return the absolute energy error of a trajectory of the original step from every particle."""
        _, tried = self._step(self.scale)
        errors = energy_error_of(tried)
        self.failed.append(self.start[errors > DIVERGED])
        return errors

    def move(self, times: int) -> float:
        """Move the particles ``times`` times; return the share of trajectories that diverged so far."""
        for _ in range(times):
            before = self.state.x
            self.state, info = self._step(SHORTER * self.scale)
            self.divergent.append(share_of_divergent(info))
            self.failed.append(before[energy_error_of(info) > _LARGE_ERROR])
        return float(np.mean(self.divergent))


def _largest_growth(walks: Sequence[Walk], coordinate: int, upwards: bool) -> tuple[float, int, bool]:
    """Return the growth of the side where energy errors are large, or of another side that grows more, less a margin."""
    scaling = {j for walk in walks for j in walk.scaling}
    sides = [(coordinate, upwards), *((j, up) for j in sorted({coordinate, *scaling}) for up in (False, True))]
    found = []
    for j, up in sides:
        sign = 1.0 if up else -1.0
        columns = [(sign * walk.start[:, j], sign * walk.state.x[:, j]) for walk in walks]
        found.append(growth_of_a_side(*zip(*columns, strict=True)))
    margins = [found[0], *(growth - _OTHER_SIDE for growth in found[1:])]
    best = int(np.argmax(margins))
    return margins[best], *sides[best]


def _step_of(run: SMCResult, kernel: Kernel) -> float:
    """Return the step size of the last moves, or the kernel's initial one if there were none."""
    moved = any(stage.moves is not None for stage in run.stages)
    return run.scale if moved else kernel.initial_scale(run.x.shape[1])


def _affordable(runs: Sequence[SMCResult], kernel: Kernel) -> int:
    """Return the number of particles to move, such that the cost is at most half that of the runs if possible."""
    made = sum(
        len(run.x) * stage.moves.gradients for run in runs for stage in (*run.start.stages, *run.stages) if stage.moves
    )
    shortest = min(_step_of(run, kernel) for run in runs)
    return int(np.clip(_COST * made / (MOVES * int(Hmc().n_steps(SHORTER * shortest))), _FEWEST_POINTS, _POINTS))


def where_energy_errors_are(x: Array, errors: Array) -> tuple[int, bool]:
    """Return the coordinate with the largest rank correlation with the energy errors ``(n,)``, and whether it is positive."""
    ranks = stats.rankdata(errors)
    correlations = np.nan_to_num([np.corrcoef(stats.rankdata(column), ranks)[0, 1] for column in x.T])
    coordinate = int(np.argmax(np.abs(correlations)))
    return coordinate, bool(correlations[coordinate] > 0)


def prior_depends_on(target: BaseTarget, x: Array, coordinate: int) -> bool:
    """Return whether the prior of other coordinates depends on one, at points ``(n, dim)``; True if there is no split."""
    if not target.has_split:
        return True
    x = x[:: max(1, len(x) // _FEW)]
    moved = x.copy()
    moved[:, coordinate] += x[:, coordinate].std()
    target = target.with_fixed_batch_size()
    with np.errstate(all="ignore"):
        (_, here), (_, there) = target.evaluate_prior(x, True), target.evaluate_prior(moved, True)
        if here is None or there is None:
            return True
        change = np.median(np.abs(there - here) / (1.0 + np.abs(here)), axis=0)
    return bool((np.delete(change, coordinate) > _CHANGED).any())


def growth_of_a_side(before: Sequence[Array], after: Sequence[Array]) -> float:
    """Return by how many standard errors the upper side of a coordinate has grown: its second moment, or its last 2 %.

    Errors come from blocks of adjacent particles; copies are adjacent.
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
