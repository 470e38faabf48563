"""Integration over hyper-parameters φ: climb to the mode of their posterior, and place a design of points around it.

A *node* is the fit of a method at one φ: it has ``phi``, ``log_posterior`` up to a constant, and ``fit``, from which a
neighbour can start. A posterior of φ has ``node(phi, fit)``, which returns None if there is no proper approximation,
and ``gradient(node)``. This is the scheme of Rue, Martino & Chopin (2009), section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp, stdtrit
from scipy.stats import qmc
from scipy.stats import t as student_t

from ppl_backends.approximations.modes import bound_of_ellipsoid
from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.gaussian import inside_cube
from ppl_backends.numerics.weights import normalised_weights

GRID_DIM = 2  # largest dimension of a lattice; above it, a net of random points is used
CURVATURE_STEP = 0.1
FAR_BELOW, NARROWER_ROUNDS = 2.0, 12  # nats at both ends of a column, which then is too long for a standard deviation
BOX, MAX_BOXES = 1.5, 12  # half width, and largest number, of the boxes in which the mode is searched for


class HyperParameters(NamedTuple):
    """Points and weights of hyper-parameters that were integrated over.

    Attributes
    ----------
    names : tuple of str
    mode : ndarray (p,)
        Mode of the posterior of φ.
    points : ndarray (k, p)
        The design.
    weights : ndarray (k,)
        Posterior weights of its points.
    log_posterior : ndarray (k,)
        Log p(y | φ) + log p(φ) there.
    summary : str
        One line that describes the integration.
    cell : ndarray (p, p) or None
        Steps of a lattice, in columns; None for a net.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import HyperParameters
    >>> points, weights = np.array([[-1.0], [1.0]]), np.array([0.4, 0.6])
    >>> hyper = HyperParameters(("log tau",), np.zeros(1), points, weights, np.zeros(2), "two points")
    >>> hyper.weights @ hyper.points
    array([0.2])
    """

    names: tuple[str, ...]
    mode: Array
    points: Array
    weights: Array
    log_posterior: Array
    summary: str
    cell: Array | None = None


def check_number(label: str, names: Sequence[str]) -> None:
    """Refuse more hyper-parameters than can be integrated over."""
    if len(names) > MOST_HYPER_PARAMETERS:
        raise ModelError(
            f"{label} has {len(names)} hyper-parameters; at most {MOST_HYPER_PARAMETERS} can be integrated over; "
            "use sample_smc"
        )


def written(names: Sequence[str], phi: Array) -> str:
    """Return ``name = value`` of every hyper-parameter, for messages."""
    return ", ".join(f"{name} = {value:.3g}" for name, value in zip(names, phi, strict=True))


def climb(posterior: Any, start: Array) -> Any:
    """Return the node at the mode of φ, by a quasi-Newton method on the evidence."""
    best = posterior.node(start)
    if best is None:
        raise ModelError(f"no proper approximation at {written(posterior.names, start)}; use sample_smc")
    found = [best]

    def negative(phi: Array) -> tuple[float, Array]:
        node = posterior.node(phi, found[-1].fit)
        gradient = None if node is None else posterior.gradient(node)
        if node is None or gradient is None:
            return 1e10, np.zeros_like(phi)
        if node.log_posterior >= found[-1].log_posterior:
            found.append(node)
        return -node.log_posterior, -gradient

    # Far from the mode EP is slow and may fail, so steps stay in a box around the last centre.
    for _ in range(MAX_BOXES):
        centre = found[-1].phi
        bounds = list(zip(centre - BOX, centre + BOX, strict=True))
        minimize(negative, centre, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 30, "gtol": 1e-2})
        if np.all(np.abs(found[-1].phi - centre) < 0.99 * BOX):
            break
    return found[-1]


def scale_at(posterior: Any, mode: Any) -> Array:
    """Return S such that φ = mode + S z with z about standard normal near the mode, from differences of gradients."""
    p = len(mode.phi)
    precision = np.eye(p)
    for j in range(p):
        shift = CURVATURE_STEP * np.eye(p)[j]
        sides = [posterior.node(mode.phi + s, mode.fit) for s in (shift, -shift)]
        slopes = [None if node is None else posterior.gradient(node) for node in sides]
        if slopes[0] is not None and slopes[1] is not None:
            precision[j] = (slopes[1] - slopes[0]) / (2 * CURVATURE_STEP)
    values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
    scale = vectors / np.sqrt(np.clip(values, 0.1, 1e6))  # flat directions start with a spread of about 3
    return narrowed(posterior, mode, scale)[0]  # differences do not see what is narrower than their step


def narrowed(posterior: Any, node: Any, scale: Array) -> tuple[Array, Array]:
    """Return ``scale`` with shorter columns where both their ends are far below a node, and the decrease along each.

    The ends are node ± column. Their decrease is the average of both, in nats; it is 1/2 along a standard deviation.
    """
    scale, decreases = scale.copy(), np.full(len(scale), 0.5)
    for j, column in enumerate(scale.T):  # views of the columns
        for _ in range(NARROWER_ROUNDS):
            ends = [posterior.node(node.phi + side * column, node.fit) for side in (1.0, -1.0)]
            drops = [node.log_posterior - end.log_posterior for end in ends if end is not None]
            if len(drops) < 2:
                break
            decreases[j] = np.mean(drops)
            if min(drops) <= FAR_BELOW:
                break
            column *= np.sqrt(0.5 / min(drops))
    return scale, decreases


def design_around(posterior: Any, mode: Any) -> Design:
    """Return the design around the mode of φ."""
    place = lattice if len(mode.phi) <= GRID_DIM else net
    return place(posterior.node, mode, scale_at(posterior, mode))


Index = tuple[int, ...]
Evaluate = Callable[..., Any]  # maps φ and a neighbour's fit to a node, or None

SPACING = {1: 0.4, 2: 0.75}  # in standard deviations at the mode
DROP = {1: 9.0, 2: 7.0}  # nats below the mode at which a lattice ends
MAX_NODES = 200
MAX_SHARE = 0.2  # Σ w² above which a lattice is too coarse for the posterior and its spacing is halved
MOST_HYPER_PARAMETERS = 6
PART, FAR_PART, MOST_PARTS = 128, 64, 4  # points of a net
DISTANCES = (2.0, 4.0, 8.0)  # in standard deviations at the mode, at which the density shows the tails
WIDEST_NEAR, WIDEST = 3.0, 4.0  # scales of a near and of a far part, in the same units
IN_TAIL = 0.5  # marginal sds from the mean at which other coordinates are seen as in the tail
NET_DF, WIDER = 8.0, 1.2  # degrees of freedom; scale of a Student t over that of the points so far
AGREE = 0.15  # change of a mean or standard deviation, in standard deviations, below which no more points are added
AGREE_IN_TAILS = 0.05  # the same with tails along coordinates, where few points may agree by chance
KERNEL = 0.8  # the kernels' sd over the spacing of a lattice


class Design(NamedTuple):
    """Nodes with the logs of their weights, the log of their sum of integrals, and the relative sd of a kernel.

    ``cell`` is the step of a lattice ``(p, p)``, and None of a net. ``edge`` is the highest density, relative to the
    mode's, at points of a lattice where it ends early, because a neighbour has no approximation or the number of points is
    limited. Of a net it is the share of points without an approximation.
    """

    nodes: list[Any]
    log_weights: Array
    log_evidence: float
    spread: float
    edge: float
    cell: Array | None

    @property
    def kind(self) -> str:
        """Return how messages call it."""
        return "weighted net" if self.cell is None else "lattice"

    @property
    def points(self) -> Array:
        """Return the points ``(k, p)``."""
        return np.stack([node.phi for node in self.nodes])

    def moments(self) -> tuple[Array, Array]:
        """Return the mean of φ by the weights, and the Cholesky factor of its covariance."""
        return moments_of(self.points, normalised_weights(self.log_weights)[0])

    def covers(self, phi: Array) -> bool:
        """Return whether φ is next to a point of a lattice, or where a Gaussian with the moments of a net has draws."""
        if self.cell is not None:
            steps = np.linalg.solve(self.cell, (self.points - phi).T)
            return bool(np.abs(steps).max(axis=0).min() <= 1.0)
        centre, root = self.moments()
        return float((np.linalg.solve(root, phi - centre) ** 2).sum()) <= bound_of_ellipsoid(len(phi))


def moments_of(points: Array, weights: Array) -> tuple[Array, Array]:
    """Return the mean of weighted points ``(k, p)``, and the Cholesky factor of their covariance."""
    mean = weights @ points
    apart = points - mean
    cov = (weights * apart.T) @ apart + 1e-12 * np.eye(len(mean))
    return mean, np.asarray(np.linalg.cholesky(cov), dtype=np.float64)


def lattice(evaluate: Evaluate, mode: Any, scale: Array) -> Design:
    """Return the nodes mode + ``scale`` · spacing · k that are connected to the mode by nodes of high density.

    ``evaluate`` maps φ and a neighbour's fit to a node, or to None. The columns of ``scale`` are along principal axes.
    """
    p = len(mode.phi)
    for spacing in SPACING[p] * 0.5 ** np.arange(4):
        found, ends = _flood(evaluate, mode, spacing * scale)
        log_posterior = np.array([node.log_posterior for node in found.values()])
        weights = normalised_weights(log_posterior)[0]
        if weights @ weights < MAX_SHARE:
            break
    log_cell = p * np.log(spacing) + np.linalg.slogdet(scale)[1]
    z = spacing * np.array(list(found), dtype=float)
    apart = z - weights @ z
    smallest = np.sqrt(max(1e-12, float(np.linalg.eigvalsh((weights * apart.T) @ apart)[0])))
    spread = float(np.clip(KERNEL * spacing / smallest, 0.1, 0.7))
    edge = max((float(w) for k, w in zip(found, weights, strict=True) if k in ends), default=0.0) / float(weights.max())
    log_evidence = float(logsumexp(log_posterior) + log_cell)
    return Design(list(found.values()), log_posterior, log_evidence, spread, edge, spacing * scale)


def _flood(evaluate: Evaluate, mode: Any, step: Array) -> tuple[dict[Index, Any], set[Index]]:
    """Return points of the lattice mode + step · k, starting with those next to the densest, and where it ends early."""
    p = len(mode.phi)
    origin = (0,) * p
    found: dict[Index, Any] = {origin: mode}
    ends: set[Index] = set()
    queue, top = [(-mode.log_posterior, origin)], mode.log_posterior
    while queue:
        negative, here = heappop(queue)
        if -negative < top - DROP[p]:
            break
        if len(found) >= MAX_NODES:
            ends.add(here)
            continue
        for axis, sign in product(range(p), (-1, 1)):
            there = tuple(k + sign * (j == axis) for j, k in enumerate(here))
            if there not in found:
                found[there] = node = evaluate(mode.phi + step @ np.array(there), found[here].fit)
                if node is not None:
                    heappush(queue, (-node.log_posterior, there))
                    top = max(top, node.log_posterior)
            if found[there] is None:
                ends.add(here)
    return {k: node for k, node in found.items() if node is not None}, ends


def net(evaluate: Evaluate, mode: Any, scale: Array) -> Design:
    """Return points with importance weights: of split Student t, at the mode and then by the moments so far.

    A tail that the density near the mode does not show has further points from the start. One that these do not show
    widens the next part. A tail along a coordinate, as of the log of a scale towards zero, has points in each part. Parts
    are added until they agree.
    """
    p, rng = len(mode.phi), np.random.default_rng(0)
    near, far = _SplitStudent.around(evaluate, mode, scale)
    new = [(near, PART)] if (far.sides <= WIDER * near.sides).all() else [(near, PART), (far, FAR_PART)]
    tails = _tails(evaluate, mode, scale)
    each = next(n for n in (FAR_PART, FAR_PART // 2, FAR_PART // 4) if n * len(tails) <= 4 * FAR_PART)
    new += [(tail.around(mode.phi, scale @ scale.T), each) for tail in tails]
    parts: list[tuple[_SplitStudent, int]] = []
    phi = np.empty((0, p))
    nodes: list[Any] = []
    moments: list[tuple[Array, Array]] = []
    while True:
        for proposal, n in new:
            points = proposal.sample(n, rng)
            points = points[np.argsort((np.linalg.solve(scale, (points - mode.phi).T) ** 2).sum(axis=0))]  # outwards
            phi, nodes = np.concatenate([phi, points]), nodes + [evaluate(point, mode.fit) for point in points]
        parts += new
        kept = [k for k, node in enumerate(nodes) if node is not None]
        log_q = logsumexp([np.log(n) + q.log_density(phi) for q, n in parts], axis=0) - np.log(len(nodes))
        log_weights = np.array([nodes[k].log_posterior for k in kept]) - log_q[kept]
        weights = normalised_weights(log_weights)[0]
        if len(kept) < 2 * p or len(moments) == MOST_PARTS - 1:
            break
        moments.append(moments_of(phi[kept], weights))
        if len(moments) > 1 and _agree(moments[-2], moments[-1], AGREE_IN_TAILS if tails else AGREE):
            break
        new = [(_SplitStudent.of_points(phi[kept], weights, *moments[-1]), PART)]
        new += [(tail.of_points(phi[kept], weights, *moments[-1]), each) for tail in tails]
    effective = 1 / float(weights @ weights)
    spread = float(np.clip((4 / (p + 2) / effective) ** (1 / (p + 4)), 0.1, 0.7))  # Silverman's rule
    log_evidence = float(logsumexp(log_weights) - np.log(len(nodes)))
    return Design([nodes[k] for k in kept], log_weights, log_evidence, spread, 1 - len(kept) / len(nodes), None)


def _agree(some: tuple[Array, Array], others: tuple[Array, Array], by: float) -> bool:
    """Return whether means and standard deviations differ by less, in standard deviations."""
    sd, other = (np.sqrt((root**2).sum(axis=1)) for _, root in (some, others))
    return bool(max(np.abs(sd / other - 1).max(), (np.abs(some[0] - others[0]) / sd).max()) < by)


class _SplitStudent(NamedTuple):
    """Independent Student t along the columns of ``scale``, each side of each with its own scale of ``sides`` ``(2, p)``."""

    centre: Array
    scale: Array
    sides: Array

    @classmethod
    def around(cls, evaluate: Evaluate, mode: Any, scale: Array) -> tuple[_SplitStudent, _SplitStudent]:
        """Compute the scale of each side from the decrease of the density: near the mode, and where it is widest."""
        near, far = np.ones((2, 2, len(scale)))
        for j, column in enumerate(scale.T):
            for row, sign in enumerate((-1.0, 1.0)):
                widths = _widths(evaluate, mode, sign * column)
                near[row, j], far[row, j] = np.clip(widths[0], 0.5, WIDEST_NEAR), np.clip(max(widths), 0.5, WIDEST)
        return cls(mode.phi, scale, near), cls(mode.phi, scale, far)

    @classmethod
    def of_points(cls, points: Array, weights: Array, centre: Array, root: Array) -> _SplitStudent:
        """Compute the scale of each side from the second moment of weighted points there."""
        z = np.linalg.solve(root, (points - centre).T)
        squares = [np.where(side, z**2, 0.0) @ weights / np.maximum(side @ weights, 1e-6) for side in (z < 0, z >= 0)]
        return cls(centre, root, np.clip(WIDER * np.sqrt(squares), 0.5, 3.0))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return scrambled Sobol points of the distribution ``(n, p)``."""
        u = inside_cube(qmc.Sobol(len(self.centre), seed=rng).random(n))
        left = self.sides[0] / self.sides.sum(axis=0)  # share of the mass on the left
        t = np.where(u < left, stdtrit(NET_DF, 0.5 * u / left), stdtrit(NET_DF, 0.5 + 0.5 * (u - left) / (1 - left)))
        return self.centre + (t * np.where(u < left, *self.sides)) @ self.scale.T

    def log_density(self, x: Array) -> Array:
        """Return the log density ``(n,)``."""
        z = np.linalg.solve(self.scale, (x - self.centre).T).T
        each = student_t.logpdf(z / np.where(z < 0, *self.sides), NET_DF) + np.log(2.0 / self.sides.sum(axis=0))
        return np.asarray(each.sum(axis=1) - np.linalg.slogdet(self.scale)[1])


