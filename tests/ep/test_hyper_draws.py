"""Draws of hyper-parameters and latent variables from fits on a lattice, against exact quantiles and moments."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import stats

from ppl_backends.approximations.hyper import HyperParameters, lattice
from ppl_backends.approximations.hyper_draws import draws_of_design
from ppl_backends.numerics.weights import normalised_weights

N = 40_000
LEVELS = [0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975]


class Point(NamedTuple):
    phi: Any
    log_posterior: float
    fit: None = None


def spread_over(log_density, scale):
    """Return draws of φ ``(n, p)`` and of θ = e^φ₀ z, and the points, for a mode at zero."""
    p = len(scale)
    design = lattice(lambda phi, fit: Point(phi, log_density(phi)), Point(np.zeros(p), log_density(np.zeros(p))), scale)
    weights = normalised_weights(design.log_weights)[0]
    hyper = HyperParameters(("a",) * p, np.zeros(p), design.points, weights, design.log_weights, "", design.cell)

    def conditional(k):
        return lambda n, rng: np.exp(hyper.points[k, 0]) * rng.standard_normal((n, 1))

    return *draws_of_design(hyper, conditional, N, np.random.default_rng(1)), hyper


@pytest.mark.parametrize("shape", [2.0, 8.0, 100.0])
def test_quantiles_of_one_hyper_parameter_are_those_of_its_density(shape):
    """φ is the log of a gamma variable with mode at zero, skewed; at points of the lattice quantiles are 0.2 sd off."""
    known = stats.loggamma(shape, loc=-np.log(shape))
    sd = known.std()
    phi, theta, hyper = spread_over(lambda phi: known.logpdf(phi[0]), np.eye(1) / np.sqrt(shape))
    error = (np.quantile(phi[:, 0], LEVELS) - known.ppf(LEVELS)) / sd
    assert np.abs(error).max() < 0.05  # four standard errors of a quantile in the tail
    assert abs(phi.mean() - known.mean()) < 0.025 * sd
    assert phi.std() == pytest.approx(sd, rel=0.025)
    z = theta[:, 0] / np.exp(phi[:, 0])
    assert z.std() == pytest.approx(1.0, rel=0.025)  # θ belongs to its φ
    assert len(np.unique(phi)) > 0.99 * N
    assert np.abs(phi - hyper.mode).max() < 1.0 + np.abs(hyper.points).max()


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_quantiles_of_two_hyper_parameters_are_those_of_their_density(correlation):
    cov = np.array([[0.09, 0.3 * correlation], [0.3 * correlation, 1.0]])
    known = stats.multivariate_normal(np.zeros(2), cov)
    values, vectors = np.linalg.eigh(cov)
    phi, theta, _ = spread_over(known.logpdf, vectors * np.sqrt(values))
    found = np.quantile(phi / [0.3, 1.0], LEVELS, axis=0)
    assert np.abs(found - stats.norm.ppf(LEVELS)[:, None]).max() < 0.05
    np.testing.assert_allclose(np.cov(phi.T), cov, atol=0.02)
    assert (theta[:, 0] / np.exp(phi[:, 0])).std() == pytest.approx(1.0, rel=0.025)


def test_points_of_a_net_stay_points():
    points = np.random.default_rng(2).standard_normal((50, 3))
    hyper = HyperParameters(("a",) * 3, np.zeros(3), points, np.full(50, 0.02), np.zeros(50), "")
    phi, theta = draws_of_design(
        hyper, lambda k: lambda n, rng: np.full((n, 2), float(k)), 500, np.random.default_rng(3)
    )
    np.testing.assert_array_equal(points[theta[:, 0].astype(int)], phi)
