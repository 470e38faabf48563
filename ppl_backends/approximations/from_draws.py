"""A Gaussian fitted to posterior draws, whatever sampler they come from."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.errors import ModelError
from ppl_backends.numerics.gaussian import MAX_DENSE_DIM
from ppl_backends.options import checked
from ppl_backends.results.inference_data import group, inference_data
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["from_draws"]


@checked(idata=inference_data("posterior"))
def from_draws(idata: Any, model: Any = None, *, data: Any = None, **target_options: Any) -> GaussianApproximation:
    """The Gaussian with the mean and covariance of the draws of a posterior, on the unconstrained space.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        With a ``posterior``, of this package, ``pm.sample`` or Stan; its ``unconstrained_posterior`` is used where it
        has one.
    model : pymc.Model, Stan model or target, optional
        What the draws are of; takes them to the unconstrained space. Not needed with ``unconstrained_posterior``.
    data : dict or path, optional
        Data of a Stan model.
    **target_options
        Passed on to :func:`ppl_backends.as_target`.

    Returns
    -------
    GaussianApproximation
        Dense where there are more than two draws a coordinate, else diagonal.

    Raises
    ------
    ModelError
        If the draws are in model space and no model is given, or a coordinate does not vary.

    Examples
    --------
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
    names, x = _unconstrained_draws(idata, target)
    n, dim = x.shape
    sd = x.std(axis=0, ddof=1) if n > 1 else np.zeros(dim)
    if not (np.isfinite(sd) & (sd > 0)).all():
        stuck = names[int(np.argmin(np.where(np.isfinite(sd), sd, -1.0)))]
        raise ModelError(f"the {n} draws of {stuck} do not vary or are not finite: no Gaussian can be fitted to them")
    dense = n > 2 * dim and dim <= MAX_DENSE_DIM
    return GaussianApproximation(
        x.mean(axis=0), np.atleast_2d(np.cov(x.T)) if dense else sd**2, names=names, target=target, method="draws"
    )


def _unconstrained_draws(idata: Any, target: BaseTarget | None) -> tuple[tuple[str, ...], Array]:
    """Names and draws ``(n, dim)`` on the unconstrained space."""
    try:
        stored = group(idata, "unconstrained_posterior")
    except KeyError:
        stored = None
    if stored is not None and "x" in stored:
        values = stored["x"].values
        names = tuple(str(name) for name in stored["unconstrained_parameter"].values)
        return names, values.reshape(-1, values.shape[-1])
    if target is None:
        raise ModelError("the draws are in model space: give model=, which takes them to the unconstrained space")
    posterior = group(idata, "posterior")
    variables = {str(name): values.values for name, values in posterior.data_vars.items()}
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in variables.items()}
    return target.names, np.asarray(target.unconstrain(flat), dtype=np.float64)
