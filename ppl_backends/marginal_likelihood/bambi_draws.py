"""Draws of a Bambi model as draws of the parameters that the model samples.

Bambi processes its draws: it moves intercepts back from centred predictors, and drops the offsets of non-centred group
effects. Both are undone here.
"""

from __future__ import annotations

from typing import Any

import xarray as xr

from ppl_backends.results.inference_data import as_inference_data, group, group_names
from ppl_backends.targets.convert import is_instance

_OFFSET = "_offset"


def sampled_draws(idata: Any, model: Any) -> Any:
    """Return draws with the intercepts and offsets that a Bambi model samples; other draws as they are."""
    processed = group(idata, "posterior")
    if not is_instance(model, "bambi", "Model") or processed.attrs.get("modeling_interface") != "bambi":
        return idata
    groups = {name: group(idata, name) for name in group_names(idata)}
    groups["posterior"] = _with_offsets(_with_own_intercepts(processed, model), model)
    return as_inference_data(groups)


def _with_own_intercepts(processed: xr.Dataset, model: Any) -> xr.Dataset:
    """Return draws with the intercepts that were sampled: Bambi's own function moves them again, as far as the first time."""
    again = as_inference_data({"posterior": processed.copy()})
    twice = group(model.backend._clean_results(again, False, False), "posterior")
    own = {str(name): 2.0 * processed[name] - twice[name] for name in twice.data_vars}
    return processed.assign({name: values.transpose(*processed[name].dims) for name, values in own.items()})


def _with_offsets(posterior: xr.Dataset, model: Any) -> xr.Dataset:
    """Add the offsets, which are effects in units of their standard deviation."""
    pymc = model.backend.model
    for variable in pymc.free_RVs:
        effect = variable.name.removesuffix(_OFFSET)
        if variable.name in posterior or not {effect, f"{effect}_sigma"} <= set(posterior.data_vars):
            continue
        offset = posterior[effect] / posterior[f"{effect}_sigma"]
        dims = pymc.named_vars_to_dims.get(variable.name, ())
        posterior = posterior.assign({variable.name: offset.transpose("chain", "draw", *dims)})
    return posterior
