"""The density of a model whose rows are in shards, as a sum over them: one pass over the data for a batch of points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.approximations.ep.parallel import Sites
from ppl_backends.errors import ModelError
from ppl_backends.parallel import map_independent
from ppl_backends.targets.factors.design import Design, as_design
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation, as_points, sanitize


class _Task(NamedTuple):
    """One shard and points ``(n, dim)``."""

    shard: Any
    x: Array

    def load(self) -> tuple[Design, Any, Array]:
        """Return the shard's design, its sites, and the predictors ``(n, rows)``."""
        design, offset, sites = self.shard.load()
        design = as_design(design)
        return design, sites, np.stack([design @ theta for theta in self.x]) + offset


def _values(task: _Task) -> Array:
    _, sites, s = task.load()
    return np.asarray(sites.log_site(s).sum(axis=1))


def _slopes(task: _Task) -> tuple[Array, Array]:
    design, sites, s = task.load()
    return sites.log_site(s).sum(axis=1), np.stack([design.T @ row for row in sites.derivatives(s)[0]])


def _hessians(task: _Task) -> Array:
    design, sites, s = task.load()
    return np.stack([design.gram(row) for row in sites.derivatives(s)[1]])


class ShardedTarget(BaseTarget):
    """Prior and sites of shards as a target; all sites count as observations."""

    label = "shards"
    has_split = True

    def __init__(self, sites: Sites, log_constant: float, names: Sequence[str]) -> None:
        self.sites, self.log_constant = sites, log_constant
        self.dim, self.names = sites.prior.dim, tuple(names)

    def _over_shards(self, work: Any, x: Array) -> list[Any]:
        return map_independent(work, [_Task(shard, x) for shard in self.sites.shards], self.sites.executor)

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation:
        x, prior = as_points(x, self.dim), self.sites.prior
        log_prior, prior_slope = sanitize(prior.log_density(x), -prior.apply(x - prior.mean))
        if not gradient:
            return Evaluation(log_prior, np.sum(self._over_shards(_values, x), axis=0) + self.log_constant)
        values, slopes = zip(*self._over_shards(_slopes, x), strict=True)
        log_likelihood, slope = sanitize(np.sum(values, axis=0) + self.log_constant, np.sum(slopes, axis=0))
        return Evaluation(log_prior, log_likelihood, prior_slope, slope)

    def hessian(self, x: Array, part: str = "joint") -> Array:
        if part not in ("joint", "likelihood"):
            raise ModelError(f"part={part!r}: expected 'joint' or 'likelihood'")
        x = as_points(x, self.dim)
        total = np.sum(self._over_shards(_hessians, x), axis=0)
        return total if part == "likelihood" else total - self.sites.prior.add_to(np.zeros((self.dim, self.dim)))
