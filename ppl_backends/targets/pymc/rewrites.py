"""Rewrites of log density graphs that PyTensor lacks: no exceptions at invalid points, and half the work for switches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.scalar.basic import GE, LE, Abs, Cast, Exp, Log1p, Mul, Neg, Sqr, Switch, discrete_dtypes
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.variable import TensorConstant

from ppl_backends.targets.pymc.matching import ancestors, arguments, constant, io_toposort
from ppl_backends.targets.pymc.stable_functions import NORMAL_TAIL_REWRITES, shift_without_gradient, softplus_to_fast

_BOUNDED = {GE: ((Abs, Exp, Sigmoid, Softplus, Sqr), 0), LE: ((Sigmoid,), 1)}


@node_rewriter([CheckParameterValue])
def check_to_switch(fgraph, node):
    """Give invalid parameters -inf (or NaN, where PyMC would raise), so that one bad point does not end a batch."""
    expression, *conditions = node.inputs
    if not expression.dtype.startswith("float"):
        return [expression]
    condition = pt.and_(*conditions) if len(conditions) > 1 else conditions[0]
    outside = -np.inf if node.op.can_be_replaced_by_ninf else np.nan
    return [pt.switch(condition, expression, outside).astype(node.outputs[0].dtype)]


@node_rewriter(None)
def positive_definite_by_cholesky(fgraph, node):
    """Return whether a Cholesky factor exists, for any number of matrices; PyMC 5 checks one (``LKJCorr``)."""
    if type(node.op).__name__ != "PosDefMatrix":
        return None
    factor = pt.linalg.cholesky(node.inputs[0], on_error="nan")
    return [pt.all(pt.diagonal(factor, axis1=-2, axis2=-1) > 0)]


@node_rewriter([All])
def known_bounds(fgraph, node):
    """Write ``all(exp(x) >= 0)``, ``all(sigmoid(x) <= 1)`` and the like as true (a NaN shows in the density itself).

    XLA finds them to be true, too, but then evaluates ``all`` of as many constants as there are rows while it compiles.
    """
    compared = node.inputs[0].owner
    if node.op.axis is not None or compared is None or not isinstance(compared.op, Elemwise):
        return None
    functions, bound = _BOUNDED.get(type(compared.op.scalar_op), ((), None))
    if constant(compared.inputs[-1]) != bound or not any(arguments(compared.inputs[0], kind) for kind in functions):
        return None
    return [pt.constant(True, dtype="bool")]


@node_rewriter([Elemwise])
def log1p_minus_sigmoid(fgraph, node):
    """Write ``log1p(-sigmoid(x))`` as ``-softplus(x)``."""
    if not isinstance(node.op.scalar_op, Log1p):
        return None
    inner = node.inputs[0].owner
    if inner is None or not isinstance(inner.op, Elemwise):
        return None
    factors = list(inner.inputs)
    if isinstance(inner.op.scalar_op, Mul) and len(factors) == 2 and -1 in map(constant, factors):
        factors = [factor for factor in factors if constant(factor) != -1]
    elif not isinstance(inner.op.scalar_op, Neg):
        return None
    if not arguments(factors[0], Sigmoid):
        return None
    return [-pt.softplus(factors[0].owner.inputs[0])]


@node_rewriter([Elemwise])
def switch_inside(fgraph, node):
    """Write ``switch(c, f(a), f(b))`` as ``f(switch(c, a, b))`` for an elementwise ``f`` of one argument.

    Both branches of a switch are computed; without this rewrite the Bernoulli log density evaluates ``softplus`` at
    both signs.
    """
    if not isinstance(node.op.scalar_op, Switch):
        return None
    condition, one, other = node.inputs
    if one.owner is None or other.owner is None or one.owner.op != other.owner.op or one is other:
        return None
    if arguments(one, Exp):  # the guard of a stabilised log-sum-exp, which PyTensor would stabilise again without it
        return None
    if not isinstance(one.owner.op, Elemwise) or len(one.owner.inputs) != 1:
        return None
    [a], [b] = one.owner.inputs, other.owner.inputs
    if a.dtype != b.dtype:
        return None
    return [one.owner.op(pt.switch(condition, a, b))]


def in_double(graphs: Sequence[Variable], random: bool = False) -> list[Variable]:
    """Return graphs in which float32 constants, and functions of integers, are of double precision.

    PyTensor stores 2 in 8 bits, and then computes ``log(2)`` or ``gammaln(2)`` in float32. JAX converts weakly typed
    float64 values to the precision of float32 constants. Random variables stay what they are, unless these are
    asked for (``random``).
    """
    short = [v for v in ancestors(graphs) if isinstance(v, TensorConstant) and v.dtype == "float32"]
    new = {v: pt.constant(v.data.astype("float64")) for v in short}
    for node in io_toposort([], list(graphs)):
        if not random and any(isinstance(v.type, RandomType) for v in node.inputs):
            continue
        inputs = [new.get(v, v) for v in node.inputs]
        if isinstance(node.op, HasInnerGraph):  # its inputs have fixed types
            pairs = zip(inputs, node.inputs, strict=True)
            inputs = [v if v.type == old.type else v.astype(old.dtype) for v, old in pairs]
        elif _is_function_of_integers(node, inputs):
            inputs = [v.astype("float64") for v in inputs]
        if any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            sums = isinstance(node.op, CAReduce) and node.op.dtype == "float32"
            op = node.op.clone(dtype="float64", acc_dtype="float64") if sums else node.op
            for old, made in zip(node.outputs, op.make_node(*inputs).outputs, strict=True):
                made.name, new[old] = old.name, made
    return [new.get(graph, graph) for graph in graphs]


def _is_function_of_integers(node: Apply, inputs: Sequence[Variable]) -> bool:
    """Return whether an elementwise function of integers has values in float32, unless it is a conversion."""
    if not isinstance(node.op, Elemwise) or isinstance(node.op.scalar_op, Cast):
        return False
    return node.outputs[0].dtype == "float32" and all(v.dtype in discrete_dtypes for v in inputs)


def replace_checks(graphs: Sequence[Variable]) -> list[Variable]:
    """Return graphs whose checks of parameters give -inf instead of errors; the given graphs are consumed."""
    fgraph = FunctionGraph(outputs=in_double(graphs), clone=False)
    for rewrite in (check_to_switch, positive_definite_by_cholesky):
        in2out(rewrite).rewrite(fgraph)
    return list(fgraph.outputs)


# It replaces 0 / x by zeros of the shape of 0 / x, and then that one: a series of equal values made it run for ever.
_ENDLESS = ("local_zero_div",)


def simplify(graphs: Sequence[Variable]) -> list[Variable]:
    """Return stabilised graphs of the same values, cheaper to evaluate and differentiate."""
    canonical = rewrite_graph(clone_replace(list(graphs)), include=("canonicalize",), exclude=_ENDLESS, clone=False)
    tails = FunctionGraph(outputs=list(canonical), clone=False)
    for rewrite in NORMAL_TAIL_REWRITES:
        in2out(rewrite).rewrite(tails)
    stable = rewrite_graph(list(tails.outputs), include=("canonicalize", "stabilize"), exclude=_ENDLESS, clone=False)
    fgraph = FunctionGraph(outputs=list(stable), clone=False)
    last = (known_bounds, log1p_minus_sigmoid, switch_inside, softplus_to_fast, shift_without_gradient)
    for rewrite in last:
        in2out(rewrite).rewrite(fgraph)
    return in_double(fgraph.outputs)
