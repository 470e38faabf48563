"""Check whether a prior or a posterior is proper, from the decrease of its log density along rays."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.linalg import null_space

from ppl_backends.targets.names import coordinates_by_variable
from ppl_backends.targets.protocol import Array, BaseTarget

_RADII = np.array([1e2, 3e2, 7e2, 1e4, 1e6, 1e8])
_FAR = 1e4  # exp(710) overflows
_LEVEL = -1e-2  # slopes above this count as zero
_STEP, _FLAT, _LARGEST_HESSIAN = 1e-3, 1e-5, 300


def improper_coordinate(target: BaseTarget) -> str | None:
    """Return the name of an unconstrained coordinate along which the log prior falls no faster than −log r, else None.

    Along a ray of coordinate j a proper density must fall faster than 1/r. The check uses the slope of the log density
    in log r between radii r₁ < r₂: −2 for a Cauchy, steeper for all lighter tails, 0 for a flat prior, positive for a
    prior that is flat on a positive variable (whose Jacobian grows). Oblique directions in which the log prior has no
    curvature (a random walk without a starting value, group effects whose mean is flat) count if it does not fall
    along them at all.

    The prior must be separate, or stated by the program. Other coordinates stay at a generic point, because a
    hierarchical prior has a pole where all its members are equal.
    """
    if target.rest is not None:  # if the likelihood is estimated, the prior is that of all other terms
        target = target.rest
    stated = target.stated_propriety
    if stated is not None:
        return stated.improper
    if not target.has_split:
        return None
    target = target.with_fixed_batch_size()
    centre = 0.5 * np.random.default_rng(0).standard_normal(target.dim)
    along = _far_slope(target, centre, np.eye(target.dim))
    if (along > -1.0 - 1e-3).any():
        return target.names[int(np.argmax(along > -1.0 - 1e-3))]
    oblique = _straight_directions(target, centre)
    if not len(oblique):
        return None
    level = _far_slope(target, centre, oblique) > _LEVEL
    if level.any():
        return target.names[int(np.argmax(np.abs(oblique[np.argmax(level)])))]
    return None


def _far_slope(target: BaseTarget, centre: Array, directions: Array) -> Array:
    """Return, for each direction, the slope of the log prior in log r at the largest finite radii, the larger of both signs.

    Scale parameters overflow at the large radii; their slope before that counts only if it is level, because a proper
    prior may still be falling slowly there.
    """
    rays = np.concatenate([directions, -directions])
    points = centre + _RADII[:, None, None] * rays
    with np.errstate(all="ignore"):
        log_prior = target.evaluate_prior(points.reshape(-1, target.dim))[0].reshape(len(_RADII), len(rays))
    far = np.full(len(rays), -np.inf)
    for inner, outer in pairwise(range(len(_RADII))):
        known = np.isfinite(log_prior[inner]) & np.isfinite(log_prior[outer])
        slope = (log_prior[outer, known] - log_prior[inner, known]) / np.log(_RADII[outer] / _RADII[inner])
        far[known] = np.where((_RADII[outer] < _FAR) & (slope < _LEVEL), -np.inf, slope)
    return np.maximum(*np.split(far, 2))


def has_proper_prior(target: BaseTarget) -> bool:
    """Return whether the prior is known to be proper; it then rules out an improper posterior, however wide it is."""
    return (target.stated_propriety is not None or target.has_split) and improper_coordinate(target) is None


def endless_direction(target: BaseTarget, points: Array, directions: Array) -> Array | None:
    """Return the first direction ``(dim,)`` along which the log density does not fall from any of the points, else None.

    If the prior is not proper (:func:`has_proper_prior`), the posterior is then improper: all rays from the points in
    this direction have a mass without bound. A neck of a funnel, which has a finite mass, becomes too narrow for rays
    from points beside each other.

    Parameters
    ----------
    points : ndarray (m, dim)
        Points around one place.
    directions : ndarray (k, dim)
        Unit vectors; both signs are tried.
    """
    target = target.with_fixed_batch_size()
    radii = np.where(_RADII < _FAR, _RADII, _RADII * max(1.0, float(np.abs(points[0]).max())))
    rays = np.concatenate([directions, -directions])
    for point in points:
        if not len(rays):
            return None
        reached = point + np.concatenate([[0.0], radii])[:, None, None] * rays
        with np.errstate(all="ignore"):
            value = target.log_density(reached.reshape(-1, target.dim)).reshape(-1, len(rays))
            level = np.diff(value, axis=0) >= _LEVEL
        beyond = (radii >= _FAR)[:, None] & ~np.isfinite(value[1:])  # scales overflow there
        rays = rays[(level | beyond).all(axis=0)]
    return rays[0] if len(rays) else None


def _straight_directions(target: BaseTarget, centre: Array) -> Array:
    """Return the unit vectors ``(k, dim)`` in which the log prior has neither slope nor curvature at ``centre``.

    They span the kernel of the Hessian, by differences of gradients. Vectors whose prior depends only on their
    differences are also checked as a whole, which needs no Hessian.
    """
    vectors = [block for block in coordinates_by_variable(target.names).values() if len(block) > 1]
    found = [np.isin(np.arange(target.dim), block).astype(float) for block in vectors]
    if target.has_gradient and 1 < target.dim <= _LARGEST_HESSIAN:
        steps = _STEP * np.eye(target.dim)
        with np.errstate(all="ignore"):
            slopes = target.evaluate_prior(np.concatenate([centre + steps, centre - steps]), gradient=True)[1]
        assert slopes is not None
        ahead, behind = np.split(slopes, 2)
        hessian = (ahead - behind) / (2 * _STEP)
        scale = np.sqrt(np.maximum(np.abs(np.diag(hessian)), 1e-12))
        if np.isfinite(hessian).all():
            curvature, basis = np.linalg.eigh((hessian + hessian.T) / 2 / np.outer(scale, scale))
            level = (basis / scale[:, None]).T[np.abs(curvature) < _FLAT]
            slope = level @ (ahead + behind).mean(axis=0)
            if np.abs(slope).max(initial=0.0) > _FLAT:
                level = null_space(slope[None]).T @ level
            found += list(level)
    return np.array([v / np.linalg.norm(v) for v in found]).reshape(len(found), target.dim)


def improper_note(target: BaseTarget) -> str | None:
    """Return a note on an evidence under an improper prior, or None.

    The note says that the evidence is known only up to a constant, and includes the target's own ``evidence_note``,
    for example that a loss or a tempered likelihood replaces the probability of the data. Missing data without a prior
    have a density, the likelihood.
    """
    name, stated = improper_coordinate(target), (target.rest or target).stated_propriety
    notes = [target.evidence_note]
    if name is not None and not (stated is not None and stated.missing_data):
        notes.append(f"up to a constant: the prior is improper along {name}")
    return "; ".join(note for note in notes if note) or None
