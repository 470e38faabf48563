"""Factors as data and as a target."""

import numpy as np
import pytest
from scipy import sparse, stats

import ppl_backends as pb
from ppl_backends.approximations.ep import (
    Factors,
    FactorsTarget,
    Laplace,
    Logit,
    NegativeBinomial,
    Normal,
    Poisson,
    Probit,
    StudentT,
)
from ppl_backends.errors import ModelError, PriorSamplingError


@pytest.fixture
def factors():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 4))
    return Factors(
        [X, np.eye(4)],
        np.r_[np.full(30, 0.2), np.zeros(4)],
        [Poisson(rng.poisson(1.0, 30)), StudentT(np.zeros(4), 1.0, 2.5)],
        np.arange(4.0) / 4,
        np.diag(np.arange(1.0, 5.0)),
        log_constant=0.7,
        observed=np.r_[np.ones(30, bool), np.zeros(4, bool)],
    )


def test_log_density_is_the_product_of_its_factors(factors):
    theta = np.random.default_rng(1).normal(size=(3, 4))
    X, y = factors.design[:30], factors.sites.families[0].y
    prior = stats.multivariate_normal(np.arange(4.0) / 4, np.diag(1 / np.arange(1.0, 5.0))).logpdf(theta)
    prior += stats.cauchy(scale=2.5).logpdf(theta).sum(axis=1)
    likelihood = stats.poisson(np.exp(theta @ X.T + 0.2)).logpmf(y).sum(axis=1) + 0.7
    evaluation = FactorsTarget(factors).evaluate(theta, gradient=True)
    np.testing.assert_allclose(evaluation.log_prior, prior, rtol=1e-12)
    np.testing.assert_allclose(evaluation.log_likelihood, likelihood, rtol=1e-12)


