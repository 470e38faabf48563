"""Densities that are NaN or +inf: harmless far from the posterior, and never trusted where they remove a part of it."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import ppl_backends as pb
from ppl_backends.errors import SamplerWarning
from ppl_backends.results.inference_data import group
from ppl_backends.targets.protocol import undefined

DIM = 2


def with_hole(inside, value):
    """Return posterior N(1, 0.5²) in every coordinate under N(0, 1), with a log likelihood of ``value`` in a region."""

    def log_prior(x):
        return stats.norm.logpdf(x).sum(axis=1), -x

    def log_likelihood(x):
        log_ratio = stats.norm.logpdf(x, 1.0, 0.5).sum(axis=1) - stats.norm.logpdf(x).sum(axis=1)
        hole = inside(x)
        return np.where(hole, value, log_ratio), np.where(hole[:, None], np.nan, -(x - 1.0) / 0.25 + x)

    return pb.FunctionTarget(DIM, log_likelihood, log_prior, lambda n, rng: rng.standard_normal((n, DIM)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("mass", [0.5, 0.1, 0.03])
def test_a_hole_in_the_posterior_is_not_trusted(value, mass):
    edge = 1.0 + 0.5 * stats.norm.isf(mass)
    with pytest.warns(SamplerWarning, match="NaN or"):
        idata = pb.sample_smc(with_hole(lambda x: x[:, 0] > edge, value), draws=1000, random_seed=1, progressbar=False)
    figures = group(idata, "sample_stats")
    assert group(idata, "posterior").attrs["log_evidence_trusted"] == 0
    assert float(figures["undefined"].isel(stage=-1).mean()) > 0.5 * mass
    assert float(figures["undefined_start"].mean()) == pytest.approx(stats.norm.sf(edge), abs=0.02)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("mass", [0.5, 0.1, 0.02])
def test_importance_sampling_does_not_trust_a_hole_in_the_posterior(value, mass):
    edge, q = 1.0 + 0.5 * stats.norm.isf(mass), pb.GaussianApproximation(np.ones(DIM), 0.25 * np.eye(DIM))
    with pytest.warns(SamplerWarning, match="NaN or"):
        idata = pb.sample_importance(
            with_hole(lambda x: x[:, 0] > edge, value), approximation=q, random_seed=1, progressbar=False
        )
    attrs = group(idata, "posterior").attrs
    assert attrs["log_evidence_trusted"] == 0
    assert attrs["undefined_share"] == pytest.approx(mass, rel=0.2)


def test_importance_sampling_trusts_the_posterior_beside_a_hole_far_out():
    q = pb.GaussianApproximation(np.ones(DIM), 0.25 * np.eye(DIM))
    target = with_hole(lambda x: x[:, 0] < -1.5, np.nan)
    idata = pb.sample_importance(target, approximation=q, random_seed=1, progressbar=False)
    assert group(idata, "posterior").attrs["log_evidence_trusted"] == 1


def test_a_hole_far_out_is_noted_and_trusted():
    idata = pb.sample_smc(with_hole(lambda x: x[:, 0] < -1.5, np.nan), draws=1000, random_seed=1, progressbar=False)
    attrs, figures = group(idata, "posterior").attrs, group(idata, "sample_stats")
    assert attrs["log_evidence_trusted"] == 1
    assert abs(attrs["log_evidence"]) < 5 * attrs["log_evidence_se"]
    assert float(figures["undefined_start"].mean()) == pytest.approx(stats.norm.cdf(-1.5), abs=0.02)
    assert float(figures["undefined"].isel(stage=-1).max()) == 0.0


def test_a_likelihood_that_is_nan_outside_the_support_is_no_hole():
    prior, likelihood = np.array([0.0, -np.inf, 0.0, 0.0]), np.array([np.nan, np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(undefined(prior, likelihood), [True, False, True, False])


def test_pymc_says_where_its_density_is_not_a_number():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1)
        pm.Potential("half", pm.math.switch(x > 0, np.nan, -0.5 * x**2))
        pm.Potential("support", pm.math.switch(x > 2, -np.inf, 0.0))
    target = pb.as_target(model)
    np.testing.assert_array_equal(target.undefined(np.array([[-1.0], [1.0], [3.0]])), [False, True, True])
    with pytest.warns(SamplerWarning, match="NaN or"):
        pb.sample_smc(target, draws=500, chains=2, random_seed=1, progressbar=False)
