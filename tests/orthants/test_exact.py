"""Every row of the table of exact values: the error is within the standard error that is reported."""

import numpy as np
import pytest
from scipy import stats

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.targets.factors import Factors, Probit
from tests.orthants import exact
from tests.statistics import FALSE_FAILURE, t_bound

INF = np.inf


def assert_right(result, truth, most=INF, allowance=1e-7):
    assert result.trusted, result.reasons
    bound = t_bound(result.log_p_df) if np.isfinite(result.log_p_df) else 0.0
    assert abs(result.log_p - truth) <= bound * result.log_p_se + allowance, (result.log_p - truth, result.log_p_se)
    assert result.log_p_se <= most


def test_oracles_agree_with_the_table():
    for length, value in [(50, -12.129288), (200, -46.804072), (500, -116.153641)]:
        assert abs(exact.log_autoregression(0.7, np.zeros(length), np.full(length, 15.0)) - value) < 1e-6
    for dim, value in [(64, -16.019739), (256, -56.813992)]:
        assert abs(exact.log_two_factors(*exact.factors(dim)) - value) < 1e-6
    ones = np.ones(1000)
    assert abs(exact.log_one_factor(np.sqrt(0.9) * ones, 0.1 * ones, ones, 3 * ones)[0] + 6.338041) < 1e-6


@pytest.mark.parametrize("dim", [3, 16, 64, 200])
@pytest.mark.parametrize("method", ["auto", "tilting", "tilted_smc"])
def test_exchangeable_orthants(dim, method):
    result = pb.rectangle_probability(exact.exchangeable(dim), lower=0, method=method, random_seed=1)
    assert_right(result, -np.log(dim + 1), 0.01)


@pytest.mark.parametrize(
    ("method", "length"), [("auto", 50), ("auto", 200), ("tilted_smc", 200), ("particle_filter", 500)]
)
def test_autoregressions_in_a_box(method, length):
    result = pb.rectangle_probability(exact.autoregression(length), 0, 15, method=method, random_seed=2)
    assert_right(result, exact.log_autoregression(0.7, np.zeros(length), np.full(length, 15.0)), 0.03)


def test_autoregressions_with_bounds_of_their_own():
    g = np.random.default_rng(3)
    lower = g.normal(-1, 1, 40)
    upper = lower + g.uniform(0.3, 3, 40)
    truth = exact.log_autoregression(-0.6, lower, upper)
    for method in ("tilting", "tilted_smc", "particle_filter"):
        result = pb.rectangle_probability(exact.autoregression(40, -0.6), lower, upper, method=method, random_seed=4)
        assert_right(result, truth, 0.01)


@pytest.mark.parametrize("items", [10, 40, 200])
@pytest.mark.parametrize("method", ["auto", "particle_filter"])
def test_rankings(items, method):
    result = pb.rectangle_probability(exact.ranking(items), lower=0, method=method, random_seed=5)
    assert_right(result, exact.log_ranking(items), 0.02)


@pytest.mark.parametrize("dim", [64, 256])
def test_factors_from_loadings_and_from_the_covariance(dim):
    loadings, noise, lower = exact.factors(dim)
    truth = exact.log_two_factors(loadings, noise, lower)
    few = pb.rectangle_probability(loadings=loadings, diagonal=noise, lower=lower, random_seed=6)
    assert few.method == "low_rank"
    assert_right(few, truth, 1e-3)
    many = pb.rectangle_probability(loadings @ loadings.T + np.diag(noise), lower, method="tilting", random_seed=6)
    assert_right(many, truth, 0.01)


@pytest.mark.parametrize(("dim", "value", "error"), [(40, -32.667, 0.004), (60, -53.01, 0.006), (180, -185.70, 0.01)])
def test_cauchy_covariances(dim, value, error):
    result = pb.rectangle_probability(*exact.cauchy(dim), random_seed=7)
    assert_right(result, value, 0.05, allowance=4 * error)


