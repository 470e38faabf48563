r"""The posterior of latent variables given hyper-parameters, by sparse matrices: mode, moments to second order, and evidence.

With the Gaussian N(θ̂, H⁻¹) at the mode, H = Q + AᵀWA and s = Aθ + b:

* means solve AᵀE[∂ log t(s)] = Q(θ − m), the expectation under the Gaussian; of all Gaussians with this covariance
  this is the nearest in Kullback–Leibler divergence (van Niekerk & Rue 2024);
* precisions are Q + AᵀW₂A − AᵀMA, with W₂ = −E[∂² log t] there and Mᵢₖ = ½ κᵢκₖ cov(sᵢ, sₖ)², κ = E[∂³ log t];
* third moments are Σᵢ κᵢ cov(θⱼ, sᵢ)³;
* the evidence is Laplace's times E[tᵢ/t̃ᵢ] of every site over its quadratic t̃ᵢ at the mode, and pairs of sites add
  Σᵢ≠ₖ κᵢκₖ (⅛ vᵢ vᵢₖ vₖ + vᵢₖ³/12) to its log (Shun & McCullagh 1995), v being the covariance of s.

Up to 500 coordinates all covariances are computed. Above, those in the pattern of the sparse factor are computed, and
the sums over pairs of sites keep only i = k, except for the first term of the evidence, which takes one solution.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import LinAlgError
from scipy import sparse
from scipy.special import logsumexp

from ppl_backends.numerics.gaussian import LOG_2PI, normal_rule
from ppl_backends.numerics.sparse_cholesky import SparseCholesky, covariances_in_pattern
from ppl_backends.targets.latent_gaussian import LatentFactors
from ppl_backends.targets.protocol import Array, Index

GAIN = 1e-10  # expected gain of a step, in nats, below which the search for the mode stops
ITERATIONS, HALVINGS, MEAN_STEPS = 60, 25, 30
MEAN_GAIN = 0.02  # nats, below which the means are found: a step of a fifth of a standard deviation is left
DENSE = 500  # coordinates, and twice as many sites, up to which all covariances are computed
NODES, WEIGHTS = normal_rule(21)
THIRD_STEP = 0.3  # standard deviations, for third derivatives at the mode


class Precision:
    """A sparse precision on Cθ = 0: solutions, determinant, draws, and covariances of θ and of predictors."""

    def __init__(self, matrix: Any, given: LatentFactors, order: Index | None) -> None:
        self.factor, self._design, self._c = SparseCholesky(matrix, order), given.design, given.constraints
        self.log_determinant = self.factor.log_determinant
        if self._c is not None:
            self._gain = self.factor.solve(np.ascontiguousarray(self._c.T))  # (d, k)
            self._inner = self._c @ self._gain
            gram = self._c @ self._c.T
            self.log_determinant += np.linalg.slogdet(self._inner)[1] - np.linalg.slogdet(gram)[1]

    def project(self, x: Array) -> Array:
        """Return points ``(d,)`` or ``(d, k)`` projected onto Cθ = 0, as for the conditional Gaussian."""
        return x if self._c is None else x - self._gain @ np.linalg.solve(self._inner, self._c @ x)

    def solve(self, right: Array) -> Array:
        """Return the covariance times ``right``, ``(d,)`` or ``(d, k)``."""
        return self.project(self.factor.solve(right))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` draws ``(n, d)`` with mean zero."""
        return self.project(self.factor.colour(rng.standard_normal((n, self._design.shape[1]))).T).T

    def covariances(self) -> Covariances:
        """Return the known covariances."""
        n, d = self._design.shape
        if d <= DENSE and n <= 2 * DENSE:
            cov = self.solve(np.eye(d))
            cross = np.asarray(self._design @ cov)
            return Covariances(np.diagonal(cov).copy(), cross, np.asarray(self._design @ cross.T).T)
        inverse = self.factor.inverse_in_pattern()
        variance = inverse.diagonal()
        cross = sparse.csr_matrix(self._design, copy=True)
        cross.data = covariances_in_pattern(self._design, inverse)
        if self._c is not None:
            whitened = np.linalg.solve(np.linalg.cholesky(self._inner), self._gain.T)  # (k, d)
            variance = variance - (whitened**2).sum(axis=0)
            rows = np.repeat(np.arange(n), np.diff(cross.indptr))
            of_sites = np.asarray(self._design @ whitened.T)  # (n, k)
            cross.data = cross.data - (of_sites[rows] * whitened.T[cross.indices]).sum(axis=1)
        return Covariances(variance, cross, np.asarray(self._design.multiply(cross).sum(axis=1)).ravel())


