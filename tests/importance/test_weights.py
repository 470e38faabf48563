"""Arithmetic of the weights against direct computation and known tails."""

import numpy as np
import pytest
import scipy.special
import scipy.stats

from ppl_backends.numerics.weights import (
    effective_sample_size,
    ess_of_moments,
    estimate_evidence,
    few_independent,
    normalised_weights,
    pareto_k,
    systematic_resampling,
)

LOG_WEIGHTS = np.random.default_rng(0).normal(size=(4, 256))
LIGHT = np.log(np.random.default_rng(0).random(size=(4, 256)))  # logs of uniform weights


def test_normalised_weights_and_ess_do_not_overflow():
    w = np.exp(LOG_WEIGHTS[0])
    for shift in (0.0, -2000.0, 2000.0):
        weights, log_mean = normalised_weights(LOG_WEIGHTS[0] + shift)
        np.testing.assert_allclose(weights, w / w.sum(), rtol=1e-9)
        assert log_mean - shift == pytest.approx(np.log(w.mean()))
        assert effective_sample_size(LOG_WEIGHTS[0] + shift) == pytest.approx(w.sum() ** 2 / (w**2).sum())
    assert effective_sample_size(np.full(5, -np.inf)) == 0.0


def test_systematic_resampling_keeps_expected_counts_with_siblings_adjacent():
    weights = np.exp(LOG_WEIGHTS[0]) / np.exp(LOG_WEIGHTS[0]).sum()
    parents = systematic_resampling(weights, 1000, np.random.default_rng(1))
    counts = np.bincount(parents, minlength=256)
    assert np.all(np.abs(counts - 1000 * weights) < 1)
    assert np.all(np.diff(parents) >= 0)


@pytest.mark.parametrize("k", [0.3, 0.6, 1.0])
def test_pareto_k_of_known_tails(k):
    u = np.random.default_rng(2).random(40_000)
    # 600 points in the tail: the standard deviation of the estimate is about (1 + k)/√600
    assert pareto_k(-k * np.log(u)) == pytest.approx(k, abs=5 * (1 + k) / 600**0.5)


def test_pareto_k_at_the_edges():
    assert pareto_k(np.zeros(2000)) == 0.0
    assert pareto_k(np.full(2000, -np.inf)) == np.inf
    kept = pareto_k(LOG_WEIGHTS.ravel())
    assert pareto_k(np.concatenate([LOG_WEIGHTS.ravel(), np.full(10, -np.inf)])) == pytest.approx(kept, abs=0.1)


def test_evidence_of_independent_points_has_an_honest_error():
    rng = np.random.default_rng(3)
    estimates = [estimate_evidence(rng.normal(-0.5, 1.0, size=(2, 500)), scrambled=False) for _ in range(400)]
    values, errors = np.array([(e.log_evidence, e.standard_error) for e in estimates]).T
    assert np.abs(values.mean()) < 5 * values.std() / 20 + 1e-3
    assert errors.mean() / values.std() == pytest.approx(1.0, abs=5 / 800**0.5)
    assert np.isnan(estimates[0].df)


def test_evidence_of_scrambles_is_the_mean_of_evidences():
    estimate = estimate_evidence(LIGHT, scrambled=True)
    evidences = np.exp(LIGHT).mean(axis=1)
    assert estimate.log_evidence == pytest.approx(np.log(evidences.mean()))
    first, second = np.exp(LIGHT[:, :128]).mean(axis=1), np.exp(LIGHT[:, 128:]).mean(axis=1)
    variance = (3 * evidences.var(ddof=1) + ((first - second) ** 2 / 4).sum()) / 7
    assert estimate.standard_error == pytest.approx(np.sqrt(variance / 4) / evidences.mean())
    assert estimate.df == 7
    assert estimate.source == "scrambles"
    assert estimate_evidence(LIGHT[:1], scrambled=True).source == "weights"


def test_the_error_of_nets_is_honest_with_more_degrees_of_freedom_than_their_spread_has():
    """Weights exp(z) of a normal z in four dimensions, 400 estimates from four nets of 64 points each."""
    errors = []
    for seed in range(400):
        u = np.stack([scipy.stats.qmc.Sobol(4, seed=4 * seed + k).random(64) for k in range(4)])
        log_weights = scipy.special.ndtri(u).sum(axis=2) * 0.5 - 0.5
        estimate = estimate_evidence(log_weights, scrambled=True)
        errors.append((estimate.log_evidence / estimate.standard_error, estimate.standard_error, estimate.log_evidence))
    z, se, error = np.abs(np.array(errors)).T
    # Shares of 400 have standard errors of 1.1 % and 0.5 %; the spread alone (3 degrees of freedom) exceeds 4.5 in 2 %
    assert np.mean(z < scipy.stats.t.ppf(0.975, 7)) > 0.95 - 4 * 0.011
    assert np.mean(z > 4.5) < 0.0028 + 4 * 0.0026
    # Of so few points the Pareto k is uncertain, and where it is high the error is larger by far
    assert 0.85 < np.median(se) / np.sqrt(np.mean(error**2)) < 1.5


