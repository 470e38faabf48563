"""SMC-ABC: the kernels leave the ABC posterior invariant, and populations find evidences, moments and modes."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.kernels.protocol import KernelParameters
from ppl_backends.kernels.random_walk import RandomWalk
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.simulators.abc.data_sets import DataSets, Keeping, Source
from ppl_backends.simulators.abc.hit_kernel import RHit
from ppl_backends.simulators.abc.problem import make_problem
from ppl_backends.simulators.abc.stages import Budget
from ppl_backends.simulators.abc.tolerances import Tolerance, TolerancePath
from tests.simulators.abc.toys import (
    NOISE,
    OBSERVED,
    box,
    conjugate,
    conjugate_answer,
    log_ball,
    mixture,
    standard_normal,
)
from tests.statistics import FALSE_FAILURE, assert_evidence_is, assert_mean_is, normal_bound

QUIET = {"progressbar": False}
SMALL = {"chains": 2, "draws": 500, "progressbar": False}

# -- kernels ---------------------------------------------------------------------------------------------------------------


class Line:
    """θ ~ N(0, 1), y | θ ~ N(θ, 0.2²) observed as 1, uniform kernel: P(hit | θ) from 1e-3 far out to nearly one."""

    def __init__(self, epsilon, m):
        self.epsilon, self.m = epsilon, m
        self.problem = make_problem(standard_normal(), simulate=conjugate, observed=OBSERVED, epsilon=epsilon)
        self.problem.try_batches(np.array([[0.0], [1.0]]), np.random.default_rng(0))
        source = Source(self.problem, Budget(None, None), None, Keeping(False, False))
        self.path, self.stage = TolerancePath(self.problem, source, m, epsilon, False), Tolerance(1.0, epsilon)
        self.grid = np.linspace(-6, 7, 20_001)
        mass = stats.norm.pdf(self.grid) * self.hit(self.grid)
        self.cumulated = np.cumsum(mass) / mass.sum()

    def hit(self, theta):
        upper, lower = OBSERVED + self.epsilon, OBSERVED - self.epsilon
        return ndtr((upper - theta) / NOISE) - ndtr((lower - theta) / NOISE)

    def draws(self, n, rng):
        """Exact draws of θ, each with M data sets of which the ABC posterior of the pair has one at least near."""
        theta = np.interp(rng.random(n), self.cumulated, self.grid)
        points = self.path.density(self.stage)(theta[:, None], rng)
        lower, upper = (ndtr((OBSERVED + s * self.epsilon - theta) / NOISE) for s in (-1, 1))
        y = theta + NOISE * stats.norm.ppf(lower + rng.random(n) * (upper - lower))
        distances = points.distances.copy()
        distances[:, 0] = np.abs(y - OBSERVED)
        return points.with_data(points_data(distances))

    def p_value(self, theta):
        return stats.kstest(theta, lambda x: np.interp(x, self.grid, self.cumulated)).pvalue


def points_data(distances):
    return DataSets(distances, None, None)


def moved(line, kernel, n, seed, steps=3, scale=1.0, refresh=False):
    """Return θ of exact draws after a few steps; ``refresh`` draws the present data sets again, which is wrong."""
    rng = np.random.default_rng(seed)
    points, density = line.draws(n, rng), line.path.density(line.stage)
    parameters = KernelParameters(Gaussian(np.zeros(1), np.ones(1)), scale)
    for _ in range(steps):
        if refresh:
            points = density(points.x, rng)
        with np.errstate(invalid="ignore"):  # neither end has a hit, in the broken twin
            points, _ = kernel.step(rng, points, density, parameters)
    return points.x[:, 0]


@pytest.mark.parametrize(("epsilon", "m"), [(0.5, 1), (0.5, 4), (0.02, 2)])
def test_moves_that_keep_their_data_sets_leave_the_abc_posterior_invariant(epsilon, m):
    line = Line(epsilon, m)
    assert line.p_value(moved(line, RandomWalk(), 20_000, 1)) > FALSE_FAILURE


def test_moves_that_draw_the_present_data_sets_anew_do_not():
    line = Line(0.5, 1)
    assert line.p_value(moved(line, RandomWalk(), 20_000, 1, refresh=True)) < FALSE_FAILURE


class CountKept(RHit):
    """The broken twin: the point's own count is not compared, but that of the proposal with itself."""

    def step(self, rng, population, density, parameters):
        until = self.path.source.until
        jump = parameters.scale * rng.standard_normal(population.x.shape)
        proposal = self.path.without_data(population.x + jump, population)
        limits = np.full(len(population.x), self.cap)
        count, _ = until(population.x, self.hits, self.path.last, limits, rng)
        other, near = until(proposal.x, self.hits, self.path.last, limits, rng)
        log_ratio = proposal.log_base - population.log_base + np.log(count) - np.log(other)
        accepted = (other <= self.cap) & (np.log(rng.random(len(count))) < log_ratio)
        kept = points_data(near.distances[:, 1:])
        return population.where(accepted, proposal.with_data(kept)), None


