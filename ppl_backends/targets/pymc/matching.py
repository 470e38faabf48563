"""What graphs are recognised by: elementwise operations, their arguments, and constants."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Variable
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError

try:
    from pytensor.graph.traversal import ancestors, io_toposort
except ImportError:  # PyTensor < 2.34
    from pytensor.graph.basic import ancestors, io_toposort

__all__ = ["ancestors", "arguments", "constant", "io_toposort"]


def arguments(variable: Variable, scalar_op: type) -> list[Variable]:
    """Return the arguments of an elementwise operation; none where the variable is another's result."""
    node = variable.owner
    applies = node is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, scalar_op)
    return list(node.inputs) if applies else []


def constant(variable: Variable) -> Any:
    """Return the one value of a constant, or None."""
    try:
        return get_underlying_scalar_constant_value(variable)
    except NotScalarConstantError:
        return None
