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
from importlib.util import find_spec
from typing import Any

import numpy as np
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph

from ppl_backends.targets.pymc import log_sum_exp, normal_tails, softplus
from ppl_backends.targets.pymc.graph import factorises, multiplies, no_c_compiler
from ppl_backends.targets.pymc.jax_programs import COMPILER_OPTIONS, map_points, rewrite

__all__ = ["as_argument", "check_process", "compile_batched", "compile_gradient", "compile_hessian"]

_first_process: int | None = None  # the process in which JAX was first used
_execution = threading.Lock()


def _jax() -> Any:
    """JAX in float64, refused in a forked child."""
    global _first_process
    if _first_process is None:
        _first_process = os.getpid()
        import jax

        _complete_dispatch(jax)
        jax.config.update("jax_enable_x64", True)  # PyTensor's own translation, just imported, follows floatX
    check_process()
    import jax

    return jax


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


def _complete_dispatch(jax: Any) -> None:
    """Give PyTensor's translation what it lacks.

    Own operations; ``erfcx`` and ``erfcinv``, of truncated and censored densities, where PyTensor would need TensorFlow
    Probability; and products of a matrix and a vector, written from the vector's side: with a batch of vectors as rows that
    is one product of matrices without transposes, up to twice as fast.
    """
    import jax.numpy as jnp
    from pytensor.link.jax.dispatch import jax_funcify
    from pytensor.scalar.math import Erfcinv, Erfcx
    from pytensor.tensor.math import Dot

    def erfcx(x):
        # exp(x^2) erfc(x) below 10; above, the asymptotic series 1 - 1/(2x^2) + 1*3/(2x^2)^2 - ...
        near, far = jnp.minimum(x, 10.0), jnp.maximum(x, 10.0)
        term, series = 1.0, 1.0
        for k in range(1, 13):
            term = -term * (2 * k - 1) / (2 * far**2)
            series = series + term
        return jnp.where(x < 10.0, jnp.exp(near**2) * jax.scipy.special.erfc(near), series / (far * np.sqrt(np.pi)))

    def erfcinv(p):
        return -jax.scipy.special.ndtri(p / 2) / np.sqrt(2)

    def dot(x, y):
        column = y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1)
        return jnp.dot(y.T, x.T).T if x.ndim == 2 and column else jnp.dot(x, y)

    jax_funcify.register(Dot, lambda op, **_: dot)
    softplus.register_jax(jax_funcify)
    normal_tails.register_jax(jax_funcify)
    log_sum_exp.register_jax(jax_funcify)
    if find_spec("tensorflow_probability") is None:
        jax_funcify.register(Erfcx, lambda op, **_: erfcx)
        jax_funcify.register(Erfcinv, lambda op, **_: erfcinv)


def as_argument(value: np.ndarray) -> Any:
    """``value`` as JAX keeps it, so that calls do not copy it again."""
    return _jax().numpy.asarray(value)


def _translate(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Callable[..., tuple]:
    """The JAX function of a graph; NotImplementedError where an operation has no translation."""
    _jax()
    from pytensor.link.jax.dispatch import jax_funcify

    graph = FunctionGraph(list(inputs), list(outputs), clone=True)
    with warnings.catch_warnings(), no_c_compiler():
        warnings.simplefilter("ignore")  # assertions in a graph are skipped by JAX, with a warning for each
        get_mode("JAX").optimizer.rewrite(graph)
        return jax_funcify(graph)


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
        with _execution:
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
