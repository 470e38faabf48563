"""EP given hyper-parameters, and integration over them.

Given φ, EP yields log p(y | φ), and with the prior of φ its log posterior up to a constant. Steps: climb to its mode by the
gradient of the evidence; take the curvature there; place a design of φ around the mode; run EP at each, from the
neighbour's sites; mix the Gaussians by the posterior of φ. This is the scheme of INLA with EP in the place of Laplace
(Rue, Martino & Chopin 2009, section 3; Rasmussen & Williams 2006, section 5.5 for the evidence of EP).

Every Gaussian of the mixture is over φ and θ jointly: φ is a normal kernel around its design point, and the mean of θ moves
with φ along the slope between neighbours. The kernels' centres are pulled in, so that they do not inflate the spread of
φ (West 1993; Liu & West 2001).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError
from scipy.optimize import minimize
from scipy.special import logsumexp, stdtrit
from scipy.stats import qmc
from scipy.stats import t as student_t

from ppl_backends.approximations.ep.evidence import evidence_gradient
from ppl_backends.approximations.ep.marginals import mixed_marginals
from ppl_backends.approximations.ep.result import EPApproximation, LeaveOneOut, leave_one_out
from ppl_backends.approximations.marginals import Marginals, chosen
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.errors import ModelError
from ppl_backends.numerics.differences import central_differences
from ppl_backends.targets.factors import Factors
from ppl_backends.targets.protocol import Array, BaseTarget

Fit = Callable[[Factors, EPApproximation | None], EPApproximation]

GRID_DIM = 2  # a lattice up to here, a net of random points above
SMALLEST_SHARE = 1e-6  # of the weights; nodes below are left out of the mixture
CURVATURE_STEP = 0.1
BOX, MAX_BOXES = 1.5, 12  # half width of the boxes that the mode is looked for in, and how many


class Node(NamedTuple):
    """EP at one φ, with log p(y | φ) + log p(φ)."""

    phi: Array
    log_posterior: float
    fit: EPApproximation


class HyperParameters(NamedTuple):
    """What was integrated over, and how.

    Attributes
    ----------
    names : tuple of str
    mode : ndarray (p,)
        Of the posterior of φ.
    points : ndarray (k, p)
        The design.
    weights : ndarray (k,)
        Posterior weights of its points.
    log_posterior : ndarray (k,)
        Log p(y | φ) + log p(φ) there.
    summary : str
        One line that says what was done.
    """

    names: tuple[str, ...]
    mode: Array
    points: Array
    weights: Array
    log_posterior: Array
    summary: str


class EPMixture(MixtureApproximation):
    """EP integrated over hyper-parameters: a mixture over all unconstrained coordinates.

    Attributes
    ----------
    hyper : HyperParameters
    loo : LeaveOneOut
        1/p(yᵢ | y₋ᵢ) is the posterior mean over φ of 1/p(yᵢ | y₋ᵢ, φ).
    at_mode : EPApproximation
        EP given the most probable φ.
    """

    overlapping = True

    hyper: HyperParameters
    loo: LeaveOneOut
    at_mode: EPApproximation

    _fits: list[EPApproximation]
    _latent: NDArray[np.integer]

    def marginals(self, coordinates: Any = None, points: int = 25) -> Marginals:
        """Return marginal densities: those of EP given φ, corrected beyond Gaussian, mixed over φ.

        Parameters
        ----------
        coordinates : sequence of int or str, optional
            Which coordinates; all by default. The cost is one quadrature per site, coordinate, point and φ of weight.
        points : int
            At how many points of each coordinate the correction is computed; it is interpolated between them.
        """
        parts = [partial(fit.marginals, points=points) for fit in self._fits]
        return mixed_marginals(self, parts, self._latent, chosen(coordinates, self.names))


class _Posterior:
    """Log posterior of φ, an EP run a point; None where there is no proper approximation."""

    def __init__(self, factors: Any, fit: Fit) -> None:
        self._factors, self._fit = factors, fit
        self.runs = 0

    def node(self, phi: Array, start: EPApproximation | None = None) -> Node | None:
        """Run EP at ``phi``, from the sites of a neighbour where one is given."""
        self.runs += 1
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                factors = self._factors.at(phi)
                same = start is not None and len(start.sites.tau) == factors.n_sites
                fit = self._fit(factors, start if same else None)
        except (ModelError, LinAlgError, FloatingPointError):
            return None
        value = fit.log_evidence + self._factors.log_hyper_prior(phi)
        return Node(phi, float(value), fit) if np.isfinite(value) else None

    def gradient(self, node: Node) -> Array | None:
        """Return the gradient of the log posterior at a node; None where EP did not converge."""
        if not node.fit.converged:
            return None

        def log_prior(points: Array) -> list[float]:
            return [self._factors.log_hyper_prior(phi) for phi in points]

        try:
            return (
                evidence_gradient(self._factors.at, node.phi, node.fit)
                + central_differences(log_prior, node.phi[None])[0]
            )
        except (ModelError, LinAlgError):
            return None


def integrate(factors: Any, target: BaseTarget, fit: Fit) -> EPMixture:
    """Fit EP over θ and φ: ``fit`` is EP for given factors, from the sites of another fit or None."""
    posterior = _Posterior(factors, fit)
    # Not quite the start itself, which can be a saddle between two modes.
    mode = _climb(posterior, np.asarray(factors.start, dtype=np.float64) + 0.1)
    scale = _scale(posterior, mode)
    if len(mode.phi) <= GRID_DIM:
        nodes, log_weights, log_evidence, spread = lattice(posterior.node, mode, scale)
        kind = "lattice"
    else:
        nodes, log_weights, log_evidence, spread = net(posterior.node, mode, scale)
        kind = "weighted net"
    return _mix(factors, target, mode, nodes, log_weights, log_evidence, spread, kind, posterior.runs)


def _climb(posterior: _Posterior, start: Array) -> Node:
    """Return the mode of φ by a quasi-Newton method on EP's evidence."""
    best = posterior.node(start)
    if best is None:
        raise ModelError(f"EP has no proper approximation at the hyper-parameters {start.round(3)}; use fit_laplace")
    found = [best]

    def negative(phi: Array) -> tuple[float, Array]:
        node = posterior.node(phi, found[-1].fit)
        gradient = None if node is None else posterior.gradient(node)
        if node is None or gradient is None:
            return 1e10, np.zeros_like(phi)
        if node.log_posterior >= found[-1].log_posterior:
            found.append(node)
        return -node.log_posterior, -gradient

    for _ in range(MAX_BOXES):  # far from the mode EP is slow and may fail: no step leaves a box around the last centre
        centre = found[-1].phi
        bounds = list(zip(centre - BOX, centre + BOX, strict=True))
        minimize(negative, centre, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 30, "gtol": 1e-2})
        if np.all(np.abs(found[-1].phi - centre) < 0.99 * BOX):
            break
    return found[-1]


