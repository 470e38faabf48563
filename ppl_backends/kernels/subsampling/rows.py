"""The rows of a likelihood for sub-sampling, expanded about one point.

log p(θ, y) = log prior and Potentials (θ) + Σᵢ ℓᵢ(θ), with qᵢ the second-order Taylor expansion of ℓᵢ at the mode θ̂. After
one pass over the data Σ qᵢ costs O(d²), and only residuals ℓᵢ − qᵢ, of third order in θ − θ̂, need rows.

Rows with a known linear predictor (:class:`SiteRows`) are compiled. Any others (:class:`ObservedRows`) use the
target's ``observations``; their expansion along θ − θ̂ comes from two more points on that line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import solve_triangular

from ppl_backends.errors import ModelError
from ppl_backends.kernels.subsampling.compiled_kernels import CompiledRows
from ppl_backends.numerics import newton
from ppl_backends.numerics.arrays import for_kernels
from ppl_backends.numerics.differences import difference_hessian
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.targets.factors import compiled as sites
from ppl_backends.targets.factors.sites import CompiledFamily
from ppl_backends.targets.protocol import Array, BaseTarget

Index = NDArray[np.int64]
LINE = 0.05  # of θ − θ̂, for derivatives along that line
BLOCK = 1 << 16
LARGEST_DESIGN = 2**31  # bytes
NEWTON_GAIN = 1e-10  # nats: a hundred-thousandth of a standard deviation
DISTANCES = (1.0, 2.0, 2e1, 2e2, 2e3, 2e4, 2e5, 2e6)  # from zero, at which a log prior is checked to be quadratic
NO_BOUNDS = (
    "no bounds are known for the model's rows: exact sub-sampling needs one linear predictor per row, of a logit, probit or "
    "normal family (a Stan program shows it by a quantity with the predictor, and log_lik); use SubsampledMetropolis"
)


class Expansion(NamedTuple):
    """Σ qᵢ: value, gradient and Hessian of the log likelihood at the mode."""

    value: float
    gradient: Array
    hessian: Array

    def at(self, delta: Array) -> float:
        """Return Σ qᵢ(θ̂ + δ)."""
        return float(self.value + delta @ (self.gradient + 0.5 * self.hessian @ delta))

    def slope(self, delta: Array) -> Array:
        """Return the gradient of that sum."""
        return self.gradient + self.hessian @ delta


class QuadraticLogPrior:
    """A Gaussian prior: ``c + gᵀθ + ½ θᵀHθ``."""

    def __init__(self, constant: float, gradient: Array, hessian: Array) -> None:
        self.constant, self.gradient, self.hessian = constant, gradient, hessian

    def __call__(self, x: Array) -> float:
        """Return the log prior at ``x`` ``(d,)``."""
        return float(self.constant + x @ (self.gradient + 0.5 * self.hessian @ x))

    def slope(self, x: Array) -> Array:
        """Return the gradient ``(d,)``."""
        return self.gradient + self.hessian @ x

    def curvature(self, x: Array) -> Array:
        """Return the Hessian ``(d, d)``."""
        return self.hessian


class FunctionLogPrior:
    """The part of the log density without its rows, as the target evaluates it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, x: Array) -> float:
        """Return the log prior at ``x`` ``(d,)``."""
        return float(np.asarray(self._function(x[None]))[0])

    def slope(self, x: Array) -> Array:
        """Return the gradient ``(d,)``."""
        return np.asarray(self._function(x[None], True)[1])[0]

    def curvature(self, x: Array) -> Array:
        """Return the Hessian ``(d, d)``, by differences of the gradient."""
        return difference_hessian(lambda points: self._function(points, True)[1], x[None])[0]


