"""Batched functions by JAX: ``jit`` of ``vmap`` over the PyTensor graph translated to JAX, in float64.

Functions raise an error in a process that was forked from one that used JAX (:mod:`~ppl_backends.targets.jax_process`).

PyTensor's translations are a table for the whole process, which other code uses. A graph of ours is therefore
rewritten just before it is translated, and our operations are added to the table; PyTensor's entries are not changed.

Programs with linear algebra are rewritten before they are compiled; :mod:`~ppl_backends.targets.pymc.jax_programs`
gives the reasons. One function runs at a time; XLA distributes its work over threads.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any

import numpy as np
from pytensor.compile.mode import get_mode
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.scalar.basic import Add, Mul
from pytensor.scalar.math import Erfcinv, Erfcx
from pytensor.tensor.basic import cast
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.variable import TensorConstant

from ppl_backends.numerics.differences import central_differences
from ppl_backends.targets.jax_process import check_process, double_precision, jax_module
from ppl_backends.targets.pymc.graph import factorises, multiplies, no_c_compiler
from ppl_backends.targets.pymc.jax_functions import erfcx
from ppl_backends.targets.pymc.jax_programs import COMPILER_OPTIONS, map_points, rewrite
from ppl_backends.targets.pymc.matching import ancestors, io_toposort
from ppl_backends.targets.pymc.stable_functions import register_jax

_execution = threading.Lock()
_LARGE = 100_000  # elements of a constant that becomes an argument


def _jax() -> Any:
    """Return JAX; raise an error in a forked child."""
    jax = jax_module()
    jax_translation()  # imports PyTensor's, which turns float64 on if floatX is float64
    return jax


def as_argument(value: np.ndarray) -> Any:
    """Return ``value`` in JAX's form, so that calls do not copy it again."""
    with double_precision():
        return _jax().numpy.asarray(value)


def _translate(inputs: Sequence[Variable], outputs: Sequence[Variable]) -> Callable[..., tuple]:
    """Return the JAX function of a graph; raise NotImplementedError if an operation has no translation."""
    translation = jax_translation()
    graph = FunctionGraph(list(inputs), list(outputs), clone=True)
    with warnings.catch_warnings(), no_c_compiler():
        warnings.simplefilter("ignore")  # assertions in a graph are skipped by JAX, with a warning for each
        # XLA fuses elementwise operations by itself, and our operations must not be hidden in composites.
        get_mode("JAX").excluding("fusion").optimizer.rewrite(graph)
        in2out(_own_operation, ignore_newtrees=True).rewrite(graph)
        return translation(graph)


def _with_large_constants(outputs: Sequence[Variable]) -> tuple[list[Variable], list[Variable], list[Any]]:
    """Return arguments in place of large constants, the outputs with these, and the values of the arguments.

    XLA transposes and multiplies constants while it compiles, which takes seconds for a million rows.
    """
    large = [
        variable
        for variable in dict.fromkeys(ancestors(outputs))
        if isinstance(variable, TensorConstant) and variable.dtype == "float64" and variable.data.size >= _LARGE
    ]
    if not large:
        return [], list(outputs), []
    arguments = [constant.type() for constant in large]
    replaced = clone_replace(list(outputs), dict(zip(large, arguments, strict=True)), rebuild_strict=False)
    return arguments, replaced, [as_argument(constant.data) for constant in large]


def _batch(function: Callable, n_data: int, constants: Sequence[Any], delicate: bool) -> Callable:
    """Return the compiled function of a block of points; ``delicate`` programs are rewritten.

    ``constants`` are the last arguments of the function, after ``n_data`` others.
    """
    jax, n_data = _jax(), n_data + len(constants)
    if delicate:
        options = COMPILER_OPTIONS if jax.default_backend() == "cpu" else None
        batched = jax.jit(rewrite(map_points(function)), compiler_options=options)
    else:
        batched = jax.jit(jax.vmap(function, in_axes=(0, *[None] * n_data)))

    def call(block: np.ndarray, *data: Any) -> list[np.ndarray]:
        check_process()
        with _execution, double_precision():
            return [np.asarray(output, dtype=np.float64) for output in batched(block, *data, *constants)]

    return call


def _is_delicate(point: Variable, outputs: Sequence[Variable]) -> bool:
    """Return whether XLA may hang or contradict itself on a graph."""
    return factorises(outputs) or multiplies(point, outputs)


def compile_batched(point: Variable, data: Sequence[Variable], outputs: Sequence[Variable]) -> Callable:
    """Return ``(block (n, dim), *data) -> [output (n, ...), ...]``."""
    arguments, outputs, constants = _with_large_constants(outputs)
    function = _translate([point, *data, *arguments], outputs)
    return _batch(function, len(data), constants, _is_delicate(point, outputs))


