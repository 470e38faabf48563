"""Hand-over to CmdStan: cmdstanpy and the program can read the files."""

import json
from pathlib import Path

import numpy as np
import pytest

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.errors import ModelError
from ppl_backends.random import spawn_generators

pytest.importorskip("httpstan", reason="needs the stan extra")

from ppl_backends.handover import cmdstan_inits, cmdstan_metric
from ppl_backends.targets.stan.data import to_json

pytestmark = [pytest.mark.stan, pytest.mark.slow]


def approximation(target):
    return GaussianApproximation(np.full(target.dim, 0.3), cov=np.full(target.dim, 0.01), target=target)


def test_inits_are_points_of_the_approximation(regression):
    inits = cmdstan_inits(approximation(regression), chains=3, seed=1)
    expected = approximation(regression).sample(3, spawn_generators(1, 1)[0])
    bridgestan = pytest.importorskip("bridgestan")
    model = bridgestan.StanModel(str(regression.library), to_json(regression.data), warn=False)
    for init, point in zip(inits, expected, strict=True):
        assert set(init) == {"beta", "tau"}
        np.testing.assert_allclose(model.param_unconstrain_json(to_json(init)), point, atol=1e-12)


def test_inits_of_every_type(language):
    (init,) = cmdstan_inits(approximation(language), chains=1, seed=1)
    values = language.parameters(approximation(language).sample(1, spawn_generators(1, 1)[0]))
    assert set(init) == set(language.program.info["parameters"])
    assert isinstance(init["t"], tuple)
    np.testing.assert_array_equal(init["t"][1], values["t.2"][0])
    np.testing.assert_array_equal(init["c"], values["c"][0])
    assert set(json.loads(to_json(init))["t"]) == {"1", "2"}


def test_metric_of_an_approximation(regression):
    cov = np.diag([1.0, 2.0, 3.0, 4.0]) + 0.1
    approx = GaussianApproximation(np.zeros(4), cov=cov, target=regression)
    np.testing.assert_allclose(cmdstan_metric(approx)["inv_metric"], cov)
    np.testing.assert_allclose(cmdstan_metric(approx, kind="diag_e")["inv_metric"], np.diag(cov))
    with pytest.raises(ModelError, match="expected 'dense_e' or 'diag_e'"):
        cmdstan_metric(approx, kind="unit_e")
    cmdstanpy = pytest.importorskip("cmdstanpy")
    with cmdstanpy.utils.filesystem.temp_metrics(cmdstan_metric(approx), id=1) as path:
        written = json.loads(Path(path).read_text())
    np.testing.assert_allclose(written["inv_metric"], cov)


def test_draws_of_a_posterior(regression):
    import xarray as xr

    from ppl_backends.results.inference_data import as_inference_data

    x = np.random.default_rng(0).normal(size=(2, 50, 4))
    values = regression.parameters(x.reshape(-1, 4))
    posterior = xr.Dataset(
        {
            name: (["chain", "draw", *[f"{name}_dim"] * (v.ndim - 1)], v.reshape(2, 50, *v.shape[1:]))
            for name, v in values.items()
        }
    )
    idata = as_inference_data({"posterior": posterior})
    metric = cmdstan_metric(idata, target=regression)["inv_metric"]
    np.testing.assert_allclose(metric, np.cov(x.reshape(-1, 4), rowvar=False), rtol=1e-9)
    inits = cmdstan_inits(idata, chains=4, seed=2, target=regression)
    taken = regression.unconstrain({name: np.stack([init[name] for init in inits]) for name in inits[0]})
    distance = np.abs(taken[:, None] - x.reshape(1, -1, 4)).max(axis=2).min(axis=1)
    assert distance.max() < 1e-12
    with pytest.raises(ModelError, match="pass target="):
        cmdstan_inits(idata)


SCHOOLS = Path(__file__).parents[2] / "stan_models" / "eight_schools_noncentered.stan"


def hand_over_to(model, data):
    """Sample with CmdStan from draws of SMC; compare with these, and take the evidence of CmdStan's draws."""
    import ppl_backends as pb

    target = pb.as_target(SCHOOLS, data=data)
    idata = pb.sample_smc(target, draws=500, chains=2, random_seed=1, progressbar=False)
    fit = model.sample(
        data,
        inits=cmdstan_inits(idata, chains=2, seed=1, target=target),
        inv_metric=cmdstan_metric(idata, target=target),
        adapt_init_phase=0,
        iter_warmup=150,
        iter_sampling=500,
        chains=2,
        parallel_chains=1,
        seed=1,
        show_progress=False,
    )
    assert fit.metric_type == "dense_e"
    assert sum(fit.divergences) < 20
    for name in ("mu", "tau"):
        draws, known = fit.stan_variable(name), idata["posterior"][name].values
        assert abs(draws.mean() - known.mean()) < 0.3 * known.std()  # five errors of 400 effective draws each
    back, known = pb.evidence(fit, SCHOOLS, data=data, random_seed=1), idata["posterior"].attrs
    error = np.hypot(back.log_evidence_se, known["log_evidence_se"])
    assert abs(back.log_evidence - known["log_evidence"]) < 4.5 * error


def test_cmdstan_goes_on_from_an_approximation():
    """Needs an installed CmdStan, such as ``cmdstanpy.install_cmdstan()`` makes; CMDSTAN names another place."""
    cmdstanpy = pytest.importorskip("cmdstanpy")
    try:
        cmdstanpy.cmdstan_path()
    except ValueError as error:
        pytest.skip(f"no CmdStan is installed: {error}")
    data = json.loads(SCHOOLS.with_suffix(".data.json").read_text())
    hand_over_to(cmdstanpy.CmdStanModel(stan_file=SCHOOLS), data)
