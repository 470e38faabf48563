"""A Gaussian fitted to posterior draws, whatever sampler they come from."""

from __future__ import annotations

from typing import Any

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.options import checked
from ppl_backends.results.draws import gaussian_of_draws
from ppl_backends.results.inference_data import inference_data

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
