"""Adaptation of chains while they tune."""

from types import SimpleNamespace

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.kernels.adaptation import Adaptation
from ppl_backends.kernels.calibrated import calibrated
from ppl_backends.kernels.hmc import Hmc
from ppl_backends.kernels.streams import Generators
from ppl_backends.numerics.gaussian import Gaussian

COVARIANCE = np.array([[4.0, 1.2, 0.0], [1.2, 0.5, 0.0], [0.0, 0.0, 25.0]])
PRECISION = np.linalg.inv(COVARIANCE)
TARGET = pb.FunctionTarget(3, lambda x: (-0.5 * np.einsum("ni,ij,nj->n", x, PRECISION, x), -x @ PRECISION))
WRONG = Gaussian(np.zeros(3), np.ones(3))


def hmc(metric):
    return calibrated(
        TARGET, Hmc(balanced=False), SimpleNamespace(gaussian=WRONG, sample=WRONG.sample), adapt=True, metric=metric
    )


def tuned(algorithm, rng, n_chains, n_steps):
    state = algorithm.start(np.zeros((n_chains, 3)), rng)
    for _ in range(n_steps):
        state, _ = algorithm.step(state, rng, True)
    return state


@pytest.mark.parametrize(("metric", "wanted"), [("dense", COVARIANCE), ("diagonal", np.diag(np.diag(COVARIANCE)))])
def test_the_mass_is_learnt_where_the_approximation_is_wrong(metric, wanted):
    """From 400 correlated draws: relative sds of variances are about 0.1, the bound is four of them."""
    state = tuned(hmc(metric), np.random.default_rng(1), 1, 700)
    factor = state.parameters.metric.factor[0]
    found = factor @ factor.T if metric == "dense" else np.diag(factor**2)
    scale = np.sqrt(np.outer(np.diag(wanted), np.diag(wanted)))
    np.testing.assert_allclose(found / scale, wanted / scale, atol=0.4)


def test_nothing_is_learnt_of_the_mass_where_nothing_is_asked_for():
    assert tuned(hmc(None), np.random.default_rng(1), 1, 150).parameters.metric is WRONG


@pytest.mark.parametrize("metric", ["dense", "diagonal"])
def test_chains_of_a_batch_adapt_as_they_would_alone(metric):
    algorithm = hmc(metric)
    batch = tuned(algorithm, Generators([np.random.default_rng(k) for k in range(3)]), 3, 130)
    for k in range(3):
        alone = tuned(algorithm, np.random.default_rng(k), 1, 130)
        np.testing.assert_allclose(batch.parameters.metric.factor[k], alone.parameters.metric.factor[0], rtol=1e-8)
        np.testing.assert_allclose(batch.x[k], alone.x[0], rtol=1e-8)


def test_a_covariance_that_is_not_symmetric_is_refused():
    with pytest.raises(ModelError, match="expected a symmetric, positive definite"):
        Adaptation.of_covariance([[1.0, 0.9], [-0.9, 1.0]], 2, 1.0, 0.25)


def test_chains_that_never_moved_keep_their_shape():
    adaptation = Adaptation.of_covariance(None, 2, 1.0, 0.25)
    for k in range(100):
        adaptation = adaptation.update(np.zeros(2), np.array([[1.0, 1.0], [k, (-1.0) ** k]]))
    np.testing.assert_array_equal(adaptation.windows.factor[0], np.eye(2))
    assert adaptation.windows.factor[1, 0, 0] > 10


def test_chains_that_pool_share_one_shape_and_one_scale_though_one_of_them_sticks():
    """Four chains of independent draws, one of which never moves: 3 / 4 of the spread, up to the error of 400 points."""
    rng, adaptation = np.random.default_rng(4), Adaptation.of_covariance(None, 3, 1.0, 0.25, pooled=True)
    factor = np.linalg.cholesky(COVARIANCE)
    for _ in range(180):  # windows of 100, 200 and 400 points end after 25, 75 and 175 steps
        x = rng.standard_normal((4, 3)) @ factor.T
        x[0] = 0.0
        adaptation = adaptation.update(np.array([0.0, 0.3, 0.3, 0.4]), x)
    assert np.ndim(adaptation.step.scale) == 0
    learnt = adaptation.metric.factor
    assert learnt.shape == (1, 3, 3)
    ratio = np.diag(learnt[0] @ learnt[0].T) / np.diag(COVARIANCE)
    np.testing.assert_allclose(ratio, 0.75, atol=4 * 0.75 * np.sqrt(2 / 300))
    assert adaptation.metric.colour(np.ones((4, 3))).shape == (4, 3)