class _Tail(NamedTuple):
    """A side of a coordinate, -1 or 1, on which the density falls slowly, and its width there."""

    coordinate: int
    side: int
    width: float

    def around(self, centre: Array, cov: Array) -> _SplitStudent:
        """Return a distribution with this tail, in which the coordinate is independent of the others."""
        j, cov, sides = self.coordinate, cov.copy(), np.full((2, len(centre)), WIDER)
        variance = cov[j, j]
        cov[j, :] = cov[:, j] = 0.0
        cov[j, j] = variance
        sides[:, j] = 0.5
        sides[(self.side + 1) // 2, j] = np.clip(self.width / variance**0.5, 1.0, WIDEST)
        return _SplitStudent(centre, np.asarray(np.linalg.cholesky(cov), dtype=np.float64), sides)

    def of_points(self, points: Array, weights: Array, mean: Array, root: Array) -> _SplitStudent:
        """Return the same around weighted points, the other coordinates with the moments that they have in the tail."""
        j, centre, cov = self.coordinate, mean, root @ root.T
        sd = cov[j, j] ** 0.5
        there = np.where(self.side * (points[:, j] - mean[j]) > IN_TAIL * sd, weights, 0.0)
        if there.sum() ** 2 > 3 * len(mean) * (there @ there):  # enough points for moments
            centre, root = moments_of(points, there / there.sum())
            cov = root @ root.T
            centre[j], cov[j, j] = mean[j], sd**2
        return self.around(centre, cov)


def _tails(evaluate: Evaluate, mode: Any, scale: Array) -> list[_Tail]:
    """Return the tails along coordinates that conditional standard deviations at the mode do not show."""
    conditional = 1 / np.sqrt(np.diag(np.linalg.inv(scale @ scale.T)))
    near, far = _SplitStudent.around(evaluate, mode, np.diag(conditional))
    wide = zip(*np.nonzero(np.minimum(far.sides, WIDEST_NEAR) > WIDER * near.sides), strict=True)
    return [_Tail(int(j), 2 * int(row) - 1, float(far.sides[row, j] * conditional[j])) for row, j in wide]


def _widths(evaluate: Evaluate, mode: Any, column: Array) -> list[float]:
    """Return the sd of the Gaussian, in units of a column, with the decrease of the density at each of some distances.

    They end where the density is negligible, or there is no approximation.
    """
    widths, fit = [], mode.fit
    for distance in DISTANCES:
        node = evaluate(mode.phi + distance * column, fit)
        if node is None:
            break
        drop, fit = mode.log_posterior - node.log_posterior, node.fit
        widths.append(distance / float(np.sqrt(2.0 * max(drop, 1e-6))))
        if drop > DROP[GRID_DIM]:
            break
    return widths or [1.0]
