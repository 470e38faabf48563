"""States and likelihood at given parameters: against the Kalman filter and smoother, and the warnings of a bad filter."""

import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from types import SimpleNamespace

import arviz as az
import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.results.inference_data import group
from ppl_backends.state_space.particle_filter import _likelihood
from tests.state_space.models import LG_POINT, LINEAR, data, kalman

Y = data("linear_gaussian", 12)
Y[5] = np.nan


def model_of(y, ssm=None, **options):
    with pm.Model(coords={"day": np.arange(len(y)) + 1}) as model:
        rho = pm.Uniform("rho", -1, 1)
        ssm = pb.state_space.linear_gaussian() if ssm is None else ssm
        pb.StateSpace("y", ssm, rho=rho, sigma_x=0.5, sigma_y=0.5, observed=y, **options)
    return model


def smoothed(y, rho=0.9, sigma_x=0.5):
    """Return means of the states given all rows (Rauch, Tung & Striebel)."""
    _, mean, variance = kalman(y)
    for t in range(len(y) - 2, -1, -1):
        gain = variance[t] * rho / (rho**2 * variance[t] + sigma_x**2)
        mean[t] += gain * (mean[t + 1] - rho * mean[t])
    return mean


@pytest.fixture(scope="module")
def found():
    model = model_of(Y, dims="day")
    return pb.particle_filter(model, values={"rho": 0.9}, n_particles=500, draws=50, forecast=2, random_seed=1)


def test_states_and_likelihood_are_those_of_the_kalman_filter(found):
    exact, mean, variance = kalman(Y)
    attrs = found.posterior.attrs
    assert abs(attrs["log_likelihood"] - exact) < 4 * attrs["log_likelihood_se"]
    assert attrs["log_likelihood_se"] < 0.1
    # eight filters of 500 particles: an error of a hundredth of the sd, times four and the loss by weights
    np.testing.assert_allclose(found["filtered"]["mean"], mean, atol=0.04)
    np.testing.assert_allclose(found["filtered"]["sd"], np.sqrt(variance), atol=0.04)
    np.testing.assert_allclose(found["filtered"]["quantile"].sel(level=0.5), mean, atol=0.06)
    # 400 paths: an error of a twentieth of an sd of 0.35, times four
    np.testing.assert_allclose(found.posterior["states"].mean(("chain", "draw")), smoothed(Y), atol=0.08)


def test_the_forecast_goes_on_from_the_last_row(found):
    _, mean, variance = kalman(Y)
    ahead = [(0.9 * mean[-1], 0.81 * variance[-1] + 0.25)]
    ahead.append((0.9 * ahead[0][0], 0.81 * ahead[0][1] + 0.25))
    np.testing.assert_allclose(found["forecast"]["mean"], [m for m, _ in ahead], atol=0.06)
    np.testing.assert_allclose(found["forecast"]["sd"], [np.sqrt(v) for _, v in ahead], atol=0.06)


def test_results_have_the_coordinates_of_the_data(found, tmp_path):
    assert list(found.posterior["states"].dims) == ["chain", "draw", "day"]
    assert list(found.posterior["day"].values) == list(range(1, 13))
    assert list(found["forecast"]["day"].values) == [13, 14]
    assert len(az.summary(found, kind="stats")) == 12
    found.to_netcdf(str(tmp_path / "found.nc"))


def test_smoothing_without_the_density_of_a_transition_says_how_few_paths_there_are():
    y = data("linear_gaussian", 60)
    model = model_of(y, replace(LINEAR, log_transition=None, proposal=None))
    with pytest.warns(SamplerWarning, match=r"smoothed states of the first row are \d different particles of 32"):
        idata = pb.particle_filter(model, values={"rho": 0.9}, n_particles=32, draws=10, chains=4, random_seed=1)
    assert idata.posterior.attrs["smoothing"] == "ancestors"


