"""Mixtures of Gaussians: moments, draws, densities, gradients."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from ppl_backends.approximations import MixtureApproximation
from ppl_backends.errors import ModelError

WEIGHTS = np.array([0.5, 0.3, 0.2])
MEANS = np.array([[0.0, 1.0], [3.0, -1.0], [-2.0, 4.0]])
COVS = np.array([[[1.0, 0.5], [0.5, 2.0]], [[0.5, 0.0], [0.0, 0.2]], [[2.0, -1.0], [-1.0, 1.5]]])
Q = MixtureApproximation(2 * WEIGHTS, MEANS, COVS, names=("a", "b"))


def density(x):
    parts = zip(WEIGHTS, MEANS, COVS, strict=True)
    return np.log(sum(w * multivariate_normal(m, c).pdf(x) for w, m, c in parts))


def test_density_and_gradient():
    x = np.random.default_rng(0).normal(scale=3.0, size=(2000, 2))
    value, gradient = Q.log_density_and_gradient(x)
    np.testing.assert_allclose(value, density(x), rtol=1e-10)
    np.testing.assert_allclose(Q.log_density(x), value)
    step = 1e-6 * np.eye(2)
    differences = np.stack([(density(x[:20] + s) - density(x[:20] - s)) / 2e-6 for s in step], axis=1)
    np.testing.assert_allclose(gradient[:20], differences, rtol=1e-5, atol=1e-6)


def test_few_points_and_many_have_the_same_density_and_gradient():
    x = np.random.default_rng(3).normal(scale=3.0, size=(300, 2))
    few = [Q.log_density_and_gradient(piece) for piece in np.split(x, 6)]
    for joined, whole in zip(zip(*few, strict=True), Q.log_density_and_gradient(x), strict=True):
        np.testing.assert_allclose(np.concatenate(joined), whole, rtol=1e-12, atol=1e-12)


def test_a_million_points_fit_in_memory():
    assert np.isfinite(Q.log_density(np.zeros((10**6, 2)))).all()


@pytest.mark.parametrize("how", ["draws", "net"])
def test_draws_have_the_moments(how):
    rng, n = np.random.default_rng(1), 2**16
    x = Q.sample(n, rng) if how == "draws" else Q.from_uniform(rng.random((n, 2)))
    mean = WEIGHTS @ MEANS
    cov = np.einsum("k,kij->ij", WEIGHTS, COVS) + np.einsum("k,ki,kj->ij", WEIGHTS, MEANS - mean, MEANS - mean)
    np.testing.assert_allclose(Q.mean, mean)
    np.testing.assert_allclose(Q.cov, cov)
    np.testing.assert_allclose(Q.sd, np.sqrt(np.diag(cov)))
    error = 5 / np.sqrt(n)
    assert np.all(np.abs(x.mean(axis=0) - mean) < error * Q.sd)
    assert np.all(np.abs(np.cov(x.T) - cov) < 2.5 * error * np.outer(Q.sd, Q.sd))
    # The share below a cut between the components is more than moments.
    share = sum(
        w * multivariate_normal(m[:1], c[:1, :1]).cdf(1.5) for w, m, c in zip(WEIGHTS, MEANS, COVS, strict=True)
    )
    assert abs(np.mean(x[:, 0] < 1.5) - share) < error


def test_faces_of_the_cube_give_finite_points():
    assert np.isfinite(Q.from_uniform(np.array([[0.0, 0.0], [1.0, 1.0], [0.5, 1.0]]))).all()


def test_inference_data():
    idata = Q.to_inference_data(draws=50, chains=2, random_seed=1)
    assert idata.posterior.attrs["method"] == "mixture"
    assert idata.posterior["x"].shape == (2, 50, 2)


@pytest.mark.parametrize(("weights", "covs"), [([0.5, 0.5], COVS), ([0.5, 0.6, -0.1], COVS), (WEIGHTS, -COVS)])
def test_what_is_refused(weights, covs):
    with pytest.raises(ModelError):
        MixtureApproximation(weights, MEANS, covs)
