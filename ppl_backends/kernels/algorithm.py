"""Kernels as chains: the only adapter between a kernel and the code that runs chains.

A kernel with a density and parameters is an MCMC algorithm on a target, independent of PyMC. Its state is a population
of one chain, or of several that move together. Everything that the kernel stores with a point (a log density, a subset
of the data, an estimate) is a field of the record. The public step methods wrap it: in ``pm.sample`` by one adapter
(:mod:`ppl_backends.steps.adapter`), elsewhere by :func:`~ppl_backends.mcmc.sample.sample_mcmc`.

If an algorithm moves only a block of the coordinates, its target is a
:class:`~ppl_backends.targets.conditional.ConditionalTarget` whose other coordinates change between two steps. The code
that runs the algorithm then calls :meth:`Algorithm.refresh` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.kernels.protocol import Kernel
from ppl_backends.targets.protocol import Array

Statistics = dict[str, Any]

COMMON_STATS: dict[str, type] = {"accept": float, "approximate": int, "tune": bool, "accepted": bool}
"""The statistics that every algorithm provides."""


class ChainDensity(Protocol):
    """A density with starting points for chains."""

    dim: int

    def __call__(self, x: Array, rng: Any) -> Any:
        """Return a population at points ``(n, dim)``."""
        ...

    def initial_point(self, rng: np.random.Generator) -> Array | None:
        """Return a point ``(dim,)`` for a chain to start from, or None to leave it to the target."""
        ...

    def parameters(self) -> Any:
        """Return the parameters of the first moves."""
        ...

    def start(self, x: Array, rng: Any) -> Any:
        """Return the population at ``x`` ``(n, dim)``, or raise ModelError with the reason."""
        ...

    def refresh(self, population: Any, rng: Any) -> Any:
        """Return the population at the same points after the target's other coordinates moved; keep auxiliary variables."""
        ...


class ChainState(NamedTuple):
    """Positions of chains, and the parameters of their moves.

    Attributes
    ----------
    population : Population
    parameters : KernelParameters, or a kernel's own
    n_steps : int
        Number of steps made.
    checks : tuple of float
        Differences |a − â| since the end of tuning, for kernels with an estimated acceptance.
    """

    population: Any
    parameters: Any
    n_steps: int = 0
    checks: tuple[float, ...] = ()

    @property
    def x(self) -> Array:
        """Return the points ``(n, dim)`` on the unconstrained space."""
        points: Array = self.population.x
        return points


class Algorithm:
    """A kernel bound to a density.

    Parameters
    ----------
    kernel : Kernel
    density : ChainDensity

    Attributes
    ----------
    name : str
        Name, such as ``"exchange"``.
    dim : int
        Number of coordinates that it moves.
    approximate : bool
        False only if the stationary distribution is exactly the posterior.
    batched : bool
        Whether several chains can be one population.
    shapes : mapping of str to tuple of int
        Shapes of the statistics that are arrays.
    stats : mapping of str to type
        Per-step statistics, name → ``float``, ``int`` or ``bool``; always :data:`COMMON_STATS`.
    attributes : dict
        Attributes of results.
    """

    def __init__(self, kernel: Kernel, density: ChainDensity) -> None:
        self.kernel = kernel
        self.density: Any = density
        self.name, self.dim, self.batched = kernel.name, density.dim, kernel.batched
        self.approximate = not kernel.exact
        self.stats: Mapping[str, type] = {**COMMON_STATS, **kernel.stats}
        self.shapes = dict(kernel.shapes)
        self.attributes: dict[str, Any] = {}

    def initial_point(self, rng: np.random.Generator) -> Array | None:
        """Return a point ``(dim,)`` for a chain to start from, or None to leave it to the target."""
        return self.density.initial_point(rng)

    def start(self, x: Array, rng: Any) -> ChainState:
        """Return the state at ``x`` ``(n, dim)``; draw everything that a chain stores with its point."""
        return ChainState(self.density.start(np.atleast_2d(x), rng), self.density.parameters())

    def refresh(self, state: ChainState, rng: Any) -> ChainState:
        """Return the state at the same point after the target's other coordinates moved."""
        return state._replace(population=self.density.refresh(state.population, rng))

    def acceptance_pairs(self, points: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the acceptance ``(k,)`` of moves from ``points`` ``(k, dim)``, as estimated and (nearly) exact.

        Raises
        ------
        ModelError
            If the acceptance is not an estimate.
        """
        raise ModelError(f"{self.name} has no estimated acceptance probability to check")

    def step(self, state: ChainState, rng: Any, tune: bool) -> tuple[ChainState, Statistics]:
        """Return the next state, and :attr:`stats`, scalars or ``(n,)``; adaptation happens only while ``tune``."""
        return self._step(self.kernel, state, rng, tune)

    def _step(self, kernel: Kernel, state: ChainState, rng: Any, tune: bool) -> tuple[ChainState, Statistics]:
        population, parameters = state.population, state.parameters
        used = parameters if tune else parameters.settled()
        moved, info = kernel.step(rng, population, self.density, used)
        if tune:
            parameters = self.kernel.adapt(parameters, info, moved)
        common = {"accept": info.acceptance, "accepted": info.accepted, "approximate": self.approximate, "tune": tune}
        stats = self.kernel.statistics(population, moved, used, info)
        return ChainState(moved, parameters, state.n_steps + 1, state.checks), {**common, **stats}
