"""ArviZ works on the results of the samplers: summaries, pictures, leave-one-out, comparison, files."""

import functools
import warnings

import arviz as az
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import ppl_backends as pb
from ppl_backends.targets.factors import Logit, StudentT

matplotlib.use("Agg")
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 2)), RNG.integers(0, 2, size=30)
QUIET = {"random_seed": 1, "progressbar": False}
RUN = {"draws": 200, "chains": 2, **QUIET}


def regression(rows=30):
    return pb.Factors(X[:rows], 0.0, Logit(Y[:rows]), prior_mean=0.0, prior_precision=0.25)


def students():
    """Return a linear regression with Student noise."""
    return pb.Factors(X, 0.0, StudentT(X[:, 0], 4.0, 0.5), prior_mean=0.0, prior_precision=0.25)


def updated():
    return pb.update_smc(pb.sample_ibis(regression(20), **RUN), regression(), log_likelihood=True, **QUIET)


POINTWISE = {
    "sample_smc": lambda: pb.sample_smc(regression(), log_likelihood=True, **RUN),
    "sample_ibis": lambda: pb.sample_ibis(regression(), log_likelihood=True, **RUN),
    "update_smc": updated,
    "sample_importance": lambda: pb.sample_importance(regression(), log_likelihood=True, **RUN),
    "sample_mcmc": lambda: pb.sample_mcmc(regression(), log_likelihood=True, tune=100, **RUN),
    "sample_tempering": lambda: pb.sample_tempering(regression(), log_likelihood=True, tune=100, **RUN),
    "fit_ep, mixture over scales": lambda: with_log_likelihood(pb.fit_ep(hierarchical(), progressbar=False)),
    "fit_vi, low rank": lambda: with_log_likelihood(pb.fit_vi(hierarchical(), family="low_rank", **QUIET)),
    "a mixture of Gaussians": lambda: with_log_likelihood(mixture()),
}
DRAWS = {
    "fit_laplace_em": lambda: pb.fit_laplace_em(students()).to_inference_data(200, 2, random_seed=1),
    "from_draws": lambda: pb.from_draws(POINTWISE["sample_smc"](), regression()).to_inference_data(
        200, 2, random_seed=1
    ),
    "fit_laplace": lambda: pb.fit_laplace(regression(), progressbar=False).to_inference_data(200, 2, random_seed=1),
    "fit_ep": lambda: pb.fit_ep(regression(), progressbar=False).to_inference_data(200, 2, random_seed=1),
    "fit_vi": lambda: pb.fit_vi(regression(), **QUIET).to_inference_data(200, 2, random_seed=1),
    "fit_inla": lambda: pb.fit_inla(regression(), progressbar=False).to_inference_data(200, 2, random_seed=1),
    "sample_abc": lambda: abc(),
    "sample_abc, smc": lambda: abc(method="smc", draws=100, chains=2),
    "sample_smc2": lambda: pb.sample_smc2(series(), **SHORT),
    "sample_pmmh": lambda: pb.sample_pmmh(series(), tune=50, **SHORT),
    "sample_particle_gibbs": lambda: pb.sample_particle_gibbs(series(), n_particles=10, tune=10, **SHORT),
    "select_variables": lambda: pb.select_variables(X=X, y=X[:, 0] + RNG.normal(size=30), family="gaussian", **QUIET),
    "gibbs posterior": lambda: pb.sample_smc(gibbs_posterior(), **RUN),
    "sample_truncated": lambda: pb.sample_truncated(np.eye(2), lower=0.0, random_seed=1).to_inference_data(),
    "fit_gibbs_vi": lambda: pb.fit_gibbs_vi(gibbs_posterior()).to_inference_data(200, 2, random_seed=1),
}
SHORT = {"draws": 50, "chains": 2, **QUIET}


def abc(**options):
    """Return a normal mean by simulation."""
    prior = pb.FunctionTarget(
        1, lambda x: (0 * x[:, 0], 0 * x), lambda x: (stats.norm.logpdf(x[:, 0]), -x), prior_from_uniform=stats.norm.ppf
    )
    return pb.sample_abc(
        prior, simulate=lambda at, rng: rng.normal(at["x"][:, 0], 0.2), observed=1.0, epsilon=0.2, **options, **QUIET
    )


@functools.cache
def series():
    """Return a linear Gaussian series."""
    with pm.Model() as model:
        rho = pm.Uniform("rho", -0.95, 0.95)
        observed = np.array([0.3, 0.9, 0.4, -0.8])
        pb.StateSpace("y", pb.state_space.linear_gaussian(), rho=rho, sigma_x=1.0, sigma_y=0.5, observed=observed)
    return model


@functools.cache
def hierarchical():
    """Return counts of four groups, whose effects have an unknown scale."""
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1)
        effect = pm.Normal("effect", 0, tau, shape=4)
        pm.Poisson("y", pm.math.exp(effect), observed=[3, 1, 2, 7])
    return model


def mixture():
    """Return a mixture of two Gaussians over the coordinates of ``hierarchical``."""
    covs = 0.1 * np.stack([np.eye(5), 2 * np.eye(5)])
    return pb.MixtureApproximation([0.7, 0.3], np.zeros((2, 5)), covs, target=pb.as_target(hierarchical()))


def with_log_likelihood(approximation):
    """Return draws with the pointwise log likelihood that PyMC computes on them."""
    idata = approximation.to_inference_data(200, 2, random_seed=1)
    return pm.compute_log_likelihood(idata, model=hierarchical(), progressbar=False)


def gibbs_posterior():
    return pb.GibbsPosterior((0.0, 1.0), "logistic", X, Y, learning_rate=30.0)


STATE_SPACE = ("sample_smc2", "sample_pmmh", "sample_particle_gibbs")  # whose filters are compiled


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each in STATE_SPACE)) for each in (*POINTWISE, *DRAWS)]
)
def test_arviz_takes_the_result(name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of chains too short to converge, and ArviZ's own of layouts of pictures
        idata = (POINTWISE | DRAWS)[name]()
        table = az.summary(idata)
        assert len(table) >= 1
        assert np.isfinite(table["mean"].astype(float)).all()
        az.plot_trace(idata)
        if len(table) > 1:
            az.plot_pair(idata)
        plt.close("all")
        if name in POINTWISE:
            loo = az.loo(idata)
            assert np.isfinite(loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo)
            compared = az.compare({"one": idata, "other": idata})
            assert set(compared.index) == {"one", "other"}
        idata.to_netcdf(str(tmp_path / "run.nc"))
