"""Evidences, means and sds of ``sample_abc`` against exact ABC posteriors, with errors that cover."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, chi2, norm, t

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.simulators.abc.importance import allocate, estimate
from ppl_backends.simulators.abc.problem import make_problem
from ppl_backends.simulators.abc.proposals import prior_proposal
from ppl_backends.simulators.abc.sequential import next_tolerance
from ppl_backends.simulators.abc.stages import Block, Budget, Stage, simulate_stage, weigh
from tests.simulators.abc.toys import box, conjugate, conjugate_answer, log_ball, mixture, radius, standard_normal
from tests.statistics import FALSE_FAILURE, assert_mean_is, normal_bound

QUIET = {"progressbar": False}
SMALL = {**QUIET, "chains": 2, "draws": 512, "pilot_points": 512}


def attrs(idata):
    return idata.posterior.attrs


def static(dim, epsilon, seed, **options):
    """Importance sampling from the prior of the mixture: evidence over its exact value, and the first coordinate's mean."""
    idata = pb.sample_abc(
        box(dim),
        simulate=mixture,
        observed=np.zeros(dim),
        epsilon=epsilon,
        method="importance",
        random_seed=seed,
        **{**QUIET, "chains": 1, **options},
    )
    ratio = np.exp(attrs(idata)["log_evidence"] - log_ball(epsilon, dim))
    estimates = idata["estimates"]
    return np.array([ratio, attrs(idata)["log_evidence_se"], estimates["x_mean"][0], estimates["x_mean_se"][0]])


# The variance ratio of 80 repeats is F(79, 79): 0.4 of its expected value at most at a rate of 1e-4.
@pytest.mark.slow
@pytest.mark.parametrize(("dim", "expected"), [(1, 8.0), (2, 14.3), (3, 9.2)])
def test_nets_take_the_points_share_out_of_the_variance(dim, expected):
    epsilon = radius(0.1, dim)
    options = {"draws": 2048, "data_sets": 1}
    nets, random = (
        np.array([static(dim, epsilon, seed, qmc=qmc, **options)[0] for seed in range(80)]) for qmc in (True, False)
    )
    assert random.var() / nets.var() > 0.4 * expected
    assert_mean_is(nets[:, None], [1.0])


@pytest.mark.filterwarnings("ignore:sample_abc. the effective sample size is")
@pytest.mark.parametrize("qmc", [True, False])
@pytest.mark.parametrize("data_sets", [2, 10])
def test_single_run_intervals_cover(qmc, data_sets):
    runs = np.array([static(1, 1.0, seed, qmc=qmc, draws=512, data_sets=data_sets) for seed in range(100)])
    fewest = binom.ppf(FALSE_FAILURE, 100, 0.93)
    assert np.sum(np.abs(runs[:, 0] - 1) < 1.96 * runs[:, 1] * runs[:, 0]) >= fewest
    assert np.sum(np.abs(runs[:, 2]) < 1.96 * runs[:, 3]) >= fewest


@pytest.mark.filterwarnings("ignore:sample_abc. the effective sample size is")
def test_variance_times_data_sets_does_not_depend_on_their_number():
    variances = [
        data_sets * np.var([static(1, 1.0, seed, draws=512, data_sets=data_sets)[0] for seed in range(60)])
        for data_sets in (2, 5, 10)
    ]
    exact = 0.01125 / 0.1**2 / 512
    low, high = chi2.ppf([FALSE_FAILURE, 1 - FALSE_FAILURE], 59) / 59
    assert all(low < variance / exact < 1.1 * high for variance in variances)


