"""One model written in PyMC and in Stan: the densities differ by the documented constants, the results do not differ."""

import json
from pathlib import Path

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.results.inference_data import group, normalised_evidence_error
from ppl_backends.smc.results import lineage_ess

pm = pytest.importorskip("pymc")
pytest.importorskip("httpstan", reason="needs stanc, from the stan extra")

pytestmark = [pytest.mark.slow, pytest.mark.stan]

MODELS = Path(__file__).parents[2] / "stan_models"
STANDARD_ERRORS = 4.5  # false failures: 2e-5 in all, two evidences and three means compared


def stan_and_data(name):
    path = MODELS / f"{name}.data.json"
    return pb.as_target(MODELS / f"{name}.stan", path), json.loads(path.read_text())


def eight_schools(data):
    """Return a half-Cauchy deviation, which Stan writes as a Cauchy cut by a bound."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        theta_std = pm.Normal("theta_std", 0, 1, shape=data["J"])
        theta = pm.Deterministic("theta", mu + tau * theta_std)
        pm.Normal("y", theta, np.array(data["sigma"]), observed=np.array(data["y"]))
    return model


def poisson_random_effects(data):
    """Return a half-normal deviation."""
    groups = np.array(data["group"]) - 1
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, data["prior_sd"], shape=data["P"])
        tau = pm.HalfNormal("tau", 1)
        z = pm.Normal("z", 0, 1, shape=data["J"])
        eta = np.array(data["log_exposure"]) + (tau * z)[groups] + pm.math.dot(np.array(data["X"]), beta)
        pm.Poisson("y", pm.math.exp(eta), observed=np.array(data["y"]))
    return model


@pytest.mark.parametrize(
    ("name", "twin"),
    [("eight_schools_noncentered", eight_schools), ("poisson_random_effects", poisson_random_effects)],
)
def test_densities_differ_by_the_normalizer_of_the_half_prior(name, twin):
    stan, data = stan_and_data(name)
    target = pb.as_target(twin(data))
    x = 0.5 * np.random.default_rng(2).standard_normal((20, stan.dim))
    there = target.unconstrain(stan.parameters(x))
    parts, twins = stan.evaluate(x, gradient=True), target.evaluate(there, gradient=True)
    # PyMC has the constant of its HalfCauchy in single precision.
    np.testing.assert_allclose(twins.log_prior - parts.log_prior, np.log(2), rtol=1e-6)
    np.testing.assert_allclose(twins.log_likelihood, parts.log_likelihood, rtol=1e-9)
    order = [target.names.index(name.replace("tau", "tau_log__")) for name in stan.names]
    np.testing.assert_allclose(twins.log_prior_gradient[:, order], parts.log_prior_gradient, rtol=1e-8, atol=1e-8)


def mean_and_error(idata, name):
    """Return the mean of a posterior variable over chains and draws, and its standard error from the lineages."""
    draws = np.asarray(group(idata, "posterior")[name])
    ancestors = np.asarray(group(idata, "sample_stats")["ancestor"])
    ess = sum(lineage_ess(chain[:, None], ancestor)[0] for chain, ancestor in zip(draws, ancestors, strict=True))
    return draws.mean(), draws.std() / np.sqrt(ess)


def test_same_posterior_and_normalised_evidence():
    stan, data = stan_and_data("eight_schools_noncentered")
    options = {"draws": 2000, "chains": 4, "random_seed": 3, "progressbar": False}
    runs = [pb.sample_smc(model, **options) for model in (stan, eight_schools(data))]
    in_stan, in_pymc = (group(run, "posterior").attrs for run in runs)
    assert in_stan["initial"] == "prior, sampled by a run of its own"
    assert in_pymc["initial"] == "prior"
    assert in_pymc["log_prior_normalizer"] == 0
    error = np.hypot(normalised_evidence_error(in_stan), in_pymc["log_evidence_se"])
    assert error < 0.1
    assert abs(in_stan["log_prior_normalizer"] - np.log(0.5)) < STANDARD_ERRORS * in_stan["log_prior_normalizer_se"]
    normalised = in_stan["log_evidence"] - in_stan["log_prior_normalizer"]
    assert abs(normalised - in_pymc["log_evidence"]) < STANDARD_ERRORS * error
    for name in ("mu", "tau"):
        (ours, error), (other, other_error) = (mean_and_error(run, name) for run in runs)
        assert abs(ours - other) < STANDARD_ERRORS * np.hypot(error, other_error)
