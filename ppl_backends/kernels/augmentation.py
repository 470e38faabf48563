r"""Gibbs sampling with latent variables that make a posterior Gaussian: one kernel for all regressions of this kind.

Given its hyper-parameters a posterior is N(θ; m₀, Q₀⁻¹) ∏ tᵢ(aᵢᵀθ + bᵢ). A step draws the latent variables of
:mod:`~ppl_backends.kernels.augmented_sites` given θ, then θ given them:

.. math:: θ \sim N(P^{-1} h, P^{-1}), \quad P = Q_0 + A^T W A, \quad h = Q_0 m_0 + A^T (v - W b).

Between the two, the latent z of probit sites are multiplied by one g > 0, drawn from the distribution of Liu and Wu
(1999), in which θ is integrated out: p(g) ∝ g^(n−1) exp(−½ R g² + L g). This leaves the posterior invariant and moves
the chain along the direction in which z and θ depend most strongly on each other.

For a block of θ, or with hyper-parameters that other steps move, everything is conditional on the other coordinates.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg.lapack import dpotrf, dtrtri

from ppl_backends.errors import ModelError
from ppl_backends.kernels.algorithm import Algorithm
from ppl_backends.kernels.augmented_sites import (
    AUGMENTED,
    CONSTANT_WEIGHTS,
    constant_weights,
    plain_families,
    refuse_others,
)
from ppl_backends.kernels.protocol import Kernel, KernelInfo, KernelParameters
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.numerics.population import Population
from ppl_backends.targets.factors import Factors, Probit, SiteFamily
from ppl_backends.targets.protocol import Array, BaseTarget, Index


class Regression:
    """The factors of a block of coordinates, given the others.

    Parameters
    ----------
    factors : Factors
        Factors of all coordinates θ.
    own : ndarray of int (dim,)
        The coordinates of the block.
    theta : ndarray (d,)
        Values of θ; those of the block are not used.
    allowed : tuple of type
        Allowed families of sites.
    step : str
        Name of the step in messages.
    """

    def __init__(
        self, factors: Factors, own: Index, theta: Array, allowed: tuple[type[SiteFamily], ...], step: str
    ) -> None:
        held = np.setdiff1d(np.arange(factors.dim), own)
        precision = factors.prior.add_to(np.zeros((factors.dim, factors.dim)))
        self.precision = precision[np.ix_(own, own)]  # Q₀ of the block
        self.linear = precision[own] @ factors.prior.mean - precision[np.ix_(own, held)] @ theta[held]  # Q₀ m₀
        design, offset = factors.design[:, own], factors.offset
        if len(held):
            offset = offset + np.asarray(factors.design[:, held] @ theta[held])
        rows = np.flatnonzero(np.asarray(abs(design).sum(axis=1)).ravel())  # the others do not depend on the block
        self.design, self.offset = design[rows], offset[rows]
        families = plain_families(factors.sites, rows)
        refuse_others(families, allowed, step)
        self.families = [(family, _span(columns)) for family, columns in families]
        self.step = step
        self.probit = _span(_columns(families, Probit))
        self.probit_design = self.design[self.probit]
        # A' W A of sites whose weights are constant is computed once, with Q₀.
        constant = np.zeros(len(rows))
        for family, columns in self.families:
            if isinstance(family, CONSTANT_WEIGHTS):
                constant[columns] = constant_weights(family)
        varying = np.setdiff1d(np.arange(len(rows)), _columns(families, CONSTANT_WEIGHTS))
        self._constant = self._gram(self.design, constant[None])[0] + self.precision
        self._varying, self._part = _span(varying), self.design[varying]
        self._root = None if len(varying) else self._inverse_root(self._constant)

    def latents(self, theta: Array, rng: Any) -> tuple[Array, Array]:
        """Draw w and v of all sites, each ``(k, n)``, given the block at ``theta`` ``(k, dim)``."""
        s = np.asarray((self.design @ theta.T).T) + self.offset
        weights, values = np.empty_like(s), np.empty_like(s)
        for family, columns in self.families:
            weights[:, columns], values[:, columns] = AUGMENTED[type(family)](family, rng, s[:, columns])
        return weights, values

    def root(self, weights: Array) -> Array:
        """Return R with R Rᵀ = P⁻¹, ``(dim, dim)`` if it is the same for all ``k`` weights, else ``(k, dim, dim)``."""
        if self._root is not None:
            return self._root
        gram = self._gram(self._part, weights[:, self._varying])
        if len(gram) == 1:  # NumPy takes longer to call than small factors take
            return self._inverse_root(gram[0] + self._constant)
        try:
            factor = np.linalg.cholesky(gram + self._constant)
        except np.linalg.LinAlgError:
            raise self._improper() from None
        return np.swapaxes(np.linalg.inv(factor), -1, -2)

    def _gram(self, design: Any, weights: Array) -> Array:
        """Return A' W A of rows of the design for weights ``(k, n)``, ``(k, dim, dim)``."""
        if sparse.issparse(design):
            dim = design.shape[1]
            products = sparse.csr_matrix(_products_of_columns(design))
            return np.asarray((products.T @ weights.T).T).reshape(-1, dim, dim)
        gram: Array = (design.T * weights[:, None, :]) @ design
        return gram

    def _inverse_root(self, precision: Array) -> Array:
        """Return the transposed inverse of the Cholesky factor of one P ``(dim, dim)``."""
        factor, failed = dpotrf(precision, lower=1, clean=1)
        if failed:
            raise self._improper()
        inverse: Array = dtrtri(factor, lower=1)[0]
        return inverse.T

    def _improper(self) -> ModelError:
        return ModelError(
            f"{self.step}: the coefficients given the latent variables are improper; give them a proper prior"
        )


