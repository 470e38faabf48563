"""Each proposal draws from the density it reports."""

import numpy as np
import pytest
from scipy.stats import kstest, multivariate_normal, multivariate_t, norm, t

from ppl_backends.approximations import GaussianApproximation
from ppl_backends.errors import ModelError
from ppl_backends.importance.proposals import DEFENSIVE_SHARE, STUDENT_DF, make_proposal

MEAN, COV = np.array([1.0, -2.0]), np.array([[2.0, 0.6], [0.6, 0.5]])
Q = GaussianApproximation(MEAN, COV)


def expected_density(name, x):
    gaussian = multivariate_normal(MEAN, COV).pdf(x)
    student = multivariate_t(MEAN, COV, STUDENT_DF).pdf(x)
    share = {"gaussian": 0.0, "t": 1.0, "defensive": DEFENSIVE_SHARE}[name]
    return (1 - share) * gaussian + share * student


@pytest.mark.parametrize("name", ["gaussian", "t", "defensive"])
def test_density(name):
    x = np.random.default_rng(0).normal(size=(50, 2)) * 5
    np.testing.assert_allclose(np.exp(make_proposal(name, Q).log_density(x)), expected_density(name, x), rtol=1e-9)


@pytest.mark.parametrize("name", ["gaussian", "t", "defensive"])
def test_points_follow_the_marginals(name):
    proposal = make_proposal(name, Q)
    x = proposal.from_uniform(np.random.default_rng(1).random((20_000, proposal.n_uniforms)))
    share = {"gaussian": 0.0, "t": 1.0, "defensive": DEFENSIVE_SHARE}[name]
    for direction in (np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([1.0, -2.0])):
        location, scale = direction @ MEAN, (direction @ COV @ direction) ** 0.5

        def cdf(v, location=location, scale=scale):
            return (1 - share) * norm.cdf(v, location, scale) + share * t.cdf(v, STUDENT_DF, location, scale)

        assert kstest(x @ direction, cdf).pvalue > 1e-5


def test_any_object_with_moments_serves_for_the_t():
    class Moments:
        mean, cov = MEAN, COV

    x = np.zeros((1, 2))
    np.testing.assert_allclose(make_proposal("t", Moments()).log_density(x), make_proposal("t", Q).log_density(x))


def test_unknown_name():
    with pytest.raises(ModelError, match="proposal='cauchy'"):
        make_proposal("cauchy", Q)
