"""What a run is made of: its temperatures, itself between two of them, and itself at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from ppl_backends.kernels.tuning import KernelTuning
from ppl_backends.smc.evidence import LineageVariance, PathSampling
from ppl_backends.smc.ladder import StageParticles
from ppl_backends.smc.moves import MoveSummary, PlannedMoves
from ppl_backends.smc.path import PathState
from ppl_backends.targets.protocol import Array

__all__ = ["PlannedStage", "SMCResult", "SMCState", "Stage", "Store"]


@dataclass(frozen=True)
class Stage:
    """One temperature of the ladder.

    Attributes
    ----------
    beta : float
        β reached.
    log_evidence : float
        Running log evidence at β.
    ess : float
        Effective sample size of the incremental weights.
    mean, sd : ndarray (dim,)
        Weighted moments of the particles at β.
    n_lineages : int
        Initial particles with descendants after resampling.
    moves : MoveSummary or None
        None where the run was a single importance step.
    seconds : float
        Since the run began.
    n_distinct : int
        Different particles after resampling and moves.
    """

    beta: float
    log_evidence: float
    ess: float
    mean: Array
    sd: Array
    n_lineages: int
    moves: MoveSummary | None
    seconds: float
    n_distinct: int = 0


class PlannedStage(NamedTuple):
    """An beta, and the moves there (None where a pilot made none)."""

    beta: float
    moves: PlannedMoves | None


@dataclass(frozen=True)
class SMCState:
    """A run between two temperatures: all that the next one needs, and what a checkpoint holds.

    Attributes
    ----------
    state : PathState
        Equally weighted particles ``(n, dim)`` at the beta reached, siblings adjacent.
    rng : numpy.random.Generator
    lineage : LineageVariance
        Initial particle each descends from, and the variance of the log evidence that follows.
    path_sampling : PathSampling
        The log evidence by path sampling.
    scale : float
        Of the kernel.
    tuning : KernelTuning or None
        Of the kernel's parameters; None for a scale that follows the acceptance rate, before the first move.
    log_evidence : float
        Includes ``log_normalizer``.
    log_normalizer : float
        Log of the integral of the path's base, as the start estimated it.
    normalizer_variance, normalizer_df : float
        Variance of that estimate, and its degrees of freedom.
    stages : tuple of Stage
    start_stages : sequence of Stage
        Ladder of the run that drew the start, where one did.
    start_undefined : float
        Share of the draws of the start whose density is NaN or +inf.
    n_start_draws : int
        Draws of the start, more than particles where few of them are inside the support.
    weights : ndarray (n,) or None
        Normalised, where the particles were not resampled after the last step; None for equal ones.
    weighted : tuple of (points (n, dim), log weights (n,)) or None
        The weighted points of a run that was one importance step.
    plan : tuple of PlannedStage or None
        What a pilot run decided, stage by stage.
    pilot : bool
        Whether this run is there to decide: its evidence is not the one reported.
    ladder : tuple of StageParticles or None
        The particles at every beta, where they are kept.
    seconds : float
    """

    state: PathState
    rng: np.random.Generator
    lineage: LineageVariance
    path_sampling: PathSampling
    scale: float
    log_evidence: float
    log_normalizer: float
    normalizer_variance: float = 0.0
    normalizer_df: float = 1.0
    stages: tuple[Stage, ...] = ()
    start_stages: Sequence[Stage] = ()
    start_undefined: float = 0.0
    n_start_draws: int = 0
    tuning: KernelTuning | None = None
    weights: Array | None = None
    weighted: tuple[Array, Array] | None = None
    plan: tuple[PlannedStage, ...] | None = None
    pilot: bool = False
    ladder: tuple[StageParticles, ...] | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class SMCResult(SMCState):
    """What one run leaves.

    Attributes
    ----------
    interrupted : bool
        Whether Ctrl-C ended it.
    """

    interrupted: bool = False

    @property
    def complete(self) -> bool:
        """Whether β = 1 was reached."""
        return self.state.beta == 1.0 and not self.pilot

    @property
    def x(self) -> Array:
        """The particles ``(n, dim)``."""
        return self.state.x

    @property
    def log_density(self) -> Array:
        """Log γ of the particles at the last beta ``(n,)``."""
        return self.state.log_density


class Store(Protocol):
    """Where a run is kept between temperatures."""

    def load(self) -> SMCState | None:
        """The run as last saved, if it ever was."""
        ...

    def save(self, progress: SMCState) -> None:
        """Keep the run."""
        ...
