"""Gradients of a wide mode are smooth; what is left of others leads to a narrow mode, from far outside of its basin."""

import numpy as np
import pytest

from ppl_backends.approximations.densest import Densest
from ppl_backends.approximations.unlike import ahead, directions, smooth_gradient, unlike
from ppl_backends.numerics.gaussian import Gaussian

DIM, WIDTH = 20, 0.1
CENTRE = np.full(DIM, 0.31)


def gradient_of_mixture(x, precision=None):
    """Return log ρ of 0.1 N(0, Q⁻¹) + 0.9 N(0.31, 0.1² I), and the gradient; Q has determinant one."""
    slope = x if precision is None else x @ precision
    apart = (x - CENTRE) / WIDTH
    ratio = np.log(9) - DIM * np.log(WIDTH) - 0.5 * (apart**2).sum(axis=1) + 0.5 * (slope * x).sum(axis=1)
    share = np.exp(ratio - np.logaddexp(0, ratio))[:, None]
    return ratio, -(1 - share) * slope - share * apart / WIDTH


def cooled(n, seed=0):
    """Return points of N(0, I/10), the nearest of which is where the spike has e⁻²¹ of the density."""
    x = np.sqrt(0.1) * np.random.default_rng(seed).standard_normal((n, DIM))
    x = x[((x - CENTRE) ** 2).sum(axis=1) > 1.18**2]
    x[0] = CENTRE - 1.18 * CENTRE / np.linalg.norm(CENTRE)
    return x


def test_the_nearest_point_is_the_least_alike_and_the_spike_is_ahead_of_it():
    x = cooled(2000)
    ratio, gradient = gradient_of_mixture(x)
    assert ratio.max() == pytest.approx(-21.4, abs=0.5)
    seen = Densest(Gaussian(np.zeros(DIM), np.eye(DIM)))
    seen.see_gradients(x, ratio, gradient)
    assert (seen.x[0] == x[0]).all()
    assert gradient_of_mixture(ahead(seen.x[:1], seen.ahead[:1]))[0].max() > 2


def test_points_in_the_spike_do_not_bend_the_fit():
    x = cooled(2000)
    x[-100:] = CENTRE + WIDTH * x[-100:]
    _, gradient = gradient_of_mixture(x)
    own = unlike(Gaussian(np.zeros(DIM), np.eye(DIM)), x, gradient, smooth_gradient(x, gradient))[0]
    assert np.median(own) < 1e-20
    assert own[-100:].min() > 10


def test_squares_of_coordinates_are_fitted_and_few_points_are_not():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((500, 3))
    smooth = smooth_gradient(x, x**2 - x @ np.ones((3, 3)))
    assert np.abs(smooth.at(x) - x**2 + x @ np.ones((3, 3))).max() < 1e-12
    assert smooth_gradient(x[:10], x[:10]) is None
    many = rng.standard_normal((500, 60))
    assert smooth_gradient(many, many).coefficients.shape == (61, 60)


def test_a_gradient_that_is_not_finite_is_left_out():
    x = np.random.default_rng(2).standard_normal((500, 3))
    gradient = np.where(np.arange(500)[:, None] == 7, np.nan, -x)
    assert np.abs(smooth_gradient(x, gradient).at(x) + x).max() < 1e-12


def test_one_of_the_directions_leads_to_a_spherical_spike_and_one_to_one_of_the_shape_of_the_wide_mode():
    cov = 0.9 + 0.1 * np.eye(5)
    gaussian, away = Gaussian.from_covariance(np.zeros(5), cov), np.array([[1.0, -2.0, 0.5, 0.0, 1.0]])
    for difference, k in ((away, 1), (np.linalg.solve(cov, away.T).T, 0)):
        vector = directions(gaussian, difference)[0, k]
        assert vector @ away[0] == pytest.approx(np.linalg.norm(vector) * np.linalg.norm(away))
        assert np.linalg.norm(gaussian.whiten(vector[None])) == pytest.approx(1.0)


def test_a_gradient_whose_square_overflows_does_not_decide_a_smooth_one():
    x = np.random.default_rng(0).standard_normal((2000, 3))
    gradient = -x
    gradient[::100] = 1e200  # 1 % of the points
    smooth = smooth_gradient(x, gradient)
    np.testing.assert_allclose(smooth.at(x[:5]), -x[:5], atol=1e-6)
