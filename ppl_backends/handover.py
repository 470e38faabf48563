"""Starting values and mass matrices for other samplers: ``pm.sample``, nutpie and CmdStan.

The source is any approximation or any InferenceData (of importance sampling, SMC, or another sampler)::

    approx = pb.fit_laplace(model)
    with model:
        idata = pm.sample(step=nuts_for_pymc(approx, model), initvals=initvals_for_pymc(approx, model, chains=4))

    idata = nutpie.sample(nutpie.compile_pymc_model(model), **nutpie_options(approx, model))

    approx = pb.fit_laplace("model.stan", data=data)
    fit = cmdstan_model.sample(
        data, inits=cmdstan_inits(approx), inv_metric=cmdstan_metric(approx), adapt_init_phase=0, iter_warmup=100
    )

With cmdstanpy before 1.3 the argument ``inv_metric`` is called ``metric``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.options import checked, choice, has_moments
from ppl_backends.options import seed as seed_option
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.results.inference_data import flat_draws, gaussian_of_draws, is_inference_data
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.protocol import Array, BaseTarget, Index
from ppl_backends.targets.stan import StanTarget
from ppl_backends.targets.stan.data import nest_tuples


@checked()
def initvals_for_pymc(source: Any, model: Any, chains: int = 4, random_seed: SeedLike = None) -> list[dict[str, Array]]:
    """Return starting values of every chain for ``pm.sample(initvals=...)``: draws of an approximation or of a posterior.

    Parameters
    ----------
    source : approximation, arviz.InferenceData or xarray.DataTree
    model : pymc.Model
    chains : int
    random_seed : int or numpy.random.Generator, optional

    Returns
    -------
    list of dict
        For each chain, the free variables in model space.

    Raises
    ------
    ModelError
        If there are fewer draws than chains, or the source is not of this model.

    Examples
    --------
    >>> import pymc as pm, ppl_backends as pb
    >>> from ppl_backends.handover import initvals_for_pymc
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     y = pm.Normal("y", mu, 1, observed=[0.3, 0.9, 1.4])
    >>> starts = initvals_for_pymc(pb.fit_laplace(model), model, chains=2, random_seed=1)
    >>> len(starts), starts[0]["mu"].shape
    (2, ())
    """
    (rng,) = spawn_generators(random_seed, 1)
    free = [variable.name for variable in model.free_RVs]
    if not is_inference_data(source):
        target = as_target(model)
        _check_dim(source, target)
        values = target.constrain(source.sample(chains, rng), rng)
    else:
        drawn = flat_draws(source, free)
        missing = [name for name in free if name not in drawn]
        if missing:
            raise ModelError(f"the posterior has no draws of {missing[0]!r}; give a posterior of this model")
        chosen = _chosen(len(drawn[free[0]]), chains, rng)
        values = {name: value[chosen] for name, value in drawn.items()}
    return [{name: values[name][chain] for name in free} for chain in range(chains)]


def nuts_for_pymc(source: Any, model: Any, **options: Any) -> Any:
    """Return ``pm.NUTS`` with the covariance of ``source`` as its inverse mass matrix; only its step size adapts.

    Parameters
    ----------
    source : approximation, arviz.InferenceData or xarray.DataTree
    model : pymc.Model
    **options
        Passed to ``pm.NUTS``, e.g. ``target_accept``.

    Returns
    -------
    pymc.NUTS
        Step for ``pm.sample(step=...)``.

    Examples
    --------
    >>> import pymc as pm, ppl_backends as pb
    >>> from ppl_backends.handover import nuts_for_pymc
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     y = pm.Normal("y", mu, 1, observed=[0.3, 0.9, 1.4])
    >>> step = nuts_for_pymc(pb.fit_laplace(model), model, target_accept=0.9)
    >>> type(step).__name__
    'NUTS'
    """
    import pymc as pm

    q = _gaussian(source, model)
    scaling = q.sd**2 if q.representation == "diagonal" else q.cov
    return pm.NUTS(scaling=scaling, is_cov=True, model=model, **options)


def nutpie_options(source: Any, model: Any) -> dict[str, Any]:
    """Return keyword arguments for ``nutpie.sample``: chains start around the mean of ``source``.

    nutpie takes no mass matrix; it adapts its own.

    Parameters
    ----------
    source : approximation, arviz.InferenceData or xarray.DataTree
    model : pymc.Model

    Returns
    -------
    dict
        ``init_mean`` ``(dim,)``.

    Examples
    --------
    >>> import pymc as pm, ppl_backends as pb
    >>> from ppl_backends.handover import nutpie_options
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     y = pm.Normal("y", mu, 1, observed=[0.3, 0.9, 1.4])
    >>> sorted(nutpie_options(pb.fit_laplace(model), model))
    ['init_mean']
    """
    return {"init_mean": np.asarray(_gaussian(source, model).mean)}


@checked(seed=seed_option)
def cmdstan_inits(source: Any, chains: int = 4, seed: SeedLike = None, target: StanTarget | None = None) -> list[dict]:
    """Return starting values of every chain, for ``CmdStanModel.sample(inits=...)``.

    Parameters
    ----------
    source : approximation, arviz.InferenceData or xarray.DataTree
        Draws are taken from the approximation, or chosen at random from the posterior's draws.
    chains : int
    seed : int or numpy.random.Generator, optional
    target : StanTarget, optional
        The program; needed with InferenceData. By default the program of the approximation.

    Returns
    -------
    list of dict
        For each chain, every parameter of the program in model space.

    Raises
    ------
    ModelError
        If no Stan program is given, or there are fewer draws than chains.

    Examples
    --------
    >>> q = pb.fit_laplace("model.stan", data="data.json")  # doctest: +SKIP
    >>> CmdStanModel(stan_file="model.stan").sample(data="data.json", inits=cmdstan_inits(q))  # doctest: +SKIP
    """
    (rng,) = spawn_generators(seed, 1)
    target = _stan_target(source, target)
    if not is_inference_data(source):
        points = source.sample(chains, rng)
    else:
        draws = target.unconstrain(flat_draws(source, target.parameter_names))
        points = draws[_chosen(len(draws), chains, rng)]
    values, program = target.parameters(points), target.program
    each = [{name: array[chain] for name, array in values.items()} for chain in range(chains)]
    return [nest_tuples(own, program.info["parameters"]) if program else own for own in each]


@checked(kind=choice("dense_e", "diag_e"))
def cmdstan_metric(source: Any, kind: str = "dense_e", target: StanTarget | None = None) -> dict[str, Array]:
    """Return the inverse metric: the covariance, or the variances, of the unconstrained parameters.

    Parameters
    ----------
    source : approximation, arviz.InferenceData or xarray.DataTree
    kind : {"dense_e", "diag_e"}
    target : StanTarget, optional
        The program; needed with InferenceData.

    Returns
    -------
    dict
        ``{"inv_metric": (dim, dim) or (dim,)}``.

    Raises
    ------
    ModelError
        If ``kind`` is unknown, or there are too few draws for a covariance of full rank.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.handover import cmdstan_metric
    >>> cmdstan_metric(pb.GaussianApproximation(np.zeros(2), np.diag([1.0, 4.0])), "diag_e")
    {'inv_metric': array([1., 4.])}
    """
    if not is_inference_data(source):
        cov = np.asarray(source.cov)
    else:
        target = _stan_target(source, target)
        draws = target.unconstrain(flat_draws(source, target.parameter_names))
        needed = draws.shape[1] + 1 if kind == "dense_e" else 2
        if len(draws) < needed:
            raise ModelError(
                f"{len(draws)} draws are too few for a {kind} metric of {draws.shape[1]} parameters; use 'diag_e'"
            )
        cov = np.atleast_2d(np.cov(draws, rowvar=False))
    return {"inv_metric": cov if kind == "dense_e" else np.diag(cov).copy()}


def _gaussian(source: Any, model: Any) -> Gaussian:
    """Return the Gaussian with the moments of an approximation, or of draws."""
    target = as_target(model)
    if is_inference_data(source):
        return gaussian_of_draws(source, target)[1]
    _check_dim(source, target)
    q: Gaussian | None = getattr(source, "gaussian", None)  # an object of another library has only moments
    return Gaussian.from_covariance(np.asarray(source.mean), np.asarray(source.cov)) if q is None else q


def _check_dim(approximation: Any, target: BaseTarget) -> None:
    if not has_moments(approximation):
        raise ModelError(f"{type(approximation).__name__}: expected an approximation or InferenceData")
    if len(approximation.mean) != target.dim:
        raise ModelError(f"the approximation has {len(approximation.mean)} coordinates, the model has {target.dim}")


def _stan_target(source: Any, target: StanTarget | None) -> StanTarget:
    found = source.target if target is None and not is_inference_data(source) else target
    if not isinstance(found, StanTarget):
        raise ModelError("hand-over to CmdStan needs the Stan program: pass target=pb.as_target('model.stan', data)")
    return found


def _chosen(n: int, chains: int, rng: np.random.Generator) -> Index:
    """Return indices of draws, chosen at random, from which chains start."""
    if n < chains:
        raise ModelError(f"{n} draws cannot start {chains} chains")
    return rng.choice(n, size=chains, replace=False)