class Covariances(NamedTuple):
    """Variances of θ ``(d,)``, covariances of s and θ ``(n, d)``, and of s: all ``(n, n)``, or variances ``(n,)``."""

    variance: Array
    cross: Any
    of_sites: Array

    @property
    def site_variance(self) -> Array:
        """Return the variances of the predictors ``(n,)``; zero for a row of zeros."""
        return np.maximum(np.diagonal(self.of_sites) if self.of_sites.ndim == 2 else self.of_sites, 0.0)


class LatentFit(NamedTuple):
    """The posterior of θ given φ: moments ``(d,)``, the precision of draws, the evidence, and figures."""

    mode: Array
    mean: Array
    sd: Array
    skewness: Array
    precision: Any  # a Precision, or a Gaussian; None if it is not kept
    log_evidence: float
    figures: dict[str, float]
    trouble: str = ""


class _Mode(NamedTuple):
    theta: Array
    precision: Precision
    log_evidence: float  # Laplace's
    gain: float


def fit_latent(given: LatentFactors, start: Array | None = None) -> LatentFit:
    """Fit the posterior of θ given φ; start from a neighbour's mode, if given.

    Raises
    ------
    LinAlgError
        If a precision is not positive definite.
    """
    top = find_mode(given, given.mean if start is None else start)
    known = top.precision.covariances()
    v = known.site_variance
    at_mode = given.design @ top.theta + given.offset
    second_order = _evidence_terms(given, at_mode, known, top.precision)
    mean = _means(given, top, v)
    s = _spread(given.design @ mean + given.offset, v)
    second = given.sites.derivatives(s)[1]
    third = _over(WEIGHTS * NODES @ second, np.sqrt(v))
    order = top.precision.factor.order
    precision, covariances = _second_order_precision(given, known, -(WEIGHTS @ second), third, order)
    sd = np.sqrt(covariances.variance)
    cubed = covariances.cross.power(3) if sparse.issparse(covariances.cross) else covariances.cross**3
    figures = {
        "newton_gain": top.gain,
        "laplace_log_evidence": top.log_evidence,
        "evidence_correction": second_order,
        "mean_shift": float(np.abs((mean - top.theta) / sd).max()),
        "sd_ratio": _farthest(sd / np.sqrt(known.variance)),
    }
    skewness = np.asarray(cubed.T @ third).ravel() / sd**3
    return LatentFit(top.theta, mean, sd, skewness, precision, top.log_evidence + second_order, figures)


def find_mode(given: LatentFactors, start: Array) -> _Mode:
    """Climb to the mode by Newton's method with halved steps; the pattern and order of its matrices are constant."""
    theta, precision, order, gain = start, None, None, np.inf
    for _ in range(ITERATIONS):
        first, second = (part[0] for part in given.sites.derivatives((given.design @ theta + given.offset)[None]))
        precision = _curved(given, -second, order)
        order = precision.factor.order
        theta = precision.project(theta)
        value = _objective(given, theta)
        slope = given.design.T @ first - given.precision @ (theta - given.mean)
        step = precision.solve(slope)
        gain = 0.5 * float(slope @ step)
        if gain < GAIN:
            break
        for halving in range(HALVINGS):
            trial = theta + 0.5**halving * step
            there = _objective(given, trial)
            if there >= value - 1e-12 * abs(value):
                break
        else:
            break
        theta, value = trial, there
    assert precision is not None
    free = len(theta) - (0 if given.constraints is None else len(given.constraints))
    log_evidence = given.log_constant + value + gain + 0.5 * (free * LOG_2PI - precision.log_determinant)
    return _Mode(theta, precision, log_evidence, gain)


