"""Integration over hyper-parameters: latent posteriors given φ, mixed by the posterior of φ (Rue, Martino & Chopin 2009).

A climb finds the mode of the evidence at φ times the prior of φ; a lattice in its principal axes (one or two φ) or a
net of weighted points (three and more) covers it. Latent marginals are mixtures of skew normal ones over its points.
Marginals of φ come from an interpolation of its log posterior over the lattice, or from kernels around the points of a
net.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import LinAlgError
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline, RBFInterpolator
from scipy.special import log_ndtr, logsumexp

from ppl_backends.approximations.elsewhere import NEGLIGIBLE_SHARE
from ppl_backends.approximations.hyper import (
    HyperParameters,
    check_number,
    climb,
    design_around,
    written,
)
from ppl_backends.approximations.hyper_draws import Sampler, draws_of_design
from ppl_backends.approximations.hyper_modes import STARTS, dispersed_by_density, judge_design
from ppl_backends.approximations.inla.latent import GAIN, LatentFit, fit_latent
from ppl_backends.approximations.inla.result import WithMarginals
from ppl_backends.approximations.marginals import Marginals, chosen
from ppl_backends.errors import ModelError
from ppl_backends.numerics.differences import central_differences
from ppl_backends.numerics.gaussian import LOG_2PI, MAX_DENSE_DIM
from ppl_backends.numerics.weights import normalised_weights
from ppl_backends.targets.latent_gaussian import LatentFactors
from ppl_backends.targets.protocol import Array, BaseTarget

SMALLEST_SHARE = 1e-5  # of the weights; points with less are left out
GRID, HALF_WIDTH = 301, 6.0  # points of a marginal, and standard deviations of each component that it covers
HYPER_GRID = 121  # points of each hyper-parameter, for the interpolation
FEWEST_TO_INTERPOLATE = 6  # points; fewer have kernels
MOST_SKEWED = 0.95  # skew normal densities have less than 0.995
LARGEST_SKEWNESS = 1.0
SD_RANGE = (0.8, 1.25)  # of the standard deviations over those of the Gaussian at the mode
SMALLEST_SD = 1e-8  # of a hyper-parameter
LARGEST_SHARE = 0.2  # of the weights, at points of φ where the fit is in trouble
DIFFERENCE = 0.02  # in φ, for the gradient of its log posterior


class Node(NamedTuple):
    """The latent posterior at one φ, with log p(y | φ) + log p(φ)."""

    phi: Array
    log_posterior: float
    fit: LatentFit


class SparseLatent:
    """A latent Gaussian model or factors with hyper-parameters, fitted given these by sparse matrices.

    Factors hold compiled functions. With the ``target`` that they were found in, a copy finds them again.
    """

    def __init__(self, described: Any, target: BaseTarget | None = None) -> None:
        self._described, self._target = described, target
        self.hyper_names, self.start = tuple(described.hyper_names), np.asarray(described.start, dtype=np.float64)
        self.hyper_coordinates, self.coordinates = described.hyper_coordinates, described.coordinates
        self.log_hyper_prior = described.log_hyper_prior

    def __reduce__(self) -> tuple[Any, ...]:
        if self._target is None:
            return SparseLatent, (self._described,)
        return _latent_of_factors, (self._target,)

    def fit(self, phi: Array, start: LatentFit | None) -> LatentFit:
        """Return the latent posterior given φ, from a neighbour's mode."""
        found = self._described.at(phi)
        given = found if isinstance(found, LatentFactors) else LatentFactors.of_factors(found)
        return fit_latent(given, None if start is None else start.mode)

    def improved(self, phi: Array, fit: LatentFit) -> LatentFit:
        """Return the fit, which already includes its terms of second order."""
        return fit

    def sampler(self, phi: Array, fit: LatentFit) -> Sampler:
        """Return a function that draws the latent variables given φ ``(n, d)``."""
        precision = self.fit(phi, fit).precision
        return lambda n, rng: fit.mean + precision.sample(n, rng)

    def other_mode_share(self, node: Node) -> float:
        """Return zero, because there is no search for other modes of the latent variables given φ."""
        return 0.0

    def refusal(self, phi: Array) -> str:
        """Return what to do if there is no fit at the first φ."""
        said = f"no proper approximation at {written(self.hyper_names, phi)}"
        if self._target is None:
            return f"{said}: the precision must be positive definite there, or constraints= must span its null space"
        return f"{said}; use sample_smc"

    def dispersed(self, n: int, rng: np.random.Generator) -> Array:
        """Return points of φ ``(n, p)``, about distributed as its prior; none for the largest models."""
        if len(self.coordinates) > MAX_DENSE_DIM:
            return np.empty((0, len(self.start)))
        return dispersed_by_density(self.log_hyper_prior, self.start, n, rng)


