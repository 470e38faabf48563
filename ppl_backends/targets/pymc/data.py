"""Data of a PyMC model: checks of new values, and the dims and coordinates that follow from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pytensor.graph.basic import Variable

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.compile import CompiledGraph
from ppl_backends.targets.pymc.graph import PYTHON_MODE, DataValues, no_c_compiler


def check_lengths(compiled: CompiledGraph, data: DataValues, before: DataValues, start: Callable[[], Array]) -> None:
    """Raise ModelError if one row of new data would be repeated for the rows of other data, as XLA does in silence.

    PyTensor refuses this unless the model declares it.
    """
    one = [shared.name for shared, value in data.items() if 1 in value.shape and value.shape != before[shared].shape]
    if not one:
        return
    graph = compiled._dynamic
    with no_c_compiler():
        density = [graph.log_prior, graph.log_likelihood]
        function = pytensor.function([graph.point, *graph.data], density, mode=PYTHON_MODE, on_unused_input="ignore")
        try:
            function(start(), *data.values())
        except np.linalg.LinAlgError:
            pass
        except ValueError as error:
            names = ", ".join(map(repr, one))
            raise ModelError(f"the new data {names} have one row, and other data have more") from error


def checked_value(name: str, shared: Variable, value: Any) -> np.ndarray:
    """Return a new value of a data container in its type, if that holds the same numbers."""
    value = np.asarray(value)
    if value.ndim != shared.type.ndim:
        raise ModelError(f"new value of '{name}' has {value.ndim} dimensions; expected {shared.type.ndim}")
    if value.dtype.kind not in "biuf":
        raise ModelError(f"new value of '{name}' has type {value.dtype}; expected numbers, of type {shared.dtype}")
    with np.errstate(invalid="ignore"):
        converted = value.astype(shared.dtype)
    if converted.dtype.kind in "biu" and not np.array_equal(value, converted):
        kind = "booleans" if converted.dtype.kind == "b" else "integers"
        raise ModelError(f"new value of '{name}' is not of {kind}, as pm.Data('{name}') is")
    return converted


def resize_dims(model: pm.Model, data: dict[Variable, np.ndarray]) -> None:
    """Set the lengths of dims that are shared variables to the lengths of the data with those dims."""
    for container in model.data_vars:
        for axis, dim in enumerate(model.named_vars_to_dims.get(container.name, ())):
            length = model.dim_lengths.get(dim)
            if length in data:
                data[length] = np.asarray(data[container].shape[axis], dtype=length.dtype)


def coords_and_dims(model: pm.Model, data: DataValues) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return the coordinates and dims in ArviZ's form; a dim without values, or resized by data, counts from 0."""
    dims = {
        name: [f"{name}_dim_{axis}" if dim is None else dim for axis, dim in enumerate(names)]
        for name, names in model.named_vars_to_dims.items()
    }
    coords = {name: np.array(values) for name, values in model.coords.items() if values is not None}
    for container in model.data_vars:
        for axis, dim in enumerate(dims.get(container.name, ())):
            length = data[container].shape[axis]
            if dim not in coords or len(coords[dim]) != length:
                coords[dim] = np.arange(length)
    return coords, dims