@pytest.mark.slow
def test_sequential_runs_have_an_unbiased_evidence_and_right_means():
    runs = []
    for seed in range(40):
        idata = pb.sample_abc(
            box(3), simulate=mixture, observed=np.zeros(3), epsilon=1.0, random_seed=seed, data_sets=4, **SMALL
        )
        ratio = np.exp(attrs(idata)["log_evidence"] - log_ball(1.0, 3))
        estimates = idata["estimates"]
        runs.append([ratio, *estimates["x_mean"].values, *(estimates["x_sd"].values ** 2)])
        assert attrs(idata)["epsilon"] == 1.0
    assert_mean_is(np.array(runs), [1.0, *[0.0] * 3, *[0.2505] * 3], allowance=2e-3)


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.01])
def test_conjugate_normal_with_a_gaussian_kernel(epsilon):
    options = {"simulate": conjugate, "observed": 1.0, "kernel": "gaussian", "epsilon": epsilon}
    idata = pb.sample_abc(standard_normal(), random_seed=1, **options, **QUIET)
    mean, sd, log_evidence = conjugate_answer(epsilon)
    estimates = idata["estimates"]
    bound = normal_bound(2)
    assert abs(attrs(idata)["log_evidence"] - log_evidence) < bound * attrs(idata)["log_evidence_se"]
    assert abs(estimates["x_mean"][0] - mean) < bound * estimates["x_mean_se"][0]
    assert attrs(idata)["log_evidence_se"] < 0.025
    assert abs(estimates["x_sd"][0] / sd - 1) < 0.15
    assert abs(idata.posterior["x"].std() / sd - 1) < 0.15
    density = log_evidence - 0.5 * np.log(2 * np.pi * epsilon**2)
    assert abs(attrs(idata)["log_evidence"] - attrs(idata)["log_kernel_volume"] - density) < 0.1


@pytest.mark.parametrize("kernel", ["uniform", "laplace", "epanechnikov"])
def test_evidences_of_all_kernels_become_the_same_density(kernel):
    options = {"simulate": conjugate, "observed": 1.0, "kernel": kernel, "epsilon": 0.05}
    idata = pb.sample_abc(standard_normal(), random_seed=1, **options, **QUIET)
    density = attrs(idata)["log_evidence"] - attrs(idata)["log_kernel_volume"]
    exact = -0.5 * np.log(2 * np.pi * 1.04) - 0.5 / 1.04
    assert abs(density - exact) < 0.01 + normal_bound() * attrs(idata)["log_evidence_se"]


def test_negative_binomial_weights():
    options = {"simulate": mixture, "observed": np.zeros(2), "epsilon": 1.0, "hits": 3, "max_hit_simulations": 20}
    runs = [pb.sample_abc(box(2), random_seed=seed, **options, **SMALL) for seed in range(20)]
    ratios = np.exp([attrs(run)["log_evidence"] - log_ball(1.0, 2) for run in runs])
    assert_mean_is(ratios[:, None], [1.0])
    errors = np.array([attrs(run)["log_evidence_se"] for run in runs])
    assert 0.5 < np.mean(errors**2) / np.var(ratios) < 2.5


def test_a_race_of_hits_keeps_within_the_budget():
    options = {"simulate": conjugate, "observed": 1.0, "epsilon": 0.1, "hits": 3, "method": "importance"}
    with pytest.warns(SamplerWarning, match="max_simulations"):
        found = attrs(pb.sample_abc(standard_normal(), max_simulations=20_000, random_seed=1, **options, **SMALL))
    assert 10_000 < found["simulations"] <= 20_000
    exact = np.log(np.diff(norm.cdf([0.9, 1.1], scale=1.04**0.5))[0])
    assert abs(found["log_evidence"] - exact) < normal_bound() * found["log_evidence_se"]
    for hits in (None, 5):
        with pytest.raises(ModelError, match="max_hit_simulations=4 needs hits="):
            pb.sample_abc(standard_normal(), max_hit_simulations=4, **options | {"hits": hits}, **SMALL)


@pytest.mark.parametrize("constant", [-2.0, 2.0])
def test_a_prior_without_its_constant_has_the_same_evidence(constant):
    prior = standard_normal()

    def log_prior(x):
        value, slope = prior._log_prior(x)
        return value + constant, slope

    target = pb.FunctionTarget(1, prior._log_likelihood, log_prior, prior._sample_prior, prior_from_uniform=norm.ppf)
    options = {"simulate": conjugate, "observed": 1.0, "kernel": "gaussian", "epsilon": 0.1, "random_seed": 1}
    found = attrs(pb.sample_abc(target, **options, **SMALL))
    assert abs(found["log_evidence"] - conjugate_answer(0.1)[2]) < normal_bound() * found["log_evidence_se"]
    assert found["log_evidence_se"] < 0.05


