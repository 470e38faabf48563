"""Python's interface to a compiled Stan program: it opens the library and evaluates many points in one call.

Two kinds of library are opened. Those built by :mod:`ppl_backends.targets.stan.build` have entry points for batches
(``pb_*`` in ``shim.cpp``), which run on several threads without the interpreter's lock. Any other library with
BridgeStan's C interface, 2.x, works as well, one point after the other.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Mapping
from ctypes import byref, c_bool, c_char_p, c_int, c_int64, c_uint, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array, sanitize
from ppl_backends.targets.stan.data import MISSING, PackedData, pack, to_arrays, to_json
from ppl_backends.targets.stan.variables import Variable, parse_names

logger = logging.getLogger("ppl_backends.stan")

SEED = 1234  # of random numbers in transformed data; BridgeStan's default

_BRIDGESTAN: dict[str, tuple[Any, list[Any]]] = {
    "bs_model_construct": (c_void_p, [c_char_p, c_uint, c_void_p]),
    "bs_model_destruct": (None, [c_void_p]),
    "bs_free_error_msg": (None, [c_void_p]),
    "bs_name": (c_char_p, [c_void_p]),
    "bs_param_names": (c_char_p, [c_void_p, c_bool, c_bool]),
    "bs_param_unc_names": (c_char_p, [c_void_p]),
    "bs_param_num": (c_int, [c_void_p, c_bool, c_bool]),
    "bs_param_unc_num": (c_int, [c_void_p]),
    "bs_param_constrain": (c_int, [c_void_p, c_bool, c_bool, c_void_p, c_void_p, c_void_p, c_void_p]),
    "bs_param_unconstrain": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "bs_log_density": (c_int, [c_void_p, c_bool, c_bool, c_void_p, c_void_p, c_void_p]),
    "bs_log_density_gradient": (c_int, [c_void_p, c_bool, c_bool, c_void_p, c_void_p, c_void_p, c_void_p]),
    "bs_log_density_hessian": (c_int, [c_void_p, c_bool, c_bool, *[c_void_p] * 5]),
    "bs_rng_construct": (c_void_p, [c_uint, c_void_p]),
    "bs_rng_destruct": (None, [c_void_p]),
}
_BATCHED: dict[str, tuple[Any, list[Any]]] = {
    "pb_evaluate": (c_int, [c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_void_p]),
    "pb_evaluate_point": (c_int, [c_void_p, c_bool]),
    "pb_constrain": (c_int, [c_void_p, c_int64, c_void_p, c_bool, c_bool, c_void_p, c_void_p, c_int, *[c_void_p] * 2]),
    "pb_unconstrain": (c_int, [c_void_p, c_int64, c_void_p, c_void_p, c_int, c_void_p, c_void_p]),
    "pb_hessian": (c_int, [c_void_p, c_int64, c_void_p, c_void_p, c_int, c_void_p, c_void_p]),
    "pb_empty_variables": (c_char_p, [c_void_p, c_bool, c_bool]),
    "pb_data_construct": (c_void_p, [c_int, c_int, *[c_void_p] * 6, c_char_p, c_void_p]),
    "pb_data_destruct": (None, [c_void_p]),
    "pb_model_construct": (c_void_p, [c_void_p, c_void_p, c_int64, c_uint, c_void_p, c_void_p]),
    "pb_evaluate_sets": (
        c_int,
        [c_void_p, c_uint, c_int64, *[c_void_p] * 4, c_int64, *[c_void_p] * 3, c_int, c_void_p, c_void_p],
    ),
}


@cache
def open_library(path: str) -> ctypes.CDLL:
    """Return the library with the signatures of its functions declared."""
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be loaded as a library: {error}") from None
    try:
        version = c_int.in_dll(library, "bs_major_version").value
        for name, (result, arguments) in _BRIDGESTAN.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (AttributeError, ValueError) as error:
        raise ModelError(f"{path}: not a library with BridgeStan's interface ({error})") from None
    if version != 2:
        raise ModelError(f"{path}: built for BridgeStan {version}; version 2 is needed, so rebuild it")
    if hasattr(library, "pb_evaluate"):
        for name, (result, arguments) in _BATCHED.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    return library


def open_model(path: str | os.PathLike[str], data: Mapping[str, Any], label: str) -> CompiledModel:
    """Return the model of a library on some data, batched if the library allows it."""
    library = open_library(str(Path(path).resolve()))
    if hasattr(library, "pb_evaluate"):
        return RowData(library, to_arrays(data), label).model()
    return CompiledModel.from_json(library, data, label)


class CompiledModel:
    """A model of a library with BridgeStan's interface, evaluated one point after the other."""

    def __init__(self, library: ctypes.CDLL, handle: int, label: str) -> None:
        self.library, self._handle, self.label = library, handle, label
        self.dim: int = library.bs_param_unc_num(handle)
        self.names = _words(library.bs_param_unc_names(handle))
        self.parameters = self._variables(False)
        self.variables = self._variables(True)
        self._widths = {everything: library.bs_param_num(handle, everything, everything) for everything in (0, 1)}
        self.messages: deque[str] = deque(maxlen=10)
        self._lock = threading.Lock()  # a library built without STAN_THREADS has one autodiff tape for all threads

    @classmethod
    def from_json(cls, library: ctypes.CDLL, data: Mapping[str, Any], label: str) -> CompiledModel:
        """Return the model on data passed as JSON."""
        error = c_void_p()
        handle = library.bs_model_construct(to_json(data).encode(), SEED, byref(error))
        return cls(library, _constructed(library, handle, error, label, data), label)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.library.bs_model_destruct(self._handle)

    def _variables(self, everything: bool) -> list[Variable]:
        return parse_names(_words(self.library.bs_param_names(self._handle, everything, everything)))

    def _each(self, function: str, flags: tuple, *arrays: Array, seeds: NDArray[np.uint32] | None = None) -> int:
        """Run a function of one point on every row of the arrays; return how many were refused."""
        call, refused = getattr(self.library, function), 0
        for i in range(len(arrays[0])):
            error = c_void_p()
            rng = () if seeds is None else (self.library.bs_rng_construct(int(seeds[i]), None),)
            with self._lock:
                status = call(self._handle, *flags, *_rows(i, *arrays), *rng, byref(error))
            for each in rng:
                self.library.bs_rng_destruct(each)
            if status:
                refused += 1
                self.messages.append(_take(self.library, error.value) if error.value else "no message")
        return refused

    def evaluate(self, x: Array, gradient: bool, threads: int) -> tuple[Array, Array | None]:
        """Return log density ``(n,)`` and gradient ``(n, dim)``; -inf and zeros if the program throws.

        A gradient that is not finite becomes zeros, and its log density stays.
        """
        x, value, slope = np.ascontiguousarray(x), np.full(len(x), -np.inf), np.zeros_like(x, order="C")
        if not gradient:
            self._each("bs_log_density", (False, True), x, value)
            return sanitize(value)
        self._each("bs_log_density_gradient", (False, True), x, value, slope)
        return sanitize(value, slope)

    def evaluate_without_jacobian(self, x: Array, gradient: bool) -> tuple[Array, Array | None]:
        """Return the log density of the parameters in model space ``(n,)``, and its gradient in ``x``, point by point."""
        x, value, slope = np.ascontiguousarray(x), np.full(len(x), -np.inf), np.zeros_like(x, order="C")
        if gradient:
            self._each("bs_log_density_gradient", (False, False), x, value, slope)
        else:
            self._each("bs_log_density", (False, False), x, value)
        return sanitize(value, slope if gradient else None)

    def constrain(self, x: Array, seeds: NDArray[np.uint32], everything: bool, threads: int) -> tuple[Array, int]:
        """Return flat values ``(n, columns)``, NaN if the program throws, and the number of such points."""
        x, values = np.ascontiguousarray(x), np.full((len(x), self._widths[everything]), np.nan)
        return values, self._constrain(x, values, seeds, everything, threads)

    def parameter_values(self, x: Array, threads: int = 1) -> Array:
        """Return flat values of the parameters ``(n, columns)``, NaN if the program throws."""
        return self.constrain(x, np.zeros(len(x), dtype=np.uint32), False, threads)[0]

    def _constrain(self, x: Array, values: Array, seeds: NDArray[np.uint32], everything: bool, threads: int) -> int:
        return self._each("bs_param_constrain", (everything, everything), x, values, seeds=seeds)

    def unconstrain(self, values: Array, threads: int) -> Array:
        """Return points ``(n, dim)`` from flat values of the parameters."""
        values, x = np.ascontiguousarray(values), np.empty((len(values), self.dim))
        refused = self._unconstrain(values, x, threads)
        if refused:
            raise ModelError(f"{self.label}: {refused} of {len(x)} points cannot be unconstrained: {self.messages[-1]}")
        return x

    def _unconstrain(self, values: Array, x: Array, threads: int) -> int:
        return self._each("bs_param_unconstrain", (), values, x)

    def hessian(self, x: Array, threads: int) -> Array:
        """Return the Hessian of the log density ``(n, dim, dim)``; NaN if the program throws."""
        x, hessian = np.ascontiguousarray(x), np.full((len(x), self.dim, self.dim), np.nan)
        self._hessian(x, hessian, threads)
        return 0.5 * (hessian + np.swapaxes(hessian, 1, 2))

    def _hessian(self, x: Array, hessian: Array, threads: int) -> None:
        self._each("bs_log_density_hessian", (False, True), x, np.empty(len(x)), np.empty_like(x), hessian)


