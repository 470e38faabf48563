"""Scrambled Sobol nets of SciPy, whose argument for the generator has a new name from version 1.15 on."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from scipy.stats.qmc import Sobol

INNER_BITS = 53  # with fewer, a point can lie on a face of the cube, where a normal quantile is infinite
_SEED = "rng" if "rng" in inspect.signature(Sobol.__init__).parameters else "seed"


def sobol(dim: int, rng: np.random.Generator, bits: int | None = None) -> Sobol:
    """Return a source of scrambled Sobol points in ``dim`` coordinates."""
    options: dict[str, Any] = {_SEED: rng}
    return Sobol(dim, scramble=True, bits=bits, **options)
