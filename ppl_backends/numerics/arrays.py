"""Array types of the package, and arrays from what a user gives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError

Array = NDArray[np.float64]
Index = NDArray[np.intp]


def as_floats(name: str, value: Any) -> Array:
    """Return ``value`` as an array of floats; the error says which argument is not one. Numbers in text are none."""
    try:
        if (given := np.asarray(value)).dtype.kind in "US":
            raise TypeError
        return given.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        raise ModelError(f"{name}: expected an array of numbers, got {_kind(value)}") from None


def with_rows(name: str, held: Array, new: Array, axis: int = 0) -> Array:
    """Return data with new rows along an axis, if these have the shape of the old ones."""
    old_row, new_row = ((*array.shape[:axis], 1, *array.shape[axis + 1 :]) for array in (held, new))
    if not held.ndim or old_row != new_row:
        raise ModelError(
            f"new rows of '{name}' have shape {new.shape}, which does not fit its data of shape {held.shape}"
        )
    return np.concatenate([held, new], axis=axis)


def real_parts(value: Any) -> NDArray[Any]:
    """Return complex numbers with a last axis of real and imaginary part, as results have them; other values as an array."""
    array = np.asarray(value)
    return np.stack([array.real, array.imag], axis=-1) if np.iscomplexobj(array) else array


def for_kernels(value: Any) -> Array:
    """Return ``value`` as floats in C order that can be written, itself if it is so already.

    Numba compiles a function again for arrays of another order, and for arrays that cannot be written.
    """
    return np.require(value, np.float64, ["C", "W"])


def _kind(value: Any) -> str:
    """Return a few words on what is not an array of numbers."""
    if isinstance(value, str):
        return repr(value)
    try:
        dtype = np.asarray(value).dtype
    except ValueError:
        return "rows of unequal lengths"
    return "text" if dtype.kind in "US" else f"values of type {dtype}"
