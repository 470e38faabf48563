"""Recognition of graphs: elementwise operations, their arguments, and constants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Exp, Log
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.math import Sum

try:
    from pytensor.graph.traversal import ancestors, io_toposort
except ImportError:  # PyTensor < 2.34
    from pytensor.graph.basic import ancestors, io_toposort

try:
    from pytensor.tensor.special import LogSumExp

    _LOG_SUM_EXP: tuple[Any, ...] = (LogSumExp,)
except ImportError:  # PyTensor < 3 writes out log, sum and exp
    _LOG_SUM_EXP = ()

__all__ = ["ancestors", "arguments", "constant", "io_toposort", "sums_of_exponentials"]


def sums_of_exponentials(value: Variable) -> Iterator[tuple[Variable, int]]:
    """Yield the summands over one axis after exp and before log in a graph, and the axis."""
    for node in io_toposort([], [value]):
        if isinstance(node.op, _LOG_SUM_EXP):
            exponents, axes = list(node.inputs), node.op.axis
        else:
            inner = next(iter(arguments(node.outputs[0], Log)), None)
            summed = None if inner is None else inner.owner
            if summed is None or not isinstance(summed.op, Sum):
                continue
            exponents, axes = arguments(summed.inputs[0], Exp), summed.op.axis
        if exponents and axes is None:
            axes = tuple(range(exponents[0].type.ndim))
        if exponents and len(axes) == 1:
            yield exponents[0], int(axes[0])


def arguments(variable: Variable, scalar_op: type) -> list[Variable]:
    """Return the arguments of an elementwise operation; empty if the variable is the result of another one."""
    node = variable.owner
    applies = node is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, scalar_op)
    return list(node.inputs) if applies else []


def constant(variable: Variable) -> Any:
    """Return the one value of a constant, or None."""
    try:
        return get_underlying_scalar_constant_value(variable)
    except NotScalarConstantError:
        return None
