"""Incremental weights, the ladder and resampling."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppl_backends.importance.weights import effective_sample_size, normalised_weights, systematic_resampling
from ppl_backends.smc.schedule import next_exponent


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e8])
@pytest.mark.parametrize("sign", [1, -1])
def test_next_exponent_keeps_the_ess_asked_for_on_skewed_weights(scale, sign):
    increment = sign * scale * np.random.default_rng(0).gamma(0.5, size=5000)
    for exponent in (0.0, 0.3):
        chosen = next_exponent(increment, exponent, 0.5)
        ess = effective_sample_size((chosen - exponent) * increment)
        assert ess >= 0.5 * 5000 if chosen == 1 else ess == pytest.approx(2500, rel=1e-3)


def test_next_exponent_measures_the_ess_inside_the_support():
    increment = np.random.default_rng(0).normal(size=1000) * 10
    increment[:800] = -np.inf
    chosen = next_exponent(increment, 0.0, 0.5)
    assert 0 < chosen < 1
    assert effective_sample_size(chosen * increment) == pytest.approx(100, rel=1e-3)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=60).filter(lambda w: sum(w) > 0), st.integers(0, 1000))
def test_systematic_resampling_gives_floor_or_ceiling_offspring(raw, seed):
    weights = np.array(raw) / np.sum(raw)
    n = len(weights)
    ancestors = systematic_resampling(weights, n, np.random.default_rng(seed))
    counts = np.bincount(ancestors, minlength=n)
    assert counts.sum() == n
    assert (np.diff(ancestors) >= 0).all()
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
