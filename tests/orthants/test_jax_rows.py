"""The form in JAX against the one in NumPy, and its derivatives against differences."""

import jax
import numpy as np
import pytest
from scipy.special import log_ndtr, ndtri_exp

from ppl_backends.orthants import batch, intervals, jax_rows
from ppl_backends.orthants.solvers import scramble
from tests.orthants.test_gradients import CHOLESKY, orthants, rows

POINTS = scramble(64, 3, np.random.SeedSequence(0))


@pytest.fixture(autouse=True)
def double():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def test_tails_and_quantiles():
    x = np.concatenate([np.linspace(0, 40, 401), np.logspace(1, 4, 100)])
    np.testing.assert_allclose(jax_rows._log_tail(x), log_ndtr(-x), rtol=3e-14, atol=3e-14)
    y = -np.logspace(-3, 6, 500)
    np.testing.assert_allclose(jax_rows._normal_quantile(y), ndtri_exp(y), rtol=1e-6, atol=1e-9)
    a = np.array([30.0, -40.0, 5.0, 1.0, -0.5, -jax_rows.UNBOUNDED])
    b = np.array([31.0, -39.9, jax_rows.UNBOUNDED, 1.0 + 1e-9, 0.7, -60.0])
    for u in (1e-6, 0.3, 0.999):
        found, truth = jax_rows.quantile(np.full(6, u), a, b), intervals.quantile(np.full(6, u), a, b)
        np.testing.assert_allclose(found[0], truth[0], atol=1e-8)
        np.testing.assert_allclose(found[1], truth[1], rtol=1e-7)


def test_estimates_are_those_of_numpy():
    mean, lower, upper = rows(30)
    lower[4], upper[4] = [30.0, -40.0, 1.0], [31.0, -39.9, 1.0 + 1e-9]
    upper[5, 1] = lower[5, 1]
    factors = CHOLESKY * np.linspace(0.5, 2, 30)[:, None, None]
    function = jax.jit(jax_rows.log_rectangles(POINTS))
    found = function(mean, factors, lower, upper)
    assert np.isneginf(found[5])
    rest = np.flatnonzero(np.arange(30) != 5)
    truth = batch.best_log_rectangles(mean[rest], factors[rest], lower[rest], upper[rest], POINTS)
    np.testing.assert_allclose(np.asarray(found)[rest], truth.log_p, rtol=1e-9, atol=1e-8)
    slopes = jax.jit(jax.grad(lambda *x: function(*x).sum(), argnums=(0, 1, 2, 3)))
    lower[5], upper[5] = lower[7], upper[7]
    kept = [mean, factors, lower, upper]
    at, step = slopes(*kept), 1e-6
    ordinary = rest != 4
    for slope, name in zip(at, ("mean", "cholesky", "lower", "upper"), strict=True):
        np.testing.assert_allclose(
            np.asarray(slope)[rest][ordinary], getattr(truth, name)[ordinary], rtol=1e-7, atol=1e-7
        )
    for position, entry in [(0, (9, 1)), (1, (8, 2, 1)), (1, (13, 0, 0)), (2, (11, 1)), (3, (11, 0))]:
        sides = [[x.copy() for x in kept] for _ in range(2)]
        for side, sign in zip(sides, (1, -1), strict=True):
            side[position][entry] += sign * step
        slope = (function(*sides[0]).sum() - function(*sides[1]).sum()) / (2 * step)
        np.testing.assert_allclose(at[position][entry], slope, rtol=1e-5, atol=1e-6)


def test_parameters_that_make_no_sense():
    mean, lower, upper = rows(2)
    factors = np.array([CHOLESKY, -CHOLESKY])
    mean[0, 0] = np.nan
    assert np.isneginf(jax_rows.log_rectangles(POINTS)(mean, factors, lower, upper)).all()


@pytest.mark.slow
@pytest.mark.parametrize("dim", [2, 3])
def test_orthants_and_their_derivatives_are_those_of_numpy(dim):
    given = orthants(40, dim)
    points = scramble(64, dim, np.random.SeedSequence(0))
    truth = batch.best_log_rectangles(*given, points)
    found = jax.jit(jax_rows.with_derivatives(points))(*given)
    for mine, theirs in zip(found, truth, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-8)
