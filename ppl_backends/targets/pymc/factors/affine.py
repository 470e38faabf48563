"""Which quantities are affine, and which terms quadratic, in the coordinates that are not held.

Both are found by differences, at distances from .3 to 3e4 from the origin: an operation counts for what it does, not for
what it is called.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import numpy as np
from pytensor.graph.basic import Variable

from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.factors.graph import PointFunction, TermGraph

__all__ = ["Labels", "label"]

SCALES = (0.3, 3.0, 30.0, 3e4)  # far out a normal density of any scale is no straight line
TOLERANCE = 1e-9


class Labels(NamedTuple):
    """What is affine and what is quadratic.

    Attributes
    ----------
    affine : set of Variable
    quadratic : list of bool
        One for each term.
    """

    affine: set[Variable]
    quadratic: list[bool]


def label(graph: TermGraph, held: Set[str], rng: np.random.Generator) -> Labels:
    """Affine quantities and quadratic terms, given random values of the variables ``held``."""
    moving = graph.moving(held)
    inputs = [v for name, v in graph.values.items() if name not in held]
    inner = [v for node in graph.nodes for v in node.outputs if v in moving and _is_float(v)]
    terms = [term.value for term in graph.terms]
    candidates = list(dict.fromkeys([*inputs, *inner]))
    evaluate = PointFunction(graph, held, [*candidates, *terms])
    still, fixed = np.zeros(graph.dim, bool), graph.coordinates(held)
    still[fixed] = True
    affine, quadratic = np.ones(len(candidates), bool), np.ones(len(terms), bool)
    for scale in SCALES:
        origin = np.where(still, graph.start + rng.normal(size=graph.dim), 0.0)
        p, q, r = np.where(still, 0.0, scale * rng.normal(size=(3, graph.dim)))
        steps = np.stack([0 * p, p, q, p + q, -2 * p, r - p, r, r + p, r + 2 * p])
        values = evaluate(origin + steps)
        with np.errstate(all="ignore"):
            affine &= [_is_affine(value[:5]) for value in values[: len(candidates)]]
            quadratic &= [_is_quadratic(value[5:].reshape(4, -1)) for value in values[len(candidates) :]]
    return Labels({v for v, yes in zip(candidates, affine, strict=True) if yes}, list(map(bool, quadratic)))


def _is_float(variable: Variable) -> bool:
    return str(getattr(variable.type, "dtype", "")).startswith("float")


def _is_affine(f: Array) -> bool:
    """Whether second differences vanish, from values at 0, p, q, p + q and −2p; never where one is not finite."""
    if not np.isfinite(f).all():
        return False
    size = np.abs(f).sum(axis=0)
    tolerance = TOLERANCE * (size + size.max(initial=0.0) + 1e-30)
    mixed = np.abs(f[3] - f[1] - f[2] + f[0])
    straight = np.abs(f[4] + 2 * f[1] - 3 * f[0])
    return bool(np.all(mixed <= tolerance) and np.all(straight <= tolerance))


def _is_quadratic(f: Array) -> bool:
    """Whether the third difference of the sum vanishes, from values at r − p, r, r + p and r + 2p."""
    total = f.sum(axis=1)
    third = total[3] - 3 * total[2] + 3 * total[1] - total[0]
    return bool(np.abs(third) <= TOLERANCE * np.abs(f).sum() + 1e-12)
