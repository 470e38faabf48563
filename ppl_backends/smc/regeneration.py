"""Moves of SMC² after which every particle has a new filter around a path from its old one (Ridgway 2015, section 6.2).

With ``"gibbs"``, parameters and path are updated alternately, as in particle Gibbs; with ``"partial"``, particle
Metropolis steps move the parameters and the path is used only for the new filter. Both change the number of particles
of the filters without weights. An exchange for larger filters by weights L̂'/L̂ loses most particles if the log of L̂
has a variance of a few units, as after an outlier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppl_backends.kernels.metric import cross_fitted_metric
from ppl_backends.kernels.particle.gibbs import ParticleGibbsKernel, PathDensity
from ppl_backends.kernels.tuning import AcceptanceTuning, move_once
from ppl_backends.numerics.gaps import modes
from ppl_backends.smc.core import Moved, Resampled
from ppl_backends.smc.mixing import correlation_left
from ppl_backends.smc.moves import CORRELATION_LEFT, MoveSettings, MoveSummary

_SWEEPS_WITH = 20  # particles during sweeps; filters between the rows have as many as their estimates need


@dataclass(frozen=True)
class BothTunings:
    """Tunings of both kinds of steps."""

    metropolis: Any
    gibbs: AcceptanceTuning

    @classmethod
    def of(cls, metropolis: Any, kernel: ParticleGibbsKernel, dim: int) -> BothTunings:
        """Return the tunings before the first sweep."""
        first = AcceptanceTuning(kernel.initial_scale(dim), kernel.target_acceptance, kernel.largest_scale)
        return cls(metropolis, first)


@dataclass(frozen=True)
class RegeneratingMoves:
    """Moves of a block of rows; inside a block that is tempered only particle Metropolis steps are made.

    Attributes
    ----------
    metropolis : callable
    settings : MoveSettings
        Smallest and largest number of sweeps.
    kind : {"gibbs", "partial", "growth"}
        ``"growth"`` is partial if filters are to have another size; otherwise filters are kept.
    """

    metropolis: Any
    settings: MoveSettings
    kind: str

    def __call__(self, drawn: Resampled, path: Any, tuning: Any, rng: np.random.Generator) -> Moved:
        """Move the particles."""
        whole, kernel = drawn.stage.beta == 1.0, ParticleGibbsKernel(_SWEEPS_WITH, None)
        if self.kind == "gibbs":
            if not isinstance(tuning, BothTunings):
                tuning = BothTunings.of(tuning, kernel, drawn.particles.x.shape[1])
            if whole:
                return self._swept(drawn, path, tuning, kernel, rng)
            moved = self.metropolis(drawn, path, tuning.metropolis, rng)
            return moved._replace(tuning=replace(tuning, metropolis=moved.tuning))
        moved = self.metropolis(drawn, path, tuning, rng)
        new = moved.population
        if not whole or (self.kind == "growth" and new.wanted == new.n_particles):
            return moved
        return moved._replace(population=path.regenerated(new, path.paths_of(new, rng), rng))

    def _swept(
        self, drawn: Resampled, path: Any, both: BothTunings, kernel: ParticleGibbsKernel, rng: np.random.Generator
    ) -> Moved:
        """Sweep until the particles have mixed or the largest number is reached, and regenerate the filters."""
        particles, stage, tuning = drawn.particles, drawn.stage, both.gibbs
        density = PathDensity(path.target, path.filter, _SWEEPS_WITH, n_rows=stage.stop)
        density.check(particles.x)
        points = density.with_path(particles.x, path.paths_of(particles, rng)[0])
        metric, labels = cross_fitted_metric(points.x, path.reference, kind=path.metric), modes(points.x)
        left, infos = np.ones(points.x.shape[1]), list[Any]()
        while len(infos) < self.settings.maximum:
            drawn.check()
            before = points.x
            points, info = move_once(kernel, rng, points, density, tuning.parameters(), metric)
            tuning = tuning.learn(info, first=not infos)
            infos.append(info)
            left *= correlation_left(before, points.x, labels)
            if len(infos) >= self.settings.minimum and left.max() < CORRELATION_LEFT:
                break
        summary = MoveSummary(
            len(infos),
            float(np.mean([info.acceptance.mean() for info in infos])),
            tuning.scale,
            float(left.max()),
            float(np.mean([(info.acceptance * info.squared_jump).mean() for info in infos])) / points.x.shape[1],
            float(len(infos)),
            float(np.mean((points.x == particles.x).all(axis=1))),
        )
        moved = replace(particles, x=points.x)
        moved = moved if path.is_last(stage) else path.measured(moved, rng)
        new = path.regenerated(moved, (points.path, np.zeros(points.path.shape[:2])), rng)
        return Moved(new, drawn.parents, replace(both, gibbs=tuning), summary)
