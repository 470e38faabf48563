"""Models with known answers through every method: a conjugate scale, several likelihoods, single precision."""

import warnings

import numpy as np
import pymc as pm
import pytensor
import pytest
from scipy import stats
from scipy.special import gammaln, logsumexp

import ppl_backends as pb
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.results.inference_data import group

OPTIONS = {"random_seed": 1, "progressbar": False}


def normal_inverse_gamma():
    """Mean and variance unknown, conjugate: log evidence, and mean and sd of the mean's posterior (Student t)."""
    y = np.random.default_rng(0).normal(2.0, 1.5, size=25)
    a, b, m, k = 3.0, 2.0, 1.0, 0.5
    with pm.Model() as model:
        variance = pm.InverseGamma("variance", a, b)
        mu = pm.Normal("mu", m, pm.math.sqrt(variance / k))
        pm.Normal("y", mu, pm.math.sqrt(variance), observed=y)
    n = len(y)
    a_n, k_n, m_n = a + n / 2, k + n, (k * m + y.sum()) / (k + n)
    b_n = b + 0.5 * ((y - y.mean()) ** 2).sum() + 0.5 * k * n * (y.mean() - m) ** 2 / k_n
    evidence = gammaln(a_n) - gammaln(a) + a * np.log(b) - a_n * np.log(b_n) + 0.5 * np.log(k / k_n)
    evidence -= 0.5 * n * np.log(2 * np.pi)
    return model, "mu", evidence, m_n, stats.t(2 * a_n, scale=np.sqrt(b_n / (a_n * k_n))).std()


def several_likelihoods():
    """Return a normal and a Poisson likelihood, and a Potential, of one parameter; answers by quadrature."""
    y, counts = np.array([0.4, 1.1, 0.8]), np.array([2, 1, 4, 3])
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 2)
        pm.Normal("y", theta, 0.7, observed=y)
        pm.Poisson("counts", pm.math.exp(theta), observed=counts)
        pm.Potential("soft", -0.1 * theta**2)
    grid = np.linspace(-6, 6, 20001)
    log_density = stats.norm(0, 2).logpdf(grid) - 0.1 * grid**2
    log_density += stats.norm(grid[:, None], 0.7).logpdf(y).sum(1) + stats.poisson(np.exp(grid[:, None])).logpmf(
        counts
    ).sum(1)
    evidence = logsumexp(log_density) + np.log(grid[1] - grid[0])
    weights = np.exp(log_density - logsumexp(log_density))
    mean = weights @ grid
    return model, "theta", evidence, mean, np.sqrt(weights @ (grid - mean) ** 2)


MODELS = {"normal inverse gamma": normal_inverse_gamma, "several likelihoods": several_likelihoods}
SAMPLERS = {
    "importance": lambda target: pb.sample_importance(target, draws=1024, chains=4, **OPTIONS),
    "smc": lambda target: pb.sample_smc(target, draws=1000, chains=2, **OPTIONS),
    "laplace smc": lambda target: pb.sample_smc(target, draws=1000, chains=2, initial="laplace", **OPTIONS),
    "mcmc": lambda target: pb.sample_mcmc(target, draws=1000, tune=300, chains=2, **OPTIONS),
}


@pytest.mark.parametrize("kind", MODELS)
def test_samplers_know_the_answer(kind):
    model, name, evidence, mean, sd = MODELS[kind]()
    target = pb.as_target(model)
    for sampler, sample in SAMPLERS.items():
        posterior = group(sample(target), "posterior")
        draws = posterior[name].values.ravel()
        assert abs(draws.mean() - mean) < 5 * sd / np.sqrt(300), sampler
        assert abs(draws.std() / sd - 1) < 5 / np.sqrt(2 * 300), sampler
        assert posterior.attrs["accuracy"] == "exact", sampler
        if sampler != "mcmc":
            error = posterior.attrs["log_evidence"] - evidence
            assert abs(error) < 5 * max(posterior.attrs["log_evidence_se"], 0.005), sampler


