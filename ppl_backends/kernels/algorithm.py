"""The one shape of all MCMC algorithms, whoever runs them.

An algorithm is bound to a target when it is made and knows nothing of PyMC. Its state is one point with whatever the
algorithm keeps beside it (a log density, a subset of the data, an auxiliary draw). The public step methods wrap it:
in ``pm.sample`` by one adapter (:mod:`ppl_backends.steps.adapter`), elsewhere by
:func:`~ppl_backends.mcmc.sample.sample_mcmc`.

Where an algorithm moves a block of the coordinates only, its target is a
:class:`~ppl_backends.targets.conditional.ConditionalTarget` whose other coordinates have moved between two steps: whoever
runs the algorithm then calls :meth:`Algorithm.refresh` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from ppl_backends.targets.protocol import Array

__all__ = ["COMMON_STATS", "Algorithm", "ChainState", "Statistics"]

Statistics = dict[str, Any]

COMMON_STATS: dict[str, type] = {"accept": float, "approximate": int, "tune": bool}
"""The statistics that every algorithm gives."""


class ChainState(Protocol):
    """Where a chain is."""

    @property
    def x(self) -> Array:
        """The point ``(dim,)`` on the unconstrained space."""
        ...


class Algorithm(Protocol):
    """One MCMC algorithm bound to a target.

    Attributes
    ----------
    name : str
        E.g. ``"exchange"``.
    dim : int
        Coordinates that it moves.
    approximate : bool
        False only if the stationary law is exactly the posterior.
    stats : mapping of str to type
        Per-step statistics, name → ``float``, ``int`` or ``bool``. Always ``accept`` (float, acceptance probability of
        the step), ``approximate`` (int, 0 or 1) and ``tune`` (bool).
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def dim(self) -> int: ...  # noqa: D102

    @property
    def approximate(self) -> bool: ...  # noqa: D102

    @property
    def stats(self) -> Mapping[str, type]: ...  # noqa: D102

    def initial_point(self, rng: np.random.Generator) -> Array | None:
        """A point ``(dim,)`` for a chain to start from where the caller has none, or None to leave it to the target."""
        ...

    def start(self, x: Array, rng: np.random.Generator) -> Any:
        """The state at ``x`` ``(dim,)``; everything that a chain keeps beside its point is drawn here."""
        ...

    def refresh(self, state: Any, rng: np.random.Generator) -> Any:
        """The state at the same point after the target's other coordinates moved; auxiliary variables are kept."""
        ...

    def step(self, state: Any, rng: np.random.Generator, tune: bool) -> tuple[Any, Statistics]:
        """The next state, and every statistic of :attr:`stats`. Adaptation happens only while ``tune``."""
        ...
