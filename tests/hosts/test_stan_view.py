"""``pb.stan``: CmdStan's names and files, read back by CmdStanPy and ArviZ."""

import numpy as np
import pytest
import xarray as xr

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.results.inference_data import as_inference_data

RNG = np.random.default_rng(0)


@pytest.fixture
def idata():
    dims = ["chain", "draw"]
    posterior = xr.Dataset(
        {
            "tau": (dims, RNG.normal(size=(2, 30))),
            "B": ([*dims, "i", "j"], RNG.normal(size=(2, 30, 2, 3))),
            "y_rep": ([*dims, "n"], RNG.integers(0, 5, size=(2, 30, 4))),
        }
    )
    stats = xr.Dataset({"lp": (dims, RNG.normal(size=(2, 30))), "beta": (["chain", "stage"], np.ones((2, 3)))})
    pointwise = xr.Dataset({"y": ([*dims, "n"], RNG.normal(size=(2, 30, 4)))})
    return as_inference_data({"posterior": posterior, "sample_stats": stats, "log_likelihood": pointwise})


def test_variables_and_columns(idata):
    fit = pb.stan.StanFit(idata, name="eight schools")
    assert (fit.chains, fit.num_draws_sampling) == (2, 30)
    assert fit.column_names[:6] == ("lp__", "accept_stat__", "tau", "B.1.1", "B.2.1", "B.1.2")
    matrix = idata["posterior"]["B"].values
    np.testing.assert_array_equal(fit.stan_variable("B"), matrix.reshape(60, 2, 3))
    np.testing.assert_array_equal(fit.draws()[:, 1, fit.column_names.index("B.2.1")], matrix[1, :, 1, 0])
    np.testing.assert_array_equal(fit.draws(concat_chains=True)[30], fit.draws()[0, 1])
    np.testing.assert_array_equal(fit.method_variables()["lp__"], idata["sample_stats"]["lp"].values.T)
    with pytest.raises(ModelError, match="unknown variable 'b'; known are lp__"):
        fit.draws_pd("b")
    table = fit.draws_pd("B")
    assert list(table.columns) == [f"B[{i},{j}]" for j in (1, 2, 3) for i in (1, 2)]
    assert set(fit.stan_variables()) == {"tau", "B", "y_rep", "log_lik"}


def test_cmdstanpy_reads_the_files(idata, tmp_path):
    cmdstanpy = pytest.importorskip("cmdstanpy")
    paths = pb.stan.StanFit(idata).save_csvfiles(tmp_path / "csv")
    assert [path.name for path in paths] == ["model_1.csv", "model_2.csv"]
    fit = cmdstanpy.from_csv([str(path) for path in paths])
    ours = pb.stan.StanFit(idata).stan_variables()
    theirs = fit.stan_variables()
    assert set(theirs) == set(ours)
    for name, values in ours.items():
        np.testing.assert_array_equal(theirs[name], values)
    np.testing.assert_array_equal(fit.draws()[:, :, 0], idata["sample_stats"]["lp"].values.T)


def test_bad_input(idata):
    with pytest.raises(ModelError, match="expected a result with a posterior"):
        pb.stan.StanFit({"posterior": 1})
    with pytest.raises(ModelError, match="unknown variable 'mu'"):
        pb.stan.StanFit(idata).stan_variable("mu")
    with pytest.raises(ModelError, match="cannot hold a comma"):
        pb.stan.flat_names("a,b", ())