def test_a_negative_distance_is_refused():
    options = {"simulate": conjugate, "observed": 1.0, "distance": lambda a, b: -np.abs(a - b)}
    with pytest.raises(ModelError, match="a distance is at least 0, and this one is -"):
        pb.sample_abc(standard_normal(), random_seed=1, **options, **SMALL)


def test_posterior_predictive_is_of_new_data_not_of_data_near_the_observed():
    options = {"simulate": mixture, "observed": np.zeros(2), "epsilon": 0.5, "data_sets": 4}
    idata = pb.sample_abc(box(2), random_seed=1, **options, **QUIET)
    drawn = idata["posterior_predictive"]["y"].values.reshape(-1, 2)
    np.testing.assert_allclose(drawn.var(axis=0), 0.5**2 / 4 + 2 * 0.0505, rtol=0.1)


def test_the_same_seed_gives_the_same_bits_and_another_others():
    options = {"simulate": mixture, "observed": np.zeros(2), "epsilon": 1.0}
    a, b, c = (pb.sample_abc(box(2), random_seed=seed, **options, **SMALL) for seed in (1, 1, 2))
    assert np.array_equal(a.posterior["x"], b.posterior["x"])
    assert not np.array_equal(a.posterior["x"], c.posterior["x"])


@pytest.mark.parametrize("adjust", ["linear", "heteroscedastic"])
def test_regression_adjustment_narrows_an_abc_posterior_to_the_posterior(adjust):
    options = {"simulate": conjugate, "observed": 1.0, "kernel": "epanechnikov", "epsilon": 0.6}
    plain = pb.sample_abc(standard_normal(), random_seed=1, **options, **QUIET)
    moved = pb.sample_abc(standard_normal(), random_seed=1, adjust=adjust, **options, **QUIET)
    exact = (1 / (1 + 1 / 0.04)) ** 0.5
    assert plain.posterior["x"].std() > 1.3 * exact
    assert abs(moved.posterior["x"].std() / exact - 1) < 0.05
    assert abs(moved.posterior["x"].mean() - 1 / 1.04) < 0.01
    assert attrs(moved)["adjusted"] == adjust
    assert attrs(moved)["log_evidence"] == attrs(plain)["log_evidence"]


@pytest.mark.filterwarnings("ignore:sample_abc. the effective sample size is")
def test_points_outside_the_support_count_and_cost_nothing():
    seen = []

    def recorded(parameters, rng):
        seen.append(np.abs(parameters["x"]).max())
        return mixture(parameters, rng)

    options = {"simulate": recorded, "observed": np.full(2, 10.0), "epsilon": 1.0}
    runs = [pb.sample_abc(box(2), random_seed=seed, data_sets=4, **options, **SMALL) for seed in range(10)]
    rng = np.random.default_rng(1)
    theta = 10 - 3 * rng.random((400_000, 2))  # outside of this corner nothing is near
    near = np.linalg.norm(mixture({"x": theta}, rng) - 10, axis=1) <= 1
    exact, error = near.mean() * (3 / 20) ** 2, near.std() / np.sqrt(len(near)) * (3 / 20) ** 2
    ratios = np.exp([attrs(run)["log_evidence"] for run in runs]) / exact
    assert_mean_is(ratios[:, None], [1.0], allowance=4 * error / exact)
    assert max(seen) <= 10.0


def test_a_tolerance_chosen_from_the_distances_that_are_weighed_biases_the_evidence():
    """The broken twin of the last stage: the evidence of a stage at the tolerance that was chosen from it."""
    ratios = []
    for seed in range(200):
        rngs = [np.random.default_rng([seed, i]) for i in range(3)]
        problem = make_problem(box(2), simulate=mixture, observed=np.zeros(2))
        problem.experiment = replace(
            problem.experiment, simulators=tuple(replace(s, at_once=True) for s in problem.experiment.simulators)
        )
        x = problem.target.sample_prior(20, rngs[0])
        counts, chain = np.ones(20, dtype=int), np.zeros(20, dtype=int)
        stage = simulate_stage(problem, x, chain, np.zeros(20), counts, None, Budget(None, None), rngs[1])
        epsilon, weights = next_tolerance(stage, "uniform", np.inf, 0.0)
        ratios.append(weights.weight.mean() / np.exp(log_ball(epsilon, 2)))
    with pytest.raises(AssertionError):
        assert_mean_is(np.array(ratios)[:, None], [1.0])


