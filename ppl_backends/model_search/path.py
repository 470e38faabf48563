"""Tempering from the prior of models to their posterior: p(γ) p(y | γ)^β."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_backends.kernels.protocol import Density
from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.space import Bits, ModelSpace
from ppl_backends.smc.core import Start
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.smc.start import StartFigures
from ppl_backends.targets.protocol import Array


@dataclass(frozen=True)
class ModelState(PathState):
    """Models; ``share`` ``(n, m)`` is how much of the moves of its stage each bit was on, which averages better than x."""

    share: Array


class ModelPath(TemperingPath):
    """Particles are models; the increment is the log evidence, an estimate of which stays with its particle."""

    description = "model prior"

    def __init__(self, space: ModelSpace, evidence: Evidence) -> None:
        self.space, self.evidence = space, evidence

    def start(self, n: int, rng: np.random.Generator) -> Start:
        """Draw models from their prior, or the uniform one where that is a function."""
        return Start(self.at(self.space.sample(n, rng), 0.0, rng), figures=StartFigures(0.0))

    def at(self, bits: Bits, beta: float, rng: np.random.Generator) -> ModelState:
        """Return models with their prior and evidences; those that heredity forbids have neither."""
        base = self.space.log_start(bits)
        inside = base > -np.inf
        increment = np.full(len(bits), -np.inf)
        increment[inside] = self.evidence(self.space.columns(bits[inside]), rng)
        if callable(self.space.prior):
            increment[inside] += self.space.log_prior(bits[inside]) - base[inside]
        share = bits.astype(np.float64)
        return ModelState(bits, base, increment, None, None, beta, share)

    def density(self, stage: Any) -> Density[PathState]:
        """Return the map from models to particles of the stage."""
        return lambda x, rng: self.at(np.asarray(x, dtype=bool), stage.beta, rng)