class Rows:
    """Rows about an expansion point; subclasses evaluate ℓᵢ.

    Attributes
    ----------
    n, dim : int
    log_prior_and_potentials : callable
        ``x (d,) → float``, with ``slope(x)``.
    expansion_point : Gaussian
    expansion : Expansion
    """

    n: int
    dim: int
    log_prior_and_potentials: Any
    expansion_point: Gaussian
    expansion: Expansion

    @property
    def whole(self) -> Rows:
        """Return the rows of all coordinates, of which a block uses a part."""
        return self

    def compiled(self) -> CompiledRows | None:
        """Return the arguments of compiled steps, or None if there are none."""
        return None

    def residuals(self, x: Array, index: Index) -> Array:
        """Return ℓᵢ − qᵢ ``(m,)``."""
        raise NotImplementedError

    def residual_gradient(self, x: Array, index: Index, weights: Array) -> Array:
        """Return Σ wᵢ ∇(ℓᵢ − qᵢ) ``(d,)``."""
        raise NotImplementedError

    def differences(self, x: Array, new: Array, index: Index) -> Array:
        """Return ℓᵢ(new) − ℓᵢ(x) ``(m,)``."""
        raise NotImplementedError

    def scores(self) -> Array:
        """Return ∇ℓᵢ at the mode ``(n, d)``."""
        raise NotImplementedError

    def standardise(self, x: Array) -> Array:
        """Return L⁻¹(θ − θ̂)."""
        return self.expansion_point.whiten(x)

    def third_order_bounds(self, radius: float = np.inf) -> Array:
        """Return cᵢ with |ℓᵢ − qᵢ| ≤ cᵢ ‖z‖³ ``(n,)`` for ‖z‖ ≤ ``radius``, with z as in :meth:`standardise`."""
        raise ModelError(NO_BOUNDS)

    def lipschitz(self) -> Array:
        """Return cᵢ with |ℓᵢ(θ) − ℓᵢ(θ')| ≤ cᵢ ‖θ − θ'‖ ``(n,)``."""
        raise ModelError(NO_BOUNDS)

    def full_difference(self, x: Array, new: Array) -> float:
        """Return Σ over all rows of ℓᵢ(new) − ℓᵢ(x)."""
        blocks = range(0, self.n, BLOCK)
        return sum(float(self.differences(x, new, np.arange(b, min(self.n, b + BLOCK))).sum()) for b in blocks)


