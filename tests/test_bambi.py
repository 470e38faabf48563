"""Bambi's models, with the names that it gives: every method reads them, and all agree."""

import warnings

import numpy as np
import pandas as pd
import pytest

import ppl_backends as pb
from ppl_backends.errors import SamplerWarning
from ppl_backends.results.inference_data import group

bmb = pytest.importorskip("bambi")

OPTIONS = {"random_seed": 1, "progressbar": False}


def group_effects():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"g": np.repeat(list("abcdef"), 15), "x": rng.normal(size=90)})
    effect = dict(zip("abcdef", 0.6 * rng.normal(size=6), strict=True))
    frame["y"] = rng.poisson(np.exp(0.8 + 0.4 * frame["x"] + frame["g"].map(effect)))
    return bmb.Model("y ~ x + (1|g)", frame, family="poisson")


def negative_binomial():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.normal(size=80)})
    frame["y"] = rng.negative_binomial(3.0, 3.0 / (3.0 + np.exp(1 + 0.5 * frame["x"])))
    return bmb.Model("y ~ x", frame, family="negativebinomial")


def splines_and_interactions():
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"x": rng.uniform(size=70), "z": rng.normal(size=70), "u": rng.normal(size=70)})
    frame["y"] = np.sin(5 * frame["x"]) + 0.5 * frame["z"] * frame["u"] + 0.3 * rng.normal(size=70)
    return bmb.Model("y ~ bs(x, df=4) + z:u", frame)


MODELS = {
    "group effects": (group_effects, ["Intercept", "x", "1|g_sigma", "1|g"], "1|g_sigma_log__"),
    "negative binomial": (negative_binomial, ["Intercept", "x", "alpha"], "alpha_log__"),
    "splines": (splines_and_interactions, ["Intercept", "bs(x, df=4)", "z:u", "sigma"], "sigma_log__"),
}


def moments(idata, names):
    """Return means and standard deviations of the variables named, one after the other."""
    posterior = group(idata, "posterior")
    draws = [posterior[name].values.reshape(posterior.sizes["chain"] * posterior.sizes["draw"], -1) for name in names]
    draws = np.concatenate(draws, axis=1)
    return draws.mean(axis=0), draws.std(axis=0)


@pytest.mark.parametrize(
    "kind", [pytest.param("negative binomial", marks=pytest.mark.slow), "group effects", "splines"]
)
def test_methods_agree_on_models_of_bambi(kind, tmp_path):
    make, names, hyper = MODELS[kind]
    target = pb.as_target(make())
    assert target.factors.hyper_names == (hyper,)

    ep = pb.fit_ep(target)
    reference = pb.sample_importance(target, approximation=ep, draws=2048, chains=4, **OPTIONS)
    assert group(reference, "posterior").attrs["log_evidence_trusted"] == 1
    mean, sd = moments(reference, names)

    approximate = ep.to_inference_data(draws=20_000, random_seed=2)
    found, spread = moments(approximate, names)
    np.testing.assert_allclose((found - mean) / sd, 0, atol=0.1)
    np.testing.assert_allclose(spread / sd, 1, atol=0.12)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplerWarning)  # its verdict is not what is looked at
        smc = pb.sample_smc(target, draws=1000, chains=2, initial=ep, **OPTIONS)
    found, spread = moments(smc, names)
    np.testing.assert_allclose((found - mean) / sd, 0, atol=5 / np.sqrt(500))
    np.testing.assert_allclose(spread / sd, 1, atol=0.2)
    evidences = [group(idata, "posterior").attrs for idata in (smc, reference)]
    error = np.hypot(*(attrs["log_evidence_se"] for attrs in evidences))
    assert abs(np.subtract(*(attrs["log_evidence"] for attrs in evidences))) < 5 * max(error, 0.005)

    smc.to_netcdf(str(tmp_path / "run.nc"))


def test_group_effects_keep_their_dims():
    idata = pb.sample_importance(group_effects(), draws=256, chains=2, **OPTIONS)
    effect = group(idata, "posterior")["1|g"]
    assert list(effect.dims[2:]) == ["g__factor_dim"]
    assert list(effect["g__factor_dim"].values) == list("abcdef")
    assert group(idata, "posterior").attrs["approximation"] == "ep"
