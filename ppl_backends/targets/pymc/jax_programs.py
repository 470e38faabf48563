"""JAX programs with linear algebra, rewritten so that they can neither hang nor contradict themselves.

XLA runs independent operations of one program on a pool of as many threads as there are cores. Two of its properties
cause problems for Gaussian processes.

*Factorisations of a batch.* In jaxlib 0.10.0 to 0.11.0 a LAPACK call on a batch of matrices cuts the batch into
chunks, passes them to the pool and blocks its own thread until they are done (``ParallelBatchMap`` in
``jaxlib/cpu/lapack_kernels.cc``). As many such calls at once as there are threads wait for chunks that no free thread
can run. A call runs in its own thread, without waiting, if its batch has one matrix or fewer than 200,000 floating
point operations in total (``GetLapackBatchChunkSize``). Larger batches are therefore mapped sequentially here, one
matrix per call, so that no thread of the pool waits for another. Points are mapped in groups small enough for the
matrices of a group to fit in the processor's cache, which is faster than one pass over all points.

*Comparisons of a value with its own rounding error.* The compiler copies cheap operations into every loop that needs
their result, and contracts products and sums there to fused multiply-adds, each copy in its own way. A squared
distance of a point from itself is 0 in one loop and 1e-16 in another. If a derivative passes through
``clip(distance, 0, inf)`` on one path but not on the other, terms that should cancel exactly do not, and gradients and
Hessians are wrong by orders of magnitude. Therefore every operand of a comparison is computed once, behind an
optimisation barrier. (The CPU compiler of jaxlib 0.10 drops barriers before it copies operations, unless that pass is
switched off.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

COMPILER_OPTIONS = {"xla_disable_hlo_passes": "cse_barrier_expander"}  # keeps barriers until the end

CACHE_BYTES = 2**17  # of the largest value of a group of points
INLINE_WORK = 200_000  # floating point operations of a batch that LAPACK calls do not distribute over threads

# Factorisations and solves, with the dimensions of their first operand and operations per element and dimension.
FACTORISATIONS = {
    "cholesky": (2, 1),
    "triangular_solve": (2, 1),
    "lu": (2, 1),
    "tridiagonal_solve": (1, 10),
    **dict.fromkeys(("eig", "eigh", "geqp3", "geqrf", "hessenberg", "householder_product", "ormqr"), (2, 10)),
    **dict.fromkeys(("qr", "schur", "svd", "tridiagonal"), (2, 10)),
}
COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne", "max", "min", "clamp", "sign", "abs", "reduce_max", "reduce_min"}

# Programs called by name, whose derivatives have been taken already: their equations replace the call.
CALLS = {
    **dict.fromkeys(("pjit", "jit", "checkpoint", "remat", "remat2"), "jaxpr"),
    **dict.fromkeys(("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"), "call_jaxpr"),
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}


def map_points(function: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """Return the function of a block of points, and data, that maps ``function`` of one point over groups of them."""
    import jax
    from jax.extend.core import jaxpr_as_fun

    def mapped(block: Any, *data: Any) -> Sequence[Any]:
        one = jax.make_jaxpr(lambda x: function(x, *data))(block[0])
        largest = max((v.aval.size for equation in one.jaxpr.eqns for v in equation.outvars), default=1)
        group = 1 << max(1, CACHE_BYTES // (8 * max(1, largest))).bit_length() - 1
        if group >= len(block):
            return jax.vmap(jaxpr_as_fun(one))(block)
        return jax.lax.map(jaxpr_as_fun(one), block, batch_size=group if group > 1 else None)

    return mapped


def rewrite(function: Callable[..., Sequence[Any]]) -> Callable[..., list]:
    """Return an equivalent JAX function of arrays: batches factorised sequentially, comparisons behind barriers."""
    import jax

    def rewritten(*arguments: Any) -> list:
        return _evaluate(jax.make_jaxpr(function)(*arguments), arguments)

    return rewritten


def _evaluate(closed: Any, arguments: Sequence[Any]) -> list:
    """Evaluate the equations of a closed jaxpr, rewritten."""
    import jax
    from jax.extend.core import Literal

    program = closed.jaxpr
    compared = {
        variable
        for equation in program.eqns
        if equation.primitive.name in COMPARISONS
        for variable in equation.invars
        if not isinstance(variable, Literal) and variable.aval.dtype.kind == "f"
    }
    values: dict[Any, Any] = dict(zip(program.constvars, closed.consts, strict=True))

    def write(variable: Any, value: Any) -> None:
        values[variable] = jax.lax.optimization_barrier(value) if variable in compared else value

    for variable, value in zip(program.invars, arguments, strict=True):
        write(variable, value)
    for equation in program.eqns:
        operands = [v.val if isinstance(v, Literal) else values[v] for v in equation.invars]
        for variable, value in zip(equation.outvars, _apply(equation, operands), strict=True):
            write(variable, value)
    return [v.val if isinstance(v, Literal) else values[v] for v in program.outvars]


def _apply(equation: Any, operands: list) -> Sequence[Any]:
    """Return results of one equation."""
    primitive, parameters = equation.primitive, equation.params
    if primitive.name in CALLS:
        return _evaluate(_closed(parameters[CALLS[primitive.name]]), operands)
    if primitive.name in FACTORISATIONS:
        return _factorise(primitive, parameters, operands)
    results = primitive.bind(*operands, **{name: _rewritten(value) for name, value in parameters.items()})
    return results if primitive.multiple_results else [results]


def _factorise(primitive: Any, parameters: dict, operands: list) -> Sequence[Any]:
    """Return a factorisation or a solve, of one matrix at a time unless the batch is small."""
    import jax

    def one(matrices: Sequence[Any]) -> Sequence[Any]:
        results = primitive.bind(*matrices, **parameters)
        return results if primitive.multiple_results else [results]

    dimensions, cost = FACTORISATIONS[primitive.name]
    rank = operands[0].ndim - dimensions
    batch = operands[0].shape[:rank]
    size = max(math.prod(operand.shape[rank:]) for operand in operands)
    largest = max(operands[0].shape[rank:], default=1)
    count = math.prod(batch)
    if count <= 1 or 4 * count * cost * size * largest < INLINE_WORK:  # complex numbers count three times at most
        return one(operands)
    results = jax.lax.map(one, [operand.reshape(count, *operand.shape[rank:]) for operand in operands])
    return [result.reshape(*batch, *result.shape[1:]) for result in results]


def _rewritten(value: Any) -> Any:
    """Return a parameter of a loop, a branch or a solver with the programs in it rewritten."""
    import jax
    from jax.extend.core import ClosedJaxpr

    if isinstance(value, ClosedJaxpr):
        return jax.make_jaxpr(lambda *arguments: _evaluate(value, arguments))(*value.in_avals)
    if isinstance(value, tuple):
        parts = [_rewritten(part) for part in value]
        if any(new is not old for new, old in zip(parts, value, strict=True)):
            return tuple(parts) if type(value) is tuple else type(value)(*parts)
    return value


def _closed(program: Any) -> Any:
    """Return a jaxpr with its constants; one without constants may be used directly."""
    from jax.extend.core import ClosedJaxpr

    return program if isinstance(program, ClosedJaxpr) else ClosedJaxpr(program, ())
