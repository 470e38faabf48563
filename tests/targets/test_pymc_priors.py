"""Draws of the prior, and models with unusual parts."""

import numpy as np
import pymc as pm
import pytest
from pymc.distributions.transforms import Interval
from scipy import stats
from scipy.special import gammaln

import ppl_backends as pb
from ppl_backends.errors import ModelError, PriorSamplingError, SamplerWarning
from ppl_backends.results.inference_data import group
from ppl_backends.targets import PyMCTarget

N = 20_000

imputed = pytest.mark.filterwarnings("ignore:.*[Ii]mput")


def draws_of(target, seed=0, n=N):
    return target.sample_prior(n, np.random.default_rng(seed))


def test_the_same_state_gives_the_same_draws():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        pm.Normal("x", 0, scale, shape=2)
    target = PyMCTarget(model)
    np.testing.assert_array_equal(draws_of(target, 1, 50), draws_of(target, 1, 50))
    rng = np.random.default_rng(1)
    assert not np.array_equal(target.sample_prior(50, rng), target.sample_prior(50, rng))
    assert target.sample_prior(0, rng).shape == (0, 3)


def test_moments_on_the_unconstrained_space():
    # log of Gamma(a, 1): mean digamma(a), variance trigamma(a); logit of U(0, 1): logistic, variance pi^2 / 3
    with pm.Model() as model:
        pm.Gamma("gamma", 3, 1)
        pm.Uniform("uniform", -1, 5)
    x = draws_of(PyMCTarget(model))
    for column, law in zip(x.T, (stats.loggamma(3), stats.logistic()), strict=True):
        assert stats.kstest(column, law.cdf).pvalue > 1e-5


def test_autoregressive_paths_are_drawn_at_once_and_have_independent_innovations():
    sigma = np.array([0.5, 2.0])
    with pm.Model() as model:
        pm.AR("x", [0.4, 0.5, -0.3], sigma=sigma, constant=True, init_dist=pm.Normal.dist(1, 2), shape=(2, 5))
    target = PyMCTarget(model)
    x = draws_of(target).reshape(N, 2, 5)
    assert target._prior_sampler().at_once
    innovations = x[..., 2:] - 0.4 - 0.5 * x[..., 1:-1] + 0.3 * x[..., :-2]
    z = np.concatenate([(x[..., :2] - 1) / 2, innovations / sigma[:, None]], axis=2).reshape(N, 10)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=5 / N**0.5)
    np.testing.assert_allclose(z.T @ z / N, np.eye(10), atol=5 * (2 / N) ** 0.5)


def test_hierarchies_share_their_parents_draws():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1)
        pm.Normal("x", 0, scale, shape=2)
        pm.GaussianRandomWalk("walk", mu=0, sigma=scale, init_dist=pm.Normal.dist(0, 1e-3), shape=2)
    target = PyMCTarget(model)
    values = target.constrain(draws_of(target))
    for z in (values["x"][:, 0], values["x"][:, 1], np.diff(values["walk"])[:, 0]):
        assert stats.kstest(z / values["scale"], stats.norm.cdf).pvalue > 1e-5
    # |x0| and |x1| are dependent through the scale alone: E|x0 x1| = E scale^2 (2 / pi) = 2 / pi
    product = np.abs(values["x"].prod(1))
    assert abs(product.mean() - 2 / np.pi) < 5 * product.std() / np.sqrt(N)


@pytest.mark.parametrize("descending", [False, True])
def test_exchangeable_ordered_elements_are_sorted(descending):
    transform = pm.distributions.transforms.Ordered(ascending=not descending)
    with pm.Model() as model:
        pm.Normal("x", 0, 1, shape=3, transform=transform, initval=[1.0, 0, -1] if descending else [-1.0, 0, 1])
    target = PyMCTarget(model)
    x = target.constrain(draws_of(target))["x"]
    middle = x[:, 1]
    assert (np.diff(x[:, ::-1] if descending else x) > 0).all()
    assert stats.kstest(middle, lambda q: stats.beta(2, 2).cdf(stats.norm.cdf(q))).pvalue > 1e-5
    assert target.log_prior_normalizer == -gammaln(4)


def test_ordered_elements_of_different_laws_are_drawn_by_rejection():
    with pm.Model() as model:
        pm.Normal("x", [0.0, 1.0], 1, transform=pm.distributions.transforms.ordered, initval=[-1.0, 1.0])
    target = PyMCTarget(model)
    x = target.constrain(draws_of(target))["x"]
    rng = np.random.default_rng(9)
    free = rng.normal([0.0, 1.0], 1, size=(N, 2))
    assert stats.ks_2samp(x[:, 0], free[free[:, 0] < free[:, 1], 0]).pvalue > 1e-5
    mass = stats.norm.cdf(1 / np.sqrt(2))
    assert abs(np.exp(target.log_prior_normalizer) - mass) < 5 * np.sqrt(mass * (1 - mass) / N)


