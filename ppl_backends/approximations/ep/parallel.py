"""Parallel EP: all sites are updated from the same global Gaussian, which is factorised once per sweep.

References
----------
Chopin & Ridgway (2017), Leave Pima Indians alone, section 3.4; Van Gerven, Cseke, de Lange & Heskes (2010) for the
parallel schedule; Minka (2004), Power EP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ppl_backends.approximations.ep.moments import tilted_moments
from ppl_backends.approximations.ep.shards import (
    Linearised,
    LineariseTask,
    ShardUpdate,
    SiteState,
    SweepTask,
    linearise_shard,
    site_sums,
    sweep_shard,
)
from ppl_backends.errors import ModelError
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.numerics.newton import Expansion, climb_concave
from ppl_backends.parallel import map_independent
from ppl_backends.targets.factors.prior import GaussianPrior
from ppl_backends.targets.factors.sites import Array, Fraction

MIN_STEP = 1e-3
MIN_DAMPING = 0.02
START_PRECISION = 0.01
START_GAIN = 0.01  # nats
NEWTON_STEPS = 50
HOPELESS = 1e3  # expected gain of the next step, in nats, above which the point is far from any mode


class Options(NamedTuple):
    """Settings of a run; see :func:`ppl_backends.approximations.ep.fit.fit_ep`."""

    power: Fraction = 1.0
    damping: float = 1.0
    tolerance: float = 1e-6
    max_sweeps: int = 200


class EPRun(NamedTuple):
    """Result of the iterations of EP: the global Gaussian, its sites, and one sweep from there with checked quadrature."""

    q: Gaussian
    state: SiteState
    final: ShardUpdate
    sweeps: int
    change: float
    damping: float
    converged: bool


class Sites:
    """Shards of sites with one prior, and the sums over shards for EP and Newton's method."""

    def __init__(self, shards: Sequence[Any], prior: GaussianPrior, executor: Executor | None = None) -> None:
        self.shards, self.prior, self.executor = list(shards), prior, executor
        ends = np.cumsum([0, *(shard.n_sites for shard in self.shards)])
        self.rows = [slice(a, b) for a, b in pairwise(ends)]
        self.n_sites = int(ends[-1])

    def sweep(self, state: SiteState, q: Gaussian, power: Fraction, check: bool) -> ShardUpdate:
        """Make one sweep over all shards and join the results."""
        tasks = [
            SweepTask(shard, state.take(rows), self.prior.mean, q, power, check)
            for shard, rows in zip(self.shards, self.rows, strict=True)
        ]
        updates = map_independent(sweep_shard, tasks, self.executor)
        if len(updates) == 1:
            return updates[0]
        joined = SiteState(*(np.concatenate(parts) for parts in zip(*(u.state for u in updates), strict=True)))
        rest = (np.concatenate(parts) for parts in zip(*(u[3:] for u in updates), strict=True))
        return ShardUpdate(joined, _total(u.precision for u in updates), _total(u.shift for u in updates), *rest)

    def linearise(self, point: Array) -> Linearised:
        """Return the second-order expansion of all sites at a point relative to the prior mean."""
        tasks = [LineariseTask(shard, self.prior.mean, point) for shard in self.shards]
        parts = map_independent(linearise_shard, tasks, self.executor)
        gradient, precision = _total(p.gradient for p in parts), _total(p.precision for p in parts)
        return Linearised(
            sum(p.value for p in parts),
            gradient,
            precision,
            np.concatenate([p.tau for p in parts]),
            np.concatenate([p.nu for p in parts]),
        )

    def sums(self, state: SiteState) -> tuple[Array, Array]:
        """Return Σ τ a aᵀ and Σ ν a over all shards."""
        parts = [
            site_sums(shard, state.tau[rows], state.nu[rows])
            for shard, rows in zip(self.shards, self.rows, strict=True)
        ]
        return _total(p[0] for p in parts), _total(p[1] for p in parts)

    def factorise(self, precision: Array, shift: Array) -> Gaussian | None:
        """Return the global Gaussian of prior and sites, of θ minus the prior mean; None if it is not proper."""
        return Gaussian.from_natural(self.prior.add_to(precision.copy()), shift)


