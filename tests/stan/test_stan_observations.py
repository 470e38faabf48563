"""Subsets of the rows of a Stan program's data."""

from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_expit
from scipy.stats import norm

from ppl_backends.errors import ModelError

pytest.importorskip("httpstan", reason="needs the stan extra")

from ppl_backends.targets.stan import stan_target

pytestmark = [pytest.mark.stan, pytest.mark.slow]

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def points(regression):
    return np.random.default_rng(5).normal(size=(7, regression.dim))


@pytest.fixture
def exact(regression_data, points):
    eta = points[:, :3] @ regression_data["X"].T
    return log_expit(np.where(regression_data["y"] == 1, eta, -eta))


def test_pointwise(regression, points, exact):
    observations = regression.observations
    rng = np.random.default_rng(1)
    shared, own = rng.integers(0, 60, size=9), rng.integers(0, 60, size=(7, 5))
    assert observations.n == 60
    np.testing.assert_allclose(observations.log_likelihood(points), exact, atol=1e-11)
    np.testing.assert_allclose(observations.log_likelihood(points, shared), exact[:, shared], atol=1e-11)
    expected = np.take_along_axis(exact, own, axis=1)
    np.testing.assert_allclose(observations.log_likelihood(points, own), expected, atol=1e-11)


@pytest.mark.parametrize("kind", ["all", "shared", "own", "shared weighted", "own weighted", "padded"])
def test_sums_and_gradients(regression, regression_data, points, exact, kind):
    rng = np.random.default_rng(2)
    index = {"all": None, "shared": rng.choice(60, 12, replace=False)}.get(kind.split()[0], rng.integers(0, 60, (7, 6)))
    weights = rng.exponential(size=index.shape) if "weighted" in kind else None
    if kind == "padded":
        weights = np.repeat([[10.0, 10, 10, 10, 0, 0]], 7, axis=0)
    value, gradient = regression.observations.sum(points, index, weights, gradient=True)
    chosen = np.broadcast_to(np.arange(60) if index is None else index, (7, 60 if index is None else index.shape[-1]))
    factor = np.ones(chosen.shape) if weights is None else np.broadcast_to(weights, chosen.shape)
    np.testing.assert_allclose(value, (np.take_along_axis(exact, chosen, axis=1) * factor).sum(axis=1), atol=1e-10)
    np.testing.assert_array_equal(value, regression.observations.sum(points, index, weights))
    X, y = regression_data["X"], regression_data["y"]
    residual = y - 1 / (1 + np.exp(-points[:, :3] @ X.T))
    slope = np.einsum("pm,pm,pmd->pd", factor, np.take_along_axis(residual, chosen, axis=1), X[chosen])
    np.testing.assert_allclose(gradient[:, :3], slope, atol=1e-10)
    np.testing.assert_allclose(gradient[:, 3], 0, atol=1e-10)


def test_scores_and_hessian(regression, regression_data, points):
    scores, hessian = regression.observations.score_and_hessian(points[0])
    X = regression_data["X"]
    residual = regression_data["y"] - 1 / (1 + np.exp(-X @ points[0, :3]))
    np.testing.assert_allclose(scores[:, :3], residual[:, None] * X, atol=1e-11)
    np.testing.assert_allclose(hessian, regression.hessian(points[:1], "likelihood")[0], atol=1e-9)


def test_log_lik_alone_gives_values(regression, regression_data, points, exact):
    observations = stan_target(PROGRAMS / "regression.stan", regression_data).observations
    own = np.random.default_rng(1).integers(0, 60, size=(7, 5))
    np.testing.assert_allclose(observations.log_likelihood(points, own), np.take_along_axis(exact, own, 1), atol=1e-11)
    np.testing.assert_allclose(observations.sum(points, np.arange(5)), exact[:, :5].sum(axis=1), atol=1e-11)
    with pytest.raises(ModelError, match="rows="):
        observations.sum(points, own, gradient=True)


def test_bad_rows_and_indices(regression, regression_data):
    path = PROGRAMS / "regression.stan"
    with pytest.raises(ModelError, match="'z', which is not in the data"):
        stan_target(path, regression_data, rows={"N": ["z"]})
    with pytest.raises(ModelError, match=r"rows=\['X', 'y'\]: expected .* such as \{'N': \['x', 'y'\]\}"):
        stan_target(path, regression_data, rows=["X", "y"])
    with pytest.raises(ModelError, match="rows= does not say which data have rows; give rows="):
        stan_target(path, regression_data).append({"y": [1]})
    with pytest.raises(ModelError, match=r"no axis of length D=3"):
        stan_target(path, regression_data, rows={"D": ["y"]})
    with pytest.raises(ModelError, match="not an integer"):
        stan_target(path, regression_data, rows={"X": ["y"]})
    with pytest.raises(ModelError, match=r"has shape .* declares"):
        stan_target(path, regression_data, rows={"N": ["X"]}).observations
    with pytest.raises(ModelError, match="runs from 60 to 60"):
        regression.observations.sum(np.zeros((1, 4)), np.array([60]))


def test_density_that_is_no_sum_over_rows(rejecting):
    """A mean over rows is refused, as it must be: the halves do not add up. So are rows with a parameter each."""
    data = {"N": 4, "row": [1.0, 2.0, 4.0, 8.0], "M": 2, "sizing": [0.0, 1.0]}
    with pytest.raises(ModelError, match="not a sum over these rows"):
        stan_target(rejecting.program, data, rows={"N": ["row"]}, prior=None).observations
    with pytest.raises(ModelError, match="also sizes a parameter"):
        stan_target(rejecting.program, data, rows={"M": ["sizing"]}, prior=None).observations


def test_count_that_may_not_be_zero():
    """The prior then comes from a program of its own."""
    times = np.arange(1, 5) / 2
    data = {"N": 4, "times": times, "observed": np.exp(-1.3 * times)}
    target = stan_target(PROGRAMS / "ode.stan", data, rows={"N": ["times", "observed"]})
    assert target.split.route == "derived"
    solution = np.exp(-1.3 * times)
    expected = 2 * norm.logpdf(data["observed"], solution, 0.1)
    pointwise = target.observations.log_likelihood(np.log([[1.3]]))
    np.testing.assert_allclose(pointwise, expected[None], atol=1e-3)  # the tolerance of the solver