def _scale(posterior: _Posterior, mode: Node) -> Array:
    """Return a matrix S with φ = mode + S z about standard normal near the mode, from differences of gradients."""
    p = len(mode.phi)
    precision = np.eye(p)
    for j in range(p):
        shift = CURVATURE_STEP * np.eye(p)[j]
        sides = [posterior.node(mode.phi + s, mode.fit) for s in (shift, -shift)]
        slopes = [None if node is None else posterior.gradient(node) for node in sides]
        if slopes[0] is not None and slopes[1] is not None:
            precision[j] = (slopes[1] - slopes[0]) / (2 * CURVATURE_STEP)
    values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
    return vectors / np.sqrt(np.clip(values, 0.1, 1e6))  # flat directions: a spread of about 3 to begin with


def _mix(
    factors: Any,
    target: BaseTarget,
    mode: Node,
    nodes: list[Node],
    log_weights: Array,
    log_evidence: float,
    spread: float,
    kind: str,
    runs: int,
) -> EPMixture:
    """Return joint Gaussians over φ and θ, mixed."""
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    kept = np.flatnonzero(weights > SMALLEST_SHARE)
    nodes, weights = [nodes[k] for k in kept], weights[kept] / weights[kept].sum()
    phi, theta = np.stack([node.phi for node in nodes]), np.stack([node.fit.mean for node in nodes])
    means, covs = _joint(factors, target.dim, phi, theta, [node.fit.cov for node in nodes], weights, spread)
    unconverged = float(weights[[not node.fit.converged for node in nodes]].sum())
    effective = float(1 / (weights @ weights))
    names = tuple(factors.hyper_names)
    order = np.array([node.log_posterior for node in nodes])
    held_out = np.stack([node.fit.loo.log_density for node in nodes])
    with np.errstate(over="ignore", divide="ignore"):
        top = -held_out.min(axis=0, initial=0.0)
        loo = leave_one_out(-top - np.log(weights @ np.exp(-held_out - top)))
    summary = f"EP integrated over {', '.join(names)}: {len(nodes)} points of a {kind}, {effective:.1f} effective"
    return EPMixture(
        weights,
        means,
        covs,
        names=target.names,
        target=target,
        method="ep",
        converged=unconverged < 0.01 and (kind == "lattice" or effective > 10),
        log_evidence=log_evidence,
        diagnostics={
            "ep_runs": float(runs),
            "design_points": float(len(nodes)),
            "effective_points": effective,
            "unconverged_share": unconverged,
        },
        hyper=HyperParameters(names, mode.phi, phi, weights, order, summary),
        loo=loo,
        at_mode=mode.fit,
        _fits=[node.fit for node in nodes],
        _latent=np.asarray(factors.coordinates),
    )