class BatchedModel(CompiledModel):
    """A model of a library with our batched entry points; see :class:`CompiledModel`."""

    def __init__(self, library: ctypes.CDLL, handle: int, label: str) -> None:
        super().__init__(library, handle, label)
        self._scratch = _Scratch(handle, self.dim)
        self._evaluate_point = self.library.pb_evaluate_point

    def _variables(self, everything: bool) -> list[Variable]:
        names = _words(self.library.bs_param_names(self._handle, everything, everything))
        return parse_names(names, _words(self.library.pb_empty_variables(self._handle, everything, everything)))

    def evaluate(self, x: Array, gradient: bool, threads: int) -> tuple[Array, Array | None]:
        if len(x) == 1:
            return self._evaluate_one(x, gradient, threads)
        x, value = np.ascontiguousarray(x), np.empty(len(x))
        slope = np.empty_like(x) if gradient else None
        self._call("pb_evaluate", len(x), _address(x), _address(value), _address(slope), threads)
        return value, slope

    def _evaluate_one(self, x: Array, gradient: bool, threads: int) -> tuple[Array, Array | None]:
        """Return one point by buffers with known addresses, because the overhead of a call matters here."""
        own = self._scratch
        own.x[:] = x
        point = own.point
        point.threads = threads
        if self._evaluate_point(own.address, gradient) or point.printed:
            self._note(point.error, point.printed)
            point.error = point.printed = None
        return own.value.copy(), own.slope.copy() if gradient else None

    def _constrain(self, x: Array, values: Array, seeds: NDArray[np.uint32], everything: bool, threads: int) -> int:
        seeds = np.ascontiguousarray(seeds, dtype=np.uint32)
        inputs = (len(x), _address(x), everything, everything, _address(seeds))
        return self._call("pb_constrain", *inputs, _address(values), threads)

    def _unconstrain(self, values: Array, x: Array, threads: int) -> int:
        return self._call("pb_unconstrain", len(x), _address(values), _address(x), threads)

    def _hessian(self, x: Array, hessian: Array, threads: int) -> None:
        self._call("pb_hessian", len(x), _address(x), _address(hessian), threads)

    def _call(self, function: str, *arguments: Any) -> int:
        error, printed = c_void_p(), c_void_p()
        refused = getattr(self.library, function)(self._handle, *arguments, byref(error), byref(printed))
        if error or printed:
            self._note(error.value, printed.value)
        return int(refused)

    def _note(self, error: int | None, printed: int | None) -> None:
        """Store why a point was refused, and log what the program printed."""
        if error:
            self.messages.append(_take(self.library, error))
        if printed:
            _log_prints(self.library, printed, self.label)


