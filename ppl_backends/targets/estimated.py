"""A target whose likelihood is an unbiased estimate, drawn again at every evaluation."""

from __future__ import annotations

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation, as_points
from ppl_backends.targets.wrapped import WrappedTarget


class EstimatedTarget(WrappedTarget):
    """A target with its ``log_likelihood_estimate`` in place of the log likelihood.

    Importance weights with unbiased estimates are unbiased themselves, and expectations under them are those of the
    posterior (Fearnhead, Papaspiliopoulos & Roberts 2008). Two evaluations at one point differ, so it must not be used
    for Markov chains.

    Parameters
    ----------
    target : BaseTarget
    rng : Generator
    """

    has_split, has_gradient, is_prior, likelihood_is_known = True, False, False, True
    hessian, undefined, tempered = BaseTarget.hessian, BaseTarget.undefined, BaseTarget.tempered
    factors = likelihood_factors = observations = None

    def __init__(self, target: BaseTarget, rng: np.random.Generator) -> None:
        super().__init__(target)
        self._rng = rng

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation:
        """Return log prior and a fresh estimate of the log likelihood ``(n,)``; nothing is estimated outside the support."""
        if gradient:
            raise ModelError(f"{self.label}: an estimate of the likelihood has no gradient")
        x = as_points(x, self.dim)
        prior, estimate = self.target.evaluate_prior(x)[0], np.full(len(x), -np.inf)
        inside = np.isfinite(prior)
        if inside.any():
            estimate[inside] = self.target.log_likelihood_estimate(x[inside], self._rng)
        return Evaluation(prior, estimate)