def compile_gradient(point: Variable, data: Sequence[Variable], outputs: Sequence[Variable]) -> Callable:
    """Return ``(block (n, dim), *data) -> [*values (n,), *gradients (n, dim)]`` of scalar outputs, in one pass."""
    arguments, outputs, constants = _with_large_constants(outputs)
    jax, function = _jax(), _translate([point, *data, *arguments], outputs)

    def values_and_gradients(x, *data):
        pairs = [jax.value_and_grad(lambda x, k=k: function(x, *data)[k])(x) for k in range(len(outputs))]
        return (*[value for value, _ in pairs], *[gradient for _, gradient in pairs])

    return _batch(values_and_gradients, len(data), constants, _is_delicate(point, outputs))


def compile_hessian(point: Variable, data: Sequence[Variable], output: Variable) -> Callable:
    """Return ``(block (n, dim), *data) -> [hessian (n, dim, dim)]`` of a scalar output."""
    if any(isinstance(node.op, tuple(_DIFFERENCED)) for node in io_toposort([], [output])):
        gradient = compile_gradient(point, data, [output])
        return lambda block, *data: [central_differences(lambda x: gradient(x, *data)[1], block)]
    arguments, [output], constants = _with_large_constants([output])
    jax, function = _jax(), _translate([point, *data, *arguments], [output])
    hessian = jax.hessian(lambda x, *data: function(x, *data)[0])
    return _batch(lambda x, *data: (hessian(x, *data),), len(data), constants, _is_delicate(point, [output]))


class VectorSideDot(Dot):
    """A product in which that of a matrix and a vector is written from the vector's side.

    With a batch of vectors as rows this is one product of matrices without transposes, up to twice as fast.
    """


class OwnErfcx(Erfcx):
    """``erfcx``, of truncated and censored densities, for which PyTensor may need TensorFlow Probability."""


class OwnErfcinv(Erfcinv):
    """``erfcinv``, for which PyTensor may need TensorFlow Probability."""


@node_rewriter([Dot, Blockwise, Elemwise])
def _own_operation(fgraph: Any, node: Any) -> Any:
    """Replace an operation of PyTensor by our version."""
    op: Any = node.op
    if type(op) is Dot:
        return [VectorSideDot()(*node.inputs)]
    if isinstance(op, Blockwise) and type(op.core_op) is Dot:
        return [Blockwise(VectorSideDot(), signature=op.signature)(*node.inputs)]
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, Add | Mul) and len(node.inputs) > 2:
        return [_two_by_two(op.scalar_op, node)]
    own = {Erfcx: OwnErfcx, Erfcinv: OwnErfcinv}.get(type(op.scalar_op)) if isinstance(op, Elemwise) else None
    if own is None:
        return None
    return [Elemwise(own(op.scalar_op.output_types_preference, name=own.__name__))(*node.inputs)]


def _two_by_two(scalar_op: Any, node: Any) -> Variable:
    """Return a sum or a product of several variables as one of two at a time, those of fewest dimensions first.

    PyTensor may translate it to the sum or the product of a stack of arrays, which takes several times as long.
    """
    kind = node.outputs[0].dtype
    ordered = sorted(node.inputs, key=lambda v: v.type.broadcastable.count(False))
    return reduce(Elemwise(scalar_op), [v if v.dtype == kind else cast(v, kind) for v in ordered])


_DECLARED: list[Callable[[Any], None]] = [register_jax]
_DIFFERENCED: list[type[Op]] = []


def declare_operation(register: Callable[[Any], None], differenced: type[Op]) -> None:
    """Add an operation from a higher-level module: ``register`` adds it to PyTensor's table.

    Hessians of graphs with a ``differenced`` operation are differences of gradients, because it has no second derivatives.
    """
    _DECLARED.append(register)
    _DIFFERENCED.append(differenced)
    if jax_translation.cache_info().currsize:
        register(jax_translation())


@cache
def jax_translation() -> Any:
    """Return PyTensor's translation to JAX, with our operations registered from the first call on."""
    import jax
    import jax.numpy as jnp
    from pytensor.link.jax.dispatch import jax_funcify

    def dot(x: Any, y: Any) -> Any:
        column = y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1)
        return jnp.dot(y.T, x.T).T if x.ndim == 2 and column else jnp.dot(x, y)

    def erfcinv(p: Any) -> Any:
        return -jax.scipy.special.ndtri(p / 2) / np.sqrt(2)

    jax_funcify.register(VectorSideDot, lambda op, **_: dot)
    jax_funcify.register(OwnErfcx, lambda op, **_: erfcx(jax))
    jax_funcify.register(OwnErfcinv, lambda op, **_: erfcinv)
    for register in _DECLARED:
        register(jax_funcify)
    return jax_funcify
