"""The error bars of the evidence."""

import numpy as np
import pytest
from scipy.special import ndtri

import ppl_backends as pb
from ppl_backends.kernels.hmc import Hmc
from ppl_backends.numerics.weights import few_independent
from ppl_backends.smc.evidence import (
    LineageVariance,
    combine_evidence,
    ess_of_means,
    precision_of_sds,
    precision_of_stuck_points,
)
from ppl_backends.smc.results import prior_normalizer
from ppl_backends.smc.sampler import SampledPriorPath, run_tempering
from ppl_backends.smc.start import cauchy_around
from ppl_backends.targets import FunctionTarget


def test_runs_that_differ_by_rounding_agree():
    """Log weights of an exact start are constants up to rounding, and so are single-run errors."""
    estimate = combine_evidence(np.array([-3.0, -3.0 + 4e-13, -3.0 - 1e-12]), np.full(3, 1e-30), np.full(3, 5.0))
    assert not estimate.runs_disagree
    apart = combine_evidence(np.array([-3.0, -3.0 + 1e-4, -3.0 - 1e-4]), np.full(3, 1e-30), np.full(3, 5.0))
    assert apart.runs_disagree


def test_one_reweighting_is_the_variance_of_importance_sampling():
    rng = np.random.default_rng(0)
    weights = rng.gamma(2.0, size=1000)
    weights /= weights.sum()
    lineage = LineageVariance(1000)
    lineage = lineage.reweighted(weights)
    assert lineage.variance == pytest.approx((weights**2).sum() - 1 / 1000)


def test_siblings_that_do_not_move_count_once():
    """After resampling to ten families that stay put, the second stage has the variance of ten points."""
    n = 1000
    lineage = LineageVariance(n)
    lineage = lineage.resampled(np.repeat(np.arange(10), 100))
    family_weight = np.arange(1.0, 11.0)
    weights = np.repeat(family_weight / family_weight.sum() / 100, 100)
    lineage = lineage.reweighted(weights)
    assert lineage.n_lineages == 10
    shares = family_weight / family_weight.sum()
    assert lineage.variance == pytest.approx(((shares - 0.1) ** 2).sum())


def test_runs_that_agree_pool_and_runs_that_do_not_speak_alone():
    agree = combine_evidence(np.array([-10.0, -10.1, -9.9, -10.05]), np.full(4, 0.01), np.full(4, 100.0))
    assert not agree.runs_disagree
    assert agree.standard_error == pytest.approx(0.05, rel=0.2)
    assert agree.df > 40
    apart = combine_evidence(np.array([-10.0, -14.0, -9.0, -12.0]), np.full(4, 0.01), np.full(4, 100.0))
    assert apart.runs_disagree
    assert apart.df == 3
    assert apart.standard_error == pytest.approx(np.std([-10, -14, -9, -12], ddof=1) / 2)
    single = combine_evidence(np.array([-10.0]), np.array([0.04]), np.array([50.0]))
    assert single.standard_error == pytest.approx(0.2)
    assert single.log_evidence == -10.0


def test_evidence_is_the_mean_of_the_evidences():
    combined = combine_evidence(np.log([1.0, 3.0]), np.full(2, 0.5), np.full(2, 9.0))
    assert combined.log_evidence == pytest.approx(np.log(2.0))


@pytest.mark.slow
def test_the_error_of_an_estimated_prior_integral_is_honest():
    """A skewed prior in three dimensions, logs of Gamma(2) variables, written with a third of its mass."""

    def prior(x):
        with np.errstate(over="ignore"):
            gamma = np.exp(x)
        return (2.0 * x - gamma).sum(axis=1) - np.log(3.0), 2.0 - gamma

    def likelihood(x):
        return -0.5 * ((x - 1.0) ** 2).sum(axis=1), 1.0 - x

    path = SampledPriorPath(pb.FunctionTarget(3, likelihood, prior), pb.FunctionTarget(3, prior), Hmc())
    z, runs = [], []
    for seed in range(60):
        runs.append(run_tempering(path, Hmc(), 500, np.random.default_rng(seed), len_chain=5))
        found, error, _ = prior_normalizer(path, runs[-1:])
        z.append((found + np.log(3.0)) / error)
    assert 0.7 < np.std(z) < 1.4  # the sd of an sd over 60 is 0.09
    assert abs(np.mean(z)) < 0.6
    together, error, _ = prior_normalizer(path, runs)
    assert error == pytest.approx(np.std([run.start.log_normalizer for run in runs]) / 60**0.5, rel=0.4)
    assert abs(together + np.log(3.0)) < 4 * error


def test_the_integral_of_a_prior_that_is_a_funnel_is_right():
    """A scale and five members of unit mass: tempering alone was low by 0.2, five of its errors."""

    def prior(x):
        log_scale, members = x[:, 0], x[:, 1:] * np.exp(-x[:, :1])
        value = log_scale - np.exp(log_scale) - (members**2).sum(axis=1) / 2 - 5 * (log_scale + np.log(2 * np.pi) / 2)
        slope = 1 - np.exp(log_scale) + (members**2).sum(axis=1) - 5
        return value, np.column_stack([slope, -members * np.exp(-x[:, :1])])

    path = SampledPriorPath(
        pb.FunctionTarget(6, lambda x: (0 * x[:, 0], 0 * x), prior), pb.FunctionTarget(6, prior), Hmc()
    )
    found = [path.draw(500, np.random.default_rng(seed)).figures for seed in range(4)]
    mean, error = (
        np.mean([each.log_normalizer for each in found]),
        np.mean([each.variance for each in found]) ** 0.5 / 2,
    )
    assert error < 0.02
    assert abs(mean) < 4 * error


