"""Move draws of a posterior to a nearby density π(θ) exp{change(θ)}, by a short SMC path from the draws.

The path is π(θ) exp{β·change(θ)}. It starts at draws of any origin, and kernels move them at every β, so that they
reach points that no reweighting of the draws can reach. The loop is that of :mod:`~ppl_backends.smc.core`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ppl_backends.kernels.protocol import block_of
from ppl_backends.marginal_likelihood.draws import Draws
from ppl_backends.numerics.weights import LARGEST_PARETO_K
from ppl_backends.smc.core import Start
from ppl_backends.smc.evidence import LineageVariance
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.smc.records import SMCResult
from ppl_backends.smc.routes import choose_kernel
from ppl_backends.smc.sampler import run_tempering
from ppl_backends.smc.schedule import Schedule
from ppl_backends.targets.protocol import Array, BaseTarget, Index

Change = Callable[[Array, bool], tuple[Array, Array | None]]
"""Map from points and a flag for gradients to the change of the log density ``(n,)`` and its gradient ``(n, dim)``."""

_SHARE = 0.7  # relative ESS of a step
_MOST_UNITS = 200


class Cloud(NamedTuple):
    """Draws of a posterior as one cloud of points ``(n, dim)``.

    ``unit`` ``(n,)`` labels pieces of chains (or lineages of particles) that are treated as independent of each other.
    """

    x: Array
    unit: Index
    n_units: int

    def thinned(self, n: int) -> Cloud:
        """Return ``n`` of the points, evenly spaced; all points if there are fewer."""
        kept = np.arange(min(n, len(self.x))) * len(self.x) // min(n, len(self.x))
        return Cloud(self.x[kept], self.unit[kept], self.n_units)


def cloud_of(draws: Draws, effective: float) -> Cloud:
    """Return draws ``(chain, draw, dim)`` with as many units as ``effective``, the effective sample size, allows."""
    chains, length, dim = draws.x.shape
    n_units = int(np.clip(effective / 2, 20, _MOST_UNITS))
    if draws.ancestor is None:
        each = max(1, n_units // chains)
        unit = (np.arange(length) * each // length)[None, :] + each * np.arange(chains)[:, None]
        return Cloud(draws.x.reshape(-1, dim), unit.ravel(), each * chains)
    lineage = draws.ancestor + (draws.ancestor.max() + 1) * np.arange(chains)[:, None]
    labels, label = np.unique(lineage.ravel(), return_inverse=True)
    n_units = min(n_units, len(labels))
    return Cloud(draws.x.reshape(-1, dim), label * n_units // len(labels), n_units)


class DrawsPath(TemperingPath):
    """π(θ) exp{β·change(θ)} from draws of π."""

    description = "draws of the posterior"

    def __init__(self, target: BaseTarget, change: Change, cloud: Cloud) -> None:
        super().__init__(target)
        self.change, self.cloud = change, cloud

    def draw(self, n: int, rng: np.random.Generator) -> Start:
        """Return the draws; ``n`` is their number."""
        lineage = LineageVariance(n)
        lineage.ancestor = self.cloud.unit
        return Start(self.cloud.x, 0.0, lineage)

    def evaluate(self, x: Array, beta: float, gradient: bool) -> PathState:
        """Evaluate base log π, and the change as increment."""
        with np.errstate(all="ignore"):
            increment, slope = self.change(x, gradient)
            increment = np.where(np.isnan(increment), -np.inf, increment)
            if not gradient:
                return PathState(x, self.target.log_density(x), increment, None, None, beta)
            joint, joint_slope = self.target.log_density_and_gradient(x)
        return PathState(x, joint, increment, joint_slope, slope, beta)


def move_draws(
    target: BaseTarget, change: Change, cloud: Cloud, rng: np.random.Generator, has_gradient: bool = True
) -> SMCResult:
    """Return particles of π(θ) exp{change(θ)}, moved from draws of π; their ancestors are units of the cloud.

    The normal draws of moves add up to zero within blocks, as many as there are units; see :func:`units_after`.
    """
    kernel = choose_kernel("auto", target, has_gradient and target.has_gradient).in_blocks(cloud.n_units)
    path = DrawsPath(target, change, cloud)
    return run_tempering(path, kernel, len(cloud.x), rng, schedule=Schedule(fraction=_SHARE))


def units_after(run: SMCResult, n_units: int) -> Index:
    """Return labels ``(n,)`` of moved particles that are independent from label to label: the blocks of their moves.

    A particle depends on others by the numbers that moved them, which add up to zero within a block, and hardly on the draw
    that it began at. Bootstraps over ancestors overstate the error of a mean two to three times.
    """
    return block_of(len(run.x), n_units)


def memory_of(run: SMCResult) -> float:
    """Return the largest correlation, over stages, between particles before and after the moves."""
    left = [stage.moves.correlation - stage.moves.noise for stage in run.stages if stage.moves is not None]
    return max(left, default=0.0)


def largest_k(n: int) -> float:
    """Return the Pareto k above which ``n`` weights are unreliable (Vehtari et al. 2024)."""
    return min(1.0 - 1.0 / np.log10(max(n, 10)), LARGEST_PARETO_K)