class SiteRows(Rows):
    """Rows φᵢ(aᵢᵀθ + bᵢ) of a known family.

    Parameters
    ----------
    design : array (n, d)
    offset, y, extra : array (n,)
        See :mod:`ppl_backends.targets.factors.compiled`.
    family : int
    log_prior
        As :class:`QuadraticLogPrior`.
    expansion_point : Gaussian, optional
        Found by Newton's method otherwise.
    """

    def __init__(
        self,
        design: Array,
        offset: Array,
        y: Array,
        extra: Array,
        family: int,
        log_prior: Any,
        expansion_point: Gaussian | None = None,
    ) -> None:
        self.design = np.ascontiguousarray(design, dtype=np.float64)
        self.n, self.dim = self.design.shape
        self.offset, self.y, self.extra = (for_kernels(np.broadcast_to(v, self.n)) for v in (offset, y, extra))
        self.family, self.log_prior_and_potentials = family, log_prior
        self._at_mode = np.empty((self.n, 4))
        if expansion_point is None:
            self.expansion_point, self.expansion = self._newton()
        else:
            self.expansion_point, self.expansion = expansion_point, self._totals(expansion_point.mean)

    def _totals(self, x: Array) -> Expansion:
        """Return value, gradient and Hessian of the log likelihood, and keep s, φ, φ′ and φ″ of the rows."""
        value, slope, hessian = 0.0, np.zeros(self.dim), np.zeros((self.dim, self.dim))
        for start in range(0, self.n, BLOCK):
            block = np.arange(start, min(self.n, start + BLOCK))
            rows = self.design[start : start + BLOCK]
            found = sites.values(self.design, self.offset, self.y, self.extra, self.family, block, x)
            value += float(found[:, 0].sum())
            slope += found[:, 1] @ rows
            hessian += rows.T @ (rows * found[:, 2:])
            self._at_mode[block, 0], self._at_mode[block, 1:] = rows @ x + self.offset[block], found
        return Expansion(value, slope, hessian)

    def _newton(self) -> tuple[Gaussian, Expansion]:
        """Return the mode with the curvature there, by Newton's method, and the expansion; the families are log-concave."""
        prior, last = self.log_prior_and_potentials, np.zeros(self.dim)

        def expand(x: Array) -> newton.Expansion:
            here, last[:] = self._totals(x), x
            precision = -(here.hessian + prior.curvature(x))
            return newton.Expansion(here.value + prior(x), here.gradient + prior.slope(x), precision, here)

        top = newton.climb_concave(expand, np.zeros(self.dim), NEWTON_GAIN, rounding=1e-10)
        if top is None:
            raise ModelError(
                "the log density is not concave where its mode is searched for, as with the scale of a hierarchy: "
                "give another approximation=, such as 'ep'"
            )
        if not np.array_equal(top.x, last):
            self._totals(top.x)
        return Gaussian.from_covariance(top.x, top.step.cov), top.expansion.source

    def residuals(self, x: Array, index: Index) -> Array:
        delta = x - self.expansion_point.mean
        return sites.residuals(self.design, self.y, self.extra, self.family, self._at_mode, index, delta)

    def residual_gradient(self, x: Array, index: Index, weights: Array) -> Array:
        delta = x - self.expansion_point.mean
        return sites.gradient(self.design, self.y, self.extra, self.family, self._at_mode, index, delta, weights, 2)

    def differences(self, x: Array, new: Array, index: Index) -> Array:
        mode = self.expansion_point.mean
        return sites.pairs(self.design, self.y, self.extra, self.family, self._at_mode, index, x - mode, new - mode)

    def scores(self) -> Array:
        return self._at_mode[:, 2:3] * self.design

    def compiled(self) -> CompiledRows | None:
        """Return the arguments of compiled steps, or None if the log prior is not quadratic."""
        if not isinstance(self.log_prior_and_potentials, QuadraticLogPrior):
            return None
        slope = self.expansion.gradient + self.log_prior_and_potentials.slope(self.expansion_point.mean)
        hessian = np.ascontiguousarray(self.expansion.hessian + self.log_prior_and_potentials.hessian)
        factor = np.ascontiguousarray(self.expansion_point.factor)
        inverse = np.ascontiguousarray(solve_triangular(factor, np.eye(self.dim), lower=True))
        rows = (self.design, self.y, self.extra, self.family, self._at_mode)
        return CompiledRows(*rows, slope, hessian, factor, inverse)

    def third_order_bounds(self, radius: float = np.inf) -> Array:
        """Return cᵢ with |ℓᵢ − qᵢ| ≤ cᵢ ‖z‖³ ``(n,)`` for ‖z‖ ≤ ``radius``.

        For a logit |φ‴| ≤ |φ″|, so that |φ″| grows at most exponentially: near the mode rows whose probability is near
        zero or one have much smaller bounds than those from the largest third derivative.

        Raises
        ------
        ModelError
            For a family with an unbounded third derivative.
        """
        if self.family not in sites.THIRD_DERIVATIVE:
            raise ModelError("the third derivative of a Poisson log likelihood has no bound: use SubsampledMetropolis")
        third = np.full(self.n, sites.THIRD_DERIVATIVE[self.family])
        length = np.sqrt((self.design @ self.expansion_point.factor) ** 2 @ np.ones(self.dim))
        if self.family == sites.LOGIT:
            third *= self.extra
            if np.isfinite(radius):
                third = np.minimum(third, -self._at_mode[:, 3] * np.exp(np.minimum(length * radius, 500.0)))
        return third / 6 * length**3

    def lipschitz(self) -> Array:
        if self.family != sites.LOGIT:
            raise ModelError("the log likelihood of a row is not Lipschitz: TunaMetropolis is for logit models")
        return self.extra * np.linalg.norm(self.design, axis=1)