def _total(parts: Iterable[Array]) -> Array:
    return np.sum(list(parts), axis=0)


def run_parallel(sites: Sites, options: Options, start: SiteState | None = None) -> EPRun:
    """Iterate sweeps until the site parameters stop changing.

    The step starts at ``damping``, is halved if the change grows or the Gaussian is not proper, and grows back slowly.
    """
    state, precision, shift, q = starting_point(sites, start)
    step, change, checked, converged = options.damping, np.inf, True, False
    direction = np.zeros(2 * sites.n_sites)
    sweeps = 0
    while sweeps < options.max_sweeps:
        sweeps += 1
        update = sites.sweep(state, q, options.power, check=checked)
        raised = bool(np.any(update.state.level != state.level))
        state = state._replace(level=update.state.level)
        proposed, change = full_step(state, update)
        if change < options.tolerance:
            stalled = bool(update.failed.any())  # nothing moves, but some sites failed
            if checked and not raised:
                converged = not stalled
                break
            checked = True
            continue
        previous, direction = direction, proposed
        step, checked = _adapted(step, options.damping, previous, direction), False
        moved = _advance(sites, state, update, precision, shift, step)
        if moved is None:
            break
        state, precision, shift, q, step = moved
    final = update if converged else sites.sweep(state, q, options.power, check=True)
    return EPRun(q, state._replace(level=final.state.level), final, sweeps, change, step, converged)


def full_step(state: SiteState, update: ShardUpdate) -> tuple[Array, float]:
    """Return the step to the proposed sites in units of the marginals ``(2n,)``, and its relative size."""
    variance = update.variance
    sd = np.sqrt(variance)
    before, after = (np.concatenate([variance * sites.tau, sd * sites.nu]) for sites in (state, update.state))
    step = after - before
    size, *sizes = (float(np.sqrt(part @ part)) for part in (step, before, after))
    return step, size / max(*sizes, 1e-8)


def _adapted(step: float, largest: float, previous: Array, direction: Array) -> float:
    """Return a shorter step if the last one overshot: the direction reversed without becoming much shorter."""
    product, size = float(direction @ previous), float(previous @ previous)
    if product < -0.6 * size:
        return max(0.5 * step, min(MIN_DAMPING, largest))
    return min(1.2 * step, largest) if product > 0 else step


def _advance(
    sites: Sites, state: SiteState, update: ShardUpdate, precision: Array, shift: Array, step: float
) -> tuple[SiteState, Array, Array, Gaussian, float] | None:
    """Return a step towards the proposed sites, halved until the global Gaussian is proper; None if no step is."""
    while step >= MIN_STEP:
        new_precision = precision + step * (update.precision - precision)
        new_shift = shift + step * (update.shift - shift)
        q = sites.factorise(new_precision, new_shift)
        if q is not None:
            tau, nu = (old + step * (new - old) for old, new in zip(state[:2], update.state[:2], strict=True))
            return SiteState(tau, nu, update.state.level), new_precision, new_shift, q, step
        step *= 0.5
    return None


def starting_point(sites: Sites, start: SiteState | None) -> tuple[SiteState, Array, Array, Gaussian]:
    """Return initial sites with their sums: those given, else the Laplace curvature, else weak ones."""
    zeros = np.zeros(sites.n_sites)
    flat = SiteState(zeros, zeros, np.zeros(sites.n_sites, dtype=np.int8))
    weak = flat._replace(tau=np.full(sites.n_sites, START_PRECISION))
    for make in (lambda: start, lambda: laplace_start(sites), lambda: flat, lambda: weak):
        candidate = make()
        if candidate is None:
            continue
        precision, shift = sites.sums(candidate)
        q = sites.factorise(precision, shift)
        if q is not None:
            return candidate, precision, shift, q
    raise ModelError(
        "the prior is improper along a direction that no site covers: make prior_precision larger, or add sites there"
    )


