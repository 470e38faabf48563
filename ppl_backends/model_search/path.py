"""Tempering from the prior of models to their posterior: p(γ) p(y | γ)^β."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.kernels.protocol import Density
from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.space import Bits, ModelSpace
from ppl_backends.smc.core import SMCState, Start
from ppl_backends.smc.path import PathState, TemperingPath
from ppl_backends.smc.start import StartFigures
from ppl_backends.targets.protocol import Array


@dataclass(frozen=True)
class ModelState(PathState):
    """Models; ``share`` ``(n, m)`` is the share of the moves of its stage with each bit on, a better average than x."""

    share: Array


class ModelPath(TemperingPath):
    """Particles are models; the increment is the log evidence, an estimate of which stays with its particle."""

    description = "model prior"

    def __init__(self, space: ModelSpace, evidence: Evidence) -> None:
        self.space, self.evidence = space, evidence

    def start(self, n: int, rng: np.random.Generator) -> Start:
        """Draw models from their prior, or from the beta-binomial one if the prior is a function."""
        drawn = self.at(self.space.sample(n, rng), 0.0, rng)
        if np.all(drawn.increment == -np.inf):
            at_fault = (
                "model_prior is -inf, or columns are dependent,"
                if callable(self.space.prior)
                else "columns are dependent"
            )
            raise ModelError(
                f"{at_fault} in all {n} models drawn from the model prior, so none has an evidence; "
                "increase draws, or take model_prior='beta_binomial', which has more small models"
            )
        return Start(drawn, figures=StartFigures(0.0))

    def at(self, bits: Bits, beta: float, rng: np.random.Generator) -> ModelState:
        """Return models with their prior and evidences; both are zero for those that heredity forbids."""
        base = self.space.log_start(bits)
        inside = base > -np.inf
        increment = np.full(len(bits), -np.inf)
        increment[inside] = self.evidence(self.space.columns(bits[inside]), rng)
        if callable(self.space.prior):
            increment[inside] += self.space.log_prior(bits[inside]) - base[inside]
        share = bits.astype(np.float64)
        return ModelState(bits, base, increment, None, None, beta, share)

    @property
    def below(self) -> ModelPath | None:
        """Return the path that leads to the start of this one; None if the start is drawn directly."""
        return None

    def density(self, stage: Any) -> Density[PathState]:
        """Return the map from models to particles of the stage."""
        return lambda x, rng: self.at(np.asarray(x, dtype=bool), stage.beta, rng)


class SurrogatePath(ModelPath):
    """From the posterior under a surrogate evidence to that under the evidence itself: p(γ) s(γ)^{1−β} p(y | γ)^β."""

    description = "surrogate posterior"

    def __init__(self, space: ModelSpace, evidence: Evidence, surrogate: Evidence) -> None:
        super().__init__(space, evidence)
        self._below = ModelPath(space, surrogate)

    @property
    def below(self) -> ModelPath:
        """Return the path to the posterior under the surrogate."""
        return self._below

    def at(self, bits: Bits, beta: float, rng: np.random.Generator) -> ModelState:
        """Return models with prior times surrogate, and their evidences minus the surrogate."""
        start = self._below.at(bits, 1.0, rng)
        base, increment = start.log_density, np.full(len(bits), -np.inf)
        inside = base > -np.inf
        columns = self.space.columns(bits[inside])
        increment[inside] = self.evidence(columns, rng) - self._below.evidence(columns, rng)
        return ModelState(bits, base, increment, None, None, beta, start.share)

    def continued(self, run: SMCState) -> SMCState:
        """Return a run that has reached the surrogate posterior, at the beginning of this path."""
        return replace(run, population=self.at(run.population.x, 0.0, run.rng), stage=None, ess=None)
