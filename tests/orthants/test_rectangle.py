"""The public call: degenerate rectangles, ways to give a covariance, batches, seeds, and results that are not trusted."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import log_ndtr, logsumexp

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.orthants.closed import bivariate
from ppl_backends.orthants.intervals import log_interval
from ppl_backends.orthants.student import radius_nodes
from tests.orthants import exact
from tests.statistics import t_bound

INF = np.inf
COV = np.array([[1.0, 0.3, 0.5], [0.3, 2.0, -0.2], [0.5, -0.2, 1.5]])


def log_p(*args, **kwargs):
    result = pb.rectangle_probability(*args, random_seed=1, **kwargs)
    assert result.trusted, result.reasons
    return result.log_p


@pytest.mark.parametrize(
    ("args", "truth"),
    [
        ((4.0, 60, 62), -454.32124395634325),
        (([[4.0]], [60], [62]), -454.32124395634325),
        ((np.ones((4, 4)), [-1, -2, 0, -3], [1, 0.5, 2, 3]), np.log(np.exp(log_ndtr(0.5)) - 0.5)),
        (([[1, -1], [-1, 1]], [-1, -0.5], [1, 2]), np.log(np.exp(log_ndtr(0.5)) - np.exp(log_ndtr(-1)))),
        ((np.ones((2, 2)), [-1, 1.5], [1, 2]), -INF),
        ((COV, [0, 0, 0], [1, 0, 1]), -INF),
        ((COV, None, None), 0.0),
        ((COV, [-INF, 0, -INF], INF), np.log(0.5)),
        ((np.diag([1.0, 0, 1]), -1, 1), 2 * log_interval(np.array([-1.0]), np.array([1.0]))[0]),
        ((np.diag([1.0, 0, 1]), 0.5, 1), -INF),
        ((np.diag([1.0, 4, 9]), [0, 1, 2], [1, 2, 8]), None),
    ],
    ids=["d = 1", "1 × 1", "ρ = 1", "ρ = -1", "apart", "equal", "free", "one", "constant", "outside", "diagonal"],
)
def test_degenerate_rectangles_need_no_points(args, truth):
    result = pb.rectangle_probability(*args)
    if truth is None:
        truth = log_interval(np.array([0, 0.5, 2 / 3]), np.array([1, 1, 8 / 3])).sum()
    assert result.log_p == pytest.approx(truth, abs=1e-12, rel=1e-14)
    assert (result.log_p_se, result.method, result.trusted) == (0.0, "closed_form", True)


def test_thin_and_far_rectangles():
    at = np.array([0.1, 0.2, 0.5])
    density = stats.multivariate_normal(cov=COV).logpdf(at)
    assert log_p(COV, at, at + 1e-9) == pytest.approx(density + 3 * np.log(1e-9), abs=1e-6)
    far = log_p(exact.exchangeable(3), 30, 31, method="tilting")
    assert far == pytest.approx(log_p(exact.exchangeable(3), -31, -30, method="tilting"), abs=1e-4)
    assert far == pytest.approx(log_p(exact.exchangeable(3), 30, 31), abs=1e-4)
    assert np.isfinite(log_p(COV, -40, -39.9))


def test_two_dimensions():
    for rho in (0.3, -0.9, 0.999999, -0.99999999):
        cov = np.array([[1, rho], [rho, 1]])
        orthant = 0.25 + np.arcsin(rho) / (2 * np.pi)
        assert bivariate(cov, np.zeros(2), np.full(2, INF)) == pytest.approx(np.log(orthant), abs=1e-9)
        for lower, upper in [([-1, 0], [0.5, 2]), ([-INF, -0.3], [0.2, INF])]:
            corners = stats.multivariate_normal(cov=cov, allow_singular=True).cdf(upper, lower_limit=lower)
            if corners > 1e-12:
                assert bivariate(cov, np.array(lower), np.array(upper)) == pytest.approx(np.log(corners), abs=1e-8)
    deep = bivariate(exact.exchangeable(2), np.full(2, 30.0), np.full(2, 31.0))
    assert deep == pytest.approx(log_p(exact.exchangeable(2), 30, 31, method="tilting"), abs=1e-4)


def test_duplicates_are_one_variable():
    index = [0, 1, 2, 0]
    double = log_p(COV[np.ix_(index, index)], [-1, -1, -1, 0], [1, 1, 1, 2])
    assert double == pytest.approx(log_p(COV, [0, -1, -1], 1), abs=1e-9)


@pytest.mark.parametrize("method", ["auto", "tilted_smc", "ghk", "ridgway"])
def test_rank_deficient(method):
    loadings = np.random.default_rng(0).normal(size=(6, 3))
    nodes, weights = np.polynomial.legendre.leggauss(160)
    f, w = 8 * nodes, 8 * weights * np.exp(-32 * nodes**2) / np.sqrt(2 * np.pi)
    total = 0.0
    for x, weight in zip(f, w, strict=True):  # the last factor's interval is exact
        at = loadings[:, :1] * x + np.outer(loadings[:, 1], f)
        ends = np.stack([-1 - at, 1.5 - at]) / loadings[:, 2:]
        low, high = np.sort(ends, axis=0)
        low, high = low.max(axis=0), np.maximum(low.max(axis=0), high.min(axis=0))
        total += weight * w @ np.exp(log_interval(low, high))
    result = pb.rectangle_probability(loadings @ loadings.T, -1, 1.5, method=method, random_seed=2)
    assert abs(result.log_p - np.log(total)) <= t_bound(result.log_p_df) * result.log_p_se + 1e-3
    again = pb.rectangle_probability(loadings=loadings, lower=-1, upper=1.5, method=method, random_seed=2)
    assert again.log_p == pytest.approx(result.log_p, abs=1e-9)


def test_a_mean_shifts_the_bounds():
    mean = np.array([1.0, 2.0, 3.0])
    assert log_p(COV, 0, 4, mean=mean) == pytest.approx(log_p(COV, -mean, 4 - mean), abs=1e-12)


@pytest.mark.parametrize("name", ["ρ = 1", "duplicates", "rank two", "mean"])
def test_broken_twins_of_degenerate_rectangles(name):
    """A ridge that makes a singular covariance regular, and a mean that is left out, are far off what is returned."""
    index, factor = [0, 1, 2, 0], np.array([[1.0, 0.2], [-0.4, 1.0], [0.7, 0.7], [0.6, -1.0]])
    ridge = {"ρ = 1": 1e-2, "duplicates": 0.1, "rank two": 0.1, "mean": 0.0}[name]
    given = {
        "ρ = 1": (np.ones((4, 4)), 0, INF),
        "duplicates": (COV[np.ix_(index, index)], [-1, -1, -1, 0], [1, 1, 1, 2]),
        "rank two": (factor @ factor.T, 0, INF),
        "mean": (COV, 0, 4),
    }[name]
    mean = np.array([1.0, 2.0, 3.0]) if name == "mean" else None
    result = pb.rectangle_probability(*given, mean=mean, random_seed=1)
    twin = pb.rectangle_probability(given[0] + ridge * np.eye(len(given[0])), *given[1:], random_seed=1)
    x = np.random.default_rng(2).multivariate_normal(np.zeros(len(given[0])), given[0], 400_000, method="svd")
    x += 0.0 if mean is None else mean
    inside = ((x >= given[1]) & (x <= given[2])).all(axis=1)
    share, error = inside.mean(), inside.std() / np.sqrt(len(x))
    assert abs(np.exp(result.log_p) - share) < 5 * error
    assert abs(np.exp(twin.log_p) - share) > 10 * error


def test_ways_to_give_the_covariance():
    given = log_p(COV, 0)
    assert log_p(cholesky=np.linalg.cholesky(COV), lower=0) == pytest.approx(given, abs=1e-9)
    values, vectors = np.linalg.eigh(COV)
    loadings = (vectors * np.sqrt(values - 0.5))[:, :]
    assert log_p(loadings=loadings, diagonal=np.full(3, 0.5), lower=0) == pytest.approx(given, abs=1e-3)
    assert log_p(diagonal=[1.0, 4.0], lower=0) == pytest.approx(2 * np.log(0.5))


def test_batches_have_the_shape_of_their_bounds():
    covs = np.stack([COV, 4 * COV])
    lower = np.zeros((3, 1, 3)) + np.array([0, 1, 2.0])[:, None, None]
    result = pb.rectangle_probability(covs, lower, random_seed=3)
    assert result.log_p.shape == result.trusted.shape == result.method.shape == (3, 2)
    single = pb.rectangle_probability(4 * COV, lower[2, 0], random_seed=4)
    assert abs(result.log_p[2, 1] - single.log_p) <= 8 * (result.log_p_se[2, 1] + single.log_p_se)
    assert (np.diff(result.log_p, axis=0) < 0).all()


def test_the_same_seed_gives_the_same_number():
    for method in ("tilting", "tilted_smc"):
        first, second = (pb.rectangle_probability(COV, 0, method=method, random_seed=5) for _ in range(2))
        assert first == second


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"lower": [0, 0, 2], "upper": 1}, "lower is above upper: 2 > 1 for variable 2"),
        ({"lower": INF}, "leaves an empty rectangle"),
        ({"lower": 1e160}, "a bound is 1e+160 from the mean, and its square overflows"),
        ({"lower": [0, 0]}, "lower has 2 entries and the covariance 3 variables"),
        ({"cov": [[1, 0.5], [0.4, 1]]}, "cov is not symmetric"),
        ({"cov": [[1, 2], [2, 1]]}, "not positive semidefinite"),
        ({"cov": np.ones(3)}, "a square matrix is expected"),
        ({"cov": None}, "give the covariance once"),
        ({"cholesky": np.eye(3)}, "give the covariance once"),
        ({"cov": None, "diagonal": [-1.0, 1]}, "entry below zero"),
        ({"lower": np.zeros((2, 3)), "upper": np.ones((3, 3))}, "do not fit each other"),
        ({"lower": 0, "method": "particle_filter"}, "not that of a chain"),
        ({"lower": 0, "method": "closed_form"}, "is for independent variables"),
        ({"lower": 0, "method": "low_rank"}, "not a diagonal plus a matrix of low rank"),
    ],
)
def test_refused_in_one_line(kwargs, message):
    with pytest.raises(ModelError) as caught:
        pb.rectangle_probability(**{"cov": COV} | kwargs)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("df", [0.3, 1, 3, 30, 1e4])
def test_student_in_one_dimension_and_its_broken_twin(df):
    for bound in (-1.0, 2.0, 20.0):
        if df < 1e4 or bound < 20:
            truth = stats.t.logsf(bound, df)
            assert pb.rectangle_probability(1.0, bound, df=df).log_p == pytest.approx(truth, abs=2e-7)
    radii, log_weights = radius_nodes(df, lambda radius: float(log_ndtr(-2 * radius)))
    printed = logsumexp(log_weights + log_ndtr(-2 * radii**2))  # u / ν in place of its root
    assert df > 50 or abs(printed - stats.t.logsf(2, df)) > 1e-3
    _, log_weights = radius_nodes(df, lambda radius: 0.0)
    assert logsumexp(log_weights) == pytest.approx(0, abs=1e-6)


def test_student_of_infinitely_many_degrees_is_gaussian_and_orthants_do_not_depend_on_them():
    assert log_p(COV, 0.5, df=INF) == log_p(COV, 0.5)
    assert log_p(COV, 0, df=4) == pytest.approx(log_p(COV, 0), abs=1e-6)


def test_low_efficiency_is_not_trusted():
    """Tilting at T = 1,000 and GHK on a ranking both report errors that are not reliable."""
    for cov, upper, method in [(exact.autoregression(1000), 15, "tilting"), (exact.ranking(40), INF, "ghk")]:
        result = pb.rectangle_probability(cov, 0, upper, method=method, n_points=512, random_seed=6)
        assert not result.trusted
        assert "efficiency" in result.reasons[0]
    assert result.log_p + 110.3206 < -10  # and GHK is wrong by far more than it says
    assert result.log_p_se < 2


def test_auto_leaves_tilting_where_it_is_not_enough():
    assert pb.rectangle_probability(*exact.cauchy(180), random_seed=7).method == "tilted_smc"


def test_one_factor_with_little_noise_and_one_sided_bounds():
    # X_i = √0.999 f + √0.001 Z_i ≥ 4, i = 1..50. EP's standard deviation of f is four times too small here.
    def log_integrand(f):
        return 50 * stats.norm.logsf((4 - np.sqrt(0.999) * f) / np.sqrt(0.001)) + stats.norm.logpdf(f)

    peak = log_integrand(4.15)
    truth = peak + np.log(
        quad(lambda f: np.exp(log_integrand(f) - peak), 3.9, 9.0, points=[4.0, 4.2, 4.5], limit=200)[0]
    )
    cov = np.full((50, 50), 0.999) + 0.001 * np.eye(50)
    results = [pb.rectangle_probability(cov, 4.0, random_seed=seed) for seed in range(8)]
    errors = np.array([result.log_p - truth for result in results])
    assert {result.method for result in results} == {"low_rank"}
    assert all(result.trusted for result in results)
    assert np.abs(errors).max() < 1e-3
    assert (np.abs(errors) < stats.t.ppf(0.9995, 7) * np.array([result.log_p_se for result in results])).all()