@pytest.mark.parametrize(("epsilon", "cap"), [(0.5, 1000), (0.5, 12), (0.1, 400)])
def test_the_r_hit_kernel_leaves_the_abc_posterior_invariant_with_any_cap(epsilon, cap):
    line = Line(epsilon, 2)
    assert line.p_value(moved(line, RHit(line.path, 3, cap), 10_000, 1)) > FALSE_FAILURE


def test_a_race_of_equal_hits_does_not():
    line = Line(0.5, 1)
    assert line.p_value(moved(line, CountKept(line.path, 2, 300), 10_000, 1, steps=3)) < FALSE_FAILURE


# -- populations -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, pytest.param({"hits": 3}, marks=pytest.mark.slow), {"data_sets": 1}])
def test_evidence_and_moments_of_the_mixture(options):
    found = [
        pb.sample_abc(
            box(2),
            simulate=mixture,
            observed=np.zeros(2),
            epsilon=1.0,
            method="smc",
            random_seed=seed,
            **options,
            **SMALL,
        )
        for seed in range(5)
    ]
    attrs = [each.posterior.attrs for each in found]
    errors = [each["log_evidence_se"] for each in attrs]
    assert_evidence_is([each["log_evidence"] for each in attrs], errors, log_ball(1.0, 2))
    assert all(each["log_evidence_unbiased"] == 0 for each in attrs)
    z = [each["estimates"]["x_mean"].values / each["estimates"]["x_mean_se"].values for each in found]
    assert np.abs(z).max() < normal_bound(10)
    variance = np.mean([each["estimates"]["x_sd"].values ** 2 for each in found])
    assert abs(variance / (1 / 4 + 0.0505) - 1) < 0.15
    assert ("posterior_predictive" in found[0]) == (not options)


def test_posterior_predictive_of_particles_is_of_new_data():
    options = {"simulate": mixture, "observed": np.zeros(2), "epsilon": 0.5, "method": "smc"}
    idata = pb.sample_abc(box(2), random_seed=1, **options, **QUIET)
    drawn = idata["posterior_predictive"]["y"].values.reshape(-1, 2)
    np.testing.assert_allclose(drawn.var(axis=0), 0.5**2 / 4 + 2 * 0.0505, rtol=0.25)
    assert (idata.sample_stats["distance"] <= 0.5).all()


@pytest.mark.filterwarnings("ignore:sample_abc. the effective sample size of a mean")
def test_without_a_tolerance_the_floor_ends_the_first_chain_and_all_end_there():
    options = {"simulate": mixture, "observed": np.zeros(2), "method": "smc", "acceptance_floor": 0.1}
    attrs = (idata := pb.sample_abc(box(2), random_seed=1, **options, **SMALL)).posterior.attrs
    assert "floor" in attrs["ended_by"]
    last = idata.sample_stats["epsilon"].min("stage")
    assert (last == attrs["epsilon"]).all()
    ratio = attrs["log_evidence"] - log_ball(attrs["epsilon"], 2)
    assert abs(ratio) < normal_bound() * attrs["log_evidence_se"]


@pytest.mark.filterwarnings("ignore:sample_abc. the effective sample size of a mean")
def test_ordinary_likelihoods_are_let_in_before_the_tolerances():
    """θ ~ N(0, 1) with an ordinary observation 1.5 ± 0.1, beside the simulated one: both conjugate."""
    prior = standard_normal()

    def log_likelihood(x):
        return stats.norm.logpdf(x[:, 0], 1.5, 0.1), -(x - 1.5) / 0.01

    target = pb.FunctionTarget(
        1, log_likelihood, prior._log_prior, prior._sample_prior, prior_from_uniform=stats.norm.ppf
    )
    options = {"simulate": conjugate, "observed": OBSERVED, "kernel": "gaussian", "epsilon": 0.3, "method": "smc"}
    idata = pb.sample_abc(target, random_seed=1, **options, **SMALL)
    cov = 1.0 + np.diag([0.01, NOISE**2 + 0.3**2])
    exact = stats.multivariate_normal.logpdf([1.5, OBSERVED], cov=cov) + 0.5 * np.log(2 * np.pi * 0.3**2)
    attrs = idata.posterior.attrs
    assert abs(attrs["log_evidence"] - exact) < normal_bound() * attrs["log_evidence_se"]
    assert idata.sample_stats["beta"].values[0, 0] < 1.0


