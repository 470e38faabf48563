"""Data for Stan programs: read from JSON or a mapping, as JSON text or as packed arrays for a library's constructor."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.files import read_text

NUMBERS_AS_TEXT = {"NaN", "Inf", "+Inf", "-Inf", "Infinity", "+Infinity", "-Infinity"}
INT_RANGE = np.iinfo(np.int32)
MISSING = "Stan has no missing values: declare them as parameters, and pass the observed values alone"


def read_data(data: Any) -> dict[str, Any]:
    """Return data as a dict of numbers, nested lists, arrays, tuples: from a mapping, a path to JSON, or JSON text."""
    if data is None:
        return {}
    if isinstance(data, Mapping):
        for name in data:
            if not isinstance(name, str):
                raise ModelError(f"data= has the key {name!r}: expected the names of data variables, which are str")
        return dict(data)
    if not isinstance(data, str | os.PathLike):
        raise ModelError(f"data={type(data).__name__}: expected a dict, a path to a JSON file, or JSON text")
    text, source = str(data), "data"
    if not text.lstrip().startswith("{"):
        path = Path(data).expanduser()
        if not path.exists() or path.is_dir():  # a pipe is read as a file is
            raise ModelError(f"{path}: no such data file")
        text, source = read_text(path), str(path)
    try:
        content = json.loads(text, object_pairs_hook=_without_duplicates) if text.strip() else {}
    except json.JSONDecodeError as error:
        raise ModelError(f"{source}: not valid JSON: {error}") from None
    except _DuplicateName as error:
        raise ModelError(f"{source}: the name {str(error)!r} occurs twice in one JSON object") from None
    if not isinstance(content, dict):
        raise ModelError(f"{source}: expected a JSON object that maps variable names to values")
    return content


class _DuplicateName(Exception):
    """A name that occurs twice in a JSON object."""


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict, and raise an error if a name occurs twice, of which only the last would be kept."""
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise _DuplicateName(name)
        content[name] = value
    return content


