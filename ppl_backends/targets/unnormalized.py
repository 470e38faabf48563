r"""Targets whose likelihood is known up to a constant Z(θ) that depends on the parameters.

The posterior is then p(θ) f(y | θ) / Z(θ), where f can be computed but Z cannot. Methods that evaluate a density raise
an error for such a target; methods that draw auxiliary data from the model (:mod:`ppl_backends.kernels.exchange`) can
use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.numerics.differences import central_differences
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation, JointEvaluation
from ppl_backends.targets.wrapped import WrappedTarget


def refusal(name: str) -> str:
    """Return why a method cannot use an unnormalised likelihood, and which methods can."""
    return (
        f"observed variable '{name}' is pb.Unnormalized: the normalising constant of its likelihood is not known, so there "
        "is no log density; use pb.steps.Exchange(), NoisyExchange(), MALAExchange(), NoisyMALAExchange() or "
        "NoisyLangevin() in pm.sample(step=...) or pb.sample_mcmc"
    )


class UnnormalizedLikelihood:
    """f(y | x) and a way to draw y from f(· | x) / Z(x), at points of the target's unconstrained space."""

    name: str
    exact: bool  # whether the draws are declared to follow the model exactly
    observed: NDArray  # the data, as a batch of one
    depends_on: NDArray[np.bool_]  # coordinates on which the likelihood depends

    def log_unnormalized(self, x: Array, data: NDArray) -> Array:
        """Return log f ``(n,)`` of ``n`` data sets at one point ``(dim,)``."""
        raise NotImplementedError

    def gradient(self, x: Array, data: NDArray) -> Array:
        """Return the gradient in x of log f, ``(n, dim)``; by central differences unless overridden."""
        return central_differences(lambda points: [self.log_unnormalized(x, data) for x in points], x[None])[0].T

    def simulate(self, x: Array, n: int, rng: np.random.Generator) -> NDArray:
        """Return ``n`` data sets ``(n, ...)`` from the model at ``x`` ``(dim,)``."""
        raise NotImplementedError


class UnnormalizedTarget(WrappedTarget):
    """A target with an unnormalised likelihood: it has every member except a log density."""

    has_split, is_prior, split_problem = True, False, None
    observed_data: Mapping[str, NDArray] = {}
    observations = likelihood_factors = log_likelihood_estimate = state_space = rest = None
    hessian, undefined, explain = BaseTarget.hessian, BaseTarget.undefined, BaseTarget.explain
    digests, tempered = BaseTarget.digests, BaseTarget.tempered
    pointwise_log_likelihood = BaseTarget.pointwise_log_likelihood
    with_fixed_batch_size = BaseTarget.with_fixed_batch_size
    with_data, append = BaseTarget.with_data, BaseTarget.append

    def __init__(self, tractable: BaseTarget, likelihood: UnnormalizedLikelihood) -> None:
        super().__init__(tractable)
        self.likelihood = likelihood
        self.observed_data = {**tractable.observed_data, likelihood.name: likelihood.observed[0]}

    @property
    def tractable(self) -> BaseTarget:
        """Return all terms except the unnormalised likelihood."""
        return self.target

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation | JointEvaluation:
        """Raise an error, because Z(θ) is not known."""
        raise ModelError(refusal(self.likelihood.name))

    @property
    def factors(self) -> Any:
        """Raise an error, because an unnormalised likelihood has no factors."""
        raise ModelError(refusal(self.likelihood.name))

    def simulate(self, x: Array, rng: np.random.Generator) -> NDArray:
        """Return one data set ``(n, ...)`` per point ``(n, dim)``."""
        return np.concatenate([self.likelihood.simulate(point, 1, rng) for point in np.atleast_2d(x)])


class CallableLikelihood(UnnormalizedLikelihood):
    """An unnormalised likelihood from plain functions of a point and a batch of data sets."""

    name = "y"

    def __init__(
        self,
        dim: int,
        log_unnormalized: Callable[[Array, NDArray], Array],
        simulate: Callable[[Array, int, np.random.Generator], NDArray],
        observed: Any,
        gradient: Callable[[Array, NDArray], Array] | None = None,
        exact: bool = False,
    ) -> None:
        self.exact, self.observed = bool(exact), np.asarray(observed)[None]
        self.depends_on = np.ones(dim, dtype=bool)
        self._log_unnormalized, self._simulate, self._gradient = log_unnormalized, simulate, gradient

    def log_unnormalized(self, x: Array, data: NDArray) -> Array:
        """Return the function's value; check its shape."""
        value = np.asarray(self._log_unnormalized(x, data), dtype=np.float64)
        if value.shape != (len(data),):
            raise ModelError(f"log_unnormalized returned shape {value.shape} for {len(data)} data sets; expected (n,)")
        return value

    def gradient(self, x: Array, data: NDArray) -> Array:
        """Return the function's gradient, or central differences without one; check its shape."""
        if self._gradient is None:
            return super().gradient(x, data)
        value = np.asarray(self._gradient(x, data), dtype=np.float64)
        if value.shape != (len(data), len(x)):
            raise ModelError(f"gradient returned shape {value.shape} for {len(data)} data sets; expected (n, {len(x)})")
        return value

    def simulate(self, x: Array, n: int, rng: np.random.Generator) -> NDArray:
        """Return the function's value; check its shape."""
        data = np.asarray(self._simulate(x, n, rng))
        return checked_draws(data, n, self.observed.shape[1:], self.name)


def checked_draws(data: NDArray, n: int, shape: tuple[int, ...], name: str) -> NDArray:
    """Return the simulator's draws, if there are ``n`` of the observed shape."""
    if data.shape != (n, *shape):
        expected = f"({n}, {', '.join(map(str, shape))})" if shape else f"({n},)"
        raise ModelError(
            f"the simulator of '{name}' returned shape {data.shape} for {n} data sets; expected {expected}"
        )
    return data
