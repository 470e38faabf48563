"""The other modes of a posterior, found by climbs from draws of the prior.

A Gaussian at one mode and its points give no sign of another mode. Climbs from dispersed points do: each ends at the
mode of the basin in which it started. The first climbs start at draws of the prior of highest density that no known
mode explains. The others start at draws in random order, until many in a row have found nothing new; the required
number increases with the number of modes. With m modes of equal basins, one more is missed with probability (1 −
1/m)^(8m). A mode with a small basin, which few draws of the prior lead to, can still be missed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.approximations.newton import LARGEST_NEWTON_DIM, modes_above
from ppl_backends.approximations.verdict import POINTS, judge_mixture
from ppl_backends.errors import PriorSamplingError
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation

CLIMBS = 8  # at once
_WIDE = 2.0 ** np.linspace(2.0, 5.5, CLIMBS)  # times the standard deviations of a Gaussian, for climbs around it
FRUITLESS = 8  # climbs in a row without a new mode after which the search ends, per mode found plus once
LIKELIEST = 4  # number of climbs after a new mode that start at the points of highest density
ITERATIONS = 30  # of a climb; climbs that are not at a mode then are dropped
MOST_CLIMBS = 256
PRIOR_POINTS = 1024
BEYOND = 4.0  # standard deviations of the squared distance from a mode, for points that it does not explain
APART = 0.1  # posterior standard deviations between two modes
SMALLEST_SHARE = 1e-6  # of the evidence, for modes that are kept


def with_other_modes(target: BaseTarget, found: GaussianApproximation) -> GaussianApproximation | MixtureApproximation:
    """Add to a Laplace approximation the modes that climbs from draws of the prior find, weighted by their evidences.

    Above 300 coordinates there is no search. ``diagnostics`` has ``modes``, ``climbs``, and ``search_complete``, which
    is 0 if the search ended while it still found new ones. The draws are the same in every call. The mixture is compared
    with the posterior at 256 of its points; ``trouble`` says what differs.
    """
    if not np.isfinite(found.log_evidence) or target.dim > LARGEST_NEWTON_DIM:
        return found
    modes, climbs, complete = _search(target, found, MOST_CLIMBS)
    if len(modes) == 1:
        return found
    evidence = np.array([mode.log_evidence for mode in modes])
    weights = np.exp(evidence - evidence.max())
    modes = [mode for mode, weight in zip(modes, weights, strict=True) if weight > SMALLEST_SHARE]
    if len(modes) == 1:
        return modes[0]
    mixture = MixtureApproximation(
        weights[weights > SMALLEST_SHARE],
        np.stack([mode.mean for mode in modes]),
        np.stack([mode.cov for mode in modes]),
        target=target,
        method="laplace",
        log_evidence=float(np.logaddexp.reduce(evidence)),
        diagnostics={"modes": float(len(modes)), "climbs": float(climbs), "search_complete": float(complete)},
    )
    return _judged(target, mixture)


def _judged(target: BaseTarget, q: MixtureApproximation) -> MixtureApproximation:
    """Return the mixture with the verdict of its points, and of the search."""
    verdict, said = judge_mixture(target, q), []
    if verdict.trouble:
        said.append(
            f"the mixture at its {q.n_components} modes is not the posterior: by {POINTS} of its points {verdict.trouble}"
        )
    if not q.diagnostics["search_complete"]:
        said.append(f"the search still found new modes when it ended after {q.diagnostics['climbs']:.0f} climbs")
    trouble = " and ".join(said)
    return q.replaced(converged=not trouble, trouble=trouble, diagnostics=q.diagnostics | verdict.figures)


def find_other_mode(target: BaseTarget, q: GaussianApproximation) -> GaussianApproximation | None:
    """Return a mode outside of a Gaussian that climbs from prior draws of highest density elsewhere find, or None."""
    if target.dim > LARGEST_NEWTON_DIM:
        return None
    modes, _, _ = _search(target, q, CLIMBS)
    others = [mode for mode in modes[1:] if beyond(mode.mean[None], q)[0]]
    return max(others, key=lambda mode: mode.log_evidence, default=None)


def find_modes_around(
    target: BaseTarget, q: GaussianApproximation, rng: np.random.Generator
) -> list[GaussianApproximation]:
    """Return the modes away from the mean of a Gaussian that climbs find: from prior draws, and from points around it.

    These points are 4 to 45 times as wide as the Gaussian.
    """
    if target.dim > LARGEST_NEWTON_DIM:
        return []
    modes, _, _ = _search(target, q, CLIMBS)
    starts = q.mean + _WIDE[:, None] * (q.sample(CLIMBS, rng) - q.mean)
    starts = starts[np.isfinite(target.log_density(starts))]
    if len(starts):
        modes += _new_modes(target, starts, modes)
    limit = min(bound_of_ellipsoid(q.dim), BEYOND**2)
    return [mode for mode in modes[1:] if (q.whiten(mode.mean[None]) ** 2).sum() > limit]


def _search(
    target: BaseTarget, found: GaussianApproximation, most_climbs: int
) -> tuple[list[GaussianApproximation], int, bool]:
    """Return all modes, with ``found`` first, the number of climbs, and whether the last ones found nothing new."""
    modes, climbs, fruitless, complete = [found], 0, 0, False
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        points, height = _dispersed(target, np.random.default_rng(0))
        while len(points) and climbs < most_climbs and not complete:
            likely = _likeliest_elsewhere(points, height, modes) if fruitless == 0 else []
            height[likely] = -np.inf
            in_turn = np.arange(climbs, climbs + CLIMBS - len(likely)) % len(points)
            new = _new_modes(target, points[[*likely, *in_turn]], modes)
            modes, climbs, fruitless = modes + new, climbs + CLIMBS, 0 if new else fruitless + CLIMBS
            complete = fruitless >= FRUITLESS * (1 + len(modes))
    return modes, climbs, complete


def _new_modes(target: BaseTarget, starts: Array, modes: list[GaussianApproximation]) -> list[GaussianApproximation]:
    """Return the new modes that a batch of climbs from points finds."""
    new: list[GaussianApproximation] = []
    for mode in modes_above(target, starts, ITERATIONS):
        if not _is_known(mode.mean, modes + new):
            new.append(mode)
    return new


def _is_known(x: Array, modes: list[GaussianApproximation]) -> bool:
    """Return whether a point is at one of the modes, on the scale of the Gaussians there."""
    return any(float(np.sum((mode.whiten(x[None])) ** 2)) < APART**2 for mode in modes)


def _likeliest_elsewhere(points: Array, height: Array, modes: list[GaussianApproximation]) -> list[int]:
    """Return a few of the highest points outside of all known modes."""
    elsewhere = np.where(np.all([beyond(points, mode) for mode in modes], axis=0), height, -np.inf)
    order = np.argsort(-elsewhere)[:LIKELIEST]
    return [int(row) for row in order if np.isfinite(elsewhere[row])]


def beyond(points: Array, q: GaussianApproximation | Gaussian) -> NDArray[np.bool_]:
    """Return which points ``(n, dim)`` are farther out than draws of a Gaussian."""
    return (q.whiten(points) ** 2).sum(axis=1) > bound_of_ellipsoid(q.dim)


def bound_of_ellipsoid(dim: int) -> float:
    """Return the largest squared distance, in standard deviations, of points that a Gaussian explains."""
    return float(dim + BEYOND * np.sqrt(2 * dim))


def _dispersed(target: BaseTarget, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return starting points of finite density for the search, from the prior if possible, and their log density."""
    try:
        points = target.sample_prior(PRIOR_POINTS, rng)
        evaluation = target.evaluate(points)
        height = evaluation.log_likelihood if isinstance(evaluation, Evaluation) else evaluation.log_density
    except PriorSamplingError:
        points = target.initial_points(MOST_CLIMBS, rng)
        height = target.log_density(points)
    inside = np.isfinite(height)
    return points[inside], height[inside]
