"""Small targets with known answers, shared by the tests of all samplers."""

from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import gammaln, logsumexp

from ppl_backends.approximations import GaussianApproximation
from ppl_backends.targets import FunctionTarget

LOG_2PI = np.log(2 * np.pi)


@dataclass(frozen=True)
class Known:
    """A target with its exact log evidence, and posterior means and sds on the unconstrained space."""

    target: FunctionTarget
    log_evidence: float
    mean: np.ndarray
    sd: np.ndarray


def conjugate_gaussian(dim: int = 5, seed: int = 0) -> Known:
    """Return x ~ N(0, 4 I), twelve observations y = A x + N(0, 0.5²) with a correlated design."""
    rng = np.random.default_rng(seed)
    n, prior_sd, noise = 12, 2.0, 0.5
    design = rng.normal(size=(n, dim)) + rng.normal(size=(n, 1))
    y = design @ rng.normal(size=dim) + noise * rng.normal(size=n)

    def log_likelihood(x):
        residual = y - x @ design.T
        value = -0.5 * (residual**2).sum(1) / noise**2 - n * np.log(noise) - 0.5 * n * LOG_2PI
        return value, residual @ design / noise**2

    def log_prior(x):
        return -0.5 * (x**2).sum(1) / prior_sd**2 - dim * np.log(prior_sd) - 0.5 * dim * LOG_2PI, -x / prior_sd**2

    precision = design.T @ design / noise**2 + np.eye(dim) / prior_sd**2
    cov = np.linalg.inv(precision)
    marginal = noise**2 * np.eye(n) + prior_sd**2 * design @ design.T
    log_evidence = -0.5 * (y @ np.linalg.solve(marginal, y) + np.linalg.slogdet(marginal)[1] + n * LOG_2PI)
    target = FunctionTarget(dim, log_likelihood, log_prior, lambda n, rng: prior_sd * rng.normal(size=(n, dim)))
    return Known(target, float(log_evidence), cov @ design.T @ y / noise**2, np.sqrt(np.diag(cov)))


def gamma_poisson(counts=(3, 0, 1, 2)) -> Known:
    """Log of a Gamma(1.5, 0.5) rate with Poisson counts: a skewed target with an asymmetric likelihood."""
    counts = np.asarray(counts)
    a, b = 1.5, 0.5
    total, n = counts.sum(), len(counts)

    def log_prior(x):
        rate = np.exp(x)
        return (a * x - b * rate + a * np.log(b) - gammaln(a))[:, 0], a - b * rate

    def log_likelihood(x):
        rate = np.exp(x)
        return (total * x - n * rate)[:, 0] - gammaln(counts + 1).sum(), total - n * rate

    def sample_prior(n, rng):
        return np.log(rng.gamma(a, 1 / b, size=(n, 1)))

    shape, rate = a + total, b + n
    log_evidence = a * np.log(b) - gammaln(a) + gammaln(shape) - shape * np.log(rate) - gammaln(counts + 1).sum()
    grid = np.linspace(-12, 6, 40001)
    density = np.exp(shape * grid - rate * np.exp(grid) + shape * np.log(rate) - gammaln(shape)) * (grid[1] - grid[0])
    mean = (grid * density).sum()
    sd = np.sqrt(((grid - mean) ** 2 * density).sum())
    target = FunctionTarget(1, log_likelihood, log_prior, sample_prior)
    return Known(target, float(log_evidence), np.array([mean]), np.array([sd]))


def bimodal(dim: int = 2, separation: float = 4.0) -> Known:
    """Prior N(0, 9 I), "likelihood" an unnormalised two-component mixture with weights 0.3 and 0.7 at ±separation."""
    centres, shares, width = np.array([separation, -separation]), np.array([0.3, 0.7]), 0.7
    prior_sd = 3.0

    def log_prior(x):
        return -0.5 * (x**2).sum(1) / prior_sd**2 - dim * np.log(prior_sd) - 0.5 * dim * LOG_2PI, -x / prior_sd**2

    def log_likelihood(x):
        offsets = x[:, None, :] - centres[:, None]
        logs = np.log(shares) - 0.5 * (offsets**2).sum(2) / width**2
        value = np.logaddexp(logs[:, 0], logs[:, 1])
        share = np.exp(logs - value[:, None])
        return value, -(share[:, :, None] * offsets).sum(1) / width**2

    total = width**2 + prior_sd**2
    masses = np.log(shares) + dim * (0.5 * np.log(2 * np.pi * width**2) - 0.5 * np.log(2 * np.pi * total))
    masses = masses - 0.5 * dim * centres**2 / total
    shrink = prior_sd**2 / total
    share = np.exp(masses - np.logaddexp(*masses))
    mean = (share * shrink * centres).sum()
    second = (share * (shrink * centres) ** 2).sum() + width**2 * shrink
    target = FunctionTarget(dim, log_likelihood, log_prior, lambda n, rng: prior_sd * rng.normal(size=(n, dim)))
    sd = np.sqrt(second - mean**2)
    return Known(target, float(np.logaddexp(*masses)), np.full(dim, mean), np.full(dim, sd))


