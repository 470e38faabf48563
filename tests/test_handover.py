"""NUTS started and scaled by an approximation samples the right posterior."""

import numpy as np
import pymc as pm
import pytest

from ppl_backends import fit_laplace
from ppl_backends.approximations import GaussianApproximation, from_draws
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.handover import initvals_for_pymc, nutpie_options, nuts_for_pymc
from ppl_backends.importance import sample_importance
from ppl_backends.results.inference_data import group

Y = np.random.default_rng(0).normal(3.0, 2.0, size=40)


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        sigma = pm.HalfNormal("sigma", 5)
        pm.Deterministic("ratio", mu / sigma)
        pm.Normal("y", mu, sigma, observed=Y)
    return model


@pytest.fixture(scope="module")
def sources(model):
    with pytest.warns(ApproximationWarning, match="the posterior mean of sigma_log__"):
        approximation = fit_laplace(model, progressbar=False)
    idata = sample_importance(model, draws=1000, approximation=approximation, random_seed=1, progressbar=False)
    return {"laplace": approximation, "importance": idata}


@pytest.mark.parametrize("name", ["laplace", "importance"])
def test_initial_values_are_draws_of_the_free_variables(model, sources, name):
    starts = initvals_for_pymc(sources[name], model, chains=3, random_seed=1)
    assert len(starts) == 3
    assert all(set(start) == {"mu", "sigma"} for start in starts)
    assert all(start["sigma"] > 0 and abs(start["mu"] - 3) < 3 for start in starts)


@pytest.mark.slow
def test_pm_sample_takes_the_mass_matrix_and_the_starts(model, sources):
    reference = group(sources["importance"], "posterior")
    with model:
        idata = pm.sample(
            step=nuts_for_pymc(sources["laplace"], model),
            initvals=initvals_for_pymc(sources["laplace"], model, chains=2, random_seed=1),
            draws=500,
            tune=200,
            chains=2,
            cores=1,
            random_seed=1,
            progressbar=False,
            compute_convergence_checks=False,
        )
    posterior = group(idata, "posterior")
    for name in ("mu", "sigma"):
        exact, ours = reference[name].values, posterior[name].values
        # At least 300 effective draws of 1,000: 5 standard errors of the mean and of the sd.
        assert abs(ours.mean() - exact.mean()) < 5 * exact.std() / 300**0.5
        assert abs(ours.std() / exact.std() - 1) < 5 / 600**0.5


def test_moments_of_the_draws_scale_nuts_too(model, sources):
    fitted = from_draws(sources["importance"], model)
    np.testing.assert_allclose(fitted.cov, sources["laplace"].cov, rtol=0.3, atol=0.01)
    assert nuts_for_pymc(sources["importance"], model, target_accept=0.9).target_accept == 0.9


def test_nutpie_options(model, sources):
    np.testing.assert_array_equal(nutpie_options(sources["laplace"], model)["init_mean"], sources["laplace"].mean)


def test_bad_input(model, sources):
    with pytest.raises(ModelError, match="1 coordinates, the model has 2"):
        nuts_for_pymc(GaussianApproximation([0.0], [[1.0]]), model)
    with pytest.raises(ModelError, match="chains=0"):
        initvals_for_pymc(sources["laplace"], model, chains=0)
    with pm.Model() as other:
        pm.Normal("elsewhere", 0, 1)
    with pytest.raises(ModelError, match="no draws of 'elsewhere'"):
        initvals_for_pymc(sources["importance"], other)
