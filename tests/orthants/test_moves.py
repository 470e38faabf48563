"""Every move leaves a truncated Gaussian as it is; one with another mean does not."""

import numpy as np
import pytest
from scipy import stats

import ppl_backends as pb
from ppl_backends.orthants.moves import MOVES
from ppl_backends.orthants.ordering import order_rectangle

COV = np.array([[1.0, 0.6, 0.5], [0.6, 2.0, -0.2], [0.5, -0.2, 1.5]])
LOWER, UPPER = np.array([0.5, -np.inf, -1.0]), np.array([2.0, 0.3, np.inf])
N = 20_000


def moved(name, mean):
    """Return coordinates of exact draws of N(mean, I) in the rectangle, before and after five moves."""
    rectangle = order_rectangle(COV, LOWER, UPPER)
    draws = pb.sample_truncated(
        COV, LOWER, UPPER, mean=rectangle.loadings @ mean, draws=N, method="exact", random_seed=1
    )
    z = np.linalg.solve(rectangle.loadings, draws.draws.T)
    before = z.copy()
    rng = np.random.default_rng(2)
    wrong = np.zeros(3) if name == "twin" else mean
    for _ in range(5):
        MOVES["gibbs" if name == "twin" else name](rng, z, rectangle.rows, rectangle.lower, rectangle.upper, wrong)
    y = rectangle.rows @ z
    assert (y >= rectangle.lower[:, None] - 1e-9).all()
    assert (y <= rectangle.upper[:, None] + 1e-9).all()
    assert (z != before).any(axis=0).mean() > 0.5
    return before[:, : N // 2], z[:, N // 2 :]


@pytest.mark.parametrize("name", MOVES)
def test_invariance(name):
    before, after = moved(name, np.array([0.7, -0.5, 0.3]))
    assert min(stats.ks_2samp(a, b).pvalue for a, b in zip(before, after, strict=True)) > 1e-4 / 3


def test_broken_twin_with_another_mean():
    before, after = moved("twin", np.array([0.7, -0.5, 0.3]))
    assert min(stats.ks_2samp(a, b).pvalue for a, b in zip(before, after, strict=True)) < 1e-8
