"""Functions in common likelihoods, as operations of this package: stable where PyTensor's are not, and faster.

*Logs of normal distribution functions.* A probit likelihood written as ``log(p)`` or ``log1p(-p)`` of
``p = invprobit(eta)`` loses accuracy where ``p`` rounds to 0 or 1: its value becomes -inf and, already from eta = 8.3 on,
its derivative is NaN, because both branches of the Bernoulli density are differentiated. For well-separated data this
happens at the mode itself. Such expressions become ``log_ndtr``. Logs of probabilities of intervals become ``log_interval``.

*softplus(x) = log(1 + exp(x)).* PyTensor's becomes three exponentials under JAX, with a derivative that overflows to
NaN beyond x = 709, and spends most of its time in ``log1p`` under Numba. Here it is max(x, 0) + log1p(e) with e =
exp(-|x|) in (0, 1]; under Numba log1p(e) is log(1 + e), or its series for e < 0.001, where the sum would lose digits.

*log Σ exp(x).* PyTensor stabilises it as m + log Σ exp(x − m) with m = max x. The value does not depend on m, and
neither does the derivative; computed through m, as JAX and PyTensor do, it takes as long as everything else. Here m is
a constant in derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.scalar.basic import (
    Add,
    BinaryScalarOp,
    Exp,
    IsInf,
    Log,
    Log1p,
    Mul,
    Neg,
    Sub,
    Switch,
    UnaryScalarOp,
    upgrade_to_float,
)
from pytensor.scalar.math import Erf, Erfc, Softplus, sigmoid
from pytensor.scalar.math import softplus as pytensor_softplus
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Max, Sum
from scipy.special import log_ndtr as scipy_log_ndtr

from ppl_backends.targets.pymc.matching import arguments, constant

_SQRT_2 = math.sqrt(2.0)


class LogNdtr(UnaryScalarOp):
    """Log of the standard normal distribution function."""

    nfunc_spec = ("scipy.special.log_ndtr", 1, 1)

    def impl(self, x: Any) -> Any:
        """Return the value in Python."""
        return scipy_log_ndtr(x)

    def grad(self, inputs: Any, grads: Any) -> Any:
        """Return φ(x)/Φ(x), the inverse Mills ratio, in logs."""
        (x,), (gz,) = inputs, grads
        from pytensor.scalar.basic import exp

        return (gz * exp(-0.5 * x * x - 0.5 * math.log(2 * math.pi) - log_ndtr_scalar(x)),)

    def L_op(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        """Return the same; PyTensor 3 uses this name."""
        return self.grad(inputs, grads)


log_ndtr_scalar = LogNdtr(upgrade_to_float, name="log_ndtr")
log_ndtr = Elemwise(log_ndtr_scalar)


class LogInterval(BinaryScalarOp):
    """``log(Φ(x) − Φ(y))`` for x ≥ y."""

    def impl(self, x: Any, y: Any) -> Any:
        """Return the value in Python."""
        x, y = (-y, -x) if x > -y else (x, y)
        above, below = float(scipy_log_ndtr(x)), float(scipy_log_ndtr(y))
        if not below < above:
            return -math.inf if below == above else math.nan
        return above + math.log(-math.expm1(below - above))

    def grad(self, inputs: Any, grads: Any) -> Any:
        """Return φ(x) and −φ(y), over Φ(x) − Φ(y)."""
        from pytensor.scalar.basic import exp

        (x, y), (gz,) = inputs, grads
        log_scale = -0.5 * math.log(2 * math.pi) - log_interval_scalar(x, y)
        return gz * exp(log_scale - 0.5 * x * x), -gz * exp(log_scale - 0.5 * y * y)

    def L_op(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        """Return the same; PyTensor 3 uses this name."""
        return self.grad(inputs, grads)


log_interval_scalar = LogInterval(upgrade_to_float, name="log_interval")
log_interval = Elemwise(log_interval_scalar)


@node_rewriter([Elemwise])
def half_one_plus_erf(fgraph, node):
    """Write ``c (1 + erf(x))`` as ``c erfc(−x)``."""
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
    """Write ``log(c erfc(x))`` as ``log 2c + log_ndtr(−√2 x)``."""
    if not isinstance(node.op.scalar_op, Log):
        return None
    scale, x = _scaled_erfc(node.inputs[0])
    if x is None or not scale > 0:
        return None
    value = log_ndtr(-_SQRT_2 * x)
    return [(value if np.isclose(scale, 0.5, rtol=1e-12) else value + np.log(2 * scale)).astype(node.outputs[0].dtype)]


@node_rewriter([Elemwise])
def log_of_complement(fgraph, node):
    """Write ``log1p(−erfc(x)/2)`` and ``log(1 − erfc(x)/2)`` as ``log_ndtr(√2 x)``."""
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
    """Return ``(c, x)`` if the variable is c erfc(x)."""
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


class FastSoftplus(UnaryScalarOp):
    """``log(1 + exp(x))``."""

    def impl(self, x: Any) -> Any:
        """Return the value in Python."""
        return pytensor_softplus.impl(x)

    def grad(self, inputs: Any, grads: Any) -> Any:
        """Return the logistic function."""
        (x,), (gz,) = inputs, grads
        return (gz * sigmoid(x),)

    def L_op(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        """Return the same; PyTensor 3 uses this name."""
        return self.grad(inputs, grads)

    def c_code(self, *arguments: Any) -> str:
        """Return PyTensor's own C code."""
        return pytensor_softplus.c_code(*arguments)

    def c_code_cache_version(self) -> tuple:
        """Return the version of the C code."""
        return pytensor_softplus.c_code_cache_version()


