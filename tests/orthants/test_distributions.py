"""Distributions of models: log probabilities against draws and closed forms, gradients in JAX, draws, samplers."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import log_ndtr, logsumexp
from scipy.stats import halfnorm, ks_2samp

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.math import panel_cholesky
from ppl_backends.orthants import estimate_log_likelihood
from tests.statistics import assert_mean_is

G = np.random.default_rng(0)
COV = np.array([[1.0, 0.5, -0.3], [0.5, 1.0, 0.2], [-0.3, 0.2, 1.0]])
FACTOR = np.linalg.cholesky(COV)
MEAN = np.array([0.3, -0.4, 0.6])
CUTS = np.array([-0.7, 0.5])
PANEL = panel_cholesky(np.array([0.5, 0.8]), np.array([0.3, 0.6]), np.ones(2), 2).eval()
UTILITY = np.array([[0.2, -0.1], [0.4, 0.3]])
SCALE = np.array([1.0, 0.6, 1.4])

CASES = {
    "probit": lambda mean, y: pb.MultivariateProbit("y", mean, FACTOR, observed=y),
    "ordinal": lambda mean, y: pb.MultivariateOrdinal("y", mean, FACTOR, CUTS, observed=y),
    "choices": lambda mean, y: pb.MultinomialProbit("y", mean, PANEL, observed=y),
    "ranking": lambda mean, y: pb.ThurstoneRanking("y", mean, SCALE, observed=y),
}
MEANS = {"probit": MEAN, "ordinal": MEAN, "choices": UTILITY, "ranking": MEAN}
DISTS = {
    "probit": lambda: pb.MultivariateProbit.dist(MEAN, FACTOR, shape=(N, 3)),
    "ordinal": lambda: pb.MultivariateOrdinal.dist(MEAN, FACTOR, CUTS, shape=(N, 3)),
    "choices": lambda: pb.MultinomialProbit.dist(UTILITY, PANEL, shape=(N, 2)),
    "ranking": lambda: pb.ThurstoneRanking.dist(MEAN, SCALE, shape=(N, 3)),
}
N = 40_000


@pytest.mark.slow  # 40,000 draws in compiled models
@pytest.mark.parametrize("name", CASES)
def test_log_probabilities_are_those_of_draws(name):
    """Frequencies of every value among draws against exp(logp): the two are written independently."""
    draws = pm.draw(DISTS[name](), random_seed=1)
    values, counts = np.unique(draws, axis=0, return_counts=True)
    variable = DISTS[name]()
    p = np.exp(pm.logp(variable, values).eval())
    assert abs(p.sum() - 1) < 2e-3
    assert (np.abs(counts / N - p) < 4.5 * np.sqrt(p * (1 - p) / N) + 1e-3).all()


@pytest.mark.parametrize("name", CASES)
def test_values_that_are_none_have_probability_zero(name):
    shape = {"choices": (1, 2)}.get(name, (1, 3))
    variable = DISTS[name]()
    assert np.isneginf(pm.logp(variable, np.full(shape, 7)).eval()).all()
    assert np.isneginf(pm.logp(variable, np.full(shape, -1)).eval()).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_in_jax(name):
    """Value as PyMC compiles it, gradient against differences; the model has JAX's backend, without a warning."""
    y = pm.draw(DISTS[name](), random_seed=2)[:4]
    with pm.Model() as model:
        CASES[name](pm.Normal("mean", 0, 1, shape=MEANS[name].shape), y)
    target = pb.as_target(model, backend="jax")
    at = np.array([MEANS[name].ravel(), 0.5 * MEANS[name].ravel()])
    value, gradient = target.log_density_and_gradient(at)
    assert np.allclose(value, [model.compile_logp()({"mean": x.reshape(MEANS[name].shape)}) for x in at], atol=1e-8)
    step = 1e-4
    for j in range(at.shape[1]):
        shift = step * np.eye(at.shape[1])[j]
        slope = (target.log_density(at + shift) - target.log_density(at - shift)) / (2 * step)
        np.testing.assert_allclose(gradient[:, j], slope, rtol=1e-4, atol=1e-5)