def test_chains_are_independent_and_the_twin_with_one_scramble_is_not():
    problem = make_problem(box(2), simulate=mixture, observed=np.zeros(2), epsilon=1.0)
    proposal = prior_proposal(problem, True, np.random.default_rng(0))

    def correlation(seeds):
        """Return the correlation of means of two chains of 100 points, which is not a power of two."""
        means = [[proposal.points(100, True, np.random.default_rng(s))[:, 0].mean() for s in pair] for pair in seeds]
        return np.corrcoef(np.array(means).T)[0, 1]

    assert abs(correlation([(2 * s, 2 * s + 1) for s in range(100)])) < 0.4
    assert correlation([(s, s) for s in range(100)]) > 0.99


def test_formula_for_nets_does_not_cover_on_random_points():
    """The broken twin of the single-run error."""
    covered = 0
    for seed in range(60):
        rngs = [np.random.default_rng([seed, i]) for i in range(2)]
        problem = make_problem(box(1), simulate=mixture, observed=np.zeros(1), epsilon=1.0)
        problem.experiment = replace(
            problem.experiment, simulators=tuple(replace(s, at_once=True) for s in problem.experiment.simulators)
        )
        x = problem.target.sample_prior(512, rngs[0])
        counts, chain = np.full(512, 10), np.zeros(512, dtype=int)
        stage = simulate_stage(problem, x, chain, np.zeros(512), counts, None, Budget(None, None), rngs[1])
        found = estimate(stage, weigh(stage, "uniform", 1.0), qmc=True)
        assert found.source == "single run"
        covered += abs(np.exp(found.log_evidence) - 0.1) < 1.96 * found.standard_error * np.exp(found.log_evidence)
    assert covered < binom.ppf(FALSE_FAILURE, 60, 0.93)


@pytest.mark.parametrize("p", [0.3, 0.03])
def test_capped_negative_binomial_estimates_and_their_variances_are_unbiased(p):
    rng, hits, cap, n = np.random.default_rng(1), 3, 20, 100_000
    inside = rng.random((n, cap)) < p
    reached = np.cumsum(inside, axis=1) >= hits
    counts = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, cap)
    distances = np.where(inside, 0.5, 2.0)[np.arange(cap) < counts[:, None]]
    stage = Stage(
        np.zeros((n, 1)), np.zeros(n, dtype=int), np.zeros(n), Block(counts, distances, None, None, None), True
    )
    weights = weigh(stage, "uniform", 1.0, hits)
    assert_mean_is(weights.hit[:, None], [p])
    assert_mean_is((weights.variance - (weights.hit - p) ** 2)[:, None], [0.0])
    truncated = np.where(reached.any(axis=1), weights.hit, (hits - 1) / (cap - 1))
    if p < 0.1:  # the broken twin: what is right without a cap
        with pytest.raises(AssertionError):
            assert_mean_is(truncated[:, None], [p])


def test_data_sets_are_allocated_by_strata_and_strata_without_hits_are_not_starved():
    rng, n = np.random.default_rng(1), 4000
    log_ratio = np.where(np.arange(n) % 40 == 0, -np.inf, rng.standard_normal(n))
    variance = np.where(log_ratio > 1.2, 0.0, np.exp(-log_ratio))  # no hits in the pilot where p/q is largest
    counts = allocate(log_ratio[:1000], variance[:1000], log_ratio, 8, rng)
    alive = log_ratio > -np.inf
    assert abs(counts[alive].mean() - 8) < 0.2
    assert counts.min() >= 2
    assert counts[log_ratio > 1.5].mean() > 2.2
    middle, low = np.abs(log_ratio - 0.5) < 0.1, np.abs(log_ratio + 0.5) < 0.1
    assert abs((counts[middle].mean() - 2) / (counts[low].mean() - 2) / np.exp(0.5) - 1) < 0.2
    assert (allocate(log_ratio[:1000], np.zeros(1000), log_ratio, 8, rng) == 8).all()


