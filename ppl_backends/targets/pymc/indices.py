"""Indices of a model's arrays: where one is out of bounds JAX reads the nearest element, sets none, and raises no error."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.scan.op import Scan
from pytensor.tensor import subtensor
from pytensor.tensor.basic import ScalarFromTensor
from pytensor.tensor.type import TensorType

from ppl_backends.errors import ModelError
from ppl_backends.targets.pymc.graph import PYTHON_MODE, ModelGraph, ancestors, io_toposort, no_c_compiler, one_line


def _operations(*names: str) -> tuple[type, ...]:
    return tuple(getattr(subtensor, name) for name in names if hasattr(subtensor, name))


READS = _operations("Subtensor", "AdvancedSubtensor", "AdvancedSubtensor1")  # the last one is not in PyTensor 3
WRITES = _operations("IncSubtensor", "AdvancedIncSubtensor", "AdvancedIncSubtensor1")


class Selection(NamedTuple):
    """Elements of an array that are read or set, in the graph of the variable ``of``.

    Attributes
    ----------
    of : str
    array : Variable
        Of known shape.
    kinds : sequence or None
        PyTensor's list of the kinds of indices.
    indices : list of Variable
        Functions of constants and data.
    by_step : list of bool
        Which of them have one row for each step of a loop.
    """

    of: str
    array: Variable
    kinds: Any
    indices: list[Variable]
    by_step: list[bool]


class Indices:
    """The selections of a graph whose indices do not depend on the point."""

    def __init__(self, graph: ModelGraph) -> None:
        self._data, self._found = list(graph.data), list[Selection]()
        named = {**graph.free, **graph.observed, **graph.potentials, **graph.constrained}
        moving, seen = {graph.point}, set[Apply]()
        for name, term in named.items():
            for node in io_toposort([], [term]):
                if any(v in moving for v in node.inputs):
                    moving.update(node.outputs)
                if node in seen:
                    continue
                seen.add(node)
                if isinstance(node.op, Scan):
                    self._found += _in_loop(name, node, moving)
                elif (found := _selection(name, node, moving)) is not None:
                    self._found.append(found)
        wanted = {v: None for selection in self._found for v in selection.indices if not self._is_known(v)}
        self._computed = list(wanted)
        self._compute = self._function(self._computed) if wanted else None

    def _is_known(self, index: Variable) -> bool:
        return isinstance(index, Constant) or index in self._data

    def _function(self, outputs: Sequence[Variable]) -> Any:
        with no_c_compiler():
            return pytensor.function(self._data, list(outputs), mode=PYTHON_MODE, on_unused_input="ignore")

    def check(self, values: Sequence[np.ndarray]) -> None:
        """Raise ModelError if an index is out of bounds with these values of the data."""
        known: dict[Variable, Any] = dict(zip(self._data, values, strict=True))
        if self._compute is not None:
            known |= dict(zip(self._computed, self._compute(*values), strict=True))
        for selection in self._found:
            self._check(selection, known)

    def _check(self, selection: Selection, known: Mapping[Variable, Any]) -> None:
        values = [v.data if isinstance(v, Constant) else known[v] for v in selection.indices]
        array = np.broadcast_to(np.zeros((), dtype=selection.array.type.dtype), selection.array.type.shape)
        try:
            for rows in _extremes(values, selection.by_step):
                array[subtensor.indices_from_subtensor(rows, selection.kinds)]
        except (IndexError, ValueError) as error:
            names = sorted({str(v.name) for v in ancestors(selection.indices) if v in self._data})
            by = f" (by the data {', '.join(map(repr, names))})" if names else ""
            raise ModelError(
                f"variable '{selection.of}' selects an element that does not exist{by}: {one_line(error)}; indices count "
                "from 0"
            ) from None


def _selection(name: str, node: Apply, moving: Collection[Variable]) -> Selection | None:
    """Return what a node selects; None if it is no selection, or if the point decides shape or indices."""
    first = 1 if isinstance(node.op, READS) else 2 if isinstance(node.op, WRITES) else 0
    array, indices = node.inputs[0], node.inputs[first:]
    if not first or None in getattr(array.type, "shape", (None,)) or any(v in moving for v in indices):
        return None
    return Selection(name, array, getattr(node.op, "idx_list", None), indices, [False] * len(indices))


def _in_loop(name: str, loop: Apply, moving: Collection[Variable]) -> Iterator[Selection]:
    """Yield the selections inside a loop, with the indices of all its steps."""
    op, n_steps = loop.op, loop.inputs[0]
    sequences = dict(zip(op.inner_seqs(op.inner_inputs), op.outer_seqs(loop.inputs), strict=True))
    others = dict(zip(op.inner_non_seqs(op.inner_inputs), op.outer_non_seqs(loop.inputs), strict=True))
    fixed = {inner: outer for inner, outer in {**sequences, **others}.items() if outer not in moving}
    if n_steps in moving:
        return
    outside = {inner: outer[:n_steps] if inner in sequences else outer for inner, outer in fixed.items()}
    inside = {v for v in op.inner_inputs if v not in fixed}
    for node in io_toposort(op.inner_inputs, op.inner_outputs):
        if any(v in inside for v in node.inputs):
            inside.update(node.outputs)
        found = _selection(name, node, inside)
        if found is None:
            continue
        indices = [_as_tensor(v) for v in found.indices]
        if all(isinstance(v.type, TensorType) for v in indices):
            by_step = [any(v in sequences for v in ancestors([index])) for index in indices]
            yield found._replace(indices=list(vectorize_graph(indices, outside)), by_step=by_step)


def _as_tensor(index: Variable) -> Variable:
    """Return the tensor that an index is an element of."""
    scalar = index.owner is not None and isinstance(index.owner.op, ScalarFromTensor)
    return index.owner.inputs[0] if scalar else index


def _extremes(values: Sequence[Any], by_step: Sequence[bool]) -> Iterator[list[Any]]:
    """Yield indices: as they are, or the smallest and the largest of all steps, which are out of bounds if any is."""
    if not any(by_step):
        yield list(values)
    elif all(np.size(value) for value in values):
        for extreme in (np.min, np.max):
            yield [extreme(value, axis=0) if by else value for value, by in zip(values, by_step, strict=True)]
