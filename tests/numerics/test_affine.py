"""Designs read off affine functions: dense, sparse, and by few evaluations once the pattern is known."""

import numpy as np
import pymc as pm
import pytest
from scipy import sparse

from ppl_backends.approximations.ep import Poisson
from ppl_backends.numerics import affine
from ppl_backends.numerics.affine import AffineFunction
from ppl_backends.targets.pymc import PyMCTarget

RNG = np.random.default_rng(0)
GROUPS, N = 300, 1000
GROUP = RNG.integers(GROUPS, size=N)


class Counted:
    """x ↦ scale(x₀) · A x₁: + x₀, counting the points that it is evaluated at."""

    def __init__(self, matrix):
        self.matrix, self.points = matrix, 0

    def __call__(self, x):
        self.points += len(x)
        return np.exp(x[:, :1]) * np.asarray((self.matrix @ x[:, 1:].T).T) + x[:, :1]


def check(function, affine, level):
    x = np.r_[level, RNG.normal(size=function.matrix.shape[1])]
    matrix, offset = affine.at(x)
    dense = matrix.toarray() if sparse.issparse(matrix) else matrix
    expected = function.matrix.toarray() if sparse.issparse(function.matrix) else function.matrix
    np.testing.assert_allclose(dense, np.exp(level) * expected, atol=1e-12)
    np.testing.assert_allclose(offset, level)
    return matrix


def test_group_effects_take_few_evaluations():
    effects = sparse.csr_matrix((np.ones(N), (np.arange(N), GROUP)), shape=(N, GROUPS))
    function = Counted(sparse.hstack([effects, RNG.normal(size=(N, 2))]).tocsr())
    affine = AffineFunction(function, 1 + np.arange(GROUPS + 2))
    assert sparse.issparse(check(function, affine, 0.0))
    first, function.points = function.points, 0
    check(function, affine, -0.7)
    assert first > GROUPS
    assert function.points < 10


def test_a_pattern_that_no_longer_holds_is_found_anew():
    function = Counted(sparse.csr_matrix((np.ones(N), (np.arange(N), GROUP)), shape=(N, GROUPS)))
    affine = AffineFunction(function, 1 + np.arange(GROUPS))
    check(function, affine, 0.0)
    function.matrix = sparse.csr_matrix((np.ones(N), (np.arange(N), np.roll(GROUP, 1))), shape=(N, GROUPS))
    check(function, affine, 0.3)


@pytest.mark.parametrize("block", [1, 2**26])
def test_dense_matrices_in_blocks_of_columns(monkeypatch, block):
    monkeypatch.setattr(affine, "BLOCK_BYTES", block)
    function = Counted(RNG.normal(size=(20, 5)))
    assert isinstance(check(function, AffineFunction(function, 1 + np.arange(5)), 0.2), np.ndarray)


def test_sums_of_many_parts_and_sparse_designs_of_models():
    x = RNG.normal(size=N)
    counts = RNG.poisson(1.0, size=N)
    with pm.Model() as model:
        tau, a, b = pm.HalfNormal("tau"), pm.Normal("a"), pm.Normal("b")
        z = pm.Normal("z", shape=GROUPS)
        pm.Poisson("y", pm.math.exp(a + b * x + (tau * z)[GROUP] + 0.1), observed=counts)
    target = PyMCTarget(model)
    for phi in (0.0, -1.0):
        factors = target.factors.at([phi])
        assert sparse.issparse(factors.design)
        assert factors.design.nnz == 3 * N
        assert isinstance(factors.sites.families[0], Poisson)
        theta = RNG.normal(size=(3, GROUPS + 2))
        points = np.empty((3, GROUPS + 3))
        points[:, target.factors.coordinates] = theta
        points[:, target.factors.hyper_coordinates] = phi
        value = factors.log_density(theta) + target.factors.log_hyper_prior([phi])
        np.testing.assert_allclose(value, target.log_density(points), rtol=1e-9)