fast_softplus = Elemwise(FastSoftplus(upgrade_to_float, name="fast_softplus"))


@node_rewriter([Elemwise])
def softplus_to_fast(fgraph, node):
    """Replace PyTensor's ``softplus`` of float64 values."""
    if not isinstance(node.op.scalar_op, Softplus) or node.inputs[0].dtype != "float64":
        return None
    return [fast_softplus(node.inputs[0])]


class Shift(Max):
    """The maximum, as a constant in derivatives."""

    def grad(self, inputs: Any, grads: Any) -> Any:
        """Return zero."""
        return [pt.zeros_like(inputs[0])]

    def L_op(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        """Return the same; PyTensor 3 uses this name."""
        return self.grad(inputs, grads)


@node_rewriter([Elemwise])
def shift_without_gradient(fgraph, node):
    """Write ``m + log Σ exp(x − m)``, as PyTensor stabilises it, with ``m`` constant in derivatives."""
    if not isinstance(node.op.scalar_op, Add):
        return None
    for logarithm in node.inputs:
        found = _stabilised_sum(logarithm)
        if found is None:
            continue
        total, largest, guard, minuend = found
        summands = list(node.inputs)
        matching = [j for j, v in enumerate(summands) if _without_new_axes(v) is largest]
        if not matching:
            continue
        shift = Shift(largest.owner.op.axis)(largest.owner.inputs[0])
        kept = guard.owner.op(shift)
        terms = pt.switch(pt.isinf(kept), pt.exp(kept), pt.exp(minuend - kept))
        whole = pt.log(_placed(logarithm.owner.inputs[0], total, total.owner.op(terms)))
        place = summands[matching[0]]
        summands[summands.index(logarithm)] = whole
        summands[matching[0]] = _placed(place, largest, shift)
        return [node.op(*summands)]
    return None


def _stabilised_sum(logarithm: Variable) -> tuple[Variable, Variable, Variable, Variable] | None:
    """Return the sum, maximum, subtracted maximum and ``x`` of ``log Σ switch(isinf(m), exp(m), exp(x − m))``."""
    for argument in arguments(logarithm, Log):
        total = _without_new_axes(argument)
        if total.owner is None or not isinstance(total.owner.op, Sum):
            continue
        parts = arguments(total.owner.inputs[0], Switch)
        if not parts:
            continue
        infinite, (first, second) = arguments(parts[0], IsInf), (arguments(part, Exp) for part in parts[1:])
        difference = arguments(second[0], Sub) if second else []
        if not (infinite and first and difference and infinite[0] is first[0] is difference[1]):
            continue
        guard, largest = first[0], _without_new_axes(first[0])
        node = largest.owner
        if guard is not largest and node is not None and type(node.op) is Max and node.op.axis == total.owner.op.axis:
            return total, largest, guard, difference[0]
    return None


def _without_new_axes(variable: Variable) -> Variable:
    """Return a variable without axes of length one."""
    node = variable.owner
    return node.inputs[0] if node is not None and isinstance(node.op, DimShuffle) else variable


def _placed(like: Variable, old: Variable, new: Variable) -> Variable:
    """Return ``new`` with the axes that ``like`` gives ``old``."""
    return new if like is old else like.owner.op(new)


# -- translations ------------------------------------------------------------------------------------------------------


def register_jax(jax_funcify: Any) -> None:
    """Register the functions with PyTensor's translation to JAX."""
    import jax
    import jax.numpy as jnp

    from ppl_backends.targets.pymc.jax_functions import log_interval as log_interval_of
    from ppl_backends.targets.pymc.jax_functions import log_ndtr as log_ndtr_of

    @jax.custom_jvp
    def softplus(x):
        return jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))

    softplus.defjvp(lambda x, dx: (softplus(*x), jax.nn.sigmoid(*x) * dx[0]))
    jax_funcify.register(FastSoftplus, lambda op, **_: softplus)
    jax_funcify.register(LogNdtr, lambda op, **_: log_ndtr_of(jax))
    jax_funcify.register(LogInterval, lambda op, **_: log_interval_of(jax))
    jax_funcify.register(Shift, lambda op, **_: lambda x: jax.lax.stop_gradient(x.max(axis=op.axis)))


def register_numba() -> None:
    """Register the functions with PyTensor's translation to Numba."""
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

    @numba.njit(cache=False)
    def log_interval_1(x, y):
        if x > -y:
            x, y = -y, -x
        above = log_ndtr_1(x)
        return above + math.log(-math.expm1(log_ndtr_1(y) - above))

    @numba.njit(cache=False)
    def softplus_with_series(x):
        e = math.exp(-abs(x))
        series = e * (1.0 - e * (0.5 - e * (1.0 / 3.0 - e * (0.25 - e * 0.2))))  # to 2e-16 where it is used
        log1p = math.log(1.0 + e) if e > 1e-3 else series
        return log1p + x if x > 0.0 else log1p

    _register_numba_scalar(LogNdtr, log_ndtr_1)
    _register_numba_scalar(LogInterval, log_interval_1)
    _register_numba_scalar(FastSoftplus, softplus_with_series)


def _register_numba_scalar(operation: type, function: Callable) -> None:
    """Translate a scalar operation to a Numba function.

    Without this PyTensor calls the operation's Python method for every element. PyTensor caches machine code on disk
    under the key, which contains the function's name and module, so a function that changes needs a new name.
    """
    from pytensor.link.numba import dispatch

    try:
        from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key
    except ImportError:  # PyTensor < 2.36
        dispatch.numba_funcify.register(operation, lambda op, *_, **__: function)
        return
    key = f"{function.__module__}.{function.__name__}"
    register_funcify_and_cache_key(operation)(lambda op, *_, **__: (function, key))
