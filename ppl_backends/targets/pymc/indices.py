"""Indices of a model's arrays: JAX replaces one that is out of bounds by the nearest element, and raises no error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor import subtensor

from ppl_backends.errors import ModelError
from ppl_backends.targets.pymc.graph import PYTHON_MODE, ModelGraph, ancestors, io_toposort, no_c_compiler, one_line

SELECTIONS = tuple(
    getattr(subtensor, name)
    for name in ("Subtensor", "AdvancedSubtensor", "AdvancedSubtensor1")
    if hasattr(subtensor, name)  # the last one is not in PyTensor 3
)


class Selection(NamedTuple):
    """A node that selects elements by constants or data, in the graph of the variable ``of``."""

    of: str
    node: Apply
    shape: tuple[int, ...]


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
                if node in seen or not isinstance(node.op, SELECTIONS):
                    continue
                seen.add(node)
                array, *indices = node.inputs
                shape: Any = getattr(array.type, "shape", (None,))
                if None not in shape and not any(v in moving for v in indices):
                    self._found.append(Selection(name, node, tuple(shape)))
        wanted = {v: None for selection in self._found for v in selection.node.inputs[1:] if not self._is_known(v)}
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
        _, *inputs = selection.node.inputs
        indices = [v.data if isinstance(v, Constant) else known[v] for v in inputs]
        array = np.broadcast_to(np.zeros((), dtype=selection.node.inputs[0].type.dtype), selection.shape)
        try:
            selection.node.op.perform(selection.node, [array, *indices], [[None]])
        except (IndexError, ValueError) as error:
            names = sorted({str(v.name) for v in ancestors(inputs) if v in self._data})
            by = f" (by the data {', '.join(map(repr, names))})" if names else ""
            raise ModelError(
                f"variable '{selection.of}' selects an element that does not exist{by}: {one_line(error)}; indices count "
                "from 0"
            ) from None
