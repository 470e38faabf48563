"""Evidences from draws of PyMC, CmdStanPy and Bambi: names, transforms, and missing parameters."""

import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning

Y = np.array([0.3, 1.9, 0.8, 2.5, 1.4])


@pytest.fixture(scope="module")
def model():
    """Return a mean and a scale, with dims: conjugate, so that the evidence is known."""
    with pm.Model(coords={"group": ["a"]}) as built:
        precision = pm.Gamma("precision", 2.0, 2.0)
        mu = pm.Normal("mu", 0.0, 1 / pm.math.sqrt(0.5 * precision), dims="group")
        pm.Normal("y", mu[0], 1 / pm.math.sqrt(precision), observed=Y)
    return built


def exact():
    """Log evidence: a multivariate t with 4 degrees of freedom."""
    return stats.multivariate_t(np.zeros(5), np.eye(5) + np.ones((5, 5)) / 0.5, df=4).logpdf(Y)


def conjugate_draws(rng, chains=4, draws=500):
    """Return exact draws of precision and mean."""
    n, kappa = len(Y), 0.5 + len(Y)
    centre = Y.sum() / kappa
    rate = 2.0 + 0.5 * ((Y**2).sum() - kappa * centre**2)
    precision = rng.gamma(2.0 + n / 2, 1 / rate, size=(chains, draws))
    mu = centre + rng.standard_normal((chains, draws)) / np.sqrt(kappa * precision)
    return {"precision": precision, "mu": mu[..., None]}


def test_draws_of_pymc(model):
    idata = pm.sample(500, tune=300, chains=4, cores=1, random_seed=1, model=model, progressbar=False)
    found = pb.evidence(idata, model, random_seed=1)
    assert found.trusted
    assert abs(found.log_evidence - exact()) < 4.5 * found.log_evidence_se + 1e-4
    assert found.log_evidence_se < 0.02
    assert found.log_prior_normalizer == 0.0
    assert found.diagnostics["log_density_mismatch"] < 1e-6
    with model:
        assert pb.evidence(idata, random_seed=1) == found


def test_arrays_by_name_and_the_order_of_their_names_do_not_matter(model):
    draws = conjugate_draws(np.random.default_rng(0))
    found = pb.evidence(draws, model, method="bridge", random_seed=1)
    assert abs(found.log_evidence - exact()) < 4.5 * found.log_evidence_se
    assert pb.evidence(dict(reversed(draws.items())), model, method="bridge", random_seed=1) == found


def test_a_missing_variable_is_named(model):
    draws = conjugate_draws(np.random.default_rng(0))
    with pytest.raises(ModelError, match="'precision'"):
        pb.evidence({"mu": draws["mu"]}, model)


def test_discrete_variables_are_refused_by_name():
    with pm.Model() as discrete:
        k = pm.Poisson("k", 3.0)
        pm.Normal("y", k, 1.0, observed=2.0)
    with pytest.raises(ModelError, match="'k' is discrete"):
        pb.evidence({"k": np.ones((4, 100))}, discrete)


def test_draws_at_the_edge_of_the_support_are_named(model):
    draws = conjugate_draws(np.random.default_rng(0))
    with pytest.raises(ModelError, match=r"precision.* lies at or beyond the edge of its support"):
        pb.evidence(draws | {"precision": np.zeros_like(draws["precision"])}, model)


def test_other_data_of_the_same_model_are_noticed(model):
    idata = pm.sample(500, tune=300, chains=4, cores=1, random_seed=1, model=model, progressbar=False)
    with pm.Model(coords={"group": ["a"]}) as other:
        precision = pm.Gamma("precision", 2.0, 2.0)
        mu = pm.Normal("mu", 0.0, 1 / pm.math.sqrt(0.5 * precision), dims="group")
        pm.Normal("y", mu[0], 1 / pm.math.sqrt(precision), observed=Y + 0.7)
    with pytest.warns(SamplerWarning, match="may be of another model or other data"):
        assert not pb.evidence(idata, other, random_seed=1).trusted


CONFIG = """# stan_version_major = 2
# stan_version_minor = 35
# stan_version_patch = 0
# model = conjugate_model
# method = sample (Default)
#   sample
#     num_samples = {draws}
#     num_warmup = 100
#     save_warmup = 0 (Default)
#     thin = 1 (Default)
#     algorithm = hmc (Default)
#       hmc
#         engine = nuts (Default)
#           nuts
#             max_depth = 10 (Default)
#         metric = diag_e (Default)
# id = {chain}
"""
ADAPTATION = """# Adaptation terminated
# Step size = 0.8
# Diagonal elements of inverse mass matrix:
# 1, 1
"""
TIMES = """#
#  Elapsed Time: 0.1 seconds (Warm-up)
#                0.1 seconds (Sampling)
#                0.2 seconds (Total)
#
"""
STATS = ("lp__", "accept_stat__", "stepsize__", "treedepth__", "n_leapfrog__", "divergent__", "energy__")


def cmdstan_result(folder, draws):
    """Return the draws as CmdStan writes them, read by CmdStanPy."""
    cmdstanpy = pytest.importorskip("cmdstanpy")
    paths = []
    for chain, (precision, mu) in enumerate(zip(draws["precision"], draws["mu"], strict=True)):
        rows = np.column_stack([np.zeros((len(mu), 7)), precision, mu])
        lines = [",".join(map(str, row)) for row in rows]
        header = ",".join([*STATS, "precision", "mu.1"])
        paths.append(folder / f"conjugate-{chain + 1}.csv")
        config = CONFIG.format(draws=len(mu), chain=chain + 1)
        paths[-1].write_text(config + header + "\n" + ADAPTATION + "\n".join(lines) + "\n" + TIMES)
    return cmdstanpy.from_csv([str(path) for path in paths])


def test_a_cmdstan_result(model, tmp_path):
    fit = cmdstan_result(tmp_path, conjugate_draws(np.random.default_rng(0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplerWarning)  # its lp__ is zero
        found, again = (pb.evidence(source, model, random_seed=1) for source in (fit, az.from_cmdstanpy(fit)))
    assert abs(found.log_evidence - exact()) < 4.5 * found.log_evidence_se
    assert found == again
    assert "may be of another model" in found.reasons[0]
