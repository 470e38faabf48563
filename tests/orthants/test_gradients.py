"""Derivatives against differences of exact values, every coordinate with bounds of its own; and in PyTensor graphs."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from scipy.special import log_ndtr, ndtr

from ppl_backends.errors import ModelError
from ppl_backends.math import log_rectangle
from ppl_backends.orthants import rectangle_gradient
from ppl_backends.orthants.batch import best_log_rectangles, fixed_points, log_rectangles
from ppl_backends.orthants.closed import bivariate
from ppl_backends.orthants.row_kernels import estimate_rows
from ppl_backends.orthants.solvers import scramble
from ppl_backends.orthants.vector_kernels import LANES, exp_all, phi_all
from tests.orthants import exact

INF = np.inf
G = np.random.default_rng(0)
LOADINGS = np.array([0.9, -0.5, 0.3, 1.2, -0.8, 0.4, 0.7, -1.0, 0.2, 0.6])
NOISE = np.array([0.4, 1.0, 0.3, 0.7, 0.5, 0.6, 0.8, 0.4, 1.1, 0.9])
LOWER = G.normal(-1.5, 0.5, 10)
UPPER = LOWER + G.uniform(0.8, 3, 10)
LOWER[2], UPPER[5] = -INF, INF
MEAN = G.normal(0, 0.3, 10)
COV = np.outer(LOADINGS, LOADINGS) + np.diag(NOISE)


def differences(function, at, step=1e-5):
    return np.array([(function(at + step * e) - function(at - step * e)) / (2 * step) for e in np.eye(len(at))])


def log_p(mean=MEAN, lower=LOWER, upper=UPPER, loadings=LOADINGS, noise=NOISE):
    return exact.log_one_factor(loadings, noise, np.maximum(lower - mean, -60), np.minimum(upper - mean, 60))[0]


def assert_near(found, truth, share):
    assert np.abs(found - truth).max() <= share * np.abs(truth).max()


def test_every_derivative_in_ten_dimensions():
    """Derivatives agree to 1e-4 of the largest; for the covariance this takes the points of this test."""
    found = rectangle_gradient(COV, LOWER, UPPER, mean=MEAN, n_points=2**15, random_seed=1)
    assert abs(found.log_p - log_p()) < 1e-5
    assert_near(found.mean, differences(lambda x: log_p(mean=x), MEAN), 1e-4)
    by_lower, by_upper = (
        differences(lambda x, s=s: log_p(**{s: x}), b) for s, b in [("lower", LOWER), ("upper", UPPER)]
    )
    assert_near(found.lower, np.where(np.isfinite(LOWER), by_lower, 0), 1e-4)
    assert_near(found.upper, np.where(np.isfinite(UPPER), by_upper, 0), 1e-4)
    assert_near(np.diag(found.cov), differences(lambda x: log_p(noise=x), NOISE), 2e-4)
    assert_near(2 * found.cov @ LOADINGS, differences(lambda x: log_p(loadings=x), LOADINGS), 2e-4)
    # An order that is not undone shows: the derivatives differ between coordinates.
    assert np.abs(found.mean[::-1] - found.mean).max() > 0.1 * np.abs(found.mean).max()


def test_free_variables_have_no_derivatives():
    lower = np.where(np.arange(10) == 4, -INF, LOWER)
    upper = np.where(np.arange(10) == 4, INF, UPPER)
    found = rectangle_gradient(COV, lower, upper, mean=MEAN, random_seed=2)
    kept = np.arange(10) != 4
    part = rectangle_gradient(COV[np.ix_(kept, kept)], lower[kept], upper[kept], mean=MEAN[kept], random_seed=2)
    np.testing.assert_allclose(found.mean[kept], part.mean)
    np.testing.assert_allclose(found.cov[np.ix_(kept, kept)], part.cov)
    assert found.mean[4] == found.lower[4] == found.upper[4] == 0
    assert (found.cov[4] == 0).all()


def test_where_tilting_is_not_enough():
    found = rectangle_gradient(exact.autoregression(500), 0, 15, n_points=256, random_seed=3)
    assert found.trusted
    assert abs(found.log_p + 116.153641) < 6 * found.log_p_se


def test_refused():
    with pytest.raises(ModelError, match="singular"):
        rectangle_gradient(np.ones((2, 2)), 0)
    with pytest.raises(ModelError, match="equals"):
        rectangle_gradient(np.eye(2), 0, 0)
    with pytest.raises(ModelError, match="batch"):
        rectangle_gradient(np.eye(2), np.zeros((3, 2)))


CHOLESKY = np.linalg.cholesky(COV[:3, :3])


def rows(n):
    g = np.random.default_rng(1)
    mean, lower = g.normal(size=(n, 3)), g.normal(-0.5, 0.5, (n, 3))
    upper = lower + g.uniform(0.5, 3, (n, 3))
    lower[::3, 0], upper[1::3, 2] = -INF, INF
    return mean, lower, upper


def test_rows_agree_with_single_rectangles():
    mean, lower, upper = rows(6)
    found = log_rectangles(mean, np.array([CHOLESKY] * 6), lower, upper, scramble(2**13, 3, np.random.SeedSequence(1)))
    for i in range(6):
        single = rectangle_gradient(
            cholesky=CHOLESKY, lower=lower[i], upper=upper[i], mean=mean[i], n_points=2**13, random_seed=1
        )
        assert abs(found.log_p[i] - single.log_p) < 1e-4
        for name in ("mean", "lower", "upper", "cholesky"):
            np.testing.assert_allclose(getattr(found, name)[i], getattr(single, name), atol=1e-3)


def test_arrays_of_every_kind_take_the_same_compiled_function():
    mean, lower, upper = rows(6)
    arguments = (mean, np.array([CHOLESKY] * 6), lower, upper, fixed_points(64, 0))
    first = log_rectangles(*arguments)
    forms = list(estimate_rows.signatures)
    others = [np.asfortranarray(each) for each in arguments]
    for each in others[:2]:
        each.flags.writeable = False
    np.testing.assert_array_equal(log_rectangles(*others).log_p, first.log_p)
    assert estimate_rows.signatures == forms


def test_graph_and_its_gradient():
    mean, lower, upper = rows(20)
    inputs = [pt.dmatrix(), pt.dmatrix(), pt.dmatrix(), pt.dmatrix()]
    total = log_rectangle(*inputs, n_points=2**12).sum()
    function = pytensor.function(inputs, [total, *pytensor.grad(total, inputs)])
    at = [mean, CHOLESKY, lower, upper]
    found = function(*at)
    assert found[0] == function(*at)[0]
    for position, entry in [(0, (3, 1)), (1, (0, 0)), (1, (2, 1)), (2, (4, 1)), (3, (5, 0))]:
        moved = []
        for sign in (1, -1):
            values = [value.copy() for value in at]
            values[position][entry] += sign * 1e-4
            moved.append(function(*values)[0])
        slope = (moved[0] - moved[1]) / 2e-4
        assert abs(found[1 + position][entry] - slope) <= 1e-3 * (1 + abs(slope))


def test_graph_of_one_rectangle():
    lower = pt.dvector()
    value = log_rectangle(np.zeros(2), np.diag([1.0, 2.0]), lower, INF)
    function = pytensor.function([lower], [value, pytensor.grad(value, lower)])
    at = np.array([0.5, -1.0])
    log_p_found, slope = function(at)
    assert abs(log_p_found - log_ndtr(-at / [1, 2]).sum()) < 1e-4
    truth = differences(lambda x: log_ndtr(-x / np.array([1, 2])).sum(), at)
    np.testing.assert_allclose(slope, truth, atol=2e-3)
    with pytest.raises(ModelError, match="a Cholesky factor"):
        log_rectangle(np.zeros(2), np.zeros((1, 3, 2, 2)), 0, 1)
    assert log_rectangle(np.zeros(2), np.array([np.eye(2)] * 3), 0, np.inf).eval().shape == (3,)


def bounded(n, dim, both=0.0):
    """Rows with one bound for each variable, or two for a share of them, their correlations all over the range."""
    g = np.random.default_rng(2)
    factors = np.tril(g.normal(0, 0.6, (n, dim, dim)))
    factors[:, np.arange(dim), np.arange(dim)] = g.uniform(0.3, 1.5, (n, dim))
    above, bound = g.random((n, dim)) < 0.5, g.normal(0, 0.7, (n, dim))
    mean, two = g.normal(size=(n, dim)), g.random((n, dim)) < both
    lower, upper = np.where(above | two, bound, -INF), np.where(above, INF, bound)
    return [mean, factors, lower, np.where(two, bound + g.uniform(0.3, 3, (n, dim)), upper)]


def assert_derivatives_are_those_of(function, given, rtol, atol):
    """Check each derivative of all rows against differences."""
    dim, step, found = given[0].shape[1], 1e-5, function(*given)
    for position, slopes in enumerate([found.mean, found.cholesky, found.lower, found.upper]):
        for entry in zip(*np.nonzero(np.tri(dim) if position == 1 else np.ones(dim)), strict=True):
            sides = [[x.copy() for x in given] for _ in range(2)]
            for side, sign in zip(sides, (1, -1), strict=True):
                side[position][(slice(None), *entry)] += sign * step
            slope = (function(*sides[0]).log_p - function(*sides[1]).log_p) / (2 * step)
            np.testing.assert_allclose(slopes[(slice(None), *entry)], slope, rtol=rtol, atol=atol)


def test_derivatives_are_those_of_the_estimate_itself():
    """The test uses few points, where the estimate is far from log P."""
    mean, lower, upper = rows(30)
    lower[4], upper[4] = [3.0, -4.0, 1.0], [3.2, -3.9, 1.3]
    points = scramble(8, 3, np.random.SeedSequence(1))
    given = [mean, CHOLESKY * np.linspace(0.5, 2, 30)[:, None, None], lower, upper]
    assert_derivatives_are_those_of(lambda *x: log_rectangles(*x, points), given, 1e-6, 1e-7)


@pytest.mark.parametrize("both", [0, 0.5, 1])
@pytest.mark.parametrize("dim", [2, 3])
def test_two_and_three_variables_without_sampling(dim, both):
    """Values agree with two thousand times the points, and derivatives with differences; few rows use points."""
    given = bounded(200, dim, both)
    few = scramble(4, dim, np.random.SeedSequence(1))
    found, poor = best_log_rectangles(*given, few), log_rectangles(*given, few)
    exact = found.log_p != poor.log_p
    assert exact.mean() > 0.8
    kept = [x[exact] for x in given]
    truth = log_rectangles(*[x[:50] for x in kept], scramble(2**14, dim, np.random.SeedSequence(2)))
    np.testing.assert_allclose(found.log_p[exact][:50], truth.log_p, atol=2e-4)
    large = found.log_p[exact] > np.log(1e-3)  # differences divide the error of P by P and by the step
    tolerance = 1e-5 if both else 1e-6
    assert_derivatives_are_those_of(
        lambda *x: best_log_rectangles(*x, few), [x[large] for x in kept], tolerance, tolerance
    )


def test_two_variables_against_quadrature():
    mean, factors, lower, upper = bounded(100, 2, 0.7)
    few = np.full((1, 2), 0.5)
    found = best_log_rectangles(mean, factors, lower, upper, few).log_p
    ruled = found != log_rectangles(mean, factors, lower, upper, few).log_p
    covs = factors @ factors.transpose(0, 2, 1)
    truth = [bivariate(cov, a, b) for cov, a, b in zip(covs, lower - mean, upper - mean, strict=True)]
    assert ruled.mean() > 0.8
    assert np.abs(np.exp(found[ruled]) - np.exp(np.array(truth)[ruled])).max() < 1e-11


def correlations(n):
    """Return correlations of three variables, from weak ones to the limits of the rules."""
    x = np.random.default_rng(3).normal(size=(n, 3, 3))
    cov = x @ x.transpose(0, 2, 1)
    scale = np.sqrt(np.einsum("nii->ni", cov))
    return cov / (scale[:, :, None] * scale[:, None])


def test_orthants_of_three_against_their_closed_form():
    """The points of the rows that are left out are so poor that errors show."""
    covs = correlations(400)
    zero = np.zeros((400, 3))
    above = np.random.default_rng(4).random((400, 3)) < 0.5
    given = [zero, np.linalg.cholesky(covs), np.where(above, 0, -INF), np.where(above, INF, 0)]
    found = best_log_rectangles(*given, np.full((1, 3), 0.5)).log_p
    sign = np.where(above, 1.0, -1.0)
    signed = covs * sign[:, :, None] * sign[:, None]
    truth = 1 / 8 + np.arcsin(signed[:, [1, 2, 2], [0, 0, 1]]).sum(axis=1) / (4 * np.pi)
    error = np.abs(np.exp(found) - truth)
    ruled = found != log_rectangles(*given, np.full((1, 3), 0.5)).log_p
    assert ruled.mean() > 0.6
    assert error[ruled].max() < 2e-11


def test_orthants_of_three_against_quadrature():
    """P = ∫ φ(x) Φ2(the others | x) dx from the lower bound on."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    for cov, lower in zip(correlations(8), np.random.default_rng(5).normal(0, 1.3, (8, 3)), strict=True):
        factor = np.linalg.cholesky(cov)[None]
        arguments = [np.zeros((1, 3)), factor, lower[None], np.full((1, 3), INF)]
        found = best_log_rectangles(*arguments, np.full((1, 3), 0.5)).log_p[0]
        if found == log_rectangles(*arguments, np.full((1, 3), 0.5)).log_p[0]:
            continue
        half = (8.0 - lower[0]) / 2
        x = lower[0] + half * (1 + nodes)
        rest = cov[1:, 1:] - np.outer(cov[1:, 0], cov[0, 1:])
        inside = [np.exp(bivariate(rest, lower[1:] - cov[1:, 0] * at, np.full(2, INF))) for at in x]
        truth = half * (weights * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)) @ inside
        assert abs(np.exp(found) - truth) < 1e-8


