"""Subsets of a PyMC model's observations: equal to slices of the whole, at a cost that follows the subset."""

import numpy as np
import pymc as pm
import pytest
import scipy.stats

from ppl_backends.errors import ModelError
from ppl_backends.targets.pymc import PyMCTarget

N = 60


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, 2)), rng.integers(0, 4, size=N), rng.normal(size=N)


def regression(data):
    """Return covariates centred in the graph, groups, ``pm.Data``, two observed variables, a (n, 2) outcome."""
    x, group, _ = data
    rng = np.random.default_rng(1)
    with pm.Model() as model:
        covariates = pm.Data("covariates", x)
        beta = pm.Normal("beta", 0, 1, shape=2)
        u = pm.Normal("u", 0, 1, shape=4)
        sigma = pm.HalfNormal("sigma", 1)
        eta = (covariates - covariates.mean(axis=0)) @ beta + u[group]
        pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, size=N))
        pm.Normal("w", eta[:, None] * np.ones(2), sigma, observed=rng.normal(size=(N, 2)))
        pm.Potential("pull", -0.5 * (beta**2).sum())
    return model


def poisson(data):
    """Return an outcome of integers in ``pm.Data`` with an offset."""
    x, _, z = data
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=2)
        counts = pm.Data("counts", np.arange(N) % 3)
        pm.Poisson("y", pm.math.exp(pm.math.dot(x, beta) + z), observed=counts)
    return model


@pytest.mark.slow  # Numba compiles values and gradients of two subset graphs
def test_subsets_are_slices_of_the_whole(data):
    target = PyMCTarget(regression(data), backend="numba", cores=1)
    observations, rng = target.observations, np.random.default_rng(2)
    x = target.initial_points(3, rng)
    whole = observations.log_likelihood(x)
    for size in (1, 7, observations.n):
        index = rng.integers(0, observations.n, size=size)
        np.testing.assert_allclose(observations.log_likelihood(x, index), whole[:, index], rtol=1e-9)
    own = rng.integers(0, observations.n, size=(3, 5))
    np.testing.assert_allclose(observations.log_likelihood(x, own), np.take_along_axis(whole, own, 1), rtol=1e-9)
    weights = rng.normal(size=5)
    value, slope = observations.sum(x, own[0], weights, gradient=True)
    np.testing.assert_allclose(value, whole[:, own[0]] @ weights, rtol=1e-9)
    for j in range(target.dim):
        up, down = x.copy(), x.copy()
        up[:, j] += 1e-5
        down[:, j] -= 1e-5
        difference = (observations.sum(up, own[0], weights) - observations.sum(down, own[0], weights)) / 2e-5
        np.testing.assert_allclose(slope[:, j], difference, rtol=1e-4, atol=1e-6)
    rest = observations.log_prior_and_potentials(x)
    np.testing.assert_allclose(rest + whole.sum(axis=1), target.log_density_and_gradient(x)[0], rtol=1e-9)
    scores, hessian = observations.score_and_hessian(x[0])
    _, total = observations.sum(x[:1], gradient=True)
    np.testing.assert_allclose(scores.sum(axis=0), total[0], rtol=1e-5, atol=1e-5)
    assert hessian.shape == (target.dim, target.dim)


def test_data_are_taken_in_subsets_whatever_holds_them(data):
    """Integers in ``pm.Data`` and a NumPy design; the graph is evaluated by C."""
    target = PyMCTarget(poisson(data), backend="c")
    x, index = np.array([[0.3, -0.2]]), np.array([5, 1, 5, 59])
    design, _, z = data
    eta = design @ x[0] + z
    log_p = scipy.stats.poisson.logpmf(np.arange(N) % 3, np.exp(eta))
    np.testing.assert_allclose(target.observations.log_likelihood(x, index)[0], log_p[index], rtol=1e-9)
    with pytest.raises(ModelError, match="index runs from"):
        target.observations.log_likelihood(x, np.array([N]))


def test_rows_that_depend_on_each_other_are_refused():
    with pm.Model() as walk:
        sigma = pm.HalfNormal("sigma", 1)
        pm.GaussianRandomWalk("y", sigma=sigma, init_dist=pm.Normal.dist(0, 1), observed=np.zeros(8))
    with pytest.raises(ModelError, match="'y' cannot be taken in subsets"):
        PyMCTarget(walk, backend="numba").observations.log_likelihood(np.zeros((1, 1)), np.arange(2))


@pytest.mark.parametrize("y", [np.zeros(8), np.arange(8.0)])
def test_parameters_with_a_value_for_each_row_are_taken_in_subsets(y):
    with pm.Model() as smooth:
        mu = pm.Normal("mu", 0, 1, shape=8)
        pm.Normal("y", pm.math.cumsum(mu), 1, observed=y)
    x, rows = np.linspace(-1, 1, 16).reshape(2, 8), np.array([5, 1, 5])
    expected = scipy.stats.norm.logpdf(y, np.cumsum(x, axis=1))[:, rows]
    observations = PyMCTarget(smooth, backend="numba").observations
    np.testing.assert_allclose(observations.log_likelihood(x, rows), expected, rtol=1e-9)
    slope = observations.sum(x, rows, gradient=True)[1]
    residual = np.zeros((2, 8))
    np.add.at(residual, (slice(None), rows), (y - np.cumsum(x, axis=1))[:, rows])
    np.testing.assert_allclose(slope, residual[:, ::-1].cumsum(axis=1)[:, ::-1], atol=1e-9)
