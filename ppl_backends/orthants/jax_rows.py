"""The compiled rows of :mod:`ppl_backends.orthants.batch` inside JAX programs on the CPU, with first derivatives.

XLA takes minutes to compile an estimate written in JAX, and runs it no faster. Programs call the compiled one through
XLA's foreign function interface: Numba compiles the handler, which reads XLA's call frame (``xla/ffi/api/c_api.h``) as
words of eight bytes. A callback into Python would also work, but with one core it can deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numba
import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from ppl_backends.orthants.batch import RowDerivatives
from ppl_backends.orthants.intervals import Array
from ppl_backends.orthants.row_kernels import compute_rows

WORDS, NUMBERS = types.CPointer(types.int64), types.CPointer(types.float64)
# Words of a call frame, of a buffer, and of the extension by which XLA requests the version of the interface.
EXTENSION, ARGUMENTS, RESULTS = 1, 9, 14
DATA, RANK, SIZES = 3, 4, 5
KIND, METADATA, VERSION = 1, 3, 3
ASKS_VERSION, VERSION_0_1 = 1, 1 << 32


def _pointer(kind: Any) -> Any:
    """Return the function that converts an address to a pointer."""

    @intrinsic
    def pointer(context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(kind))

        return kind(types.int64), generate

    return pointer


_words, _numbers = _pointer(WORDS), _pointer(NUMBERS)


@numba.njit
def _size(buffer):
    """Return rows, and variables of each, of a buffer ``(..., n, dim)``."""
    rank, sizes = buffer[RANK], _words(buffer[SIZES])
    rows = 1
    for k in range(rank - 1):
        rows *= sizes[k]
    return rows, sizes[rank - 1]


@numba.njit
def _array(buffers, k, shape):
    return carray(_numbers(_words(buffers[k])[DATA]), shape)


def in_jax(points: Array) -> Callable[..., RowDerivatives]:
    """Return the function in JAX of mean, factors and bounds of rows, at fixed points.

    ``log_p`` is differentiable once; second derivatives are NaN.
    """
    name, place = _registered(), _place_of(points.shape, points.tobytes())

    def call(*given: Any) -> RowDerivatives:
        (n, dim), kind = given[0].shape, given[0].dtype
        shapes = RowDerivatives((n,), (n, dim), (n, dim), (n, dim), (n, dim, dim))  # type: ignore[arg-type]
        results = [jax.ShapeDtypeStruct(shape, np.float64) for shape in shapes]
        rows = (x.astype(np.float64) for x in given)
        found = jax.ffi.ffi_call(name, results, vmap_method="broadcast_all")(*rows, place)
        return RowDerivatives(*(x.astype(kind) for x in found))

    @jax.custom_jvp
    def all_rows(mean: Any, cholesky: Any, lower: Any, upper: Any) -> RowDerivatives:
        return call(mean, cholesky, lower, upper)

    @all_rows.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        found, (mean, cholesky, lower, upper) = call(*primals), tangents
        change = (found.mean * mean + found.lower * lower + found.upper * upper).sum(axis=1)
        change = change + (found.cholesky * cholesky).sum(axis=(1, 2))
        unknown = [jnp.nan * x for x in (mean, lower, upper, cholesky)]  # of the derivatives, which must not be used
        return found, RowDerivatives(change, *unknown)

    return lambda *arguments: all_rows(*map(jnp.asarray, arguments))


@cache
def _registered() -> str:
    """Return the name under which the handler is registered with XLA."""

    @numba.cfunc(types.int64(WORDS), cache=True)
    def handler(frame):
        if frame[EXTENSION] != 0 and _words(frame[EXTENSION])[KIND] & 0xFFFFFFFF == ASKS_VERSION:
            _words(_words(frame[EXTENSION])[METADATA])[VERSION] = VERSION_0_1
            return 0
        given, found = _words(frame[ARGUMENTS]), _words(frame[RESULTS])
        n, dim = _size(_words(given[0]))
        mean, cholesky = _array(given, 0, (n, dim)), _array(given, 1, (n, dim, dim))
        lower, upper = _array(given, 2, (n, dim)), _array(given, 3, (n, dim))
        place = _words(_words(given[4])[DATA])
        points = carray(_numbers(place[0]), (place[1], place[2]))
        by_mean, by_lower, by_upper = _array(found, 1, (n, dim)), _array(found, 2, (n, dim)), _array(found, 3, (n, dim))
        by_cholesky = _array(found, 4, (n, dim, dim))
        by_mean[:], by_lower[:], by_upper[:], by_cholesky[:] = 0.0, 0.0, 0.0, 0.0
        log_p = _array(found, 0, (n,))
        compute_rows(mean, cholesky, lower, upper, points, log_p, by_mean, by_lower, by_upper, by_cholesky)
        return 0

    _KEPT.append(handler)
    jax.ffi.register_ffi_target("ppl_backends_log_rectangle", jax.ffi.pycapsule(handler.ctypes), platform="cpu")
    return "ppl_backends_log_rectangle"


@cache
def _place_of(shape: tuple[int, int], content: bytes) -> Array:
    """Return address and shape of points for the handler; ``vmap`` would copy an operand."""
    points = np.frombuffer(content).reshape(shape)
    _KEPT.append(points)
    return np.array([points.ctypes.data, *shape])


_KEPT: list[Any] = []  # XLA reads them until the process ends
