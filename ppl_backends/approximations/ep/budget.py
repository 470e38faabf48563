"""A budget for a fit of which only a start is made: evaluations of sites, not time, so that one seed has one result.

Sites with jumps or hard support are integrated by panels, which take a hundred times as many calls as a rule. With
hyper-parameters, EP runs some hundred times. A sampler can start from Laplace's approximation before that ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

CALL = 2000  # points that take as long as a call by itself
CHEAPEST = 8  # points for each site in a call of the cheapest rule
BISECTION = 4.0  # calls of a rule that take as long as one by panels, with what is done between two
PROGRAM = 20.0  # calls of a rule that take as long as a program that returns the sites at as many points

_left: ContextVar[list[float] | None] = ContextVar("evaluations_left", default=None)


class BudgetSpentError(Exception):
    """Raised where sites are evaluated if no more evaluations are left."""


@contextmanager
def at_most(calls: float) -> Iterator[None]:
    """Limit evaluations of sites in this context to so many calls of the cheapest rule for the same sites."""
    token = _left.set([calls])
    try:
        yield
    finally:
        _left.reset(token)


def spend(points: int, sites: int, calls: float = 1.0) -> None:
    """Count a call that evaluates ``sites`` at ``points`` in all, as so many calls; raise an error if none are left."""
    left = _left.get()
    if left is None:
        return
    left[0] -= calls * (CALL + points) / (CALL + CHEAPEST * sites)
    if left[0] < 0:
        raise BudgetSpentError("no more evaluations of sites are left")