def test_truncated_vector():
    lower, upper = np.array([0.0, -np.inf, -1.0]), np.array([np.inf, 0.5, 2.0])
    variable = pb.TruncatedMvNormal.dist(MEAN, FACTOR, lower, upper, shape=(2000, 3))
    draws = pm.draw(variable, random_seed=1)
    assert (draws >= lower).all()
    assert (draws <= upper).all()
    with pm.Model() as model:
        pb.TruncatedMvNormal("x", MEAN, FACTOR, lower, upper)
    log_p = pb.rectangle_probability(COV, lower, upper, mean=MEAN, random_seed=1).log_p
    inverse = np.linalg.inv(COV)
    gap = draws[:5] - MEAN
    truth = -0.5 * np.einsum("ni,ij,nj->n", gap, inverse, gap) - 0.5 * np.linalg.slogdet(2 * np.pi * COV)[1] - log_p
    np.testing.assert_allclose(pm.logp(variable, draws[:5]).eval(), truth, atol=2e-3)
    assert np.isneginf(pm.logp(variable, np.array([[-0.1, 0.0, 0.0]])).eval()).all()
    with pm.Model() as observed:  # one mean for several values
        pb.TruncatedMvNormal("x", pm.Normal("mean", 0, 1, shape=3), FACTOR, lower, upper, observed=draws[:5])
    value = observed.compile_logp(vars=observed.observed_RVs)({"mean": MEAN})
    assert value == pytest.approx(truth.sum(), abs=1e-2)
    # The density on the line integrates to one: importance sampling from a wide normal.
    target = pb.as_target(model)
    assert target.dim == 3
    x = G.standard_t(5, (20_000, 3)) * 1.5
    from scipy.stats import t

    weights = np.exp(target.log_density(x) - t(5, scale=1.5).logpdf(x).sum(axis=1))
    assert_mean_is(weights, 1.0)


def test_truncated_vectors_start_inside():
    """Means are at a bound, outside, and in a batch; PyMC's default, zeros, has no density under bounds at zero."""
    low, high = np.array([0.0, -np.inf, -1.0]), np.array([np.inf, 0.0, 1.0])
    with pm.Model() as model:
        for name, mean in {"at": np.zeros(3), "outside": np.array([-4.0, 5.0, 2.0]), "inside": MEAN}.items():
            pb.TruncatedMvNormal(name, mean, FACTOR, low, high)
        pb.TruncatedMvNormal("batch", np.zeros(3), FACTOR, 0.0, shape=(4, 3))
    start = model.initial_point()
    assert np.isfinite(np.concatenate([value.ravel() for value in start.values()])).all()
    assert np.isfinite(model.compile_logp()(start))
    assert start["batch_bounds__"].shape == (4, 3)


def scaled(upper, **options):
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 2.0)
        pb.TruncatedMvNormal("x", np.zeros(3), scale * FACTOR, 0.0, upper, **options)
    return model


def test_draws_of_truncated_vectors_have_scales_of_their_own():
    """x / scale does not depend on the scale; with the scale of the first draw for all it would."""
    target = pb.as_target(scaled(np.inf))
    values = target.constrain(target.sample_prior(2000, np.random.default_rng(1)))
    ratio = values["x"] / values["scale"][:, None]
    exactly = pb.sample_truncated(COV, 0.0, draws=2000, random_seed=2).draws
    assert min(ks_2samp(a, b).pvalue for a, b in zip(ratio.T, exactly.T, strict=True)) > 1e-4 / 3
    twin = values["x"] / values["scale"][0]
    assert max(ks_2samp(a, b).pvalue for a, b in zip(twin.T, exactly.T, strict=True)) < 1e-4
    rare = pb.TruncatedMvNormal.dist(np.array([[-8.0] * 3, [-7.0] * 3]), FACTOR, 0.0)  # one by one
    assert (pm.draw(rare, 5, random_seed=1) > 0).all()


@pytest.mark.slow
def test_a_random_scale_against_quadrature():
    """The probability of the box moves with the scale: log evidence and mean of the scale by EP and SMC."""
    upper = np.array([3.0, 2.0, np.inf])
    x = pb.sample_truncated(COV, 0.0, upper, draws=12, random_seed=3).draws
    grid = np.linspace(0.05, 6, 120)
    log_p = pb.rectangle_probability(grid[:, None, None] ** 2 * COV, 0.0, upper, random_seed=1).log_p
    square = np.einsum("ni,ij,nj->", x, np.linalg.inv(COV), x)
    log_joint = halfnorm(scale=2.0).logpdf(grid) - 12 * (3 * np.log(grid) + log_p) - 0.5 * square / grid**2
    log_joint -= 6 * np.linalg.slogdet(2 * np.pi * COV)[1]
    log_z = logsumexp(log_joint) + np.log(grid[1] - grid[0])
    mean = grid @ np.exp(log_joint - logsumexp(log_joint))
    model = scaled(upper, observed=x)
    smc = pb.sample_smc(model, draws=1000, chains=2, random_seed=1, progressbar=False)
    assert abs(smc.posterior.attrs["log_evidence"] - log_z) < 0.03
    assert abs(float(smc.posterior["scale"].mean()) - mean) < 0.02 * mean
    found = pb.fit_ep(model)
    drawn = found.to_inference_data(draws=4000, random_seed=1).posterior["scale"]
    assert abs(found.log_evidence - log_z) < 0.03
    assert abs(float(drawn.mean()) - mean) < 0.02 * mean


