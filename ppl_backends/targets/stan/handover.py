"""Hand-over to CmdStan: starting values and an inverse metric from any approximation or SMC result.

A fast approximation saves most of NUTS's warm-up::

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
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.results.inference_data import group
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.stan.data import nest_tuples
from ppl_backends.targets.stan.target import StanTarget

__all__ = ["cmdstan_inits", "cmdstan_metric"]

KINDS = ("dense_e", "diag_e")


def cmdstan_inits(source: Any, chains: int = 4, seed: SeedLike = None, target: StanTarget | None = None) -> list[dict]:
    """Starting values of every chain, for ``CmdStanModel.sample(inits=...)``.

    Parameters
    ----------
    source : approximation, arviz.InferenceData or xarray.DataTree
        Draws of the approximation, or draws of the posterior chosen at random.
    chains : int
    seed : int or numpy.random.Generator, optional
    target : StanTarget, optional
        The program; needed with InferenceData. That of the approximation by default.

    Returns
    -------
    list of dict
        Per chain, every parameter of the program in model space.

    Raises
    ------
    ModelError
        If there is no Stan program to speak of, or fewer draws than chains.
    """
    if chains < 1:
        raise ModelError(f"chains={chains}: expected an integer of at least 1")
    (rng,) = spawn_generators(seed, 1)
    target = _stan_target(source, target)
    if _is_approximation(source):
        points = source.sample(chains, rng)
    else:
        draws = _unconstrained(source, target)
        if len(draws) < chains:
            raise ModelError(f"{len(draws)} draws cannot start {chains} chains")
        points = draws[rng.choice(len(draws), size=chains, replace=False)]
    values, program = target.parameters(points), target.program
    each = [{name: array[chain] for name, array in values.items()} for chain in range(chains)]
    return [nest_tuples(own, program.info["parameters"]) if program else own for own in each]


def cmdstan_metric(source: Any, kind: str = "dense_e", target: StanTarget | None = None) -> dict[str, Array]:
    """The inverse metric: covariance, or variances, of the unconstrained parameters.

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
        If ``kind`` is neither, or the draws are too few for a covariance of full rank.
    """
    if kind not in KINDS:
        raise ModelError(f"kind={kind!r}: expected 'dense_e' or 'diag_e'")
    if _is_approximation(source):
        cov = np.asarray(source.cov)
    else:
        draws = _unconstrained(source, _stan_target(source, target))
        needed = draws.shape[1] + 1 if kind == "dense_e" else 2
        if len(draws) < needed:
            raise ModelError(f"{len(draws)} draws give no {kind} metric of {draws.shape[1]} parameters; use 'diag_e'")
        cov = np.atleast_2d(np.cov(draws, rowvar=False))
    return {"inv_metric": cov if kind == "dense_e" else np.diag(cov).copy()}


def _is_approximation(source: Any) -> bool:
    return hasattr(source, "sample") and hasattr(source, "cov")


def _stan_target(source: Any, target: StanTarget | None) -> StanTarget:
    found = target if target is not None else getattr(source, "target", None)
    if not isinstance(found, StanTarget):
        raise ModelError("hand-over to CmdStan needs the Stan program: pass target=pb.as_target('model.stan', data)")
    return found


def _unconstrained(idata: Any, target: StanTarget) -> Array:
    """All draws of the posterior as points ``(chains·draws, dim)``."""
    posterior = group(idata, "posterior")
    names = [name for name in target.parameter_names if name in posterior]
    n = posterior.sizes["chain"] * posterior.sizes["draw"]
    flat = {name: posterior[name].values.reshape(n, *posterior[name].shape[2:]) for name in names}
    return target.unconstrain(flat)
