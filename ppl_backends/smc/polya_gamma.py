r"""Gibbs moves of regressions at every temperature.

A power of a binomial likelihood with logit link is again of this form with a fractional number of trials: t(s)^β =
exp(βys)/(1 + eˢ)^{βn}. Its latent variables are ω ~ PG(βn, s). So the Gibbs step of
:mod:`~ppl_backends.kernels.augmentation` leaves p(θ) L(θ)^β invariant at every β, without tuning. Negative binomial
and normal likelihoods have such variables too. Sites of the prior, such as Student sites, keep power one. A power of a
probit likelihood has no such variables.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.kernels.augmentation import Augmentation, Regression
from ppl_backends.kernels.augmented_sites import AUGMENTED, polya_gamma_sampler
from ppl_backends.kernels.protocol import Kernel, KernelInfo
from ppl_backends.targets.factors.proof import constant_and_error
from ppl_backends.targets.power import TOLERANCE
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation

_ELEMENTS = 4_000_000  # elements of the arrays for a block of particles
_STEP = "kernel='polya_gamma'"
_HALF = 0.5  # the power at which factors are checked


class TemperedPolyaGamma(Kernel):
    """Draw latent variables given θ, and θ given them, under p(θ) L(θ)^β.

    Parameters
    ----------
    target : BaseTarget
        A target with factors, without hyper-parameters.

    Raises
    ------
    ImportError
        If ``polyagamma`` is not installed.
    ModelError
        If the target has no factors, has hyper-parameters, or sites whose powers have no latent variables.
    """

    name = "polya_gamma"
    powers_of_likelihood: ClassVar[bool] = True
    largest_scale = 1.0
    stats = MappingProxyType({})

    def __init__(self, target: BaseTarget) -> None:
        super().__init__(balanced=False)
        polya_gamma_sampler()
        factors = target.factors
        if factors is None or not target.has_split:
            raise ModelError(f"{_STEP}: {target.label} has no known factors, or no prior of its own; use kernel='hmc'")
        if len(factors.hyper_names):
            names = ", ".join(factors.hyper_names)
            raise ModelError(f"{_STEP}: {target.label} has hyper-parameters ({names}); give them values, or use 'hmc'")
        self._factors, self._gibbs = factors.at(), Augmentation(scale_move=False)
        self._latest: tuple[float, Regression] | None = None
        self._at(_HALF)
        self._prove(target)

    def initial_scale(self, dim: int) -> float:
        return 1.0

    def step(self, rng: Any, population: Any, density: Any, parameters: Any) -> tuple[Any, KernelInfo]:
        regression, x = self._at(population.beta), population.x
        size = max(1, _ELEMENTS // max(1, x.shape[1] * len(regression.offset)))
        blocks = np.split(x, range(size, len(x), size))
        moved = density(np.concatenate([self._gibbs.draw(rng, regression, block) for block in blocks]), rng)
        ones, metric = np.ones(len(x)), parameters.metric
        jump = ((metric.whiten(moved.x) - metric.whiten(x)) ** 2).sum(axis=1)
        return moved, KernelInfo(ones, ones > 0, jump, ones, 0.0 * ones)

    def _at(self, beta: float) -> Regression:
        """Return the regression with its likelihood to the power β, which all particles of a stage share."""
        latest = self._latest  # chains in other threads may replace it
        if latest is None or latest[0] != beta:
            dim = self._factors.dim
            given = self._factors.tempered(beta)
            latest = beta, Regression(given, np.arange(dim), np.zeros(dim), tuple(AUGMENTED), _STEP)
            self._latest = latest
        return latest[1]

    def _prove(self, target: BaseTarget) -> None:
        """Check that the observed sites of the factors are the tempered likelihood; raise ModelError otherwise."""
        theta = 0.3 * np.random.default_rng(0).standard_normal((4, target.dim))
        parts = target.evaluate(theta)
        assert isinstance(parts, Evaluation)
        truth: Array = parts.log_prior + _HALF * parts.log_likelihood
        _, spread, error = constant_and_error(self._factors.tempered(_HALF), theta, truth, TOLERANCE)
        if not error <= 1:
            raise ModelError(
                f"{_STEP}: the factors raised to a power differ from the likelihood raised to it by {spread:.2g}; use 'hmc'"
            )
