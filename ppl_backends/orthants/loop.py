"""Sequential Monte Carlo over the coordinates of a rectangle (Ridgway 2015, algorithm 12), in independent runs.

Without resampling this is GHK, or minimax tilting under a tilt, to the last digit; with it the variance of the weights
stops growing. When to resample is decided for all runs together: each estimate stays unbiased, and two runs stay
uncorrelated, because neither conditional expectation depends on the other run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from ppl_backends.numerics.weights import effective_sample_size, systematic_resampling
from ppl_backends.orthants.intervals import Array
from ppl_backends.orthants.moves import MOVES, Move, move
from ppl_backends.orthants.ordering import Rectangle
from ppl_backends.orthants.tilt import PANEL, Tilt, extend

__all__ = ["CoordinatePath", "Particles", "smc"]


@dataclass(frozen=True)
class Particles:
    """Weighted particles of independent runs.

    Attributes
    ----------
    z : ndarray (rank, runs * n)
    log_weights : ndarray (runs, n)
    log_p : ndarray (runs,)
        One unbiased estimate of P a run, as a log.
    lineage : ndarray (runs, n)
        Which particle of the start each descends from.
    resampled : tuple of int
        Numbers of coordinates after which particles were resampled.
    """

    z: Array = field(repr=False)
    log_weights: Array = field(repr=False)
    log_p: Array
    lineage: NDArray[np.intp] = field(repr=False)
    resampled: tuple[int, ...]


class Path(Protocol):
    """What grows by one coordinate a stage."""

    n: int
    z: Array

    @property
    def length(self) -> int:
        """Number of stages."""

    def extend(self, k: int, u: Array) -> Array:
        """Draw coordinate k from uniform numbers ``(n,)`` and return the log increments of the weights."""

    def take(self, k: int, index: NDArray[np.intp]) -> None:
        """Keep the particles of an index, after coordinate k."""

    def move(self, k: int, rng: np.random.Generator) -> None:
        """Move coordinates 0, ..., k under the target of stage k."""


class CoordinatePath:
    """The coordinates of a rectangle as a path: the space grows by one coordinate a stage.

    Parameters
    ----------
    rectangle : Rectangle
    tilt : Tilt
    n : int
        Particles, of all runs.
    kernel : {"gibbs", "block", "over_relaxed", "hmc"}
    repeats : int
        Moves after each resampling; a fixed number, so that estimates are unbiased.
    """

    def __init__(self, rectangle: Rectangle, tilt: Tilt, n: int, kernel: str, repeats: int) -> None:
        self.rectangle, self.tilt, self.n = rectangle, tilt, n
        self.kernel: Move = MOVES[kernel]
        self.repeats = repeats
        self.z = np.empty((rectangle.rank, n))
        self.offsets = np.zeros((0, n))
        self._first = 0

    @property
    def length(self) -> int:
        """Number of stages."""
        return self.rectangle.rank

    def extend(self, k: int, u: Array) -> Array:
        """Draw coordinate k from uniform numbers ``(n,)`` and return the log increments of the weights."""
        rows, first = self.rectangle.rows, k - k % PANEL
        if k == first or len(self.offsets) == 0:
            self.offsets, self._first = rows[k : first + PANEL, :k] @ self.z[:k], k
        offset = self.offsets[k - self._first] + rows[k, self._first : k] @ self.z[self._first : k]
        self.z[k], log_increments = extend(self.rectangle, self.tilt, k, offset, self.z, u)
        return log_increments

    def take(self, k: int, index: NDArray[np.intp]) -> None:
        """Keep the particles of an index, after coordinate k."""
        self.z[: k + 1] = self.z[: k + 1, index]
        self.offsets = self.offsets[:0]

    def move(self, k: int, rng: np.random.Generator) -> None:
        """Move coordinates 0, ..., k under the target of stage k."""
        move(rng, self.rectangle, self.tilt, k + 1, self.z[: k + 1], self.kernel, self.repeats)


def smc(
    path: Path, runs: int, rng: np.random.Generator, *, uniforms: Array | None = None, threshold: float = 0.5
) -> Particles:
    """Return the weighted particles at the end of a path.

    Parameters
    ----------
    uniforms : ndarray (rank, n), optional
        For coordinates up to the first resampling; each run its own scramble of a net. Fresh ones by default.
    threshold : float
        Particles are resampled where the mean over runs of ESS / n falls below it.
    """
    n = path.n // runs
    log_weights, log_p = np.zeros((runs, n)), np.zeros(runs)
    lineage = np.tile(np.arange(n), (runs, 1))
    resampled: list[int] = []
    for k in range(path.length):
        u = rng.random(path.n) if uniforms is None or resampled else uniforms[k]
        log_weights += path.extend(k, u).reshape(runs, n)
        if not np.isfinite(log_weights).any(axis=1).all():  # a run in which no particle is left estimates zero
            log_weights[~np.isfinite(log_weights).any(axis=1)] = -np.inf
            if not np.isfinite(log_weights).any():
                break
        share = np.mean([effective_sample_size(run) for run in log_weights]) / n
        if share < threshold and k < path.length - 1:
            log_mean = logsumexp(log_weights, axis=1, keepdims=True) - np.log(n)
            weights = np.where(np.isfinite(log_mean), np.exp(log_weights - np.maximum(log_mean, -1e300)), 1.0)
            index = np.array([systematic_resampling(run, n, rng) for run in weights])
            path.take(k, (index + n * np.arange(runs)[:, None]).ravel())
            lineage = np.take_along_axis(lineage, index, axis=1)
            log_p += log_mean[:, 0]
            log_weights = np.where(np.isfinite(log_mean), np.zeros((runs, n)), -np.inf)
            path.move(k, rng)
            resampled.append(k + 1)
    log_p = log_p + logsumexp(log_weights, axis=1) - np.log(n)
    return Particles(path.z, log_weights, log_p, lineage, tuple(resampled))