def _columns(families: list[tuple[SiteFamily, Index]], kinds: Any) -> Index:
    """Return the positions of the sites of some kinds of family."""
    found = [columns for family, columns in families if isinstance(family, kinds)]
    return np.concatenate(found) if found else np.empty(0, dtype=np.intp)


def _span(columns: Index) -> Any:
    """Return a slice for consecutive positions, which is faster than the positions."""
    n = len(columns)
    if n and np.array_equal(columns, np.arange(columns[0], columns[0] + n)):
        return slice(int(columns[0]), int(columns[0]) + n)
    return columns


def _products_of_columns(design: Any) -> Any:
    """Return the rows aᵢ aᵢᵀ ``(n, dim²)`` of a sparse design."""
    design = sparse.csr_matrix(design)
    count = np.diff(design.indptr)
    row = np.repeat(np.arange(len(count)), count)
    pairs = count[row]  # every element is paired with all elements of its row
    first = np.repeat(np.arange(design.nnz), pairs)
    start = np.repeat(design.indptr[row], pairs)
    second = start + np.arange(len(first)) - np.repeat(np.cumsum(pairs) - pairs, pairs)
    columns = design.indices[first].astype(np.int64) * design.shape[1] + design.indices[second]
    shape = (design.shape[0], design.shape[1] ** 2)
    return sparse.csr_matrix((design.data[first] * design.data[second], (row[first], columns)), shape=shape)


