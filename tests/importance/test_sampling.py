"""Importance sampling on targets with known evidence and moments, its error bars, and its figures."""

import numpy as np
import pytest
from scipy.special import digamma, expit, gammaln, log_expit, polygamma
from scipy.stats import norm
from scipy.stats import t as student

from ppl_backends.approximations import GaussianApproximation
from ppl_backends.errors import ApproximationWarning, ModelError, SamplerWarning
from ppl_backends.importance import sample_importance
from ppl_backends.results.inference_data import group
from ppl_backends.targets import FunctionTarget

MEAN, COV = np.array([1.0, -2.0]), np.array([[2.0, 0.6], [0.6, 0.5]])
SHAPE, RATE, LOG_EVIDENCE = 6.0, 2.0, -11.5


def gaussian_target():
    precision = np.linalg.inv(COV)

    def log_density(x):
        pull = -(x - MEAN) @ precision
        return 3.0 + 0.5 * (pull * (x - MEAN)).sum(1), pull

    return FunctionTarget(2, log_density)


def log_gamma_target(dim=1):
    """Return logs of Gamma variables: skewed, of known evidence and moments."""

    def log_density(x):
        value = SHAPE * x - RATE * np.exp(x) + SHAPE * np.log(RATE) - gammaln(SHAPE)
        return value.sum(1) + LOG_EVIDENCE, SHAPE - RATE * np.exp(x)

    return FunctionTarget(dim, log_density)


SUCCESSES, PRIOR_SD = 6, 1.5
GRID = np.linspace(-12, 12, 20_001)
LOG_LOGISTIC = float(np.log(np.sum(norm.pdf(GRID, 0, PRIOR_SD) * expit(GRID) ** SUCCESSES) * (GRID[1] - GRID[0])))


def logistic_target(dim=2):
    """Independent logistic regressions with a normal prior: skewed, with weights from a wide Gaussian bounded."""

    def log_density(x):
        value = norm.logpdf(x, 0, PRIOR_SD) + SUCCESSES * log_expit(x)
        return value.sum(1), -x / PRIOR_SD**2 + SUCCESSES * expit(-x)

    target = FunctionTarget(dim, log_density)
    target.log_concave = True  # a search for other modes would take most of the time
    return target


def student_target(df=2.5):
    def log_density(x):
        return student.logpdf(x[:, 0], df), -(df + 1) * x / (df + x**2)

    return FunctionTarget(1, log_density)


def run(target, **options):
    options = {"progressbar": False, "random_seed": 1} | options
    return sample_importance(target, **options)


@pytest.mark.parametrize("qmc", [True, False])
def test_gaussian_target_has_efficiency_one(qmc):
    idata = run(gaussian_target(), draws=100, chains=2, qmc=qmc)
    attrs = group(idata, "posterior").attrs
    exact = 3.0 + np.log(2 * np.pi) + 0.5 * np.linalg.slogdet(COV)[1]
    assert attrs["log_evidence"] == pytest.approx(exact, abs=1e-8)
    assert attrs["log_evidence_se"] < 1e-8
    np.testing.assert_allclose(group(idata, "sample_stats")["efficiency_factor"], 1, atol=1e-8)
    assert attrs["log_evidence_trusted"] == 1
    assert attrs["accuracy"] == "exact"


@pytest.mark.parametrize("proposal", ["t", "defensive"])
@pytest.mark.parametrize("qmc", [True, False])
def test_skewed_target(proposal, qmc):
    idata = run(log_gamma_target(), draws=4000, chains=8, proposal=proposal, qmc=qmc)
    posterior = group(idata, "posterior")
    error = posterior.attrs["log_evidence_se"]
    assert 0 < error < 0.01
    assert abs(posterior.attrs["log_evidence"] - LOG_EVIDENCE) < 6 * error  # t with 7 df
    x = posterior["x"].values.ravel()
    efficiency = posterior.attrs["efficiency_factor"]
    sd = polygamma(1, SHAPE) ** 0.5
    moment_error = sd / (x.size * efficiency) ** 0.5
    assert abs(x.mean() - (digamma(SHAPE) - np.log(RATE))) < 5 * moment_error
    assert abs(x.std() - sd) < 5 * moment_error
    skewness = polygamma(2, SHAPE) / sd**3
    assert ((x - x.mean()) ** 3).mean() / sd**3 == pytest.approx(skewness, abs=0.15)


