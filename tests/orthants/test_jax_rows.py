"""Rows in compiled code, their tails against SciPy's; and the same inside programs of JAX and of Numba."""

import jax
import numba
import numpy as np
import pytest
from scipy.special import log_ndtr, ndtri_exp

from ppl_backends.orthants import batch, intervals, row_kernels
from ppl_backends.orthants.batch import fixed_points
from ppl_backends.orthants.jax_rows import in_jax
from ppl_backends.orthants.op import _in_numba, _LogRectangle
from tests.orthants.test_gradients import CHOLESKY, rows

POINTS = fixed_points(64, 0)


@pytest.fixture(autouse=True)
def double():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def rectangles(n=30):
    """Return the mean, factors and bounds of rows, the last of which make no sense or are empty."""
    mean, lower, upper = rows(n)
    lower[4], upper[4] = [30.0, -40.0, 1.0], [31.0, -39.9, 1.0 + 1e-9]
    factors = CHOLESKY * np.linspace(0.5, 2, n)[:, None, None]
    upper[-1, 1] = lower[-1, 1]
    factors[-2] *= -1
    mean[-3, 0] = np.nan
    return mean, factors, lower, upper


def assert_same(found, truth):
    """Values differ only by the order of additions that compilers choose, which narrow far intervals magnify."""
    np.testing.assert_allclose(found, truth, rtol=1e-6, atol=1e-5)


def test_tails_and_quantiles():
    x = np.concatenate([np.linspace(0, 40, 401), np.logspace(1, 4, 100)])
    np.testing.assert_allclose([row_kernels._log_tail(v) for v in x], log_ndtr(-x), rtol=3e-14, atol=3e-14)
    y = -np.logspace(-3, 6, 500)
    np.testing.assert_allclose([row_kernels._normal_quantile(v) for v in y], ndtri_exp(y), rtol=1e-6, atol=1e-9)
    a = np.array([30.0, -40.0, 5.0, 1.0, -0.5, -row_kernels.UNBOUNDED])
    b = np.array([31.0, -39.9, row_kernels.UNBOUNDED, 1.0 + 1e-9, 0.7, -60.0])
    for u in (1e-6, 0.3, 0.999):
        found = np.array([row_kernels._quantile(u, *ends) for ends in zip(a, b, strict=True)]).T
        truth = intervals.quantile(np.full(6, u), a, b)
        np.testing.assert_allclose(found[0], truth[0], atol=1e-8)
        np.testing.assert_allclose(found[1], truth[1], rtol=1e-7)


def test_parameters_that_make_no_sense_have_probability_zero():
    found = batch.best_log_rectangles(*rectangles(), POINTS)
    assert np.isneginf(found.log_p[-3:]).all()
    assert np.isfinite(found.log_p[:-3]).all()
    assert (found.mean[-3:-1] == 0).all()


def test_in_jax():
    """Values and derivatives, one point and batches of them by vmap; second derivatives are refused."""
    given, function = rectangles(), in_jax(POINTS)
    truth = batch.best_log_rectangles(*given, POINTS)
    for mine, theirs in zip(jax.jit(function)(*given), truth, strict=True):
        assert_same(mine, theirs)

    def total(*given):
        return function(*given).log_p[:-3].sum()

    value, slopes = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2, 3)))(*given)
    assert value == pytest.approx(truth.log_p[:-3].sum(), rel=1e-14)
    for slope, name in zip(slopes, ("mean", "cholesky", "lower", "upper"), strict=True):
        assert_same(slope[:-3], getattr(truth, name)[:-3])
    means = given[0] + np.linspace(-1, 1, 5)[:, None, None]
    batched = jax.jit(jax.vmap(lambda mean: function(mean, *given[1:])))(means)
    for i, mean in enumerate(means):
        single = batch.best_log_rectangles(mean, *given[1:], POINTS)
        for mine, theirs in zip(batched, single, strict=True):
            assert_same(mine[i], theirs)
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.hessian(total)(*given)


def test_rows_after_one_with_a_division_by_zero_are_computed():
    """Entries of the first factor differ by 60 orders of magnitude, and a pivot of the tilt's equation rounds to zero."""
    mean, factors, lower, upper = (values[:4].copy() for values in rectangles())
    truth = batch.best_log_rectangles(mean, factors, lower, upper, POINTS)
    mean[0], lower[0], upper[0] = [-5.767, -4.286, -2.491], 0.0, np.inf
    factors[0] = [[3.16e19, 0, 0], [9.38e17, 1.06e-20, 0], [1.9e-30, 1.38e-30, 1.58e-41]]
    found = jax.jit(in_jax(POINTS))(mean, factors, lower, upper)
    assert not found.log_p[0] > -np.inf
    for mine, theirs in zip(found, truth, strict=True):
        assert_same(mine[1:], theirs[1:])


def test_in_numba():
    given, function = rectangles(), _in_numba(_LogRectangle(64, 0))
    found = numba.njit(lambda *x: function(*x))(*given)
    for mine, theirs in zip(found, batch.best_log_rectangles(*given, POINTS), strict=True):
        assert_same(mine, theirs)
