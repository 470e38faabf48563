"""A digest of PyTensor graphs: the same in every process, and different if an operation, a type or a constant differs.

Every variable gets the digest of the operation that makes it and of the digests of its inputs (a Merkle tree), so that
names of intermediate results and the order of nodes do not matter. Operations that call Python code, or that neither
PyTensor nor PyMC define, are not identified by their parameters; a graph with one of them is opaque.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from types import FunctionType
from typing import Any

import numpy as np
from pytensor.compile.ops import FromFunctionOp
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op

from ppl_backends.targets.digest import digest
from ppl_backends.targets.pymc.graph import io_toposort

_KNOWN = ("pytensor", "pymc", "ppl_backends")
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.dtype, np.generic, Enum)


def digest_of_graphs(graphs: Mapping[str, Variable], inputs: Sequence[Variable]) -> tuple[str, bool]:
    """Return the digest of named graphs, and whether it covers everything that they compute."""
    reader = _Reader()
    outputs = reader.outputs(list(inputs), list(graphs.values()))
    return digest(*graphs, *outputs), not reader.opaque


def has_user_code(graphs: Sequence[Variable]) -> bool:
    """Return whether an operation calls Python code, or belongs neither to PyTensor nor to PyMC."""
    return any(_is_opaque(node.op) for node in io_toposort([], list(graphs)))


class _Reader:
    """Describe graphs, and record whether an operation is opaque."""

    def __init__(self) -> None:
        self.opaque = False

    def outputs(self, inputs: Sequence[Variable], outputs: Sequence[Variable]) -> list[str]:
        """Return the digest of every output."""
        known = {v: digest("input", str(place), str(v.type)) for place, v in enumerate(inputs)}

        def of(variable: Variable) -> str:
            if variable not in known:
                known[variable] = self._leaf(variable)
            return known[variable]

        for node in io_toposort(list(inputs), list(outputs)):
            made = [self._operation(node.op), *map(of, node.inputs)]
            for place, v in enumerate(node.outputs):
                known[v] = digest(*made, str(place), str(v.type))
        return [of(v) for v in outputs]

    def _leaf(self, variable: Variable) -> str:
        """Return the digest of a constant; an unknown variable makes the graph opaque."""
        if not isinstance(variable, Constant):
            self.opaque = True
            return digest("unknown", str(variable.type))
        if isinstance(variable.data, np.ndarray) and variable.data.dtype.kind != "O":
            return digest("constant", str(variable.type), variable.data)
        return digest("constant", str(variable.type), self._describe(variable.data))

    def _operation(self, op: Op) -> str:
        kind = type(op)
        if _is_opaque(op):
            self.opaque = True
        parts = [f"{kind.__module__}.{kind.__qualname__}"]
        inner = getattr(op, "fgraph", None)
        if isinstance(inner, FunctionGraph):
            parts += self.outputs(inner.inputs, inner.outputs)
        properties = getattr(op, "__props__", None)
        if properties is not None:
            parts += [f"{name}={self._describe(getattr(op, name))}" for name in properties]
        elif "info" in vars(op):  # Scan
            parts.append(self._describe(op.info))
        elif not isinstance(inner, FunctionGraph):
            parts.append(self._describe(vars(op)))
        return digest(*parts)

    def _describe(self, value: Any) -> str:
        """Return text that is the same in every process."""
        if isinstance(value, _PLAIN):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, np.ndarray) and value.dtype.kind != "O":
            return digest(value)
        if isinstance(value, Op):
            return self._operation(value)
        if isinstance(value, Variable):
            return self._leaf(value)
        if isinstance(value, type):
            return f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, slice):
            return f"slice {self._describe((value.start, value.stop, value.step))}"
        if isinstance(value, tuple | list):
            return f"{type(value).__name__}({', '.join(map(self._describe, value))})"
        if isinstance(value, set | frozenset):
            return f"set({', '.join(sorted(map(self._describe, value)))})"
        if isinstance(value, Mapping):
            items = [f"{self._describe(key)}: {self._describe(item)}" for key, item in value.items()]
            return f"mapping({', '.join(sorted(items))})"
        if dataclasses.is_dataclass(value):
            return f"{type(value).__qualname__}({self._describe(vars(value))})"
        text = str(value)
        if " at 0x" not in text:
            return text
        if isinstance(value, FunctionType) and _is_known(value) and value.__closure__ is None:
            return f"{value.__module__}.{value.__qualname__}"
        self.opaque = True
        return f"{type(value).__module__}.{type(value).__qualname__}"


def _is_opaque(op: Op) -> bool:
    return not _is_known(type(op)) or isinstance(op, FromFunctionOp)


def _is_known(defined: Any) -> bool:
    """Return whether a class or function belongs to PyTensor or PyMC."""
    return defined.__module__.split(".")[0] in _KNOWN
