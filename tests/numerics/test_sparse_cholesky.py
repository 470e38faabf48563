"""Sparse factors against dense matrices."""

import numpy as np
import pytest
from numpy.linalg import LinAlgError
from scipy import sparse

from ppl_backends.numerics.sparse_cholesky import SparseCholesky, covariances_in_pattern


def lattice_with_intercept(m, k, seed):
    """Return a design with an intercept, and a precision to which it adds its squares."""
    rng = np.random.default_rng(seed)
    sides = [sparse.diags_array([-1.0, 2.1, -1.0], offsets=[-1, 0, 1], shape=(side, side)) for side in (m, k)]
    n = m * k
    design = sparse.csr_matrix(sparse.hstack([np.ones((n, 1)), sparse.eye_array(n)]))
    field = sparse.kronsum(*sides) + sparse.diags_array(rng.uniform(0.1, 1, n))
    prior = sparse.block_diag([[[0.3]], field])
    return design, sparse.csc_matrix(prior + design.T @ sparse.diags_array(rng.uniform(0, 2, n)) @ design)


@pytest.mark.parametrize(("seed", "sides"), [(0, (7, 9)), (1, (7, 9)), (2, (30, 31))])  # the last intercept is dense
def test_determinant_solutions_draws_and_elements_of_the_inverse(seed, sides):
    design, matrix = lattice_with_intercept(*sides, seed)
    d = matrix.shape[0]
    dense = np.linalg.inv(matrix.toarray())
    factor = SparseCholesky(matrix)
    assert factor.log_determinant == pytest.approx(np.linalg.slogdet(matrix.toarray())[1], rel=1e-12)
    right = np.random.default_rng(seed).normal(size=(d, 2))
    np.testing.assert_allclose(factor.solve(right), dense @ right, atol=1e-12)
    root = factor.colour(np.eye(d))
    np.testing.assert_allclose(root.T @ root, dense, atol=1e-12)
    inverse = factor.inverse_in_pattern()
    known = inverse.nonzero()
    np.testing.assert_allclose(np.asarray(inverse[known]).ravel(), dense[known], atol=1e-12)
    assert {*zip(*matrix.nonzero(), strict=True)} <= {*zip(*known, strict=True)}
    found = sparse.csr_matrix((covariances_in_pattern(design, inverse), design.indices, design.indptr), design.shape)
    np.testing.assert_allclose(found.toarray(), (design @ dense) * (design.toarray() != 0), atol=1e-12)


@pytest.mark.parametrize("sides", [(7, 9), (30, 31)])
def test_an_order_serves_other_matrices_of_its_pattern(sides):
    (_, first), (_, second) = (lattice_with_intercept(*sides, seed) for seed in (3, 4))
    own, given = SparseCholesky(second), SparseCholesky(second, SparseCholesky(first).order)
    np.testing.assert_array_equal(np.sort(given.order), np.arange(second.shape[0]))
    assert given.log_determinant == pytest.approx(own.log_determinant, rel=1e-13)
    right = np.random.default_rng(0).normal(size=second.shape[0])
    np.testing.assert_allclose(given.solve(right), own.solve(right), atol=1e-12)
    difference = given.inverse_in_pattern() - own.inverse_in_pattern()
    assert abs(difference[second.nonzero()]).max() < 1e-12
    root = given.colour(np.eye(second.shape[0]))
    np.testing.assert_allclose(second @ (root.T @ root), np.eye(second.shape[0]), atol=1e-9)
    assert given._lower().nnz == own._lower().nnz


@pytest.mark.parametrize("values", [[1.0, 2.0, 1.0], [1.0, -0.5, 1.0], [0.0, 1.0, 1.0]])
def test_indefinite_matrices_are_refused(values):
    matrix = sparse.csc_matrix([[values[0], values[1]], [values[1], values[2]]])
    if values[1] == -0.5:
        assert SparseCholesky(matrix).log_determinant == pytest.approx(np.log(0.75))
    else:
        with pytest.raises(LinAlgError, match="sparse matrix"):
            SparseCholesky(matrix)


def test_a_matrix_that_is_singular_without_its_dense_column_is_refused():
    d = 2000
    diagonal = np.ones(d)
    diagonal[5] = 0.0
    matrix = sparse.block_array(
        [[[[3.0]], np.full((1, d), 0.01)], [np.full((d, 1), 0.01), sparse.diags_array(diagonal)]]
    )
    with pytest.raises(LinAlgError, match="a sparse matrix is singular"):
        SparseCholesky(matrix)
