"""Series with reference evidences: states integrated out exactly, quantiles, and a Cox process."""

from pathlib import Path

import numpy as np
from reference_closed import LOG_2PI, NILE
from scipy.special import gammaln, ndtr, ndtri

import ppl_backends as pb
from ppl_backends.targets.protocol import Evaluation

SERIES = Path(__file__).parents[2] / "tests" / "state_space" / "data"


class Density(pb.FunctionTarget):
    """A prior that uniforms give and a log likelihood, both of batches; gradients by central differences.

    Parameters
    ----------
    dim : int
    log_prior, log_likelihood : callable
        ``x (n, dim) -> (n,)``.
    from_uniform : callable
        ``u (n, dim) -> x``.
    """

    def __init__(self, dim, log_prior, log_likelihood, from_uniform):
        def draw(n, rng):
            return from_uniform(rng.random((n, dim)))

        self.values = (log_prior, log_likelihood)
        super().__init__(
            dim,
            with_differences(log_likelihood),
            with_differences(log_prior),
            sample_prior=draw,
            prior_from_uniform=from_uniform,
        )

    def evaluate(self, x, gradient=False):
        """Values alone where no gradient is asked for."""
        if gradient:
            return super().evaluate(x, True)
        found = [np.asarray(function(x)) for function in self.values]
        return Evaluation(*(np.where(np.isnan(one), -np.inf, one) for one in found))


def with_differences(function):
    """Values and central differences of a function of batches."""

    def both(x):
        n, dim = x.shape
        h = 1e-5 * (1 + np.abs(x))
        moved = [x + sign * h * unit for sign in (1, -1) for unit in np.eye(dim)]
        value = function(np.concatenate([x, *moved]))
        ahead, behind = value[n:].reshape(2, dim, n)
        return value[:n], (ahead - behind).T / (2 * h)

    return both


def log_logistic(x):
    """Log density of a logistic variable: a uniform one in logit coordinates."""
    return -np.logaddexp(0, -x) - np.logaddexp(0, x)


def logit(u):
    """Log odds."""
    u = np.clip(u, 1e-15, 1 - 1e-15)
    return np.log(u) - np.log1p(-u)


def expit(x):
    """Inverse of logit."""
    return 1 / (1 + np.exp(-x))


def kalman(y, rho, state, noise, mean, variance, level=0.0):
    """Log likelihood ``(n,)`` of a scalar linear Gaussian series; ``state`` and ``noise`` are variances."""
    total = np.zeros(len(state))
    for row in y:
        spread = variance + noise
        total -= 0.5 * (np.log(spread) + LOG_2PI + (row - level - mean) ** 2 / spread)
        gain = variance / spread
        mean, variance = mean + gain * (row - level - mean), variance * (1 - gain)
        mean, variance = rho * mean, rho**2 * variance + state
    return total


def linear_gaussian():
    """x_t = ρ x_{t−1} + N(0, σx²), y_t = x_t + N(0, σy²), x_0 stationary; ρ ~ U(−1, 1), σ ~ exponential(1)."""
    y = np.loadtxt(SERIES / "linear_gaussian.csv", skiprows=1)

    def log_prior(x):
        return log_logistic(x[:, 0]) + (x[:, 1:] - np.exp(x[:, 1:])).sum(axis=1)

    def log_likelihood(x):
        with np.errstate(all="ignore"):
            rho = np.tanh(x[:, 0] / 2)
            state, noise = np.exp(2 * x[:, 1]), np.exp(2 * x[:, 2])
            value = kalman(y, rho, state, noise, np.zeros(len(x)), state * np.cosh(x[:, 0] / 2) ** 2)
        return np.where(np.isnan(value), -np.inf, value)

    def from_uniform(u):
        return np.column_stack([logit(u[:, 0]), np.log(-np.log1p(-np.clip(u[:, 1:], 1e-15, 1 - 1e-16)))])

    return Density(3, log_prior, log_likelihood, from_uniform)


def nile_variances():
    """The Nile's local level model: both standard deviations ~ exponential of mean 100, first level N(1000, 500²)."""

    def log_prior(x):
        return (x - np.exp(x) / 100 - np.log(100)).sum(axis=1)

    def log_likelihood(x):
        noise, state = np.exp(2 * x[:, 0]), np.exp(2 * x[:, 1])
        return kalman(NILE, 1.0, state, noise, np.full(len(x), 1000.0), np.full(len(x), 500.0**2))

    def from_uniform(u):
        return np.log(-100 * np.log1p(-np.clip(u, 1e-15, 1 - 1e-16)))

    return Density(2, log_prior, log_likelihood, from_uniform)