class AugmentedDensity:
    """A target for the kernel, by its factors.

    Parameters
    ----------
    target : BaseTarget
        Target of the block that moves.
    allowed : tuple of type
        Allowed families of sites.
    step : str
        Name of the step in messages.
    """

    def __init__(self, target: BaseTarget, allowed: tuple[type[SiteFamily], ...], step: str) -> None:
        self.target, self.dim, self._allowed, self._step = target, target.dim, allowed, step
        full = target.full
        if full.factors is None:
            raise ModelError(f"{step}: {full.label} has no known factors; use steps.HMC or pm.NUTS")
        self._factors = full.factors
        self._coordinates = np.asarray(self._factors.coordinates)
        if len(self._coordinates) + len(self._factors.hyper_coordinates) != full.dim:
            raise ModelError(f"{step}: factors of rectangles have more coordinates than the model; use pm.NUTS")
        given = np.setdiff1d(target.free, self._coordinates)
        if len(given):
            names = ", ".join(dict.fromkeys(full.names[j].partition("[")[0] for j in self._coordinates))
            raise ModelError(
                f"{step}: the distribution of '{full.names[given[0]]}' given the rest is not Gaussian; "
                f"name the coefficients in vars, among {names}"
            )
        self._own = np.searchsorted(self._coordinates, target.free)
        self._latest: tuple[Array, Regression] | None = None
        self.regression()

    def regression(self) -> Regression:
        """Return the factors of the block at the current values of the other coordinates."""
        others = self.target.others
        if self._latest is not None and not len(others):
            return self._latest[1]
        point = self.target.point[others]
        if self._latest is None or not np.array_equal(self._latest[0], point):
            full = self.target.point
            factors = self._factors.at(full[self._factors.hyper_coordinates])
            theta = full[self._coordinates]
            self._latest = point.copy(), Regression(factors, self._own, theta, self._allowed, self._step)
        return self._latest[1]

    def __call__(self, x: Array, rng: Any) -> Population:
        """Return the points; nothing is stored with them."""
        return Population(x)

    def initial_point(self, rng: np.random.Generator) -> None:
        """Return None: the target chooses."""

    def parameters(self) -> KernelParameters:
        """Return placeholder parameters, because there is nothing to tune."""
        return KernelParameters(Gaussian(0.0, np.ones(1)), 1.0)

    def start(self, x: Array, rng: Any) -> Population:
        """Return the points, if they are finite."""
        if not np.isfinite(x).all():
            raise ModelError(f"{self.target.label}: the starting point is not finite")
        return Population(x)

    def refresh(self, population: Population, rng: Any) -> Population:
        """Return the same points; every step draws the latent variables again."""
        return population


class Augmentation(Kernel):
    """Draw latent variables given θ, a common factor of those of probit sites, and θ given them.

    Parameters
    ----------
    scale_move : bool
        Whether to scale the latent variables of probit sites.
    """

    name = "augmentation"
    stats = MappingProxyType({})

    def __init__(self, scale_move: bool = True) -> None:
        super().__init__(balanced=False)
        self.scale_move = scale_move

    def step(self, rng: Any, population: Any, density: Any, parameters: Any) -> tuple[Any, KernelInfo]:
        x = self.draw(rng, density.regression(), population.x)
        ones = np.ones(len(x))
        return Population(x), KernelInfo(ones, ones > 0, ((x - population.x) ** 2).sum(axis=1), ones, 0.0 * ones)

    def draw(self, rng: Any, regression: Regression, theta: Array) -> Array:
        """Return coefficients ``(k, dim)`` drawn given latent variables that were drawn given ``theta``."""
        weights, values = regression.latents(theta, rng)
        root = regression.root(weights)
        linear = regression.linear + (values - weights * regression.offset) @ regression.design
        if self.scale_move and regression.probit_design.shape[0] > 1:
            linear = self._scaled(rng, regression, root, values, linear)
        noise = rng.standard_normal(theta.shape)
        return _product(root, _product(np.swapaxes(root, -1, -2), linear) + noise)

    def _scaled(self, rng: Any, regression: Regression, root: Array, values: Array, linear: Array) -> Array:
        """Return h with z multiplied by g; h = c + g Aᵀz, R = z'z − (Aᵀz)'P⁻¹(Aᵀz) and L = z'b + (Aᵀz)'P⁻¹c."""
        z = values[:, regression.probit]
        u = z @ regression.probit_design
        rest = linear - u
        back = np.swapaxes(root, -1, -2)
        whitened, rest_whitened = _product(back, u), _product(back, rest)
        quadratic = (z * z).sum(axis=1) - (whitened * whitened).sum(axis=1)
        slope = z @ regression.offset[regression.probit] + (whitened * rest_whitened).sum(axis=1)
        return rest + scale_factor(rng, z.shape[1], quadratic, slope)[:, None] * u

    def statistics(self, before: Any, after: Any, parameters: Any, info: KernelInfo) -> dict[str, Any]:
        return {}