def _latent_of_factors(target: BaseTarget) -> SparseLatent:
    return SparseLatent(target.factors, target)


class _Posterior:
    """Log posterior of φ; None if there is no proper approximation."""

    def __init__(self, described: Any) -> None:
        self._described, self.names = described, tuple(described.hyper_names)
        self.runs = 0

    def node(self, phi: Array, start: LatentFit | None = None) -> Node | None:
        """Fit the latent posterior at ``phi``, from a neighbour's mode."""
        self.runs += 1
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                fit = self._described.fit(phi, start)
        except (ModelError, LinAlgError, FloatingPointError):
            return None
        value = fit.log_evidence + self._described.log_hyper_prior(phi)
        # The factor of a large precision takes most of the memory: it is recomputed when draws are needed.
        return Node(phi, float(value), fit._replace(precision=None)) if np.isfinite(value) else None

    def gradient(self, node: Node) -> Array | None:
        """Return the gradient of the log posterior at a node, by differences."""

        def log_posterior(points: Array) -> list[float]:
            found = [self.node(phi, node.fit) for phi in points]
            return [np.nan if each is None else each.log_posterior for each in found]

        found = central_differences(log_posterior, node.phi[None], step=DIFFERENCE)[0]
        return found if np.isfinite(found).all() else None


