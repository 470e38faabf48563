"""EP for pair losses without a design matrix of all pairs: the structure Xᵢ − Xⱼ of its rows is used.

Variances of differences come from those of rows and their covariances, and Σ τᵢⱼ (Xᵢ − Xⱼ)(Xᵢ − Xⱼ)ᵀ from sums of τ
over rows and columns, so that a sweep costs n₊n₋ tilted moments and matrix products of rows rather than of pairs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_backends.approximations.ep import ArrayShard, EPApproximation, FileShard, fit_ep_sharded
from ppl_backends.approximations.ep.own_errors import checked_by_points
from ppl_backends.errors import ApproximationWarning, ModelError, user_level
from ppl_backends.gibbs.losses import Loss, PairLoss, Weighted
from ppl_backends.gibbs.posterior import POSTERIOR, GibbsPosterior
from ppl_backends.gibbs.priors import GaussianPriorTarget, SpikeSlab
from ppl_backends.gibbs.spike_check import judged, weighted_inclusion
from ppl_backends.numerics.arrays import as_floats
from ppl_backends.options import checked, integer
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.targets.factors.design import Design
from ppl_backends.targets.factors.sites import Array, SiteFamily
from ppl_backends.targets.protocol import Index

SHARD_PAIRS = 2**20
WIDEST = 0.1  # initial spike of the path for a spike-and-slab prior, relative to the slab
EQUAL = 1e-13  # least variance of a difference, relative to those of its rows


class RowDifferences(Design):
    """The design of all pairs ``(n₊ n₋, d)``, Xᵢ − Xⱼ with i the slower index, as EP uses it."""

    def __init__(self, above: Array, below: Array) -> None:
        centre = below.mean(axis=0)  # cancels in differences and reduces rounding errors
        self.above, self.below = above - centre, below - centre
        self.shape = (len(above) * len(below), above.shape[1])

    def __matmul__(self, theta: Array) -> Array:
        """Return differences of scores ``(n₊ n₋,)``."""
        return ((self.above @ theta)[:, None] - self.below @ theta).ravel()

    @property
    def T(self) -> _Transposed:
        """Return the transpose, which sums over pairs."""
        return _Transposed(self)

    def row_variances(self, factor: Array) -> Array:
        """Return the variances of the differences, exactly zero for equal rows."""
        a, b = self.above @ factor, self.below @ factor
        sizes = np.einsum("nd,nd->n", a, a)[:, None] + np.einsum("nd,nd->n", b, b)
        variance = sizes - 2 * (a @ b.T)
        return np.where(variance > EQUAL * sizes, variance, 0.0).ravel()

    def gram(self, weights: Array) -> Array:
        """Return Σ wᵢⱼ (Xᵢ − Xⱼ)(Xᵢ − Xⱼ)ᵀ."""
        w = weights.reshape(len(self.above), len(self.below))
        cross = self.above.T @ (w @ self.below)
        return (
            self.above.T @ (self.above * w.sum(axis=1)[:, None])
            + self.below.T @ (self.below * w.sum(axis=0)[:, None])
            - (cross + cross.T)
        )


class _Transposed:
    def __init__(self, design: RowDifferences) -> None:
        self.design = design

    def __matmul__(self, weights: Array) -> Array:
        """Return Σ wᵢⱼ (Xᵢ − Xⱼ)."""
        above, below = self.design.above, self.design.below
        w = weights.reshape(len(above), len(below))
        return above.T @ w.sum(axis=1) - below.T @ w.sum(axis=0)


@dataclass(frozen=True)
class _PairRows:
    """The pairs of some positive rows with all negative ones."""

    X: Array
    offset: Array
    above: Index
    below: Index
    inner: Loss
    weight: float

    def __call__(self) -> tuple[RowDifferences, Array, SiteFamily]:
        offset = (self.offset[self.above][:, None] - self.offset[self.below]).ravel()
        design = RowDifferences(self.X[self.above], self.X[self.below])
        return design, offset, self.inner.sites(np.ones(len(offset)), self.weight)


@checked(posterior=POSTERIOR)
def fit_pair_ep(posterior: GibbsPosterior, *, executor: Executor | None = None, **options: Any) -> Any:
    """Fit a Gibbs posterior of a pair loss by EP; a sweep is a map over pieces of the n₊n₋ pairs.

    Parameters
    ----------
    posterior : GibbsPosterior
        A posterior with a pair loss and a Gaussian or :class:`SpikeSlab` prior.
    executor : concurrent.futures.Executor, optional
        Processes the pieces; by default one after the other in this process.
    **options
        ``power``, ``damping``, ``tolerance``, ``max_sweeps`` of :func:`~ppl_backends.fit_ep`.

    Returns
    -------
    EPApproximation
        With a :class:`SpikeSlab` prior, 8,192 weighted points check the inclusion probabilities, and ``diagnostics`` has
        ``inclusion_shift`` (the largest difference), its error ``inclusion_se``, ``effective_points`` and ``pareto_k``.

    Warns
    -----
    ApproximationWarning
        If EP did not converge, or by weighted points a mean or standard deviation is off by more than 0.2 standard
        deviations, or an inclusion probability by more than 0.1, or it cannot be checked; ``converged`` is then False, and
        ``trouble`` has the reason. If a standard deviation is off by more than a tenth.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 2))
    >>> y = np.sign(X @ [1.0, -1.0] + 0.5 * rng.normal(size=40))
    >>> fit_pair_ep(GibbsPosterior((0.0, 1.0), "auc", X, y, learning_rate=10.0)).converged
    True
    """
    prior = posterior.prior
    if isinstance(prior, SpikeSlab):
        fit = _along_widths(posterior, prior, [*_wider(prior), prior.spike], executor, options)[-1]
        return _checked_inclusion(fit)
    if not isinstance(prior, GaussianPriorTarget):
        raise ModelError(
            "fit_pair_ep: expected a pair loss and a Gaussian or SpikeSlab prior; use fit_ep or sample_smc"
        )
    options |= {"dim": prior.dim, "executor": executor, "names": prior.names}
    gaussian = prior.gaussian
    fit = fit_ep_sharded(_shards(posterior), gaussian.mean, gaussian.precision, **options).replaced(target=posterior)
    return checked_by_points(fit, len(posterior._linear("fit_pair_ep").X))


@checked(posterior=POSTERIOR)
def fit_pair_ep_path(
    posterior: GibbsPosterior, spikes: Sequence[float], *, executor: Executor | None = None, **options: Any
) -> list[Any]:
    """Fit once for each of several decreasing widths of the spikes, each starting at the previous fit.

    Parameters
    ----------
    posterior : GibbsPosterior
        A posterior with a pair loss and a :class:`SpikeSlab` prior.
    spikes : sequence of float
        Standard deviations of the spikes, the first about a tenth of the slab's.
    executor, **options
        As for :func:`fit_pair_ep`.

    Returns
    -------
    list of EPApproximation
        The prior of their ``target`` has the spike; :func:`inclusion_probabilities` accepts each of them. The check of
        :func:`fit_pair_ep` is made for the last one.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 3))
    >>> y = np.sign(X @ [1.0, 0.0, -1.0] + 0.3 * rng.normal(size=60))
    >>> path = fit_pair_ep_path(GibbsPosterior(SpikeSlab(3), "auc", X, y, learning_rate=60.0), [0.1, 0.01, 0.001])
    >>> [inclusion_probabilities(q).round(1).tolist() for q in path[1:]]
    [[1.0, 0.3, 0.9], [1.0, 0.3, 0.9]]
    """
    prior, widths = posterior.prior, as_floats("spikes", spikes)
    if not isinstance(prior, SpikeSlab):
        raise ModelError("fit_pair_ep_path: expected a SpikeSlab prior; fit_pair_ep takes others")
    if (
        widths.ndim != 1
        or not len(widths)
        or not np.all(np.diff(widths) < 0)
        or not 0 < widths[-1] <= widths[0] < np.inf
    ):
        raise ModelError(f"spikes={spikes!r}: expected decreasing numbers above 0")
    *path, last = _along_widths(posterior, prior, widths.tolist(), executor, options)
    return [*path, _checked_inclusion(last)]


def _checked_inclusion(fit: Any) -> Any:
    """Return a fit with the verdict of weighted points on its inclusion probabilities, and warn if it is not good."""
    found = judged(fit, inclusion_probabilities(fit))
    if fit.converged and not found.converged:
        said = f"EP of spikes and slabs: {found.trouble}: use inclusion_probabilities(fit, points=100_000)"
        warnings.warn(said, ApproximationWarning, stacklevel=user_level())
    return found


def _shards(posterior: GibbsPosterior) -> list[Any]:
    """Return the pairs of a pair loss in pieces."""
    risk = posterior._linear("fit_pair_ep")
    if not isinstance(risk.loss, PairLoss):
        raise ModelError("fit_pair_ep: expected a pair loss; use fit_ep or sample_smc")
    if isinstance(risk.loss.inner, Weighted):
        raise ModelError("fit_pair_ep: pairs with weights are not supported; use fit_gibbs_vi or sample_smc")
    above, below = risk.above, risk.below
    step = max(1, SHARD_PAIRS // len(below))
    return [
        FileShard(
            _PairRows(risk.X, risk.offset, above[k : k + step], below, risk.loss.inner, posterior.site_weight),
            len(above[k : k + step]) * len(below),
        )
        for k in range(0, len(above), step)
    ]


def _wider(prior: SpikeSlab) -> list[float]:
    """Return intermediate widths of spikes, from wide ones down to those of a prior.

    The loss does not depend on the length of θ. If EP starts with narrow spikes, it ends with all coefficients in
    their spikes.
    """
    widths = WIDEST * prior.slab * 0.1 ** np.arange(np.ceil(np.log10(WIDEST * prior.slab / prior.spike)))
    return [float(width) for width in widths]


def _along_widths(
    posterior: GibbsPosterior, prior: SpikeSlab, widths: list[float], executor: Executor | None, options: dict[str, Any]
) -> list[Any]:
    """Return the fits with spikes of several widths, each starting at the previous one."""
    shards, design, offset = _shards(posterior), np.eye(prior.dim), np.zeros(prior.dim)
    options |= {"dim": prior.dim, "executor": executor, "names": prior.names}
    found: list[Any] = []
    for width in widths:
        narrowed = prior.with_spike(width)
        start = found[-1] if found else None
        fit = fit_ep_sharded([*shards, ArrayShard(design, offset, narrowed.sites)], 0.0, 0.0, initial=start, **options)
        found.append(fit.replaced(target=posterior if width == prior.spike else posterior.with_prior(narrowed)))
    return found


@checked(points=integer(0))
def inclusion_probabilities(fit: Any, points: int = 0, random_seed: SeedLike = None) -> Array:
    """Return the probabilities of the slabs ``(dim,)`` of a fit by :func:`fit_pair_ep` with a :class:`SpikeSlab` prior.

    They are as approximate as EP. If two columns carry the same information, EP tends to include only one of them.

    Parameters
    ----------
    fit : EPApproximation
    points : int
        Number of weighted points that correct the probabilities, for example 100,000; EP's own if it is 0.
    random_seed : int or Generator, optional
        Of the points.

    Raises
    ------
    ModelError
        If the fit has another prior, or ``points`` are too few to be of use.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import GibbsPosterior, SpikeSlab, fit_pair_ep, inclusion_probabilities
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 3))
    >>> y = np.sign(X @ [1.0, 0.0, -1.0] + 0.3 * rng.normal(size=60))
    >>> q = fit_pair_ep(GibbsPosterior(SpikeSlab(3), "auc", X, y, learning_rate=60.0))
    >>> inclusion_probabilities(q).round(1)
    array([1. , 0.3, 0.9])
    """
    target = fit.target if isinstance(fit, EPApproximation) else None
    prior = target.prior if isinstance(target, GibbsPosterior) else None
    if not isinstance(prior, SpikeSlab):
        raise ModelError("inclusion_probabilities: expected a fit by fit_pair_ep with a SpikeSlab prior")
    mean, variance = fit.sites.cavity_mean[-prior.dim :], fit.sites.cavity_variance[-prior.dim :]
    shares: Array = prior.sites.shares(mean, variance)[:, 1]
    if not points:
        return shares
    found = weighted_inclusion(fit, shares, points, spawn_generators(random_seed, 1)[0])
    if not found.reliable:
        raise ModelError(f"inclusion_probabilities: {points} weighted points {found.worth}; use more points")
    return found.probability
