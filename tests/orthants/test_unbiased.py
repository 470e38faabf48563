"""Estimates are unbiased, whatever the tilt; a tilt whose mean is not L'P is the broken twin.

Where resampling depends on the particles that leaves a bias of order 1/n, below what these numbers of runs can tell.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_ndtr

from ppl_backends.orthants.chain import ChainPath, find_chain
from ppl_backends.orthants.intervals import log_interval
from ppl_backends.orthants.moves import MOVES
from ppl_backends.orthants.ordering import order_rectangle
from ppl_backends.orthants.path import CoordinatePath, sequential
from ppl_backends.orthants.tilt import Tilt, no_tilt, saddle_point, weigh
from tests.orthants import exact
from tests.statistics import assert_mean_is, t_bound

RUNS, PARTICLES = 200, 48
LENGTH = 50
AR = order_rectangle(exact.autoregression(LENGTH), np.zeros(LENGTH), np.full(LENGTH, 15.0))
TRUTH = exact.log_autoregression(0.7, np.zeros(LENGTH), np.full(LENGTH, 15.0))


def estimates(rectangle, tilt, truth, kernel="gibbs", threshold=0.9):
    rng = np.random.default_rng(1)
    paths = [CoordinatePath(rectangle, tilt, rng.random((rectangle.rank, PARTICLES))) for _ in range(RUNS)]
    ends = [sequential(path, rng, MOVES[kernel], below=threshold) for path in paths]
    assert min(len(end.resampled) for end in ends) >= 1
    return np.exp([end.log_p - truth for end in ends])


@pytest.mark.parametrize("kernel", ["gibbs", "block", "over_relaxed", "hmc"])
@pytest.mark.parametrize("tilted", [True, False])
def test_smc_with_every_move(kernel, tilted):
    assert_mean_is(estimates(AR, (saddle_point if tilted else no_tilt)(AR), TRUTH, kernel), 1.0)


def test_exchangeable():
    rectangle = order_rectangle(exact.exchangeable(20), np.zeros(20), np.full(20, np.inf))
    assert_mean_is(estimates(rectangle, saddle_point(rectangle), -np.log(21), threshold=1.5), 1.0)


def skewed(factor):
    """Return a push that is not at the saddle point, with the mean that belongs to it."""
    push = saddle_point(AR).push * factor
    return Tilt(push, push @ (AR.rows - np.eye(LENGTH)), np.inf, False)


def test_any_push_is_unbiased_with_its_own_mean():
    assert_mean_is(estimates(AR, skewed(0.8), TRUTH), 1.0)


def test_broken_twin_with_another_mean_is_biased():
    values = estimates(AR, replace(skewed(0.8), mean=saddle_point(AR).mean), TRUTH)
    error = abs(values.mean() - 1)
    assert error > 2 * t_bound(RUNS - 1) * values.std(ddof=1) / np.sqrt(RUNS)


@pytest.mark.slow
def test_particle_filters_of_chains():
    for cov, lower, upper, truth in [
        (exact.autoregression(LENGTH), np.zeros(LENGTH), np.full(LENGTH, 15.0), TRUTH),
        (exact.ranking(12), np.zeros(11), np.full(11, np.inf), exact.log_ranking(12)),
    ]:
        rectangle = order_rectangle(cov, lower, upper, reorder=False)
        chain = find_chain(rectangle)
        assert chain is not None
        for tilt in (saddle_point(rectangle), no_tilt(rectangle)):
            rng = np.random.default_rng(2)
            paths = [ChainPath(rectangle, chain, tilt, rng.random((len(cov), PARTICLES))) for _ in range(RUNS)]
            ends = [sequential(path, rng, below=0.99) for path in paths]
            assert np.mean([len(end.resampled) for end in ends]) >= 1
            assert_mean_is(np.exp([end.log_p - truth for end in ends]), 1.0)


def test_no_chain_is_found_where_there_is_none():
    cov = exact.autoregression(6)
    cov[0, 5] = cov[5, 0] = 0.5
    rectangle = order_rectangle(cov, np.zeros(6), np.ones(6), reorder=False)
    assert find_chain(rectangle) is None


@pytest.mark.parametrize("tilted", [True, False])
def test_without_resampling_smc_is_tilting_and_without_a_tilt_ghk(tilted):
    """Against the weights as Botev prints them, in the order of the coordinates, one coordinate at a time."""
    rectangle = order_rectangle(exact.correlation(100), np.full(100, -0.5), np.full(100, np.inf))
    tilt = (saddle_point if tilted else no_tilt)(rectangle)
    uniforms = np.random.default_rng(3).random((100, 200))
    end = sequential(CoordinatePath(rectangle, tilt, uniforms), np.random.default_rng(4), MOVES["gibbs"], below=0)
    z, log_weights = weigh(rectangle, tilt, uniforms)
    np.testing.assert_allclose(end.log_p + np.log(200 * end.weights), log_weights, rtol=0, atol=1e-10)
    np.testing.assert_allclose(end.z, z, rtol=0, atol=1e-10)
    printed = np.zeros(200)
    for k in range(100):
        shift = rectangle.rows[k, :k] @ z[:k] + tilt.mean[k]
        mass = log_interval(rectangle.lower[k] - shift, rectangle.upper[k] - shift)
        printed += 0.5 * tilt.mean[k] ** 2 - tilt.mean[k] * z[k] + mass
    np.testing.assert_allclose(log_weights, printed, rtol=0, atol=1e-10)
    assert (z[0] > tilt.mean[0] - 40).all()
    assert np.isfinite(log_ndtr(z)).all()


def test_saddle_point_is_one_and_bounds_every_weight():
    for cov, lower in [(exact.exchangeable(30), 0.3), (exact.autoregression(30), 1.0), (exact.ranking(30), 0.0)]:
        dim = len(cov)
        rectangle = order_rectangle(cov, np.full(dim, lower), np.full(dim, 4.0))
        tilt = saddle_point(rectangle)
        assert tilt.converged
        np.testing.assert_allclose(tilt.mean, tilt.push @ rectangle.rows - tilt.push, atol=1e-12)
        _, log_weights = weigh(rectangle, tilt, np.random.default_rng(5).random((dim, 2000)))
        assert log_weights.max() <= tilt.log_bound + 1e-9
        assert log_weights.max() >= tilt.log_bound - 1.5