def test_ep_refuses_a_truncated_vector_among_the_parameters():
    """EP would treat it as hyper-parameters, and their few points and Gaussian kernels are not precise enough."""
    with pm.Model() as model:
        x = pb.TruncatedMvNormal("x", np.zeros(3), pm.HalfNormal("scale") * FACTOR, 0.0)
        pm.Normal("y", x, 0.5, observed=np.array([0.5, 1.5, 0.3]))
    with pytest.raises(ModelError, match=r"coordinates of a truncated vector, .*; use fit_laplace or sample_smc"):
        pb.fit_ep(model)


def test_panel_covariance():
    effects, persistence, innovations = np.array([0.5, 1.0]), np.array([0.4, 0.0]), np.array([1.0, 2.0])
    factor = panel_cholesky(effects, persistence, innovations, 3).eval()
    cov = factor @ factor.T
    assert cov[0, 1] == pytest.approx(0)
    assert cov[0, 0] == pytest.approx(0.25 + 1 / (1 - 0.16))
    assert cov[0, 4] == pytest.approx(0.25 + 0.16 / (1 - 0.16))
    assert cov[1, 3] == pytest.approx(1.0)


def test_estimates_of_likelihoods_are_unbiased():
    y = G.integers(0, 2, (4, 3))
    lower, upper = np.where(y, 0, -np.inf), np.where(y, np.inf, 0)
    runs = 400
    found = estimate_log_likelihood(
        np.tile(MEAN, (runs, 4, 1)), np.tile(FACTOR, (runs, 1, 1)), lower, upper, random_seed=1, n_points=2
    )
    log_p = pb.rectangle_probability(COV, lower, upper, mean=MEAN, random_seed=2).log_p.sum()
    assert found.std() > 1e-3
    assert_mean_is(np.exp(found - log_p), 1.0)


def test_broken_twin_with_points_that_rectangles_share_is_biased():
    """One shift for all rectangles: each estimate is unbiased, their product is not."""
    from ppl_backends.orthants.batch import log_rectangles

    runs, copies = 4000, 20
    cov = np.array([[1.0, 0.95], [0.95, 1.0]])
    factor = np.tile(np.linalg.cholesky(cov), (runs, 1, 1))
    lower, upper = np.tile([0.0, -np.inf], (runs, 1)), np.tile([np.inf, 0.0], (runs, 1))
    points = G.random((runs, 2, 2))
    one = log_rectangles(np.zeros((runs, 2)), factor, lower, upper, points).log_p
    values = np.exp(copies * (one - np.log(0.25 - np.arcsin(0.95) / (2 * np.pi))))
    assert values.mean() - 1 > 5 * values.std() / np.sqrt(runs)


def pseudo_marginal_estimate(y, n_points=16):
    lower, upper = np.where(y, 0, -np.inf), np.where(y, np.inf, 0)

    def estimate(values, rng):
        mean = np.repeat(values["mean"][:, None, :], len(y), axis=1)
        return estimate_log_likelihood(mean, np.tile(FACTOR, (len(mean), 1, 1)), lower, upper, rng, n_points=n_points)

    return estimate


def hand_written(y):
    """Return the probit model with its utilities among the variables."""
    with pm.Model() as model:
        utility = pm.MvNormal("utility", pm.Normal("mean", 0, 1, shape=3), chol=FACTOR, shape=y.shape)
        pm.Potential("y", pm.math.switch((2 * y - 1) * utility > 0, 0.0, -np.inf))
    return model


def test_ep_is_that_of_the_model_with_utilities():
    y = pm.draw(DISTS["probit"](), random_seed=3)[:15]
    with pm.Model() as model:
        pb.MultivariateProbit("y", pm.Normal("mean", 0, 1, shape=3), FACTOR, observed=y)
    found, whole = pb.fit_ep(model), pb.fit_ep(hand_written(y))
    assert found.names == pb.as_target(model).names
    np.testing.assert_allclose(found.mean, whole.mean[:3], atol=1e-5)
    np.testing.assert_allclose(found.cov, whole.cov[:3, :3], atol=1e-5)
    assert found.log_evidence == pytest.approx(whole.log_evidence, abs=1e-5)
    assert np.isnan(found.loo.elpd)  # three sites share an observation


@pytest.mark.parametrize("name", CASES)
def test_ep_of_every_distribution(name):
    """Against importance sampling from it, with as many points as the weights need."""
    y = pm.draw(DISTS[name](), random_seed=2)[:12]
    with pm.Model() as model:
        CASES[name](pm.Normal("mean", 0, 1, shape=MEANS[name].shape), y)
    found, target = pb.fit_ep(model), pb.as_target(model)
    x = found.sample(2000, np.random.default_rng(1))
    log_w = target.log_density(x) - found.log_density(x)
    w = np.exp(log_w - log_w.max())
    assert w.sum() ** 2 / (w**2).sum() > 1200
    mean = w @ x / w.sum()
    assert (np.abs(mean - found.mean) < 0.15 * np.sqrt(np.diag(found.cov))).all()
    assert abs(np.log(w.mean()) + log_w.max() - found.log_evidence) < 0.1