def test_gradient_and_hessian_agree_with_differences(factors):
    target = FactorsTarget(factors)
    theta = np.random.default_rng(1).normal(size=(2, 4))
    steps = 1e-5 * np.eye(4)
    _, gradient = target.log_density_and_gradient(theta)
    differences = np.stack(
        [(target.log_density(theta + s) - target.log_density(theta - s)) / 2e-5 for s in steps], axis=1
    )
    np.testing.assert_allclose(gradient, differences, rtol=1e-6, atol=1e-6)
    slopes = [
        (target.log_density_and_gradient(theta + s)[1] - target.log_density_and_gradient(theta - s)[1]) for s in steps
    ]
    np.testing.assert_allclose(target.hessian(theta), np.stack(slopes, axis=1) / 2e-5, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_observations_by_index(factors, kind):
    factors = Factors(kind(factors.design), factors.offset, factors.sites, 0.0, 1.0, observed=factors.observed)
    target = FactorsTarget(factors)
    x = np.random.default_rng(2).normal(size=(3, 4))
    whole = target.observations.log_likelihood(x)
    assert target.observations.n == 30
    np.testing.assert_allclose(whole.sum(axis=1), target.evaluate(x).log_likelihood)
    shared, own = np.array([5, 2, 2]), np.array([[0, 1], [2, 3], [29, 29]])
    np.testing.assert_allclose(target.observations.log_likelihood(x, shared), whole[:, shared])
    np.testing.assert_allclose(target.observations.log_likelihood(x, own), np.take_along_axis(whole, own, axis=1))
    total, gradient = target.observations.sum(x, np.arange(30), gradient=True)
    np.testing.assert_allclose(total, target.evaluate(x).log_likelihood)
    np.testing.assert_allclose(gradient, target.evaluate(x, gradient=True).log_likelihood_gradient)


def test_prior_draws_follow_the_gaussian(factors):
    root = np.tril(np.ones((3, 3)))
    target = FactorsTarget(Factors(np.eye(3), None, Logit([0, 1, 1]), [1.0, 2.0, 3.0], root @ root.T))
    x = target.sample_prior(40_000, np.random.default_rng(0))
    cov = np.linalg.inv(root @ root.T)
    assert np.abs((x.mean(axis=0) - [1, 2, 3]) / np.sqrt(np.diag(cov) / 40_000)).max() < 5
    np.testing.assert_allclose(np.cov(x.T), cov, atol=5 * 2 * cov.max() / 200)


def test_a_prior_with_sites_cannot_be_drawn(factors):
    with pytest.raises(PriorSamplingError):
        FactorsTarget(factors).sample_prior(1, np.random.default_rng(0))


BAD = {
    "sites": {"log_site": Logit([0, 1])},
    "finite": {"design": np.array([[np.nan, 1.0], [0.0, 1.0], [1.0, 1.0]])},
    "offset": {"offset": np.zeros(4)},
    "semi-definite": {"prior_precision": np.array([1.0, -1.0])},
    "symmetric": {"prior_precision": np.array([[1.0, 1.0], [0.0, 1.0]])},
    "prior_mean": {"prior_mean": np.zeros(3)},
    "design has shape": {"design": np.zeros(3)},
    "names": {"names": ("a",)},
    "log_site": {"log_site": 3.0},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_factors_are_refused(message):
    good = {
        "design": np.ones((3, 2)),
        "offset": 0.0,
        "log_site": Logit([0, 1, 1]),
        "prior_mean": 0.0,
        "prior_precision": 1.0,
    }
    with pytest.raises(ModelError, match=message):
        Factors(**(good | BAD[message]))


def test_outcomes_must_be_binary():
    with pytest.raises(ModelError, match="0/1 or -1/"):
        Logit([0, 1, 2])


@pytest.mark.parametrize("family", [Normal, Laplace, NegativeBinomial])
def test_scales_must_be_positive(family):
    with pytest.raises(ModelError, match="must be positive"):
        family([1.0, 2.0], -1.0)


@pytest.mark.parametrize("power", [1.0, 0.5])
@pytest.mark.parametrize("family", ["logit", "probit", "poisson", "normal"])
def test_a_compiled_sum_over_many_rows_is_the_sum_over_blocks(family, power, monkeypatch):
    rng = np.random.default_rng(3)
    design, points = rng.standard_normal((200, 3)), rng.standard_normal((5, 3))
    sites = {
        "logit": lambda: Logit(rng.integers(0, 4, 200), trials=np.full(200, 3)),
        "probit": lambda: Probit(rng.integers(0, 2, 200)),
        "poisson": lambda: Poisson(rng.poisson(2, 200)),
        "normal": lambda: Normal(rng.standard_normal(200), 0.7),
    }[family]()
    factors = Factors(design, 0.3, sites, 0.0, 0.5, log_constant=1.5).tempered(power)
    blocks = FactorsTarget(factors).evaluate(points, gradient=True)
    monkeypatch.setattr("ppl_backends.targets.factors.factorisation.COMPILED_SITES", 200)
    compiled = FactorsTarget(factors).evaluate(points, gradient=True)
    for part in ("log_prior", "log_likelihood", "log_prior_gradient", "log_likelihood_gradient"):
        np.testing.assert_allclose(getattr(compiled, part), getattr(blocks, part), rtol=1e-9, atol=1e-9)


def test_laplace_looks_for_no_other_mode_of_a_log_concave_posterior(monkeypatch):
    def search(*_):
        raise AssertionError("searched")

    monkeypatch.setattr("ppl_backends.approximations.elsewhere.find_other_mode", search)
    design = np.random.default_rng(4).standard_normal((60, 2))
    one_mode = FactorsTarget(Factors(design, 0.0, Poisson(np.arange(60) % 3), 0.0, 1.0))
    assert pb.fit_laplace(one_mode, progressbar=False).converged
    tails = FactorsTarget(Factors(design, 0.0, StudentT(design[:, 0], 4.0, 1.0), 0.0, 1.0))
    with pytest.raises(AssertionError, match="searched"):
        pb.fit_laplace(tails, progressbar=False)
