"""Ranks of exact methods are uniform, and those of broken twins are not."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import ppl_backends as pb
from ppl_backends.checks.uniformity import chi_squared, ecdf_p_values, simultaneous_band
from ppl_backends.errors import ModelError

SD = np.array([1.0, 0.5])


@pytest.fixture(scope="module")
def model():
    """Return a model of two parameters in an order that a copy of the model does not keep by itself."""
    with pm.Model() as model:
        mu, delta = pm.Normal("mu", 0, 1.0), pm.Normal("delta", 0, 0.5)
        pm.Normal("y", mu, 1.0, observed=np.zeros(4))
        pm.Normal("z", mu + delta, 0.5, observed=np.zeros(3))
    return model


def exact(target, n, rng, scale=1.0):
    """Draw from the Gaussian posterior."""
    y, z = target.observed_data["y"], target.observed_data["z"]
    design = np.concatenate([np.tile([1.0, 0.0], (4, 1)), np.tile([2.0, 2.0], (3, 1))])
    precision = np.diag(1 / SD**2) + design.T @ design
    mean = np.linalg.solve(precision, design.T @ np.concatenate([y, 2 * z]))
    return mean + scale * np.linalg.solve(np.linalg.cholesky(precision).T, rng.standard_normal((2, n))).T


@pytest.mark.slow
def test_ranks_of_an_exact_method_are_uniform_and_those_of_a_narrow_twin_are_not(model):
    options = {"n": 300, "random_seed": 1, "progressbar": False}
    result = pb.sbc(model, method=exact, **options)
    assert result.p_value > 0.001
    assert result.calibrated
    assert result.failed == result.warned == 0
    assert abs(result.table["coverage_0.9"] - 0.9).max() < 4.5 * np.sqrt(0.09 / 300)
    uniform = replace(result, ranks=np.tile(np.arange(result.n_ranks)[:, None], (1, len(result.labels))))
    for level in (0.5, 0.8, 0.9, 0.95):
        np.testing.assert_allclose(uniform.coverage[f"coverage_{level:g}"], level, rtol=1e-12)
    broken = pb.sbc(model, method=exact, options={"scale": 0.7}, **options)
    assert broken.p_value < 0.001
    assert not broken.calibrated
    np.testing.assert_array_equal(result.truth, broken.truth)
    np.testing.assert_allclose(result.truth.std(axis=0), SD, rtol=0.15)
    groups = result.to_inference_data()
    assert groups["calibration"]["rank"].shape == (300, 2)
    assert pb.plot_sbc(result).shape == (2, 2)
    plt.close("all")
    with pytest.raises(ModelError, match="quantities"):
        pb.plot_sbc(result, ["nu"])


@pytest.mark.slow
def test_methods_by_name_are_calibrated_where_they_are_exact(model):
    result = pb.sbc(model, method="laplace", n=60, random_seed=2, progressbar=False)
    assert result.calibrated
    assert result.labels == ("mu", "delta")


def test_factors_on_exchanged_data_are_those_of_a_new_model():
    x = np.linspace(-2, 2, 30)

    def regression(y):
        with pm.Model() as model:
            beta = pm.Normal("beta", 0, 1, shape=2)
            pm.Bernoulli("y", logit_p=beta[0] + beta[1] * x, observed=y)
        return model

    target = pb.as_target(regression(np.zeros(30, dtype=int)))
    rng = np.random.default_rng(0)
    for y in target.predictive.draw(target.sample_prior(3, rng), rng)["y"]:
        swapped = pb.fit_ep(target.predictive.on({"y": y}), progressbar=False)
        anew = pb.fit_ep(regression(y.astype(int)), progressbar=False)
        np.testing.assert_allclose(swapped.mean, anew.mean, atol=1e-8)
        np.testing.assert_allclose(swapped.log_evidence, anew.log_evidence, atol=1e-8)


def test_data_and_parameters_may_come_from_a_function(model):
    def generate(rng):
        mu, delta = SD * rng.standard_normal(2)
        return {"mu": mu, "delta": delta}, {"y": mu + rng.standard_normal(4), "z": np.zeros(3)}

    with pm.Model() as held:
        data = {name: pm.Data(name, np.zeros(size)) for name, size in (("y", 4), ("z", 3))}
        mu, delta = pm.Normal("mu", 0, 1.0), pm.Normal("delta", 0, 0.5)
        pm.Normal("obs", mu + 0 * delta, 1.0, observed=data["y"])
        pm.Deterministic("unused", data["z"].sum())
    result = pb.sbc(held, method="laplace", generate=generate, n=20, random_seed=1, progressbar=False)
    assert result.ranks.shape == (20, 2)


def test_bad_input_is_refused_in_one_line():
    target = pb.FunctionTarget(1, lambda x: (-0.5 * x[:, 0] ** 2, -x))
    with pytest.raises(ModelError, match="give generate="):
        pb.sbc(target, progressbar=False)
    with pytest.raises(ModelError, match="method="):
        pb.sbc(target, method="magic", progressbar=False)


def test_uniformity_has_its_level():
    rng = np.random.default_rng(0)
    ranks = rng.integers(0, 100, size=(400, 300))
    p_chi, p_ecdf = chi_squared(ranks, 100)[1], ecdf_p_values(ranks, 100)
    for p_value in (p_chi, p_ecdf):
        assert stats.binomtest(int((p_value < 0.1).sum()), 300, 0.1).pvalue > 1e-4
    assert ecdf_p_values(ranks % 80, 100).max() < 1e-6  # of many quantities too
    low, high = simultaneous_band(400, 100, 0.95)
    assert (low <= high).all()