@pytest.mark.parametrize(
    ("prior", "share"),
    [
        (lambda: pm.Gamma("x", 0.001, 0.001), stats.gamma(0.001, scale=1000).cdf(1e-300)),
        (lambda: pm.Beta("x", 0.05, 0.05), stats.beta(0.05, 0.05).cdf(1.2e-16)),  # of 1 - x
        (lambda: pm.Dirichlet("x", [0.002, 0.002, 0.002]), None),
    ],
    ids=["gamma", "beta", "dirichlet"],
)
def test_draws_that_round_to_a_bound_are_next_to_it(prior, share):
    """Not drawn again, which would sample the rest of the prior."""
    with pm.Model() as model:
        pm.Normal("y", prior().max(), 1, observed=0.0)
    target = PyMCTarget(model)
    x = draws_of(target)
    assert np.isfinite(target.log_density(x)).all()
    if share is not None:
        bound = x.max() if share < 0.4 else x.min()
        assert abs(np.mean(x == bound) - share) < 5 * np.sqrt(share * (1 - share) / N)


def test_draws_that_round_to_a_bound_of_a_transform_without_a_next_number_are_refused():
    with pm.Model() as model:
        pm.Normal("y", pm.Beta("x", 0.01, 0.01, default_transform=Interval(0, 1)), 1, observed=0.0)
    with pytest.raises(PriorSamplingError, match=r"of 'x' round to a bound.*initial='laplace'"):
        draws_of(PyMCTarget(model))


@pytest.mark.parametrize("name", ["Flat", "HalfFlat"])
def test_flat_priors_name_the_variable_and_need_no_prior_draws(name):
    with pm.Model() as model:
        slope = getattr(pm, name)("slope")
        pm.Normal("y", slope, 1, observed=[1.0, 2.0])
    target = PyMCTarget(model)
    with pytest.raises(PriorSamplingError, match=r"'slope' is flat.*initial='laplace'"):
        draws_of(target)
    assert np.isfinite(target.log_density(target.initial_points(4, np.random.default_rng(0)))).all()
    assert np.isnan(target.log_prior_normalizer)


def test_a_transform_onto_another_space_is_refused():
    with pm.Model() as model:
        pm.Normal("x", 0, 1, shape=3, transform=pm.distributions.transforms.ZeroSumTransform([-1]), initval=np.zeros(3))
    with pytest.raises(PriorSamplingError, match="'x' are changed by its transform"):
        draws_of(PyMCTarget(model), n=10)


def test_potentials_are_part_of_the_likelihood_and_not_of_prior_draws():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1)
        pm.Normal("y", x, 1, observed=[0.5])
        pm.Potential("tilt", 3 * x)
    target = PyMCTarget(model)
    point = np.array([[0.2], [-1.0]])
    assert target.has_potentials
    evaluation = target.evaluate(point)
    np.testing.assert_allclose(evaluation.log_prior, stats.norm.logpdf(point[:, 0]))
    np.testing.assert_allclose(evaluation.log_likelihood, stats.norm(point[:, 0], 1).logpdf(0.5) + 3 * point[:, 0])
    value, gradient = target.evaluate_potentials(point, gradient=True)
    np.testing.assert_allclose(value, 3 * point[:, 0])
    np.testing.assert_allclose(gradient, 3.0)
    assert target.evaluate_potentials(point)[1] is None
    assert abs(draws_of(target).mean()) < 5 / np.sqrt(N)


@imputed
def test_missing_values_are_free_variables():
    y = np.ma.masked_invalid([0.5, np.nan, 2.0, np.nan])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        pm.Normal("y", mu, 1, observed=y)
    target = PyMCTarget(model)
    assert target.names == ("mu", "y_unobserved[0]", "y_unobserved[1]")
    x = np.array([[0.1, -1.0, 2.0]])
    evaluation = target.evaluate(x)
    np.testing.assert_allclose(
        evaluation.log_prior, stats.norm(0, 2).logpdf(0.1) + stats.norm(0.1, 1).logpdf([-1, 2]).sum()
    )
    np.testing.assert_allclose(evaluation.log_likelihood, stats.norm(0.1, 1).logpdf([0.5, 2.0]).sum())
    np.testing.assert_allclose(target.constrain(x)["y"], [[0.5, -1.0, 2.0, 2.0]])
    draws = draws_of(target)
    assert stats.kstest(draws[:, 1] - draws[:, 0], stats.norm.cdf).pvalue > 1e-5


@imputed
def test_missing_entries_of_multivariate_data_have_no_prior_to_draw_from():
    y = np.ma.masked_invalid([[0.5, np.nan], [2.0, 1.0]])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2, shape=2)
        pm.MvNormal("y", mu, np.eye(2), observed=y)
    target = PyMCTarget(model)
    with pytest.raises(PriorSamplingError, match="'y_unobserved' represents missing entries"):
        draws_of(target, n=2)
    x = np.array([[0.1, -1.0, 2.0]])
    np.testing.assert_allclose(
        target.evaluate(x).log_likelihood, stats.norm([0.1, -1.0], 1).logpdf([[0.5, 2.0], [2.0, 1.0]]).sum()
    )


@imputed
def test_discrete_missing_values_are_refused_by_name():
    y = np.ma.masked_equal([3, -1, 2], -1)
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2, 1)
        pm.Poisson("y", rate, observed=y)
    with pytest.raises(ModelError, match="'y' is discrete and has missing values"):
        PyMCTarget(model)