def scale_factor(rng: Any, n: int, quadratic: Array, linear: Array) -> Array:
    """Draw g > 0 with density ∝ g^(n−1) exp(−½ R g² + L g) by rejection, ``(k,)``.

    About the mode g* the log density is (n − 1)(log r − r + 1) − ½R(g − g*)², r = g/g*. Each term is at most zero:
    without the first it is a normal density, without the second a gamma density. The narrower of the two is the
    proposal; if both are near a normal density, at least 0.7 of the proposals are accepted.
    """
    if len(quadratic) == 1:
        return np.array([_scale_factor_alone(rng, n, float(quadratic[0]), float(linear[0]))])
    # of two forms of the positive root, the one without cancellation
    root = np.sqrt(linear**2 + 4.0 * quadratic * (n - 1))
    mode = np.where(linear > 0, 0.5 * (linear + root) / quadratic, 2.0 * (n - 1) / (root - linear))
    curvature = quadratic * mode**2  # of the first term; that of the second is n − 1
    normal, found = curvature >= n - 1, np.zeros(len(mode))
    while (wanted := found == 0).any():
        u = 1.0 - rng.random(found.shape)
        ratio = 1.0 + rng.standard_normal(found.shape) / np.sqrt(curvature)
        if not normal.all():
            ratio = np.where(normal, ratio, rng.standard_gamma(n, found.shape) / (n - 1))
        ratio = np.maximum(ratio, 1e-300)
        short = np.where(normal, (n - 1) * (np.log(ratio) - ratio + 1.0), -0.5 * curvature * (ratio - 1.0) ** 2)
        found = np.where(wanted & (np.log(u) < short), ratio, found)
    return np.asarray(found * mode)


def _scale_factor_alone(rng: Any, n: int, quadratic: float, linear: float) -> float:
    """Return one :func:`scale_factor`, by the same random numbers."""
    root = math.sqrt(linear**2 + 4.0 * quadratic * (n - 1))
    mode = 0.5 * (linear + root) / quadratic if linear > 0 else 2.0 * (n - 1) / (root - linear)
    curvature = quadratic * mode**2
    normal, sd = curvature >= n - 1, 1.0 / math.sqrt(curvature)
    while True:
        u = 1.0 - float(rng.random((1,))[0])
        ratio = 1.0 + sd * float(rng.standard_normal((1,))[0])
        if not normal:
            ratio = float(rng.standard_gamma(n, (1,))[0]) / (n - 1)
        ratio = max(ratio, 1e-300)
        short = (n - 1) * (math.log(ratio) - ratio + 1.0) if normal else -0.5 * curvature * (ratio - 1.0) ** 2
        if math.log(u) < short:
            return ratio * mode


def _product(matrix: Array, rows: Array) -> Array:
    """Return M x for rows x ``(k, d)``, with one matrix for all or one for each."""
    return rows @ matrix.T if matrix.ndim == 2 else (matrix @ rows[..., None])[..., 0]


class DataAugmentation(Algorithm):
    """The kernel on a target, or on a block of one.

    Parameters
    ----------
    target : BaseTarget
        A target with known factors.
    allowed : tuple of type
        Allowed families of sites.
    name : str
        Name of the sampler.
    scale_move : bool
    """

    def __init__(
        self, target: BaseTarget, *, allowed: tuple[type[SiteFamily], ...], name: str, scale_move: bool = True
    ) -> None:
        super().__init__(Augmentation(scale_move), AugmentedDensity(target, allowed, name))
        self.name = name