def volatility():
    """Stochastic volatility, states by the trapezoid rule; μ ~ N(0, 2²), ρ ~ N(0, 1) on (−1, 1), σ² ~ IG(3, ½)."""
    y = np.loadtxt(SERIES / "stochastic_volatility.csv", skiprows=1)
    inside = np.log(ndtr(1.0) - ndtr(-1.0))

    def log_prior(x):
        rho, log_variance = np.tanh(x[:, 1] / 2), x[:, 2]
        value = -0.5 * (x[:, 0] / 2) ** 2 - np.log(2) - 0.5 * LOG_2PI
        value += -0.5 * rho**2 - 0.5 * LOG_2PI - inside + np.log(2) + log_logistic(x[:, 1])
        return value + 3 * np.log(0.5) - gammaln(3) - 3 * log_variance - 0.5 * np.exp(-log_variance)

    def log_likelihood(x):
        rho, sigma = np.tanh(x[:, 1] / 2), np.exp(0.5 * x[:, 2])
        return np.array([_volatility(y, *theta) for theta in zip(x[:, 0], rho, sigma, strict=True)])

    def from_uniform(u):
        from scipy.stats import invgamma

        rho = ndtri(ndtr(-1.0) + u[:, 1] * (ndtr(1.0) - ndtr(-1.0)))
        return np.column_stack([2 * ndtri(u[:, 0]), 2 * np.arctanh(rho), np.log(invgamma(3, scale=0.5).ppf(u[:, 2]))])

    return Density(3, log_prior, log_likelihood, from_uniform)


def _volatility(y, mu, rho, sigma):
    """Log likelihood at one point; the grid has steps of σ / 1.3 as in the tests of the particle filters."""
    spread = sigma / np.sqrt(max(1 - rho**2, 1e-12))
    low, high = mu - 7 * spread - 3, mu + 7 * spread + 3
    size = int(np.clip((high - low) / (sigma / 1.3), 60, 400))
    grid = np.linspace(low, high, size)
    step = grid[1] - grid[0]
    move = np.exp(-0.5 * ((grid - mu - rho * (grid[:, None] - mu)) / sigma) ** 2) * step / sigma / np.sqrt(2 * np.pi)
    density = np.exp(-0.5 * ((grid - mu) / spread) ** 2) / spread / np.sqrt(2 * np.pi)
    seen = np.exp(-0.5 * (grid + y[:, None] ** 2 * np.exp(-grid) + LOG_2PI))
    total = 0.0
    for row in seen:
        density = density * row
        mass = density.sum() * step
        if not mass > 0:
            return -np.inf
        total += np.log(mass)
        density = (density / mass) @ move
    return total


def quantile_data(n=100):
    """Draws of the g-and-k distribution at A, B, g, k = 3, 1, 2, ½, by NumPy with seed 100."""
    z = np.random.default_rng(100).standard_normal(n)
    return np.sort(3 + (1 + 0.8 * np.tanh(z)) * (1 + z**2) ** 0.5 * z)


def g_and_k():
    """The g-and-k distribution with exact densities; A, B, g, k ~ U(0, 10), on logits."""
    y = quantile_data()

    def quantile(z, a, b, g, k):
        return a + b * (1 + 0.8 * np.tanh(g * z / 2)) * (1 + z**2) ** k * z

    def log_slope(z, b, g, k):
        t = np.tanh(g * z / 2)
        inner = (1 + 0.8 * t) * (1 + (2 * k + 1) * z**2) / (1 + z**2) + 0.4 * g * z * (1 - t**2)
        return np.log(b) + k * np.log1p(z**2) + np.log(inner)

    def log_likelihood(x):
        a, b, g, k = (10 * expit(column)[:, None] for column in x.T)
        low, high = np.full((len(x), len(y)), -40.0), np.full((len(x), len(y)), 40.0)
        for _ in range(14):
            middle = 0.5 * (low + high)
            under = quantile(middle, a, b, g, k) < y
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        z = 0.5 * (low + high)
        for _ in range(4):
            z = np.clip(z - (quantile(z, a, b, g, k) - y) * np.exp(-log_slope(z, b, g, k)), low, high)
        return (-0.5 * z**2 - 0.5 * LOG_2PI - log_slope(z, b, g, k)).sum(axis=1)

    def log_prior(x):
        return log_logistic(x).sum(axis=1)

    return Density(4, log_prior, log_likelihood, logit)


def cox(cells):
    """Log-Gaussian Cox process of the Finnish pines on a square grid (Møller et al. 1998), whitened, all constants kept."""
    from peers.problems import cox_data

    counts, mean, factor = cox_data(cells)
    n = len(counts)
    area, constant = 1.0 / n, (-counts * np.log(n) - gammaln(counts + 1)).sum()

    def log_likelihood(x):
        field = mean + x @ factor.T
        rate = area * np.exp(field)
        return field @ counts - rate.sum(axis=1) + constant, (counts - rate) @ factor

    def log_prior(x):
        return -0.5 * (x**2).sum(axis=1) - 0.5 * n * LOG_2PI, -x

    return pb.FunctionTarget(
        n,
        log_likelihood,
        log_prior,
        sample_prior=lambda n_draws, rng: rng.standard_normal((n_draws, n)),
        prior_from_uniform=ndtri,
    )
