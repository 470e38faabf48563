"""Factors read off Stan programs, and EP on them against EP on the same model in PyMC."""

import json
from pathlib import Path

import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.results.inference_data import group
from ppl_backends.targets.factors import Factors, NegativeBinomial, NormalMixture, Probit
from ppl_backends.targets.stan import stan_target
from ppl_backends.targets.stan.factors import TabulatedSites

pm = pytest.importorskip("pymc")
pytest.importorskip("httpstan", reason="needs stanc, from the stan extra")

pytestmark = [pytest.mark.slow, pytest.mark.stan]

MODELS, PROGRAMS = Path(__file__).parents[2] / "stan_models", Path(__file__).parent / "programs"


def same_approximation(q, twin, tolerance=1e-7):
    sd = np.sqrt(np.diag(twin.cov))
    np.testing.assert_allclose(q.mean / sd, twin.mean / sd, atol=tolerance)
    np.testing.assert_allclose(q.cov / np.outer(sd, sd), twin.cov / np.outer(sd, sd), atol=tolerance)
    assert q.log_evidence == pytest.approx(twin.log_evidence, abs=tolerance * max(1.0, abs(twin.log_evidence)))
    np.testing.assert_allclose(q.loo.log_density, twin.loo.log_density, atol=10 * tolerance)


def pymc_regression(name, data):
    """Return the same regression in PyMC."""
    X, y = np.array(data["X"]), np.array(data["y"])
    with pm.Model() as model:
        if name.endswith("cauchy"):
            beta = pm.Cauchy("beta", 0, np.array(data["prior_scale"]), shape=X.shape[1])
        else:
            scale = np.array(data.get("prior_sd", data.get("prior_scale")))
            beta = pm.Normal("beta", 0, scale, shape=X.shape[1])
        eta = pm.math.dot(X, beta)
        if name.startswith("poisson"):
            pm.Poisson("y", pm.math.exp(eta + np.array(data.get("log_exposure", 0.0))), observed=y)
        elif name.startswith("probit"):
            pm.Bernoulli("y", pm.math.invprobit(eta), observed=y)
        else:
            pm.Bernoulli("y", logit_p=eta, observed=y)
    return model


@pytest.mark.parametrize(
    "name", ["probit_gaussian", "probit_cauchy", "logit_gaussian", "logit_cauchy", "poisson_regression"]
)
def test_same_ep_as_in_pymc(name):
    path = MODELS / f"{name}.data.json"
    q = pb.fit_ep(MODELS / f"{name}.stan", data=path, progressbar=False)
    assert q.converged
    same_approximation(q, pb.fit_ep(pymc_regression(name, json.loads(path.read_text())), progressbar=False), 1e-5)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(40), rng.normal(size=(40, 2))])
    y = rng.poisson(np.exp(X @ [0.5, 0.6, -0.4]) * rng.gamma(2, 0.5, size=40))
    covariance = np.array([[1.0, 0.3, 0.0], [0.3, 0.7, 0.2], [0.0, 0.2, 1.5]])
    switches = dict.fromkeys(("bent", "overdispersed", "tied", "skewed"), 0)
    return {"N": 40, "P": 3, "X": X, "y": y, "prior_covariance": covariance, "dispersion": 2.0, **switches}


@pytest.fixture(scope="module")
def target(data):
    return stan_target(PROGRAMS / "predictors.stan", data, predictor="eta", prior=None)


def test_sites_of_counts_are_found(target, data):
    """Negative binomial sites, a correlated Gaussian prior, and a Student prior along its coordinate."""
    factors = target.factors
    assert factors.n_sites == 41
    assert any(isinstance(family, NegativeBinomial) for family in factors.sites.families)
    assert factors.observed.sum() == 40
    np.testing.assert_allclose(np.asarray(factors.design)[:40, :3], data["X"], atol=1e-12)
    np.testing.assert_allclose(factors.prior.precision[:3, :3], np.linalg.inv(data["prior_covariance"]), rtol=1e-6)
    x = np.random.default_rng(0).normal(size=(30, 4))
    np.testing.assert_allclose(factors.log_density(x), target.log_density(x), rtol=1e-8)
    with pm.Model() as twin:
        beta = pm.MvNormal("beta", np.full(3, 0.5), data["prior_covariance"])
        pm.StudentT("extra", 3, 0.3, sigma=1.2)
        pm.NegativeBinomial("y", mu=pm.math.exp(pm.math.dot(data["X"], beta)), alpha=2.0, observed=data["y"])
    same_approximation(pb.fit_ep(target, progressbar=False), pb.fit_ep(twin, progressbar=False), 1e-5)


