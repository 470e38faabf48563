"""Importance sampling of PyMC models: what comes back in model space, and a conjugate evidence."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import multivariate_normal

from ppl_backends.approximations import fit_laplace
from ppl_backends.errors import ModelError
from ppl_backends.importance import sample_importance
from ppl_backends.results.inference_data import group

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
