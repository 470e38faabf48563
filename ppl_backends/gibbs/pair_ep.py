"""EP for pair losses without a design of all pairs in memory: a piece of it is made where its sites are updated."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_backends.approximations.ep import FileShard, fit_ep_sharded
from ppl_backends.errors import ModelError
from ppl_backends.gibbs.losses import Loss, PairLoss
from ppl_backends.gibbs.posterior import GibbsPosterior
from ppl_backends.targets.factors.sites import Array, SiteFamily
from ppl_backends.targets.protocol import Index

__all__ = ["fit_pair_ep"]

SHARD_BYTES = 2**27


@dataclass(frozen=True)
class _PairRows:
    """The pairs of some positive rows with all negative ones, read when they are needed."""

    X: Array
    offset: Array
    above: Index
    below: Index
    inner: Loss
    weight: float

    def __call__(self) -> tuple[Array, Array, SiteFamily]:
        d = self.X.shape[1]
        design = (self.X[self.above][:, None, :] - self.X[self.below][None, :, :]).reshape(-1, d)
        offset = (self.offset[self.above][:, None] - self.offset[self.below]).ravel()
        return design, offset, self.inner.sites(np.ones(len(design)), self.weight)


def fit_pair_ep(posterior: GibbsPosterior, *, executor: Executor | None = None, **options: Any) -> Any:
    """EP of a Gibbs posterior of a pair loss; a sweep is a map over pieces of the n₊n₋ pairs.

    Parameters
    ----------
    posterior : GibbsPosterior
        With a pair loss and a Gaussian prior.
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
    risk, prior = posterior._linear("fit_pair_ep"), posterior.gaussian_prior
    if prior is None or not isinstance(risk.loss, PairLoss):
        raise ModelError("fit_pair_ep: expected a pair loss and a Gaussian prior; use fit_ep or sample_smc")
    above, below = np.flatnonzero(risk.positive), np.flatnonzero(~risk.positive)
    step = max(1, SHARD_BYTES // (8 * len(below) * risk.X.shape[1]))
    shards = [
        FileShard(
            _PairRows(risk.X, risk.offset, above[k : k + step], below, risk.loss.inner, posterior.site_weight),
            len(above[k : k + step]) * len(below),
        )
        for k in range(0, len(above), step)
    ]
    q = fit_ep_sharded(
        shards,
        prior.gaussian.mean,
        prior.gaussian.precision,
        dim=prior.dim,
        executor=executor,
        names=prior.names,
        **options,
    )
    q.target = posterior
    return q
