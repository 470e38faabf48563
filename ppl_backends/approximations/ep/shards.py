"""The work on sites, as a map over shards of the data: each shard needs only the global Gaussian and its own sites.

A shard is any object with ``load()`` and ``n_sites``: rows held in memory (:class:`ArrayShard`), or a function that
reads them in the worker (:class:`FileShard`). The caller keeps the state of the sites, so that any worker can process
any shard in any sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.approximations.ep.moments import tilted_moments
from ppl_backends.errors import ModelError
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.targets.factors.design import as_design
from ppl_backends.targets.factors.factorisation import Factors
from ppl_backends.targets.factors.sites import Array, Fraction, SiteFamily

FLAT = 1e-9  # least precision of a cavity, relative to the marginal's

Loaded = tuple[Any, Array, SiteFamily]


class ArrayShard:
    """Rows of a design, their offsets and sites, held in memory.

    Parameters
    ----------
    design : array (n, dim)
    offset : array (n,)
    sites : SiteFamily
        Sites of the n rows.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import ArrayShard, Logit, fit_ep_sharded
    >>> shards = [ArrayShard(np.eye(2), np.zeros(2), Logit([0, 1])), ArrayShard(np.eye(2), np.zeros(2), Logit([1, 1]))]
    >>> fit_ep_sharded(shards, 0.0, 1.0, dim=2).converged
    True
    """

    def __init__(self, design: Any, offset: Array, sites: SiteFamily) -> None:
        self.design, self.offset, self.sites = design, offset, sites
        self.n_sites = design.shape[0]

    def load(self) -> Loaded:
        """Return design ``(n, d)``, offset ``(n,)`` and sites."""
        return self.design, self.offset, self.sites


class FileShard:
    """A picklable function that reads the rows of a shard in the worker, for rows that do not fit in memory together.

    Parameters
    ----------
    read : callable
        A function without arguments; returns the design ``(n, d)``, the offset and the sites, e.g. from a
        :class:`numpy.memmap`.
    n_sites : int

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import FileShard, Logit, fit_ep_sharded
    >>> def read():
    ...     return np.eye(2), np.zeros(2), Logit([0, 1])
    >>> fit_ep_sharded([FileShard(read, n_sites=2)], 0.0, 1.0, dim=2).converged
    True
    """

    def __init__(self, read: Callable[[], tuple[Any, Any, SiteFamily]], n_sites: int) -> None:
        self.read, self.n_sites = read, int(n_sites)

    def load(self) -> Loaded:
        """Return design ``(n, d)``, offset ``(n,)`` and sites."""
        design, offset, sites = self.read()
        if design.shape[0] != self.n_sites or sites.n != self.n_sites:
            raise ModelError(f"a shard of {self.n_sites} sites read {design.shape[0]} rows and {sites.n} sites")
        return design, np.broadcast_to(np.asarray(offset, dtype=np.float64), (self.n_sites,)), sites


class SiteState(NamedTuple):
    """Gaussian sites exp(−τu²/2 + νu) in u = aᵀ(θ − m₀), and the level of quadrature of each; all ``(n,)``."""

    tau: Array
    nu: Array
    level: NDArray[np.int8]

    def take(self, rows: slice) -> SiteState:
        """Return the sites of one shard."""
        return SiteState(self.tau[rows], self.nu[rows], self.level[rows])


class EPSites(NamedTuple):
    """The Gaussian sites exp(−τu²/2 + νu), u = aᵀ(θ − m₀), and the cavities around them, site by site.

    Attributes
    ----------
    tau, nu : ndarray (n,)
        A negative ``tau`` belongs to a site that widens its cavity.
    log_z : ndarray (n,)
        Log normaliser of the site (to the power used) against its cavity.
    cavity_mean, cavity_variance : ndarray (n,)
        Moments of the predictor s = aᵀθ + b without its own site.
    mean, variance : ndarray (n,)
        Moments of s under the approximation.
    level : ndarray (n,) of int
        Quadrature in use: 8, 32, 128 or 256 Gauss–Hermite nodes; 4 means adaptive panels. 0 if moments have a closed form.
    failed : ndarray (n,) of bool
        Sites whose cavity was not proper, or whose integral was not found, when EP stopped.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.approximations.ep import Factors, Normal
    >>> q = pb.fit_ep(Factors(np.eye(2), 0.0, Normal([1.0, -1.0], sd=0.5), 0.0, 1.0))
    >>> q.sites.tau.round(3)
    array([4., 4.])
    """

    tau: Array
    nu: Array
    log_z: Array
    cavity_mean: Array
    cavity_variance: Array
    mean: Array
    variance: Array
    level: NDArray[np.int8]
    failed: NDArray[np.bool_]


class ShardUpdate(NamedTuple):
    """Result of one shard and one sweep: the sites that match the tilted moments, and their sums Σ τ a aᵀ and Σ ν a.

    ``log_factor`` is each site's share of the evidence, ``log_z`` the log normaliser of tᵖ against its cavity; moments
    are those of the predictor; ``failed`` sites stay unchanged.
    """

    state: SiteState
    precision: Array
    shift: Array
    log_factor: Array
    cavity_mean: Array
    cavity_variance: Array
    mean: Array
    variance: Array
    log_z: Array
    failed: NDArray[np.bool_]


class SweepTask(NamedTuple):
    """The input of a worker for one shard; the Gaussian is that of θ minus the centre m₀."""

    shard: Any
    state: SiteState
    centre: Array
    q: Gaussian
    fraction: Fraction
    check: bool


@np.errstate(all="ignore")
def sweep_shard(task: SweepTask) -> ShardUpdate:
    """Return cavities, tilted moments and matching sites of one shard (Chopin & Ridgway 2017, section 3.4; Minka 2004).

    With the marginal N(m, v) of u and the site (τ, ν): the cavity has precision 1/v − pτ and shift m/v − pν; the new site
    makes cavity × siteᵖ match the moments of cavity × tᵖ.
    """
    design, offset, sites = task.shard.load()
    (tau, nu, level), power = task.state, sites.fractions(task.fraction)
    prior_predictor = np.asarray(design @ task.centre) + offset
    mean, variance = np.asarray(design @ task.q.mean), as_design(design).row_variances(task.q.factor)
    blind = variance == 0  # rows of zeros: their sites are constants
    variance = np.where(blind, 1.0, variance)
    tau, nu = np.where(blind, 0.0, tau), np.where(blind, 0.0, nu)
    cavity_precision = 1 / variance - power * tau
    # A site that is the only one along its direction has a flat cavity, up to rounding.
    proper = cavity_precision > -FLAT / variance
    cavity_variance = 1 / np.where(proper, np.maximum(cavity_precision, FLAT / variance), 1 / variance)
    cavity_mean = np.where(proper, cavity_variance * (mean / variance - power * nu), mean)
    tilted = tilted_moments(
        sites,
        cavity_mean + prior_predictor,
        cavity_variance,
        mean + prior_predictor,
        variance,
        level,
        task.fraction,
        task.check,
    )
    tilted_mean = tilted.mean - prior_predictor
    new_tau = (1 / tilted.variance - 1 / cavity_variance) / power
    new_nu = (tilted_mean / tilted.variance - cavity_mean / cavity_variance) / power
    log_z = tilted.log_z
    if blind.any():
        at = np.flatnonzero(blind)
        log_z[at] = sites.fractions(task.fraction, at) * sites.log_site(prior_predictor[None, at], at)[0]
        new_tau[at] = new_nu[at] = 0.0
    failed = ~proper | ~np.isfinite(new_tau) | ~np.isfinite(new_nu) | ~(tilted.variance > 0)
    failed &= ~blind
    new_tau, new_nu = np.where(failed, tau, new_tau), np.where(failed, nu, new_nu)
    # log Ẑᵢ + Ψ(cavity) − Ψ(marginal) with Ψ(m, v) = ½ log 2πv + m²/2v; this corrects the printed formula.
    ratio = 0.5 * (np.log(cavity_variance / variance) + cavity_mean**2 / cavity_variance - mean**2 / variance)
    log_factor = np.where(failed, 0.0, (log_z + ratio) / power)
    if failed.any():  # finite but marked as failed: the value of the site over its Gaussian at the mean
        at = np.flatnonzero(failed)
        value = sites.log_site((mean + prior_predictor)[None, at], at)[0]
        log_factor[at] = np.where(np.isfinite(value), value, 0.0) + 0.5 * tau[at] * mean[at] ** 2 - nu[at] * mean[at]
    state = SiteState(new_tau, new_nu, tilted.level)
    return ShardUpdate(
        state,
        as_design(design).gram(new_tau),
        np.asarray(design.T @ new_nu),
        log_factor,
        cavity_mean + prior_predictor,
        np.where(blind, 0.0, cavity_variance),
        mean + prior_predictor,
        np.where(blind, 0.0, variance),
        log_z,
        failed,
    )


class LineariseTask(NamedTuple):
    """One shard and the point θ − m₀ to expand its sites about."""

    shard: Any
    centre: Array
    point: Array


class Linearised(NamedTuple):
    """Second-order expansion of one shard's sites: sums over its rows, and the Gaussian sites themselves."""

    value: float
    gradient: Array
    precision: Array
    tau: Array
    nu: Array


