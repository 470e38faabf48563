"""Designs of hyper-parameters around the mode: a lattice for one or two, a weighted net of points for more."""

from __future__ import annotations

from collections.abc import Callable
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
MAX_NODES = 150
NET_POINTS = {3: 128, 4: 128, 5: 256, 6: 256}
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
    spacing = SPACING[p]
    found: dict[tuple[int, ...], Any] = {(0,) * p: mode}
    steps = [s for s in product((-1, 0, 1), repeat=p) if sum(map(abs, s)) == 1]
    queue = [(0,) * p]
    top = mode.log_posterior
    for here in queue:  # grows while it is walked
        parent = found[here]
        if parent is None or parent.log_posterior < top - DROP[p]:
            continue
        for step in steps:
            there = tuple(int(a + b) for a, b in zip(here, step, strict=True))
            if there not in found and len(found) < MAX_NODES:
                found[there] = evaluate(mode.phi + scale @ (spacing * np.array(there)), parent.fit)
                queue.append(there)
                top = max(top, found[there].log_posterior if found[there] is not None else top)
    kept = {z: node for z, node in found.items() if node is not None}
    log_weights = np.array([node.log_posterior for node in kept.values()])
    cell = p * np.log(spacing) + np.linalg.slogdet(scale)[1]
    weights = np.exp(log_weights - logsumexp(log_weights))
    z = spacing * np.array(list(kept), dtype=float)
    apart = z - weights @ z
    smallest = np.sqrt(max(1e-12, float(np.linalg.eigvalsh((weights * apart.T) @ apart)[0])))
    spread = float(np.clip(KERNEL * spacing / smallest, 0.1, 0.7))
    return Design(list(kept.values()), log_weights, float(logsumexp(log_weights) + cell), spread)


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
