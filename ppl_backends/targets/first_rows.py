"""The posterior of only the first rows of the data, as a target."""

from __future__ import annotations

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.digest import digest
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation, sanitize
from ppl_backends.targets.wrapped import WrappedTarget


class FirstRows(WrappedTarget):
    """A target whose likelihood is that of its first ``n`` observations, and of its Potentials."""

    factors = likelihood_factors = latent_gaussian = observations = None
    simulate = state_space = rest = log_likelihood_estimate = None
    has_split = True

    def __init__(self, target: BaseTarget, n: int, has_gradient: bool = True) -> None:
        super().__init__(target)
        if target.observations is None:
            raise ModelError(f"{target.label}: the observations are not available one by one")
        self.n, self._has_gradient, self._rows = n, has_gradient, np.arange(n)

    @property
    def has_gradient(self) -> bool:  # type: ignore[override]
        """Return whether the target and its rows have gradients."""
        return self._has_gradient and self.target.has_gradient

    @property
    def label(self) -> str:  # type: ignore[override]
        """Return the label of the target with the number of rows."""
        return f"{self.target.label} (first {self.n} observations)"

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation:
        prior, prior_slope = self.target.evaluate_prior(x, gradient)
        value, slope = self.target.evaluate_potentials(x, gradient)
        observations = self.target.observations
        assert observations is not None
        if not self.n:
            return Evaluation(prior, value, prior_slope, slope)
        if gradient:
            rows, rows_slope = sanitize(*observations.sum(x, self._rows, gradient=True))
            assert slope is not None
            assert rows_slope is not None
            return Evaluation(prior, value + rows, prior_slope, slope + rows_slope)
        return Evaluation(prior, value + sanitize(observations.sum(x, self._rows))[0])

    def hessian(self, x: Array, part: str = "joint") -> Array:
        return BaseTarget.hessian(self, x, part)

    def tempered(self, power: float) -> None:
        """Return None: a power is handled as for any other target."""

    def digests(self) -> dict[str, str]:
        return {**self.target.digests(), "rows": digest(self.n)}
