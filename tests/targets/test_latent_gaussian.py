"""Latent Gaussian models as densities, against dense ones."""

import numpy as np
import pytest
from scipy import sparse, stats
from scipy.linalg import null_space

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.targets.factors import Poisson
from ppl_backends.targets.latent_gaussian import log_determinant

STEPS = sparse.csc_matrix(sparse.diags_array([-1.0, 1.0], offsets=[0, 1], shape=(5, 6)))
WALK = sparse.csc_matrix(STEPS.T @ STEPS)
Y = np.array([2, 0, 1, 3, 1, 0])


def walk_of_counts(**options):
    return pb.LatentGaussian(
        lambda phi: np.exp(phi[0]) * (WALK + 0.1 * sparse.eye_array(6)),
        Poisson(Y),
        hyper_start=[0.0],
        hyper_prior=lambda phi: stats.norm.logpdf(phi[0], 1, 2),
        hyper_names=["log_tau"],
        **options,
    )


def test_density_and_gradient():
    model = walk_of_counts(mean=0.3, offset=-0.2)
    x = np.random.default_rng(0).normal(size=(4, 7))
    cov = np.linalg.inv(WALK.toarray() + 0.1 * np.eye(6))
    expected = [
        stats.norm.logpdf(point[0], 1, 2)
        + stats.multivariate_normal.logpdf(point[1:], np.full(6, 0.3), np.exp(-point[0]) * cov)
        + stats.poisson.logpmf(Y, np.exp(point[1:] - 0.2)).sum()
        for point in x
    ]
    value, gradient = model.log_density_and_gradient(x)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    h = 1e-5 * np.eye(7)
    slopes = [(model.log_density(x + step) - model.log_density(x - step)) / 2e-5 for step in h]
    np.testing.assert_allclose(gradient.T, slopes, rtol=1e-5, atol=1e-6)
    assert model.names[:2] == ("log_tau", "latent[0]")
    assert model.constrain(x)["latent"].shape == (4, 6)
    np.testing.assert_array_equal(model.unconstrain(model.constrain(x)), x)


@pytest.mark.parametrize("size", [0.0, 0.1])
def test_determinant_on_constraints(size):
    matrix = sparse.csc_matrix(WALK + size * sparse.eye_array(6))
    constraints = np.full((1, 6), 2.0)
    basis = null_space(constraints)
    expected = np.linalg.slogdet(basis.T @ matrix @ basis)[1]
    assert log_determinant(matrix, constraints) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("size", [0.0, 0.1])
def test_the_prior_on_constraints_is_normalised_for_any_mean(size):
    constraints, basis = np.full((1, 6), 2.0), null_space(np.ones((1, 6)))
    matrix = sparse.csc_matrix(WALK + size * sparse.diags_array(np.arange(1.0, 7.0)))
    given = pb.LatentGaussian(matrix, Poisson(Y), mean=np.arange(6.0), constraints=constraints).at([])
    inner = basis.T @ matrix @ basis
    top = basis @ np.linalg.solve(inner, basis.T @ (matrix @ np.arange(6.0)))
    expected = 0.5 * (np.linalg.slogdet(inner)[1] - 5 * np.log(2 * np.pi))
    assert given.log_prior(top) == pytest.approx(expected, rel=1e-8)


def test_a_point_without_a_proper_prior_has_density_and_gradient_zero():
    model = pb.LatentGaussian(lambda phi: phi[0] * WALK + np.eye(6), Poisson(Y), hyper_start=[1.0])
    value, gradient = model.log_density_and_gradient(np.full((1, 7), -9.0))
    assert value == -np.inf
    assert not gradient.any()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ModelError, match="its null space as constraints"):
        pb.LatentGaussian(WALK, Poisson(Y)).at([])
    with pytest.raises(ModelError, match="not symmetric"):
        pb.LatentGaussian(sparse.csc_matrix(np.triu(np.ones((6, 6)))), Poisson(Y))
    with pytest.raises(ModelError, match="disagree"):
        walk_of_counts(design=np.ones((5, 6)))
    with pytest.raises(ModelError, match="constraints have shape"):
        walk_of_counts(constraints=np.ones(5))
    constrained = walk_of_counts(constraints=np.ones(6))
    with pytest.raises(ModelError, match="use fit_inla"):
        constrained.log_density(np.zeros((1, 7)))
