"""Several generators as one: every chain of a batch draws from its own generator, as it would alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ppl_backends.targets.protocol import Array


class Generators:
    """The part of ``numpy.random.Generator`` that kernels use; row i of a draw comes from generator i.

    Parameters
    ----------
    streams : sequence of Generator
        One for every point.

    Examples
    --------
    >>> streams = [np.random.default_rng(seed) for seed in range(3)]
    >>> draws = Generators(streams).standard_normal((3, 2))
    >>> bool((draws[2] == np.random.default_rng(2).standard_normal(2)).all())
    True
    """

    def __init__(self, streams: Sequence[np.random.Generator]) -> None:
        self.streams = tuple(streams)

    def standard_normal(self, shape: tuple[int, ...]) -> Array:
        """Return ``shape[0]`` rows."""
        return np.array([rng.standard_normal(shape[1:]) for rng in self.streams])

    def random(self, shape: Any) -> Array:
        """Return uniform numbers, for an integer or a shape."""
        rest = shape[1:] if isinstance(shape, tuple) else None
        return np.array([rng.random(rest) for rng in self.streams])

    def uniform(self, low: float, high: float, size: int | None = None) -> Any:
        """Return ``size`` uniform numbers between ``low`` and ``high``, or one for all points."""
        if size is None:
            return self.streams[0].uniform(low, high)
        return np.array([rng.uniform(low, high) for rng in self.streams])

    def standard_gamma(self, shape: Any, size: tuple[int, ...]) -> Array:
        """Return ``size[0]`` rows; ``shape`` is that of every row."""
        return np.array([rng.standard_gamma(shape, size[1:]) for rng in self.streams])

    def integers(self, high: int) -> int:
        """Return an integer below ``high`` for all points."""
        return int(self.streams[0].integers(high))


def each(rng: Any, n: int) -> Sequence[np.random.Generator]:
    """Return the generator of each of ``n`` points: their own, or the one that they share."""
    return rng.streams if isinstance(rng, Generators) else (rng,) * n
