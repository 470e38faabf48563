"""Targets are kept with their model, so that later calls use what earlier ones compiled.

A target is used again while the model is what it was when the target was made: the same variables, transforms and
coordinates, and the same values in its data and in the constants of its graph (PyTensor's constants share memory with
the arrays that they come from, which may be changed in place).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import cloudpickle
import numpy as np
import pymc as pm
from pytensor.graph.basic import Constant

from ppl_backends.targets.digest import digest
from ppl_backends.targets.pymc.graph import ancestors, data_values

Made = TypeVar("Made")
ATTRIBUTE = "_ppl_backends_targets"  # of the model: both are freed together


class _Kept(dict):
    """Pairs of a model's state and its target, by what made the target; a copy or pickle of the model has none."""

    def __reduce__(self) -> Any:
        return dict, ()

    def __deepcopy__(self, memo: dict) -> dict:
        return {}


def kept_target(model: pm.Model, make: Callable[..., Made], **options: Any) -> Made:
    """Return ``make(model, **options)``, or what it returned before where the model is still the same."""
    kept = vars(model).get(ATTRIBUTE)
    if not isinstance(kept, _Kept):
        kept = _Kept()
        setattr(model, ATTRIBUTE, kept)
    state, key = state_of(model), (make, *options.items())
    if key not in kept or kept[key][0] != state:
        kept[key] = (state, make(model, **options))
    return kept[key][1]


def state_of(model: pm.Model) -> tuple:
    """Return everything that a target of ``model`` takes from it, arrays as a digest."""
    variables = [*model.basic_RVs, *model.potentials, *model.deterministics, *model.rvs_to_values.values()]
    constants = [v.data for v in ancestors(variables) if isinstance(v, Constant)]
    arrays = [v if isinstance(v, np.ndarray) and not v.dtype.hasobject else cloudpickle.dumps(v) for v in constants]
    data = data_values(model)
    return (
        variables,
        list(model.rvs_to_transforms.values()),
        dict(model.coords),
        dict(model.named_vars_to_dims),
        list(data),
        digest(*arrays, *data.values()),
    )