@pytest.mark.filterwarnings("ignore:sample_abc. the effective sample size of a mean")
def test_a_race_of_hits_before_the_tolerances_counts_data_that_are_not_finite():
    """Three in five data sets are NaN; only finite ones counted while the ordinary likelihood came in."""
    prior = standard_normal()

    def log_likelihood(x):
        return stats.norm.logpdf(x[:, 0], 1.5, 0.1), -(x - 1.5) / 0.01

    def fails(parameters, rng):
        return np.where(rng.random(len(parameters["x"])) < 0.6, np.nan, conjugate(parameters, rng))

    target = pb.FunctionTarget(
        1, log_likelihood, prior._log_prior, prior._sample_prior, prior_from_uniform=stats.norm.ppf
    )
    options = {"simulate": fails, "observed": OBSERVED, "epsilon": 0.3, "hits": 3, "method": "smc"}
    attrs = pb.sample_abc(target, random_seed=1, **options, **SMALL).posterior.attrs
    grid = np.linspace(-6, 7, 20_001)
    near = ndtr((OBSERVED + 0.3 - grid) / NOISE) - ndtr((OBSERVED - 0.3 - grid) / NOISE)
    exact = np.log(0.4 * np.trapezoid(stats.norm.pdf(grid) * stats.norm.pdf(1.5, grid, 0.1) * near, grid))
    assert abs(attrs["log_evidence"] - exact) < normal_bound() * attrs["log_evidence_se"]
    assert attrs["log_evidence_se"] < 0.2


@pytest.mark.filterwarnings("ignore:sample_abc. the effective sample size of a mean")
def test_discrete_distances_and_tolerances_out_of_reach_end_with_a_reason():
    def discrete(parameters, rng):
        return rng.poisson(np.exp(parameters["x"][:, 0]))

    idata = pb.sample_abc(standard_normal(), simulate=discrete, observed=2, random_seed=1, method="smc", **SMALL)
    assert idata.posterior.attrs["epsilon"] < 1.0
    assert idata.posterior.attrs["ended_by"] == "the tolerance is zero"

    def far(parameters, rng):
        return 5 + np.abs(conjugate(parameters, rng))

    options = {"observed": 1.0, "epsilon": 0.1, "random_seed": 1, "method": "smc"}
    with pytest.warns(SamplerWarning, match="was not reached"):
        idata = pb.sample_abc(standard_normal(), simulate=far, max_simulations=200_000, **options, **SMALL)
    assert idata.posterior.attrs["log_evidence_trusted"] == 0


@pytest.mark.parametrize("limit", [{"max_simulations": 40_000}, {"max_time": 8.0}])
def test_budgets_end_populations_inside_a_stage_and_keep_the_last_one(limit, monkeypatch):
    calls = 0
    clock = SimpleNamespace(perf_counter=lambda: 8.0 * (calls >= 500))  # about a quarter of a chain's calls
    monkeypatch.setattr("ppl_backends.simulators.abc.stages.time", clock)

    def slow(parameters, rng):
        nonlocal calls
        calls += 1
        return mixture(parameters, rng)

    with pytest.warns(SamplerWarning, match="was not reached"):
        idata = pb.sample_abc(
            box(3), simulate=slow, observed=np.zeros(3), epsilon=1e-6, method="smc", random_seed=1, **limit, **SMALL
        )
    attrs = idata.posterior.attrs
    assert next(iter(limit)) in attrs["ended_by"]
    assert attrs["epsilon"] > 1e-6
    assert 0 < attrs["simulations"] <= limit.get("max_simulations", np.inf)


def test_a_budget_too_small_for_one_stage_is_refused():
    with pytest.raises(ModelError, match="max_simulations is used up before the first stage"):
        pb.sample_abc(
            box(3), simulate=mixture, observed=np.zeros(3), method="smc", max_simulations=150, random_seed=1, **SMALL
        )


