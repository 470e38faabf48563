"""Targets from plain batched functions, for users with neither PyMC nor Stan and for tests with known answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.options import checked, function, integer, none
from ppl_backends.targets.protocol import (
    Array,
    BaseTarget,
    Evaluation,
    JointEvaluation,
    as_points,
    prior_draws,
    sanitize,
    undefined,
)
from ppl_backends.targets.starts import uniform_starts

DensityAndGradient = Callable[[Array], tuple[Array, Array]]


class FunctionTarget(BaseTarget):
    """A log density given as batched functions of points ``(n, dim)``.

    Parameters
    ----------
    dim : int
    log_likelihood : callable
        ``x -> (values (n,), gradients (n, dim))``; with no ``log_prior`` it is the joint log density.
    log_prior : callable, optional
        The same for the log prior. It separates prior and likelihood.
    sample_prior : callable, optional
        ``(n, rng) -> (n, dim)``.
    names : sequence of str, optional
    prior_from_uniform : callable, optional
        Points of the unit cube ``(n, dim)`` → draws of the prior ``(n, dim)``.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.targets import FunctionTarget
    >>> target = FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> target.log_density(np.ones((1, 2)))
    array([-1.])
    """

    label = "function target"

    @checked(
        dim=integer(1),
        log_likelihood=function("a function of points (n, dim)"),
        log_prior=none | function("a function of points (n, dim)"),
        sample_prior=none | function("a function of a number of draws and a generator"),
        prior_from_uniform=none | function("a function of points of the unit cube (n, dim)"),
    )
    def __init__(
        self,
        dim: int,
        log_likelihood: DensityAndGradient,
        log_prior: DensityAndGradient | None = None,
        sample_prior: Callable[[int, np.random.Generator], Array] | None = None,
        names: Sequence[str] | None = None,
        prior_from_uniform: Callable[[Array], Array] | None = None,
    ) -> None:
        self.dim = dim
        self.names = tuple(f"x[{j}]" for j in range(dim)) if names is None else tuple(names)
        if len(set(self.names)) != dim or len(self.names) != dim:
            raise ModelError(f"dim={dim} and {len(set(self.names))} different names; expected one for each coordinate")
        self.has_split = log_prior is not None
        self._log_likelihood, self._log_prior, self._sample_prior = log_likelihood, log_prior, sample_prior
        if prior_from_uniform is not None:
            self.n_uniforms, self._from_uniform = dim, prior_from_uniform
            self.prior_from_uniform = self._checked_from_uniform

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation | JointEvaluation:
        x = as_points(x, self.dim)
        value, slope = sanitize(*self._checked("log_likelihood", self._log_likelihood(x), len(x)))
        if self._log_prior is None:
            return JointEvaluation(value, slope if gradient else None)
        prior, prior_slope = self.evaluate_prior(x, gradient)
        return Evaluation(prior, value, prior_slope, slope if gradient else None)

    def evaluate_prior(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        """Return the log prior ``(n,)`` and its gradient ``(n, dim)``, or None."""
        if self._log_prior is None:
            raise ModelError(str(self.split_problem))
        value, slope = sanitize(*self._checked("log_prior", self._log_prior(x), len(x)))
        return value, slope if gradient else None

    def undefined(self, x: Array) -> NDArray[np.bool_]:
        """Return where a function gives NaN or +inf and none gives a density of zero ``(n,)``."""
        x = as_points(x, self.dim)
        functions = [self._log_likelihood] if self._log_prior is None else [self._log_prior, self._log_likelihood]
        return undefined(*(np.asarray(function(x)[0]) for function in functions))

    def _checked(self, name: str, found: tuple[Array, Array], n: int) -> tuple[Array, Array]:
        """Return the output of a function; check that it has a value and a gradient for every point."""
        shapes = tuple(np.shape(part) for part in found) if isinstance(found, (tuple, list)) else type(found).__name__
        if shapes != ((n,), (n, self.dim)):
            raise ModelError(
                f"{name} returned {shapes} for {n} points: expected a tuple of values and gradients, shapes ({n},) and "
                f"({n}, {self.dim})"
            )
        return np.asarray(found[0], dtype=np.float64), np.asarray(found[1], dtype=np.float64)

    def sample_prior(self, n: int, rng: np.random.Generator) -> Array:
        if self._sample_prior is None:
            return super().sample_prior(n, rng)
        return prior_draws(self, self._sample_prior(n, rng), n)

    def initial_points(self, n: int, rng: np.random.Generator) -> Array:
        return uniform_starts(self, n, rng)

    def _checked_from_uniform(self, u: Array) -> Array:
        return prior_draws(self, self._from_uniform(u), len(u))
