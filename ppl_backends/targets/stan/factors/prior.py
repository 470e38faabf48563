"""The prior of a Stan program: what is quadratic in its log density, and sites along single coordinates."""

from __future__ import annotations

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.factors import ScaledSites, SiteFamily
from ppl_backends.targets.factors.recognise import recognise
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.stan.factors.quantities import TOLERANCE, Quantities

__all__ = ["read_prior"]


def read_prior(program: Quantities) -> tuple[Array, Array, list[tuple[int, SiteFamily, float, Array]]]:
    """Mean and precision of the Gaussian part, and sites along coordinates: number, family, slope and intercept."""
    dim, origin = program.dim, program.log_prior(np.zeros((1, program.dim)))[0]
    if not np.isfinite(origin):
        raise ModelError(f"{program.label}: the prior is not finite at the origin of the unconstrained parameters")
    precision, slope, sites = np.zeros((dim, dim)), np.zeros(dim), []
    steps = np.array([_step(program, j, origin) for j in range(dim)])
    for j in range(dim):
        s = steps[j] * np.array([-2.0, -1.0, 1.0, 2.0])
        line = program.log_prior(s[:, None] * np.eye(dim)[j]) - origin
        second = (line[1] + line[2]) / steps[j] ** 2
        first = (line[2] - line[1]) / (2 * steps[j])
        if (np.abs(first * s + 0.5 * second * s**2 - line) <= TOLERANCE * (1 + np.abs(line) + abs(origin))).all():
            precision[j, j], slope[j] = -second, first
            continue
        known = recognise(lambda s, j=j: program.log_prior(s * np.eye(dim)[j])[:, None] - origin, 1)  # type: ignore[misc]
        if known is None:
            said = (
                f"the prior of {program.names[j]} is neither Gaussian nor of another known family along its coordinate"
            )
            raise program.refuse(said, j)
        family: SiteFamily = ScaledSites(known.family, known.constant) if np.any(known.constant) else known.family
        sites.append((j, family, float(np.ravel(known.scale)[0]), np.ravel(known.shift)))
    _mixed_differences(program, precision, slope, steps, origin, {j for j, *_ in sites})
    off_diagonal = precision - np.diag(np.diag(precision))
    mean = np.linalg.lstsq(precision, slope, rcond=None)[0]
    if not np.allclose(precision @ mean, slope, atol=1e-8 * (1 + np.abs(slope).max())):
        raise ModelError(
            f"{program.label}: the prior is an exponential along some direction, so EP does not apply to it"
        )
    return np.asarray(mean, dtype=np.float64), precision if np.any(off_diagonal) else np.diag(precision).copy(), sites


def _step(program: Quantities, j: int, origin: float) -> float:
    """A step along a coordinate over which the log prior changes by about one, or 1 where it is flat."""
    sizes = 10.0 ** np.arange(-4, 5)
    change = np.abs(
        program.log_prior(np.concatenate([sizes, -sizes])[:, None] * np.eye(program.dim)[j]) - origin
    ).reshape(2, -1)
    change = np.where(np.isfinite(change), change, np.inf).max(axis=0)
    large = np.flatnonzero(change > 0.1)
    return float(sizes[large[0]]) if len(large) else 1.0


def _mixed_differences(
    program: Quantities, precision: Array, slope: Array, steps: Array, origin: float, alone: set[int]
) -> None:
    """Fill in the precision off the diagonal; a coordinate with a site of its own must have nothing there."""
    dim = program.dim
    for j in range(dim):
        others = np.arange(j + 1, dim)
        if not len(others):
            continue
        points = np.zeros((len(others), 2, dim))
        points[np.arange(len(others)), :, others] = steps[others, None]
        points[:, 0, j] = steps[j]
        both, single = program.log_prior(points.reshape(-1, dim)).reshape(-1, 2).T
        own = program.log_prior(steps[j] * np.eye(dim)[j][None])[0]
        mixed = both - single - own + origin
        size = 1e-11 * (1 + np.abs(both) + abs(origin))
        mixed = np.where(np.abs(mixed) <= size, 0.0, mixed)
        precision[j, others] = precision[others, j] = -mixed / (steps[j] * steps[others])
        tied = [k for k in others[mixed != 0] if k in alone or j in alone]
        if tied:
            both_names = f"{program.names[j]} and {program.names[tied[0]]}"
            said = f"the priors of {both_names} are neither Gaussian together nor independent"
            raise program.refuse(said, int(tied[0]) if tied[0] in alone else j)
