"""The evidence of EP and its gradient in hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np

from ppl_backends.approximations.ep.parallel import Sites
from ppl_backends.approximations.ep.reduction import Reduction, reduce
from ppl_backends.approximations.ep.result import EPApproximation
from ppl_backends.approximations.ep.shards import ShardUpdate, SiteState, split
from ppl_backends.errors import ModelError
from ppl_backends.numerics.gaussian import LOG_2PI, Gaussian
from ppl_backends.targets.factors.factorisation import Factors
from ppl_backends.targets.factors.prior import GaussianPrior
from ppl_backends.targets.factors.sites import Array


def log_evidence(log_constant: float, prior: GaussianPrior, q: Gaussian, update: ShardUpdate) -> float:
    """Return log Z = c + Ψ(r, Q) − Ψ(r₀, Q₀) + Σ log Zᵢ (Ridgway 2015, section 2.3.4; Ψ normalises a Gaussian)."""
    prior_normaliser = 0.5 * (prior.rank * LOG_2PI - prior.log_determinant)
    return float(log_constant + q.log_normaliser - prior_normaliser + update.log_factor.sum())


def working_sites(
    factors: Factors, n_shards: int = 1, executor: Executor | None = None
) -> tuple[Sites, Reduction | None]:
    """Return the sites and prior that EP uses: the factors' own, or with fewer sites than coordinates the kernel form."""
    if factors.n_sites < factors.dim and factors.prior.proper:
        reduction = reduce(factors)
        return Sites([reduction.shard], reduction.prior), reduction
    return Sites(split(factors, n_shards), factors.prior, executor), None


def evidence_gradient(
    at: Callable[[Array], Factors], phi: Array, approximation: EPApproximation, step: float = 1e-3
) -> Array:
    """Return the gradient ``(k,)`` of EP's log evidence in hyper-parameters, if ``approximation`` is EP for ``at(phi)``.

    At a fixed point the evidence is stationary in the sites (Minka 2001), so central differences hold the sites fixed: no
    further run of EP is needed.

    Parameters
    ----------
    at : callable
        ``at(phi)`` returns the :class:`Factors` given hyper-parameters.
    phi : array (k,)
        Hyper-parameters.
    approximation : EPApproximation
        EP for ``at(phi)``.
    step : float
        Step of the differences, relative to max(1, abs(φ)).

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import Factors, Logit, evidence_gradient, fit_ep
    >>> def at(phi):
    ...     return Factors(np.eye(2), 0.0, Logit([0, 1]), 0.0, np.exp(-2 * phi[0]))
    >>> phi = np.zeros(1)
    >>> evidence_gradient(at, phi, fit_ep(at(phi))).shape
    (1,)
    """
    if not approximation.converged:
        raise ModelError(
            "the gradient of the evidence is valid only at a fixed point of EP, and this run did not converge"
        )
    phi = np.atleast_1d(np.asarray(phi, dtype=np.float64))
    state = SiteState(approximation.sites.tau, approximation.sites.nu, approximation.sites.level)

    def energy(value: Array) -> float:
        factors = at(value)
        if factors.n_sites != len(state.tau):
            raise ModelError(
                f"there are {factors.n_sites} factors at neighbouring hyper-parameters and {len(state.tau)} at phi, so the "
                "evidence has no gradient there"
            )
        sites, _ = working_sites(factors)
        q = sites.factorise(*sites.sums(state))
        if q is None:
            raise ModelError(
                "the sites do not give a proper Gaussian at neighbouring hyper-parameters; make step smaller"
            )
        update = sites.sweep(state, q, approximation.power, check=False)
        return log_evidence(factors.log_constant, sites.prior, q, update)

    steps = step * np.maximum(1.0, np.abs(phi))
    shifts = np.diag(steps)
    return np.array([(energy(phi + s) - energy(phi - s)) / (2 * h) for s, h in zip(shifts, steps, strict=True)])
