"""Generated quantities and data of a Stan program go to the groups that were named, in every result."""

import pickle
import warnings

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy import stats

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.results.inference_data import group, group_names
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.stan.groups import Groups

PROGRAM = """
data { int N; vector[N] x; array[N] int y; }
parameters { real a; real b; }
transformed parameters { vector[N] eta = a + b * x; }
model { a ~ normal(0, 2); b ~ normal(0, 2); y ~ poisson_log(eta); }
generated quantities {
  array[N] int y_rep;
  array[2] int y_new;
  vector[N] ll;
  for (n in 1:N) {
    y_rep[n] = poisson_log_rng(eta[n]);
    ll[n] = poisson_log_lpmf(y[n] | eta[n]);
  }
  for (m in 1:2) y_new[m] = poisson_log_rng(a);
}
"""
X = np.linspace(-1, 1, 20)
Y = np.random.default_rng(0).poisson(np.exp(1 + X))
DATA = {"N": 20, "x": X, "y": Y}
NAMED = {
    "posterior_predictive": {"y": "y_rep"},
    "predictions": "y_new",
    "log_likelihood": {"y": "ll"},
    "observed_data": "y",
    "constant_data": ["x"],
    "dims": {"y": ["row"], "y_new": ["new"], "x": ["row"]},
    "coords": {"row": np.arange(100, 120)},
}
QUIET = {"random_seed": 1, "progressbar": False}


def test_names_that_the_program_does_not_have_are_refused():
    program = (["a", "eta", "y_rep"], ["a"], ["x", "y"], "model.stan")
    for groups, said in (
        (Groups(posterior_predictive="yrep"), "posterior_predictive='yrep' is not a variable of the program"),
        (Groups(predictions=["a"]), "predictions='a' is a parameter"),
        (Groups(log_likelihood="y_rep", predictions="y_rep"), "'y_rep' is in predictions and in log_likelihood"),
        (Groups(observed_data="z"), r"observed_data='z' is not in the data \(x, y\)"),
        (
            Groups(predictions="y_rep", quantities=False),
            "quantities=False leaves out the quantities that predictions names",
        ),
        (Groups(posterior_predictive={"y": 3}), "expected a name, several, or a dict"),
    ):
        with pytest.raises(ModelError, match=said):
            groups.check(*program)
    Groups(posterior_predictive="y_rep", observed_data={"z": [1, 2]}).check(*program)


def test_data_are_named_or_given():
    arrays = {"x": np.zeros(2), "y": np.ones(2)}
    assert list(Groups().data_of("observed_data", arrays, ["y"])) == ["y"]
    assert list(Groups(observed_data="x").data_of("observed_data", arrays, ["y"])) == ["x"]
    given = Groups(observed_data={"z": [1, 2]}).data_of("observed_data", arrays, ["y"])
    np.testing.assert_array_equal(given["z"], [1, 2])


@pytest.fixture(scope="module")
def target():
    pytest.importorskip("httpstan", reason="needs the stan extra")
    return as_target(PROGRAM, DATA, cores=1, **NAMED)


def results(target):
    """Results of approximations and of samplers."""
    laplace = pb.fit_laplace(target, progressbar=False)
    yield laplace.to_inference_data(400, 2, random_seed=1)
    yield pb.sample_importance(target, approximation=laplace, draws=400, chains=2, **QUIET)
    yield pb.sample_mcmc(target, draws=400, chains=2, tune=100, **QUIET)


@pytest.mark.stan
@pytest.mark.slow
def test_groups_of_every_result(target):
    for idata in results(pickle.loads(pickle.dumps(target))):
        assert set(group(idata, "posterior").data_vars) == {"a", "b", "eta"}
        assert {"posterior_predictive", "predictions", "log_likelihood"} <= set(group_names(idata))
        pointwise, drawn = group(idata, "log_likelihood")["y"], group(idata, "posterior_predictive")["y"]
        assert pointwise.dims == drawn.dims == ("chain", "draw", "row")
        assert drawn.dtype.kind == "i"
        np.testing.assert_array_equal(drawn["row"], np.arange(100, 120))
        rate = np.exp(group(idata, "posterior")["eta"].values)
        np.testing.assert_allclose(pointwise, stats.poisson.logpmf(Y, rate), atol=1e-9)
        # 800 draws each: five standard errors of the mean of the predictions.
        error = np.sqrt((rate + rate.var(axis=(0, 1))).mean(axis=(0, 1)) / 400)
        np.testing.assert_array_less(abs(drawn.values.mean(axis=(0, 1)) - rate.mean(axis=(0, 1))), 5 * error)
        assert group(idata, "predictions")["y_new"].dims == ("chain", "draw", "new")
        assert list(group(idata, "observed_data").data_vars) == ["y"]
        assert list(group(idata, "constant_data").data_vars) == ["x"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ's own
        assert np.isfinite(az.loo(idata).pareto_k if hasattr(az.loo(idata), "pareto_k") else 0).all()
        (az.plot_ppc if hasattr(az, "plot_ppc") else az.plot_ppc_dist)(idata)
        az.plot_loo_pit(idata, **({"y": "y"} if hasattr(az, "plot_ppc") else {}))
    plt.close("all")


@pytest.mark.stan
@pytest.mark.slow
def test_samplers_take_the_names(target):
    assert target.program is not None
    idata = pb.sample_mcmc(PROGRAM, data=DATA, draws=500, chains=1, tune=200, log_likelihood="ll", **QUIET)
    assert list(group(idata, "log_likelihood").data_vars) == ["ll"]
    assert "y_rep" in group(idata, "posterior")
    kept = as_target(PROGRAM, DATA, log_likelihood=False)
    assert "log_likelihood" not in kept.generated_groups
    with pytest.raises(ModelError, match="log_likelihood='lll' is not a variable"):
        pb.sample_mcmc(PROGRAM, data=DATA, log_likelihood="lll", **QUIET)


@pytest.mark.stan
def test_quantities_of_many_rows_are_left_out_or_refused_before_sampling(target):
    lean = as_target(PROGRAM, DATA, quantities=False)
    assert list(lean.constrain(np.zeros((2, 2)))) == ["a", "b"]
    assert (lean.values_per_draw, target.values_per_draw) == (2, 2 + 20 + 20 + 2 + 20)
    with pytest.raises(ModelError, match=r"1.02e\+03 TB of memory are needed for 64 values a draw .*quantities=False"):
        pb.sample_mcmc(target, draws=10**12, chains=1, **QUIET)


@pytest.mark.stan
@pytest.mark.slow
def test_arviz_reads_the_same_groups_from_the_files_of_cmdstan(target, tmp_path):
    cmdstanpy = pytest.importorskip("cmdstanpy")
    idata = pb.sample_mcmc(target, draws=300, chains=2, tune=200, **QUIET)
    pb.stan.StanFit(idata).save_csvfiles(tmp_path)
    theirs = az.from_cmdstanpy(
        cmdstanpy.from_csv(str(tmp_path)), posterior_predictive=["y"], predictions=["y_new"], log_likelihood=["log_lik"]
    )
    for name, variable in (("posterior_predictive", "y"), ("predictions", "y_new")):
        np.testing.assert_array_equal(group(theirs, name)[variable], group(idata, name)[variable])
    np.testing.assert_allclose(group(theirs, "log_likelihood")["log_lik"], group(idata, "log_likelihood")["y"])
