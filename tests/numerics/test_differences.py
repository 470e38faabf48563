"""Central differences against derivatives in closed form."""

import numpy as np
from scipy.special import expit

from ppl_backends.numerics.differences import central_differences, difference_hessian, with_short_steps

X = np.array([[0.3, -2.0, 40.0], [1.5, 0.0, -0.7]])


def test_a_gradient_is_that_of_the_function():
    found = central_differences(lambda x: (np.sin(x) * [1.0, 2.0, 3.0]).sum(axis=1), X)
    np.testing.assert_allclose(found, np.cos(X) * [1.0, 2.0, 3.0], atol=1e-8)


def test_arrays_are_differentiated_element_by_element_in_the_coordinates_asked_for():
    found = central_differences(lambda x: np.stack([x**2, x**3], axis=1), X, [2, 0])
    assert found.shape == (2, 2, 2, 3)
    wanted = np.zeros_like(found)
    for place, j in enumerate([2, 0]):
        wanted[:, place, 0, j], wanted[:, place, 1, j] = 2 * X[:, j], 3 * X[:, j] ** 2
    np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-8)


def test_a_hessian_is_symmetric_and_that_of_the_function():
    matrix = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.3], [0.0, -0.3, 4.0]])
    found = difference_hessian(lambda x: x @ matrix + np.exp(-np.abs(x)) * 0, X)
    np.testing.assert_array_equal(found, np.swapaxes(found, 1, 2))
    np.testing.assert_allclose(found, np.broadcast_to(matrix, found.shape), atol=1e-7)


def test_coordinates_of_tiny_scales_get_short_steps():
    """Columns in units of 10⁹, 10⁴ and 1: a logistic likelihood whose gradient saturates within a long step."""
    z = np.random.default_rng(1).standard_normal((40, 3)) * [1e9, 1e4, 1.0]

    def gradient(x):
        return (0.5 - expit(x @ z.T)) @ z

    x = np.array([[1e-9, -1e-4, 0.5], [0.0, 0.0, 0.0]])
    share = expit(x @ z.T)
    exact = -np.einsum("nk,ki,kj->nij", share * (1 - share), z, z)
    units = np.outer([1e9, 1e4, 1.0], [1e9, 1e4, 1.0])
    np.testing.assert_allclose(difference_hessian(gradient, x) / units, exact / units, atol=1e-5)
    saturated = np.broadcast_to(-np.diag([1e13, 1e7, 9.0]), (2, 3, 3))
    found = with_short_steps(gradient, x, saturated, np.full((2, 3), 1e-3))
    np.testing.assert_allclose(found[:, :2] / units[:2], exact[:, :2] / units[:2], atol=1e-5)
    np.testing.assert_array_equal(found, np.swapaxes(found, 1, 2))
    assert (found[:, 2, 2] == -9).all()  # a short step there is left as it is