def test_weighted_points_give_the_moments_too():
    proposal = group(run(log_gamma_target(), draws=2000, chains=4), "proposal")
    assert proposal["log_weight"].dims == ("chain", "point")
    assert proposal["x"].shape == (4, 2048, 1)
    weights = np.exp(proposal["log_weight"].values - LOG_EVIDENCE)
    mean = (weights * proposal["x"].values[..., 0]).mean(axis=1)
    np.testing.assert_allclose(mean, digamma(SHAPE) - np.log(RATE), atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("qmc", "proposal"), [(True, "gaussian"), (True, "defensive"), (False, "gaussian")])
def test_the_error_bar_is_honest(qmc, proposal):
    # 120 seeds and 7 degrees of freedom: the ratio has a standard error of about 0.07.
    seeds = range(120)
    q = GaussianApproximation(np.full(2, 1.0), np.full(2, PRIOR_SD**2))
    options = {"draws": 256, "qmc": qmc, "proposal": proposal, "approximation": q}
    attrs = [group(run(logistic_target(), random_seed=seed, **options), "posterior").attrs for seed in seeds]
    estimates, errors = np.array([(a["log_evidence"], a["log_evidence_se"]) for a in attrs]).T
    assert 0.8 < errors.mean() / estimates.std() < 1.5
    assert abs(np.exp(estimates - 2 * LOG_LOGISTIC).mean() - 1) < 5 * estimates.std() / len(seeds) ** 0.5


def test_scrambled_points_beat_random_ones():
    q = GaussianApproximation(np.full(2, 1.0), np.full(2, PRIOR_SD**2))

    def error(qmc):
        idata = run(logistic_target(), draws=256, chains=40, qmc=qmc, approximation=q, proposal="gaussian")
        return np.mean((group(idata, "sample_stats")["log_evidence"].values - 2 * LOG_LOGISTIC) ** 2)

    assert error(qmc=False) / error(qmc=True) > 5


def test_heavy_tails_are_flagged_and_a_t_proposal_copes():
    with pytest.warns(SamplerWarning, match=r"Pareto k .* use sample_smc"):
        attrs = group(run(student_target(1.0), draws=4000, proposal="gaussian"), "posterior").attrs
    assert attrs["log_evidence_trusted"] == 0
    assert "Pareto k" in attrs["warnings"]
    attrs = group(run(student_target(5.0), draws=4000, chains=8, proposal="t"), "posterior").attrs
    assert attrs["log_evidence_trusted"] == 1
    assert attrs["log_evidence"] == pytest.approx(0, abs=6 * attrs["log_evidence_se"] + 1e-9)


def test_auto_takes_the_gaussian_where_it_is_good_and_the_mixture_where_its_tails_are_too_light():
    assert group(run(gaussian_target(), draws=50, chains=2), "posterior").attrs["proposal"] == "gaussian"
    # The Laplace approximation of a t with 5 degrees of freedom misses the tails and has a low Pareto k.
    posterior = group(run(student_target(5.0), draws=4000), "posterior")
    assert posterior.attrs["proposal"] == "tails"
    assert abs(posterior.attrs["log_evidence"]) < 6 * posterior.attrs["log_evidence_se"]
    assert posterior["x"].values.std() == pytest.approx((5 / 3) ** 0.5, rel=0.03)


def test_a_poor_approximation_is_flagged():
    narrow = GaussianApproximation(np.full(8, np.log(SHAPE / RATE) + 1.0), np.full(8, 0.1))
    with pytest.warns(SamplerWarning, match="efficiency factor"):
        idata = run(log_gamma_target(8), draws=1000, chains=2, approximation=narrow, proposal="gaussian")
    assert group(idata, "posterior").attrs["log_evidence_trusted"] == 0


def test_draws_are_copies_of_points_with_siblings_adjacent():
    idata = run(log_gamma_target(), draws=300, chains=2)
    ancestor = group(idata, "sample_stats")["ancestor"].values
    assert ancestor.shape == (2, 300)
    assert np.all(np.diff(ancestor) >= 0)
    points = group(idata, "proposal")["x"].values[..., 0]
    np.testing.assert_array_equal(
        group(idata, "posterior")["x"].values[..., 0], np.take_along_axis(points, ancestor, axis=1)
    )


def test_one_chain_reports_a_bound_from_the_weights():
    attrs = group(run(log_gamma_target(), draws=512, chains=1), "posterior").attrs
    assert attrs["log_evidence_se_from"] == "weights"
    assert "log_evidence_df" not in attrs
    assert abs(attrs["log_evidence"] - LOG_EVIDENCE) < attrs["log_evidence_se"]