class IntegratedLaplace(WithMarginals):
    """Nested Laplace approximations integrated over hyper-parameters; see :func:`~ppl_backends.fit_inla`.

    Attributes
    ----------
    names : tuple of str
    mean, sd, std : ndarray (dim,)
        Moments of the marginals, of hyper-parameters and latent variables in the target's order.
    log_evidence : float
        Approximate: log of the integral over φ of Laplace's evidences with their terms of second order.
    hyper : HyperParameters
        Points of φ with their weights.
    converged : bool
    trouble : str
        The reason if it did not converge, with its figure.
    diagnostics : dict
        ``fits``, ``design_points`` and ``effective_points`` of φ, ``other_mode_share``, ``around_share`` and
        ``edge`` (mass of φ at another mode and around the points, and the relative density where a lattice ends early, or the
        share of points of a net without an approximation), and at the most probable point ``evidence_correction``
        (terms of second order), ``mean_shift`` (largest distance of a mean from the mode, in standard deviations),
        ``sd_ratio`` (the ratio, farthest from one, of a standard deviation to that of the Gaussian at the mode) and
        ``skewness`` (largest).

    Examples
    --------
    >>> import pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     tau = pm.HalfNormal("tau", 1)
    ...     effect = pm.Normal("effect", 0, tau, shape=3)
    ...     y = pm.Poisson("y", pm.math.exp(effect), observed=[3, 1, 2])
    >>> q = pb.fit_inla(model)
    >>> type(q).__name__, q.hyper.names, q.marginals().names
    ('IntegratedLaplace', ('tau_log__',), ('tau_log__', 'effect[0]', 'effect[1]', 'effect[2]'))
    """

    representation = "nested"
    hyper: HyperParameters
    _sd: Array
    _described: Any
    _fits: list[LatentFit]
    _hyper_marginals: Marginals

    @property
    def sd(self) -> Array:
        return self._sd

    @property
    def cov(self) -> Array:
        """Raise an error, because there may be too many latent variables for a covariance."""
        raise ModelError("nested approximations have no covariance of all coordinates; take that of sample(n, rng)")

    def marginals(self, coordinates: Any = None) -> Marginals:
        index = chosen(coordinates, self.names)
        place = {int(j): k for k, j in enumerate(self._described.coordinates)}
        of_hyper = {int(j): k for k, j in enumerate(self._described.hyper_coordinates)}
        latent = np.array([place[int(j)] for j in index if int(j) in place], dtype=int)
        grid, density = np.empty((len(index), GRID)), np.empty((len(index), GRID))
        is_latent = np.array([int(j) in place for j in index])
        grid[is_latent], density[is_latent] = _latent_densities(self._fits, self.hyper.weights, latent)
        for row in np.flatnonzero(~is_latent):
            own = of_hyper[int(index[row])]
            grid[row], density[row] = self._hyper_marginals.grid[own], self._hyper_marginals.density[own]
        return Marginals.of_densities([self.names[j] for j in index], grid, density)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` draws ``(n, dim)``: φ from its design, and θ given φ."""

        def conditional(k: int) -> Sampler:
            return self._described.sampler(self.hyper.points[k], self._fits[k])

        x = np.empty((n, self.dim))
        x[:, self._described.hyper_coordinates], x[:, self._described.coordinates] = draws_of_design(
            self.hyper, conditional, n, rng
        )
        return x

    def log_density(self, x: Array) -> Array:
        """Raise an error, because nested approximations have no joint density."""
        raise ModelError(
            "nested approximations have marginal densities, pdf(x), and no joint one; use fit_ep for a mixture"
        )

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        return self.log_density(x), np.zeros_like(x)

    def from_uniform(self, u: Array) -> Array:
        """Raise an error, because nested approximations are not a map of the cube."""
        raise ModelError("nested approximations have no map from the unit cube; use sample(n, rng)")


def integrate(described: Any, target: BaseTarget) -> IntegratedLaplace:
    """Return the latent posterior integrated over φ, with its verdict."""
    check_number(target.label, described.hyper_names)
    posterior = _Posterior(described)
    start = np.asarray(described.start, dtype=np.float64)
    if not len(start):
        return _without_hyper_parameters(described, target, posterior)
    try:
        mode = climb(posterior, start + 0.1)
    except ModelError:
        raise ModelError(f"{target.label}: {described.refusal(start + 0.1)}") from None
    design = design_around(posterior, mode)
    log_weights = design.log_weights - logsumexp(design.log_weights)
    kept = np.flatnonzero(log_weights > np.log(SMALLEST_SHARE))
    nodes = [_improved(described, design.nodes[k]) for k in kept]
    log_weights = log_weights[kept] + [
        n.log_posterior - design.nodes[k].log_posterior for n, k in zip(nodes, kept, strict=True)
    ]
    log_evidence = design.log_evidence + logsumexp(log_weights)
    weights = normalised_weights(log_weights)[0]
    effective = float(1 / (weights @ weights))
    names = tuple(described.hyper_names)
    points = np.stack([node.phi for node in nodes])
    interpolates = design.cell is not None and len(nodes) > FEWEST_TO_INTERPOLATE
    marginals = _interpolated(names, nodes) if interpolates else _kernels(names, points, weights, design.spread)
    what = f"INLA over {', '.join(names)}: {len(nodes)} points of a {design.kind}, {effective:.1f} effective"
    order = np.array([node.log_posterior for node in nodes])
    hyper = HyperParameters(names, mode.phi, points, weights, order, what, design.cell)
    starts = described.dispersed(STARTS, np.random.default_rng(0))
    trouble, figures = judge_design(posterior, mode, design, effective, names, starts)
    figures |= {"fits": float(posterior.runs), "design_points": float(len(nodes)), "effective_points": effective}
    if not trouble:
        of_latent = described.other_mode_share(max(nodes, key=lambda node: node.log_posterior))
        if of_latent > NEGLIGIBLE_SHARE:
            trouble = f"given the hyper-parameters another mode has {of_latent:.0%} of the mass of both"
    return _result(described, target, nodes, hyper, marginals, log_evidence, figures, trouble)


def _improved(described: Any, node: Node) -> Node:
    """Return a node with non-Gaussian moments at its mode."""
    fit = described.improved(node.phi, node.fit)
    return Node(node.phi, node.log_posterior + fit.log_evidence - node.fit.log_evidence, fit)


def _without_hyper_parameters(described: Any, target: BaseTarget, posterior: _Posterior) -> IntegratedLaplace:
    node = posterior.node(np.empty(0))
    if node is None:
        raise ModelError(f"{target.label}: the latent variables have no proper posterior")
    hyper = HyperParameters((), node.phi, node.phi[None], np.ones(1), np.zeros(1), "no hyper-parameters")
    none = Marginals((), *(np.empty((0, GRID)),) * 2, *(np.empty(0),) * 3)
    return _result(described, target, [node], hyper, none, node.log_posterior, {"fits": 1.0}, "")


def _result(
    described: Any,
    target: BaseTarget,
    nodes: list[Node],
    hyper: HyperParameters,
    marginals: Marginals,
    log_evidence: float,
    figures: dict[str, float],
    trouble: str,
) -> IntegratedLaplace:
    """Return the mixture over φ, with means and standard deviations of all coordinates."""
    fits, weights = [node.fit for node in nodes], hyper.weights
    top = fits[int(np.argmax([node.log_posterior for node in nodes]))]
    figures |= top.figures | {"skewness": float(np.abs(top.skewness).max())}
    mean, sd = np.empty(target.dim), np.empty(target.dim)
    mean[described.hyper_coordinates], sd[described.hyper_coordinates] = marginals.mean, marginals.sd
    latent = np.einsum("k,kd->d", weights, np.stack([fit.mean for fit in fits]))
    square = sum(w * (fit.sd**2 + (fit.mean - latent) ** 2) for w, fit in zip(weights, fits, strict=True))
    mean[described.coordinates], sd[described.coordinates] = latent, np.sqrt(square)
    trouble = trouble or _trouble_of_fits(nodes, weights)
    result = IntegratedLaplace()
    vars(result).update(mean=mean, _sd=sd, hyper=hyper, _described=described, _fits=fits, _hyper_marginals=marginals)
    about: dict[str, Any] = {"names": target.names, "target": target, "method": "inla", "diagnostics": figures}
    result._describe(target.dim, converged=not trouble, trouble=trouble, log_evidence=log_evidence, **about)
    return result


def _trouble_of_fits(nodes: list[Node], weights: Array) -> str:
    """Return why the fits given φ cannot be trusted: the reason at the heaviest of those in trouble; empty if they can."""
    gain = max(node.fit.figures["newton_gain"] for node in nodes)
    if not gain < 1e4 * GAIN:
        return f"the search for the mode of the latent variables did not converge (expected gain {gain:.2g} nats)"
    found = np.array([_trouble(node.fit) for node in nodes], dtype=object)
    share = float(weights @ (found != ""))
    if not share > LARGEST_SHARE:
        return ""
    heaviest = found[np.argmax(np.where(found != "", weights, -1.0))]
    return f"{heaviest} (and at points of φ with {share:.0%} of the weight)" if share < 0.995 else str(heaviest)


def _trouble(fit: LatentFit) -> str:
    """Return why the expansion about the mode given one φ cannot be trusted; empty if it can."""
    if fit.trouble:
        return fit.trouble
    if not SD_RANGE[0] <= fit.figures["sd_ratio"] <= SD_RANGE[1]:
        return f"terms of second order change a standard deviation by a factor of {fit.figures['sd_ratio']:.2g}"
    skewness = float(np.abs(fit.skewness).max())
    if not skewness <= LARGEST_SKEWNESS:
        return f"a marginal has a skewness of {skewness:.2g} in terms of second order"
    return ""


def _latent_densities(fits: list[LatentFit], weights: Array, index: NDArray[np.integer]) -> tuple[Array, Array]:
    """Return grids and densities ``(k, m)``: mixtures of skew normal densities with the moments at each φ."""
    means, sds = (
        np.stack([part[index] for part in parts]) for parts in zip(*[(f.mean, f.sd) for f in fits], strict=True)
    )
    low, high = (means - HALF_WIDTH * sds).min(axis=0), (means + HALF_WIDTH * sds).max(axis=0)
    grid = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, GRID)
    density = np.zeros_like(grid)
    for weight, fit, mean, sd in zip(weights, fits, means, sds, strict=True):
        density += weight * _skew_normal(grid, mean[:, None], sd[:, None], fit.skewness[index][:, None])
    return grid, density


def _skew_normal(x: Array, mean: Array, sd: Array, skewness: Array) -> Array:
    """Return the density of the skew normal distribution with three given moments (Azzalini 1985)."""
    size = np.minimum(np.abs(skewness), MOST_SKEWED) ** (2 / 3)
    delta = np.sign(skewness) * np.sqrt(0.5 * np.pi * size / (size + (0.5 * (4 - np.pi)) ** (2 / 3)))
    scale = sd / np.sqrt(1 - 2 * delta**2 / np.pi)
    z = (x - mean) / scale + delta * np.sqrt(2 / np.pi)
    return 2 / scale * np.exp(-0.5 * z**2 - 0.5 * LOG_2PI + log_ndtr(delta / np.sqrt(1 - delta**2) * z))


def _interpolated(names: tuple[str, ...], nodes: list[Node]) -> Marginals:
    """Return the marginals of one or two φ from their log posterior at the points of a lattice."""
    points = np.stack([node.phi for node in nodes])
    values = np.array([node.log_posterior for node in nodes])
    values -= values.max()
    low, high = points.min(axis=0), points.max(axis=0)
    t = np.linspace(0, 1, GRID)
    if len(names) == 1:
        order = np.argsort(points[:, 0])
        grid = low + (high - low) * t
        return Marginals.of_densities(
            names, grid[None], np.exp(CubicSpline(points[order, 0], values[order])(grid))[None]
        )
    apart = points - points.mean(axis=0)
    root = np.linalg.cholesky(apart.T @ apart / len(points))
    white = np.linalg.solve(root, points.T).T
    surface = RBFInterpolator(white, values, kernel="cubic")
    sides = [np.linspace(a, b, HYPER_GRID) for a, b in zip(low, high, strict=True)]
    fine = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    placed = np.linalg.solve(root, fine.T).T
    near = np.sqrt(((white[:, None] - white) ** 2).sum(axis=2))
    spacing = near[near > 1e-9].min()
    distance = np.sqrt(((placed[:, None] - white) ** 2).sum(axis=2)).min(axis=1)
    density = np.where(distance < 1.5 * spacing, np.exp(np.minimum(surface(placed), 1.0)), 0.0)
    joint = density.reshape(HYPER_GRID, HYPER_GRID)
    rows = [np.interp(t, np.linspace(0, 1, HYPER_GRID), joint.sum(axis=1 - j)) for j in range(2)]
    return Marginals.of_densities(names, low[:, None] + (high - low)[:, None] * t, np.stack(rows))


def _kernels(names: tuple[str, ...], points: Array, weights: Array, spread: float) -> Marginals:
    """Return the marginals of φ from normal kernels around weighted points; the kernels preserve mean and variance."""
    mean = weights @ points
    sd = np.maximum(np.sqrt(weights @ (points - mean) ** 2), SMALLEST_SD)
    pulled = mean + np.sqrt(1 - spread**2) * (points - mean)
    grid = mean[:, None] + sd[:, None] * np.linspace(-HALF_WIDTH, HALF_WIDTH, GRID)
    z = (grid[:, :, None] - pulled.T[:, None]) / (spread * sd)[:, None, None]
    return Marginals.of_densities(names, grid, np.exp(-0.5 * z**2) @ weights)
