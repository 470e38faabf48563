"""Check whether a simulator's chains reach equilibrium: the same model run from opposite starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppl_backends.numerics.arrays import Array

# Starts whose means differ by less than this many standard deviations count as one.
NEGLIGIBLE = 0.1
LEVEL = 4.0


@dataclass(frozen=True)
class Equilibration:
    """Statistics of chains from different starts, after burn-in of increasing length.

    Attributes
    ----------
    theta : ndarray (m, k)
        Parameters of the chains.
    starts : tuple of str
    names : tuple of str
        Names of the statistics.
    burn_in : ndarray of int (lengths,)
    in_use : int
        The simulator's burn-in.
    mean, sd : ndarray (m, starts, lengths, k)
        Over the replicates.
    replicates : int

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.simulators import Equilibration
    >>> burn_in, zeros = np.array([50, 100]), np.zeros((1, 2, 2, 1))
    >>> found = Equilibration(np.array([[-1.0]]), ("empty", "complete"), ("edges",), burn_in, 100, zeros, zeros + 1, 200)
    >>> found.starts
    ('empty', 'complete')
    """

    theta: Array
    starts: tuple[str, ...]
    names: tuple[str, ...]
    burn_in: NDArray[np.int64]
    in_use: int
    mean: Array
    sd: Array
    replicates: int

    @property
    def gap(self) -> Array:
        """Return the largest difference between two starts' means, in pooled standard deviations: ``(m, lengths, k)``.

        The pooled deviation includes the spread between the starts, so that two phases that no chain leaves have a gap
        of about 2, for any width of each.
        """
        within = (self.sd**2).mean(axis=1)
        pooled = np.sqrt(within + self.mean.var(axis=1))
        return np.ptp(self.mean, axis=1) / np.maximum(pooled, 1e-300)

    @property
    def noise(self) -> float:
        """Return the standard error of a gap between two starts that agree."""
        return float(np.sqrt(2.0 / self.replicates))

    @property
    def equilibrated(self) -> bool:
        """Return whether no gap at this burn-in, at any θ, is above 0.1 and above four standard errors."""
        at = int(np.searchsorted(self.burn_in, self.in_use))
        at = min(at, len(self.burn_in) - 1)
        return bool((self.gap[:, at] < max(NEGLIGIBLE, LEVEL * self.noise)).all())

    def __str__(self) -> str:
        """Return a table of the largest gap at each burn-in."""
        worst = self.gap.max(axis=(0, 2))
        lines = [f"{'burn-in':>10}  largest gap between {', '.join(self.starts)} (sd; noise {self.noise:.2f})"]
        for length, gap in zip(self.burn_in, worst, strict=True):
            lines.append(f"{length:>10}  {gap:.2f}{'   <- in use' if length == self.in_use else ''}")
        where = np.unravel_index(self.gap[:, -1].argmax(), self.gap[:, -1].shape)
        theta = np.array2string(self.theta[where[0]], precision=3)
        lines.append(f"equilibrated: {self.equilibrated}; worst at theta = {theta}, {self.names[where[1]]}")
        return "\n".join(lines)


def compare_starts(
    run: Callable[[str, Array], Array],
    starts: tuple[str, ...],
    theta: Array,
    burn_in: Sequence[int] | NDArray[np.int64],
    in_use: int,
    replicates: int,
    names: tuple[str, ...],
) -> Equilibration:
    """Return means and standard deviations of ``run(start, theta) -> (lengths, k)`` over replicates."""
    draws = np.array([[[run(start, point) for _ in range(replicates)] for start in starts] for point in theta])
    return Equilibration(
        theta, starts, names, np.asarray(burn_in), in_use, draws.mean(axis=2), draws.std(axis=2), replicates
    )
