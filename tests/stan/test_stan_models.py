"""The programs of ``stan_models`` and of the reference posteriors: properties that all of them have."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import ppl_backends as pb
from ppl_backends.results.inference_data import group
from ppl_backends.targets.stan.program import StanProgram
from ppl_backends.targets.stan.split.routes import find_split

pytest.importorskip("httpstan", reason="needs stanc, from the stan extra")

MODELS = Path(__file__).parents[2] / "stan_models"
POSTERIORS = Path(__file__).parent / "posteriordb"

OBSERVED = {"lotka_volterra": {"y", "y_init"}}
IN_POSTERIORS = {
    "arK-arK": "y",
    "earnings-earn_height": "earn",
    "earnings-logearn_interaction": "earn",
    "eight_schools-eight_schools_noncentered": "y",
    "garch-garch11": "y",
    "gp_pois_regr-gp_regr": "y",
    "hudson_lynx_hare-lotka_volterra": "y y_init",
    "kidiq-kidscore_interaction": "kid_score",
    "kidiq-kidscore_momiq": "kid_score",
    "low_dim_gauss_mix-low_dim_gauss_mix": "y",
    "nes1972-nes": "partyid7",
    "sblrc-blr": "y",
}


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.stan")), ids=lambda path: path.stem)
def test_models_have_data_flag_and_log_lik(path):
    program = StanProgram.from_file(path)
    data = json.loads(path.with_suffix(".data.json").read_text())
    assert set(program.info["inputs"]) == set(data)
    assert data["prior_only"] == 0
    assert program.info["generated quantities"]["log_lik"]["dimensions"] == 1
    assert f"`{path.stem}`" in (MODELS / "README.md").read_text()


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.stan")), ids=lambda path: path.stem)
def test_flag_and_statements_agree_on_what_is_observed(path):
    """The derived split finds the same observed data without looking at the flag."""
    program = StanProgram.from_file(path)
    data = json.loads(path.with_suffix(".data.json").read_text())
    split = find_split(program, data)
    assert split.route == "prior_only"
    derived = find_split(program, data, exclude=["prior_only", "no_observations"])
    assert derived.likelihood_data == split.likelihood_data
    assert set(split.likelihood_data) == OBSERVED.get(path.stem, {"y"})
    assert "prior_only" not in derived.prior_program.split("model {")[1]


@pytest.mark.parametrize("name", IN_POSTERIORS)
def test_reference_posteriors_are_split(name):
    """Their data match the programs, and the references the parameters."""
    program = StanProgram.from_file(POSTERIORS / f"{name}.stan")
    with zipfile.ZipFile(POSTERIORS / f"{name}.data.json.zip") as archive:
        data = json.loads(archive.read(archive.namelist()[0]))
    assert set(program.info["inputs"]) <= set(data)
    split = find_split(program, data)
    assert split.likelihood_data == tuple(IN_POSTERIORS[name].split())
    references = json.loads((POSTERIORS / "references.json").read_text())[name]
    named = {parameter.split("[")[0] for parameter in references}
    assert named <= set(program.info["parameters"]) | set(program.info["transformed parameters"])
    for figures in references.values():
        assert 0 < figures["mcse_mean"] < 0.05 * figures["sd"]


@pytest.mark.slow
@pytest.mark.stan
@pytest.mark.parametrize(
    ("name", "normalizer", "gradient_error"),
    [
        ("probit_cauchy", 0.0, 1e-5),  # as good as Stan's polynomials for the derivative of std_normal_lcdf
        ("poisson_random_effects", np.log(0.5), 1e-7),
        ("eight_schools_noncentered", np.log(0.5), 1e-7),
    ],
)
def test_compiled_models(name, normalizer, gradient_error):
    """Density and gradient, the flag against ``log_lik``, and the mass of the prior."""
    target = pb.as_target(MODELS / f"{name}.stan", MODELS / f"{name}.data.json")
    x = target.initial_points(6, np.random.default_rng(1))
    value, gradient = target.log_density_and_gradient(x)
    assert np.isfinite(value).all()
    steps = 1e-4 * np.array([-2, -1, 1, 2])[:, None, None] * np.eye(target.dim)
    moved = target.log_density((x[:, None, None] + steps).reshape(-1, target.dim)).reshape(6, 4, target.dim)
    differences = np.einsum("k,nkd->nd", [1, -8, 8, -1], moved) / 12e-4
    np.testing.assert_allclose(gradient, differences, rtol=gradient_error, atol=gradient_error * np.abs(gradient).max())

    parts = target.evaluate(x)
    prior_only = target.with_data({"prior_only": 1})
    np.testing.assert_allclose(parts.log_prior, prior_only.log_density(x), rtol=1e-12)
    log_lik = target.pointwise_log_likelihood(x)["y"]
    np.testing.assert_allclose(parts.log_likelihood, log_lik.sum(axis=1), rtol=1e-10)

    idata = pb.sample_smc(target, draws=2000, chains=2, random_seed=1, progressbar=False)
    attrs = group(idata, "posterior").attrs
    assert attrs["initial"] == "prior, sampled by a run of its own"
    assert abs(attrs["log_prior_normalizer"] - normalizer) < 4 * attrs["log_prior_normalizer_se"] < 1


PARTLY_MISSING = """
data { int N; int M; vector[N] y; array[N] int seen; array[M] int unseen; }
parameters { real mu; vector[M] missing; }
transformed parameters { vector[N + M] all_y; all_y[seen] = y; all_y[unseen] = missing; }
model { MU all_y ~ normal(mu, 1); }
"""


@pytest.mark.filterwarnings("ignore:.*missing has no prior:ppl_backends.errors.SamplerWarning")
def test_missing_data_beside_data_in_one_vector_leave_the_evidence_that_of_the_data():
    y = np.random.default_rng(0).normal(1, 1, 6)
    data = {"N": 6, "M": 2, "y": y, "seen": [1, 2, 4, 5, 7, 8], "unseen": [3, 6]}
    target = pb.as_target(PARTLY_MISSING.replace("MU", "mu ~ normal(0, 3);"), data)
    attrs = group(pb.sample_smc(target, draws=500, random_seed=1, progressbar=False), "posterior").attrs
    exact = multivariate_normal(np.zeros(6), np.eye(6) + 9.0).logpdf(y)
    assert abs(attrs["log_evidence"] - exact) < 4 * attrs["log_evidence_se"] + 1e-9
    assert "log_evidence_note" not in attrs


@pytest.mark.parametrize(("mu", "name"), [("", "mu"), ("mu ~ normal(missing[1], 1);", None)])
def test_other_parameters_without_a_prior_are_still_named(mu, name):
    data = {"N": 1, "M": 1, "y": [0.5], "seen": [1], "unseen": [2]}
    stated = pb.as_target(PARTLY_MISSING.replace("MU", mu), data).stated_propriety
    assert stated is None or not stated.missing_data
    assert name is None or stated.improper == name
