"""Importance sampling of PyMC models: results in model space, and a conjugate evidence."""

import warnings

import numpy as np
import pymc as pm
import pytest
from scipy.stats import multivariate_normal

from ppl_backends.approximations import fit_laplace
from ppl_backends.approximations.ep import fit_ep
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.importance import sample_importance
from ppl_backends.results.inference_data import group
from ppl_backends.targets import as_target

GROUPS = np.array([0, 0, 0, 1, 1])
Y = np.array([0.3, 1.2, -0.4, 2.5, 1.9])
PRIOR_SD = 2.0


@pytest.fixture(scope="module")
def model():
    with pm.Model(coords={"group": ["control", "treated"]}) as model:
        mu = pm.Normal("mu", 0, PRIOR_SD, dims="group")
        pm.Deterministic("difference", mu[1] - mu[0])
        pm.Normal("y", mu[GROUPS], 1, observed=Y)
    return model


def exact_log_evidence():
    same = GROUPS[:, None] == GROUPS
    return multivariate_normal(np.zeros(5), np.eye(5) + PRIOR_SD**2 * same).logpdf(Y)


def test_a_conjugate_model_is_exact_and_labelled(model):
    with model:  # the model on the context stack is the default
        approximation = fit_laplace(progressbar=False)
        idata = sample_importance(draws=500, chains=2, random_seed=1, log_likelihood=True, progressbar=False)
    posterior, proposal = group(idata, "posterior"), group(idata, "proposal")
    assert approximation.log_evidence == pytest.approx(exact_log_evidence(), abs=1e-8)
    assert posterior.attrs["log_evidence"] == pytest.approx(exact_log_evidence(), abs=1e-8)
    assert posterior["mu"].dims == ("chain", "draw", "group")
    assert proposal["mu"].dims == ("chain", "point", "group")
    assert list(proposal["group"].values) == ["control", "treated"]
    np.testing.assert_allclose(proposal["difference"], proposal["mu"][..., 1] - proposal["mu"][..., 0])
    assert group(idata, "log_likelihood")["y"].shape == (2, 500, 5)
    assert group(approximation.to_inference_data(random_seed=1), "posterior")["difference"].shape == (1, 1000)


def test_a_start_in_model_space(model):
    q = fit_laplace(model, initvals={"mu": np.array([50.0, -50.0])}, progressbar=False)
    precision = np.array([3, 2]) + PRIOR_SD**-2.0
    np.testing.assert_allclose(q.mean, np.array([Y[:3].sum(), Y[3:].sum()]) / precision, atol=1e-8)


def test_data_outside_the_support_name_the_variable():
    with pm.Model() as impossible:
        rate = pm.HalfNormal("rate", 1)
        pm.Exponential("waiting", rate, observed=np.array([1.0, -1.0]))
    for method in (fit_laplace, sample_importance):
        with pytest.raises(ModelError, match="waiting"):
            method(impossible, progressbar=False)


@pytest.mark.slow  # EP of fourteen coordinates, 40,000 points
def test_an_sd_that_hangs_on_one_point_is_not_trusted():
    """With seed 25 one point holds 2 % of the weight and an sd is a quarter too large; efficiency and Pareto k look fine."""
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(10), 12)
    y = (1.0 + rng.standard_normal(10))[groups] + 0.8 * rng.standard_t(4, size=len(groups))
    with pm.Model() as hierarchy:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2)
        sigma, nu = pm.HalfNormal("sigma", 2), pm.Gamma("nu", 2, 0.1)
        z = pm.Normal("z", 0, 1, shape=10)
        pm.StudentT("y", nu=nu, mu=mu + tau * z[groups], sigma=sigma, observed=y)
    target = as_target(hierarchy)
    options = {"approximation": fit_ep(target, progressbar=False), "draws": 1000, "progressbar": False}
    trusted = []
    for seed in (25, 1, 2, 3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SamplerWarning)
            posterior = group(sample_importance(target, random_seed=seed, **options), "posterior")
        trusted.append(posterior.attrs["log_evidence_trusted"])
        # 0.457: four NUTS chains of 10,000 draws; at an ESS of 1,800 and more an sd is known to 2 %, five of them here
        assert not trusted[-1] or float(posterior["tau"].std()) == pytest.approx(0.457, rel=0.12)
        assert (posterior.attrs["smallest_ess"] < 50) == (not trusted[-1])
    assert sum(trusted) >= 3
