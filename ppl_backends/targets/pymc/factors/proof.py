"""The factorisation is proved on numbers before it is used.

Sites are given scalars that belong to different points at once. If a site saw anything of another, its value would not
be the one that it has at its own point.
"""

from __future__ import annotations

import numpy as np

from ppl_backends.targets.factors.recognise import rounding
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.factors.graph import PointFunction
from ppl_backends.targets.pymc.factors.terms import Geometry, SiteTerm

__all__ = ["TOLERANCE", "affine_error", "gaussian_error", "sites_error"]

TOLERANCE, AFFINE_TOLERANCE = 1e-10, 1e-8
SHUFFLES = 4


def sites_error(
    term: SiteTerm, points: Array, geometry: Geometry, rng: np.random.Generator, shuffles: int = SHUFFLES
) -> float:
    """Largest error of the sites of a term, in units of what is allowed: 1 and less is a proof.

    Parameters
    ----------
    term : SiteTerm
    points : array (k, dim)
        They share the hyper-parameters, and should cover the range of every site.
    geometry : Geometry
    rng : numpy.random.Generator
    shuffles : int

    Notes
    -----
    The allowance is 1e-10 relative to 1 + the size of the value, and what rounding does to probabilities near one. Where
    the term as written is not finite the site must not be either.
    """
    [value] = PointFunction(term.graph, set(term.held), [term.term.value])(points)
    truth = term.by_site(value.reshape(len(points), -1))[0]
    s = term.flat_cut(points)[:, geometry.reference]
    worst = 0.0
    for _ in range(shuffles):
        choice = rng.integers(len(points), size=s.shape)
        found = term.log_site(np.take_along_axis(s, choice, axis=0), points[0], geometry)
        worst = max(worst, _error(found, np.take_along_axis(truth, choice, axis=0)))
    return worst


def affine_error(term: SiteTerm, points: Array) -> float:
    """Largest error of the scalars as affine functions, in units of what is allowed."""
    geometry, free = term.geometry(points[0]), np.setdiff1d(np.arange(points.shape[1]), term.held_coordinates)
    written = term.flat_cut(points)[:, geometry.reference]
    found = np.asarray(geometry.design @ points[:, free].T).T + geometry.offset
    allowed = AFFINE_TOLERANCE * (1 + np.abs(written) + np.abs(points).sum(axis=1, keepdims=True))
    return float(np.max(np.abs(found - written) / allowed))


def _error(found: Array, truth: Array) -> float:
    one, other = np.isfinite(found), np.isfinite(truth)
    if np.any((one & ~other & (found > -600)) | (other & ~one & (truth > -600))):  # below that, underflow
        return np.inf
    both = one & other
    found, truth = found[both], truth[both]
    allowed = TOLERANCE * (1 + np.abs(truth)) + rounding(truth)
    return float(np.max(np.abs(found - truth) / allowed, initial=0.0))


def gaussian_error(quadratic: Array, written: Array, scale: Array) -> float:
    """Largest error ``(k,)`` of a Gaussian part against the terms as written, in units of what is allowed."""
    finite = np.isfinite(written)
    return float(np.max(np.abs(quadratic - written)[finite] / (TOLERANCE * (1 + scale[finite])), initial=0.0))
