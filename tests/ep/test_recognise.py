"""Sites known by their values alone, or tabulated at as many points as they need."""

import numpy as np
import pymc as pm
import pytest
from scipy.special import gammaln, log_ndtr, xlogy
from scipy.stats import norm

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.targets.factors import NegativeBinomial, NormalMixture
from ppl_backends.targets.factors.recognise import recognise
from ppl_backends.targets.stan.factors.quantities import Predictor
from ppl_backends.targets.stan.factors.sites import TabulatedSites, likelihood_sites

RNG = np.random.default_rng(0)
Y, EXPOSURE = RNG.integers(0, 60, size=40), RNG.normal(size=40)


class Program:
    """A program whose ``log_lik`` is a function of one predictor, θ itself, and which counts its evaluations."""

    label = "sites"

    def __init__(self, log_site, n):
        self.n, self.evaluations, self._log_site = n, 0, log_site

    def log_lik(self, points):
        self.evaluations += len(points)
        return self._log_site(np.repeat(points, self.n, axis=1))


@pytest.mark.parametrize("alpha", [0.01, 0.5, 3.7, 300.0, 1e5])
def test_negative_binomial_counts_with_exposures(alpha):
    def log_site(s):
        eta = s + EXPOSURE
        constant = gammaln(Y + alpha) - gammaln(alpha) - gammaln(Y + 1) + alpha * np.log(alpha)
        return constant + Y * eta - (Y + alpha) * np.logaddexp(np.log(alpha), eta)

    found = recognise(log_site, len(Y))
    assert isinstance(found.family, NegativeBinomial)
    np.testing.assert_allclose(found.family.y, Y, atol=1e-9)
    np.testing.assert_allclose(found.family.alpha, alpha, rtol=1e-9)
    np.testing.assert_allclose(found.shift, EXPOSURE, atol=1e-9)


def with_complement(mean, alpha):
    """Return log densities of the counts as PyMC computes them: 1 − p is zero far on the left, and NaN far on the right."""

    def log_site(s):
        with np.errstate(all="ignore"):
            p = alpha / (mean(s) + alpha)
            return gammaln(Y + alpha) - gammaln(alpha) - gammaln(Y + 1) + xlogy(alpha, p) + xlogy(Y, 1 - p)

    return log_site


@pytest.mark.parametrize("alpha", [0.3, 2.5, 80.0])
@pytest.mark.parametrize("mean", [lambda s: np.exp(EXPOSURE) * np.exp(s), lambda s: np.exp(s + EXPOSURE)])
def test_a_negative_binomial_that_computes_a_complement(alpha, mean):
    found = recognise(with_complement(mean, alpha), len(Y))
    assert isinstance(found.family, NegativeBinomial)
    np.testing.assert_array_equal(found.family.y, Y)
    np.testing.assert_allclose(found.family.alpha, alpha, rtol=1e-9)
    np.testing.assert_allclose(found.shift, EXPOSURE, atol=1e-9)
    assert recognise(with_complement(mean, alpha), len(Y), found) is not None


@pytest.mark.parametrize(
    "mean", [lambda s: np.logaddexp(0.0, s), lambda s: np.exp(1.001 * s), lambda s: np.exp(s) + 1e-5]
)
def test_other_means_are_no_negative_binomial_of_a_linear_predictor(mean):
    assert recognise(with_complement(mean, 2.0), len(Y)) is None