def test_a_chain_that_ends_before_its_first_stage_does_not_lose_the_others():
    options = {"simulate": mixture, "observed": np.zeros(1), "epsilon": 5.0, "data_sets": 2, "progressbar": False}
    with pytest.warns(
        SamplerWarning, match="2 of 4 chains did not reach .* before the first stage of 100 points ended"
    ):
        idata = pb.sample_abc(box(1), method="smc", chains=4, draws=100, max_simulations=2600, random_seed=4, **options)
    assert idata.posterior.sizes["chain"] == 2
    attrs = idata.posterior.attrs
    assert attrs["log_evidence_trusted"] == 0
    assert np.sum(idata.sample_stats["simulations"]) < attrs["simulations"] <= 2600
    assert abs(attrs["log_evidence"] - log_ball(5.0, 1)) < normal_bound() * attrs["log_evidence_se"]


def test_a_budget_that_ends_before_the_first_tolerance_is_refused():
    """Particles at a power of the ordinary likelihood have not been compared with the observed data."""
    prior = standard_normal()

    def log_likelihood(x):
        return stats.norm.logpdf(x[:, 0], 3.0, 0.003), -(x - 3.0) / 0.003**2

    target = pb.FunctionTarget(
        1, log_likelihood, prior._log_prior, prior._sample_prior, prior_from_uniform=stats.norm.ppf
    )
    options = {"simulate": conjugate, "observed": OBSERVED, "method": "smc", "random_seed": 1}
    with pytest.raises(ModelError, match="max_simulations is used up before the first tolerance"):
        pb.sample_abc(target, max_simulations=9000, chains=1, draws=400, progressbar=False, **options)


def test_gaussian_kernel_and_regression_adjustment():
    options = {"simulate": conjugate, "observed": OBSERVED, "kernel": "gaussian", "method": "smc"}
    idata = pb.sample_abc(standard_normal(), epsilon=0.1, random_seed=1, **options, **QUIET)
    mean, sd, log_evidence = conjugate_answer(0.1)
    attrs, estimates = idata.posterior.attrs, idata["estimates"]
    assert abs(attrs["log_evidence"] - log_evidence) < normal_bound(2) * attrs["log_evidence_se"]
    assert abs(estimates["x_mean"][0] - mean) < normal_bound(2) * estimates["x_mean_se"][0]
    assert abs(estimates["x_sd"][0] / sd - 1) < 0.1
    wide = pb.sample_abc(standard_normal(), epsilon=0.5, adjust="linear", random_seed=1, **options, **QUIET)
    assert abs(wide.posterior["x"].std() / (1 / (1 + 1 / 0.04)) ** 0.5 - 1) < 0.1


def remainders(parameters, rng):
    """Return remainders of θ as data: with period 4 there are five posterior modes of equal mass on [−10, 10]."""
    theta = parameters["x"]
    return np.mod(theta + 0.1 * rng.standard_normal(theta.shape) + 2.0, 4.0)


@pytest.mark.filterwarnings("ignore:sample_abc. the effective sample size of a mean")
def test_auto_turns_to_populations_where_proposals_find_too_few_points_and_only_there():
    options = {"observed": np.full(2, 2.0), "random_seed": 1, "data_sets": 2, **SMALL}
    many = pb.sample_abc(box(2), simulate=remainders, epsilon=0.02, **options)
    one, same = (
        pb.sample_abc(box(2), simulate=mixture, epsilon=0.5, method=m, **options) for m in ("auto", "sequential")
    )
    assert many.posterior.attrs["method"] == "ABC (SMC)"
    assert many.posterior.attrs["simulations"] > np.nansum(many.sample_stats["simulations"])
    assert "sequential" in one.posterior.attrs["method"]
    assert np.array_equal(one.posterior["x"], same.posterior["x"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:sample_abc. the effective sample size of a mean")
def test_many_modes_keep_their_shares():
    options = {"simulate": remainders, "observed": np.full(2, 2.0), "epsilon": 0.3, "method": "smc"}
    shares = []
    for seed in range(8):
        idata = pb.sample_abc(box(2), random_seed=seed, **options, **SMALL)
        x = idata.posterior["x"].values.reshape(-1, 2)
        mode = np.round(x / 4).astype(int) + 2
        shares.append(np.bincount(mode[:, 0] * 5 + mode[:, 1], minlength=25) / len(x))
    assert_mean_is(shares, np.full(25, 1 / 25), allowance=2e-3)


def test_workers_give_populations_the_same_bits():
    options = {"simulate": mixture, "observed": np.zeros(2), "epsilon": 2.0, "method": "smc", "random_seed": 1, **SMALL}
    here = pb.sample_abc(box(2), **options)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        there = pb.sample_abc(box(2), executor=executor, **options)
    assert np.array_equal(here.posterior["x"], there.posterior["x"])
    assert here.posterior.attrs["log_evidence"] == there.posterior.attrs["log_evidence"]
