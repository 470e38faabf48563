"""Expected log predictive densities in the form that the installed ArviZ uses to compare models."""

from __future__ import annotations

from typing import Any

import xarray as xr

from ppl_backends.results.inference_data import ARVIZ_MAJOR
from ppl_backends.targets.protocol import BaseTarget

ONE_DENSITY = "a variable such as pm.AR has one density for its whole series; write its rows by lagged values"


def no_rows(target: BaseTarget) -> str:
    """Return the end of an error message about a target without observations: why there are none, and what to do."""
    if target.observed_data or not target.has_potentials:
        return ": the data have no rows"
    return ": the model has no observed variable: write a likelihood that is a Potential as pm.CustomDist"


def elpd_data(pointwise: xr.DataArray, pareto_k: xr.DataArray, p: float, n_samples: int, good_k: float) -> Any:
    """Return ``ELPDData`` of ArviZ with pointwise densities and Pareto k, on the log scale.

    The ``pareto_k`` may have further coordinates, such as the way each density was computed.
    """
    n = pointwise.size
    elpd, se = float(pointwise.sum()), float((n * pointwise.values.var()) ** 0.5) if n > 1 else float("nan")
    bad = bool((pareto_k > good_k).any())
    if ARVIZ_MAJOR == 0:
        from arviz.stats.stats_utils import ELPDData

        figures = {
            "elpd_loo": elpd,
            "se": se,
            "p_loo": p,
            "n_samples": n_samples,
            "n_data_points": n,
            "warning": bad,
            "loo_i": pointwise,
            "scale": "log",
            "pareto_k": pareto_k,
            "good_k": good_k,
        }
        return ELPDData(data=list(figures.values()), index=list(figures))
    from arviz_stats import utils

    kind = vars(utils).get("ELPDDataLOO")  # one class for all kinds before ArviZ 1.3
    figures = {"elpd": elpd, "se": se, "p": p, "n_samples": n_samples, "n_data_points": n, "scale": "log"}
    figures |= {"warning": bad, "good_k": good_k, "elpd_i": pointwise, "pareto_k": pareto_k}
    return utils.ELPDData(kind="loo", **figures) if kind is None else kind(**figures)