def test_scrambles_that_agree_on_a_jump_are_not_taken_for_exact():
    """The cut is so close to the middle of the net that no scramble puts a point between the two."""
    cut = 0.5 + 9e-6
    nets = [scipy.stats.qmc.Sobol(1, seed=seed).random(1024)[:, 0] for seed in range(8)]
    estimate = estimate_evidence(np.where(np.stack(nets) > cut, 0.0, -np.inf), scrambled=True)
    assert abs(estimate.log_evidence - np.log(1 - cut)) < 4 * estimate.standard_error
    assert estimate.standard_error < 1e-3


def test_ess_of_moments_is_what_replicates_scatter_by():
    rng = np.random.default_rng(5)

    def estimate():
        x = 1.5 * rng.standard_normal((2000, 1))
        weights, _ = normalised_weights(-0.5 * (x[:, 0] ** 2) * (1 - 1 / 1.5**2))
        draws = x[systematic_resampling(weights, 2000, rng)]
        mean = weights @ x[:, 0]
        return mean, (weights @ (x[:, 0] - mean) ** 2) ** 0.5, ess_of_moments(x, weights, draws)[0]

    means, sds, ess = np.array([estimate() for _ in range(400)]).T
    # Each empirical variance of 400 replicates is known to 7 %; cutting at the outer per cent adds to the figure of an sd
    assert np.median(ess) == pytest.approx(min(1 / means.var(), 1 / sds.var()), rel=0.25)


def test_one_heavy_point_far_out_leaves_few_independent_draws_and_heavy_tails_do_not():
    rng = np.random.default_rng(6)
    x, weights = rng.standard_normal((4000, 3)), np.full(4000, 1 / 4000)
    assert not few_independent(ess_of_moments(x, weights, x).min())
    x[0, 1], weights[0] = 6.0, 0.03
    weights /= weights.sum()
    draws = x[systematic_resampling(weights, 4000, rng)]
    ess = ess_of_moments(x, weights, draws)
    assert few_independent(ess[1])
    assert not few_independent(ess[[0, 2]].min())
    cauchy = rng.standard_cauchy((4000, 20))
    assert ess_of_moments(cauchy, np.full(4000, 1 / 4000), cauchy).min() > 300
    constant = np.full((10, 1), 0.3)
    assert not few_independent(ess_of_moments(constant, np.full(10, 0.1), constant)[0])


def test_a_mean_of_few_effective_draws_is_not_trusted_even_if_there_are_few_draws():
    """A hundred effective draws make the error of a mean a tenth of the sd; all chains count together."""
    assert few_independent(99.0)
    assert not few_independent(100.0)


@pytest.mark.parametrize("scrambled", [False, True])
def test_intervals_cover_the_mean_of_weights_without_a_variance(scrambled):
    k, rng = 0.6, np.random.default_rng(0)
    found = [estimate_evidence(-k * np.log(rng.random((16, 512))), scrambled) for _ in range(300)]
    error = np.array([one.log_evidence + np.log(1.0 - k) for one in found])
    half = np.array([scipy.stats.t.ppf(0.975, 31 if scrambled else np.inf) * one.standard_error for one in found])
    assert np.mean(np.abs(error) < half) > 0.95 - 2.4 * (0.95 * 0.05 / 300) ** 0.5
    assert np.median(half) < 5 * np.median(np.abs(error))  # 2.9 times for normal errors


def test_nearly_equal_weights_have_no_heavy_tail():
    rng = np.random.default_rng(1)
    heavy = 1e-8 * rng.random((16, 512)) ** -0.6
    assert estimate_evidence(heavy, scrambled=True).standard_error < 1e-8


def test_points_without_weight_are_no_part_of_the_tail():
    """One in a hundred points has a weight, and these have light tails."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        log_weights = np.where(rng.random((4, 1024)) < 0.01, rng.normal(scale=0.3, size=(4, 1024)), -np.inf)
        weights = np.exp(log_weights).ravel()
        expected = weights.std(ddof=1) / weights.mean() / weights.size**0.5
        assert estimate_evidence(log_weights, scrambled=False).standard_error == pytest.approx(expected, rel=1e-3)