def test_an_outlier_is_named():
    y = np.array([0.1, 0.2, 30.0, 0.1])
    with pytest.warns(SamplerWarning) as caught:
        found = pb.particle_filter(model_of(y), values={"rho": 0.9}, n_particles=100, method="bootstrap", random_seed=1)
    said = " ".join(str(each.message) for each in caught)
    assert "of 100 particles at row 2 of 'y': increase n_particles, or give the model a proposal=" in said
    assert "is too low by an unknown amount, because that of one filter has variance" in said
    attrs = found.posterior.attrs  # it is far below the exact one, which a standard error of at most one would not say
    assert attrs["log_likelihood"] < kalman(y)[0] - 10
    assert attrs["log_likelihood_se"] == np.inf


def test_filters_without_weight_are_refused_by_row():
    with pytest.raises(ModelError, match="row 1 of 'y' has density zero at every particle of every filter"):
        pb.particle_filter(
            model_of(np.array([0.1, 1e200])), values={"rho": 0.9}, n_particles=16, method="bootstrap", random_seed=1
        )


def test_what_is_missing_is_said():
    prior = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
    with pytest.raises(ModelError, match="no likelihood of a state-space model"):
        pb.particle_filter(prior, values={"x": [0.0]})
    with pytest.raises(ModelError, match="values"):
        pb.particle_filter(model_of(Y), values={"r": 0.9})


def test_the_same_seed_gives_the_same_result():
    def run():
        found = pb.particle_filter(model_of(Y[:4]), values=dict(rho=LG_POINT["rho"]), n_particles=16, random_seed=3)
        return found.posterior["states"].values

    np.testing.assert_array_equal(run(), run())


def same_bits(one, other):
    for name in ("posterior", "filtered", "sample_stats"):
        for variable in group(one, name).data_vars:
            np.testing.assert_array_equal(group(one, name)[variable], group(other, name)[variable], err_msg=variable)
    for figure in ("log_likelihood", "log_likelihood_se", "log_likelihood_variance", "warnings"):
        assert one.posterior.attrs[figure] == other.posterior.attrs[figure]


@pytest.mark.parametrize("method", ["guided", "sqmc"])
def test_an_executor_gives_the_same_bits(method, monkeypatch):
    module = sys.modules["ppl_backends.state_space.particle_filter"]
    monkeypatch.setattr(module, "GROUP_PARTICLES", 190)  # two filters, and one with a copy
    monkeypatch.setattr(module, "PATHS_A_JOB", 2)
    options = {"values": {"rho": 0.9}, "n_particles": 128, "draws": 5, "chains": 3, "method": method, "random_seed": 1}
    with ThreadPoolExecutor(2) as pool:
        over = pb.particle_filter(model_of(Y, dims="day"), executor=pool, **options)
    same_bits(over, pb.particle_filter(model_of(Y, dims="day"), **options))


def test_spawned_workers_give_the_same_bits():
    model = model_of(data("linear_gaussian", 60), replace(LINEAR, proposal=None))
    options = {"values": {"rho": 0.9}, "n_particles": 1000, "draws": 30, "chains": 4, "forecast": 1, "random_seed": 1}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        over = pb.particle_filter(model, executor=pool, **options)
    same_bits(over, pb.particle_filter(model, **options))


def test_an_executor_that_is_none_is_refused():
    with pytest.raises(ModelError, match=r"^executor=5: expected "):
        pb.particle_filter(model_of(Y[:4]), values={"rho": 0.9}, executor=5)


def test_the_error_of_few_filters_allows_for_the_spread_of_skewed_likelihoods():
    """Eight logs N(−σ²/2, σ²) of unbiased likelihoods; with σ² = 2, 7 % of spreads were below a quarter of the error."""
    rng, far = np.random.default_rng(1), []
    for logs in -1.0 + np.sqrt(2.0) * rng.standard_normal((4000, 8)):
        found = _likelihood(SimpleNamespace(increments=logs[None]), SimpleNamespace(name="y"), 100)
        far.append(not found.alarms and abs(found.log_mean) > 4 * found.se)
    assert np.mean(far) < 0.03
