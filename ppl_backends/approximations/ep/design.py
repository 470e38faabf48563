"""Designs of hyper-parameters around the mode: a lattice for one or two, a weighted net of points for more."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, stdtrit
from scipy.stats import qmc
from scipy.stats import t as student_t

from ppl_backends.targets.protocol import Array

__all__ = ["Design", "lattice", "net"]

Evaluate = Callable[..., Any]  # φ and a neighbour's fit to a node, or None

SPACING = {1: 0.4, 2: 0.75}  # in standard deviations at the mode
DROP = {1: 9.0, 2: 7.0}  # nats below the mode at which a lattice ends
MAX_NODES = 200
MAX_SHARE = 0.2  # Σ w² at which a lattice is too coarse for the posterior and its spacing is halved
NET_POINTS = {3: 256, 4: 256, 5: 256, 6: 256}
NET_DF = 8.0
KERNEL = 0.8  # the kernels' sd over the spacing of a lattice


class Design(NamedTuple):
    """Nodes with the logs of their weights, the log of their sum of integrals, and the relative sd of a kernel."""

    nodes: list[Any]
    log_weights: Array
    log_evidence: float
    spread: float


def lattice(evaluate: Evaluate, mode: Any, scale: Array) -> Design:
    """All points mode + scale · spacing · k that are connected to the mode by points of high density.

    Parameters
    ----------
    evaluate : callable
        φ and a neighbour's fit to a node with ``phi``, ``log_posterior``, ``fit``; None where there is none.
    mode : node
    scale : array (p, p)
        Its columns are standard deviations along principal axes.
    """
    p = len(mode.phi)
    for spacing in SPACING[p] * 0.5 ** np.arange(4):
        found = _flood(evaluate, mode, spacing * scale)
        log_posterior = np.array([node.log_posterior for node in found.values()])
        weights = np.exp(log_posterior - logsumexp(log_posterior))
        if weights @ weights < MAX_SHARE:
            break
    log_cell = p * np.log(spacing) + np.linalg.slogdet(scale)[1]
    z = spacing * np.array(list(found), dtype=float)
    apart = z - weights @ z
    smallest = np.sqrt(max(1e-12, float(np.linalg.eigvalsh((weights * apart.T) @ apart)[0])))
    spread = float(np.clip(KERNEL * spacing / smallest, 0.1, 0.7))
    return Design(list(found.values()), log_posterior, float(logsumexp(log_posterior) + log_cell), spread)


def _flood(evaluate: Evaluate, mode: Any, step: Array) -> dict[tuple[int, ...], Any]:
    """Points of the lattice mode + step · k, those next to the densest first."""
    p = len(mode.phi)
    origin = (0,) * p
    found: dict[tuple[int, ...], Any] = {origin: mode}
    queue, top = [(-mode.log_posterior, origin)], mode.log_posterior
    while queue:
        negative, here = heappop(queue)
        if -negative < top - DROP[p] or len(found) >= MAX_NODES:
            break
        for axis, sign in product(range(p), (-1, 1)):
            there = tuple(k + sign * (j == axis) for j, k in enumerate(here))
            if there in found:
                continue
            found[there] = node = evaluate(mode.phi + step @ np.array(there), found[here].fit)
            if node is not None:
                heappush(queue, (-node.log_posterior, there))
                top = max(top, node.log_posterior)
    return {k: node for k, node in found.items() if node is not None}


def net(evaluate: Evaluate, mode: Any, scale: Array) -> Design:
    """Scrambled Sobol points of independent split Student t along the principal axes, with importance weights.

    Each side of each axis has its own scale, from how far the density has fallen two standard deviations away.
    """
    p = len(mode.phi)
    sides = np.ones((2, p))
    for j in range(p):
        for row, sign in enumerate((-1.0, 1.0)):
            node = evaluate(mode.phi + 2.0 * sign * scale[:, j], mode.fit)
            drop = 2.0 if node is None else mode.log_posterior - node.log_posterior
            sides[row, j] = np.clip(2.0 / np.sqrt(2.0 * max(drop, 1e-6)), 0.5, 3.0)
    points = NET_POINTS[p]
    u = np.clip(qmc.Sobol(p, seed=0).random(points), 2.0**-53, 1 - 2.0**-53)
    left = sides[0] / sides.sum(axis=0)  # share of the mass on the left
    low = u < left
    t = np.where(low, stdtrit(NET_DF, 0.5 * u / left), stdtrit(NET_DF, 0.5 + 0.5 * (u - left) / (1 - left)))
    z = t * np.where(low, sides[0], sides[1])
    log_q = (student_t.logpdf(t, NET_DF) + np.log(2.0 / sides.sum(axis=0))).sum(axis=1) - np.linalg.slogdet(scale)[1]
    order = np.argsort((z**2).sum(axis=1))  # from the mode outwards
    nodes = [evaluate(mode.phi + scale @ z[k], mode.fit) for k in order]
    kept = [k for k, node in enumerate(nodes) if node is not None]
    log_weights = np.array([nodes[k].log_posterior for k in kept]) - log_q[order][kept]
    weights = np.exp(log_weights - logsumexp(log_weights))
    effective = 1 / float(weights @ weights)
    spread = float(np.clip((4 / (p + 2) / effective) ** (1 / (p + 4)), 0.1, 0.7))  # Silverman's rule
    log_evidence = float(logsumexp(log_weights) - np.log(points))
    return Design([nodes[k] for k in kept], log_weights, log_evidence, spread)
