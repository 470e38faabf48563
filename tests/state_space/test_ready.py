"""Ready models: their filters agree with each other, and with the Kalman filter where there is one."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.targets.state_space.filter import Filter, draw_seeds
from ppl_backends.targets.state_space.kalman import kalman_filter
from tests.state_space.models import repeated
from tests.statistics import normal_bound, t_bound

RUNS = 300
rng = np.random.default_rng(0)
RETURNS = np.where(np.arange(10) == 4, np.nan, rng.normal(size=10))
SIZES = 1 + 0.3 * rng.normal(size=10)
PAIRS = np.cumsum(0.05 * rng.normal(size=(8, 2)), axis=0)
PAIRS[3, 0] = np.nan

CASES = {
    "leverage": (
        pb.state_space.stochastic_volatility(leverage=True),
        RETURNS,
        {"mu": -1.0, "rho": 0.9, "sigma": 0.3, "phi": -0.5},
        ("bootstrap", "guided"),
    ),
    "theta-logistic": (
        pb.state_space.theta_logistic(),
        SIZES,
        {"tau0": 0.15, "tau1": 0.12, "tau2": 0.1, "sigma_x": 0.47, "sigma_y": 0.39},
        ("bootstrap", "guided"),
    ),
    "Lotka-Volterra": (
        pb.state_space.lotka_volterra(interval=0.5, steps=4),
        PAIRS,
        {"alpha": 1, "beta": 1, "gamma": 1, "delta": 1, "sigma": 0.1, "sigma_y": 0.2, "prey": 0, "predators": 0},
        ("bootstrap", "sqmc"),
    ),
}


def likelihood(model, y, point, method, scale):
    """Return the mean likelihood relative to ``exp(scale)``, and its standard error."""
    seeds = draw_seeds(np.random.default_rng(1), RUNS)
    values = np.exp(Filter(model, y, method=method).run(repeated(point, RUNS), 64, seeds) - scale)
    return values.mean(), values.std(ddof=1) / np.sqrt(RUNS)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_filters_of_a_model_agree(case):
    model, y, point, methods = CASES[case]
    scale = Filter(model, y).run(repeated(point, 1), 64, np.zeros(1, dtype=np.uint64))[0]
    (a, a_se), (b, b_se) = (likelihood(model, y, point, method, scale) for method in methods)
    assert abs(a - b) < normal_bound() * np.hypot(a_se, b_se)


def test_a_vector_of_variances_is_no_matrix():
    def matrices(p):
        return 0.0, jnp.eye(2), p.a * jnp.eye(2), 0.0, jnp.eye(2), jnp.eye(2), 0.0, jnp.ones(2)

    filters = Filter(pb.state_space.linear_gaussian(matrices, dim=2), np.zeros((3, 2)))
    with pytest.raises(ModelError, match=r"R has shape \(1, 2\); expected \(2, 2\)"):
        filters.state_shape({"a": np.ones(1)})


@pytest.mark.parametrize("name", ["P0", "Q", "R"])
def test_a_singular_covariance_is_named(name):
    def matrices(p):
        singular = p.a * jnp.array([[0.0, 0.0], [0.0, 1.0]])
        covariances = {"P0": jnp.eye(2), "Q": jnp.eye(2), "R": jnp.eye(2), name: singular}
        return 0.0, covariances["P0"], jnp.eye(2), 0.0, covariances["Q"], jnp.eye(2), 0.0, covariances["R"]

    filters = Filter(pb.state_space.linear_gaussian(matrices, dim=2), np.zeros((3, 2)))
    with pytest.raises(ModelError, match=f"linear_gaussian: {name} is singular in row {0 if name == 'P0' else 1}"):
        filters.run({"a": np.ones(1)}, 10, np.zeros(1, dtype=np.uint64))


@pytest.mark.slow
def test_a_model_of_matrices_is_exact_and_its_filter_unbiased():
    transition, noise = np.array([[0.8, 0.2], [0.0, 0.7]]), 0.3 * np.eye(2) + 0.1

    def matrices(p):
        return (
            jnp.zeros(2),
            jnp.eye(2),
            p.a * transition,
            jnp.zeros(2),
            noise,
            jnp.eye(2),
            jnp.zeros(2),
            0.4 * jnp.eye(2),
        )

    model, y = pb.state_space.linear_gaussian(matrices, dim=2), np.random.default_rng(2).normal(size=(3, 2))
    a = 0.9 * transition
    first = np.eye(2)
    second = a @ first @ a.T + noise
    third = a @ second @ a.T + noise
    cov = np.block(
        [[first, first @ a.T, first @ a.T @ a.T], [a @ first, second, second @ a.T], [a @ a @ first, a @ second, third]]
    )
    exact = multivariate_normal(np.zeros(6), cov + 0.4 * np.eye(6)).logpdf(y.ravel())
    found = kalman_filter(model, {"a": np.array([0.9])}, Filter(model, y).rows, 3)[0].sum()
    np.testing.assert_allclose(found, exact, rtol=1e-10)
    mean, se = likelihood(model, y, {"a": 0.9}, "guided", exact)
    assert abs(mean - 1) < t_bound(RUNS - 1) * se