def test_one_data_set_a_point_has_its_error_from_scrambles():
    """Equation (3.8) would say zero."""
    runs = [attrs(static_run(seed)) for seed in range(12)]
    assert {each["log_evidence_se_from"] for each in runs} == {"scrambles"}
    z = [(each["log_evidence"] - log_ball(1.0, 1)) / each["log_evidence_se"] for each in runs]
    assert np.sum(np.abs(z) < t.ppf(0.975, 3)) >= binom.ppf(FALSE_FAILURE, 12, 0.93)


def static_run(seed):
    options = {"draws": 256, "data_sets": 1, "method": "importance", "epsilon": 1.0, **QUIET}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplerWarning)
        return pb.sample_abc(box(1), simulate=mixture, observed=np.zeros(1), random_seed=seed, **options)


def test_tolerances_never_rise():
    """The effective size of (p/q) L̂ is not monotone: without the last tolerance as a bracket the next one is larger."""
    n = 200
    log_ratio = np.where(np.arange(n) < 20, 0.0, 1.0)  # the near ones have small weights
    distances = np.where(np.arange(n) < 20, 0.5, 2.0) + np.linspace(0, 0.1, n)
    block = Block(np.ones(n, dtype=int), distances, None, None, None)
    stage = Stage(np.zeros((n, 1)), np.zeros(n, dtype=int), log_ratio, block, True)
    assert next_tolerance(stage, "uniform", 0.6, 0.0)[0] <= 0.6
    assert next_tolerance(stage, "uniform", np.inf, 0.0)[0] > 2.0


def test_copies_of_a_point_are_not_counted_as_effective_size():
    """The broken twin counts draws: after resampling all have the same weight."""
    options = {"simulate": mixture, "observed": np.zeros(2), "epsilon": 0.3, "data_sets": 4, "random_seed": 1}
    idata = pb.sample_abc(box(2), **options, **SMALL)
    distinct = len(np.unique(idata.posterior["x"].values.reshape(-1, 2), axis=0))
    assert float(idata.sample_stats["effective_size"][-1]) < distinct
    assert distinct < 0.9 * idata.posterior["x"][..., 0].size


def test_points_outside_the_support_count_in_the_mean():
    """The broken twin leaves them out of it, and its evidence is as many times too large."""
    problem = make_problem(box(2), simulate=mixture, observed=np.zeros(2), epsilon=1.0)
    rng = np.random.default_rng(1)
    x = rng.uniform(-10, 20, (20_000, 2))  # of q, uniform on a larger square
    log_ratio = np.where((x <= 10).all(axis=1), 2 * np.log(30 / 20), -np.inf)
    problem.try_batches(x[log_ratio > -np.inf], rng)
    counts, chain = np.full(len(x), 2), np.zeros(len(x), dtype=int)
    stage = simulate_stage(problem, x, chain, log_ratio, counts, None, Budget(None, None), rng)
    found = estimate(stage, weigh(stage, "uniform", 1.0), qmc=False)
    assert abs(found.log_evidence - log_ball(1.0, 2)) < normal_bound() * found.standard_error
    inside = stage.log_ratio > -np.inf
    fewer = Block(
        *(part[inside] for part in stage.block[:1]), stage.block.distances[: 2 * inside.sum()], None, None, None
    )
    twin = Stage(stage.x[inside], stage.chain[inside], stage.log_ratio[inside], fewer, True)
    broken = estimate(twin, weigh(twin, "uniform", 1.0), qmc=False)
    assert broken.log_evidence - log_ball(1.0, 2) > normal_bound() * broken.standard_error


