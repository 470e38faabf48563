"""Inclusion probabilities of a pair loss with spikes and slabs, from weighted points: the check of EP's.

A point is a model γ, independent by EP's probabilities, with coefficients given it: those in their spikes are draws of the
spikes, and the others are Student t with the moments that EP's sites of the pairs give them. Its weight is the posterior
over the density of the proposal, so that weighted means are those of the posterior whatever EP's error is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln

from ppl_backends.gibbs.posterior import GibbsPosterior
from ppl_backends.gibbs.priors import SpikeSlab
from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.numerics.weights import (
    FEWEST_INDEPENDENT,
    LARGEST_PARETO_K,
    effective_sample_size,
    normalised_weights,
    pareto_k,
)

POINTS = 8192
RAREST = 0.05  # proposed probability of a slab, and of a spike, at least
TAILS = 5.0  # degrees of freedom
LARGEST_SHIFT, ERRORS = 0.1, 2.0  # of an inclusion probability, beyond so many standard errors


class WeightedInclusion(NamedTuple):
    """Inclusion probabilities from weighted points, their standard errors ``(dim,)``, and figures of the weights."""

    probability: Array
    se: Array
    effective: float
    pareto_k: float

    @property
    def reliable(self) -> bool:
        """Return whether the weights can be used."""
        return self.effective >= FEWEST_INDEPENDENT and self.pareto_k <= LARGEST_PARETO_K

    @property
    def worth(self) -> str:
        """Return the figures of the weights."""
        return f"are worth {self.effective:.0f} (Pareto k {self.pareto_k:.2f})"


def weighted_inclusion(fit: Any, shares: Array, points: int, rng: np.random.Generator) -> WeightedInclusion:
    """Return the inclusion probabilities of the posterior of a fit, by weighted points; ``shares`` ``(dim,)`` are EP's.

    Models that include nothing are left out: they order the rows by the noise of their spikes.
    """
    posterior: GibbsPosterior = fit.target
    prior = posterior.prior
    assert isinstance(prior, SpikeSlab)
    tau, nu = fit.sites.tau[-prior.dim :], fit.sites.nu[-prior.dim :]
    total = np.linalg.inv(fit.cov)
    precision, shift = 0.5 * (total + total.T) - np.diag(tau), total @ fit.mean - nu  # of the pairs alone
    proposed = np.clip(shares, RAREST, 1.0 - RAREST)
    included = rng.random((points, prior.dim)) < proposed
    log_weights: Array = included.astype(float) @ np.log(prior.inclusion / proposed)
    log_weights += (~included).astype(float) @ np.log((1.0 - prior.inclusion) / (1.0 - proposed))
    theta = prior.spike * rng.standard_normal((points, prior.dim))
    models, which = np.unique(included, axis=0, return_inverse=True)
    for k, model in enumerate(models):
        own, at = np.flatnonzero(which.ravel() == k), np.flatnonzero(model)
        if not len(at):
            log_weights[own] = -np.inf
            continue
        theta[np.ix_(own, at)], log_q = _slabs(precision[np.ix_(at, at)], shift[at], prior.slab, len(own), rng)
        drawn = theta[np.ix_(own, at)] / prior.slab
        log_p = -0.5 * (drawn**2).sum(axis=1) - len(at) * (0.5 * LOG_2PI + np.log(prior.slab))
        log_weights[own] += log_p - log_q
    log_weights -= posterior.learning_rate * posterior.risk(theta)
    weights, _ = normalised_weights(log_weights)
    found = weights @ included
    se = np.sqrt((weights**2) @ (included - found) ** 2)
    return WeightedInclusion(found, se, effective_sample_size(log_weights), pareto_k(log_weights))


def _slabs(precision: Array, shift: Array, slab: float, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return Student t draws ``(n, k)`` of the coefficients in a model, and their log density."""
    values, vectors = np.linalg.eigh(precision + np.eye(len(shift)) / slab**2)
    values = np.maximum(values, 1.0 / slab**2)
    centre = vectors @ ((vectors.T @ shift) / values)
    root, k = vectors / np.sqrt(values), len(shift)
    z = rng.standard_normal((n, k)) / np.sqrt(rng.chisquare(TAILS, n) / TAILS)[:, None]
    log_q = gammaln(0.5 * (TAILS + k)) - gammaln(0.5 * TAILS) - 0.5 * k * np.log(TAILS * np.pi)
    log_q = log_q + 0.5 * np.log(values).sum() - 0.5 * (TAILS + k) * np.log1p((z**2).sum(axis=1) / TAILS)
    return centre + z @ root.T, log_q


def judged(fit: Any, shares: Array) -> Any:
    """Return a fit with the verdict of weighted points on its inclusion probabilities, the same in every call."""
    found = weighted_inclusion(fit, shares, POINTS, np.random.default_rng(0))
    shift = np.abs(found.probability - shares)
    worst = int(np.argmax(shift - ERRORS * found.se))
    figures = {
        "inclusion_shift": float(shift[worst]),
        "inclusion_se": float(found.se[worst]),
        "effective_points": found.effective,
        "pareto_k": found.pareto_k,
    }
    trouble = ""
    if not fit.converged:
        trouble = fit.trouble
    elif not found.reliable:
        trouble = f"the inclusion probabilities are not checked: {POINTS} weighted points {found.worth}"
    elif shift[worst] - ERRORS * found.se[worst] > LARGEST_SHIFT:
        trouble = (
            f"the inclusion probability of {fit.names[worst]} is {shares[worst]:.2f}, and by {POINTS} weighted points "
            f"{found.probability[worst]:.2f} ± {found.se[worst]:.2f}"
        )
    diagnostics = {**fit.diagnostics, **figures}
    return fit.replaced(diagnostics=diagnostics, trouble=trouble, converged=fit.converged and not trouble)
