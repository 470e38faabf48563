"""A block of a target's coordinates, with the others fixed at given values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ppl_backends.errors import PriorSamplingError
from ppl_backends.targets.digest import digest
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation, JointEvaluation, as_points
from ppl_backends.targets.wrapped import WrappedTarget


def _of_embedded(member: str) -> Any:
    """Return a method that calls the full target's at the embedded points."""

    def method(self: Any, x: Array, *arguments: Any) -> Any:
        return getattr(self.full, member)(self.embed(x), *arguments)

    return method


class ConditionalTarget(WrappedTarget):
    """The coordinates ``free`` of a target; the others have ``values`` ``(full.dim,)``, which change between steps."""

    full: Any = None
    free: Any = None
    others: Any = None
    point: Any = None
    names: tuple[str, ...] = ()
    dim: int = 0
    observations = factors = likelihood_factors = None
    is_prior = False
    stated_propriety = log_prior_normalizer = n_uniforms = prior_from_uniform = None
    simulate = log_likelihood_estimate = state_space = rest = None

    def __init__(self, full: BaseTarget, free: Any, values: Any) -> None:
        super().__init__(full)
        self.full, self.free = full, np.asarray(free, dtype=np.intp)
        self.others = np.setdiff1d(np.arange(full.dim), self.free)
        self.point = np.array(values, dtype=np.float64)
        self.dim = len(self.free)
        self.names = tuple(full.names[j] for j in self.free)

    def around(self, target: BaseTarget) -> ConditionalTarget:
        return ConditionalTarget(target, self.free, self.point)

    def set_others(self, point: Array) -> bool:
        moved = not np.array_equal(self.point[self.others], point[self.others])
        if moved:
            self.point[self.others] = point[self.others]
        return moved

    def embed(self, x: Array) -> Array:
        x = as_points(x, self.dim)
        full = np.tile(self.point, (len(x), 1))
        full[:, self.free] = x
        return full

    def _own(self, gradient: Array | None) -> Array | None:
        return None if gradient is None else gradient[:, self.free]

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation | JointEvaluation:
        found = self.full.evaluate(self.embed(x), gradient)
        if isinstance(found, JointEvaluation):
            return found._replace(gradient=self._own(found.gradient))
        return found._replace(
            log_prior_gradient=self._own(found.log_prior_gradient),
            log_likelihood_gradient=self._own(found.log_likelihood_gradient),
        )

    def evaluate_prior(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        value, slope = self.full.evaluate_prior(self.embed(x), gradient)
        return value, self._own(slope)

    def evaluate_potentials(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        value, slope = self.full.evaluate_potentials(self.embed(x), gradient)
        return value, self._own(slope)

    def hessian(self, x: Array, part: str = "joint") -> Array:
        whole: Array = self.full.hessian(self.embed(x), part)
        return whole[:, self.free[:, None], self.free]

    undefined, explain = _of_embedded("undefined"), _of_embedded("explain")
    constrain, pointwise_log_likelihood = _of_embedded("constrain"), _of_embedded("pointwise_log_likelihood")

    def unconstrain(self, values: Mapping[str, Array]) -> Array:
        return self.full.unconstrain(values)[:, self.free]

    def sample_prior(self, n: int, rng: np.random.Generator) -> Array:
        """Raise an error, because draws of the prior do not have the fixed values of the other coordinates."""
        raise PriorSamplingError(f"{self.label}: the prior of a block given the other coordinates cannot be sampled")

    def prior_target(self) -> None:
        """Return None."""

    def tempered(self, power: float) -> BaseTarget | None:
        found = self.full.tempered(power)
        return None if found is None else self.around(found)

    def initial_points(self, n: int, rng: np.random.Generator) -> Array:
        return self.full.initial_points(n, rng)[:, self.free]

    def digests(self) -> dict[str, str]:
        return {**self.full.digests(), "block": digest(self.free, self.point[self.others])}