class ObservedRows(Rows):
    """Rows given by the target's ``observations``."""

    def __init__(self, target: BaseTarget, log_prior: Any, expansion_point: Gaussian) -> None:
        observations: Any = target.observations
        self._observations = observations
        self.n, self.dim = observations.n, target.dim
        self.log_prior_and_potentials, self.expansion_point = log_prior, expansion_point
        value, slope = self._observations.sum(expansion_point.mean[None], np.arange(self.n), gradient=True)
        step = np.cbrt(np.finfo(float).eps) * np.maximum(1.0, np.abs(expansion_point.mean))
        shifted = np.concatenate([expansion_point.mean + np.diag(step), expansion_point.mean - np.diag(step)])
        _, slopes = self._observations.sum(shifted, np.arange(self.n), gradient=True)
        hessian = (slopes[: self.dim] - slopes[self.dim :]) / (2 * step[:, None])
        self.expansion = Expansion(float(value[0]), slope[0], 0.5 * (hessian + hessian.T))

    def _line(self, x: Array) -> Array:
        delta, mode = x - self.expansion_point.mean, self.expansion_point.mean
        return np.array([x, mode, mode + LINE * delta, mode - LINE * delta])

    def residuals(self, x: Array, index: Index) -> Array:
        there, here, up, down = self._observations.log_likelihood(self._line(x), index)
        return there - here - (up - down) / (2 * LINE) - 0.5 * (up - 2 * here + down) / LINE**2

    def residual_gradient(self, x: Array, index: Index, weights: Array) -> Array:
        _, (there, here, up, down) = self._observations.sum(self._line(x), index, weights, gradient=True)
        return there - here - (up - down) / (2 * LINE)

    def differences(self, x: Array, new: Array, index: Index) -> Array:
        here, there = self._observations.log_likelihood(np.array([x, new]), index)
        return there - here

    def scores(self) -> Array:
        return self._observations.score_and_hessian(self.expansion_point.mean)[0]


class BlockRows(Rows):
    """Rows of a whole target for a block of its coordinates, with the others at the values of a conditional target.

    The expansion is that of all coordinates, about the expansion point of all; the block's own expansion point, for
    proposals, has the conditional covariance (Λ_aa)⁻¹.

    Parameters
    ----------
    whole : Rows
    block : BaseTarget
    """

    def __init__(self, whole: Rows, block: BaseTarget) -> None:
        self._whole, self._block = whole, block
        block.set_others(whole.expansion_point.mean)
        self.n, self.dim = whole.n, block.dim
        inverse = solve_triangular(whole.expansion_point.factor, np.eye(whole.dim), lower=True)
        precision = (inverse.T @ inverse)[np.ix_(block.free, block.free)]
        mode, covariance = whole.expansion_point.mean[block.free], np.linalg.inv(precision)
        self.expansion_point = Gaussian(mode, np.linalg.cholesky(covariance))
        self.log_prior_and_potentials: Any = _BlockLogPrior(whole.log_prior_and_potentials, block)
        self.expansion: Any = _BlockExpansion(whole, block)

    @property
    def whole(self) -> Rows:
        return self._whole

    def _all(self, x: Array) -> Array:
        return self._block.embed(x[None])[0]

    def residuals(self, x: Array, index: Index) -> Array:
        return self.whole.residuals(self._all(x), index)

    def residual_gradient(self, x: Array, index: Index, weights: Array) -> Array:
        return self.whole.residual_gradient(self._all(x), index, weights)[self._block.free]

    def differences(self, x: Array, new: Array, index: Index) -> Array:
        return self.whole.differences(self._all(x), self._all(new), index)

    def scores(self) -> Array:
        """Return ∇ℓᵢ at the mode ``(n, d)``, in the block's coordinates."""
        return self.whole.scores()[:, self._block.free]

    def standardise(self, x: Array) -> Array:
        return self.whole.standardise(self._all(x))

    def third_order_bounds(self, radius: float = np.inf) -> Array:
        return self.whole.third_order_bounds(radius)

    def lipschitz(self) -> Array:
        return self.whole.lipschitz()


