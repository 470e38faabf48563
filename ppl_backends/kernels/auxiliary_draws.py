"""Whether a simulator draws from the model whose log f is given: nothing in a chain shows that it does not.

Draws at two points are told apart by log f at both. The constants of the points differ by an unknown factor, which is
fitted, as the intercept of a logistic regression on the log ratio of f; its slope is one if the draws follow f.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from ppl_backends.errors import ModelError
from ppl_backends.kernels.doubly_intractable import DoublyIntractable
from ppl_backends.numerics.arrays import Array

FIRST_DRAWS, ALL_DRAWS = 100, 1000
DOUBTFUL_Z, LARGEST_Z = 2.0, 6.0
SPREAD = 1.5  # standard deviation of the log ratio of f, at which slopes are best seen
DOUBLINGS = 12


def unlike_draws(model: DoublyIntractable, x: Array, direction: Array, rng: np.random.Generator) -> float:
    """Return by how many standard errors the slope differs from one, for draws at ``x`` and along a ``direction``.

    A few draws suffice if nothing is doubtful. Returns 0 if the simulator fails at the other point, or log f is the same
    for all data.
    """
    draws = model.simulate(x, FIRST_DRAWS, rng)
    other = _apart(model, x, direction, draws)
    if other is None:
        return 0.0
    z = 0.0
    for n in (FIRST_DRAWS, ALL_DRAWS):
        try:
            at = [draws if n == FIRST_DRAWS else model.simulate(x, n, rng), model.simulate(other, n, rng)]
        except ModelError:
            return 0.0
        with np.errstate(all="ignore"):
            ratios = [model.log_f_difference(x, other, data) for data in at]
        z = slope_difference(*ratios)
        if abs(z) < DOUBTFUL_Z:
            return 0.0
    return z


def _apart(model: DoublyIntractable, x: Array, direction: Array, draws: Array) -> Array | None:
    """Return the point along the direction at which the log ratio of f varies as wanted; None if there is none."""
    step = 1.0
    for _ in range(DOUBLINGS):
        other = x + step * direction
        with np.errstate(all="ignore"):  # far from the posterior
            spread = float(np.std(model.log_f_difference(x, other, draws)))
        if not np.isfinite(spread) or not np.isfinite(model.log_prior(other[None])[0]):
            step *= 0.25
        elif spread == 0:
            return None
        elif 0.7 * SPREAD < spread < 1.4 * SPREAD:
            return other
        else:
            step *= float(np.clip(SPREAD / spread, 0.1, 10.0))
    return None


def slope_difference(at_first: Array, at_second: Array) -> float:
    """Return the score of the slope in standard errors, from log ratios of f at draws from the two points.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> first, second = rng.normal(0, 1, 4000), rng.normal(1, 1, 4000)
    >>> abs(slope_difference(first, second)) < 3, slope_difference(2 * first, 2 * second) < -6
    (True, True)
    """
    if not (np.isfinite(at_first).all() and np.isfinite(at_second).all()):
        return 0.0

    def gap(c: float) -> float:
        return float(expit(-at_second - c).mean() - expit(at_first + c).mean())

    largest = 50.0 + float(np.abs([*at_first, *at_second]).max())
    c = brentq(gap, -largest, largest)
    pi = [expit(each + c) for each in (at_first, at_second)]
    weights = [p * (1 - p) for p in pi]
    total = sum(w.sum() for w in weights)
    if total == 0:
        return 0.0
    centre = sum((w * each).sum() for w, each in zip(weights, (at_first, at_second), strict=True)) / total
    terms = pi[0] * (at_first - centre), (1 - pi[1]) * (at_second - centre)
    n = len(at_first)
    seen = sum(term.var() for term in terms) / n
    expected = (
        sum((w * (each - centre) ** 2).sum() for w, each in zip(weights, (at_first, at_second), strict=True)) / n**2
    )
    return float((terms[1].mean() - terms[0].mean()) / np.sqrt(max(seen, expected, 1e-300)))