LARGE = {
    "exchangeable": lambda dim: (exact.exchangeable(dim), 0, INF, -np.log(dim + 1)),
    "strongly exchangeable": lambda dim: (exact.exchangeable(dim, 0.9), 1, 3, {400: -4.975021, 1000: -6.338041}[dim]),
    "autoregression": lambda dim: (exact.autoregression(dim), 0, 15, {400: -93.037118, 1000: -231.736256}[dim]),
    "ranking": lambda dim: (exact.ranking(dim), 0, INF, exact.log_ranking(dim)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize(("method", "dim"), [("auto", 1000), ("tilted_smc", 400)])
def test_hundreds_of_dimensions(kind, method, dim):
    cov, lower, upper, truth = LARGE[kind](dim)
    assert_right(pb.rectangle_probability(cov, lower, upper, method=method, random_seed=8), truth, 0.05)


@pytest.mark.slow
def test_intervals_cover_the_truth():
    """95 % intervals over 24 seeds."""
    cov, options = exact.autoregression(200), {"method": "particle_filter"}
    results = [pb.rectangle_probability(cov, 0, 15, random_seed=seed, **options) for seed in range(24)]
    trusted = [r for r in results if r.trusted]
    assert len(trusted) >= 19
    inside = [abs(r.log_p + 46.804072) <= t_bound(r.log_p_df, rate=0.05) * r.log_p_se for r in trusted]
    assert sum(inside) >= stats.binom.ppf(FALSE_FAILURE, len(inside), 0.95)


def test_expectation_propagation_of_an_orthant_is_that_of_its_model():
    loadings, noise, lower = exact.factors(64)
    whole = pb.rectangle_probability(loadings @ loadings.T + np.diag(noise), lower, method="ep")
    few = pb.rectangle_probability(loadings=loadings, diagonal=noise, lower=lower, method="ep")
    assert abs(whole.log_p - few.log_p) < 1e-6
    assert abs(few.log_p - exact.log_two_factors(loadings, noise, lower)) < 0.005
    assert np.isnan(few.log_p_se)
    assert not few.trusted
    ar = pb.rectangle_probability(exact.autoregression(50), 0, 15, method="ep")
    assert abs(ar.log_p + 12.129288 + 0.225) < 0.001


def probit_orthant(name, intercept=20.0, slope=5.0):
    """A probit regression as an orthant: loadings of its predictors times their outcomes, under Gaussian priors."""
    data = load_binary_regression(name)
    return np.where(data.y, 1.0, -1.0)[:, None] * data.X * np.where(np.arange(data.X.shape[1]), slope, intercept)


@pytest.mark.parametrize(
    ("name", "prior", "value"),
    [("pima", (20, 5), -263.7222), ("heart", (20, 5), -134.8905), ("german_credit", (1, 1), -541.7938)],
)
def test_evidences_of_probit_regressions(name, prior, value):
    loadings = probit_orthant(name, *prior)
    n, k = loadings.shape
    result = pb.rectangle_probability(loadings=loadings, diagonal=np.ones(n), lower=0, random_seed=1)
    assert result.method == "low_rank"
    assert result.log_p_se < 1e-3
    assert abs(result.log_p - value) < 1e-3 + 4 * result.log_p_se
    ep = pb.rectangle_probability(loadings=loadings, diagonal=np.ones(n), lower=0, method="ep")
    model = pb.fit_ep(Factors(loadings, 0.0, Probit(np.ones(n)), prior_mean=0.0, prior_precision=np.ones(k)))
    assert ep.log_p == pytest.approx(model.log_evidence, abs=1e-4)


@pytest.mark.parametrize(("lower", "dim", "value"), [(0.5, 10, -3.459306), (-1.0, 50, -1.511130)])
@pytest.mark.parametrize(
    "method",
    ["auto", pytest.param("tilting", marks=pytest.mark.slow), pytest.param("tilted_smc", marks=pytest.mark.slow)],
)
def test_student_vectors(lower, dim, value, method):
    result = pb.rectangle_probability(exact.exchangeable(dim), lower, df=3, method=method, random_seed=11)
    assert_right(result, value, 1e-3, allowance=2e-6)


def test_broken_twin_the_greedy_order_without_a_tilt():
    """The order takes the chain apart, and the spread of GHK's scrambles does not show how far it is off."""
    result = pb.rectangle_probability(exact.ranking(40), lower=0, method="ghk", random_seed=7)
    assert abs(result.log_p - exact.log_ranking(40)) > 10 * result.log_p_se
    assert not result.trusted


def test_broken_twin_a_standard_error_at_low_efficiency():
    """Tilting alone on a Cauchy covariance has few points with large weights and says so; resampling corrects this."""
    cov, lower = exact.cauchy(180)
    alone = pb.rectangle_probability(cov, lower, method="tilting", n_points=1024, random_seed=1)
    assert alone.efficiency < 0.1
    assert not alone.trusted
    together = pb.rectangle_probability(cov, lower, random_seed=1)
    assert together.method == "tilted_smc"
    assert together.trusted
    assert abs(together.log_p + 185.70) < 4 * np.hypot(together.log_p_se, 0.01)
