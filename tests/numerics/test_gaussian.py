"""The Gaussian in all its representations against its dense covariance."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from ppl_backends.numerics.gaussian import Gaussian

RNG = np.random.default_rng(0)
DIM = 4
MEAN = RNG.normal(size=DIM)
LOWER = np.tril(RNG.normal(size=(DIM, DIM))) + 2 * np.eye(DIM)
SCALES = RNG.uniform(0.5, 2.0, DIM)
X = RNG.normal(size=(6, DIM))

GAUSSIANS = {
    "dense": Gaussian(MEAN, LOWER),
    "upper": Gaussian(MEAN, LOWER.T, upper=True),
    "diagonal": Gaussian(MEAN, SCALES),
    "low_rank": Gaussian(MEAN, SCALES, RNG.normal(size=(DIM, 2))),
}


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_every_representation_is_that_of_its_covariance(kind):
    q = GAUSSIANS[kind]
    exact = multivariate_normal(MEAN, q.cov)
    np.testing.assert_allclose(q.log_density(X), exact.logpdf(X), rtol=1e-10)
    value, gradient = q.log_density_and_gradient(X)
    np.testing.assert_allclose(value, exact.logpdf(X), rtol=1e-10)
    np.testing.assert_allclose(gradient, -(X - MEAN) @ np.linalg.inv(q.cov), rtol=1e-8)
    np.testing.assert_allclose(q.place(q.whiten(X)), X, rtol=1e-10)
    np.testing.assert_allclose(q.precision @ q.cov, np.eye(DIM), atol=1e-9)
    np.testing.assert_allclose(q.sd, np.sqrt(np.diag(q.cov)))
    np.testing.assert_allclose(q.log_determinant, np.linalg.slogdet(q.cov)[1])
    root = q.colour(np.eye(DIM)).T
    np.testing.assert_allclose(root @ root.T, q.cov, rtol=1e-10)
    np.testing.assert_allclose(q.whiten_gradient(X), X @ root, rtol=1e-10)


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_marginals_and_conditionals(kind):
    q = GAUSSIANS[kind]
    free = np.array([3, 0])
    conditional = q.conditional([1, 2], X[0, [1, 2]], free)
    joint = q.log_density(np.insert(X[:, [0, 3]], 1, X[0, [1, 2]][:, None], axis=1))
    given = q.marginal([1, 2]).log_density(X[:1, [1, 2]])
    np.testing.assert_allclose(conditional.log_density(X[:, [3, 0]]), joint - given, rtol=1e-9)


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_divergence_is_the_mean_difference_of_log_densities(kind):
    q, other = GAUSSIANS[kind], GAUSSIANS["dense"]
    assert q.kl_to(q) == pytest.approx(0.0, abs=1e-10)
    x = q.sample(200_000, np.random.default_rng(1))
    difference = q.log_density(x) - other.log_density(x)
    error = difference.std() / np.sqrt(len(x))
    assert abs(q.kl_to(other) - difference.mean()) < 5 * error + 1e-10


def test_natural_parameters():
    precision = np.linalg.inv(LOWER @ LOWER.T)
    q = Gaussian.from_natural(precision, precision @ MEAN)
    np.testing.assert_allclose(q.mean, MEAN)
    np.testing.assert_allclose(q.cov, LOWER @ LOWER.T)
    expected = 0.5 * (DIM * np.log(2 * np.pi) + np.linalg.slogdet(q.cov)[1] + MEAN @ precision @ MEAN)
    assert q.log_normaliser == pytest.approx(expected)
    assert Gaussian.from_natural(np.ones((2, 2)), np.zeros(2)) is None
    assert Gaussian.from_natural(-np.eye(2), np.zeros(2)) is None