@np.errstate(all="ignore")
def linearise_shard(task: LineariseTask) -> Linearised:
    """Return value, gradient and curvature of Σ log t at a point; convex parts count as flat."""
    design, offset, sites = task.shard.load()
    u = np.asarray(design @ task.point)
    s = (u + np.asarray(design @ task.centre) + offset)[None]
    value = sites.log_site(s)[0].sum()
    first, second = (part[0] for part in sites.derivatives(s))
    tau = np.maximum(-second, 0.0)
    return Linearised(float(value), np.asarray(design.T @ first), as_design(design).gram(tau), tau, first + tau * u)


def site_sums(shard: Any, tau: Array, nu: Array) -> tuple[Array, Array]:
    """Return Σ τ a aᵀ and Σ ν a of one shard."""
    design = shard.load()[0]
    return as_design(design).gram(tau), np.asarray(design.T @ nu)


def split(factors: Factors, n_shards: int) -> list[ArrayShard]:
    """Return the rows of factors in ``n_shards`` consecutive pieces of about equal size."""
    bounds = np.linspace(0, factors.n_sites, min(n_shards, factors.n_sites) + 1).astype(int)
    if len(bounds) == 2:
        return [ArrayShard(factors.design, factors.offset, factors.sites)]
    pieces = [np.arange(a, b) for a, b in pairwise(bounds)]
    return [ArrayShard(factors.design[p[0] : p[-1] + 1], factors.offset[p], factors.sites.take(p)) for p in pieces]