class _BlockLogPrior:
    """The log prior as a function of the block."""

    def __init__(self, log_prior: Any, block: BaseTarget) -> None:
        self._log_prior_and_potentials, self._block = log_prior, block

    def __call__(self, x: Array) -> float:
        return float(self._log_prior_and_potentials(self._block.embed(x[None])[0]))

    def slope(self, x: Array) -> Array:
        found: Array = self._log_prior_and_potentials.slope(self._block.embed(x[None])[0])[self._block.free]
        return found


class _BlockExpansion:
    """Σ qᵢ as a function of the block's distance from its expansion point."""

    def __init__(self, whole: Rows, block: BaseTarget) -> None:
        self._whole, self._block = whole, block

    def _delta(self, delta: Array) -> Array:
        mode = self._whole.expansion_point.mean
        return self._block.embed((mode[self._block.free] + delta)[None])[0] - mode

    def at(self, delta: Array) -> float:
        return self._whole.expansion.at(self._delta(delta))

    def slope(self, delta: Array) -> Array:
        return self._whole.expansion.slope(self._delta(delta))[self._block.free]


def make_rows(target: BaseTarget, approximate: Callable[[BaseTarget], Any], own_mode: bool = True) -> Rows:
    """Return the rows of a target about the mode of an approximation; for a conditional target, those of its block.

    Parameters
    ----------
    target : BaseTarget
    approximate : callable
        Finds an approximation of a target.
    own_mode : bool
        Whether rows with known linear predictors find their own mode.

    Raises
    ------
    ModelError
        If the target has no independent rows.
    """
    if len(target.others):
        return BlockRows(make_rows(target.full, approximate, own_mode), target)
    observations = target.observations
    if observations is None or observations.no_gradient or observations.n == 0:
        raise ModelError(f"{target.label} has no rows of observations to take subsets of")
    log_prior = quadratic_where_exact(observations.log_prior_and_potentials, target.dim)
    found = _sites_of(target, observations.n)
    if found is not None:
        design, offset, (family, y, extra) = found
        mode = None if own_mode else _point(approximate(target))
        return SiteRows(design, offset, y, extra, family, log_prior, mode)
    observations.check()
    return ObservedRows(target, log_prior, _point(approximate(target)))


def _point(approximation: Any) -> Gaussian:
    return Gaussian.from_covariance(np.asarray(approximation.mean), approximation.cov)


def _sites_of(target: BaseTarget, n: int) -> tuple[Array, Array, CompiledFamily] | None:
    """Return design, offset and family if every row has one linear predictor of a compiled family."""
    factors = target.likelihood_factors
    family = None if factors is None else factors.sites.compiled()
    if family is None or factors.n_sites != n or 8 * n * target.dim > LARGEST_DESIGN:
        return None
    return factors.design.toarray() if sparse.issparse(factors.design) else factors.design, factors.offset, family


def quadratic_where_exact(log_prior: Callable[..., Any], dim: int) -> Any:
    """Return a log prior as a quadratic function if checks at points confirm it; otherwise the function itself.

    Points at all distances reveal a prior that is quadratic only near zero, far from its location.
    """
    directions = np.concatenate([np.eye(dim), np.random.default_rng(0).normal(size=(3, dim))])
    value, slope = log_prior(np.concatenate([np.zeros((1, dim)), np.eye(dim)]), True)
    hessian = slope[1:] - slope[0]
    quadratic = QuadraticLogPrior(float(value[0]), slope[0], 0.5 * (hessian + hessian.T))
    for distance in DISTANCES:
        for points in (distance * directions, -distance * directions):
            wanted = quadratic.constant + points @ quadratic.gradient
            wanted += 0.5 * (points @ quadratic.hessian * points).sum(axis=1)
            with np.errstate(all="ignore"):
                found = np.asarray(log_prior(points))
            if not np.allclose(wanted, found, rtol=1e-9, atol=1e-9):
                return FunctionLogPrior(log_prior)
    return quadratic
