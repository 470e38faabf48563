"""Data drawn from a PyMC model, and the model on drawn data: its observed values are replaced without compilation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pymc.model.fgraph import clone_model
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.graph import (
    data_values,
    free_variables,
    no_c_compiler,
    observed_values,
    observed_variables,
)
from ppl_backends.targets.pymc.priors import random_function

SUFFIX = "__observed"


class PyMCPredictive:
    """Draws of the observed variables given the parameters, and the target with these as observed values."""

    def __init__(self, target: Any) -> None:
        self.names = tuple(rv.name for rv in observed_variables(target.model))
        if not self.names:
            raise ModelError(f"{target.label}: no variable is observed, so there are no data to draw")
        with no_c_compiler():
            self._model, self._shared = with_shared_observations(target.model, target._data)
            self._draw = self._function()
        self._target = target.of_model(self._model)
        if self._target.names != target.names:
            raise ModelError(
                f"{target.label}: a copy of it has other coordinates, so drawn data cannot replace the observed ones"
            )

    def _function(self) -> Any:
        free, observed = free_variables(self._model), observed_variables(self._model)
        inputs = [rv.type() for rv in free]
        known = {shared: pytensor.tensor.constant(value) for shared, value in data_values(self._model).items()}
        graphs = clone_replace(observed, {**dict(zip(free, inputs, strict=True)), **known}, rebuild_strict=False)
        self._dtypes = [rv.type.dtype for rv in free]
        return random_function(graphs, *inputs)

    def draw(self, x: Array, rng: np.random.Generator) -> dict[str, Array]:
        """Return a data set for each point ``(n, dim)``: name → ``(n, *shape)``."""
        values = self._target.constrain(x)
        parameters = [
            values[rv.name].astype(dtype) for rv, dtype in zip(free_variables(self._model), self._dtypes, strict=True)
        ]
        with np.errstate(all="ignore"), no_c_compiler():
            try:
                sets = [self._draw(rng, *(parameter[k] for parameter in parameters)) for k in range(len(x))]
            except NotImplementedError as error:
                raise ModelError(f"{self._target.label}: data cannot be drawn from the model ({error})") from None
        return {name: np.stack([each[k] for each in sets]) for k, name in enumerate(self.names)}

    def on(self, data: Mapping[str, Array]) -> Any:
        """Return the target with other observed values, of the same shapes."""
        return self._target.with_observations({self._shared[name]: value for name, value in data.items()}, data)


def with_shared_observations(model: pm.Model, data: Mapping[Any, Array]) -> tuple[pm.Model, dict[str, Variable]]:
    """Return a copy of a model whose observed values are shared variables, and these by name of the observed variable."""
    values = observed_values(model, dict(data))
    copy = clone_model(model)
    for kind in ("free_RVs", "observed_RVs", "potentials", "deterministics"):  # a copy has them in another order
        places = {variable.name: place for place, variable in enumerate(getattr(model, kind))}
        getattr(copy, kind).sort(key=lambda variable, places=places: places[variable.name])
    shared = {}
    for rv in observed_variables(copy):
        old = copy.rvs_to_values[rv]
        value = np.asarray(values[rv.name], dtype=old.type.dtype)
        new = shared[rv.name] = pytensor.shared(value, name=f"{rv.name}{SUFFIX}", shape=value.shape)
        copy.rvs_to_values[rv] = new
        copy.values_to_rvs.pop(old)
        copy.values_to_rvs[new] = rv
    return copy, shared
