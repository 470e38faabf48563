"""Base of evidences of models: a function of the columns, and the posterior of the coefficients."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ppl_backends.model_search.space import Bits, ModelSpace
from ppl_backends.targets.protocol import Array

_MOST_MODELS = 2_000_000  # in a cache


class Evidence:
    """Log evidences of models; subclasses define :meth:`compute` and :meth:`coefficients`.

    Evidences that are a function of the model are computed once and cached by its packed bits. An estimate is not
    cached: it belongs to the particle that drew it, and a particle that moves to the same model draws its own (Andrieu
    & Roberts 2009).

    Attributes
    ----------
    name : str
    exact : bool
        Whether the evidence, or its expectation, is that of the model.
    deterministic : bool
    laplace : LaplaceEvidence or None
        Laplace evidence of the same regression, if there is one.
    compiled : Compiled or None
        The regression in the form of compiled functions, if it has one and the evidence fits Gaussians to it.
    walks : bool
        Whether there are compiled small steps, :meth:`walk`.
    """

    name: ClassVar[str]
    laplace: Any = None
    compiled: Any = None
    exact: ClassVar[bool]
    deterministic: ClassVar[bool] = True
    cached: ClassVar[bool] = True
    walks: ClassVar[bool] = False

    def __init__(self) -> None:
        self._known: dict[bytes, float] = {}

    def compute(self, columns: Bits, rng: np.random.Generator) -> Array:
        """Return the log evidence ``(n,)`` of models ``(n, p)``; −inf for models that the data do not identify."""
        raise NotImplementedError

    def unconverged(self, columns: Bits) -> NDArray[np.bool_]:
        """Return for which models ``(n, p)`` the iteration that gives the evidence did not converge."""
        return np.zeros(len(columns), dtype=bool)

    def gain_of_other_modes(self, columns: Bits) -> Array:
        """Return what another mode that a search finds adds to the log evidence of models ``(n, p)``."""
        return np.zeros(len(columns))

    def coefficients(self, columns: Bits, n: int, rng: np.random.Generator) -> dict[str, Array]:
        """Return ``n`` draws of the parameters of one model ``(p,)``: ``coefficients`` ``(n, p)``, and others."""
        raise NotImplementedError

    def draw(self, columns: Bits, rng: np.random.Generator) -> tuple[float, Array]:
        """Return the log evidence of one model ``(p,)``, or an estimate, and coefficients ``(p,)`` that go with it."""
        return float(self(columns[None], rng)[0]), self.coefficients(columns, 1, rng)["coefficients"][0]

    def around(self, columns: Bits, theta: Array, rng: np.random.Generator) -> float:
        """Return the log evidence of one model, or an estimate that uses its coefficients ``theta`` ``(p,)`` as one point."""
        return float(self(columns[None], rng)[0])

    def walk(
        self, columns: Bits, space: ModelSpace, n_steps: int, beta: float, rng: np.random.Generator
    ) -> tuple[Bits, Array]:
        """Return models after add–delete–swap steps in a plain space, and the share of these that each column was on."""
        raise NotImplementedError

    def __call__(self, columns: Bits, rng: np.random.Generator) -> Array:
        """Return the log evidence ``(n,)``, from the cache if it is there."""
        if not (self.deterministic and self.cached):
            return self.compute(columns, rng)
        known = self._known
        keys = [row.tobytes() for row in np.packbits(columns, axis=1)]
        new = {key: i for i, key in enumerate(keys) if key not in known}
        if new:
            found = self.compute(columns[list(new.values())], rng)
            if len(known) > _MOST_MODELS:
                known = self._known = {key: known[key] for key in keys if key in known}
            known.update(zip(new, found.tolist(), strict=True))
        return np.array([known[key] for key in keys])
