"""Draws of a posterior, whatever sampler they come from, on the unconstrained space."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.numerics.gaussian import MAX_DENSE_DIM, Gaussian
from ppl_backends.results.inference_data import group
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["gaussian_of_draws"]


def gaussian_of_draws(idata: Any, target: BaseTarget | None) -> tuple[tuple[str, ...], Gaussian]:
    """Return names of coordinates, and the Gaussian with the mean and covariance of the draws.

    Dense where there are more than two draws a coordinate, else diagonal.

    Raises
    ------
    ModelError
        If the draws are in model space and there is no target, or a coordinate does not vary.
    """
    names, x = _unconstrained_draws(idata, target)
    n, dim = x.shape
    sd = x.std(axis=0, ddof=1) if n > 1 else np.zeros(dim)
    if not (np.isfinite(sd) & (sd > 0)).all():
        stuck = names[int(np.argmin(np.where(np.isfinite(sd), sd, -1.0)))]
        raise ModelError(f"the {n} draws of {stuck} do not vary or are not finite: no Gaussian can be fitted to them")
    if n <= 2 * dim or dim > MAX_DENSE_DIM:
        return names, Gaussian(x.mean(axis=0), sd)
    try:
        return names, Gaussian.from_covariance(x.mean(axis=0), np.atleast_2d(np.cov(x.T)))
    except np.linalg.LinAlgError:
        raise ModelError(f"the covariance of the {n} draws is not positive definite") from None


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
