"""Logs of normal probabilities of half-lines and intervals, for which PyMC evaluates every branch of a switch.

``pm.Censored``, ``pm.TruncatedNormal`` and ``pm.OrderedProbit`` compute them by ``normal_lcdf``, ``normal_lccdf`` and
``log_diff_normal_cdf``. XLA computes all branches: for the last of these ``erfcx`` four times, ``log`` three times,
``exp`` and ``erf`` twice. One branch suffices once an interval is reflected to the left of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pymc.distributions.dist_math import log_diff_normal_cdf, normal_lccdf, normal_lcdf
from pytensor.graph.basic import Apply, Variable, equal_computations
from pytensor.scalar.basic import GT, LT, Add, Sub, Switch, TrueDiv
from pytensor.tensor.elemwise import Elemwise

from ppl_backends.targets.pymc.matching import arguments, io_toposort
from ppl_backends.targets.pymc.stable_functions import log_interval, log_ndtr


def recognise_normal_intervals(graphs: Sequence[Variable]) -> list[Variable]:
    """Return graphs in which one operation stands for each of PyMC's functions; the given graphs stay as they are."""
    new: dict[Variable, Variable] = {}
    for node in io_toposort([], list(graphs)):
        found = _recognised(node)
        if found is not None:
            function, *limits = found
            new[node.outputs[0]] = function(*[_standardised(new, limit) for limit in limits])
        elif any(v in new for v in node.inputs):
            made = node.clone_with_new_inputs([new.get(v, v) for v in node.inputs])
            for old, output in zip(node.outputs, made.outputs, strict=True):
                output.name, new[old] = old.name, output
    return [new.get(graph, graph) for graph in graphs]


Limit = tuple[Variable, Variable, Variable]  # x, mean and standard deviation


def _standardised(new: dict[Variable, Variable], limit: Limit) -> Variable:
    x, mean, sd = (new.get(v, v) for v in limit)
    return (x - mean) / sd


def _recognised(node: Apply) -> tuple[Any, ...] | None:
    """Return a function of standardised limits and its limits, if a node ends one of PyMC's functions."""
    if not isinstance(node.op, Elemwise) or node.outputs[0].dtype != "float64":
        return None
    [value] = node.outputs
    for comparison, theirs, ours in _HALF_LINES:
        for z in _compared(value, comparison):
            limit = _limit(z)
            if limit and equal_computations([value], [theirs(limit[1], limit[2], limit[0])]):
                return ours, limit
    for switch in arguments(value, Add)[1:]:
        for y in _compared(switch, GT):
            for x in _compared(arguments(switch, Switch)[2], LT):
                upper, lower = (_limit(next(iter(arguments(z, TrueDiv)), z)) for z in (x, y))
                if upper and lower:
                    _, mean, sd = upper
                    if equal_computations([value], [log_diff_normal_cdf(mean, sd, upper[0], lower[0])]):
                        return log_interval, upper, lower
    return None


def _compared(value: Variable, comparison: type) -> list[Variable]:
    """Return ``z`` of ``switch(z < c, ...)``, or of another comparison, if the value is one."""
    return [z for condition in arguments(value, Switch)[:1] for z in arguments(condition, comparison)[:1]]


def _limit(z: Variable) -> Limit | None:
    """Return ``(x, mean, sd)`` if the variable is ``(x − mean) / sd``."""
    quotient = arguments(z, TrueDiv)
    difference = arguments(quotient[0], Sub) if quotient else []
    return (difference[0], difference[1], quotient[1]) if difference else None


def _upper(z: Variable) -> Variable:
    return log_ndtr(-z)


_HALF_LINES: tuple[tuple[type, Callable[..., Variable], Callable[..., Variable]], ...] = (
    (LT, normal_lcdf, log_ndtr),
    (GT, normal_lccdf, _upper),
)