def to_arrays(data: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return every data variable as an array of float64 or int32.

    A tuple becomes one entry for each element, named as in Stan's files (``t.1``, ``t.2``); complex numbers get a last
    axis of real and imaginary part.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, value in data.items():
        elements = _tuple_elements(value)
        if elements is None:
            arrays[name] = _numeric(name, value)
        else:
            arrays.update(to_arrays({f"{name}.{k + 1}": element for k, element in enumerate(elements)}))
    return arrays


def _tuple_elements(value: Any) -> list[Any] | None:
    """Return the elements of a tuple, or of an array of tuples (each with the array's axes first); else None."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):  # tuples in JSON
        keys = [str(k + 1) for k in range(len(value))]
        return [value[key] for key in keys] if set(keys) == set(value) else None
    if isinstance(value, list) and value:
        parts = [_tuple_elements(item) for item in value]
        if all(part is not None for part in parts):
            return [list(column) for column in zip(*parts, strict=True)]
    return None


def _numeric(name: str, value: Any) -> NDArray[Any]:
    """Return one variable as float64 or int32."""
    try:
        array = np.asarray(value)
        if array.dtype.kind in "OU":
            array = np.asarray(_numbers(value), dtype=np.float64)
    except (ValueError, TypeError):
        if _holds_none(value):
            raise ModelError(f"data variable {name!r} contains None; {MISSING}") from None
        raise ModelError(f"data variable {name!r} is not a rectangular array of numbers") from None
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    if array.dtype.kind in "biu":
        if array.size and (array.min() < INT_RANGE.min or array.max() > INT_RANGE.max):
            raise ModelError(f"data variable {name!r} holds an integer beyond Stan's 32 bits")
        return array.astype(np.int32)
    if array.dtype.kind != "f":
        raise ModelError(f"data variable {name!r} has type {array.dtype}, not numbers")
    return array.astype(np.float64)


def _holds_none(value: Any) -> bool:
    """Return whether nested lists contain None."""
    return value is None or (isinstance(value, list | tuple | np.ndarray) and any(map(_holds_none, value)))


def missing_values(data: Mapping[str, Any]) -> str:
    """Return which data variables contain NaN, and what to do about it; an empty text if there is none."""
    for name, array in to_arrays(data).items():
        n = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
        if n:
            return f"{n} of {array.size} values of data variable {name!r} are NaN; {MISSING}"
    return ""


def _numbers(value: Any) -> Any:
    """Return text such as ``"NaN"`` and ``"-Inf"``, which Stan's JSON allows, as numbers; None is refused by NumPy."""
    if isinstance(value, str) and value in NUMBERS_AS_TEXT:
        return float(value)
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        return [_numbers(item) for item in value]
    if isinstance(value, str) or value is None:
        raise ValueError(value)
    return value


def nest_tuples(values: Mapping[str, NDArray[Any]], declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return data in which entries ``t.1``, ``t.2`` are the tuple ``t``, or a list of tuples; see :func:`to_arrays`."""

    def value(name: str, declaration: Mapping[str, Any], index: tuple[int, ...]) -> Any:
        elements, axes = declaration["type"], declaration["dimensions"]
        if not isinstance(elements, list):
            return values[name][index]
        leaf = next(array for key, array in values.items() if key.startswith(f"{name}."))

        def rows(remaining: int, index: tuple[int, ...]) -> Any:
            if remaining:
                return [rows(remaining - 1, (*index, i)) for i in range(leaf.shape[len(index)])]
            return tuple(value(f"{name}.{k + 1}", element, index) for k, element in enumerate(elements))

        return rows(axes, index)

    return {name: value(name, declaration, ()) for name, declaration in declared.items()}


def to_json(data: Mapping[str, Any]) -> str:
    """Return the data as JSON text in Stan's format."""
    return json.dumps({name: _plain(value) for name, value in data.items()})


def _plain(value: Any) -> Any:
    """Return a form of the value that ``json`` writes as Stan expects."""
    if isinstance(value, tuple):
        return {str(k + 1): _plain(element) for k, element in enumerate(value)}
    if isinstance(value, Mapping):
        return {key: _plain(element) for key, element in value.items()}
    if isinstance(value, list):
        return [_plain(element) for element in value]
    array = np.asarray(value)
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], axis=-1)
    if array.dtype.kind == "b":
        array = array.astype(np.int64)
    return array.tolist()


class PackedData(NamedTuple):
    """Data variables end to end, in the format of ``pb_data_construct`` of ``shim.cpp``: reals first, then integers."""

    n_reals: int
    n_integers: int
    names: tuple[bytes, ...]
    ranks: NDArray[np.int32]
    dims: NDArray[np.int64]
    row_axes: NDArray[np.int32]
    reals: NDArray[np.float64]
    integers: NDArray[np.int32]


def pack(arrays: Mapping[str, NDArray[Any]], row_axes: Mapping[str, int] | None = None) -> PackedData:
    """Pack arrays; ``row_axes`` maps variables to their axis over the observations."""
    reals = {name: array for name, array in arrays.items() if array.dtype.kind == "f"}
    integers = {name: array for name, array in arrays.items() if array.dtype.kind == "i"}
    both = {**reals, **integers}
    axes = row_axes or {}
    return PackedData(
        len(reals),
        len(integers),
        tuple(name.encode() for name in both),
        np.array([array.ndim for array in both.values()], dtype=np.int32),
        np.array([length for array in both.values() for length in array.shape], dtype=np.int64),
        np.array([axes.get(name, -1) for name in both], dtype=np.int32),
        _column_major(reals, np.float64),
        _column_major(integers, np.int32),
    )


def _column_major(arrays: Mapping[str, NDArray[Any]], dtype: type) -> NDArray[Any]:
    flat = [array.ravel(order="F") for array in arrays.values()]
    return np.concatenate([np.empty(0, dtype), *flat]).astype(dtype)