class _Point(ctypes.Structure):
    """``pb_point`` of ``shim.cpp``."""

    _fields_ = (
        *((name, c_void_p) for name in ("model", "x", "value", "gradient")),
        ("threads", c_int),
        *((name, c_void_p) for name in ("error", "printed")),
    )


class _Scratch(threading.local):
    """Buffers of one thread for single-point calls, and the arguments that hold their addresses."""

    def __init__(self, handle: int, dim: int) -> None:
        self.x, self.value, self.slope = np.empty((1, dim)), np.empty(1), np.empty((1, dim))
        self.point = _Point(handle, _address(self.x), _address(self.value), _address(self.slope), 1, None, None)
        self.address = ctypes.addressof(self.point)


class RowData:
    """Data held by a library, from which it builds the model on all rows or on a selection."""

    def __init__(
        self,
        library: ctypes.CDLL,
        arrays: Mapping[str, NDArray[Any]],
        label: str,
        count: str = "",
        row_axes: Mapping[str, int] | None = None,
    ) -> None:
        self._library, self.label, self._arrays = library, label, arrays
        packed: PackedData = pack(arrays, row_axes)
        names = (c_char_p * max(1, len(packed.names)))(*packed.names)
        buffers = [_address(buffer) for buffer in packed[3:]]
        error = c_void_p()
        handle = library.pb_data_construct(
            packed.n_reals, packed.n_integers, names, *buffers, count.encode(), byref(error)
        )
        self._handle = _constructed(library, handle, error, label, arrays)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.pb_data_destruct(self._handle)

    def model(self, rows: NDArray[np.integer] | None = None) -> BatchedModel:
        """Return the model on the given rows, in that order; on all of them by default."""
        error, printed = c_void_p(), c_void_p()
        chosen = None if rows is None else np.ascontiguousarray(rows, dtype=np.int32)
        n_rows = 0 if chosen is None else len(chosen)
        # A null pointer means all rows, so that an empty selection needs a valid address.
        address = None if chosen is None else _address(chosen if n_rows else np.zeros(1, dtype=np.int32))
        handle = self._library.pb_model_construct(self._handle, address, n_rows, SEED, byref(error), byref(printed))
        if printed.value:
            _log_prints(self._library, printed.value, self.label)
        made = _constructed(self._library, handle, error, self.label, self._arrays)
        return BatchedModel(self._library, made, self.label)

    def evaluate_sets(
        self,
        rows: NDArray[np.integer],
        set_starts: NDArray[np.integer],
        points: NDArray[np.integer],
        point_starts: NDArray[np.integer],
        x: Array,
        gradient: bool,
        threads: int,
    ) -> tuple[Array, Array | None]:
        """Return log density on many sets of rows, each at its own points.

        Sets follow one another in ``rows``, from ``set_starts[i]`` to ``set_starts[i + 1]``; so do their points.
        """
        x = np.ascontiguousarray(x)
        rows = np.append(rows, 0).astype(np.int32)  # one more, so that the address is never null
        set_starts, points, point_starts = (
            np.ascontiguousarray(array, dtype=np.int64) for array in (set_starts, points, point_starts)
        )
        value = np.empty(len(points))
        slope = np.empty((len(points), x.shape[1])) if gradient else None
        error, printed = c_void_p(), c_void_p()
        sets = (len(set_starts) - 1, _address(set_starts), _address(rows), _address(point_starts), _address(points))
        outputs = (_address(value), _address(slope))
        self._library.pb_evaluate_sets(
            self._handle, SEED, *sets, x.shape[1], _address(x), *outputs, threads, byref(error), byref(printed)
        )
        if error.value:
            logger.debug("%s: %s", self.label, _take(self._library, error.value))
        if printed.value:
            _log_prints(self._library, printed.value, self.label)
        return value, slope


