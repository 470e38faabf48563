"""The prior of a Stan program: what is quadratic in its log density, and sites along single coordinates."""

from __future__ import annotations

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.factors.finder import GaussianPart, SiteGroup, complete_gaussian
from ppl_backends.targets.factors.recognise import recognise
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.stan.factors.quantities import TOLERANCE, Quantities

__all__ = ["read_prior"]

ROUNDING = 1e-11  # of differences, relative to the values


def read_prior(program: Quantities) -> tuple[GaussianPart, list[SiteGroup]]:
    """Return the Gaussian part, and sites along coordinates."""
    dim, origin = program.dim, program.log_prior(np.zeros((1, program.dim)))[0]
    if not np.isfinite(origin):
        raise ModelError(f"{program.label}: the prior is not finite at the origin of the unconstrained parameters")
    precision, slope = np.zeros((dim, dim)), np.zeros(dim)
    sites: dict[int, SiteGroup] = {}
    steps = np.array([_step(program, j, origin) for j in range(dim)])
    for j in range(dim):
        s = steps[j] * np.array([-2.0, -1.0, 1.0, 2.0])
        line = program.log_prior(s[:, None] * np.eye(dim)[j]) - origin
        second = (line[1] + line[2]) / steps[j] ** 2
        first = (line[2] - line[1]) / (2 * steps[j])
        size = 1 + np.abs(line) + abs(origin)
        if (np.abs(first * s + 0.5 * second * s**2 - line) <= TOLERANCE * size).all():
            flat = abs(second) * steps[j] ** 2 <= ROUNDING * size.max()
            precision[j, j], slope[j] = 0.0 if flat else -second, first
            continue
        known = recognise(lambda s, j=j: program.log_prior(s * np.eye(dim)[j])[:, None] - origin, 1)  # type: ignore[misc]
        if known is None:
            said = (
                f"the prior of {program.names[j]} is neither Gaussian nor of another known family along its coordinate"
            )
            raise program.refuse(said, j)
        sites[j] = SiteGroup.of_known(known, np.eye(dim)[j : j + 1], np.zeros(1), False)
    _couple(program, precision, steps, origin, set(sites))
    return complete_gaussian(origin, slope, precision), list(sites.values())


def _step(program: Quantities, j: int, origin: float) -> float:
    """A step along a coordinate over which the log prior changes by about one, or 1 where it is flat."""
    sizes = 10.0 ** np.arange(-4, 5)
    change = np.abs(
        program.log_prior(np.concatenate([sizes, -sizes])[:, None] * np.eye(program.dim)[j]) - origin
    ).reshape(2, -1)
    change = np.where(np.isfinite(change), change, np.inf).max(axis=0)
    large = np.flatnonzero(change > 0.1)
    return float(sizes[large[0]]) if len(large) else 1.0


def _couple(program: Quantities, precision: Array, steps: Array, origin: float, alone: set[int]) -> None:
    """Fill in the precision off the diagonal; a coordinate with a site of its own must have nothing there."""
    mixed = (
        _mixed_by_gradients(program, steps) if program.has_prior_gradient else _mixed_by_values(program, steps, origin)
    )
    np.fill_diagonal(mixed, 0.0)
    for j, k in np.argwhere(np.triu(mixed)):
        if j in alone or k in alone:
            said = (
                f"the priors of {program.names[j]} and {program.names[k]} are neither Gaussian together nor independent"
            )
            raise program.refuse(said, int(k if k in alone else j))
    precision -= mixed


def _mixed_by_gradients(program: Quantities, steps: Array) -> Array:
    """Cycle second derivatives ``(dim, dim)`` from one gradient a coordinate; zero within rounding."""
    at_zero, moved = np.split(program.prior_gradient(np.concatenate([np.zeros((1, program.dim)), np.diag(steps)])), [1])
    mixed = (moved - at_zero) / steps[:, None]
    size = ROUNDING * (1 + np.abs(moved).max(axis=1) + np.abs(at_zero).max()) / steps
    return np.where(np.abs(mixed) + np.abs(mixed.T) <= size[:, None] + size, 0.0, 0.5 * (mixed + mixed.T))


def _mixed_by_values(program: Quantities, steps: Array, origin: float) -> Array:
    """The same from differences of values, for each pair of coordinates."""
    dim = program.dim
    single = program.log_prior(np.diag(steps))
    mixed = np.zeros((dim, dim))
    for j in range(dim - 1):
        others = np.arange(j + 1, dim)
        points = np.diag(steps)[others]
        points[:, j] = steps[j]
        both = program.log_prior(points)
        found = both - single[others] - single[j] + origin
        found = np.where(np.abs(found) <= ROUNDING * (1 + np.abs(both) + abs(origin)), 0.0, found)
        mixed[j, others] = mixed[others, j] = found / (steps[j] * steps[others])
    return mixed
