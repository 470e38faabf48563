"""``pb.pymc``: results have the names, dims and groups of ``pm.sample``; run arguments are used or refused."""

import inspect
import logging
import warnings

import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.pymc.methods import METHODS, backend_of, seed_of
from ppl_backends.pymc.samplers import run_signature
from ppl_backends.results.inference_data import group, group_names

QUIET = {"progressbar": False, "random_seed": 1}
Y = np.random.default_rng(0).normal(1.0, 2.0, size=12)
KINDS = ("SMC", "IBIS", "Importance", "MCMC", "ABC", "SMC2", "PMMH", "ParticleGibbs", "Laplace", "EP", "VI", "INLA")


@pytest.fixture(scope="module")
def model():
    """Return dims, a Deterministic, a container, a simplex, missing values and two observed variables."""
    missing = np.ma.masked_invalid([0.5, np.nan, 1.5])
    with pm.Model(coords={"k": ["a", "b"], "row": np.arange(12)}) as model:
        x = pm.Data("x", np.linspace(-1, 1, 12), dims="row")
        beta = pm.Normal("beta", dims="k")
        sigma = pm.HalfNormal("sigma")
        pm.Dirichlet("share", np.ones(3))
        pm.Deterministic("twice", 2 * beta, dims="k")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyMC says that it imputes
            pm.Normal("partly", beta[0], 1.0, observed=missing)
        pm.Normal("y", beta[0] + beta[1] * x, sigma, observed=Y, dims="row")
    return model


@pytest.fixture(scope="module")
def references(model):
    """Return the results of ``pm.sample`` and of this package."""
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = pm.sample(
            step=pm.Metropolis(),
            draws=10,
            tune=10,
            chains=2,
            cores=1,
            compute_convergence_checks=False,
            idata_kwargs={"log_likelihood": True},
            **QUIET,
        )
        ours = pb.pymc.sample(
            method="importance",
            draws=500,
            chains=2,
            compute_convergence_checks=False,
            idata_kwargs={"log_likelihood": True},
            **QUIET,
        )
    return theirs, ours


@pytest.mark.slow
@pytest.mark.parametrize("name", ["posterior", "observed_data", "constant_data", "log_likelihood"])
def test_groups_are_those_of_pm_sample(references, name):
    theirs, ours = (group(idata, name) for idata in references)
    assert set(ours.data_vars) == set(theirs.data_vars)
    for variable in theirs.data_vars:
        assert ours[variable].dims == theirs[variable].dims, variable
        assert ours[variable].dtype.kind == theirs[variable].dtype.kind, variable
        for dim in set(theirs[variable].dims) - {"chain", "draw"}:
            np.testing.assert_array_equal(ours[dim].values, theirs[dim].values)


@pytest.mark.slow
def test_pymc_predicts_from_the_result(references, model):
    with model:
        drawn = pm.sample_posterior_predictive(references[1], var_names=["y"], **QUIET)
    assert group(drawn, "posterior_predictive")["y"].dims == ("chain", "draw", "row")


