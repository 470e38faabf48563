"""Mass of the posterior of hyper-parameters that a design around one mode does not cover: another mode, or a wide region.

Dispersed points of φ, such as draws of its prior, are compared with the points half and three quarters of the way from
the mode. Where the density is lower on the way, a valley separates the point from the mode. The highest of these points
starts a climb, and Laplace's approximation at its end has the mass of the other mode. Draws of Gaussians wider than the
design measure the mass of a wide region around a narrow mode. Narrow modes between the points have a search of their own
(:mod:`.hyper_narrow`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError
from scipy.special import expit, logsumexp

from ppl_backends.approximations.elsewhere import NEGLIGIBLE_SHARE
from ppl_backends.approximations.hyper import Design, climb, scale_at, written
from ppl_backends.approximations.hyper_narrow import narrow_hyper_mode
from ppl_backends.approximations.verdict import Verdict
from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.numerics.weights import effective_sample_size

STARTS = 12  # dispersed points
WAY = (0.5, 0.75)  # from the mode to a point
VALLEY = 0.1  # nats
CLIMBS = 2
SMALLEST_EFFICIENCY = 0.25  # of the weights of a net of φ
FEWEST_OF_LATTICE = 4.0  # effective points
LARGEST_AROUND = 0.1  # share of the mass that a design does not cover
FEWEST_AROUND = 2.0  # effective points of those beyond a lattice
LARGEST_EDGE = 0.05  # relative density where a lattice ends early, and share of points of a net without approximation
WIDER = 2.0 ** np.array([0.5, 1.0, 2.0, 3.0, 4.0, 5.0])  # scales of the Gaussians
DRAWS_EACH = 8  # of a scale; half as many around lattices
PRIOR_POINTS = 256
PRIOR_SCALES = 2.0 ** np.arange(-1, 5)


def judge_design(
    posterior: Any, mode: Any, design: Design, effective: float, names: tuple[str, ...], starts: Array
) -> Verdict:
    """Return whether a design around one mode covers the posterior of φ; ``names`` are those of φ.

    ``effective`` is the effective number of its points, and ``starts`` ``(n, p)`` are dispersed points; without any,
    there is no search around a lattice. The figures are ``other_mode_share``, ``around_share`` and ``edge``.
    """
    share, place, around = 0.0, None, 0.0
    if len(starts):
        found = other_hyper_mode(posterior, mode, design, starts), narrow_hyper_mode(posterior, mode, design)
        share, place = max(found, key=lambda one: one[0])
    if len(starts) or design.cell is None:
        around = share_around(posterior, mode, design)
    figures = {"other_mode_share": share, "around_share": around, "edge": design.edge}
    points = len(design.nodes)
    trouble = ""
    if design.cell is None and effective < SMALLEST_EFFICIENCY * points:
        trouble = f"only {effective:.0f} of {points} points of φ are effective, so they miss part of its posterior"
    elif design.cell is not None and effective < FEWEST_OF_LATTICE:
        trouble = f"only {effective:.1f} points of φ are effective, so their lattice is too coarse"
    elif design.edge > LARGEST_EDGE and design.cell is None:
        trouble = f"{design.edge:.0%} of the points of φ have no proper approximation"
    elif design.edge > LARGEST_EDGE:
        trouble = (
            f"the points of φ end where its density is {design.edge:.0%} of the highest, so its prior may be too wide"
        )
    elif around > LARGEST_AROUND:
        trouble = f"a region of the hyper-parameters around the points has {around:.0%} of the mass"
    elif share > NEGLIGIBLE_SHARE and place is not None:
        trouble = (
            f"another mode of the hyper-parameters, at {written(names, place)}, has {share:.0%} of the mass of both"
        )
    return Verdict(trouble, figures)


def other_hyper_mode(posterior: Any, mode: Any, design: Design, starts: Array) -> tuple[float, Array | None]:
    """Return the share of another mode of φ in the mass of both, and where it is; 0 and None if none is found.

    ``starts`` ``(n, p)`` are dispersed points.
    """
    share, place = 0.0, None
    for start in _across_valleys(posterior, mode, [phi for phi in starts if not design.covers(phi)])[:CLIMBS]:
        try:
            found = climb(posterior, start.phi)
            scale = scale_at(posterior, found)
        except (ModelError, LinAlgError):
            continue
        if design.covers(found.phi):
            continue
        log_mass = found.log_posterior + 0.5 * len(found.phi) * LOG_2PI + np.linalg.slogdet(scale)[1]
        if expit(log_mass - design.log_evidence) > share:
            share, place = float(expit(log_mass - design.log_evidence)), found.phi
        if share > NEGLIGIBLE_SHARE:
            break
    return share, place


def share_around(posterior: Any, mode: Any, design: Design) -> float:
    """Return the share of the mass that lies beyond a design, by importance sampling from wider Gaussians.

    Far from the mode a fit can fail and have a huge evidence. Around a lattice, several points have to agree.
    """
    centre, root = design.moments()
    p, each = len(centre), DRAWS_EACH if design.cell is None else DRAWS_EACH // 2
    z = np.random.default_rng(0).standard_normal((each, len(WIDER), p)) * WIDER[:, None]
    log_weights: list[float] = [-np.inf]
    for point in z.reshape(-1, p):
        square = float(point @ point)
        phi = centre + root @ point
        node = None if design.covers(phi) else posterior.node(phi, mode.fit)
        if node is not None:
            log_q = logsumexp(-0.5 * square / WIDER**2 - p * np.log(WIDER)) - np.log(len(WIDER)) - 0.5 * p * LOG_2PI
            log_weights.append(node.log_posterior - log_q + np.linalg.slogdet(root)[1])
    if len(log_weights) == 1 or (
        design.cell is not None and effective_sample_size(np.array(log_weights)) <= FEWEST_AROUND
    ):
        return 0.0
    return float(expit(logsumexp(log_weights) - np.log(each * len(WIDER)) - design.log_evidence))


def _across_valleys(posterior: Any, mode: Any, points: list[Array]) -> list[Any]:
    """Return the nodes of the points that a valley separates from the mode, the highest first."""
    found = [node for phi in points if (node := posterior.node(phi, mode.fit)) is not None]
    across = []
    for node in sorted(found, key=lambda node: -node.log_posterior):
        for part in WAY:
            between = posterior.node(mode.phi + part * (node.phi - mode.phi), mode.fit)
            if between is None or between.log_posterior < node.log_posterior - VALLEY:
                across.append(node)
                break
    return across


def dispersed_by_density(log_prior: Callable[[Array], float], start: Array, n: int, rng: np.random.Generator) -> Array:
    """Return ``n`` points ``(n, p)``, about distributed as a prior of φ, from normal draws around ``start``."""
    p = len(start)
    z = rng.standard_normal((PRIOR_POINTS, p)) * PRIOR_SCALES[np.arange(PRIOR_POINTS) % len(PRIOR_SCALES), None]
    log_q = logsumexp(
        -0.5 * (z**2).sum(axis=1) / PRIOR_SCALES[:, None] ** 2 - p * np.log(PRIOR_SCALES)[:, None], axis=0
    )
    with np.errstate(all="ignore"):
        value = np.array([log_prior(phi) for phi in start + z]) - log_q
    # The largest n of log weights plus Gumbel noise are a weighted draw without replacement.
    key = np.where(np.isfinite(value), value + rng.gumbel(size=PRIOR_POINTS), -np.inf)
    return start + z[np.argsort(-key)[:n]]