@pytest.mark.slow  # several compiled models
def test_ep_refuses_what_it_cannot_do():
    y = pm.draw(DISTS["probit"](), random_seed=2)[:4]
    with pm.Model() as model:
        pb.MultivariateProbit("y", np.zeros(3), FACTOR * pm.math.exp(pm.Normal("scale")), observed=y)
    with pytest.raises(ModelError, match="do not depend on parameters; use fit_laplace"):
        pb.as_target(model).factors.at()
    with pm.Model() as truncated:
        pb.TruncatedMvNormal("x", pm.Normal("mean", 0, 1, shape=3), FACTOR, 0.0, observed=np.ones((2, 3)))
    with pytest.raises(ModelError, match="use fit_laplace or sample_smc"):
        pb.as_target(truncated).factors.at()


@pytest.mark.slow
def test_samplers_agree():
    """Laplace, SMC and a pseudo-marginal chain find the mean that EP does."""
    y = pm.draw(DISTS["probit"](), random_seed=3)[:20]
    with pm.Model() as model:
        pb.MultivariateProbit("y", pm.Normal("mean", 0, 1, shape=3), FACTOR, observed=y)
    target = pb.as_target(model)
    ep, laplace = pb.fit_ep(target), pb.fit_laplace(target, progressbar=False)
    smc = pb.sample_smc(target, draws=500, chains=2, random_seed=1, progressbar=False)
    found, sd = (getattr(smc.posterior["mean"], name)(("chain", "draw")).values for name in ("mean", "std"))
    for approximation in (ep, laplace):
        assert (np.abs(found - approximation.mean) < 0.3 * sd).all()
        assert abs(smc.posterior.attrs["log_evidence"] - approximation.log_evidence) < 0.3
    with pm.Model() as prior:
        pm.Normal("mean", 0, 1, shape=3)
    step = pb.steps.PseudoMarginal(log_likelihood_estimate=pseudo_marginal_estimate(y))
    chains = pb.sample_mcmc(prior, step=step, draws=1500, tune=500, chains=2, random_seed=1, progressbar=False)
    assert (np.abs(chains.posterior["mean"].mean(("chain", "draw")).values - found) < 0.4 * sd).all()


def test_prior_and_posterior_predictive_draws():
    coords = {"person": range(4), "item": list("abc")}
    with pm.Model(coords=coords):
        mean = pm.Normal("mean", 0, 1, dims="item")
        pb.MultivariateProbit("y", mean, FACTOR, observed=np.ones((4, 3), int), dims=("person", "item"))
        prior = pm.sample_prior_predictive(50, random_seed=1)
    drawn = prior.prior_predictive["y"]
    assert drawn.dims == ("chain", "draw", "person", "item")
    assert set(np.unique(drawn)) == {0, 1}
    # Answers of a draw share its mean: an item's probability varies between draws.
    p = np.exp(log_ndtr(prior.prior["mean"].values[0]))
    assert np.corrcoef(p.ravel(), drawn.values[0].mean(axis=1).ravel())[0, 1] > 0.5


def test_refused():
    with pm.Model():
        with pytest.raises(ModelError, match="observed"):
            pb.MultivariateProbit("y", MEAN, FACTOR)
        with pytest.raises(ModelError, match="triangular"):
            pb.MultivariateProbit("y", MEAN, np.ones(3), observed=np.ones((1, 3), int))
        with pytest.raises(ModelError, match="below"):
            pb.TruncatedMvNormal("x", MEAN, FACTOR, 1.0, 0.0)
        with pytest.raises(ModelError, match="constants"):
            pb.TruncatedMvNormal("x", MEAN, FACTOR, np.zeros(2))


def test_points_are_fixed_within_a_model_and_fresh_in_an_estimate():
    y = np.array([[1, 0, 1], [0, 0, 1]])
    lower, upper = np.where(y, 0, -np.inf), np.where(y, np.inf, 0)
    with pm.Model() as model:
        pb.MultivariateProbit("y", pm.Normal("mean", 0, 1, shape=3), FACTOR, observed=y)
    log_p, at = model.compile_logp(), {"mean": MEAN}
    assert log_p(at) == log_p(at)
    rng = np.random.default_rng(1)
    pair = [
        estimate_log_likelihood(MEAN[None, None] + np.zeros((1, 2, 1)), FACTOR[None], lower, upper, rng) for _ in "ab"
    ]
    assert pair[0] != pair[1]
