"""Simulators with known ABC posteriors."""

import numpy as np
from scipy.special import gammaln
from scipy.stats import norm

from ppl_backends.targets import FunctionTarget

HALF = 10.0


def box(dim):
    """Return θ ~ U[−10, 10]^dim."""

    def log_prior(x):
        inside = (np.abs(x) <= HALF).all(axis=1)
        return np.where(inside, -dim * np.log(2 * HALF), -np.inf), np.zeros_like(x)

    return FunctionTarget(
        dim,
        lambda x: (np.zeros(len(x)), np.zeros_like(x)),
        log_prior,
        lambda n, rng: rng.uniform(-HALF, HALF, (n, dim)),
        prior_from_uniform=lambda u: HALF * (2 * u - 1),
    )


def mixture(parameters, rng):
    """y | θ ~ ½ N(θ, 0.1 I) + ½ N(θ, 0.001 I); at y* = 0 the mean is 0, the variances are ε²/(dim + 2) + 0.0505."""
    theta = parameters["x"]
    sd = np.where(rng.random(len(theta)) < 0.5, np.sqrt(0.1), np.sqrt(0.001))
    return theta + sd[:, None] * rng.standard_normal(theta.shape)


def log_ball(epsilon, dim):
    """Log of the share of the box that a ball takes: the evidence of the mixture."""
    return 0.5 * dim * np.log(np.pi) - gammaln(0.5 * dim + 1) + dim * np.log(epsilon / (2 * HALF))


def radius(acceptance, dim):
    """Return ε of an acceptance probability."""
    return float(np.exp((np.log(acceptance) - log_ball(1.0, dim)) / dim))


def standard_normal():
    """Return θ ~ N(0, 1)."""
    return FunctionTarget(
        1,
        lambda x: (np.zeros(len(x)), np.zeros_like(x)),
        lambda x: (norm.logpdf(x[:, 0]), -x),
        lambda n, rng: rng.standard_normal((n, 1)),
        prior_from_uniform=norm.ppf,
    )


NOISE, OBSERVED = 0.2, 1.0


def conjugate(parameters, rng):
    """Return y | θ ~ N(θ, 0.2²), observed 1."""
    return parameters["x"][:, 0] + NOISE * rng.standard_normal(len(parameters["x"]))


def conjugate_answer(epsilon):
    """Return the mean, sd and log evidence of the ABC posterior with a Gaussian kernel."""
    noise = NOISE**2 + epsilon**2
    variance = 1 / (1 + 1 / noise)
    log_evidence = 0.5 * np.log(epsilon**2 / (1 + noise)) - 0.5 * OBSERVED**2 / (1 + noise)
    return variance * OBSERVED / noise, variance**0.5, log_evidence