def _address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.__array_interface__["data"][0]


def _rows(i: int, *arrays: NDArray[Any]) -> tuple[int, ...]:
    """Return the addresses of row ``i`` of contiguous arrays."""
    return tuple(array.__array_interface__["data"][0] + i * array.strides[0] for array in arrays)


def _words(text: bytes) -> list[str]:
    return text.decode().split(",") if text else []


def _take(library: ctypes.CDLL, address: int) -> str:
    """Return a message that the library allocated, as one line if it is short; free the C string."""
    message = ctypes.string_at(address).decode(errors="replace")
    library.bs_free_error_msg(address)
    return " ".join(message.split()) if len(message) < 2000 else message


def _log_prints(library: ctypes.CDLL, printed: int, label: str) -> None:
    """Log what print statements wrote, in ``ppl_backends.stan``."""
    logger.info("%s prints: %s", label, _take(library, printed).rstrip())


def _constructed(library: ctypes.CDLL, handle: int | None, error: c_void_p, label: str, data: Mapping[str, Any]) -> int:
    """Return the handle of a new object; raise Stan's error about its data otherwise."""
    if handle:
        return handle
    message = _take(library, error.value) if error.value else "the model could not be constructed"
    raise ModelError(f"{label}: {_about_data(message, to_arrays(data))}")


def _about_data(message: str, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return Stan's error about a data variable in the user's terms, with what to do; any other as it is."""
    name, line = (re.search(pattern, message) for pattern in (r"variable name=(\w+(?:\.\d+)*)", r", line (\d+)"))
    where = f" (line {line[1]})" if line else ""
    if name and "variable does not exist" in message:
        if f"{name[1]}.1" in arrays:
            return f"data variable '{name[1]}'{where} is no tuple in the program; pass a list or an array"
        return f"the data variable '{name[1]}'{where} is missing; pass it in data="
    shapes = re.search(r"dims declared=(\(.*?\)); dims found=(\(.*?\))", message)
    if name and shapes:
        return f"data variable '{name[1]}' has shape {shapes[2]}; the program{where} declares {shapes[1]}"
    if name and "non-int values" in message:
        return f"data variable '{name[1]}'{where} is declared int, and {_no_integers(arrays[name[1]])}"
    return message


def _no_integers(array: NDArray[Any]) -> str:
    """Return why the data of a variable are no integers, and what to do."""
    if np.isnan(array).any():
        return f"contains NaN; {MISSING}"
    if (array == np.round(array)).all():
        return "its values are integers of a type for reals; pass them as int, such as y.astype(int)"
    return "has values that are not integers"
