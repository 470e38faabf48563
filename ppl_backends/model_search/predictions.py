"""Predictions averaged over models: the expected response at new rows of the design, from the draws of a search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, ndtr

from ppl_backends.errors import ModelError
from ppl_backends.model_search.forms import read_design
from ppl_backends.options import checked
from ppl_backends.results.inference_data import group, group_names, inference_data
from ppl_backends.smc.evidence import ess_of_means
from ppl_backends.targets.protocol import Array

_BLOCK = 2**22  # responses of draws at rows in memory at once
_RESPONSE: dict[str, Callable[[Array], Array]] = {
    "logit": expit,
    "probit": ndtr,
    "log": np.exp,
    "identity": lambda s: s,
}


class Prediction(NamedTuple):
    """Expected responses at new rows.

    Attributes
    ----------
    mean : ndarray (n,)
        Mean of the response: a probability, a rate, or a number.
    se : ndarray (n,)
        Monte Carlo standard error of ``mean``.
    sd : ndarray (n,)
        Standard deviation of the expected response over models and their coefficients, without the noise of a response.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.model_search import Prediction
    >>> p = Prediction(mean=np.array([0.8]), se=np.array([0.001]), sd=np.array([0.05]))
    >>> p.mean
    array([0.8])
    """

    mean: Array
    se: Array
    sd: Array


@checked(idata=inference_data("posterior", "selection"))
def predict(idata: Any, X: Any) -> Prediction:
    """Return expected responses at new rows, averaged over models and their coefficients.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of :func:`~ppl_backends.select_variables` with ``X`` and ``y``.
    X : array or data frame (n, p)
        Columns as in the search, including the intercept if it was a column there; those of a data frame are found by name.

    Returns
    -------
    Prediction

    Raises
    ------
    ModelError
        If the search was of a model, or columns are missing.

    Examples
    --------
    >>> import numpy as np
    >>> import ppl_backends as pb
    >>> rng = np.random.default_rng(1)
    >>> X = rng.standard_normal((100, 3))
    >>> y = X[:, 0] + rng.standard_normal(100) > 0
    >>> idata = pb.select_variables(X=X, y=y, random_seed=1, progressbar=False)
    >>> pb.model_search.predict(idata, [[2.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]).mean.round(1)
    array([1., 0.])
    """
    posterior = group(idata, "posterior")
    if "link" not in posterior.attrs:
        raise ModelError(
            "predict: the search was of a model; give the model new data and draw with pm.sample_posterior_predictive"
        )
    design = _columns(X, [str(name) for name in posterior["predictor"].values])
    beta = posterior["beta"].values
    chains, draws, _ = beta.shape
    level = posterior["intercept"].values if "intercept" in posterior else np.zeros((chains, draws))
    response = _RESPONSE[str(posterior.attrs["link"])]
    lineages = _lineages(idata, chains, draws)
    step = max(1, _BLOCK // (chains * draws))
    found = []
    for first in range(0, len(design), step):
        values = response(beta @ design[first : first + step].T + level[..., None])
        ess = ess_of_means(list(zip(values, lineages, strict=True)))
        variance = values.reshape(chains * draws, -1).var(axis=0)
        found.append(np.stack([values.mean(axis=(0, 1)), np.sqrt(variance / ess), np.sqrt(variance)]))
    return Prediction(*np.concatenate(found, axis=1)) if found else Prediction(*np.empty((3, 0)))


def _columns(X: Any, predictors: list[str]) -> Array:
    """Return the new design ``(n, p)``; columns of a data frame by name."""
    design, names = read_design(X)
    if names != tuple(f"x{j}" for j in range(len(names))):  # those of a data frame
        if missing := [name for name in predictors if name not in names]:
            raise ModelError(f"predict: X has no column {missing[0]!r}, which the search had")
        return design[:, [names.index(name) for name in predictors]]
    if design.shape[1] != len(predictors):
        raise ModelError(f"predict: X has {design.shape[1]} columns, the search had {len(predictors)}")
    return design


def _lineages(idata: Any, chains: int, draws: int) -> Array:
    """Return the initial particle of each draw ``(chains, draws)``; draws from an enumeration are independent."""
    if "sample_stats" in group_names(idata) and "ancestor" in group(idata, "sample_stats"):
        return np.asarray(group(idata, "sample_stats")["ancestor"].values)
    return np.tile(np.arange(draws), (chains, 1))
