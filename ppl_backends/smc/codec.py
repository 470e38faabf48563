"""Values as one file of arrays and JSON text, without code.

The file is an archive in the format of ``numpy.savez``: every array is a member, and a member ``value`` has JSON text
with the structure. Its last 64 bytes, the comment of the archive, are the SHA-256 of all bytes before them.
``numpy.load(path)`` opens it as well.

Values that can be written are None, booleans, numbers, text, tuples, lists, dicts with text as keys, numeric arrays,
NumPy's scalars and generators, and objects of the types that the caller names, field by field.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np

_VALUE = "value"
_CHECKSUM = 64  # bytes
_NUMERIC = "biufc"
_BIT_GENERATORS = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64, np.random.MT19937)
}


class DamagedError(ValueError):
    """Raised for bytes that :func:`pack` did not write, or that have changed since."""


def pack(value: Any, types: Iterable[type] = ()) -> bytes:
    """Return the bytes of a file that holds ``value``; ``types`` are dataclasses and tuples that may occur in it."""
    writer = _Writer({kind: kind.__name__ for kind in types})
    tree = json.dumps(writer.encode(value), allow_nan=False)
    file = io.BytesIO()
    members = {_VALUE: np.frombuffer(tree.encode(), np.uint8), **writer.arrays}
    with zipfile.ZipFile(file, "w") as archive:
        archive.comment = bytes(_CHECKSUM)
        for name, array in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    content = file.getvalue()[:-_CHECKSUM]
    return content + _checksum(content)


def unpack(content: bytes, types: Iterable[type] = ()) -> Any:
    """Return the value that :func:`pack` wrote.

    Nothing is read before the checksum matches (else DamagedError); a type not in ``types`` is a ValueError.
    """
    if _checksum(content[:-_CHECKSUM]) != content[-_CHECKSUM:]:
        raise DamagedError("its checksum does not match")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as members:
            tree = json.loads(members[_VALUE].tobytes())
            return _Reader({kind.__name__: kind for kind in types}, members).decode(tree)
    except (KeyError, TypeError, AttributeError, RecursionError, zipfile.BadZipFile) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


class _Writer:
    """Encode a value; an array that occurs several times is written once."""

    def __init__(self, names: dict[type, str]) -> None:
        self.names, self.arrays = names, dict[str, np.ndarray]()
        self._seen: dict[int, str] = {}

    def encode(self, value: Any) -> Any:
        """Return ``value`` as JSON, with a tag on everything that JSON lacks."""
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, np.ndarray):
            return {"array": self._keep(value)}
        if isinstance(value, np.generic):
            return {"scalar": self._keep(np.asarray(value))}
        if isinstance(value, int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value)}
        if type(value) is tuple:
            return {"tuple": [self.encode(item) for item in value]}
        if type(value) is list:
            return {"list": [self.encode(item) for item in value]}
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {"dict": self._fields(value)}
        if type(value) is np.random.Generator and type(value.bit_generator).__name__ in _BIT_GENERATORS:
            return {"generator": self.encode(dict(value.bit_generator.state))}
        if type(value) in self.names:
            return {"object": self.names[type(value)], "fields": self._fields(_stored(value))}
        raise TypeError(f"a value of type {type(value).__name__} cannot be written")

    def _fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: self.encode(value) for name, value in fields.items()}

    def _keep(self, array: np.ndarray) -> str:
        if array.dtype.kind not in _NUMERIC:
            raise TypeError(f"an array of type {array.dtype} cannot be written")
        name = self._seen.setdefault(id(array), f"array{len(self.arrays)}")
        self.arrays[name] = array  # the reference also keeps its id from being reused
        return name


def _is_record(kind: type) -> bool:
    """Return whether a class is itself a dataclass, not only a subclass of one."""
    return "__dataclass_fields__" in vars(kind)


def _stored(value: Any) -> dict[str, Any]:
    """Return the fields of an object; only the declared ones of a dataclass."""
    if isinstance(value, tuple):
        return value._asdict()  # type: ignore[attr-defined]
    own = vars(value)
    return {field.name: own[field.name] for field in fields(value)} if _is_record(type(value)) else own


class _Reader:
    """Decode a value."""

    def __init__(self, types: dict[str, type], members: Any) -> None:
        self.types, self.members = types, members
        self._arrays: dict[str, np.ndarray] = {}

    def decode(self, tree: Any) -> Any:
        """Return the value of a JSON tree."""
        if not isinstance(tree, dict):
            return tree
        (tag, content), *fields = tree.items()
        if tag == "array":
            return self._array(content)
        if tag == "scalar":
            return self._array(content)[()]
        if tag == "float":
            return float(content)
        if tag in ("tuple", "list"):
            return (tuple if tag == "tuple" else list)(self.decode(item) for item in content)
        if tag == "dict":
            return self._fields(content)
        if tag == "generator":
            state = self.decode(content)
            bits = _BIT_GENERATORS[state["bit_generator"]]()
            bits.state = state
            return np.random.Generator(bits)
        if tag == "object":
            return self._object(self.types[content], self._fields(dict(fields)["fields"]))
        raise KeyError(tag)

    def _object(self, kind: Any, fields: dict[str, Any]) -> Any:
        """Return an object with exactly these fields; a dataclass or named tuple refuses others."""
        if issubclass(kind, tuple) or _is_record(kind):
            return kind(**fields)
        made = object.__new__(kind)
        vars(made).update(fields)
        return made

    def _fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: self.decode(value) for name, value in fields.items()}

    def _array(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = self.members[name]
        return self._arrays[name]
