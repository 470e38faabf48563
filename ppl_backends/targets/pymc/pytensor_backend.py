"""Batched functions by PyTensor's own backends: Numba in threads without the GIL, or C."""

from __future__ import annotations

import warnings
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import nullcontext
from threading import Lock
from types import FunctionType
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import rewrite_pregrad
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph

from ppl_backends.numerics.differences import central_differences
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.graph import no_c_compiler
from ppl_backends.targets.pymc.stable_functions import register_numba


class PyTensorBackend:
    """Compilers of batched functions in a PyTensor mode."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._pytensor_mode = get_mode("NUMBA") if mode == "NUMBA" else Mode(linker="cvm", optimizer="fast_run")
        if mode == "NUMBA":
            register_numba()

    @staticmethod
    def as_argument(value: np.ndarray) -> np.ndarray:
        """Return ``value`` contiguous and writeable (Numba compiles again for other layouts)."""
        return np.array(value, order="C")

    def compile_batched(self, point: Variable, data: Sequence[Variable], outputs: Sequence[Variable]) -> Callable:
        """Return ``(block (n, dim), *data) -> [output (n, ...), ...]``."""
        block = pt.tensor("block", dtype="float64", shape=(None, *point.type.shape))
        batched = vectorize_graph(list(outputs), replace={point: block})
        # an output that does not depend on the point has no batch axis
        constant = [many.type.ndim == one.type.ndim for many, one in zip(batched, outputs, strict=True)]
        with no_c_compiler() if self.mode == "NUMBA" else nullcontext(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Numba will use object mode")
            function = pytensor.function(
                [block, *data], batched, mode=self._pytensor_mode, trust_input=True, on_unused_input="ignore"
            )
        run = _without_gil(function) if self.mode == "NUMBA" else _one_at_a_time(function)

        def call(block: Array, *data: Any) -> list[Array]:
            values = [np.asarray(value, dtype=np.float64) for value in run(block, *data)]
            return [
                np.broadcast_to(value, (len(block), *value.shape)) if same else value
                for value, same in zip(values, constant, strict=True)
            ]

        return call

    def compile_gradient(self, point: Variable, data: Sequence[Variable], outputs: Sequence[Variable]) -> Callable:
        """Return ``(block (n, dim), *data) -> [*values (n,), *gradients (n, dim)]`` of scalar outputs, in one pass."""
        gradients = [pt.grad(rewrite_pregrad(o), point, disconnected_inputs="ignore") for o in outputs]
        return self.compile_batched(point, data, [*outputs, *gradients])

    def compile_hessian(self, point: Variable, data: Sequence[Variable], output: Variable) -> Callable:
        """Return ``(block (n, dim), *data) -> [hessian (n, dim, dim)]``, by central differences of gradients."""
        gradient = self.compile_gradient(point, data, [output])
        return lambda block, *data: [central_differences(lambda x: gradient(x, *data)[1], block)]


NUMBA, C = PyTensorBackend("NUMBA"), PyTensorBackend("C")


def _one_at_a_time(function: Callable) -> Callable:
    """Return the function with a lock, because threads would share its storage."""
    lock = Lock()

    def run(*arguments: Array) -> list[Array]:
        with lock:
            return [np.array(value) for value in function(*arguments)]

    return run


def _without_gil(function: Any) -> Callable:
    """Return the machine code of a Numba function, called without the GIL.

    PyTensor wraps its function in another one, which carries its name in the cache on disk. Every wrapper is compiled
    with all the code that it calls. So the option is set on a copy of what is wrapped, under a name of its own.
    """
    import numba

    wrapper = function.vm.jit_fn
    inner, file = wrapper.py_func, wrapper.py_func.__code__.co_filename  # that of the wrapped one is temporary
    name, options = _names_in_cache().get(inner), {**wrapper.targetoptions, "nogil": True}
    if "jitable_func" in inner.__code__.co_names:
        inner = getattr(inner.__globals__["jitable_func"], "py_func", inner)
    code = inner.__code__.replace(co_filename=file)
    released = FunctionType(code, inner.__globals__, inner.__name__, inner.__defaults__, inner.__closure__)
    if name:
        _names_in_cache()[released] = f"{name}-nogil"
    options.pop("nopython", None)
    return numba.njit(cache=name is not None, **options)(released)


def _names_in_cache() -> MutableMapping[Callable, str]:
    """Return the names of functions in PyTensor's cache; earlier versions have none."""
    try:
        from pytensor.link.numba.cache import CACHED_SRC_FUNCTIONS
    except ImportError:
        return {}
    return CACHED_SRC_FUNCTIONS
