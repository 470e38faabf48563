"""Stan's flat column names and the arrays that they represent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array


class Variable(NamedTuple):
    """One variable of a program and the positions of its elements among the flat columns."""

    name: str  # an element of a tuple is named as Stan writes it, ``t.1``
    columns: NDArray[np.intp]
    imaginary: NDArray[np.intp] | None = None


def parse_names(names: Sequence[str], empty: Sequence[str] = ()) -> list[Variable]:
    """Return variables from flat names: ``beta.1``, ``z.2.1``, ``t:2.1`` (a tuple) and ``w.1.real`` (complex)."""
    entries: dict[str, dict[str, list[tuple[tuple[int, ...], int]]]] = {}
    for column, name in enumerate(names):
        base, index, part = _parse(name)
        entries.setdefault(base, {}).setdefault(part, []).append((index, column))
    variables = []
    for base, parts in entries.items():
        real = _grid(parts.get("real") or parts[""])
        variables.append(Variable(base, real, _grid(parts["imag"]) if "imag" in parts else None))
    for text in empty:
        base, *lengths = text.replace(":", ".").split()
        if base not in entries:
            variables.append(Variable(base, np.empty([int(length) for length in lengths], dtype=np.intp)))
    return variables


def _parse(name: str) -> tuple[str, tuple[int, ...], str]:
    """Return the base name (with tuple positions), zero-based index, and part of a complex number."""
    base, *tokens = re.split(r"(?=[.:])", name)
    index = []
    part = ""
    for token in tokens:
        if token[1:] in ("real", "imag"):
            part = token[1:]
        elif token[0] == ":":
            base += f".{token[1:]}"
        else:
            index.append(int(token[1:]) - 1)
    return base, tuple(index), part


def _grid(entries: list[tuple[tuple[int, ...], int]]) -> NDArray[np.intp]:
    """Return the columns at their index, in any order of the entries."""
    indices = np.array([index for index, _ in entries], dtype=np.intp).reshape(len(entries), -1)
    columns = np.array([column for _, column in entries], dtype=np.intp)
    if not indices.shape[1]:
        return columns[0, ...]
    grid = np.empty(indices.max(axis=0) + 1, dtype=np.intp)
    grid[tuple(indices.T)] = columns
    return grid


def collect(values: Array, variables: Sequence[Variable]) -> dict[str, NDArray[Any]]:
    """Return rows of flat values ``(n, columns)`` as name → ``(n, *shape)``."""
    collected: dict[str, NDArray[Any]] = {}
    for variable in variables:
        collected[variable.name] = values[:, variable.columns]
        if variable.imaginary is not None:
            collected[variable.name] = collected[variable.name] + 1j * values[:, variable.imaginary]
    return collected


def flatten(values: Mapping[str, Any], variables: Sequence[Variable]) -> Array:
    """Return the inverse of :func:`collect`: name → ``(n, *shape)`` to rows of flat values."""
    missing = [variable.name for variable in variables if variable.name not in values and variable.columns.size]
    if missing:
        raise ModelError(f"values for {', '.join(missing)} are missing; every parameter needs one")
    width = sum(variable.columns.size * (1 if variable.imaginary is None else 2) for variable in variables)
    arrays = {v.name: _shaped(v, values[v.name]) for v in variables if v.name in values}
    n = {len(array) for array in arrays.values()}
    if len(n) > 1:
        raise ModelError(f"the values hold different numbers of points: {sorted(n)}")
    flat = np.empty((n.pop() if n else 1, width))
    for variable in variables:
        if variable.columns.size:
            array = arrays[variable.name]
            flat[:, variable.columns] = array.real
            if variable.imaginary is not None:
                flat[:, variable.imaginary] = array.imag
    return flat


def _shaped(variable: Variable, value: Any) -> NDArray[Any]:
    """Return the value as ``(n, *shape)``; a single value without the leading axis is one point."""
    array, shape = np.asarray(value), variable.columns.shape
    if variable.imaginary is not None and array.dtype.kind != "c" and array.shape[-1:] == (2,):
        array = array[..., 0] + 1j * array[..., 1]  # the form in which results are stored
    if array.shape == shape:
        array = array[None]
    if array.shape[1:] != shape:
        raise ModelError(f"{variable.name} has shape {array.shape}; expected (n_points, {', '.join(map(str, shape))})")
    return array


def unconstrained_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return Stan's unconstrained names with this package's indices: ``beta.2`` becomes ``beta[1]``."""
    renamed = []
    for name in names:
        base, index, part = _parse(name)
        label = base + (f"[{','.join(map(str, index))}]" if index else "")
        renamed.append(label + (f".{part}" if part else ""))
    return tuple(renamed)