def test_same_seed_same_result_and_it_can_be_saved(tmp_path):
    first, again = (run(log_gamma_target(), draws=200, chains=2) for _ in range(2))
    np.testing.assert_array_equal(group(first, "posterior")["x"], group(again, "posterior")["x"])
    first.to_netcdf(tmp_path / "is.nc")
    assert (tmp_path / "is.nc").stat().st_size > 0


def test_points_outside_the_support_have_no_weight():
    def truncated(x):
        return np.where(x[:, 0] > 0, -0.5 * x[:, 0] ** 2, -np.inf), -x

    target = FunctionTarget(1, truncated)
    idata = run(target, draws=1000, approximation=GaussianApproximation([0.5], [[1.5]]))
    posterior = group(idata, "posterior")
    assert posterior["x"].values.min() > 0
    assert posterior.attrs["log_evidence"] == pytest.approx(0.5 * np.log(np.pi / 2), abs=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 0}, "draws=0: expected an integer of at least 1"),
        ({"draws": 10.5}, "draws=10.5"),
        ({"chains": 0}, "chains=0"),
        ({"draws": 1, "chains": 1}, "one point gives no error"),
        ({"proposal": "cauchy"}, "proposal='cauchy'"),
        ({"approximation": "pathfinder"}, "approximation='pathfinder'"),
        ({"approximation": 3}, "approximation=3"),
        ({"approximation": GaussianApproximation([0.0, 0.0], np.eye(2))}, "2 coordinates"),
        ({"power": 0.5}, "power="),
        ({"drawz": 10}, "unknown option 'drawz'"),
    ],
)
def test_bad_input_raises_one_line(options, message):
    with pytest.raises(ModelError, match=message) as caught:
        run(log_gamma_target(), **options)
    assert "\n" not in str(caught.value)


def test_a_density_that_is_nowhere_finite():
    target = FunctionTarget(1, lambda x: (np.full(len(x), np.nan), x))
    with pytest.raises(ModelError, match="not finite at any"):
        run(target, approximation=GaussianApproximation([0.0], [[1.0]]))


def test_integers_in_the_wrong_place_are_refused():
    with pytest.raises(ModelError, match=r"by name, not by position: write draws=2000"):
        sample_importance(log_gamma_target(), 2000)


def test_a_likelihood_that_is_wrong_far_out_is_named():
    """A series that overflows: thousands of nats too high where x > 5, which few of the tails' points are beyond."""

    def log_density(x):
        wrong = (x[:, 0] > 5.0) & (x[:, 0] < 9.0)
        return -0.5 * (x**2).sum(axis=1) + 1e3 * wrong * x[:, 0], -x + 1e3 * wrong[:, None] * np.eye(2)[0]

    target = FunctionTarget(2, log_density)
    with pytest.warns(SamplerWarning, match=r"a single point, at `x\[0\]` = .* above any other"):
        idata = sample_importance(target, draws=256, chains=4, proposal="t", random_seed=1, progressbar=False)
    assert group(idata, "posterior").attrs["log_evidence_trusted"] == 0


def test_points_around_no_mode_are_not_trusted():
    y, dim = np.random.default_rng(3).normal(0.0, 0.8, 12), 13  # a centred hierarchy with a half-Cauchy scale

    def density(x):
        b, log_scale = x[:, :-1], x[:, -1]
        precision = np.exp(-2 * log_scale)
        value = norm.logpdf(y, b).sum(1) - 0.5 * precision * (b**2).sum(1) - 12 * (log_scale + 0.5 * np.log(2 * np.pi))
        value += np.log(2 / np.pi) - np.logaddexp(0.0, 2 * log_scale) + log_scale
        slope = np.empty_like(x)
        slope[:, :-1] = y - b - b * precision[:, None]
        slope[:, -1] = precision * (b**2).sum(1) - 11 - 2 * expit(2 * log_scale)
        return value, slope

    target = FunctionTarget(dim, density)
    poor = pytest.warns(ApproximationWarning, match="poor start")
    with poor, pytest.warns(SamplerWarning, match="Laplace's method found no mode"):
        run(target, approximation="laplace", draws=200)
    poor = pytest.warns(ApproximationWarning, match="points come from variational inference")
    with poor, pytest.warns(SamplerWarning, match="efficiency factor"):
        idata = run(target, draws=1000)
    scale = np.exp(np.linspace(-15, 15, 4001))
    marginal = norm.logpdf(y[:, None], 0, np.sqrt(1 + scale**2)).sum(0) + np.log(2 / np.pi) - np.log1p(scale**2)
    truth = np.log(np.trapezoid(np.exp(marginal), scale))
    assert abs(group(idata, "posterior").attrs["log_evidence"] - truth) < 0.6
