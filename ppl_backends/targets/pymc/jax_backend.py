"""Batched functions by JAX: ``jit`` of ``vmap`` over the PyTensor graph translated to JAX, in float64.

JAX does not survive a fork: a child process that calls into it hangs. Functions here therefore refuse to run in a
process that was forked from one where JAX has run.

Programs with linear algebra are rewritten before they are compiled; :mod:`~ppl_backends.targets.pymc.jax_programs` says
why. One function runs at a time; XLA shares its work among threads.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph

from ppl_backends.targets.pymc.graph import factorises, multiplies, no_c_compiler
from ppl_backends.targets.pymc.jax_operations import jax_translation, use_own_operations
from ppl_backends.targets.pymc.jax_programs import COMPILER_OPTIONS, map_points, rewrite

__all__ = ["as_argument", "check_process", "compile_batched", "compile_gradient", "compile_hessian"]

_first_process: int | None = None  # the process in which JAX was first used
_execution = threading.Lock()


def _jax() -> Any:
    """JAX, refused in a forked child."""
    global _first_process
    if _first_process is None:
        _first_process = os.getpid()
    check_process()
    import jax

    jax_translation()  # imports PyTensor's, which turns float64 on where floatX is float64
    return jax


def _double() -> AbstractContextManager[Any]:
    """In this context JAX computes in float64, whatever floatX is."""
    jax = _jax()
    if jax.config.jax_enable_x64:
        return nullcontext()
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def check_process() -> None:
    """Raise in a process that was forked after JAX was used.

    Raises
    ------
    RuntimeError
        One line that says what to do instead.
    """
    if _first_process is not None and _first_process != os.getpid():
        raise RuntimeError(
            "JAX was used in the parent of this forked process and would hang here: start workers with the 'spawn' "
            "method, or use as_target(model, backend='numba')"
        )


def as_argument(value: np.ndarray) -> Any:
    """``value`` as JAX keeps it, so that calls do not copy it again."""
    with _double():
        return _jax().numpy.asarray(value)


def _translate(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Callable[..., tuple]:
    """The JAX function of a graph; NotImplementedError where an operation has no translation."""
    translation = jax_translation()
    graph = FunctionGraph(list(inputs), list(outputs), clone=True)
    with warnings.catch_warnings(), no_c_compiler():
        warnings.simplefilter("ignore")  # assertions in a graph are skipped by JAX, with a warning for each
        # XLA fuses elementwise operations by itself, and ours must not be hidden in composites.
        get_mode("JAX").excluding("fusion").optimizer.rewrite(graph)
        use_own_operations(graph)
        return translation(graph)


def _batch(function: Callable, n_data: int, delicate: bool) -> Callable:
    """The compiled function of a block of points; ``delicate`` programs are rewritten."""
    jax = _jax()
    if delicate:
        options = COMPILER_OPTIONS if jax.default_backend() == "cpu" else None
        batched = jax.jit(rewrite(map_points(function)), compiler_options=options)
    else:
        batched = jax.jit(jax.vmap(function, in_axes=(0, *[None] * n_data)))

    def call(block: np.ndarray, *data: Any) -> list[np.ndarray]:
        check_process()
        with _execution, _double():
            return [np.asarray(output, dtype=np.float64) for output in batched(block, *data)]

    return call


def _is_delicate(point: Variable, outputs: Sequence[Variable]) -> bool:
    """Whether XLA may hang on a graph, or contradict itself in it."""
    return factorises(outputs) or multiplies(point, outputs)


def compile_batched(point: Variable, data: Sequence[Variable], outputs: Sequence[Variable]) -> Callable:
    """``(block (n, dim), *data) -> [output (n, ...), ...]``."""
    return _batch(_translate([point, *data], outputs), len(data), _is_delicate(point, outputs))


def compile_gradient(point: Variable, data: Sequence[Variable], outputs: Sequence[Variable]) -> Callable:
    """``(block (n, dim), *data) -> [*values (n,), *gradients (n, dim)]`` of scalar outputs, in one pass."""
    jax, function = _jax(), _translate([point, *data], outputs)

    def values_and_gradients(x, *data):
        pairs = [jax.value_and_grad(lambda x, k=k: function(x, *data)[k])(x) for k in range(len(outputs))]
        return (*[value for value, _ in pairs], *[gradient for _, gradient in pairs])

    return _batch(values_and_gradients, len(data), _is_delicate(point, outputs))


def compile_hessian(point: Variable, data: Sequence[Variable], output: Variable) -> Callable:
    """``(block (n, dim), *data) -> [hessian (n, dim, dim)]`` of a scalar output."""
    jax, function = _jax(), _translate([point, *data], [output])
    hessian = jax.hessian(lambda x, *data: function(x, *data)[0])
    return _batch(lambda x, *data: (hessian(x, *data),), len(data), _is_delicate(point, [output]))