@pytest.mark.parametrize("dim", [2, 3, 4])
@pytest.mark.parametrize("scale", [1e-300, 1e-165, 1e-75, 1e-60, 1e60, 1e160, 1e300])
def test_scales_out_of_range_raise_nothing(dim, scale):
    """Optimisers reach such points: the result is a probability or zero, and no derivative is NaN."""
    factor = scale * (np.eye(dim) + np.tril(np.full((dim, dim), 0.3), -1))
    for mean in (0.0, -1.0, 1e200):
        for upper in (2.0, INF):
            found = best_log_rectangles(
                np.full((1, dim), mean),
                factor[None],
                np.zeros((1, dim)),
                np.full((1, dim), upper),
                fixed_points(128, 0),
            )
            assert found.log_p[0] <= 1e-9
            assert all(np.isfinite(part).all() for part in found[1:])


def test_exponentials_and_probabilities_of_many():
    x = np.linspace(-12, 12, 3 * LANES + 5)
    for function, truth, at in [(exp_all, np.exp, -(x**2)), (phi_all, ndtr, x)]:
        work = np.zeros(10 * LANES)
        work[7 : 7 + len(x)] = at
        function(work, 7, len(x), *([5 * LANES] if function is phi_all else []))
        np.testing.assert_allclose(
            work[7 : 7 + len(x)], truth(at), rtol=2e-13 if function is exp_all else 0, atol=2e-13
        )


@pytest.mark.parametrize("option", [{"n_points": 0}, {"n_points": -3}, {"n_points": 1.5}, {"seed": -1}])
def test_wrong_options_of_log_rectangle_are_refused_in_words(option):
    with pytest.raises(ModelError, match="expected an integer of at least"):
        log_rectangle(np.zeros(4), np.eye(4), np.zeros(4), np.full(4, np.inf), **option)
