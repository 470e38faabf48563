"""Seeds: one ``random_seed`` gives independent generators, for any number of workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError

SeedLike = int | Sequence[int] | np.random.SeedSequence | np.random.Generator | None


def spawn_seeds(random_seed: Any, n: int) -> list[np.random.SeedSequence]:
    """Return ``n`` independent seed sequences from one seed: an int, integers, a SeedSequence, a Generator, or None."""
    if isinstance(random_seed, np.random.Generator):
        random_seed = random_seed.integers(0, 2**63, size=4).tolist()
    if isinstance(random_seed, np.random.SeedSequence):
        root = np.random.SeedSequence(random_seed.entropy, spawn_key=random_seed.spawn_key)
    else:
        try:
            root = np.random.SeedSequence(random_seed)
        except (TypeError, ValueError):
            raise ModelError(
                f"random_seed={random_seed!r}: expected a non-negative integer or a NumPy generator"
            ) from None
    return root.spawn(n)


def spawn_generators(random_seed: Any, n: int) -> list[np.random.Generator]:
    """Return ``n`` independent generators from one seed; see :func:`spawn_seeds`."""
    return [np.random.default_rng(seed) for seed in spawn_seeds(random_seed, n)]