@pytest.mark.parametrize("mutable", [False, True])
def test_shapes_that_do_not_agree_are_named(mutable):
    with pm.Model() as model:
        design = pm.Data("X", np.ones((10, 2))) if mutable else np.ones((10, 2))
        beta = pm.Normal("beta", shape=2)
        pm.Bernoulli("y", logit_p=design @ beta, observed=np.ones(7))
    with pytest.raises(ModelError, match="the shapes of 'y', its parameters and its data do not agree"):
        PyMCTarget(model).log_density(np.zeros((1, 2)))


def test_discrete_variables_are_refused_by_name():
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.3)
        pm.Normal("y", k, 1, observed=[1.0])
    with pytest.raises(ModelError, match="free variable 'k' is discrete"):
        PyMCTarget(model)


def test_minibatches_are_refused_by_name():
    data = np.random.default_rng(0).normal(size=100)
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=pm.Minibatch(data, batch_size=10), total_size=100)
    with pytest.raises(ModelError, match=r"variable 'y' .*pass the full data"):
        PyMCTarget(model)


def test_simulators_are_refused_by_name():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Simulator("y", lambda rng, mu, size: rng.normal(mu, size=size), mu, observed=np.zeros(3))
    with pytest.raises(ModelError, match=r"'y' is a pm.Simulator, which has no log density: use sample_abc"):
        PyMCTarget(model)


def test_a_model_without_free_variables_is_refused():
    with pm.Model() as model:
        pm.Normal("y", 0, 1, observed=[1.0])
    with pytest.raises(ModelError, match="no free variables"):
        PyMCTarget(model)


def test_posterior_predictive_sampling_does_not_spoil_the_model():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        y = pm.Normal("y", mu, 1, observed=[1.0, 2.0])
    expected = PyMCTarget(model).log_density([[0.3]])
    model.observed_RVs.append(y)  # as PyMC 5.28 leaves it
    np.testing.assert_array_equal(PyMCTarget(model).log_density([[0.3]]), expected)


def unusual_models():
    rng = np.random.default_rng(0)
    data = rng.normal(size=12)
    with pm.Model() as censored:
        mu = pm.Normal("mu")
        pm.Censored("y", pm.Normal.dist(mu, 1), lower=-1, upper=1, observed=np.clip(data, -1, 1))
    with pm.Model() as mixture:
        weights = pm.Dirichlet("weights", np.ones(2))
        means = pm.Normal("means", 0, 2, shape=2)
        pm.NormalMixture("y", weights, means, 1, observed=data)
    with pm.Model() as truncated:
        mu = pm.Normal("mu")
        pm.Truncated("y", pm.Normal.dist(mu, 1), lower=-3, observed=np.maximum(data, -2.9))
    with pm.Model() as process:
        length = pm.Gamma("length", 5, 5)
        prior = pm.gp.Latent(cov_func=pm.gp.cov.Matern32(1, ls=length))
        f = prior.prior("f", X=np.linspace(0, 1, 12)[:, None])
        pm.Poisson("y", pm.math.exp(f), observed=rng.poisson(1, 12))
    with pm.Model() as custom:
        mu = pm.Normal("mu")
        pm.CustomDist("y", mu, dist=lambda mu, size: pm.math.exp(pm.Normal.dist(mu, 1, size=size)), observed=data**2)
    with pm.Model() as autoregression:
        rho = pm.Normal("rho", 0, 0.5, shape=2)
        pm.AR("y", rho, sigma=1, constant=True, init_dist=pm.Normal.dist(0, 1), observed=data)
    return {
        "censored": censored,
        "mixture": mixture,
        "truncated": truncated,
        "process": process,
        "custom": custom,
        "autoregression": autoregression,
    }


UNUSUAL = unusual_models()


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_models_have_pymcs_density_and_a_prior(name):
    from tests.targets.test_pymc_target import joint_of_pymc

    target = PyMCTarget(UNUSUAL[name])
    x = target.sample_prior(8, np.random.default_rng(0))
    assert len(np.unique(x[:, 0])) == 8
    value, gradient = target.log_density_and_gradient(x)
    np.testing.assert_allclose(value, joint_of_pymc(target, x), rtol=1e-7)  # PyMC has logs of constants in float32
    assert np.isfinite(gradient).all()
    assert (np.abs(gradient).sum(1) > 0).all()


def test_a_prior_without_draws_starts_from_laplace():
    with pm.Model() as model:
        effect = pm.ICAR("effect", W=np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]]))
        pm.Normal("y", effect, 1, observed=[1.0, 2.0, 2.0])
    with pytest.raises(PriorSamplingError, match=r"^the prior cannot be sampled \(Cannot sample from ICAR prior\)"):
        pb.as_target(model).sample_prior(1, np.random.default_rng(0))
    with pytest.warns(SamplerWarning, match="starting from the Laplace approximation instead"):
        idata = pb.sample_smc(model, draws=200, chains=2, random_seed=1, progressbar=False)
    assert group(idata, "posterior").attrs["initial"] == "laplace"
