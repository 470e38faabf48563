"""Laplace-EM: its fixed point by another method, the mode that it converges to, and inputs that it refuses."""

import numpy as np
import pytest
from scipy.optimize import brentq

import ppl_backends as pb
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.targets.factors import Factors, Logit, Normal, StudentT

pytestmark = pytest.mark.filterwarnings("ignore::ppl_backends.errors.ApproximationWarning")  # few rows

RNG = np.random.default_rng(6)


def regression(n, nu=1.0, scale=2.5):
    X = np.column_stack([np.ones(n), RNG.normal(size=(n, 2))])
    y = RNG.random(n) < 1 / (1 + np.exp(-X @ [0.5, 1.0, -1.0]))
    prior = StudentT(np.zeros(3), nu, np.full(3, scale))
    return X, y, Factors([X, np.eye(3)], None, [Logit(y), prior], 0.0, 0.0)


def test_one_normal_observation_of_a_cauchy_coefficient():
    """m = y/(1 + w), w = 2/(c² + m² + 1/(1 + w)), by bisection."""
    y, c = 3.0, 0.7
    factors = Factors(np.ones((2, 1)), None, [Normal([y]), StudentT([0.0], 1.0, [c])], 0.0, 0.0)
    w = brentq(lambda w: w - 2 / (c**2 + (y / (1 + w)) ** 2 + 1 / (1 + w)), 1e-6, 100.0)
    q = pb.fit_laplace_em(factors, tolerance=1e-10)
    assert q.mean == pytest.approx(y / (1 + w), abs=1e-8)
    assert q.sd**2 == pytest.approx(1 / (1 + w), abs=1e-8)


@pytest.mark.parametrize("nu", [1.0, 4.0])
def test_the_gaussian_is_that_of_normal_priors_of_its_own_scales(nu):
    X, y, factors = regression(60, nu)
    q = pb.fit_laplace_em(factors, tolerance=1e-9)
    weights = (nu + 1) / (nu * 2.5**2 + q.mean**2 + q.sd**2)
    given = pb.fit_laplace(pb.as_target(Factors(X, None, Logit(y), 0.0, weights)), progressbar=False)
    np.testing.assert_allclose(q.mean, given.mean, atol=1e-6)
    np.testing.assert_allclose(q.cov, given.cov, rtol=1e-5)


def test_with_many_rows_it_is_the_gaussian_at_the_mode():
    _, _, factors = regression(20_000)
    q, mode = pb.fit_laplace_em(factors), pb.fit_laplace(pb.as_target(factors), progressbar=False)
    assert q.converged
    assert np.isnan(q.log_evidence)
    assert np.abs((q.mean - mode.mean) / mode.sd).max() < 1e-3
    np.testing.assert_allclose(q.sd, mode.sd, rtol=1e-3)


def test_student_noise_is_reweighted():
    X = np.column_stack([np.ones(50), RNG.normal(size=50)])
    y = X @ [1.0, 2.0] + RNG.standard_t(2, size=50)
    factors = Factors(X, None, StudentT(y, 2.0, 1.0), 0.0, 0.01)
    q, mode = pb.fit_laplace_em(factors), pb.fit_laplace(pb.as_target(factors), progressbar=False)
    assert np.abs((q.mean - mode.mean) / mode.sd).max() < 0.15


def test_a_pymc_model_by_name():
    pm = pytest.importorskip("pymc")
    X, y, factors = regression(40)
    with pm.Model():
        beta = pm.Cauchy("beta", 0, 2.5, shape=3)
        pm.Bernoulli("y", logit_p=X @ beta, observed=y.astype(int))
        found = pb.fit_laplace_em()
    np.testing.assert_allclose(found.mean, pb.fit_laplace_em(factors).mean, atol=1e-5)
    assert found.names == ("beta[0]", "beta[1]", "beta[2]")


def test_what_it_cannot_do_is_said():
    X, y, factors = regression(40)
    with pytest.raises(ModelError, match="no Student prior or noise"):
        pb.fit_laplace_em(Factors(X, None, Logit(y), 0.0, 1.0))
    with pytest.warns(ApproximationWarning, match="not settled after 1 iterations"):
        assert not pb.fit_laplace_em(factors, max_iterations=1).converged