def test_distances_keep_their_scale_through_all_stages():
    """The broken twin rescales the distances of a stage by their median, and weighs them at the tolerance asked for."""
    options = {"simulate": mixture, "observed": np.zeros(2), "epsilon": 1.0, "random_seed": 1}
    idata = pb.sample_abc(box(2), **options, **SMALL)
    assert len(idata.sample_stats["stage"]) > 2
    assert 0.9 < float(idata.sample_stats["distance"].max()) <= 1.0
    bound = normal_bound() * attrs(idata)["log_evidence_se"]
    assert abs(attrs(idata)["log_evidence"] - log_ball(1.0, 2)) < bound
    problem = make_problem(box(2), simulate=mixture, observed=np.zeros(2), epsilon=1.0)
    rng = np.random.default_rng(1)
    x = problem.target.sample_prior(20_000, rng)
    problem.try_batches(x, rng)
    zeros = np.zeros(len(x), dtype=int)
    stage = simulate_stage(problem, x, zeros, np.zeros(len(x)), zeros + 1, None, Budget(None, None), rng)
    rescaled = stage.block._replace(distances=stage.block.distances / np.median(stage.block.distances))
    twin = estimate(stage._replace(block=rescaled), weigh(stage._replace(block=rescaled), "uniform", 1.0), qmc=False)
    assert abs(twin.log_evidence - log_ball(1.0, 2)) > normal_bound() * twin.standard_error


def test_evidences_of_two_tolerances_have_their_exact_ratio():
    """That of E[K] with K(0) = 1; the broken twin's kernel integrates to one."""
    options = {"simulate": conjugate, "observed": 1.0, "kernel": "gaussian", "random_seed": 1, **SMALL}
    wide, narrow = (attrs(pb.sample_abc(standard_normal(), epsilon=epsilon, **options)) for epsilon in (0.2, 0.1))
    exact = conjugate_answer(0.2)[2] - conjugate_answer(0.1)[2]
    bound = normal_bound() * np.hypot(wide["log_evidence_se"], narrow["log_evidence_se"])
    difference = wide["log_evidence"] - narrow["log_evidence"]
    assert abs(difference - exact) < bound
    normalised = difference - wide["log_kernel_volume"] + narrow["log_kernel_volume"]
    assert abs(normalised - exact) > bound


def test_evidences_at_two_tolerances_are_not_compared():
    options = {"simulate": conjugate, "observed": 1.0, "random_seed": 1, **SMALL}
    a, b = (pb.sample_abc(standard_normal(), epsilon=epsilon, **options) for epsilon in (0.5, 0.2))
    assert len(pb.compare_evidence({"a": a, "again": a})) == 2
    with pytest.raises(ModelError, match=r"'a' \(ε = 0.5, .* and 'b' \(ε = 0.2"):
        pb.compare_evidence({"a": a, "b": b})


def test_evidences_of_two_distances_or_summaries_are_not_compared():
    options = {"simulate": conjugate, "observed": 1.0, "random_seed": 1, "epsilon": 0.5, **SMALL}
    runs = {
        "absolute": pb.sample_abc(standard_normal(), distance=lambda a, b: float(abs(a - b)), **options),
        "square": pb.sample_abc(standard_normal(), distance=lambda a, b: float((a - b) ** 2), **options),
        "double": pb.sample_abc(standard_normal(), summary=lambda y: 2 * y, **options),
    }
    for one, other in (("absolute", "square"), ("absolute", "double")):
        with pytest.raises(ModelError, match="are of different events"):
            pb.compare_evidence({one: runs[one], other: runs[other]})


@pytest.mark.slow
def test_tuberculosis():
    """Reference values of 4 × 256 points with negative-binomial weights, 7,100 simulations each."""
    from tests.simulators.abc.tuberculosis import OBSERVED as outbreak
    from tests.simulators.abc.tuberculosis import prior, simulate

    options = {"data_sets": 4, "pilot_points": 512, "draws": 1024, "max_simulations": 60_000}
    idata = pb.sample_abc(
        prior(), simulate=simulate, observed=outbreak, epsilon=0.01, random_seed=1, **options, **QUIET
    )
    assert attrs(idata)["simulations"] <= 60_000
    estimates = idata["estimates"]
    known, known_se = np.array([0.671, 0.140]), np.array([0.002, 0.004])
    bound = normal_bound(3)
    assert (np.abs(estimates["x_mean"] - known) < bound * np.hypot(estimates["x_mean_se"], known_se)).all()
    np.testing.assert_allclose(estimates["x_sd"], [0.058, 0.101], rtol=0.15)
    relative = np.hypot(attrs(idata)["log_evidence_se"], 0.00012 / 0.00709)
    assert abs(attrs(idata)["log_evidence"] - np.log(0.00709)) < bound * relative
