"""Normal distribution functions written through erf or erfc, with logs that hold far out in the tails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.scalar.basic import Add, Log, Log1p, Mul, Neg
from pytensor.scalar.math import Erf, Erfc
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError

__all__ = ["stabilise_normal_tails"]


@node_rewriter([Elemwise])
def half_one_plus_erf(fgraph, node):
    """``c (1 + erf(x))`` is ``c erfc(−x)``."""
    if not isinstance(node.op.scalar_op, Mul):
        return None
    for k, factor in enumerate(node.inputs):
        summands = _arguments(factor, Add)
        erf = [v for v in summands if _arguments(v, Erf)]
        if len(summands) == 2 and len(erf) == 1 and [_value(v) for v in summands if v is not erf[0]] == [1]:
            rest = [v for j, v in enumerate(node.inputs) if j != k]
            return [pt.mul(*rest, pt.erfc(-_arguments(erf[0], Erf)[0])).astype(node.outputs[0].dtype)]
    return None


@node_rewriter([Elemwise])
def log_of_scaled_erfc(fgraph, node):
    """``log(c erfc(x))`` is ``log c + log(erfc(x))``, and the compiler knows a stable ``log(erfc(x))``."""
    if not isinstance(node.op.scalar_op, Log):
        return None
    scale, x = _scaled_erfc(node.inputs[0])
    if x is None or not scale > 0 or scale == 1:
        return None
    return [(np.log(scale) + pt.log(pt.erfc(x))).astype(node.outputs[0].dtype)]


@node_rewriter([Elemwise])
def log_of_complement(fgraph, node):
    """``log1p(−erfc(x)/2)`` is ``log ½ + log(erfc(−x))``."""
    if not isinstance(node.op.scalar_op, Log1p):
        return None
    scale, x = _scaled_erfc(node.inputs[0])
    if x is None or not np.isclose(scale, -0.5, rtol=1e-12):
        return None
    return [(np.log(0.5) + pt.log(pt.erfc(-x))).astype(node.outputs[0].dtype)]


def _scaled_erfc(variable: Variable) -> tuple[float, Variable | None]:
    """``(c, x)`` where the variable is c erfc(x)."""
    scale = 1.0
    if negated := _arguments(variable, Neg):
        scale, variable = -1.0, negated[0]
    factors = _arguments(variable, Mul) or [variable]
    numbers = [_value(v) for v in factors]
    inner = [_arguments(v, Erfc) for v in factors]
    found = [x[0] for x in inner if x]
    if len(found) != 1 or any(number is None and not x for number, x in zip(numbers, inner, strict=True)):
        return scale, None
    return scale * float(np.prod([float(number) for number in numbers if number is not None])), found[0]


def _arguments(variable: Variable, scalar_op: type) -> list[Variable]:
    node = variable.owner
    applies = node is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, scalar_op)
    return list(node.inputs) if applies else []


def _value(variable: Variable) -> Any:
    try:
        return get_underlying_scalar_constant_value(variable)
    except NotScalarConstantError:
        return None


def stabilise_normal_tails(graphs: Sequence[Variable]) -> list[Variable]:
    """Graphs of the same values with stable logs of normal distribution functions."""
    canonical = rewrite_graph(clone_replace(list(graphs)), include=("canonicalize",), clone=False)
    fgraph = FunctionGraph(outputs=list(canonical), clone=False)
    for rewrite in (half_one_plus_erf, log_of_scaled_erfc, log_of_complement):
        in2out(rewrite).rewrite(fgraph)
    return list(fgraph.outputs)
