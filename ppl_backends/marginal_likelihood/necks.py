"""A check whether draws follow the posterior: moves that leave it invariant must not change their distribution.

A Hamiltonian trajectory starts at each of some draws, and more follow it if draws are few, with a step that has its
kernel's acceptance rate. Draws of the posterior stay distributed as they are, so the mean change of any function is zero
within its error. The function here is the log density γ over a density q that is fitted to the other halves of the chains.
If draws follow another distribution, q is close to that one, and the change is positive: its mean after enough moves is
the sum of both Kullback–Leibler divergences. Draws that cover only a part of the posterior move to where log γ/q is very
large and variable, so that its mean has a large error; the mean change of its rank has a small one.

A sampler with one step for all places is kept out of the neck of a funnel. R̂ and effective sample sizes are those of
the part that it visits, and a bridge integrates that part. Trajectories that diverged tell, if the sampler left a
record of them; this check needs none. In a posterior of one width hardly any trajectory has a large energy error.
Where many have, draws are moved a few times with a quarter of the step, in non-centred coordinates if their gradients
ask for such (:mod:`~ppl_backends.kernels.noncentring`). Draws of the posterior stay distributed as they are, and
draws that were kept out of a neck move into it (:func:`~ppl_backends.smc.short_steps.growth_of_a_side`).

The same moves are made if the density that is fitted to draws does not cover a part of the posterior
(:mod:`~ppl_backends.marginal_likelihood.fitted_ratio`). There the draws alone say how much mass there is, and the moved
draws say it better: they replace the draws in the evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ppl_backends.approximations.lost_mode import name_of
from ppl_backends.kernels.hmc import Hmc
from ppl_backends.kernels.protocol import Density
from ppl_backends.kernels.tuning import AcceptanceTuning
from ppl_backends.marginal_likelihood.bridging import Fit
from ppl_backends.marginal_likelihood.draws import Convergence, Draws, convergence_of, distrust_of_draws
from ppl_backends.marginal_likelihood.fitted_ratio import Change, FittedRatio, mean_change
from ppl_backends.marginal_likelihood.proposals import FITS, choose_proposal, fit_gaussian
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.smc.coordinates import Coordinates
from ppl_backends.smc.moves import energy_error_of
from ppl_backends.smc.necks import advice_for_neck
from ppl_backends.smc.path import BridgePath, PathState
from ppl_backends.smc.short_steps import (
    CLEAR,
    FIRST_MOVES,
    MOVES,
    Walk,
    growth_of_a_side,
    prior_depends_on,
    where_energy_errors_are,
)
from ppl_backends.targets.protocol import Array, BaseTarget

_LARGE_ERROR = 3.0  # of a trajectory's energy
_SUSPECT = 0.01  # share of trajectories with such an error; a Gaussian's have it in fewer than a thousandth
_TUNED_BY, _TUNING = 250, 5  # draws, and rounds of trajectories from them
_ACCEPTED, _TRIALS = 0.75, 4  # rate from which a step is no longer at the edge of being unstable for all draws
_TRIED, _MOVED = 1000, 2000
_FIRST = (FIRST_MOVES, MOVES - FIRST_MOVES)  # numbers of short moves, until draws settle
_MORE = (MOVES, 2 * MOVES)  # if the draws alone speak for much of the posterior
_UNCOVERED, _MUCH = 0.005, 0.05  # share of the posterior for which the proposal does not speak
_SHIFT = 3.0  # standard errors
_DRIFT = 4.0  # standard errors
_CLEARLY = 2.0  # standard errors
_MOST_COORDINATES = 300  # for which a covariance of this many draws is a metric


class Neck(NamedTuple):
    """What moves did to the draws.

    ``large_errors`` is the share of trajectories whose energy error is above 3. ``drift`` is by how many standard errors
    a trajectory raised the density relative to one that is fitted to the draws, ``growth`` by how many standard errors
    moved draws went further to where energy errors are, along a ``coordinate``, ``upwards`` or downwards; NaN where none
    were moved. The prior of other coordinates may depend on it (``shapes_others``). ``uncovered`` is the share of the
    posterior that the fitted density does not cover, ``change`` its change by all moves that were made, and
    ``last_change`` that by the last of them. ``moved`` are the draws after these.
    """

    large_errors: float
    drift: float
    uncovered: float = 0.0
    growth: float = float("nan")
    coordinate: int = 0
    upwards: bool = False
    shapes_others: bool = True
    change: Change | None = None
    last_change: Change | None = None
    moved: Draws | None = None

    @property
    def is_better_moved(self) -> bool:
        """Return whether the proposal leaves much to the draws alone, or moves clearly raise the evidence."""
        if self.change is None or self.drift > _DRIFT:  # draws of another density
            return False
        return self.uncovered > _UNCOVERED or self.change.z > _CLEARLY

    @property
    def is_missed(self) -> bool:
        """Return whether the draws do not follow the posterior there."""
        return self.growth > _SHIFT

    def reason(self, names: Sequence[str]) -> str:
        """Return why the draws do not follow the posterior; empty if they do."""
        if self.is_missed:
            name = name_of(self.coordinate, names)
            advice = advice_for_neck(name, self.shapes_others)
            return (
                f"the draws miss a part of the posterior where `{name}` is {'large' if self.upwards else 'small'}: short "
                "moves, which keep the posterior, carry the draws "
                f"{self.growth:.1f} standard errors further in that direction: {advice}, or use sample_smc"
            )
        if self.is_better_moved and self.last_change is not None and self.last_change.z > _DRIFT:
            return (
                "the draws miss a part of the posterior: the last of several moves that keep the posterior still carry "
                f"{100 * self.last_change.mean:.2g} % of the draws ({self.last_change.z:.1f} standard errors) to where a "
                "density fitted to them is far too low: sample longer chains or increase target_accept, or use sample_smc"
            )
        if self.drift > _DRIFT:
            return (
                "the draws do not follow this density: moves that keep the posterior raise the log density of the draws by "
                f"{self.drift:.1f} standard errors (relative to a density fitted to them): check that the draws are of this "
                "model and these data, and that the sampler converged"
            )
        return ""


class Checked(NamedTuple):
    """Figures of draws: their convergence, what moves did to them (None if none were made), and reasons for distrust."""

    convergence: Convergence
    neck: Neck | None
    reasons: list[str]

    @property
    def moved(self) -> Draws | None:
        """Return the moved draws if they represent the posterior better than the draws themselves."""
        return None if self.neck is None or not self.neck.is_better_moved else self.neck.moved

    @property
    def much_uncovered(self) -> bool:
        """Return whether the draws alone speak for much of the posterior."""
        return self.neck is not None and self.neck.uncovered > _MUCH

    @property
    def unsettled(self) -> float:
        """Return a standard error for what the moved draws may still miss.

        It has the change by the last of the moves, less what chance explains, and half of a clear change by all of them.
        """
        neck = self.neck
        if neck is None or self.moved is None or neck.change is None or neck.last_change is None:
            return 0.0
        last = max(neck.last_change.mean**2 - neck.last_change.error**2, 0.0)
        return float(np.hypot(last**0.5, 0.5 * neck.change.mean * (abs(neck.change.z) > _CLEARLY)))

    @property
    def why_moved(self) -> str:
        """Return why draws were moved, as an addition to why a method was chosen; empty if they were not."""
        if self.moved is None or self.neck is None or self.neck.change is None:
            return ""
        share, change = self.neck.uncovered, self.neck.change
        return (
            f"; of moved draws: the proposal does not cover {100 * share:.2g} % of the posterior, and moves that keep the "
            f"posterior change this share by {change.mean:.2g} (standard error {change.error:.2g})"
        )


def check_draws(draws: Draws, target: BaseTarget, rng: np.random.Generator, proposal: str = "auto") -> Checked:
    """Return the figures of the draws; ``proposal`` names the density that is fitted to them, relative to which they move.

    Chains that disagree are not moved, because their draws are not trusted anyway.
    """
    convergence = convergence_of(draws, target.names)
    reasons = distrust_of_draws(draws, convergence)
    moves = target.has_gradient and not target.is_estimated and target.dim <= _MOST_COORDINATES
    if convergence.chains_disagree or not moves:
        return Checked(convergence, None, reasons)
    fit = FITS[choose_proposal(draws.x, proposal, tuple(FITS))]
    neck = find_missed_neck(draws, target, fit, rng, sound=not reasons)
    if why := neck.reason(target.names):
        reasons.append(why)
    return Checked(convergence, neck, reasons)


def find_missed_neck(draws: Draws, target: BaseTarget, fit: Fit, rng: np.random.Generator, sound: bool) -> Neck:
    """Return what moves do to the draws of a target with gradients.

    ``fit`` makes densities of draws, to which their moves are compared. Only draws that are ``sound`` otherwise are moved
    with short steps, which cost more than all else.
    """
    x = draws.x.reshape(draws.n, -1)
    q = fit_gaussian(x)
    path, kernel = BridgePath(target, q).for_moves(uses_gradient=True), Hmc()
    coordinates = Coordinates(Gaussian(q.mean, q.cholesky))
    tuning = AcceptanceTuning(kernel.initial_scale(target.dim), kernel.target_acceptance, kernel.largest_scale)
    with np.errstate(all="ignore"):  # of trajectories that diverge
        few = path.evaluate(_thinned(x, _TUNED_BY), 1.0, True)
        for k in range(_TUNING):
            _, info = coordinates.move(kernel, rng, few, _density(path), tuning.scale)
            tuning = tuning.learn(info, first=k == 0)
        kept = slice(None, None, max(1, draws.n // _TRIED))
        tried = path.evaluate(draws.x[:, kept].reshape(-1, target.dim), 1.0, True)
        for _ in range(_TRIALS):
            scale = tuning.scale
            moved, info = coordinates.move(kernel, rng, tried, _density(path), scale)
            if info.acceptance.mean() >= _ACCEPTED:
                break
            tuning = tuning.learn(info, first=False)
        errors = energy_error_of(info)
        large = float(np.mean(np.isfinite(errors) & (errors > _LARGE_ERROR)))
        for _ in range(_TRIED // len(tried.x) - 1):  # of few draws each moves further
            moved, _ = coordinates.move(kernel, rng, moved, _density(path), scale)
        ratio = FittedRatio(draws, fit)
        found = Neck(large, _drift(ratio, tried, moved, kept), ratio.uncovered(rng))
        if not sound or (large <= _SUSPECT and found.uncovered <= _UNCOVERED):
            return found
        kept = slice(None, None, max(1, draws.n // _MOVED))
        # Momenta that sum to zero make the draws on both sides of a bridge depend on each other
        walk = Walk(path, Hmc(balanced=False), draws.x[:, kept].reshape(-1, target.dim), scale, rng)
        return _walked(found, walk, ratio, kept, where_energy_errors_are(tried.x, errors))


def _walked(found: Neck, walk: Walk, ratio: FittedRatio, kept: slice, side: tuple[int, bool]) -> Neck:
    """Move the draws ``kept`` with short steps until they settle, and return what changes."""
    coordinate, upwards = side
    before = ratio.at(walk.state, kept)
    last, growth = before, -np.inf
    much = found.uncovered > _MUCH
    for done, times in enumerate(_FIRST + _MORE * much):
        divergent = walk.move(times)
        after = ratio.at(walk.state, kept)
        if done < len(_FIRST):
            sign = 1.0 if upwards else -1.0
            growth = growth_of_a_side([sign * walk.start[:, coordinate]], [sign * walk.state.x[:, coordinate]])
        step = ratio.change(last, after, kept)
        if not much and abs(step.mean) < CLEAR * step.error and divergent == 0.0 and growth < CLEAR:
            break
        last = after
    target = walk.path.target
    return found._replace(
        growth=growth,
        coordinate=coordinate,
        upwards=upwards,
        shapes_others=prior_depends_on(target, walk.start, coordinate),
        change=ratio.change(before, after, kept),
        last_change=step,
        moved=ratio.draws.at(walk.state.x, walk.state.log_density, kept),
    )


def _drift(ratio: FittedRatio, before: PathState, after: PathState, kept: slice) -> float:
    """Return the change of log γ/q in its standard errors: the larger one of its mean and of the mean of its rank."""
    old, new = ratio.at(before, kept), ratio.at(after, kept)
    known = np.sort(old, axis=None)
    ranks = [np.searchsorted(known, v, "left") + np.searchsorted(known, v, "right") for v in (new, old)]
    ancestor = ratio.draws.ancestor_of(kept)
    return max(mean_change(change, ancestor).z for change in (new - old, (ranks[0] - ranks[1]) / known.size))


def _thinned(x: Array, n: int) -> Array:
    """Return about ``n`` of the points, evenly spaced."""
    return x[:: max(1, len(x) // n)]


def _density(path: BridgePath) -> Density[PathState]:
    return lambda x, rng: path.evaluate(x, 1.0, True)
