"""Dispersed starting points of finite density.

Every backend first draws points as its own samplers do: PyMC's initial point with jitter, Stan's uniform points. A bound
that depends on the data can leave none of them inside the support (the endpoint of a uniform distribution is above every
observation). Then points are looked for among draws of the prior, and if there are none among Cauchy points, and those of
highest density are the starts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError, PriorSamplingError
from ppl_backends.targets.protocol import Array, BaseTarget

JITTER_ROUNDS = 12
UNIFORM_ROUNDS = 100
BATCHES, BATCH = 16, 256  # of draws of the prior, and of Cauchy points
_HALF_RANGE = 2.0  # of Stan's uniform points, and the scale of the Cauchy points


def jittered_starts(target: BaseTarget, start: Array, n: int, rng: np.random.Generator) -> Array:
    """Return ``n`` points ``(n, dim)`` around ``start``, jittered by U(-1, 1).

    Rows of zero density are jittered again, over a range that is halved every other round.
    """

    def draw(size: int, round_: int) -> Array:
        return start + 0.5 ** (round_ // 2) * rng.uniform(-1.0, 1.0, size=(size, target.dim))

    return _starts(target, draw, n, JITTER_ROUNDS, start, rng)


def uniform_starts(target: BaseTarget, n: int, rng: np.random.Generator) -> Array:
    """Return ``n`` points ``(n, dim)`` uniform on (-2, 2) in every coordinate; rows of zero density are drawn again."""

    def draw(size: int, round_: int) -> Array:
        return rng.uniform(-_HALF_RANGE, _HALF_RANGE, size=(size, target.dim))

    return _starts(target, draw, n, UNIFORM_ROUNDS, np.zeros(target.dim), rng)


def _starts(
    target: BaseTarget,
    draw: Callable[[int, int], Array],
    n: int,
    rounds: int,
    centre: Array,
    rng: np.random.Generator,
) -> Array:
    """Return points of ``draw(size, round)``, drawn again where the density is zero, or others after all ``rounds``."""
    x, wrong = np.empty((n, target.dim)), np.ones(n, dtype=bool)
    for round_ in range(rounds):
        x[wrong] = draw(int(wrong.sum()), round_)
        wrong = ~_inside(target, x)
        if not wrong.any():
            return x
    return _completed(target, x, wrong, centre, rng)


def _inside(target: BaseTarget, x: Array) -> NDArray[np.bool_]:
    """Return at which points the density and its gradient are finite."""
    value, gradient = target.log_density_and_gradient(x)
    return np.isfinite(value) & np.isfinite(gradient).all(axis=1)


def _completed(
    target: BaseTarget, x: Array, wrong: NDArray[np.bool_], centre: Array, rng: np.random.Generator
) -> Array:
    """Return the starts with other points in their ``wrong`` rows: copies of right rows, or points from far away."""
    found = _highest_elsewhere(target, centre, len(x), rng) if wrong.all() else x[~wrong]
    if not len(found) and _inside(target, centre[None])[0]:
        found = centre[None]  # of a support so narrow that no point around it is inside
    if not len(found):
        reason = target.explain(centre) or "check the data and the bounds of the parameters"
        raise ModelError(f"{target.label}: no starting point has a positive density; {reason}")
    x = x.copy()
    x[wrong] = found[rng.permutation(int(wrong.sum())) % len(found)]
    return x


def _highest_elsewhere(target: BaseTarget, centre: Array, n: int, rng: np.random.Generator) -> Array:
    """Return up to ``n`` draws of the prior, or Cauchy points around ``centre``, of highest density."""

    def cauchy(size: int, rng: np.random.Generator) -> Array:
        return centre + _HALF_RANGE * rng.standard_cauchy((size, target.dim))

    for draw in (target.sample_prior, cauchy):
        found, height = np.empty((0, target.dim)), np.empty(0)
        for _ in range(BATCHES):
            try:
                x = draw(BATCH, rng)
            except PriorSamplingError:  # an improper prior, or one that no program draws from
                break
            with np.errstate(all="ignore"):
                x = x[_inside(target, x)]
                found, height = np.concatenate([found, x]), np.concatenate([height, target.log_density(x)])
            if len(found) >= n:
                break
        if len(found):
            return found[np.argsort(-height, kind="stable")[:n]]
    return np.empty((0, target.dim))
