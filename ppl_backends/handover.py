"""Hand-over to other samplers: starting values and mass matrices for ``pm.sample`` and nutpie.

Any approximation and any InferenceData (of importance sampling, SMC, or another sampler) serves::

    approx = pb.fit_laplace(model)
    with model:
        idata = pm.sample(step=nuts_for_pymc(approx, model), initvals=initvals_for_pymc(approx, model, chains=4))

    idata = nutpie.sample(nutpie.compile_pymc_model(model), **nutpie_options(approx, model))
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.approximations.from_draws import from_draws
from ppl_backends.errors import ModelError
from ppl_backends.options import checked
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.results.inference_data import group
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.protocol import Array, BaseTarget

__all__ = ["initvals_for_pymc", "nutpie_options", "nuts_for_pymc"]


@checked()
def initvals_for_pymc(source: Any, model: Any, chains: int = 4, random_seed: SeedLike = None) -> list[dict[str, Array]]:
    """Starting values of every chain for ``pm.sample(initvals=...)``: draws of an approximation or of a posterior.

    Parameters
    ----------
    source : approximation, arviz.InferenceData or xarray.DataTree
    model : pymc.Model
    chains : int
    random_seed : int or numpy.random.Generator, optional

    Returns
    -------
    list of dict
        Per chain the free variables in model space.

    Raises
    ------
    ModelError
        If there are fewer draws than chains, or the source is not of this model.
    """
    (rng,) = spawn_generators(random_seed, 1)
    free = [variable.name for variable in model.free_RVs]
    if _is_approximation(source):
        target = as_target(model)
        _check_dim(source, target)
        values = target.constrain(source.sample(chains, rng), rng)
    else:
        posterior = group(source, "posterior")
        missing = [name for name in free if name not in posterior]
        if missing:
            raise ModelError(f"the posterior has no draws of {missing[0]!r}: is it of this model?")
        flat = {name: posterior[name].values.reshape(-1, *posterior[name].shape[2:]) for name in free}
        n = posterior.sizes["chain"] * posterior.sizes["draw"]
        if n < chains:
            raise ModelError(f"{n} draws cannot start {chains} chains")
        chosen = rng.choice(n, size=chains, replace=False)
        values = {name: value[chosen] for name, value in flat.items()}
    return [{name: values[name][chain] for name in free} for chain in range(chains)]


def nuts_for_pymc(source: Any, model: Any, **options: Any) -> Any:
    """``pm.NUTS`` with the covariance of ``source`` as its inverse mass matrix; only its step size adapts.

    Parameters
    ----------
    source : approximation, arviz.InferenceData or xarray.DataTree
    model : pymc.Model
    **options
        Passed on to ``pm.NUTS``, e.g. ``target_accept``.

    Returns
    -------
    pymc.NUTS
        For ``pm.sample(step=...)``.
    """
    import pymc as pm

    approximation = _as_approximation(source, model)
    diagonal = getattr(approximation, "representation", "dense") == "diagonal"
    scaling = approximation.sd**2 if diagonal else approximation.cov
    return pm.NUTS(scaling=scaling, is_cov=True, model=model, **options)


def nutpie_options(source: Any, model: Any) -> dict[str, Any]:
    """Keyword arguments for ``nutpie.sample``: chains start around the mean of ``source``.

    nutpie takes no mass matrix; it adapts its own.

    Parameters
    ----------
    source : approximation, arviz.InferenceData or xarray.DataTree
    model : pymc.Model

    Returns
    -------
    dict
        ``init_mean`` ``(dim,)``.
    """
    return {"init_mean": np.asarray(_as_approximation(source, model).mean)}


def _is_approximation(source: Any) -> bool:
    return hasattr(source, "cov") and hasattr(source, "sample")


def _as_approximation(source: Any, model: Any) -> Any:
    """The approximation itself, or the Gaussian with the moments of the draws."""
    if not _is_approximation(source):
        return from_draws(source, model)
    _check_dim(source, as_target(model))
    return source


def _check_dim(approximation: Any, target: BaseTarget) -> None:
    if len(approximation.mean) != target.dim:
        raise ModelError(f"the approximation has {len(approximation.mean)} coordinates, the model has {target.dim}")
