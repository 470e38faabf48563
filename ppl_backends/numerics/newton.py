"""Newton's method for a concave function, with steps halved until the function does not decrease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.gaussian import Gaussian

HALVINGS = 30


class Expansion(NamedTuple):
    """Value, gradient ``(dim,)`` and minus the Hessian ``(dim, dim)`` at a point, and intermediate results."""

    value: float
    gradient: Array
    precision: Array
    source: Any = None


class Summit(NamedTuple):
    """Result of a climb; ``step`` is N(H⁻¹g, H⁻¹): the Newton step, and the covariance of the Laplace approximation.

    ``gain`` is ½ gᵀH⁻¹g, the expected gain of the step; a climb is ``settled`` if it ended before its iterations did.
    """

    x: Array
    expansion: Expansion
    step: Gaussian
    gain: float
    settled: bool


def climb_concave(
    expand: Callable[[Array], Expansion], start: Array, gain: float, max_iterations: int = 50, rounding: float = 0.0
) -> Summit | None:
    """Return the maximum; None if the start has no finite value, or a Hessian is not negative definite.

    The search stops if the expected gain of a step is below ``gain``. Because of rounding, a step may decrease the
    value by the share ``rounding`` of it.
    """
    x, here = start, expand(start)
    if not np.isfinite(here.value):
        return None
    while True:
        step = Gaussian.from_natural(here.precision, here.gradient)
        if step is None:
            return None
        promised = 0.5 * float(here.gradient @ step.mean)
        if promised < gain or max_iterations == 0:
            return Summit(x, here, step, promised, promised < gain)
        max_iterations -= 1
        for halving in range(HALVINGS):
            there = expand(x + step.mean * 0.5**halving)
            if there.value >= here.value - rounding * abs(here.value):
                break
        else:
            return Summit(x, here, step, promised, True)
        x, here = x + step.mean * 0.5**halving, there
