"""Logs of normal distribution functions that hold far out in the tails, in value and in derivative.

A probit likelihood written as ``log(p)`` or ``log1p(-p)`` of ``p = invprobit(eta)`` is lost where ``p`` rounds to 0 or 1: its
value becomes -inf and, already from eta = 8.3 on, its derivative NaN, since both branches of the Bernoulli density are
differentiated. On well-separated data that is at the mode itself. Here such expressions become ``log_ndtr``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.scalar.basic import Add, Log, Log1p, Mul, Neg, Sub, UnaryScalarOp, upgrade_to_float
from pytensor.scalar.math import Erf, Erfc
from pytensor.tensor.elemwise import Elemwise
from scipy.special import log_ndtr as scipy_log_ndtr

from ppl_backends.targets.pymc.matching import arguments, constant
from ppl_backends.targets.pymc.numba_scalar import register_numba_scalar

__all__ = ["NORMAL_TAIL_REWRITES", "LogNdtr", "log_ndtr", "register_jax", "register_numba"]

_SQRT_2 = math.sqrt(2.0)


class LogNdtr(UnaryScalarOp):
    """Log of the standard normal distribution function."""

    nfunc_spec = ("scipy.special.log_ndtr", 1, 1)

    def impl(self, x: Any) -> Any:
        """Value in Python."""
        return scipy_log_ndtr(x)

    def grad(self, inputs: Any, grads: Any) -> Any:
        """φ(x)/Φ(x), the inverse Mills ratio, in logs."""
        (x,), (gz,) = inputs, grads
        from pytensor.scalar.basic import exp

        return (gz * exp(-0.5 * x * x - 0.5 * math.log(2 * math.pi) - log_ndtr_scalar(x)),)

    def L_op(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        """The same; PyTensor 3 asks for it by this name."""
        return self.grad(inputs, grads)


log_ndtr_scalar = LogNdtr(upgrade_to_float, name="log_ndtr")
log_ndtr = Elemwise(log_ndtr_scalar)


def register_jax(jax_funcify: Any) -> None:
    """Tell PyTensor's translation to JAX, whose ``log_ndtr`` has a stable derivative of its own."""
    import jax

    jax_funcify.register(LogNdtr, lambda op, **_: jax.scipy.special.log_ndtr)


def register_numba() -> None:
    """Tell PyTensor's translation to Numba."""
    import numba

    @numba.njit(cache=False)
    def log_ndtr_1(x):
        if x > -10.0:
            if x > 0.0:
                return math.log1p(-0.5 * math.erfc(x / math.sqrt(2.0)))
            return math.log(0.5 * math.erfc(-x / math.sqrt(2.0)))
        term, series = 1.0, 1.0
        for k in range(1, 11):
            term = -term * (2 * k - 1) / (x * x)
            series = series + term
        return -0.5 * x * x - math.log(-x) - 0.5 * math.log(2 * math.pi) + math.log(series)

    register_numba_scalar(LogNdtr, log_ndtr_1)


@node_rewriter([Elemwise])
def half_one_plus_erf(fgraph, node):
    """``c (1 + erf(x))`` is ``c erfc(−x)``."""
    if not isinstance(node.op.scalar_op, Mul):
        return None
    for k, factor in enumerate(node.inputs):
        summands = arguments(factor, Add)
        erf = [v for v in summands if arguments(v, Erf)]
        if len(summands) == 2 and len(erf) == 1 and [constant(v) for v in summands if v is not erf[0]] == [1]:
            rest = [v for j, v in enumerate(node.inputs) if j != k]
            return [pt.mul(*rest, pt.erfc(-arguments(erf[0], Erf)[0])).astype(node.outputs[0].dtype)]
    return None


@node_rewriter([Elemwise])
def log_of_scaled_erfc(fgraph, node):
    """``log(c erfc(x))`` is ``log 2c + log_ndtr(−√2 x)``."""
    if not isinstance(node.op.scalar_op, Log):
        return None
    scale, x = _scaled_erfc(node.inputs[0])
    if x is None or not scale > 0:
        return None
    value = log_ndtr(-_SQRT_2 * x)
    return [(value if np.isclose(scale, 0.5, rtol=1e-12) else value + np.log(2 * scale)).astype(node.outputs[0].dtype)]


@node_rewriter([Elemwise])
def log_of_complement(fgraph, node):
    """``log1p(−erfc(x)/2)`` and ``log(1 − erfc(x)/2)`` are ``log_ndtr(√2 x)``."""
    [argument] = node.inputs[:1]
    if isinstance(node.op.scalar_op, Log1p):
        taken, sign = argument, -1.0
    elif isinstance(node.op.scalar_op, Log) and [constant(v) for v in arguments(argument, Sub)[:1]] == [1]:
        taken, sign = arguments(argument, Sub)[1], 1.0
    else:
        return None
    scale, x = _scaled_erfc(taken)
    if x is None or not np.isclose(sign * scale, 0.5, rtol=1e-12):
        return None
    return [log_ndtr(_SQRT_2 * x).astype(node.outputs[0].dtype)]


NORMAL_TAIL_REWRITES = (half_one_plus_erf, log_of_scaled_erfc, log_of_complement)


def _scaled_erfc(variable: Variable) -> tuple[float, Variable | None]:
    """``(c, x)`` where the variable is c erfc(x)."""
    scale = 1.0
    if negated := arguments(variable, Neg):
        scale, variable = -1.0, negated[0]
    factors = arguments(variable, Mul) or [variable]
    numbers = [constant(v) for v in factors]
    inner = [arguments(v, Erfc) for v in factors]
    found = [x[0] for x in inner if x]
    if len(found) != 1 or any(number is None and not x for number, x in zip(numbers, inner, strict=True)):
        return scale, None
    return scale * float(np.prod([float(number) for number in numbers if number is not None])), found[0]
