"""Exact evidences of the linear model under Zellner's g-prior and the hyper-g prior.

y = α + Xβ + ε, with α and log σ flat and β | σ ~ N(0, g σ² (X'X)⁻¹), X centred. The undetermined constant of the flat
priors is the same in all models, so evidences are relative to that of the model without columns. With R² the share of
the variance that k columns explain, the Bayes factor is (1 + g)^{(n−1−k)/2} {1 + g(1 − R²)}^{−(n−1)/2} (Liang, Paulo,
Molina, Clyde & Berger 2008); under hyper-g, 1/(1+g) has a density proportional to (1+g)^{−a/2}, a = 3, and the factor
an integral.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.evidences.linear_kernels import EXPLAINED, log_evidences, share_left
from ppl_backends.model_search.evidences.walk_kernels import Form, walk
from ppl_backends.model_search.space import Bits, ModelSpace
from ppl_backends.targets.protocol import Array

HYPER = 3.0  # a of the hyper-g prior
PERFECT = 1e-20  # 1 − R² of columns that explain y without residuals


class LinearEvidence(Evidence):
    """Bayes factors against the model with only an intercept.

    Parameters
    ----------
    design : ndarray (n, p)
        Columns; ``constant`` ones represent the intercept.
    y : ndarray (n,)
    prior : {"g", "hyper-g"}
        g = n, or g with the hyper-g prior.
    """

    name: ClassVar[str] = "exact"
    exact: ClassVar[bool] = True
    cached: ClassVar[bool] = False  # a look-up takes as long
    walks: ClassVar[bool] = True

    def __init__(self, design: Array, y: Array, prior: str) -> None:
        super().__init__()
        self.n, self.p = design.shape
        self.centre, self.y_mean = design.mean(axis=0), float(y.mean())
        centred = design - self.centre
        self.scale = centred.std(axis=0)
        self.constant = self.scale <= 1e-12 * np.abs(design).max(axis=0)
        self.scale[self.constant] = 1.0
        self.y_scale = float(np.std(y))
        if not self.y_scale > 0:
            raise ModelError("y does not vary: there is nothing to explain")
        self._x = np.where(self.constant, 0.0, centred / self.scale)
        self._y = (y - self.y_mean) / self.y_scale
        self.correlation = self._x.T @ self._x / self.n
        self.right = self._x.T @ self._y / self.n
        self.hyper, self.g = (HYPER if prior == "hyper-g" else 0.0), float(self.n)
        if self.hyper:
            self._refuse_a_perfect_fit()
        self.form = Form(self.correlation, self.right, 1.0, np.zeros(self.p), 0.0, self.hyper, self.g, float(self.n))

    def _refuse_a_perfect_fit(self) -> None:
        """Raise an error if a model without residuals has degrees of freedom left: its hyper-g evidence is infinite."""
        fitted, _, rank, _ = np.linalg.lstsq(self._x, self._y)
        residual = self._y - self._x @ fitted
        if rank < self.n - 1 and residual @ residual < PERFECT * self.n:
            raise ModelError(
                "prior='hyper-g': the columns explain y without residuals, and the evidence of such a model is infinite; "
                "use prior='g', or check whether a column was computed from y"
            )

    def _varying(self, columns: Bits) -> Bits:
        return columns & ~self.constant

    def compute(self, columns: Bits, rng: np.random.Generator) -> Array:
        return log_evidences(self.correlation, self.right, self._varying(columns), self.hyper, self.g, float(self.n))

    def walk(
        self, columns: Bits, space: ModelSpace, n_steps: int, beta: float, rng: np.random.Generator
    ) -> tuple[Bits, Array]:
        """Return models after add–delete–swap steps in a plain space, and the share of these that each column was on."""
        on = np.ascontiguousarray(columns & ~self.constant)
        members = np.argmax(space.members, axis=1)
        share = np.zeros(on.shape)
        walk(self.form, members, on, share, n_steps, float(beta), space.log_prior_by_size, rng)
        return on | (columns & self.constant), share

    def coefficients(self, columns: Bits, n: int, rng: np.random.Generator) -> dict[str, Array]:
        """Return draws of the normal–inverse-gamma posterior: ``coefficients``, ``intercept`` and ``sigma``."""
        on = np.flatnonzero(self._varying(columns))
        k, factor = len(on), np.empty((self.p + 1, self.p))
        left = max(float(share_left(self.correlation, self.right, on, factor)), EXPLAINED)
        left = 0.0 if k == self.n - 1 else left  # as many columns as degrees of freedom explain any y
        lower, projected = np.tril(factor[:k, :k]), factor[k, :k]
        g = np.full(n, self.g) if self.hyper == 0.0 else self._draw_g(k, left, n, rng)
        shrunk = g / (1.0 + g)
        rest = 1.0 - shrunk * (1.0 - left)
        variance = 0.5 * self.n * rest / rng.gamma(0.5 * (self.n - 1), size=n)
        noise = rng.standard_normal((n, k)) * np.sqrt(shrunk * variance / self.n)[:, None]
        standardised = np.linalg.solve(lower.T, (shrunk[:, None] * projected + noise).T).T if k else np.zeros((n, 0))
        coefficients = np.zeros((n, self.p))
        coefficients[:, on] = standardised * self.y_scale / self.scale[on]
        sigma = self.y_scale * np.sqrt(variance)
        level = self.y_mean + sigma / np.sqrt(self.n) * rng.standard_normal(n) - coefficients @ self.centre
        # A constant column of X gets the intercept.
        for j in np.flatnonzero(self.constant)[:1]:
            coefficients[:, j] = level / self.centre[j]
        return {"coefficients": coefficients, "intercept": level, "sigma": sigma}

    def _draw_g(self, k: int, left: float, n: int, rng: np.random.Generator) -> Array:
        """Draw g given the model, by inversion on a grid of log(1 + g)."""
        t = np.linspace(0.0, 60.0, 20_001)
        log_density = -0.5 * (k + self.hyper - 2.0) * t - 0.5 * (self.n - 1.0) * np.log(left + (1 - left) * np.exp(-t))
        cumulative = np.cumsum(np.exp(log_density - log_density.max()))
        return np.expm1(np.interp(rng.random(n) * cumulative[-1], cumulative, t))