MIXTURES = {
    "narrow spike": ([0.5, 0.5], [0.0, 0.0], [1e-6, 5.0]),
    "wide spike": ([0.3, 0.7], [0.0, 0.0], [0.5, 1.0]),
    "spike beside the origin": ([0.3, 0.7], [0.01, 0.4], [0.1, 1.5]),
    "two sides": ([0.3, 0.7], [-2.0, 2.0], [1.0, 1.0]),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_two_normal_components_are_found_by_values(name):
    weights, means, sds = MIXTURES[name]
    truth = NormalMixture(weights, means, sds, n=3)
    found = recognise(lambda s: truth.log_site(s) - 3.0, 3)
    assert isinstance(found.family, NormalMixture)
    np.testing.assert_allclose(np.exp(found.family.log_weights), np.exp(truth.log_weights), rtol=1e-8)
    np.testing.assert_allclose(found.family.means, truth.means, atol=1e-8)
    np.testing.assert_allclose(found.family.sds, truth.sds, rtol=1e-8)
    np.testing.assert_allclose(found.constant, -3.0, atol=1e-8)


@pytest.mark.parametrize("sds", [[0.1, 1.0, 3.0], [1e-4, 1e-2, 3.0]])
def test_three_components_are_not_taken_for_two(sds):
    truth = NormalMixture([0.5, 0.3, 0.2], [0.0, 0.0, 0.0], sds)
    assert recognise(truth.log_site, 1) is None


def zero_inflated(s):
    """Return a Poisson count of mean exp(s) that is zero with probability 0.3 besides."""
    counts = Y[:5] * (Y[:5] > 20)
    poisson = counts * s - np.exp(np.minimum(s, 50)) - gammaln(counts + 1)
    return np.where(counts == 0, np.logaddexp(np.log(0.3), np.log(0.7) + poisson), np.log(0.7) + poisson)


def narrow(s):
    """Return a bend of width 0.01 at one, where the nodes of the first table are 0.025 apart."""
    return -0.01 * np.logaddexp(0.0, (s - 1.0) / 0.01)


@pytest.mark.parametrize(("log_site", "few"), [(zero_inflated, True), (narrow, False)])
def test_a_table_has_the_points_that_its_sites_need(log_site, few):
    program = Program(log_site, 5)
    family, *_ = likelihood_sites(program, Predictor("eta", np.ones((5, 1)), np.zeros(5)))
    assert isinstance(family, TabulatedSites)
    s = np.random.default_rng(1).uniform(-6, 5, size=(1000, 5))
    np.testing.assert_allclose(family.log_site(s), log_site(s), rtol=1e-7, atol=1e-7)
    assert (program.evaluations < 1200) is few


@pytest.mark.parametrize("scale", np.exp(np.linspace(-1, 2, 31)))
def test_a_truncated_normal_is_not_taken_for_a_mixture_of_impossible_weights(scale):
    """Its log density is linear far on the left, where the curvature is that of rounding errors."""
    below = np.array([1.2, 1.5, 2.0])

    def log_site(s):
        return -0.5 * ((below - s) / scale) ** 2 - log_ndtr((s - 1.0) / scale)

    assert recognise(log_site, 3) is None


@pytest.mark.slow
def test_ep_and_nested_laplace_of_a_truncated_normal_with_an_unknown_scale():
    """The evidence and the mean of ``mu`` are those of a grid of 2,000 × 1,000 points."""
    y = 1 + np.array([0.03, 0.11, 0.14, 0.22, 0.31, 0.35, 0.48, 0.52, 0.71, 0.78, 0.95, 1.3])
    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 3), pm.HalfNormal("sigma", 3)
        pm.Truncated("y", pm.Normal.dist(mu, sigma), lower=1.0, upper=None, observed=y)
    at, log_sigma = np.linspace(-25, 8, 2000)[:, None], np.linspace(-4, 3, 1000)
    scale = np.exp(log_sigma)
    log_density = norm.logpdf(at, 0, 3) + norm.logpdf(scale, 0, 3) + np.log(2) + log_sigma
    for value in y:
        log_density = log_density + norm.logpdf(value, at, scale) - log_ndtr((at - 1.0) / scale)
    density = np.exp(log_density - log_density.max())
    cell = (at[1, 0] - at[0, 0]) * (log_sigma[1] - log_sigma[0])
    log_evidence = np.log(density.sum() * cell) + log_density.max()
    mean, square = ((density * at**k).sum() / density.sum() for k in (1, 2))
    for q in (pb.fit_ep(model, progressbar=False), pb.fit_inla(model, progressbar=False)):
        assert q.converged
        assert abs(q.log_evidence - log_evidence) < 0.01
        assert abs(q.mean[0] - mean) < 0.1 * np.sqrt(square - mean**2)


@pytest.mark.parametrize("fit", [pb.fit_ep, pb.fit_inla])
def test_an_error_names_the_hyper_parameters_without_an_approximation(fit):
    with pm.Model() as model:
        total, sigma = pm.Flat("a") + pm.Flat("b"), pm.HalfNormal("sigma", 1)
        pm.Normal("y", total, sigma, observed=[1.0, 2.0, 3.0])
    with pytest.raises(ModelError, match=r"no proper approximation at sigma_log__ = 0\.1; use sample_smc"):
        fit(model, progressbar=False)
