"""Where a term can be cut from the parameters: affine quantities through which alone it depends on them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Set
from functools import partial

from pytensor.graph.basic import Variable

__all__ = ["cuts"]


def cuts(
    term: Variable, affine: Set[Variable], moving: Set[Variable], leaves: Set[Variable]
) -> Iterator[list[Variable]]:
    """Cuts of one term, those of a single quantity first, nearest to the term first.

    The last one is the set of all affine quantities that a nonlinear operation reads. It is only tried when no single
    quantity will do, since a branch of a switch that was not taken can hide what it depends on.

    Parameters
    ----------
    term : Variable
    affine : set of Variable
        Quantities that are affine in the moving coordinates.
    moving : set of Variable
        All quantities that depend on them.
    leaves : set of Variable
        The moving value variables.
    """
    order, _ = _walk(term, moving, lambda v: False)
    for candidate in order:
        if candidate in affine:
            reached, _ = _walk(term, moving, partial(operator.is_, candidate))
            if not any(v in leaves and v is not candidate for v in reached):
                yield [candidate]
    _, frontier = _walk(term, moving, lambda v: v in affine)
    if len(frontier) > 1:
        yield frontier


def _walk(
    term: Variable, moving: Set[Variable], stop: Callable[[Variable], bool]
) -> tuple[list[Variable], list[Variable]]:
    """Moving quantities from the term downwards, breadth first, and those of them at which the walk stopped."""
    seen, stopped, queue = {term: None}, [], [term]
    for variable in queue:  # grows while it is walked
        if stop(variable):
            stopped.append(variable)
        elif variable.owner is not None:
            for above in variable.owner.inputs:
                if above in moving and above not in seen:
                    seen[above] = None
                    queue.append(above)
    return queue, stopped
