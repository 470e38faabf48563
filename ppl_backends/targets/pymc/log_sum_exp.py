"""``log Σ exp(x)``, the heart of mixtures, with no derivative through the maximum.

PyTensor stabilises it as m + log Σ exp(x − m) with m = max x. The value does not depend on m, so neither does the
derivative; taken through m, as JAX and PyTensor do, it costs as much as all the rest. Here m is a constant to derivatives.
"""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.scalar.basic import Add, Exp, IsInf, Log, Sub, Switch
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Max, Sum

from ppl_backends.targets.pymc.matching import arguments

__all__ = ["Shift", "register_jax", "shift_without_gradient"]


class Shift(Max):
    """The maximum, as a constant to derivatives."""

    def grad(self, inputs: Any, grads: Any) -> Any:
        """Zero."""
        return [pt.zeros_like(inputs[0])]

    def L_op(self, inputs: Any, outputs: Any, grads: Any) -> Any:
        """The same; PyTensor 3 asks for it by this name."""
        return self.grad(inputs, grads)


def register_jax(jax_funcify: Any) -> None:
    """Tell PyTensor's translation to JAX."""
    import jax

    jax_funcify.register(Shift, lambda op, **_: lambda x: jax.lax.stop_gradient(x.max(axis=op.axis)))


@node_rewriter([Elemwise])
def shift_without_gradient(fgraph, node):
    """``m + log Σ exp(x − m)`` as PyTensor stabilises it, with ``m`` constant to derivatives."""
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
    """The sum in ``log Σ switch(isinf(m), exp(m), exp(x − m))``, the maximum, ``m`` as it is subtracted, and ``x``."""
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
    """What a variable is but for axes of length one."""
    node = variable.owner
    return node.inputs[0] if node is not None and isinstance(node.op, DimShuffle) else variable


def _placed(like: Variable, old: Variable, new: Variable) -> Variable:
    """``new`` with the axes that ``like`` gives ``old``."""
    return new if like is old else like.owner.op(new)
