"""Risks as PyTensor expressions of a PyMC model's variables, and Gibbs posteriors inside a PyMC model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from ppl_backends.errors import ModelError
from ppl_backends.targets.factors.sites import Array
from ppl_backends.targets.pymc.graph import no_c_compiler
from ppl_backends.targets.pymc.target import PyMCTarget

_NAME = "gibbs_risk__"


def gibbs_potential(losses: Any, learning_rate: Any, name: str = "gibbs") -> Any:
    """Turn the PyMC model on the context stack into a Gibbs posterior: a Potential −λ · mean(losses).

    Any sampler of PyMC then draws from the Gibbs posterior (samplers that use gradients need losses with gradients).
    The evidence of such a model is a pseudo-evidence.

    Parameters
    ----------
    losses : PyTensor expression
        One loss per observation, or per pair.
    learning_rate : float, or ``pm.Data``
        λ; a ``pm.Data`` can be changed without recompiling.
    name : str

    Returns
    -------
    PyTensor variable
        The Potential.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> X, y = np.array([[1.0, 0.5], [1.0, -0.3]]), np.array([1.0, -1.0])
    >>> with pm.Model() as model:
    ...     beta = pm.Normal("beta", 0, 1, shape=2)
    ...     _ = gibbs_potential(pm.math.maximum(0, 1 - y * (X @ beta)), learning_rate=10.0)
    >>> [v.name for v in model.potentials]
    ['gibbs']
    """
    losses = pt.as_tensor_variable(losses)
    return pm.Potential(name, -learning_rate * (losses.mean() if losses.ndim else losses))


class ExpressionRisk:
    """The mean of a PyTensor expression of a model's variables, compiled once for all λ.

    ``model`` has no likelihood and is not changed; ``n`` counts observations, the size of the expression by default.
    """

    def __init__(self, model: Any, losses: Any, n: int | None, options: dict[str, Any]) -> None:
        if not isinstance(model, pm.Model):
            raise ModelError("a PyTensor expression needs the pm.Model of its variables as the prior")
        if model.observed_RVs or model.potentials:
            names = ", ".join(repr(v.name) for v in [*model.observed_RVs, *model.potentials])
            raise ModelError(
                f"the prior has a likelihood or Potential, {names}: a Gibbs posterior has a loss in its place"
            )
        with model:
            term = gibbs_potential(losses, 1.0, _NAME)
        try:
            copy = pm.model.fgraph.clone_model(model)
        finally:
            model.potentials.remove(term)
            del model.named_vars[term.name]
        self.target = PyMCTarget(copy, **options)
        with no_c_compiler():
            self.n = int(n if n is not None else pm.draw(pt.as_tensor_variable(losses).size))
        self.has_gradient = self._slopes()

    def _slopes(self) -> bool:
        """Return whether the risk has a slope at points of its own; a mean of steps has none."""
        x = self.target.initial_points(8, np.random.default_rng(0))
        gradient = self.target.evaluate(x, gradient=True).log_likelihood_gradient
        return bool(np.any(gradient))

    def evaluate(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        """Return risk ``(k,)`` and its gradient ``(k, dim)``, or None."""
        parts = self.target.evaluate(x, gradient)
        slope = parts.log_likelihood_gradient
        return -parts.log_likelihood, None if slope is None else -slope