def test_the_mean_of_independent_draws_is_worth_their_number():
    rng = np.random.default_rng(0)
    samples = [(rng.standard_normal((1000, 200)), np.arange(1000)) for _ in range(4)]
    ess = ess_of_means(samples)
    assert np.median(ess) == pytest.approx(4000, rel=0.1)
    families = [
        (np.repeat(rng.standard_normal((100, 200)), 10, axis=0), np.repeat(np.arange(100), 10)) for _ in range(4)
    ]
    assert np.median(ess_of_means(families)) == pytest.approx(400, rel=0.1)
    assert np.median(ess_of_means(families[:1])) == pytest.approx(100, rel=0.1)


def test_runs_of_which_one_has_lost_a_mode_are_worth_few_draws():
    rng = np.random.default_rng(1)
    both = [4.0 * rng.choice([-1, 1], (1000, 1)) + rng.standard_normal((1000, 1)) for _ in range(3)]
    lost = 4.0 + rng.standard_normal((1000, 1))
    samples = [(x, np.arange(1000)) for x in both]
    assert ess_of_means(samples)[0] > 500
    assert ess_of_means([*samples, (lost, np.arange(1000))])[0] < 30


def test_an_sd_that_a_small_mode_makes_is_known_less_well_than_the_mean():
    rng = np.random.default_rng(2)

    def sample(n):
        return np.where(rng.random((n, 1)) < 0.05, 8.0, 0.0) + rng.standard_normal((n, 1)), np.arange(n)

    sds = np.array([np.concatenate([sample(100)[0] for _ in range(4)]).std() for _ in range(2000)])
    truth = (1 + 0.05 * 0.95 * 64) ** 0.5
    precision = [precision_of_sds([sample(100) for _ in range(4)])[0] for _ in range(200)]
    assert np.median(precision) == pytest.approx((truth / sds.std()) ** 2, rel=0.15)
    gaussian = [(rng.standard_normal((1000, 200)), np.arange(1000)) for _ in range(4)]
    squares = (
        np.clip(ndtri((np.arange(100_000) + 0.5) / 100_000), ndtri(0.01), ndtri(0.99)) ** 2
    )  # cut at the outer per cent
    assert np.median(precision_of_sds(gaussian)) == pytest.approx(
        4 * 4000 * squares.mean() ** 2 / squares.var(), rel=0.1
    )
    assert np.min(precision_of_sds([(rng.standard_cauchy((1000, 50)), np.arange(1000)) for _ in range(4)])) > 300


def test_a_start_of_the_prior_ignores_numbers_beyond_a_deep_valley():
    """A log density like Stan's of a nearly singular inverse Wishart matrix, which rounding makes huge at -360."""

    def log_variance(u):
        spurious = np.where(u < -372, -np.inf, -5.0 * u)
        return np.where(u < -355, spurious, -5 * u - 0.5 * np.exp(-2 * np.maximum(u, -350))).sum(axis=1)

    start = cauchy_around(FunctionTarget(1, lambda u: (log_variance(u), np.zeros_like(u))))
    grid = np.linspace(-4, 4, 100_001)
    mass = np.cumsum(np.exp(log_variance(grid[:, None])))
    low, median, high = np.interp([0.158655, 0.5, 0.841345], mass / mass[-1], grid)
    np.testing.assert_allclose([start.location[0], start.scale[0]], [median, (high - low) / 2], atol=0.05)


def test_a_chain_that_never_moves_has_its_error():
    """Twenty copies far out are a third of the variance; quantiles do not show them, nor do tails without variance."""
    rng = np.random.default_rng(6)
    runs = [0.07 * rng.standard_normal((2000, 2)) for _ in range(4)]
    assert np.isinf(precision_of_stuck_points(runs)).all()
    runs[0][660:680] = [1.0, 0.0]
    x = np.concatenate(runs)[:, 0]
    part = 20 * (1.0 - x.mean()) ** 2 / len(x)  # of the variance, all of it from one chain
    found = precision_of_stuck_points(runs)
    assert found[0] == pytest.approx(4 * x.var() ** 2 / part**2, rel=0.01)
    assert few_independent(found[0])
    assert found[1] > 1000
    assert precision_of_sds([(own, np.arange(2000)) for own in runs]).min() > 2000


@pytest.mark.parametrize("rejected", [0.05, 0.5])
def test_rejections_anywhere_are_no_stuck_points(rejected):
    rng = np.random.default_rng(7)
    runs = []
    for _ in range(4):
        x, stays = rng.standard_t(3, size=(1000, 2)), rng.random(1000) < rejected
        runs.append(x[np.maximum.accumulate(np.where(stays, 0, np.arange(1000)))])
    assert np.isinf(precision_of_stuck_points(runs)).all()
