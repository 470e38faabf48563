"""Evidences of regressions whose likelihood is replaced by a Gaussian, the same in all models: a surrogate for walks.

The log likelihood of a row becomes the quadratic in its predictor whose value, slope and curvature have the same means over
draws of the predictor, as the Gaussian of variational Bayes has at its optimum; in coefficients the rows add up to
c + b'θ − ½θ'Gθ. With normal priors N(m_j, 1/q_j) a model's evidence is exp{c + Σ(½ log q_j − ½q_j m_j²) + ½r'A⁻¹r}/|A|^½,
where A = G + diag(q) and r = b + qm are cut to the columns that are on. The sweep operator holds those of all neighbours.
"""

from __future__ import annotations

import copy
from typing import ClassVar

import numpy as np

from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.evidences.laplace_kernels import mean_sites, prior_terms
from ppl_backends.model_search.evidences.walk_kernels import Form, log_evidences, walk
from ppl_backends.model_search.space import Bits, ModelSpace
from ppl_backends.model_search.switched import Compiled
from ppl_backends.targets.protocol import Array


class GaussianEvidence(Evidence):
    """Evidences under one Gaussian likelihood.

    Parameters
    ----------
    regression : Compiled
    theta : ndarray (draws, p)
        Coefficients, over which the expansion is averaged; 0 where they are off.
    columns : ndarray (draws, p) of bool
        Mask of the included ones. A Student prior becomes a normal one with the same slope at its coefficient's mean
        if included.
    log_constant : float
        Constant that the compiled likelihood leaves out.
    """

    name: ClassVar[str] = "gaussian"
    exact: ClassVar[bool] = False
    cached: ClassVar[bool] = False
    walks: ClassVar[bool] = True

    def __init__(self, regression: Compiled, theta: Array, columns: Bits, log_constant: float) -> None:
        super().__init__()
        design, offset, y, extra, family, prior = regression
        predictors = offset + theta @ design
        value, slope, second = mean_sites(family, predictors, y, extra).T
        weight, u = -second, predictors.mean(axis=0) - offset
        typical = theta.sum(axis=0) / np.maximum(columns.sum(axis=0), 1)
        mean, precision, height = prior_terms(prior, typical).T
        gram = (design * weight) @ design.T + np.diag(precision)
        scale = np.sqrt(np.diagonal(gram))
        right = design @ (slope + weight * u) + precision * mean
        constants = height + 0.5 * np.log(2 * np.pi) - np.log(scale)
        self.form = Form(gram / np.outer(scale, scale), right / scale, 0.0, constants, 0.5, -1.0, 0.0, 0.0)
        self.level = log_constant + float((value - slope * u - 0.5 * weight * (u**2 - predictors.var(axis=0))).sum())

    def corrected(self, slopes: Array, level: float) -> GaussianEvidence:
        """Return evidences to whose logs ``level`` is added, and ``slopes`` ``(p,)`` by the columns that are on."""
        changed = copy.copy(self)
        changed.form = self.form._replace(constants=self.form.constants + slopes)
        changed.level = self.level + level
        return changed

    def compute(self, columns: Bits, rng: np.random.Generator) -> Array:
        return self.level + np.asarray(log_evidences(self.form, columns))

    def walk(
        self, columns: Bits, space: ModelSpace, n_steps: int, beta: float, rng: np.random.Generator
    ) -> tuple[Bits, Array]:
        on, share = columns.copy(), np.zeros(columns.shape)
        members = np.argmax(space.members, axis=1)
        walk(self.form, members, on, share, n_steps, float(beta), space.log_prior_by_size, rng)
        return on, share