@pytest.fixture(scope="module")
def normal():
    """Return a model with a known posterior: mean 2/3 · 1.5, variance 1/3."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Normal("y", mu, 1, observed=[1.0, 2.0])
    return model


@pytest.mark.parametrize(
    "method",
    ["smc", pytest.param("ibis", marks=pytest.mark.slow), "importance", "mcmc", "laplace", "ep", "vi", "inla"],
)
def test_every_method_draws_from_the_posterior(normal, method):
    idata = pb.pymc.sample(normal, method=method, draws=400, chains=2, **QUIET)
    draws = group(idata, "posterior")["mu"].values
    assert draws.shape == (2, 400)
    assert abs(draws.mean() - 1.0) < 5 * (1 / 3) ** 0.5 / 300**0.5
    assert abs(draws.std() / (1 / 3) ** 0.5 - 1) < 5 / 600**0.5
    assert "observed_data" in group_names(idata)


def test_seeds_of_pymc(normal):
    draws = [
        group(pb.pymc.sample(normal, method="laplace", draws=5, progressbar=False, random_seed=seed), "posterior")["mu"]
        for seed in ([3, 4], np.array([3, 4]), np.int64(7), 7)
    ]
    np.testing.assert_array_equal(draws[0], draws[1])
    np.testing.assert_array_equal(draws[2], draws[3])
    assert seed_of(np.random.RandomState(1)) == seed_of(np.random.RandomState(1))


def test_variables_and_pointwise_groups_are_chosen(normal):
    wanted = {"log_likelihood": True, "log_prior": True}
    idata = pb.pymc.sample(normal, method="laplace", draws=5, var_names=["mu"], idata_kwargs=wanted, **QUIET)
    assert {"log_likelihood", "log_prior"} <= set(group_names(idata))
    with pytest.raises(ModelError, match="no variable 'nu'"):
        pb.pymc.sample(normal, method="laplace", draws=5, var_names=["nu"], **QUIET)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"discard_tuned_samples": False}, "draws of the tuning are not kept"),
        ({"keep_warning_stat": True}, "no such statistic"),
        ({"initvals": {"mu": 1.0}}, "starts from a distribution"),
        ({"idata_kwargs": {"coords": {}}}, "known are log_likelihood and log_prior"),
    ],
)
def test_what_cannot_be_honoured_is_refused(normal, run, said):
    with pytest.raises(ModelError, match=said):
        pb.pymc.SMC().sample_from_init(model=normal, **run)


def test_warm_up_that_is_not_used_is_logged(normal, caplog):
    with caplog.at_level(logging.INFO, logger="pymc"):
        pb.pymc.Laplace().sample_from_init(model=normal, tune=7, draws=8, chains=1, **QUIET)
    assert "tune=7 is not used" in caplog.text


def test_modes_of_pytensor_are_backends():
    from pytensor.compile.mode import get_mode

    assert backend_of(None) is None
    assert backend_of({"mode": None}) is None
    assert [backend_of({"mode": name}) for name in ("JAX", "NUMBA", "c", "FAST_RUN")] == ["jax", "numba", "c", "c"]
    assert [backend_of({"mode": get_mode(name)}) for name in ("JAX", "NUMBA", "CVM")] == ["jax", "numba", "c"]
    with pytest.raises(ModelError, match="only mode is known"):
        backend_of({"on_unused_input": "ignore"})
    with pytest.raises(ModelError, match="expected 'JAX', 'NUMBA' or 'C'"):
        backend_of({"mode": "FAST"})


@pytest.mark.parametrize("kind", KINDS)
def test_samplers_hold_configuration_alone(kind):
    sampler = getattr(pb.pymc, kind)()
    assert not hasattr(sampler, "model")
    parameters = inspect.signature(sampler.sample_from_init).parameters
    assert set(parameters) <= set(inspect.signature(pm.sample).parameters)
    assert all(each.kind is each.KEYWORD_ONLY for each in parameters.values())
    assert sampler.method in METHODS
    with pytest.raises(ModelError, match=r"give draws to pm\.sample"):
        type(sampler)(draws=3)
    with pytest.raises(ModelError, match="no option 'colour'"):
        type(sampler)(colour=1)


def test_options_are_checked_before_a_model_is_there():
    with pytest.raises(ModelError, match="qmc=3"):
        pb.pymc.Importance(qmc=3)


class _Contract:
    def sample_from_init(self, *, model=None, draws=1000, chains=None, blas_cores="auto", colour="red"):
        """Take a run argument that this package does not know."""


def test_the_signature_is_the_installed_contracts(normal, monkeypatch):
    """A later contract may forward other arguments: its signature is taken over, and unknown values are refused."""
    assert set(run_signature(_Contract).parameters) == {"self", "model", "draws", "chains", "blas_cores", "colour"}
    monkeypatch.setattr("ppl_backends.pymc.samplers._SIGNATURE", run_signature(_Contract))
    sampler = pb.pymc.Laplace()
    assert group(sampler.sample_from_init(model=normal, draws=3, chains=1), "posterior").sizes["draw"] == 3
    with pytest.raises(ModelError, match="colour='blue'"):
        sampler.sample_from_init(model=normal, draws=3, colour="blue")
    with pytest.raises(TypeError):
        sampler.sample_from_init(model=normal, tune=3)
    # This contract has no compile_kwargs, so they are an option of the sampler.
    assert pb.pymc.Laplace(compile_kwargs={"mode": "NUMBA"}).options == {"backend": "numba"}
    assert pb.pymc.Laplace(compile_kwargs={}).options == {}
    with pytest.raises(ModelError, match="give one of them"):
        pb.pymc.Laplace(compile_kwargs={"mode": "NUMBA"}, backend="jax")


def test_bad_calls(normal):
    with pytest.raises(ModelError, match="expected 'smc', 'ibis'"):
        pb.pymc.sample(normal, method="nuts")
    with pytest.raises(ModelError, match=r"write method=SMC\("):
        pb.pymc.sample(normal, method=pb.pymc.SMC(), kernel="hmc")
    with pytest.raises(ModelError, match="no model"):
        pb.pymc.sample(method="smc")
    with pm.Model() as empty:
        pm.Data("x", 1.0)
    with pytest.raises(ModelError, match="no free variables"):
        pb.pymc.sample(empty)


@pytest.mark.skipif(not pb.pymc.HAS_CONTRACT, reason="the installed PyMC has no pm.sample(sampler=...)")
def test_pm_sample_takes_a_sampler(normal):
    with normal:
        idata = pm.sample(sampler=pb.pymc.Importance(), draws=50, tune=50, chains=2, **QUIET)
    assert dict(group(idata, "posterior").sizes) == {"chain": 2, "draw": 50}