@pytest.mark.parametrize("kind", MODELS)
def test_approximations_are_near_and_say_that_they_are_no_more(kind):
    model, name, evidence, mean, sd = MODELS[kind]()
    target = pb.as_target(model)
    for fit in (pb.fit_laplace, pb.fit_ep, pb.fit_vi):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ApproximationWarning)
            approximation = fit(target, **OPTIONS)
        posterior = group(approximation.to_inference_data(draws=4000, random_seed=1), "posterior")
        assert abs(posterior[name].values.mean() - mean) < 0.3 * sd
        assert abs(posterior[name].values.std() / sd - 1) < 0.2
        assert posterior.attrs["accuracy"] == "approximate"
    assert abs(pb.fit_ep(target).log_evidence - evidence) < 0.05


def test_every_likelihood_has_its_pointwise_group():
    model, *_ = several_likelihoods()
    idata = pb.sample_importance(model, draws=128, chains=2, log_likelihood=True, **OPTIONS)
    found = group(idata, "log_likelihood")
    assert found["y"].shape == (2, 128, 3)
    assert found["counts"].shape == (2, 128, 4)
    theta = group(idata, "posterior")["theta"].values[..., None]
    np.testing.assert_allclose(found["y"], stats.norm(theta, 0.7).logpdf([0.4, 1.1, 0.8]))


def regression(design):
    with pm.Model() as model:
        X = pm.Data("X", design)
        beta = pm.Normal("beta", 0, 2, shape=2)
        pm.Bernoulli("y", logit_p=X @ beta, observed=[0, 1, 1, 0, 1])
    return model


def test_single_precision_is_refused_or_of_no_effect():
    design = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    refused = pytest.raises(ModelError, match=r"variable 'beta' is of single precision.*floatX = 'float64'")
    with pytensor.config.change_flags(floatX="float32"), refused as caught:
        pb.fit_laplace(regression(design))
    assert "\n" not in str(caught.value)
    model = regression(design.astype(np.float64))
    right = pb.fit_laplace(model, progressbar=False)
    with pytensor.config.change_flags(floatX="float32"):
        found = pb.fit_laplace(model, progressbar=False)
        assert pb.fit_ep(model).converged
    np.testing.assert_allclose(found.mean, right.mean, rtol=1e-7)
    np.testing.assert_allclose(found.log_evidence, right.log_evidence, rtol=1e-7)


@pytest.mark.parametrize("name", ["chain", "draw"])
def test_names_of_dimensions_are_refused_before_a_run(name):
    with pm.Model() as model:
        pm.Normal(name)
    with pytest.raises(ModelError, match=f"variable '{name}' has the name of a dimension"):
        pb.as_target(model)


def test_integers_and_booleans_stay_what_they_are():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 2, shape=3)
        pm.Deterministic("positive", x > 0)
        pm.Deterministic("largest", x.argmax())
    posterior = pb.sample_importance(model, draws=100, chains=2, random_seed=1, progressbar=False).posterior
    assert (posterior["positive"].dtype, posterior["largest"].dtype) == (bool, np.int64)
    np.testing.assert_array_equal(posterior["positive"], posterior["x"] > 0)
    np.testing.assert_array_equal(posterior["largest"], posterior["x"].argmax(axis=2))


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_a_series_of_equal_values_has_a_density(level):
    """PyTensor's rewrite of 0 / x by zeros ran for ever."""
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1)
        pm.GaussianRandomWalk("y", sigma=sigma, init_dist=pm.Normal.dist(0, 1), observed=np.full(8, level))
    expected = stats.norm.logpdf(level) + 7 * stats.norm.logpdf(0) + stats.halfnorm.logpdf(1)
    np.testing.assert_allclose(pb.as_target(model).log_density(np.zeros((1, 1))), expected)