def laplace_start(sites: Sites, gain: float = START_GAIN) -> SiteState | None:
    """Return Gaussian sites with value, slope and curvature of the sites near the posterior mode; None if Newton fails.

    The search stops at a step with an expected gain below ``gain`` in log density; a start needs no small ``gain``.
    """
    prior = sites.prior

    def expand(point: Array) -> Expansion:
        found, pull = sites.linearise(point), prior.apply(point[None])[0]
        value = found.value - 0.5 * float(point @ pull)
        return Expansion(value, found.gradient - pull, prior.add_to(found.precision.copy()), found)

    top = climb_concave(expand, np.zeros(prior.dim), gain, NEWTON_STEPS)
    if top is None or (not top.settled and top.gain > HOPELESS):
        return None
    found = top.expansion.source
    return SiteState(found.tau, found.nu, np.zeros(sites.n_sites, dtype=np.int8))


def run_sequential(sites: Sites, options: Options, start: SiteState | None = None) -> EPRun:
    """Run EP one site at a time, with a rank-one update of the global Gaussian after every site.

    It costs O(d²) per site in a Python loop, far more than a parallel sweep; it exists for the rare models on which
    parallel updates oscillate.
    """
    state, _, _, q = starting_point(sites, start)
    update = sites.sweep(state, q, options.power, check=True)
    state = state._replace(level=update.state.level)
    change, sweeps, converged, damping = np.inf, 0, False, options.damping
    while sweeps < options.max_sweeps:
        sweeps += 1
        moved = _pass(sites, state, q, options.power, damping)
        moved_q = sites.factorise(*sites.sums(moved))
        if moved_q is None:
            damping *= 0.5
            if damping < 1e-3:
                break
            continue
        q, previous = moved_q, change
        update = sites.sweep(moved, q, options.power, check=True)
        state = moved._replace(level=update.state.level)
        _, change = full_step(state, update)
        converged = change < options.tolerance and not update.failed.any()
        if converged:
            break
        if change > 0.9 * previous:
            damping = max(0.5 * damping, 0.05)
    return EPRun(q, state, update, sweeps, change, damping, converged)


def _pass(sites: Sites, state: SiteState, q: Gaussian, fraction: Fraction, damping: float) -> SiteState:
    """Make one pass over all sites (Chopin & Ridgway 2017, section 3.4), in order."""
    mean, cov = q.mean.copy(), q.cov
    tau, nu = state.tau.copy(), state.nu.copy()
    for shard, rows in zip(sites.shards, sites.rows, strict=True):
        design, offset, family = shard.load()
        design = design.toarray() if sparse.issparse(design) else design
        prior_predictor = design @ sites.prior.mean + offset
        powers = np.broadcast_to(family.fractions(fraction), len(offset))
        for k, i in enumerate(range(rows.start, rows.stop)):
            a, here = design[k], np.array([k])
            gain = cov @ a
            m, v, power = float(a @ mean), float(a @ gain), float(powers[k])
            precision = 1 / v - power * tau[i]
            if not precision > 1e-10 / v:
                continue
            cavity_variance = np.array([1 / precision])
            cavity_mean = cavity_variance * (m / v - power * nu[i])
            guess = np.array([m + prior_predictor[k]]), np.array([v])
            tilted = tilted_moments(
                family,
                cavity_mean + prior_predictor[k],
                cavity_variance,
                *guess,
                state.level[i : i + 1],
                fraction,
                False,
                here,
            )
            new_variance, new_mean = float(tilted.variance[0]), float(tilted.mean[0] - prior_predictor[k])
            if not (new_variance > 0 and np.isfinite(new_mean)):
                continue
            step_tau = damping * (1 / new_variance - 1 / v) / power
            step_nu = damping * (new_mean / new_variance - m / v) / power
            if 1 + step_tau * v <= 1e-10:
                continue
            mean += (step_nu - step_tau * m) / (1 + step_tau * v) * gain
            cov -= step_tau / (1 + step_tau * v) * np.outer(gain, gain)
            tau[i] += step_tau
            nu[i] += step_nu
    return SiteState(tau, nu, state.level)
