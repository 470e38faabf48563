"""An unnormalised target, or a block of one, for steps with auxiliary data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array, BaseTarget
from ppl_backends.targets.unnormalized import UnnormalizedTarget


class DoublyIntractable:
    """An unnormalised target, split into all tractable terms, and the unnormalised likelihood with its simulator.

    Parameters
    ----------
    target : UnnormalizedTarget, or a block of one
        A block must contain every coordinate that the unnormalised likelihood depends on.

    Attributes
    ----------
    dim : int
        Number of coordinates that move.
    exact : bool
        Whether the simulator is declared exact.
    """

    def __init__(self, target: BaseTarget) -> None:
        self._target, self._free, full = target, target.free, target.full
        if not isinstance(full, UnnormalizedTarget):
            raise ModelError(
                f"{full.label}: no observed variable is pb.Unnormalized; this step is for likelihoods whose normalising "
                "constant is not known"
            )
        self._tractable, self._likelihood = full.tractable, full.likelihood
        self.dim, self.exact = target.dim, bool(self._likelihood.exact)
        self.likelihood_name = self._likelihood.name
        missing = np.setdiff1d(np.flatnonzero(self._likelihood.depends_on), target.free)
        if missing.size:
            raise ModelError(
                f"'{self.likelihood_name}' depends on {', '.join(full.names[j] for j in missing)}: the step needs all "
                "variables of an unnormalised likelihood in its block, because other steps ignore its constant"
            )

    def _full(self, x: Array) -> Array:
        return self._target.embed(x[None])[0]

    def _mine(self, gradient: Array) -> Array:
        return gradient[..., self._free]

    def require_density(self, x: Array) -> None:
        """Raise ModelError if the tractable terms have density zero at the start."""
        if not np.isfinite(self.log_prior(x[None])[0]):
            said = self._tractable.explain(self._full(x))
            raise ModelError(f"{self._tractable.label}: the density is zero at the starting point; {said}".rstrip("; "))

    def require_gradient(self) -> None:
        """Raise ModelError if the tractable terms have no gradient."""
        if not self._tractable.has_gradient:
            raise ModelError(f"{self._tractable.label} has no gradient: use Exchange or NoisyExchange")

    def log_prior(self, x: Array) -> Array:
        """Return the log density ``(n,)`` of all tractable terms at points ``(n, dim)``."""
        return self._tractable.log_density(self._target.embed(x))

    def log_prior_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Return the log prior at one point and its gradient ``(dim,)``."""
        value, gradient = self._tractable.log_density_and_gradient(self._full(x)[None])
        return float(value[0]), self._mine(gradient[0])

    def simulate(self, x: Array, n: int, rng: np.random.Generator) -> NDArray:
        """Draw ``n`` data sets at ``x``."""
        return self._likelihood.simulate(self._full(x), n, rng)

    def log_likelihood_ratio(self, x: Array, t: Array, draws: NDArray) -> float:
        """Return log f(y|t)/f(y|x) · Z(x)/Z(t), with the mean of f(u|x)/f(u|t) over u from ``t`` for the second factor."""
        data = np.concatenate([self._likelihood.observed, draws])
        gain = self.log_f_difference(x, t, data)
        return float(gain[0] + np.logaddexp.reduce(-gain[1:]) - np.log(len(draws)))

    def log_f_difference(self, x: Array, t: Array, data: NDArray) -> Array:
        """Return log f(u|t) − log f(u|x) ``(n,)`` of data sets."""
        log_f = self._likelihood.log_unnormalized
        with np.errstate(invalid="ignore"):
            return np.asarray(log_f(self._full(t), data) - log_f(self._full(x), data))

    def observed_score(self, x: Array) -> Array:
        """Return ∇ log f(y | x) ``(dim,)``."""
        return self._mine(self._likelihood.gradient(self._full(x), self._likelihood.observed)[0])

    def mean_score(self, x: Array, draws: NDArray) -> Array:
        """Return the mean of ∇ log f(u | x) over the draws, an estimate of ∇ log Z(x): ``(dim,)``."""
        return self._mine(self._likelihood.gradient(self._full(x), draws).mean(axis=0))
