r"""Angles on the unconstrained space.

PyMC's ``circular`` transform, the default of ``VonMises``, repeats a density p of the circle along the line, so its
integral is infinite. Here it is multiplied by the window w(x) = F(x + π) − F(x − π), where F is the logistic
distribution function of scale s = ¼. The windows of all turns, w(x + 2πk), add up to one. So p w has the integral of p
over one period, and for every draw x of it the angle x mod 2π is a draw of p. Given the angle, x is the turn of it
within π of a logistic number of scale s: w(x) is the probability that such a number is within π of x.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import CircularTransform
from pytensor.graph.basic import Variable

from ppl_backends.targets.protocol import Array

SCALE = 0.25
_GOLDEN = (5**0.5 - 1) / 2


def is_circular(model: pm.Model, rv: Variable) -> bool:
    """Return whether the free variable is an angle."""
    return isinstance(model.rvs_to_transforms[rv], CircularTransform)


def circular_coordinates(model: pm.Model, shapes: Iterable[tuple[int, ...]]) -> list[int]:
    """Return the coordinates that are angles, of free variables with these shapes."""
    angles = [is_circular(model, rv) for rv in dict.fromkeys(model.free_RVs)]
    return np.flatnonzero(np.repeat(angles, [math.prod(shape) for shape in shapes])).tolist()


def with_windows(model: pm.Model, variables: Sequence[Variable], terms: Sequence[Variable]) -> list[Variable]:
    """Return elementwise terms of the log density of ``variables``, plus the log windows of those that are angles."""
    angles = {rv for rv in model.free_RVs if is_circular(model, rv)}
    return [
        term + log_window(model.rvs_to_values[rv]) if rv in angles else term
        for rv, term in zip(variables, terms, strict=True)
    ]


def log_window(value: Variable) -> Variable:
    """Return log w."""
    x, end = value / SCALE, np.pi / SCALE
    return 2 * end + np.log1p(-np.exp(-2 * end)) - pt.softplus(end + x) - pt.softplus(end - x)


def on_the_line(rv: Variable) -> Variable:
    """Return a draw of the density with the window from a draw of an angle."""
    u = pt.random.uniform(size=rv.shape)
    return rv + 2 * np.pi * pt.ceil((SCALE * (pt.log(u) - pt.log1p(-u)) - np.pi - rv) / (2 * np.pi))


def spread(x: Array, circular: Sequence[int]) -> Array:
    """Return points ``(n, dim)`` whose angles, in these coordinates, are put on turns of the line, the first on its own turn.

    A sequence that fills (0, 1) evenly replaces the uniform numbers, so that the same points have the same turns.
    """
    if not circular:
        return x
    u = (0.5 + _GOLDEN * np.arange(len(x) * len(circular)).reshape(len(x), -1)) % 1.0
    angles = x[:, circular]
    x = x.copy()
    x[:, circular] = angles + 2 * np.pi * np.ceil((SCALE * np.log(u / (1 - u)) - np.pi - angles) / (2 * np.pi))
    return x
