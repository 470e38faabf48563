"""One standard normal on an interval, in every tail. References from arithmetic with 60 digits."""

import numpy as np
import pytest
from scipy.special import ndtr

from ppl_backends.orthants import kernels
from ppl_backends.orthants.intervals import log_interval, moments, quantile
from tests.statistics import normal_bound

INF = np.inf
CASES = [
    # lower, upper, log probability, mean, sd
    (30, 31, -454.32124395634325, 30.033259667433622, 0.03322305693),
    (-40, -39.9, -800.62947416012146, -39.923161943563495, 0.02086934792),
    (5, INF, -15.064998393988726, 5.1865039671258421, 0.1808215546),
    (1, 1.000000001, -22.142204287910716, 1.0000000005, 2.886751585e-10),
    (-3, 2, -0.024395187554887346, -0.050782989674878974, 0.9344242291),
    (-INF, INF, 0.0, 0.0, 1.0),
    (0, 15, -0.69314718055994531, 0.79788456080286536, 0.602810275),
    (8.5, 9, -39.209373391744011, 8.6086439968521763, 0.09923873804),
    (-50, 1, -0.17275377902344989, -0.28759997093917836, 0.7935277473),
    (38, INF, -726.55721601882013, 38.026279466575869, 0.02626137379),
    (300, 301, -45006.622732118663, 300.00333325926337, 0.003333222231),
    (-1e-07, 1e-07, -16.343887003603049, 0.0, 5.773502692e-8),
]


def arrays(*values):
    return [np.array([float(v)]) for v in values]


@pytest.mark.parametrize(("lower", "upper", "log_p", "mean", "sd"), CASES)
def test_against_many_digits_and_mirrored(lower, upper, log_p, mean, sd):
    for sign, a, b in [(1, lower, upper), (-1, -upper, -lower)]:
        found = moments(*arrays(a, b))
        assert abs(found.log_p[0] - log_p) <= 1e-11 * max(1, abs(log_p))
        assert abs(sign * found.mean[0] - mean) <= 1e-7 * sd
        assert abs(np.sqrt(found.variance[0]) / sd - 1) <= 1e-3
        np.testing.assert_array_equal(found.log_p, log_interval(*arrays(a, b)))


@pytest.mark.parametrize("lower", [0.0, 0.5, 5.0, 30.0, 100.0, 200.0, 400.0, 499.0, 501.0, 3000.0])
def test_variances_of_narrow_intervals_in_the_tails(lower):
    upper = lower + np.geomspace(1e-8, 0.1, 29)
    nodes, weights = np.polynomial.legendre.leggauss(100)
    t = 0.5 * (upper - lower)[:, None] * (nodes + 1)  # with all digits, because ``lower`` is not added to it
    density = weights * np.exp(-lower * t - 0.5 * t**2)
    density /= density.sum(axis=1, keepdims=True)
    mean = (density * t).sum(axis=1, keepdims=True)
    wanted = (density * (t - mean) ** 2).sum(axis=1)
    for a, b in [(np.full(29, lower), upper), (-upper, np.full(29, -lower))]:
        np.testing.assert_allclose(moments(a, b).variance, wanted, rtol=5e-4)


@pytest.mark.parametrize(("lower", "upper"), [case[:2] for case in CASES])
def test_quantiles_split_the_mass(lower, upper):
    u = np.linspace(0.05, 0.95, 7)
    low, high = np.full(7, float(lower)), np.full(7, float(upper))
    x, log_p = quantile(u, low, high)
    assert (x >= low).all()
    assert (x <= high).all()
    assert (np.diff(x) >= 0).all()
    np.testing.assert_allclose(np.exp(log_interval(low, x) - log_p), u, atol=2e-5)
    np.testing.assert_allclose(np.exp(log_interval(x, high) - log_p), 1 - u, atol=2e-5)


def test_broken_twin_without_logs():
    with np.errstate(divide="ignore"):
        assert np.log(ndtr(-37.6) - ndtr(-38.6)) < -700  # still there
        assert np.isneginf(np.log(ndtr(41.0) - ndtr(40.0)))
        assert np.isneginf(np.log(ndtr(9.0) - ndtr(8.5)))
    assert np.isfinite(log_interval(*arrays(40, 41)))[0]


def test_an_empty_interval_has_no_mass():
    x, log_p = quantile(*arrays(0.5, 2, 1))
    assert np.isneginf(log_p[0])
    assert np.isfinite(x[0])
    assert np.isneginf(log_interval(*arrays(1, 1))[0])


@pytest.mark.parametrize(("lower", "upper", "log_p", "mean", "sd"), CASES)
def test_compiled_draws(lower, upper, log_p, mean, sd):
    rng = np.random.default_rng(1)
    for sign, a, b in [(1, float(lower), float(upper)), (-1, -float(upper), -float(lower))]:
        x = np.array([kernels.truncated_normal(rng, a, b) for _ in range(4000)])
        assert (x >= a).all()
        assert (x <= b).all()
        bound = normal_bound(len(CASES) * 4) / np.sqrt(len(x))
        assert abs(sign * x.mean() - mean) <= bound * sd + 1e-13 * abs(mean)
        assert abs(x.std() / sd - 1) <= 1.5 * bound
