"""Separated groups of points: gaps along coordinates and along principal axes."""

import numpy as np
import pytest

from ppl_backends.numerics.gaps import modes, modes_along_axes

SHARES = [0.2, 0.3, 0.5]


def in_a_row(n, dim, apart, rng):
    """Return points of three normals in a row along the first coordinate, and which of them each is from."""
    which = rng.choice(3, n, p=SHARES)
    x = rng.standard_normal((n, dim))
    x[:, 0] += apart * which
    return x, which


@pytest.mark.parametrize("n", [500, 1000, 4000])
def test_three_modes_in_a_row_are_found(n):
    """Two of them together are wider than the gap beside the third."""
    x, which = in_a_row(n, 3, 9.0, np.random.default_rng(n))
    labels = modes(x)
    assert labels.max() == 2
    assert all(len(np.unique(labels[which == k])) == 1 for k in range(3))


def test_modes_along_a_diagonal_are_found():
    dim, rng = 10, np.random.default_rng(1)
    x, which = in_a_row(2000, dim, 9.0, rng)
    diagonal = np.linalg.qr(np.c_[np.ones(dim), rng.standard_normal((dim, dim - 1))])[0].T
    turned = x @ diagonal
    assert not modes(turned).any()
    labels = modes_along_axes(turned)
    assert labels.max() == 2
    assert all(len(np.unique(labels[which == k])) == 1 for k in range(3))


@pytest.mark.parametrize("draw", ["standard_normal", "standard_cauchy", "standard_exponential"])
@pytest.mark.parametrize(("n", "dim"), [(200, 5), (500, 30), (4000, 10)])
def test_single_modes_have_no_gap(draw, n, dim):
    rng = np.random.default_rng(2)
    found = [modes_along_axes(getattr(rng, draw)((n, dim))).any() for _ in range(10)]
    assert not any(found)


@pytest.mark.parametrize("share", [0.1, 0.05, 0.02])
@pytest.mark.parametrize("df", [3, np.inf])
@pytest.mark.parametrize("dim", [5, 50, 100])
def test_copies_of_few_points_are_no_mode(dim, df, share):
    """Half of the points have all the weight, as after a step of tempering."""
    rng = np.random.default_rng(3)
    for _ in range(10):
        x = rng.standard_normal((200, dim)) * (1.0 if df == np.inf else (df / rng.chisquare(df, (200, 1))) ** 0.5)
        copies = x[np.sort(rng.choice(200, 200, p=rng.dirichlet(np.ones(200))))]
        assert not modes_along_axes(copies, share).any()
