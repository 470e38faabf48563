"""The interface of all Markov kernels, and the only Metropolis–Hastings acceptance step.

A kernel moves every point of a population once and leaves a density invariant. The density is a function from points
to a population (:mod:`~ppl_backends.numerics.population`), so a kernel does not depend on whether it is a posterior, a
tempered one, a conditional or an estimate. Sequential Monte Carlo, :func:`~ppl_backends.sample_mcmc` and PyMC's loop
call the same objects; a chain is a population of one. A proposal whose log density is not finite is rejected.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from ppl_backends.kernels.metric import AnyMetric
from ppl_backends.targets.protocol import Array, Index


class Points(Protocol):
    """Points with figures of the density there; a :class:`~ppl_backends.numerics.population.Population`."""

    @property
    def x(self) -> Array: ...

    @property
    def log_density(self) -> Array: ...

    @property
    def gradient(self) -> Any: ...

    def take(self: S, index: Any) -> S: ...

    def where(self: S, accepted: NDArray[np.bool_], proposal: S) -> S: ...

    def scatter(self: S, index: Any, rows: S) -> S: ...


S = TypeVar("S", bound="Points")

Density = Callable[[Array, np.random.Generator], S]
"""Map from ``(x, rng)`` to a population at ``x``; an estimate of a density draws from ``rng`` and stays in the record."""


class KernelParameters(NamedTuple):
    """Parameters of a kernel's moves.

    Attributes
    ----------
    metric : Gaussian, SplitMetric or ChainMetric
    scale : float or ndarray (n,)
        Step size, in whitened coordinates.
    n_steps : ndarray (n,) or None
        Steps of a trajectory, if every point has its own number; else the kernel chooses.
    part : int or None
        Index of the next kernel of a cycle; if None, it is chosen at random.
    adaptation : Adaptation or None
        Adaptation of scale and metric; None if they are fixed, or tuned elsewhere.
    """

    metric: AnyMetric
    scale: float | Array
    n_steps: Index | None = None
    part: int | None = None
    adaptation: Any = None

    def settled(self) -> KernelParameters:
        """Return the parameters of the steps after tuning."""
        return self if self.adaptation is None else self._replace(scale=self.adaptation.average)


class KernelInfo(NamedTuple):
    """Figures of one step.

    Attributes
    ----------
    acceptance : ndarray (n,)
        Acceptance probability of every point's proposal.
    accepted : ndarray (n,) of bool
    squared_jump : ndarray (n,)
        Squared length of the proposed displacement in whitened coordinates; times acceptance it is the expected squared
        jumping distance.
    evaluations : ndarray (n,)
        Evaluations of the density.
    log_ratio : ndarray (n,)
        Log of the acceptance ratio; −ΔE for a trajectory, −inf if it is not a number.
    """

    acceptance: Array
    accepted: NDArray[np.bool_]
    squared_jump: Array
    evaluations: Array
    log_ratio: Array

    def divergent(self, energy_error: float) -> NDArray[np.bool_]:
        """Return which trajectories diverged; those that left the support do not count."""
        return np.isfinite(self.log_ratio) & (self.log_ratio < -energy_error)


@register_jitable
def acceptance_probability(log_ratio: Any) -> Any:
    """Return min{1, exp(``log_ratio``)}, and 0 if that is not a number; for arrays, floats, and in compiled code."""
    return np.exp(np.minimum(np.fmax(log_ratio, -np.inf), 0.0))  # fmax(NaN, −inf) is −inf


def accept(
    rng: np.random.Generator,
    population: S,
    proposal: S,
    log_ratio: Array,
    squared_jump: Array,
    evaluations: Array | None = None,
) -> tuple[S, KernelInfo]:
    """Return the proposals that Metropolis–Hastings accepts among the points; reject ratios that are not a number."""
    n = len(log_ratio)
    log_ratio = np.fmax(log_ratio, -np.inf)  # fmax(NaN, −inf) is −inf
    accepted = np.log(rng.random(n)) < log_ratio
    evaluations = np.ones(n) if evaluations is None else evaluations
    info = KernelInfo(np.exp(np.minimum(log_ratio, 0.0)), accepted, squared_jump, evaluations, log_ratio)
    moved = np.count_nonzero(accepted)
    if not moved:
        return population, info
    return proposal if moved == n else population.where(accepted, proposal), info


def log_density_ratio(population: Points, proposal: Points) -> Array:
    """Return the log ratio of the densities at the proposals and at the points ``(n,)``."""
    ratio: Array = proposal.log_density - population.log_density
    return ratio


class Kernel:
    """Base of all kernels.

    Parameters
    ----------
    log_ratio : callable
        ``(population, proposal) -> (n,)``: the log ratio of the target at both ends, or an estimate of it.
    balanced : bool
        Whether the normal draws of a population sum to zero, for kernels with normal draws. This helps if points are
        averaged over, and must not be used for chains that are compared with each other.

    Attributes
    ----------
    name : str
    blocks : int
        Number of blocks of successive points in which balanced draws sum to zero; see :meth:`in_blocks`.
    uses_gradient : bool
    exact : bool
        Whether the kernel leaves the target exactly invariant.
    target_acceptance : float
        Acceptance rate that is optimal in theory.
    largest_scale : float
    has_lengths : bool
        Whether a step is a trajectory, whose length is a parameter.
    parts : tuple of Kernel
        Of a cycle.
    batched : bool
        Whether chains can move as one population: every point draws separately, from ``rng.random`` and similar methods.
    stats : mapping of str to type
        Statistics of a step other than its acceptance, name → ``float``, ``int`` or ``bool``.
    shapes : mapping of str to tuple of int
        Shapes of statistics that are arrays, for every chain.
    step_name : str or None
        Name of the step method in ``pb.steps`` that is made from the kernel with the common options.
    powers_of_likelihood : bool
        Whether the kernel moves only points of p(θ) L(θ)^β.
    """

    name: ClassVar[str]
    uses_gradient: ClassVar[bool] = False
    exact: ClassVar[bool] = True
    has_lengths: ClassVar[bool] = False
    parts: tuple[Kernel, ...] = ()
    blocks: int = 1
    batched: ClassVar[bool] = True
    step_name: ClassVar[str | None] = None
    powers_of_likelihood: ClassVar[bool] = False
    target_acceptance: float = 0.234
    largest_scale: float = np.inf
    stats: Mapping[str, type] = MappingProxyType({"scaling": float, "n_steps": int})
    shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})

    def __init__(
        self,
        *,
        log_ratio: Callable[[Any, Any], Array] = log_density_ratio,
        balanced: bool = True,
    ) -> None:
        self.log_ratio, self.balanced = log_ratio, balanced

    def in_blocks(self, blocks: int) -> Self:
        """Return the same kernel with balanced draws that sum to zero in every one of so many blocks of successive points.

        Blocks are independent, so that the scatter of their means gives the error of the mean over all points.
        """
        changed = copy.copy(self)
        changed.blocks, changed.parts = blocks, tuple(part.in_blocks(blocks) for part in self.parts)
        return changed

    def initial_scale(self, dim: int) -> float:
        """Return the initial scale if the metric is the target's covariance."""
        raise NotImplementedError

    def step(
        self, rng: np.random.Generator, population: S, density: Density[S], parameters: KernelParameters
    ) -> tuple[S, KernelInfo]:
        """Move every point once, leaving the density invariant."""
        raise NotImplementedError

    def adapt(self, parameters: Any, info: KernelInfo, population: Any = None) -> Any:
        """Return parameters that follow the acceptance of a step that ended at ``population``, during tuning."""
        if parameters.adaptation is None:
            return parameters
        adaptation = parameters.adaptation.update(info.acceptance, population.x)
        return parameters._replace(adaptation=adaptation, scale=adaptation.step.scale, metric=adaptation.metric)

    def statistics(self, before: Any, after: Any, parameters: Any, info: KernelInfo) -> Mapping[str, Any]:
        """Return :attr:`stats` of a step between two populations, scalars or ``(n,)``."""
        return {"scaling": parameters.scale, "n_steps": info.evaluations}

    def _normals(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return balanced_normals(rng, shape, self.blocks) if self.balanced else rng.standard_normal(shape)


def balanced_normals(rng: np.random.Generator, shape: tuple[int, ...], blocks: int = 1) -> Array:
    """Return standard normal rows that sum to zero: each is exactly N(0, I), and two have correlation −1/(n − 1).

    Every point moves by its kernel as with independent draws. After a quarter of a period on a Gaussian a point equals
    its momentum, so that the mean over points is nearly exact there (antithetic coupling of many chains; Craiu & Meng
    2005). The rows of each of several ``blocks`` sum to zero by themselves; :func:`block_of` numbers the blocks.
    """
    normals = rng.standard_normal(shape)
    if blocks == 1:
        n = len(normals)
        return normals if n == 1 else (normals - normals.mean(axis=0)) * np.sqrt(n / (n - 1.0))
    starts = np.unique(block_of(len(normals), blocks), return_index=True)[1]
    sizes = np.diff(starts, append=len(normals))
    shift = np.where(sizes > 1, 1.0 / sizes, 0.0)[:, None] * np.add.reduceat(normals, starts, axis=0)
    scale = np.sqrt(sizes / np.maximum(sizes - 1.0, 1.0))[:, None]
    return (normals - np.repeat(shift, sizes, axis=0)) * np.repeat(scale, sizes, axis=0)


def block_of(n: int, blocks: int) -> Index:
    """Return the number ``(n,)`` of the block that each of ``n`` successive points is in."""
    return np.arange(n) * blocks // n


def column(scale: float | Array) -> Array:
    """Return a scale per point as a column that broadcasts over coordinates."""
    return np.reshape(np.asarray(scale, dtype=np.float64), (-1, 1))


def cut(gradient: Array, h: Array) -> Array:
    """Return whitened gradients, shortened so that the drift (h²/2)|g| is at most the length h√d of the noise.

    A gradient whose length overflows is set to zero.
    """
    square, dim = squares(gradient)[:, None], gradient.shape[1]
    if not np.count_nonzero(square * (h * h) > 4.0 * dim):
        return gradient
    return gradient * np.minimum(1.0, 2.0 * dim**0.5 / h / np.maximum(np.sqrt(square), 1e-300))


def squares(rows: Array) -> Array:
    """Return the squared length of each row ``(n,)``."""
    found: Array = np.einsum("ij,ij->i", rows, rows)
    return found
