"""A Markov chain over models and their coefficients, for a step method.

A step proposes to add, delete or swap candidates, with the coefficients integrated out. Their evidence is estimated
from a few importance points, and one of these, drawn by its weight, becomes the coefficients of the proposal. The
chain leaves the joint posterior of model and coefficients invariant, for any number of points (Andrieu, Doucet &
Holenstein 2010). Coefficients that are off have their prior, as in the model that the user wrote (Kuo & Mallick 1998).

If other steps have moved hyper-parameters since, the model's evidence is estimated again from points that include the
current coefficients. Otherwise the estimate would not have the distribution that a draw of the posterior requires.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppl_backends.kernels.algorithm import COMMON_STATS, Algorithm, Statistics
from ppl_backends.kernels.boolean.add_delete_swap import AddDeleteSwap
from ppl_backends.kernels.protocol import accept
from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.space import Bits
from ppl_backends.numerics.population import Population
from ppl_backends.targets.protocol import Array, Index


@dataclass(frozen=True)
class Models(Population):
    """Models with the log of prior times evidence ``(n,)``, and coefficients of each ``(n, p)``, 0 if they are off."""

    log_density: Array
    coefficients: Array

    @property
    def gradient(self) -> None:
        """Return None: models have no gradient."""


@dataclass(frozen=True)
class SearchState:
    """A chain's model, and its point."""

    models: Models
    x: Array


@dataclass(frozen=True)
class SelectedModel:
    """A model with indicators, in the form that the chain uses.

    Attributes
    ----------
    evidence : Evidence
    log_prior : callable
        Function of indicators ``(m,)``.
    always : ndarray (p,) of bool
        Coefficients without an indicator.
    switched : ndarray (m,) of int
        The coefficient of each indicator.
    prior : ndarray (p, 4)
        Mean, precision, scale and degrees of freedom of the coefficients' priors; normal if the last is 0.
    indicators, coefficients : ndarray of int
        Positions of both in the point of the chain.
    """

    evidence: Evidence
    log_prior: Callable[[Bits], float]
    always: Bits
    switched: Index
    prior: Array
    indicators: Index
    coefficients: Index

    def columns(self, bits: Bits) -> Bits:
        """Return the columns ``(n, p)`` of indicators ``(n, m)``."""
        columns = np.tile(self.always, (len(bits), 1))
        columns[:, self.switched] = bits
        return columns

    def __call__(self, x: Any, rng: np.random.Generator) -> Models:
        """Return models ``(n, m)`` with estimates of their evidences, which stay with them."""
        bits = np.asarray(x, dtype=bool)
        log_density, coefficients = np.empty(len(bits)), np.zeros((len(bits), len(self.always)))
        for i, columns in enumerate(self.columns(bits)):
            log_evidence, coefficients[i] = self.evidence.draw(columns, rng)
            log_density[i] = self.log_prior(bits[i]) + log_evidence
        return Models(bits, log_density, coefficients)

    def around(self, x: Array, rng: np.random.Generator) -> Models:
        """Return the model and the coefficients of a point, with an estimate of its evidence that uses them as one point."""
        bits = x[None, self.indicators] > 0.5
        columns = self.columns(bits)[0]
        theta = np.where(columns, x[self.coefficients], 0.0)
        log_density = self.log_prior(bits[0]) + self.evidence.around(columns, theta, rng)
        return Models(bits, np.array([log_density]), theta[None])

    def point(self, models: Models, rng: np.random.Generator) -> Array:
        """Return the point of a chain: indicators, coefficients that are on, and draws of the prior of the others."""
        mean, precision, scale, df = self.prior.T
        spread = np.where(df == 0, 1.0 / np.sqrt(np.where(df == 0, precision, 1.0)), scale)
        noise = rng.standard_normal(len(mean))
        tails = np.sqrt(2.0 * rng.standard_gamma(0.5 * np.maximum(df, 1e-3)) / np.maximum(df, 1e-3))
        off = mean + spread * np.where(df == 0, noise, noise / np.maximum(tails, 1e-300))
        on = self.columns(models.x)[0]
        x = np.empty(len(self.indicators) + len(self.coefficients))
        x[self.indicators], x[self.coefficients] = models.x[0], np.where(on, models.coefficients[0], off)
        return x


class ModelChain(Algorithm):
    """Make ``moves`` proposals of another model, and one of other coefficients in the same model.

    Parameters
    ----------
    current : callable
        Returns the :class:`SelectedModel` given the current values of the other variables.
    moves : int
        By default the number of indicators.
    """

    def __init__(self, current: Callable[[], SelectedModel], moves: int | None = None) -> None:
        self.kernel = self.near = AddDeleteSwap()
        self._current = current
        self.density = model = current()
        self.moves = moves or len(model.indicators)
        self.name, self.dim, self.batched = "model_search", len(model.indicators) + len(model.coefficients), False
        self.approximate = not model.evidence.exact
        self.stats = {**COMMON_STATS, "size": int}
        self.shapes, self.attributes = {}, {}

    def initial_point(self, rng: np.random.Generator) -> Array | None:
        return None

    def start(self, x: Array, rng: Any) -> Any:
        self.density = self._current()
        return SearchState(self.density.around(x, rng), x)

    def refresh(self, state: Any, rng: Any) -> Any:
        return self.start(state.x, rng)

    def step(self, state: Any, rng: Any, tune: bool) -> tuple[Any, Statistics]:
        models, rate, moved = state.models, 0.0, False
        for _ in range(self.moves):
            models, info = self.near.step(rng, models, self.density)
            rate += float(info.acceptance[0]) / self.moves
            moved |= bool(info.accepted[0])
        fresh = self.density(models.x, rng)
        models, _ = accept(rng, models, fresh, fresh.log_density - models.log_density, np.zeros(1))
        stats = {"accept": rate, "accepted": moved, "approximate": self.approximate, "tune": tune}
        return SearchState(models, self.density.point(models, rng)), {**stats, "size": int(models.x.sum())}
