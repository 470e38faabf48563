"""EP for pair losses without a design of all pairs: rows Xᵢ − Xⱼ are known by their structure.

Variances of differences come from those of rows and their covariances, and Σ τᵢⱼ (Xᵢ − Xⱼ)(Xᵢ − Xⱼ)ᵀ from sums of τ over
rows and columns, so that a sweep costs n₊n₋ tilted moments and matrix products of rows rather than of pairs.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_backends.approximations.ep import ArrayShard, FileShard, fit_ep_sharded
from ppl_backends.errors import ModelError
from ppl_backends.gibbs.losses import Loss, PairLoss
from ppl_backends.gibbs.posterior import POSTERIOR, GibbsPosterior
from ppl_backends.gibbs.priors import GaussianPriorTarget, SpikeSlab
from ppl_backends.options import checked
from ppl_backends.targets.factors.design import Design
from ppl_backends.targets.factors.sites import Array, SiteFamily
from ppl_backends.targets.protocol import Index

SHARD_PAIRS = 2**20
WIDEST = 0.1  # spike at which the path of a spike-and-slab prior begins, over the slab
EQUAL = 1e-13  # least variance of a difference, relative to those of its rows


class RowDifferences(Design):
    """The design of all pairs ``(n₊ n₋, d)``, Xᵢ − Xⱼ with i the slower index, as EP uses it."""

    def __init__(self, above: Array, below: Array) -> None:
        centre = below.mean(axis=0)  # of no effect on differences, and less to cancel
        self.above, self.below = above - centre, below - centre
        self.shape = (len(above) * len(below), above.shape[1])

    def __matmul__(self, theta: Array) -> Array:
        """Return differences of scores ``(n₊ n₋,)``."""
        return ((self.above @ theta)[:, None] - self.below @ theta).ravel()

    @property
    def T(self) -> _Transposed:
        """What sums over pairs are taken with."""
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
        With a pair loss and a Gaussian or :class:`SpikeSlab` prior.
    executor : concurrent.futures.Executor, optional
        Where the pieces are worked on; one after the other in this process by default.
    **options
        ``power``, ``damping``, ``tolerance``, ``max_sweeps`` of :func:`~ppl_backends.fit_ep`.

    Returns
    -------
    EPApproximation

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(40, 2))
    >>> y = np.sign(X @ [1.0, -1.0] + 0.5 * rng.normal(size=40))
    >>> fit_pair_ep(GibbsPosterior((0.0, 1.0), "auc", X, y, learning_rate=40.0)).converged
    True
    """
    risk, prior = posterior._linear("fit_pair_ep"), posterior.prior
    if not isinstance(prior, GaussianPriorTarget | SpikeSlab) or not isinstance(risk.loss, PairLoss):
        raise ModelError(
            "fit_pair_ep: expected a pair loss and a Gaussian or SpikeSlab prior; use fit_ep or sample_smc"
        )
    above, below = risk.above, risk.below
    step = max(1, SHARD_PAIRS // len(below))
    shards: list[Any] = [
        FileShard(
            _PairRows(risk.X, risk.offset, above[k : k + step], below, risk.loss.inner, posterior.site_weight),
            len(above[k : k + step]) * len(below),
        )
        for k in range(0, len(above), step)
    ]
    options |= {"dim": prior.dim, "executor": executor, "names": prior.names}
    if isinstance(prior, GaussianPriorTarget):
        found = fit_ep_sharded(shards, prior.gaussian.mean, prior.gaussian.precision, **options)
    else:
        found = _along_widths(shards, prior, options)
    return found.replaced(target=posterior)


def _along_widths(shards: list[Any], prior: SpikeSlab, options: dict[str, Any]) -> Any:
    """Return the fit with a spike-and-slab prior, by way of wider spikes: each fit starts from the one before.

    The loss does not see the length of θ. Narrow spikes at once leave EP where all coefficients are in theirs.
    """
    widths = WIDEST * prior.slab * 0.1 ** np.arange(np.ceil(np.log10(WIDEST * prior.slab / prior.spike)))
    found, design, offset = None, np.eye(prior.dim), np.zeros(prior.dim)
    for width in (*widths, prior.spike):
        spikes = ArrayShard(design, offset, prior.with_spike(float(width)).sites)
        found = fit_ep_sharded([*shards, spikes], 0.0, 0.0, initial=found, **options)
    return found


def inclusion_probabilities(fit: Any) -> Array:
    """Return the probabilities of the slabs ``(dim,)`` of a fit by :func:`fit_pair_ep` with a :class:`SpikeSlab` prior.

    They are as approximate as EP is: of two columns that can stand for each other it tends to be sure of one.

    Parameters
    ----------
    fit : EPApproximation

    Raises
    ------
    ModelError
        If the prior of the fit is another one.
    """
    prior = fit.target.prior if isinstance(fit.target, GibbsPosterior) else None
    if not isinstance(prior, SpikeSlab):
        raise ModelError("inclusion_probabilities: expected a fit by fit_pair_ep with a SpikeSlab prior")
    mean, variance = fit.sites.cavity_mean[-prior.dim :], fit.sites.cavity_variance[-prior.dim :]
    return prior.sites.shares(mean, variance)[:, 1]