def _joint(
    factors: Any, dim: int, phi: Array, theta: Array, covs: list[Array], weights: Array, spread: float
) -> tuple[Array, Array]:
    """Return means and covariances over all coordinates; ``spread`` is the kernels' sd relative to the posterior's of φ."""
    hyper, latent = factors.hyper_coordinates, factors.coordinates
    centre = weights @ phi
    apart = phi - centre
    cov_phi = (weights * apart.T) @ apart
    cov_phi += 1e-10 * np.eye(len(centre)) * max(1e-6, float(np.trace(cov_phi)))
    slopes = _slopes(phi, theta, cov_phi, max(0.5, 2 * spread))  # (k, p, d)
    kernel = spread**2 * cov_phi
    pulled = centre + np.sqrt(1 - spread**2) * apart
    means, joint = np.empty((len(phi), dim)), np.zeros((len(phi), dim, dim))
    means[:, hyper] = pulled
    means[:, latent] = theta + np.einsum("kp,kpd->kd", pulled - phi, slopes)
    for k, cov in enumerate(covs):
        cross = kernel @ slopes[k]
        joint[k][np.ix_(hyper, hyper)] = kernel
        joint[k][np.ix_(hyper, latent)] = cross
        joint[k][np.ix_(latent, hyper)] = cross.T
        joint[k][np.ix_(latent, latent)] = cov + slopes[k].T @ cross
    return means, joint


def _slopes(phi: Array, theta: Array, cov_phi: Array, bandwidth: float) -> Array:
    """Return ∂E(θ)/∂φ at every point ``(k, p, d)``, by local linear regression on the other points."""
    root = np.linalg.cholesky(cov_phi)
    z = np.linalg.solve(root, phi.T).T
    steps: NDArray[np.float64] = z[None] - z[:, None]  # (k, j, p)
    distance = np.einsum("kjp,kjp->kj", steps, steps)
    near = np.exp(-0.5 * distance / bandwidth**2)
    gram = np.einsum("kj,kjp,kjq->kpq", near, steps, steps, optimize=True) + 1e-6 * np.eye(phi.shape[1])
    moved = theta[None] - theta[:, None]
    cross = np.einsum("kj,kjp,kjd->kpd", near, steps, moved, optimize=True)
    return np.linalg.solve(root.T[None], np.linalg.solve(gram, cross))


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
    """Return the nodes mode + ``scale`` · spacing · k that are connected to the mode by nodes of high density.

    ``evaluate`` takes φ and a neighbour's fit to a node, or to None. The columns of ``scale`` are along principal axes.
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
    """Return points of the lattice mode + step · k, those next to the densest first."""
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
    """Return scrambled Sobol points of independent split Student t along the principal axes, with importance weights.

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
