"""Bambi as a host: fit a Bambi model by a method of this package and return what ``model.fit()`` returns.

Bambi samples ``model.backend.model``, a PyMC model, and then processes the posterior: it drops offsets of group
effects and the parameters of the likelihood, orders dims, and transforms the intercept back from the centred
predictors. Here :func:`ppl_backends.pymc.sample` draws, and the installed Bambi's own function for the model's class
processes the posterior. So names, dims and predictions are Bambi's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppl_backends.errors import ModelError
from ppl_backends.options import checked, flag, integer, none
from ppl_backends.pymc import KEYWORDS, METHOD, sample
from ppl_backends.targets.convert import is_instance

__all__ = ["fit"]


@checked(
    method=METHOD,
    chains=none | integer(1),
    tune=none | integer(0),
    omit_offsets=flag,
    include_response_params=flag,
    idata_kwargs=KEYWORDS,
)
def fit(
    model: Any,
    *,
    method: Any = "smc",
    draws: int = 1000,
    tune: int | None = None,
    chains: int | None = None,
    cores: int | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    omit_offsets: bool = True,
    include_response_params: bool = False,
    idata_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Fit a Bambi model by a method of this package; names, dims and coords are those of ``model.fit()``.

    Parameters
    ----------
    model : bambi.Model
        A Bambi model, an object of a subclass, or an object that holds a Bambi model as its ``model``, as ``hssm.HSSM``
        does. It is built if it has not been.
    method : str or Sampler
        ``"smc"``, ``"importance"``, ``"ep"``, ``"laplace"``, ``"vi"``, ``"inla"``, ``"mcmc"``, ``"ibis"``; or an
        object such as ``pb.pymc.SMC(kernel="hmc")``.
    draws : int
        Draws of each chain.
    tune : int, optional
        Number of tuning draws; only ``"mcmc"`` uses it.
    chains : int, optional
        The method's default number if not given; 4 for approximations.
    cores : int, optional
    random_seed : int, sequence of int or numpy.random.Generator, optional
    progressbar : bool
    omit_offsets : bool
        Whether to leave out the offsets of non-centred group effects, as Bambi does.
    include_response_params : bool
        Whether to compute and keep the parameters of the response, such as ``mu`` of every observation.
    idata_kwargs : dict, optional
        ``{"log_likelihood": True}`` for ``az.loo``.
    **options
        Further arguments of the method's own function.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        ``model.predict(idata)``, ``model.plot_priors`` and Bambi's ``interpret`` take it as they take Bambi's own.

    Raises
    ------
    ModelError
        If the model is not Bambi's, or the method does not apply to it.

    Examples
    --------
    >>> import bambi as bmb
    >>> import numpy as np
    >>> import pandas as pd
    >>> import ppl_backends as pb
    >>> x = np.linspace(-1, 1, 30)
    >>> model = bmb.Model("y ~ x", pd.DataFrame({"x": x + 5, "y": 2 * x + np.cos(9 * x)}))
    >>> idata = pb.bambi.fit(model, method="importance", draws=100, random_seed=1, progressbar=False)
    >>> sorted(idata["posterior"].data_vars)
    ['Intercept', 'sigma', 'x']
    """
    inner = bambi_model(model)
    if not inner.built:
        inner.build()
    idata = sample(
        inner.backend.model,
        method=method,
        draws=draws,
        tune=tune,
        chains=chains,
        cores=cores,
        random_seed=random_seed,
        progressbar=progressbar,
        var_names=_sampled_names(inner),
        idata_kwargs=idata_kwargs,
        **options,
    )
    inner.backend.fit = True
    idata = inner.backend._clean_results(idata, omit_offsets, include_response_params)
    return idata if inner is model else _kept_by(model, idata)


def bambi_model(model: Any) -> Any:
    """Return the Bambi model that an object is, or that it holds as its ``model``.

    Raises
    ------
    ModelError
        If it is neither.
    """
    for each in (model, getattr(model, "model", None)):
        if is_instance(each, "bambi", "Model"):
            return each
    raise ModelError(f"model is of type {type(model).__name__}: expected a bambi.Model, or an object that holds one")


def _kept_by(holder: Any, idata: Any) -> Any:
    """Let an object that holds a Bambi model clean and keep the draws, as HSSM does after its own ``sample``."""
    clean, keep = (getattr(holder, name, None) for name in ("_clean_posterior_group", "restore_traces"))
    if clean is not None:
        clean(idata)
    if keep is not None:
        keep(idata)
    return idata


def _sampled_names(model: Any) -> list[str]:
    """Return the variables that Bambi keeps: all but transformed ones and deterministic parameters of the likelihood."""
    pymc = model.backend.model
    likelihood = set(model.family.likelihood.params)
    deterministic = {variable.name for variable in pymc.deterministics}
    names = [variable.name for variable in (*pymc.free_RVs, *pymc.deterministics)]
    return [name for name in names if not (name in likelihood and name in deterministic)]