def _objective(given: LatentFactors, theta: Array) -> float:
    return given.log_likelihood(theta) + given.log_prior(theta) - given.log_constant


def _curved(given: LatentFactors, weights: Array, order: Index | None) -> Precision:
    """Return Q + AᵀWA; if it is indefinite, leave out the negative weights of sites that are not log-concave."""
    try:
        return Precision(given.precision + given.design.T @ sparse.diags(weights) @ given.design, given, order)
    except LinAlgError:
        if np.all(weights >= 0):
            raise
        return _curved(given, np.maximum(weights, 0.0), order)


def _spread(s: Array, v: Array) -> Array:
    """Return the nodes of a Gauss–Hermite rule for N(s, v), ``(nodes, n)``."""
    return s + NODES[:, None] * np.sqrt(v)


def _over(change: Array, width: Array) -> Array:
    """Return a difference over its width; zero where that is zero, because such a site is a constant."""
    return np.divide(change, width, out=np.zeros_like(change), where=width > 0)


def _means(given: LatentFactors, top: _Mode, v: Array) -> Array:
    """Return the means, by steps with the curvature at the mode that are halved where the expected gain grows.

    Raises
    ------
    LinAlgError
        If the steps do not come near to the means: a site is far from quadratic over the width of the Gaussian.
    """
    mean, step, last = top.theta, np.zeros_like(top.theta), np.inf
    for _ in range(MEAN_STEPS):
        first = WEIGHTS @ given.sites.derivatives(_spread(given.design @ mean + given.offset, v))[0]
        slope = given.design.T @ first - given.precision @ (mean - given.mean)
        further = top.precision.solve(slope)
        gain = 0.5 * float(slope @ further)
        if gain <= last:
            last, step = gain, further
        else:
            mean, step = mean - step, 0.5 * step
        mean = mean + step
        if np.abs(given.design @ step).max() < 1e-5 * np.sqrt(v.max()):
            break
    if not last < MEAN_GAIN:
        raise LinAlgError(f"the means of second order are not found (expected gain {last:.2g} nats)")
    return mean


def _evidence_terms(given: LatentFactors, s: Array, known: Covariances, precision: Precision) -> float:
    """Return the log evidence that sites add to their quadratics: singly, and in pairs to second order."""
    v = known.site_variance
    first, second = (part[0] for part in given.sites.derivatives(s[None]))
    step = NODES[:, None] * np.sqrt(v)
    beyond = given.sites.log_site(s + step) - given.sites.log_site(s[None]) - step * (first + 0.5 * step * second)
    total = float(logsumexp(beyond, axis=0, b=WEIGHTS[:, None]).sum())
    width = THIRD_STEP * np.sqrt(v)
    ahead, behind = (given.sites.derivatives((s + side)[None])[1][0] for side in (width, -width))
    third = _over(ahead - behind, 2 * width)
    own = float(third**2 @ v**3)
    if known.of_sites.ndim == 2:
        pairs, pull = known.of_sites, third * v
        return total + (float(pull @ pairs @ pull) - own) / 8 + (float(third @ pairs**3 @ third) - own) / 12
    pull = given.design.T @ (third * v)
    return total + (float(pull @ precision.solve(pull)) - own) / 8


def _second_order_precision(
    given: LatentFactors, known: Covariances, weights: Array, third: Array, order: Index
) -> tuple[Precision, Covariances]:
    """Return the precision with its terms of second order, or without them if they make it indefinite."""
    matrix = given.precision + given.design.T @ sparse.diags(weights) @ given.design
    if known.of_sites.ndim == 2:
        between = 0.5 * np.outer(third, third) * known.of_sites**2
        taken = sparse.csc_matrix(np.asarray(given.design.T @ np.asarray(given.design.T @ between).T))
    else:
        taken = given.design.T @ sparse.diags(0.5 * (third * known.of_sites) ** 2) @ given.design
    try:
        precision = Precision(matrix - taken, given, order)
    except LinAlgError:
        precision = _curved(given, weights, order)
    return precision, precision.covariances()


def _farthest(ratio: Array) -> float:
    return float(ratio[np.argmax(np.abs(np.log(ratio)))])
