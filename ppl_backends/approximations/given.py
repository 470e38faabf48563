"""Approximations that a caller gives: an object, possibly of another library, or draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.approximations.base import Approximation
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.errors import ModelError
from ppl_backends.options import checked
from ppl_backends.results.inference_data import gaussian_of_draws, inference_data
from ppl_backends.targets.protocol import Array, BaseTarget

_MEMBERS = ("from_uniform", "sample", "log_density", "log_density_and_gradient")


def as_approximation(given: Any, target: BaseTarget | None = None) -> Approximation:
    """Return an object that a caller gave, with the attributes of every approximation.

    An object of another library is used directly if it can be sampled and evaluated, else by its mean and covariance.
    """
    if target is not None and np.size(given.mean) != target.dim:
        raise ModelError(f"the approximation has {np.size(given.mean)} coordinates, {target.label} has {target.dim}")
    if isinstance(given, Approximation):
        return given
    if all(hasattr(given, member) for member in _MEMBERS):
        return GivenApproximation(given, target)
    return GaussianApproximation(given.mean, given.cov, target=target)


class GivenApproximation(Approximation):
    """An approximation of another library, with its own methods to sample and evaluate."""

    representation = "given"
    _given: Any

    def __init__(self, given: Any, target: BaseTarget | None = None) -> None:
        mean = np.asarray(given.mean, dtype=np.float64)
        vars(self).update(mean=mean, _given=given, **{member: getattr(given, member) for member in _MEMBERS})
        self._describe(len(mean), target=target, method=str(getattr(given, "method", type(given).__name__)))

    @property
    def cov(self) -> Array:
        return np.asarray(self._given.cov)


def is_poor_start(approximation: Any) -> bool:
    """Return whether samplers should not start here: at a Laplace approximation without mode, or with 2 KL(q ‖ p) > dim.

    An approximation that is only not ``converged`` is acceptable, because samplers correct their start.
    """
    if approximation.method != "laplace" or approximation.converged:
        return False
    return not approximation.diagnostics.get("distance", np.inf) <= 1.0


def no_mode_reason(approximation: Any) -> str:
    """Return a reason for distrust if an approximation is Laplace's without a mode, else an empty string.

    Even weights do not show that its points miss the posterior, as deep in the neck of a funnel.
    """
    if approximation.method != "laplace" or approximation.converged or "distance" in approximation.diagnostics:
        return ""
    return f"the points may be far from the posterior, because Laplace's method found no mode ({approximation.trouble})"


@checked(idata=inference_data("posterior"))
def from_draws(idata: Any, model: Any = None, *, data: Any = None, **target_options: Any) -> GaussianApproximation:
    """Return the Gaussian with the mean and covariance of the draws of a posterior, on the unconstrained space.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        A result with a ``posterior``, of this package, ``pm.sample`` or Stan; its ``unconstrained_posterior`` is used if it
        has one.
    model : pymc.Model, Stan model or target, optional
        The model of the draws, which maps them to the unconstrained space. Not needed with ``unconstrained_posterior``.
    data : dict or path, optional
        Data of a Stan model.
    **target_options
        Passed to :func:`ppl_backends.as_target`.

    Returns
    -------
    GaussianApproximation
        Dense if there are more than two draws per coordinate, else diagonal.

    Raises
    ------
    ModelError
        If the draws are in model space and no model is given, or a coordinate does not vary.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.targets import FunctionTarget
    >>> q = GaussianApproximation([1.0, 2.0], np.eye(2))
    >>> refitted = from_draws(q.to_inference_data(draws=4000, random_seed=1), FunctionTarget(2, lambda x: None))
    >>> refitted.mean.round(1)
    array([1., 2.])
    """
    target = None
    if model is not None:
        from ppl_backends.targets.convert import as_target

        target = as_target(model, data, **target_options)
    names, q = gaussian_of_draws(idata, target)
    return GaussianApproximation(q.mean, cholesky=q.factor, names=names, target=target, method="draws")
