"""A mode of a posterior that draws or weighted points miss: its mass, and the words of the warning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.modes import beyond
from ppl_backends.targets.protocol import Array, BaseTarget

TIMES = 2.0  # of the mass that points represent, above which a mode is missed
_LARGEST_DIM = 100  # above it the Hessians of climbs cost more than they are worth
_POINTS = 512  # of importance sampling
_FEWEST_WEIGHTS = 20.0  # effective number of those, below which a mass is not known


class LostMode(NamedTuple):
    """A mode at ``x`` ``(dim,)`` that holds too few of the draws, a share ``held`` of them.

    It has a ``share`` of the evidence, is farthest from the draws in a ``coordinate``, and ``gaussian`` fits it. A ``wide``
    one is around the draws, and may be a part of a heavy tail.
    """

    share: float
    x: Array
    coordinate: int
    held: float
    gaussian: GaussianApproximation
    wide: bool = False


def lost_mode_reason(
    lost: LostMode,
    names: Sequence[str] = (),
    advice: str = ": use initial='auto', which starts from all modes that it finds, or increase draws",
) -> str:
    """Return the warning about a mode without draws."""
    name = name_of(lost.coordinate, names)
    holds = "no draw" if lost.held == 0 else f"{100 * lost.held:.3g} % of the draws"
    if lost.held > lost.share / TIMES:
        holds += ", which few independent points decide"
    return (
        f"a mode with about {100 * lost.share:.0f} % of the posterior, at `{name}` = {lost.x[lost.coordinate]:.3g} on the "
        f"unconstrained scale, holds {holds}{advice}"
    )


def largest(modes: Iterable[LostMode | None]) -> LostMode | None:
    """Return the mode of the largest share; None if there is none."""
    return max((mode for mode in modes if mode is not None), key=lambda mode: mode.share, default=None)


def name_of(coordinate: int, names: Sequence[str]) -> str:
    """Return what a coordinate is called in warnings."""
    return names[coordinate] if names else f"coordinate {coordinate}"


def can_be_sought(target: BaseTarget) -> bool:
    """Return whether lost modes are looked for.

    Climbs need gradients, and Hessians of a size that can be afforded. A log-concave density has no other mode.
    """
    return target.has_gradient and target.dim <= _LARGEST_DIM and not target.log_concave


def log_mass_of(
    log_density: Callable[[Array], Array], mode: GaussianApproximation, rng: np.random.Generator
) -> float | None:
    """Return the log integral of a density within an ellipsoid around a mode; None where too few weights decide it."""
    x = mode.sample(_POINTS, rng)
    inside = ~beyond(x, mode)
    log_weights = np.where(inside, log_density(x) - mode.log_density(x), -np.inf)
    peak = log_weights.max()
    if not np.isfinite(peak):
        return None
    weights = np.exp(log_weights - peak)
    if weights.sum() ** 2 < _FEWEST_WEIGHTS * (weights**2).sum():
        return None
    return float(peak + np.log(weights.mean()))


def farthest(x: Array, points: Array) -> int:
    """Return the coordinate of ``x`` that is farthest from the points."""
    return int(np.argmax(np.abs(x - points.mean(axis=0)) / np.maximum(points.std(axis=0), 1e-300)))
