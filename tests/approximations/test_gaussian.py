"""The Gaussian against scipy's, its two representations, and its InferenceData."""

import pickle

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from ppl_backends.approximations import GaussianApproximation
from ppl_backends.errors import ModelError
from ppl_backends.results.inference_data import group

MEAN = np.array([1.0, -2.0, 0.5])
COV = np.array([[2.0, 0.6, -0.3], [0.6, 1.0, 0.2], [-0.3, 0.2, 0.5]])
X = np.random.default_rng(0).normal(size=(6, 3))


def gaussians():
    factor = np.linalg.cholesky(COV)
    return {
        "cov": GaussianApproximation(MEAN, COV),
        "precision": GaussianApproximation(MEAN, precision=np.linalg.inv(COV)),
        "cholesky": GaussianApproximation(MEAN, cholesky=factor),
    }


@pytest.mark.parametrize("given", ["cov", "precision", "cholesky"])
def test_density_gradient_and_moments_of_a_dense_gaussian(given):
    q = gaussians()[given]
    np.testing.assert_allclose(q.log_density(X), multivariate_normal(MEAN, COV).logpdf(X), rtol=1e-12)
    value, gradient = q.log_density_and_gradient(X)
    np.testing.assert_allclose(value, q.log_density(X), rtol=1e-14)
    np.testing.assert_allclose(gradient, -(X - MEAN) @ np.linalg.inv(COV), rtol=1e-10)
    np.testing.assert_allclose(q.cov, COV, rtol=1e-12)
    np.testing.assert_allclose(q.precision, np.linalg.inv(COV), rtol=1e-10)
    np.testing.assert_allclose(q.sd, np.sqrt(np.diag(COV)), rtol=1e-12)
    assert q.representation == "dense"


def test_diagonal_representation_agrees_with_the_dense_one():
    variance = np.array([0.5, 2.0, 3.0])
    dense = GaussianApproximation(MEAN, np.diag(variance))
    for diagonal in (
        GaussianApproximation(MEAN, variance),
        GaussianApproximation(MEAN, precision=1 / variance),
        GaussianApproximation(MEAN, cholesky=np.sqrt(variance)),
    ):
        assert diagonal.representation == "diagonal"
        for ours, theirs in zip(diagonal.log_density_and_gradient(X), dense.log_density_and_gradient(X), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-12)
        np.testing.assert_allclose(diagonal.cov, dense.cov)
        np.testing.assert_allclose(diagonal.sd, dense.sd)
        np.testing.assert_allclose(diagonal.place(X), dense.place(X))


def test_draws_have_the_mean_and_covariance():
    n = 40_000
    draws = gaussians()["cov"].sample(n, np.random.default_rng(1))
    assert np.all(np.abs(draws.mean(0) - MEAN) < 5 * np.sqrt(np.diag(COV) / n))
    spread = np.sqrt((np.outer(np.diag(COV), np.diag(COV)) + COV**2) / n)
    assert np.all(np.abs(np.cov(draws.T) - COV) < 5 * spread)


def test_whiten_inverts_place_and_from_uniform_stays_finite_on_the_faces():
    q = gaussians()["cov"]
    np.testing.assert_allclose(q.whiten(q.place(X)), X, atol=1e-12)
    assert np.isfinite(q.from_uniform(np.array([[0.0, 1.0, 0.5]]))).all()
    np.testing.assert_allclose(q.from_uniform(np.full((1, 3), 0.5))[0], MEAN)


def test_conditional_and_marginal():
    q = gaussians()["cov"]
    conditional = q.conditional([1], [0.3])
    joint = q.log_density(np.column_stack([X[:, 0], np.full(6, 0.3), X[:, 2]]))
    np.testing.assert_allclose(joint - q.marginal([1]).log_density([[0.3]]), conditional.log_density(X[:, [0, 2]]))
    assert conditional.names == ("x[0]", "x[2]")
    diagonal = GaussianApproximation(MEAN, np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(diagonal.conditional([1], [0.3]).cov, np.diag([1.0, 3.0]))
    np.testing.assert_allclose(diagonal.marginal([2]).cov, [[3.0]])


def test_inference_data_says_that_it_is_approximate():
    q = GaussianApproximation(MEAN, COV, converged=False, log_evidence=-3.5, log_evidence_se=0.25)
    posterior = group(q.to_inference_data(draws=50, chains=2, random_seed=1), "posterior")
    assert posterior["x"].shape == (2, 50, 3)
    assert posterior.attrs["accuracy"] == "approximate"
    assert posterior.attrs["converged"] == 0
    assert (posterior.attrs["log_evidence"], posterior.attrs["log_evidence_se"]) == (-3.5, 0.25)
    again = group(q.to_inference_data(draws=50, chains=2, random_seed=1), "posterior")
    np.testing.assert_array_equal(posterior["x"], again["x"])


def test_pickles():
    q = pickle.loads(pickle.dumps(gaussians()["cov"]))
    np.testing.assert_array_equal(q.cov, gaussians()["cov"].cov)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give one of cov, precision and cholesky"),
        ({"cov": np.eye(3), "precision": np.eye(3)}, "give one of"),
        ({"cov": np.eye(2)}, "expected \\(3, 3\\)"),
        ({"cov": -np.eye(3)}, "not positive definite"),
        ({"cov": np.array([1.0, -1.0, 1.0])}, "not finite"),
        ({"cov": np.array([1.0, 0.0, 1.0])}, "expected above 0"),
        ({"cholesky": np.diag([1.0, -1.0, 1.0])}, "expected above 0"),
        ({"cov": np.tri(3)}, "not symmetric"),
        ({"cov": np.eye(3), "names": ["a"]}, "1 names"),
    ],
)
def test_bad_input_raises_one_line(arguments, message):
    with pytest.raises(ModelError, match=message) as caught:
        GaussianApproximation(MEAN, **arguments)
    assert "\n" not in str(caught.value)


def test_a_gaussian_made_by_hand_says_so_and_is_not_changed():
    q = gaussians()["cov"]
    assert q.method == "given"
    for name in ("mean", "converged", "target", "elbo"):
        with pytest.raises(AttributeError, match=f"cannot assign to {name}"):
            setattr(q, name, None)
    other = q.replaced(converged=False)
    assert (q.converged, other.converged) == (True, False)
