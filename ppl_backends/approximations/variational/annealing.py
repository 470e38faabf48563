"""Deterministic annealing: fits along a ladder of temperatures, from the prior to the posterior.

At λ the target is p(θ) L(θ)^λ, or p(θ, y)^λ if prior and likelihood cannot be separated. It is flat at first, so that
an optimum found early is broad. Each fit starts from the previous one (Rose 1998; Alquier, Ridgway & Chopin 2016).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from ppl_backends.errors import PriorSamplingError
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.numerics.robust import median_and_width
from ppl_backends.targets.digest import digest
from ppl_backends.targets.power import with_power
from ppl_backends.targets.protocol import Array, BaseTarget, JointEvaluation
from ppl_backends.targets.wrapped import WrappedTarget

PRIOR_DRAWS = 2000


class TemperedJoint(WrappedTarget):
    """A joint log density times λ (``power``)."""

    has_split = False
    observations = factors = likelihood_factors = log_prior_normalizer = log_likelihood_estimate = None
    evaluate_prior, split_problem = BaseTarget.evaluate_prior, BaseTarget.split_problem

    def __init__(self, target: BaseTarget, power: float) -> None:
        super().__init__(target)
        self.power = power

    def evaluate(self, x: Array, gradient: bool = False) -> JointEvaluation:
        """Return λ log p."""
        if not gradient:
            return JointEvaluation(self.power * self.target.log_density(x))
        value, slope = self.target.log_density_and_gradient(x)
        return JointEvaluation(self.power * value, self.power * slope)

    def hessian(self, x: Array, part: str = "joint") -> Array:
        """Return λ times the Hessian of the joint."""
        return self.power * self.target.hessian(x, part)

    def tempered(self, power: float) -> TemperedJoint:
        """Return the joint log density times a product of powers."""
        return TemperedJoint(self.target, self.power * power)

    def digests(self) -> dict[str, str]:
        """Return the digests of the target, and that of the power."""
        return {**self.target.digests(), "power": digest(self.power)}


def ladder(annealing: int | Sequence[float]) -> Array:
    """Return powers λ between 0 and 1, without the 1 itself."""
    if np.ndim(annealing) == 0:
        return (np.arange(1, annealing) / annealing) ** 3  # type: ignore[arg-type]
    powers = np.asarray(annealing)
    return powers[powers < 1]


def tempered(target: BaseTarget, power: float) -> BaseTarget:
    """Return p(θ) L(θ)^λ if the split is known, else p(θ, y)^λ."""
    return with_power(target, power) if target.has_split else TemperedJoint(target, power)


def prior_gaussian(target: BaseTarget, rng: np.random.Generator) -> Gaussian:
    """Return the Gaussian with the medians and robust widths of prior draws; a standard normal if there are none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x = target.sample_prior(PRIOR_DRAWS, rng)
    except PriorSamplingError:
        return Gaussian(np.zeros(target.dim), np.ones(target.dim))
    middle, width = median_and_width(x)
    return Gaussian(middle, np.maximum(width, 1e-6))
