"""Tempered posteriors p(θ)L(θ)^α by every method."""

import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.approximations.ep import Factors, Logit, Normal, Probit, StudentT, fit_ep
from ppl_backends.results.inference_data import group
from ppl_backends.targets.factors import FactorsTarget, PoweredSites

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = (X @ [1.0, -1.0] + RNG.normal(size=40) > 0).astype(int)


def test_gaussian_likelihoods_to_a_power_are_gaussian():
    y = X @ [1.0, -1.0]
    whole = Factors(X, 0.0, Normal(y, 0.7), 0.0, 1.0)
    half = pb.with_power(FactorsTarget(whole), 0.5)
    precision = np.eye(2) + 0.5 * X.T @ X / 0.49
    mean = np.linalg.solve(precision, 0.5 * X.T @ y / 0.49)
    ep, laplace = fit_ep(half), pb.fit_laplace(FactorsTarget(whole), power=0.5, progressbar=False)
    for q in (ep, laplace):
        np.testing.assert_allclose(q.mean, mean, atol=1e-7)
        np.testing.assert_allclose(q.precision, precision, rtol=1e-5)
    assert ep.log_evidence == pytest.approx(laplace.log_evidence, abs=1e-7)


@pytest.mark.filterwarnings("ignore:Laplace approximation of factors. there is a mode, but")
@pytest.mark.parametrize("family", [Logit(Y), Probit(Y)])
def test_methods_agree_on_a_power(family):
    target = FactorsTarget(Factors(X, 0.0, family, 0.0, 0.25))
    ep = fit_ep(pb.with_power(target, 0.5))
    options = {"power": 0.5, "random_seed": 1, "progressbar": False}
    importance = group(pb.sample_importance(target, draws=4000, chains=2, **options), "posterior")
    laplace = pb.fit_laplace(target, power=0.5, progressbar=False)
    theta = importance["theta"].values.reshape(-1, 2)
    np.testing.assert_allclose(ep.mean, theta.mean(axis=0), atol=0.05 * theta.std(axis=0).max())
    assert ep.log_evidence == pytest.approx(importance.attrs["log_evidence"], abs=0.05)
    assert laplace.log_evidence == pytest.approx(importance.attrs["log_evidence"], abs=0.3)
    assert "to the power 0.5" in importance.attrs["log_evidence_note"]


def test_sites_of_the_prior_keep_power_one():
    sites = [Probit(Y), StudentT(np.zeros(2), 1.0, 2.5)]
    observed = np.r_[np.ones(40, bool), np.zeros(2, bool)]
    target = FactorsTarget(Factors([X, np.eye(2)], 0.0, sites, 0.0, 0.0, log_constant=0.3, observed=observed))
    half = pb.with_power(target, 0.5)
    theta = RNG.normal(size=(3, 2))
    np.testing.assert_allclose(half.factors.log_density(theta), half.log_density(theta))
    np.testing.assert_allclose(half.evaluate(theta).log_prior, target.evaluate(theta).log_prior)


def test_rows_of_data_are_multiplied_too():
    target = FactorsTarget(Factors(X, 0.0, Probit(Y), 0.0, 0.25))
    half, index, theta = pb.with_power(target, 0.5), np.array([3, 5]), RNG.normal(size=(3, 2))
    assert half.observations.n == 40
    whole = half.observations.log_likelihood(theta)
    np.testing.assert_allclose(whole.sum(axis=1), half.evaluate(theta).log_likelihood)
    value, gradient = half.observations.sum(theta, index, gradient=True)
    np.testing.assert_allclose(value, whole[:, index].sum(axis=1))
    np.testing.assert_allclose(gradient, 0.5 * target.observations.sum(theta, index, gradient=True)[1])


def test_powered_sites_have_the_moments_of_the_power():
    sites = Normal([0.3, -1.0], 0.8)
    mean, variance = np.array([0.1, 0.4]), np.array([1.0, 2.0])
    found = PoweredSites(sites, [0.5, 0.5]).tilted(mean, variance, 1.0)
    np.testing.assert_allclose(found, sites.tilted(mean, variance, 0.5))
    assert PoweredSites(sites, [0.5, 1.0]).tilted(mean, variance, 1.0) is None


def _conjugate():
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 2, shape=2)
        pm.Normal("y", X @ beta, 0.7, observed=X @ [1.0, -1.0])
    precision = np.eye(2) / 4 + 0.5 * X.T @ X / 0.49
    return model, np.linalg.solve(precision, 0.5 * X.T @ (X @ [1.0, -1.0]) / 0.49), np.linalg.inv(precision)


def test_every_method_tempers_a_pymc_model():
    model, mean, cov = _conjugate()
    target, sd = pb.as_target(model), np.sqrt(np.diagonal(cov))
    options = {"power": 0.5, "random_seed": 1, "progressbar": False}
    ep = fit_ep(pb.with_power(target, 0.5))
    laplace, vi = pb.fit_laplace(target, **options), pb.fit_vi(target, **options)
    for q in (ep, laplace, vi):
        np.testing.assert_allclose(q.mean, mean, atol=0.05 * sd.min())
        np.testing.assert_allclose(np.sqrt(np.diagonal(q.cov)), sd, rtol=0.03)
    assert ep.log_evidence == pytest.approx(laplace.log_evidence, abs=1e-5)
    runs = [
        pb.sample_importance(target, draws=2000, chains=2, **options),
        pb.sample_smc(target, draws=500, chains=2, initial="laplace", **options),
        pb.sample_mcmc(target, draws=500, tune=100, chains=2, **options),
    ]
    for run in runs:
        draws = group(run, "posterior")["beta"].values.reshape(-1, 2)
        np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.15 * sd.max())
        np.testing.assert_allclose(draws.std(axis=0), sd, rtol=0.15)
    for run in runs[:2]:
        assert group(run, "posterior").attrs["log_evidence"] == pytest.approx(ep.log_evidence, abs=0.2)


def test_ep_integrates_over_scales_of_a_tempered_model():
    with pm.Model() as model:
        tau = pm.LogNormal("tau", 0, 0.3)
        z = pm.Normal("z", 0, tau, shape=4)
        pm.Bernoulli("y", logit_p=z[np.repeat(np.arange(4), 10)], observed=Y)
    half = pb.with_power(model, 0.5)
    ep = fit_ep(half)
    run = group(
        pb.sample_importance(half, approximation=ep, draws=4000, chains=2, random_seed=1, progressbar=False),
        "posterior",
    )
    assert ep.log_evidence == pytest.approx(run.attrs["log_evidence"], abs=0.1)
