"""Incremental weights, the ladder and resampling."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppl_backends.errors import ModelError
from ppl_backends.kernels.table import make_kernel
from ppl_backends.numerics.weights import effective_sample_size, normalised_weights, systematic_resampling
from ppl_backends.smc.path import PriorPath
from ppl_backends.smc.sampler import run_tempering
from ppl_backends.smc.schedule import adaptation_bias, make_schedule, next_beta, share_to_keep
from ppl_backends.targets.function import FunctionTarget


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e8])
@pytest.mark.parametrize("sign", [1, -1])
def test_next_exponent_keeps_the_ess_asked_for_on_skewed_weights(scale, sign):
    increment = sign * scale * np.random.default_rng(0).gamma(0.5, size=5000)
    for beta in (0.0, 0.3):
        chosen = next_beta(increment, beta, 0.5)
        ess = effective_sample_size((chosen - beta) * increment)
        assert ess >= 0.5 * 5000 if chosen == 1 else ess == pytest.approx(2500, rel=1e-3)


def test_next_exponent_measures_the_ess_inside_the_support():
    increment = np.random.default_rng(0).normal(size=1000) * 10
    increment[:800] = -np.inf
    chosen = next_beta(increment, 0.0, 0.5)
    assert 0 < chosen < 1
    assert effective_sample_size(chosen * increment) == pytest.approx(100, rel=1e-3)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=60).filter(lambda w: sum(w) > 0), st.integers(0, 1000))
def test_systematic_resampling_gives_floor_or_ceiling_offspring(raw, seed):
    weights = np.array(raw) / np.sum(raw)
    n = len(weights)
    parents = systematic_resampling(weights, n, np.random.default_rng(seed))
    counts = np.bincount(parents, minlength=n)
    assert counts.sum() == n
    assert (np.diff(parents) >= 0).all()
    assert (counts >= np.floor(n * weights - 1e-9)).all()
    assert (counts <= np.ceil(n * weights + 1e-9)).all()


def test_systematic_resampling_is_unbiased():
    weights = np.array([0.05, 0.4, 0.15, 0.3, 0.1])
    rng = np.random.default_rng(1)
    counts = np.mean([np.bincount(systematic_resampling(weights, 5, rng), minlength=5) for _ in range(4000)], axis=0)
    np.testing.assert_allclose(counts, 5 * weights, atol=5 * 0.5 / np.sqrt(4000))


def test_weights_survive_log_densities_of_any_size():
    weights, log_mean = normalised_weights(np.array([-1e5, -1e5 + np.log(3)]))
    np.testing.assert_allclose(weights, [0.25, 0.75])
    assert log_mean == pytest.approx(-1e5 + np.log(2))
    assert effective_sample_size(np.full(4, -np.inf)) == 0


def gap(precision):
    """Return draws of N(0, 1/precision), and half their square as increment: weights with a Pareto tail."""
    return 0.5 * np.random.default_rng(0).standard_normal(200_000) ** 2 / precision


def test_the_bias_of_a_step_chosen_by_its_own_weights_is_as_derived():
    # Lognormal weights: −2/N at an ESS of one half. Gamma increments, bounded above: moments in closed form.
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(1_000_000)
    assert adaptation_bias(normal, np.sqrt(np.log(2))) == pytest.approx(2.0, rel=0.1)
    shape, step = 4.0, 1.5

    def mean(t, power=0):
        """Return E[w^t h^power] with h = −Gamma."""
        return (-1) ** power * (shape if power else 1.0) * (1 + t * step) ** -(shape + power)

    slopes = [mean(t, 1) / mean(t) for t in (1, 2, 3)]
    first = mean(2) / mean(1) ** 2
    second = mean(3) / mean(1) / mean(2) * (slopes[2] - slopes[0]) / (2 * (slopes[1] - slopes[0]))
    assert adaptation_bias(-rng.gamma(shape, size=1_000_000), step) == pytest.approx(second - first, rel=0.05, abs=0.02)


def test_the_bias_is_that_of_the_ladder_itself():
    n, repeats, errors = 200, 1500, []
    rng = np.random.default_rng(1)
    for _ in range(repeats):
        increment = rng.standard_normal(n)
        step = next_beta(increment, 0.0, 0.5)
        errors.append(np.log(np.mean(np.exp(step * increment))) - 0.5 * step**2)
    expected = -(2.0 + 0.5) / n
    assert np.mean(errors) == pytest.approx(expected, abs=5 * np.std(errors) / np.sqrt(repeats) + 0.3 * abs(expected))


@pytest.mark.parametrize("light", ["normal", "gamma"])
def test_light_tails_and_chains_that_mix_keep_one_half(light):
    rng = np.random.default_rng(2)
    increment = 0.7 * rng.standard_normal(2000) if light == "normal" else -rng.gamma(4.0, size=2000)
    farthest = next_beta(increment, 0.0, 0.5)
    share = share_to_keep(increment, farthest, 20)
    assert share < (0.75 if light == "normal" else 0.51)
    assert share_to_keep(0.1 * increment, 1.0, 20) == 0.5


def test_heavy_tails_and_slow_chains_keep_more():
    increment = gap(1.0)[:2000]
    assert share_to_keep(increment, next_beta(increment, 0.0, 0.5)) > 0.75
    slow = -np.repeat(np.random.default_rng(3).gamma(4.0, size=100), 20)
    step = next_beta(slow, 0.0, 0.5)
    assert share_to_keep(slow, step) < 0.51
    assert share_to_keep(slow, step, 20) == 0.97
    outside = np.where(np.arange(2000) % 40 < 20, slow, -np.inf)
    assert share_to_keep(outside, step, 20) == pytest.approx(0.97)


def test_a_given_share_is_kept_whatever_the_weights():
    increment = gap(1.0)[:2000]
    assert make_schedule("ess", 0.5).next(increment, 0.0) == next_beta(increment, 0.0, 0.5)
    assert make_schedule("ess", "auto").next(increment, 0.0) < next_beta(increment, 0.0, 0.75)
    assert make_schedule("cess", "auto").next(increment, 0.0) == next_beta(increment, 0.0, 0.9)


def test_a_step_is_taken_again_where_the_next_one_has_to_be_much_shorter():
    increment = gap(1.0)[:2000]
    schedule = make_schedule("ess", "auto")
    again = schedule.share_before(increment, 0.5, 0.5)
    ahead = share_to_keep(increment, next_beta(increment, 0.5, 0.5) - 0.5)
    assert (again is None) == (1 / ahead - 1 >= 1 / 8)
    assert schedule.share_before(increment, 0.5, ahead) is None
    assert make_schedule("ess", 0.5).share_before(increment, 0.5, 0.5) is None


@pytest.mark.slow
def test_the_evidence_from_a_narrow_start_to_a_wide_posterior_is_not_low():
    # By one half, at every step, it is low by 0.06: six standard errors.
    dim = 10
    sd = np.sqrt(np.linspace(0.1, 10.0, dim))
    cov = (0.7 + 0.3 * np.eye(dim)) * sd[:, None] * sd
    precision, log_det = np.linalg.inv(cov), np.linalg.slogdet(cov)[1]

    def prior(x):
        return -0.5 * (x**2).sum(axis=1) - 0.5 * dim * np.log(2 * np.pi), -x

    def likelihood(x):
        slope = -(x - 2) @ precision
        return 0.5 * ((x - 2) * slope).sum(axis=1) - 0.5 * log_det + 0.5 * (x**2).sum(axis=1), slope + x

    target = FunctionTarget(dim, likelihood, prior, lambda n, rng: rng.standard_normal((n, dim)))
    runs = [
        run_tempering(PriorPath(target), make_kernel("hmc"), 2000, np.random.default_rng([5, k]), len_chain=20)
        for k in range(8)
    ]
    errors = np.array([run.log_evidence for run in runs])
    assert abs(errors.mean()) < 0.01 + 4 * errors.std(ddof=1) / np.sqrt(len(errors))
    assert abs(errors.mean()) < 0.04


def test_no_particle_inside_the_support_is_said():
    with pytest.raises(ModelError, match="the log likelihood is -inf or NaN at all 5 particles"):
        next_beta(np.full(5, -np.inf), 0.0, 0.5)


def test_a_first_step_that_may_end_at_one_does():
    increment = 0.6 * gap(1.0)[:2000] / np.sqrt(2)
    assert make_schedule("ess", 0.5).next(increment, 0.0) == 1.0
    assert make_schedule("ess", "auto").next(increment, 0.0) == 1.0
    assert make_schedule("ess", "auto").within().next(increment, 0.0) < 1.0