def funnel(dim):
    """Return Neal's funnel: v ~ N(0, 3²), x_i ~ N(0, exp(v)); normalised, so its log evidence is 0."""

    def density(points):
        v, x = points[:, 0], points[:, 1:]
        shrunk = (x**2).sum(axis=1) * np.exp(-v)
        value = -0.5 * v**2 / 9 - np.log(3) - 0.5 * LOG_2PI - 0.5 * shrunk - 0.5 * dim * (v + LOG_2PI)
        slope_v = -v / 9 + 0.5 * shrunk - 0.5 * dim
        return value, np.concatenate([slope_v[:, None], -x * np.exp(-v)[:, None]], axis=1)

    return FunctionTarget(dim + 1, density)


def skewed_funnel(dim, sd):
    """Return a funnel of v ~ N(0, sd²), with effects of scale exp(v) that have a Gumbel distribution; normalised."""

    def density(points):
        v, z = points[:, 0], points[:, 1:] * np.exp(-points[:, :1])
        slope = np.exp(-z) - 1.0
        value = stats.norm(0, sd).logpdf(v) - dim * v - (z + np.exp(-z)).sum(axis=1)
        by_v = -v / sd**2 - dim - (slope * z).sum(axis=1)
        return value, np.column_stack([by_v, slope * np.exp(-v)[:, None]])

    return FunctionTarget(dim + 1, density)


def turned_funnel(dim):
    """Return the same in turned coordinates, where none scales the others, and a Gaussian start for it."""
    straight, turn = funnel(dim), stats.ortho_group.rvs(dim + 1, random_state=np.random.default_rng(0))

    def density(points):
        value, slope = straight.log_density_and_gradient(points @ turn)
        return value, slope @ turn.T

    cov = turn @ np.diag(np.r_[9.0, np.full(dim, 4.0)]) @ turn.T
    return FunctionTarget(dim + 1, density), GaussianApproximation(np.zeros(dim + 1), cov)


def double_funnel(dim):
    """Return a funnel with a neck on either side: v ~ N(0, 3²), x_i ~ N(0, exp(−|v|)); its log evidence is 0."""

    def density(points):
        v, x = points[:, 0], points[:, 1:]
        squares = (x**2).sum(axis=1) * np.exp(np.abs(v))
        value = -0.5 * v**2 / 9 - np.log(3) - 0.5 * LOG_2PI - 0.5 * squares + 0.5 * dim * (np.abs(v) - LOG_2PI)
        slope_v = -v / 9 + 0.5 * np.sign(v) * (dim - squares)
        return value, np.column_stack([slope_v, -x * np.exp(np.abs(v))[:, None]])

    return FunctionTarget(dim + 1, density)


def banana():
    """Return a curved ridge: x₁ ~ N(0, 3²), x₂ ~ N(9 − x₁², 1); its log evidence is 0."""

    def density(points):
        a, c = points[:, 0], points[:, 1] + points[:, 0] ** 2 - 9
        value = -0.5 * (a / 3) ** 2 - np.log(3) - 0.5 * c**2 - LOG_2PI
        return value, np.column_stack([-a / 9 - 2 * a * c, -c])

    return FunctionTarget(2, density)


def wide_regression(n=100, dim=5, prior_sd=10.0):
    """A linear regression with wide priors, half-normal on the noise: the path from the prior leads through a funnel.

    Given the noise the evidence is that of a Gaussian; over log σ it is integrated on a grid.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, dim))
    y = X @ np.ones(dim) + rng.normal(size=n)

    def log_prior(x):
        beta, log_sd = x[:, :dim], x[:, dim]
        value = -0.5 * ((beta**2).sum(axis=1) + np.exp(2 * log_sd)) / prior_sd**2 + log_sd
        value += np.log(2) - (dim + 1) * (np.log(prior_sd) + 0.5 * LOG_2PI)
        slope = 1 - np.exp(2 * log_sd) / prior_sd**2
        return value, np.concatenate([-beta / prior_sd**2, slope[:, None]], axis=1)

    def log_likelihood(x):
        residual, weight = y - x[:, :dim] @ X.T, np.exp(-2 * x[:, dim])
        square = (residual**2).sum(axis=1) * weight
        slopes = [(residual @ X) * weight[:, None], (square - n)[:, None]]
        return -0.5 * square - n * (x[:, dim] + 0.5 * LOG_2PI), np.concatenate(slopes, axis=1)

    def sample_prior(size, rng):
        z = prior_sd * rng.standard_normal((size, dim + 1))
        return np.concatenate([z[:, :dim], np.log(np.abs(z[:, dim:]))], axis=1)

    values, vectors = np.linalg.eigh(X @ X.T)
    log_sd = np.linspace(-2, 4, 4001)
    variances = np.exp(2 * log_sd)[:, None] + prior_sd**2 * np.maximum(values, 0)
    logs = -0.5 * ((vectors.T @ y) ** 2 / variances + np.log(variances) + LOG_2PI).sum(axis=1)
    logs += stats.halfnorm(scale=prior_sd).logpdf(np.exp(log_sd)) + log_sd
    target = FunctionTarget(dim + 1, log_likelihood, log_prior, sample_prior)
    return target, float(logsumexp(logs) + np.log(log_sd[1] - log_sd[0]))
