"""Draws that miss a neck, told from the draws alone: moves that leave the posterior invariant must leave them as they are.

A sampler with one step for all places is kept out of the neck of a funnel. R̂ and effective sample sizes are those of the part
that it visits, and a bridge integrates that part. Trajectories that diverged tell, if the sampler left a record of them; this
check needs none.

One trajectory from each of some draws comes first, with a step that has Hamiltonian Monte Carlo's acceptance rate. In a
posterior of one width next to none of them has a large energy error. Where many have, draws are moved a few times with a
quarter of the step, in non-centred coordinates if their gradients ask for such
(:mod:`~ppl_backends.kernels.noncentring`). Draws of the posterior stay distributed as they are, and draws that were kept out
of a neck move into it (:func:`~ppl_backends.smc.short_steps.growth_of_a_side`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ppl_backends.approximations.missed_modes import name_of
from ppl_backends.kernels.hmc import Hmc
from ppl_backends.kernels.protocol import Density
from ppl_backends.kernels.tuning import AcceptanceTuning
from ppl_backends.marginal_likelihood.draws import Draws
from ppl_backends.marginal_likelihood.proposals import fit_gaussian
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.smc.coordinates import Coordinates, coordinates_of
from ppl_backends.smc.health import advice_for_neck
from ppl_backends.smc.path import BridgePath, PathState
from ppl_backends.smc.short_steps import SHORTER, energy_error_of, growth_of_a_side, where_energy_errors_are
from ppl_backends.targets.protocol import Array, BaseTarget

_LARGE_ERROR = 3.0  # of a trajectory's energy
_SUSPECT = 0.01  # share of trajectories with such an error; a Gaussian's have it in fewer than a thousandth
_TUNED_BY, _TUNING = 250, 5  # draws, and rounds of trajectories from them
_ACCEPTED, _TRIALS = 0.75, 4  # rate from which a step is no longer at the edge of being unstable for all draws
_TRIED, _MOVED, _MOVES = 1000, 2000, 8
_SHIFT = 3.0  # standard errors
_MOST_COORDINATES = 300  # for which a covariance of this many draws is a metric


class Neck(NamedTuple):
    """What moves did to the draws.

    ``large_errors`` is the share of trajectories whose energy error is above 3, ``growth`` by how many standard errors moved
    draws went further to where it is, along a ``coordinate``, ``upwards`` or downwards; NaN where none were moved.
    """

    large_errors: float
    growth: float = float("nan")
    coordinate: int = 0
    upwards: bool = False

    @property
    def is_missed(self) -> bool:
        """Return whether the draws do not follow the posterior there."""
        return self.growth > _SHIFT


def find_missed_neck(draws: Draws, target: BaseTarget, rng: np.random.Generator) -> Neck | None:
    """Return what moves do to the draws; None where there are no gradients, or too many coordinates for a metric."""
    if not target.has_gradient or target.is_estimated or target.dim > _MOST_COORDINATES:
        return None
    x = draws.x.reshape(draws.n, -1)
    q = fit_gaussian(x)
    path, kernel = BridgePath(target, q).for_moves(gradient=True), Hmc()
    coordinates = Coordinates(Gaussian(q.mean, q.cholesky))
    tuning = AcceptanceTuning(kernel.initial_scale(target.dim), kernel.target_acceptance, kernel.largest_scale)
    with np.errstate(all="ignore"):  # of trajectories that diverge
        few = path.evaluate(_thinned(x, _TUNED_BY), 1.0, True)
        for k in range(_TUNING):
            _, info = coordinates.move(kernel, rng, few, _density(path), tuning.scale)
            tuning = tuning.learn(info, first=k == 0)
        tried = path.evaluate(_thinned(x, _TRIED), 1.0, True)
        for _ in range(_TRIALS):
            scale = tuning.scale
            _, info = coordinates.move(kernel, rng, tried, _density(path), scale)
            if info.acceptance.mean() >= _ACCEPTED:
                break
            tuning = tuning.learn(info, first=False)
        errors = energy_error_of(info)
        large = float(np.mean(np.isfinite(errors) & (errors > _LARGE_ERROR)))
        if large <= _SUSPECT:
            return Neck(large)
        coordinate, upwards = where_energy_errors_are(tried.x, errors)
        start = path.evaluate(_thinned(x, _MOVED), 1.0, True)
        moved, short = start, coordinates_of(start, path)
        for _ in range(_MOVES):
            moved, _ = short.move(kernel, rng, moved, _density(path), SHORTER * scale)
    before, after = ((1.0 if upwards else -1.0) * points.x[:, coordinate] for points in (start, moved))
    return Neck(large, growth_of_a_side([before], [after]), coordinate, upwards)


def neck_reason(neck: Neck, names: Sequence[str]) -> str:
    """Return the warning about draws that miss a neck."""
    name = name_of(neck.coordinate, names)
    return (
        f"the draws miss a part of the posterior where `{name}` is {'large' if neck.upwards else 'small'}: moves with short "
        f"steps, which leave the posterior as it is, take them {neck.growth:.1f} standard errors further there: "
        f"{advice_for_neck(name)}, or use sample_smc"
    )


def _thinned(x: Array, n: int) -> Array:
    """Return about ``n`` of the points, evenly spaced."""
    return x[:: max(1, len(x) // n)]


def _density(path: BridgePath) -> Density[PathState]:
    return lambda x, rng: path.evaluate(x, 1.0, True)
