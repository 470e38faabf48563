"""ArviZ works on what the samplers return: summaries, pictures, leave-one-out, comparison, files."""

import warnings

import arviz as az
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.targets.factors import Logit

matplotlib.use("Agg")
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 2)), RNG.integers(0, 2, size=30)
QUIET = {"random_seed": 1, "progressbar": False}
RUN = {"draws": 200, "chains": 2, **QUIET}


def regression(rows=30):
    return pb.Factors(X[:rows], 0.0, Logit(Y[:rows]), prior_mean=0.0, prior_precision=0.25)


def updated():
    return pb.update_smc(pb.sample_ibis(regression(20), **RUN), regression(), log_likelihood=True, **QUIET)


POINTWISE = {
    "sample_smc": lambda: pb.sample_smc(regression(), log_likelihood=True, **RUN),
    "sample_ibis": lambda: pb.sample_ibis(regression(), log_likelihood=True, **RUN),
    "update_smc": updated,
    "sample_importance": lambda: pb.sample_importance(regression(), log_likelihood=True, **RUN),
    "sample_mcmc": lambda: pb.sample_mcmc(regression(), log_likelihood=True, tune=100, **RUN),
}
DRAWS = {
    "fit_laplace": lambda: pb.fit_laplace(regression(), progressbar=False).to_inference_data(200, 2, random_seed=1),
    "fit_ep": lambda: pb.fit_ep(regression(), progressbar=False).to_inference_data(200, 2, random_seed=1),
    "fit_vi": lambda: pb.fit_vi(regression(), **QUIET).to_inference_data(200, 2, random_seed=1),
}


@pytest.mark.parametrize("name", [*POINTWISE, *DRAWS])
def test_arviz_takes_the_result(name, tmp_path):
    idata = (POINTWISE | DRAWS)[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ's own: short chains, layouts of pictures
        table = az.summary(idata)
        assert len(table) == 2
        assert np.isfinite(table["mean"].astype(float)).all()
        az.plot_trace(idata)
        az.plot_pair(idata)
        plt.close("all")
        if name in POINTWISE:
            loo = az.loo(idata)
            assert np.isfinite(loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo)
            compared = az.compare({"one": idata, "other": idata})
            assert set(compared.index) == {"one", "other"}
        idata.to_netcdf(str(tmp_path / "run.nc"))
