"""``pb.simuk.adapt``: simuk's calibration runs by methods of this package."""

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import ppl_backends as pb
from ppl_backends.errors import ModelError

X = np.linspace(-1, 1, 12)


def test_only_a_calibration_of_simuk_is_taken():
    with pytest.raises(ModelError, match=r"expected a simuk\.SBC"):
        pb.simuk.adapt("SBC")


simuk = pytest.importorskip("simuk")
CHEAP = {"draws": 49, "chains": 1}


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        slope = pm.Normal("slope", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        y = pm.Data("y_data", np.zeros(12))
        pm.Normal("y", slope * X, sigma + 0.2, observed=y)
    return model


def calibration(model, n, **options):
    return simuk.SBC(model, num_simulations=n, seed=1, sample_kwargs=dict(CHEAP), progress_bar=False, **options)


def test_draws_are_those_of_the_method_on_each_data_set(model):
    """Data are exchanged in the compiled model; the draws are as if each model were compiled by itself."""
    sbc, given = calibration(model, 3), []
    assert pb.simuk.adapt(sbc, sampler=pb.pymc.Importance()) is sbc
    fit = getattr(sbc, "adapter", sbc)
    name = "get_posterior_samples" if fit is not sbc else "_get_posterior_samples"
    own = getattr(fit, name)
    setattr(fit, name, lambda *args: given.append(args[-6:][1] if len(args) > 1 else args[0]) or own(*args))
    sbc.run_simulations()
    assert np.array_equal(model["y_data"].get_value(), np.zeros(12))
    for k, data in enumerate(given):
        alone = pb.pymc.sample(
            pm.observe(model, data), method="importance", random_seed=int(sbc._seeds[k]), **sbc.sample_kwargs
        )
        for variable in ("slope", "sigma"):
            drawn = sbc.posteriors[k][variable].values
            np.testing.assert_allclose(drawn, alone["posterior"][variable].values.ravel(), rtol=1e-6)
    later = calibration(model, 3)
    later.adapter = SimpleNamespace()  # later versions of simuk ask their backend adapter for draws
    pb.simuk.adapt(later, sampler="importance")
    found = later.adapter.get_posterior_samples(
        SimpleNamespace(observed_vars=["y"]), given[0], later.sample_kwargs, sbc._seeds[0], "prior", 0
    )
    np.testing.assert_allclose(found["slope"].values, sbc.posteriors[0]["slope"].values, rtol=1e-6)


@pytest.mark.slow
def test_ranks_of_an_exact_method_are_uniform(model):
    sbc = pb.simuk.adapt(calibration(model, 100), sampler="importance")
    sbc.run_simulations()
    for name in ("slope", "sigma"):
        ranks = np.asarray(sbc.simulations["prior_sbc"][name]).ravel()
        assert stats.chisquare(np.bincount(ranks // 5, minlength=10)).pvalue > 1e-3


def test_posterior_calibration_joins_the_data(model):
    trace = pb.pymc.sample(model, method="importance", draws=400, chains=1, random_seed=1, progressbar=False)
    sizes = []

    def update(model, data, index):
        sizes.append(data["y"].shape)

    def mean(model, first, drawn, index):
        return {"y": 0.5 * (first["y"].values + drawn["y"])}

    hooks = {"augment_observed": mean, "update_data": update}
    sbc = calibration(model, 2, method="posterior", trace=trace, **hooks)
    pb.simuk.adapt(sbc, sampler="laplace").run_simulations()
    assert sizes == [(12,)] * 2
    assert np.asarray(sbc.simulations["posterior_sbc"]["slope"]).size == 2


def test_bambi_models():
    bmb = pytest.importorskip("bambi")
    import pandas as pd

    data = pd.DataFrame({"x": X, "y": X + np.cos(9 * X)})
    sbc = calibration(bmb.Model("y ~ x", data), 2)
    pb.simuk.adapt(sbc, sampler="laplace").run_simulations()
    assert {"Intercept", "x", "sigma"} <= set(sbc.simulations["prior_sbc"].data_vars)


def test_arguments_that_no_method_knows_are_refused(model):
    with pytest.raises(ModelError, match=r"sample_kwargs has 'target_accept'"):
        pb.simuk.adapt(simuk.SBC(model, sample_kwargs={"target_accept": 0.9}))
    with pytest.raises(ModelError, match="expected 'smc', 'ibis'"):
        pb.simuk.adapt(calibration(model, 2), sampler="nuts")