def test_prior_alone_gives_the_same_precision(target, data):
    """Gradients of the prior are used if it is known separately, and differences of values otherwise."""
    known = stan_target(target.program, data, predictor="eta")
    assert known.program_split.free_prior is not None
    assert target.program_split.free_prior is None
    np.testing.assert_allclose(known.factors.prior.precision, target.factors.prior.precision, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(known.factors.prior.precision == 0, target.factors.prior.precision == 0)


def test_table_and_its_extrapolation():
    nodes = np.sinh(np.linspace(-3, 3, 401))
    sites = TabulatedSites(nodes, -0.5 * nodes[:, None] ** 2 + nodes[:, None] * [0.3, -1.0])
    s = np.array([[0.1, -2.0], [nodes[-1] + 2, nodes[0] - 1]])
    slope, curvature = sites.derivatives(s)
    np.testing.assert_allclose(sites.log_site(s)[0], -0.5 * s[0] ** 2 + s[0] * [0.3, -1.0], atol=1e-12)
    np.testing.assert_allclose(slope, -np.clip(s, nodes[0], nodes[-1]) + [0.3, -1.0], rtol=1e-9)
    np.testing.assert_allclose(curvature, [[-1, -1], [0, 0]], rtol=1e-7)
    np.testing.assert_allclose(sites.take([1]).log_site(s[:, 1:]), sites.log_site(s)[:, 1:])


@pytest.mark.parametrize(
    ("switch", "held"), [("bent", "beta[1]"), ("overdispersed", "extra"), ("tied", "beta[1]"), ("skewed", "extra")]
)
def test_what_is_in_the_way_is_held(target, switch, held):
    """A coordinate in which the program does not factorise is a hyper-parameter; given it the factors are the density."""
    other = target.with_data({switch: 1})
    factors = other.factors
    assert factors.hyper_names == (held,)
    x = np.random.default_rng(0).normal(size=(10, 4))
    j = int(factors.hyper_coordinates[0])
    x[:, j] = 0.4
    given = factors.at([0.4])
    np.testing.assert_allclose(given.log_density(np.delete(x, j, axis=1)), other.log_density(x), rtol=1e-8)


def test_refusals_name_the_variable(target):
    with pytest.raises(ModelError, match=r"eta is not affine in beta\[0\].*use fit_laplace"):
        _ = target.with_data({"bent": 2}).factors
    with pytest.raises(ModelError, match="phi has 2 values"):
        target.with_data({"skewed": 1}).factors.at([0.0, 1.0])


def test_predictors_that_are_not_there(target, data):
    library = target.program
    with pytest.raises(ModelError, match="which of eta, twice is the linear predictor"):
        _ = stan_target(library, data, prior=None).factors
    with pytest.raises(ModelError, match=r"'alpha' is not a quantity with 40 elements.*eta, twice"):
        _ = stan_target(library, data, prior=None, predictor="alpha").factors
    scaled = stan_target(library, data, prior=None, predictor="twice").factors
    np.testing.assert_allclose(np.asarray(scaled.design)[:40, :3], 2 * data["X"], atol=1e-12)


def test_scale_of_random_effects_is_integrated_over():
    """As in PyMC, up to the mass of the half-normal prior."""
    path = MODELS / "poisson_random_effects.data.json"
    data = json.loads(path.read_text())
    groups = np.array(data["group"]) - 1
    with pm.Model() as twin:
        beta = pm.Normal("beta", 0, data["prior_sd"], shape=data["P"])
        z, tau = pm.Normal("z", 0, 1, shape=data["J"]), pm.HalfNormal("tau", 1)
        eta = np.array(data["log_exposure"]) + (tau * z)[groups] + pm.math.dot(np.array(data["X"]), beta)
        pm.Poisson("y", pm.math.exp(eta), observed=np.array(data["y"]))
    q = pb.fit_ep(MODELS / "poisson_random_effects.stan", data=path, progressbar=False)
    expected = pb.fit_ep(twin, progressbar=False)
    assert q.hyper.names == ("tau",)
    assert q.log_evidence == pytest.approx(expected.log_evidence + np.log(0.5), abs=1e-3)
    order = [q.names.index(name.replace("_log__", "")) for name in expected.names]
    np.testing.assert_allclose(q.mean[order], expected.mean, atol=1e-2 * expected.sd.max())
    np.testing.assert_allclose(q.sd[order], expected.sd, rtol=1e-2)


def test_ep_by_one_word_and_by_default():
    """Importance sampling and SMC start from EP, which a program with factors gets without being asked."""
    target = pb.as_target(MODELS / "probit_gaussian.stan", MODELS / "probit_gaussian.data.json")
    options = {"draws": 500, "chains": 2, "random_seed": 1, "progressbar": False}
    attrs = group(pb.sample_importance(target, **options), "posterior").attrs
    assert attrs["approximation"] == "ep"
    assert attrs["efficiency_factor"] > 0.85
    stages = group(pb.sample_smc(target, initial="ep", **options), "sample_stats").sizes["stage"]
    assert stages == 1


@pytest.mark.parametrize("spike", [1e-6, 0.05])
def test_log_mix_is_a_spike_and_a_slab(spike):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(60, 8))
    y = (X[:, 0] + rng.normal(size=60) > 0).astype(int)
    data = {"N": 60, "P": 8, "X": X, "y": y, "spike": spike, "slab": 2.0}
    q = pb.fit_ep(PROGRAMS / "spike_and_slab.stan", data=data, progressbar=False)
    mixture = NormalMixture([0.3, 0.7], [0.0, 0.0], [spike, 2.0], n=8)
    observed = np.arange(68) < 60
    twin = pb.fit_ep(Factors([X, np.eye(8)], 0.0, [Probit(y), mixture], 0.0, 0.0, observed=observed), progressbar=False)
    np.testing.assert_allclose(q.component_shares(), twin.component_shares(), atol=1e-5)
    assert q.log_evidence == pytest.approx(twin.log_evidence, abs=1e-5)
