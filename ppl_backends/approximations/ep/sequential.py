"""Sequential EP: one site at a time, the global Gaussian following every update by a rank-one formula.

It costs O(d²) a site in a Python loop, far more than a parallel sweep; it is there for the rare model on which parallel
updates oscillate.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from ppl_backends.approximations.ep.moments import tilted_moments
from ppl_backends.approximations.ep.parallel import EPRun, Options, Sites, full_step, starting_point
from ppl_backends.approximations.ep.shards import SiteState
from ppl_backends.numerics.gaussian import Gaussian

__all__ = ["run_sequential"]


def run_sequential(sites: Sites, options: Options, start: SiteState | None = None) -> EPRun:
    """Update the sites one after another until a full step of all of them would change nothing."""
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


def _pass(sites: Sites, state: SiteState, q: Gaussian, power: float, damping: float) -> SiteState:
    """One pass over all sites (Chopin & Ridgway 2017, section 3.4), in order."""
    mean, cov = q.mean.copy(), q.cov
    tau, nu = state.tau.copy(), state.nu.copy()
    for shard, rows in zip(sites.shards, sites.rows, strict=True):
        design, offset, family = shard.load()
        design = design.toarray() if sparse.issparse(design) else design
        prior_predictor = design @ sites.prior.mean + offset
        for k, i in enumerate(range(rows.start, rows.stop)):
            a, here = design[k], np.array([k])
            gain = cov @ a
            m, v = float(a @ mean), float(a @ gain)
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
                power,
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
