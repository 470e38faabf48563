"""Narrow modes of the posterior of hyper-parameters that fall between the points of a lattice.

A climb from a dispersed point rarely ends in a mode that is a fiftieth as wide as the posterior, and the points of a lattice
are twenty times as far apart as it is wide. A point that meets the mode has a density far above that of the nearest points
on all sides. So the density is computed at further points, an even net that is wider than the posterior, and one
that stands out starts a climb without gradients. Laplace's approximation at its end has the mass of the mode. It is missed
if the points of the lattice in it have less than half of its weight. Weighted nets of three and more hyper-parameters are
as dense as the further points, and show by their weights what they meet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import LinAlgError
from scipy.optimize import minimize
from scipy.spatial import cKDTree
from scipy.special import expit, ndtri
from scipy.stats import qmc

from ppl_backends.approximations.hyper import Design, narrowed
from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.gaussian import LOG_2PI, inside_cube

FURTHER = {1: 64, 2: 128}  # points, fitted from their neighbours in a sixth to a third of the time of all others
WIDER = 1.5  # times the standard deviations of the posterior
NEAREST = 8  # points that a point is compared with
STANDS_OUT = 0.7  # nats above all but a quarter of the nearest points
LOWEST = 2.0  # nats below the mode; narrow modes that are lower have no mass
CLIMBS = 2
RADIUS = 3.0  # of a mode, in its standard deviations
TIMES = 2.0  # the weight of the points in a mode, above which its mass is missed
STEPS = 40  # of a climb, for each hyper-parameter


def narrow_hyper_mode(posterior: Any, mode: Any, design: Design) -> tuple[float, Array | None]:
    """Return the share of a narrow mode between the points of a lattice in the mass of both, and where it is.

    The result is 0 and None if none is found, or if the design is no lattice.
    """
    share, place = 0.0, None
    if design.cell is None:
        return share, place
    root = design.moments()[1]
    weights = np.exp(design.log_weights - np.max(design.log_weights))
    for node in _outstanding(_nodes_around(posterior, design), mode.log_posterior - LOWEST, root)[:CLIMBS]:
        try:
            top, scale = _summit(posterior, node, root)
        except LinAlgError:
            continue
        log_mass = top.log_posterior + 0.5 * len(root) * LOG_2PI + np.linalg.slogdet(scale)[1]
        found = float(expit(log_mass - design.log_evidence))
        inside = (np.linalg.solve(scale, (design.points - top.phi).T) ** 2).sum(axis=0) <= RADIUS**2
        if found > max(share, TIMES * weights[inside].sum() / weights.sum()):
            share, place = found, top.phi
    return share, place


def _nodes_around(posterior: Any, design: Design) -> list[Any]:
    """Return the nodes of the lattice and of further points, each fitted from the nearest point of the lattice."""
    centre, root = design.moments()
    p = len(centre)
    u = inside_cube(qmc.Sobol(p, seed=0).random(FURTHER[p]))
    nodes, near = list(design.nodes), cKDTree(np.linalg.solve(root, design.points.T).T)
    for z in WIDER * ndtri(u):
        phi = centre + root @ z
        fit = design.nodes[near.query(np.linalg.solve(root, phi))[1]].fit
        node = posterior.node(phi, fit)
        if node is not None:
            nodes.append(node)
    return nodes


def _outstanding(nodes: list[Any], floor: float, root: Array) -> list[Any]:
    """Return the nodes that stand out from the nearest ones, if they are above ``floor``, the most outstanding first."""
    if len(nodes) <= NEAREST:
        return []
    values = np.array([node.log_posterior for node in nodes])
    white = np.linalg.solve(root, np.stack([node.phi for node in nodes]).T).T
    nearest = cKDTree(white).query(white, NEAREST + 1)[1][:, 1:]
    excess = np.where(values > floor, values - np.quantile(values[nearest], 0.25, axis=1), 0.0)
    return [nodes[k] for k in np.argsort(-excess) if excess[k] > STANDS_OUT]


def _summit(posterior: Any, node: Any, root: Array) -> tuple[Any, Array]:
    """Return the highest point near a node, and a matrix S such that φ = summit + S z with z about standard normal."""
    scale = narrowed(posterior, node, root)[0]
    best = [node]

    def negative(z: Array) -> float:
        found = posterior.node(node.phi + scale @ z, best[-1].fit)
        if found is None:
            return 1e10
        if found.log_posterior > best[-1].log_posterior:
            best.append(found)
        return -float(found.log_posterior)

    p = len(root)
    simplex = np.vstack([np.zeros(p), 0.7 * np.eye(p)])
    options = {"initial_simplex": simplex, "maxfev": STEPS * p, "fatol": 0.02, "xatol": 0.02}
    minimize(negative, np.zeros(p), method="Nelder-Mead", options=options)
    scale, drop = narrowed(posterior, best[-1], scale)
    return best[-1], scale / np.sqrt(2.0 * np.clip(drop, 0.05, None))
