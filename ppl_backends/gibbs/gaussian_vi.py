r"""Gaussian variational approximation of Gibbs posteriors of linear scores, with exact expectations.

The approximation N(m, Σ) of a family minimises λ E_q[r_n] + KL(q, π), which is −ELBO. Under q the score xᵀθ is N(xᵀm, xᵀΣx),
so that E_q[r_n] is a sum of one-dimensional integrals (:mod:`~ppl_backends.gibbs.losses`). There is no Monte Carlo
noise, and deterministic descent finds the minimum.

==============  ===============  =====================================================================================
family          Σ                solver
==============  ===============  =====================================================================================
``isotropic``   σ² I  (F1)       L-BFGS in (m, σ)
``diagonal``    diag(s²)  (F2)   L-BFGS in (m, s)
``dense``       any  (F3)        natural gradient: Σ⁻¹ → Q₀ + Σᵢ cᵢ xᵢxᵢᵀ, m by a Newton step, with a line search
==============  ===============  =====================================================================================

For a convex loss the objective is convex in m and a lower triangular factor C of Σ = CCᵀ. It is *strongly* convex,
because KL(q, π) = ½‖m‖² + ½‖C‖² − Σ log Cⱼⱼ + const in coordinates that whiten the prior. Hence the distance of any
iterate from the minimum is at most ½‖∇‖², which is reported as the optimality gap. For the 0–1 loss the objective has
local minima; :mod:`~ppl_backends.gibbs.fit` follows one from the prior.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.given import as_approximation
from ppl_backends.errors import ApproximationWarning, ModelError, user_level
from ppl_backends.gibbs.losses import Expectation, Loss, PairLoss, Weighted
from ppl_backends.gibbs.posterior import GibbsPosterior
from ppl_backends.gibbs.risks import LinearRisk
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.targets.factors.sites import Array

FAMILIES = ("isotropic", "diagonal", "dense")
ALIASES = {"F1": "isotropic", "F2": "diagonal", "F3": "dense"}
PAIR_BLOCK = 2**17
MAX_PAIRS = 200_000
"""Number of pairs up to which the objective is computed on all of them; above it pairs are sampled."""


class ScoreProblem:
    """The objective λ E_q[r_n] + KL(q, π), for observations or for all pairs."""

    def __init__(self, posterior: GibbsPosterior) -> None:
        prior = posterior.gaussian_prior
        if prior is None or posterior.loss is None:
            raise ModelError(
                "VI with exact expectations needs a Gaussian prior and a loss of linear scores; use fit_vi"
            )
        self.prior, self.prior_mean = prior.normal, prior.gaussian.mean
        self.precision, self.root = self.prior.precision, self.prior.factor  # Q₀, and L₀ with L₀L₀ᵀ = Q₀⁻¹
        self.loss: Loss = posterior.loss.inner if isinstance(posterior.loss, PairLoss) else posterior.loss
        self.design, self.offset, self.y = _rows(posterior)
        self.weight = posterior.site_weight
        self.dim = prior.dim

    def with_weight(self, weight: float) -> ScoreProblem:
        """Return the same data at another λ."""
        other = object.__new__(ScoreProblem)
        other.__dict__.update(self.__dict__, weight=weight)
        return other

    def expectation(self, q: Gaussian) -> Expectation:
        """Return expected losses of the rows."""
        mean = self.design @ q.mean + self.offset
        spread = q.whiten_gradient(self.design)
        return self.loss.expectation(mean, np.einsum("nd,nd->n", spread, spread), self.y)

    def slopes(self, found: Expectation, q: Gaussian) -> tuple[Array, Array]:
        """Return the gradient in m, and the matrix H = Q₀ + w Σ cᵢ xᵢxᵢᵀ, which is Σ⁻¹ at the minimum."""
        slope = self.weight * (self.design.T @ found.slope) + self.precision @ (q.mean - self.prior_mean)
        weighted = self.design * (self.weight * found.curvature)[:, None]
        return slope, self.precision + self.design.T @ weighted

    def start(self, family: str) -> Gaussian:
        """Return the prior, or the nearest member of the family."""
        if family == "dense":
            return Gaussian(self.prior_mean.copy(), self.root.copy())
        scale = np.diag(self.precision) ** -0.5
        even = np.full(self.dim, np.mean(scale**-2.0) ** -0.5)
        return Gaussian(self.prior_mean.copy(), scale if family == "diagonal" else even)


class GibbsVI(GaussianApproximation):
    """The Gaussian nearest to a Gibbs posterior within a family.

    Attributes
    ----------
    posterior : GibbsPosterior
    family : str
    elbo : float
        −λ E_q[r_n] − KL(q, π), a lower bound on the log pseudo-evidence.
    elbo_se : float
        0, unless pairs were sampled.
    expected_risk : float
        E_q[r_n], exact.
    kl : float
        KL(q, π).
    optimality_gap : float
        Upper bound on the distance of the ELBO from the family's best, in nats; NaN if the objective is not convex.
    trace : ndarray (n_iterations, 3)
        λ, expected risk and KL per iteration; with sampled pairs the risk is estimated.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import GibbsPosterior, fit_gibbs_vi
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = np.sign(X @ [1.0, -1.0] + 0.3 * rng.normal(size=60))
    >>> posterior = GibbsPosterior((0.0, 1.0), "hinge", X, y, learning_rate=60.0)
    >>> q = fit_gibbs_vi(posterior)
    >>> q.family, q.converged, bool(q.expected_risk < 0.5)
    ('dense', True, True)
    """

    posterior: GibbsPosterior
    family: str
    elbo: float
    elbo_se: float
    expected_risk: float
    kl: float
    optimality_gap: float
    trace: Array

    def __repr__(self) -> str:
        return (
            f"GibbsVI(family={self.family!r}, dim={self.dim}, elbo={self.elbo:.6g}, expected_risk={self.expected_risk:.4g}, "
            f"kl={self.kl:.4g}, optimality_gap={self.optimality_gap:.2g}, converged={self.converged})"
        )


class Solution(NamedTuple):
    """Result of a solver; ``gap`` is NaN if the loss is not convex."""

    q: Gaussian
    value: float
    gap: float
    converged: bool
    iterations: int


def solve(
    problem: ScoreProblem,
    family: str,
    start: Gaussian | None = None,
    tolerance: float = 1e-4,
    max_iterations: int = 500,
) -> Solution:
    """Minimise the objective within a family from ``start``, the prior by default.

    ``tolerance`` is in nats. It bounds the optimality gap if the loss is convex, else the expected decrease of a step.
    """
    q = problem.start(family) if start is None else start
    if family == "dense":
        return _natural_gradient(problem, q, tolerance, max_iterations)
    return _quasi_newton(problem, q, tolerance, max_iterations, family == "diagonal")


def _natural_gradient(problem: ScoreProblem, q: Gaussian, tolerance: float, max_iterations: int) -> Solution:
    """Make steps of Σ⁻¹ towards H; if the loss is not convex, a second-order term keeps Σ⁻¹ positive definite."""
    found = problem.expectation(q)
    value = problem.weight * float(found.value.sum()) + q.kl_to(problem.prior)
    iterations, gap, promise = 0, np.inf, np.inf
    while iterations < max_iterations:
        iterations += 1
        slope, wanted = problem.slopes(found, q)
        inverse = solve_triangular(q.factor, np.eye(problem.dim), lower=True)
        precision = inverse.T @ inverse
        gap, promise = _full_gap(problem, q, slope, wanted - precision), _promise(q, slope, wanted - precision)
        if (gap if problem.loss.convex else promise) < tolerance:
            break
        stepped = _step(problem, q, value, slope, precision, wanted)
        if stepped is None:
            break
        q, value, found = stepped
    reached = gap if problem.loss.convex else promise
    return Solution(q, value, gap if problem.loss.convex else np.nan, reached < 10 * tolerance, iterations)


def _step(
    problem: ScoreProblem, q: Gaussian, value: float, slope: Array, precision: Array, wanted: Array
) -> tuple[Gaussian, float, Expectation] | None:
    """Return the first of shrinking steps that decreases the objective; None if none does."""
    change = wanted - precision
    bend = change @ (q.factor @ (q.factor.T @ change))
    for length in 0.5 ** np.arange(14):
        trial = precision + length * change
        if not problem.loss.convex:
            trial = trial + 0.5 * length**2 * bend
        try:
            root = cholesky(trial, lower=True)
            factor = cholesky(cho_solve((root, True), np.eye(problem.dim)), lower=True)
        except LinAlgError:
            continue
        new = Gaussian(q.mean - length * cho_solve((root, True), slope), factor)
        found = problem.expectation(new)
        reached = problem.weight * float(found.value.sum()) + new.kl_to(problem.prior)
        if reached < value:
            return new, reached, found
    return None


def _full_gap(problem: ScoreProblem, q: Gaussian, slope: Array, mismatch: Array) -> float:
    """Return ½‖∇‖² in coordinates that whiten the prior, in which the objective is 1-strongly convex in (m, C)."""
    root = problem.root
    factor = solve_triangular(root, q.factor, lower=True)
    in_factor = np.tril(root.T @ mismatch @ root @ factor)
    return 0.5 * float(((root.T @ slope) ** 2).sum() + (in_factor**2).sum())


def _promise(q: Gaussian, slope: Array, mismatch: Array) -> float:
    """Return the decrease of a unit natural-gradient step to first order."""
    whitened = q.factor.T @ mismatch @ q.factor
    return float(((q.factor.T @ slope) ** 2).sum() + 0.5 * (whitened**2).sum())


def _quasi_newton(problem: ScoreProblem, q: Gaussian, tolerance: float, max_iterations: int, many: bool) -> Solution:
    """Run L-BFGS in (m, σ), or with ``many`` widths in (m, s), on the scale of the prior."""
    d, scale = problem.dim, np.diag(problem.precision) ** -0.5
    squares = problem.design**2
    widths = scale if many else np.array([np.mean(scale**-2.0) ** -0.5])
    stiffness = widths**-2.0 if many else np.array([np.trace(problem.precision)])

    def unpack(z: Array) -> Gaussian:
        return Gaussian(scale * z[:d], np.broadcast_to(widths * z[d:], (d,)))

    def objective(z: Array) -> tuple[float, Array]:
        at = unpack(z)
        found = problem.expectation(at)
        slope = problem.weight * (problem.design.T @ found.slope) + problem.precision @ (at.mean - problem.prior_mean)
        pull = problem.weight * (squares.T @ found.curvature)
        s = at.factor[: len(widths)]
        in_width = (pull if many else pull.sum()) * s + stiffness * s - (1.0 if many else d) / s
        value = problem.weight * float(found.value.sum()) + at.kl_to(problem.prior)
        return value, np.concatenate([scale * slope, widths * in_width])

    z = np.concatenate([q.mean / scale, q.factor[: len(widths)] / widths])
    bounds = [(None, None)] * d + [(1e-6, None)] * len(widths)
    options = {"maxiter": max_iterations, "ftol": 1e-15, "gtol": 1e-2 * tolerance**0.5, "maxcor": 20}
    result = minimize(objective, z, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    at, (value, gradient) = unpack(result.x), objective(result.x)
    in_mean = gradient[:d] / scale
    gap = 0.5 * float(
        in_mean @ (problem.root @ (problem.root.T @ in_mean)) + ((gradient[d:] / widths) ** 2 / stiffness).sum()
    )
    converged = gap < 10 * tolerance if problem.loss.convex else bool(result.success)
    return Solution(at, value, gap if problem.loss.convex else np.nan, converged, int(result.nit))


def as_result(posterior: GibbsPosterior, solution: Solution, family: str, trace: Any, **figures: float) -> GibbsVI:
    """Return the result for users, with the exact expected risk."""
    q = solution.q
    prior = posterior.gaussian_prior
    assert prior is not None
    risk, kl = expected_risk(posterior, q), q.kl_to(prior.normal)
    result = GibbsVI(
        q.mean,
        cholesky=q.factor,
        target=posterior,
        method="variational (exact expectations)",
        converged=solution.converged,
        diagnostics={"iterations": float(solution.iterations), "optimality_gap": solution.gap, **figures},
        posterior=posterior,
        family=family,
        elbo=-posterior.learning_rate * risk - kl,
        elbo_se=0.0,
        expected_risk=risk,
        kl=kl,
        optimality_gap=solution.gap,
        trace=np.array(trace, dtype=np.float64).reshape(-1, 3),
    )
    if not solution.converged:
        warnings.warn(
            f"VI stopped after {solution.iterations} iterations before its tolerance (gap {solution.gap:.2g} nats): increase "
            "max_iterations",
            ApproximationWarning,
            stacklevel=user_level(),
        )
    return result


def expected_risk(posterior: GibbsPosterior, q: Any) -> float:
    """Return E_q[r_n], exact, for a Gaussian ``q`` with ``mean`` and ``cov`` and a loss of linear scores.

    Pairs are summed in blocks, so that 10⁸ of them take seconds and little memory.

    Parameters
    ----------
    posterior : GibbsPosterior
        It has the loss and the data.
    q : approximation
        A Gaussian over the coefficients, with ``mean`` and ``cov``.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.gibbs import GibbsPosterior, expected_risk, fit_gibbs_vi
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = np.sign(X @ [1.0, -1.0] + 0.3 * rng.normal(size=60))
    >>> posterior = GibbsPosterior((0.0, 1.0), "hinge", X, y, learning_rate=60.0)
    >>> q = fit_gibbs_vi(posterior)
    >>> bool(np.isclose(expected_risk(posterior, q), q.expected_risk))
    True
    """
    risk = posterior._linear("expected_risk")
    if not isinstance(q, Gaussian):
        q = as_approximation(q).gaussian
    if len(risk.columns) < posterior.dim:
        q = q.marginal(risk.columns)
    mean, spread = risk.X @ q.mean + risk.offset, q.whiten_gradient(risk.X)
    if not isinstance(risk.loss, PairLoss):
        variance = np.einsum("nd,nd->n", spread, spread)
        return float(risk.loss.expectation(mean, variance, risk.y).value.mean())
    return _expected_pair_risk(risk, mean, spread)


def _expected_pair_risk(risk: LinearRisk, mean: Array, spread: Array) -> float:
    inner = risk.loss.inner  # type: ignore[attr-defined]
    variance = np.einsum("nd,nd->n", spread, spread)
    above, below = risk.above, risk.below
    columns, total = np.ascontiguousarray(spread[below].T), 0.0
    step = max(1, PAIR_BLOCK // len(below))
    for start in range(0, len(above), step):
        rows = above[start : start + step]
        of_pairs = spread[rows] @ columns
        of_pairs *= -2
        of_pairs += variance[below]
        of_pairs += variance[rows, None]
        np.maximum(of_pairs, 0.0, out=of_pairs)
        labels = np.abs(np.outer(risk.y[rows], risk.y[below])) if isinstance(inner, Weighted) else np.ones(1)
        total += float(_pair_values(inner, mean[rows, None] - mean[below], of_pairs, labels).sum())
    return 2 * total / (risk.n * (risk.n - 1))


def _pair_values(inner: Loss, difference: Array, variance: Array, labels: Array) -> Array:
    """Return expected losses of pairs; pairs with equal rows count one half under the 0–1 loss."""
    value = inner.expected(difference, variance, labels)
    if inner.bound == 1.0 and not inner.has_gradient:
        value[(variance == 0) & (difference == 0)] = 0.5
    return value


def _rows(posterior: GibbsPosterior) -> tuple[Array, Array, Array]:
    """Return design, offset and labels of the observations, or of all pairs if they are few."""
    risk = posterior._linear("VI")
    if not isinstance(risk.loss, PairLoss):
        return risk.X, risk.offset, risk.y
    rows = risk.all_pairs()
    return *risk.differences(*rows), risk.pair_labels(*rows)
