"""Gaussian processes as scores: regression in closed form, and EP of pairs of scores themselves."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import ppl_backends as pb
from ppl_backends.approximations.ep import FileShard, fit_ep_sharded
from ppl_backends.errors import ModelError
from ppl_backends.gibbs import GaussianProcess, ZeroOne, certify, fit_gibbs_vi, fit_pair_ep, inclusion_probabilities
from ppl_backends.gibbs.pair_ep import RowDifferences

RNG = np.random.default_rng(8)
X = RNG.uniform(-2, 2, size=(30, 2))
NEW = RNG.uniform(-2.5, 2.5, size=(140, 2))
Y = np.where((X**2).sum(axis=1) < 2.5, 1.0, -1.0)
SCALE = np.array([1.5, 0.8])


def kernel(a, b):
    return 4.0 * np.exp(-0.5 * cdist(a / SCALE, b / SCALE, "sqeuclidean"))


@pytest.mark.parametrize("own", [True, False], ids=["squared exponential", "kernel"])
def test_the_squared_loss_is_regression_by_a_gaussian_process(own):
    response, noise = np.sin(X[:, 0]) + 0.3 * X[:, 1], 0.09
    process = GaussianProcess(X, length_scale=SCALE, amplitude=2.0) if own else GaussianProcess(X, kernel=kernel)
    fit = pb.fit_ep(process.posterior("squared", response, learning_rate=len(X) / (2 * noise)))
    inside, across = kernel(X, X) + noise * np.eye(30), kernel(NEW, X)
    gain = np.linalg.solve(inside, across.T)
    found = process.scores(fit, NEW)
    np.testing.assert_allclose(found.mean, gain.T @ response, atol=1e-6)
    np.testing.assert_allclose(found.sd**2, 4.0 - (gain.T * across).sum(axis=1), atol=1e-6)


def test_features_are_the_scores_themselves():
    """EP with the prior N(0, K) on scores and sites of their differences, K well conditioned (Ridgway 2015, section 4.4)."""
    process = GaussianProcess(X, length_scale=0.4)
    fit = fit_pair_ep(process.posterior("auc", Y, learning_rate=30.0))
    above, below = np.flatnonzero(Y > 0), np.flatnonzero(Y < 0)
    eye, pairs, weight = np.eye(30), len(above) * len(below), 2 * 30.0 / (30 * 29)

    def read():
        return RowDifferences(eye[above], eye[below]), np.zeros(pairs), ZeroOne().sites(np.ones(pairs), weight)

    matrix = np.exp(-0.5 * cdist(X / 0.4, X / 0.4, "sqeuclidean"))
    direct = fit_ep_sharded([FileShard(read, pairs)], 0.0, np.linalg.inv(matrix), dim=30)
    found = process.scores(fit, X)
    np.testing.assert_allclose(found.mean, direct.mean, atol=1e-4)
    np.testing.assert_allclose(found.sd, direct.sd, rtol=1e-4)
    assert fit.log_evidence == pytest.approx(direct.log_evidence, abs=1e-4)


def test_scores_rank_what_no_line_does():
    process = GaussianProcess(X, length_scale=1.0)
    mean = process.scores(fit_pair_ep(process.posterior("auc", Y, learning_rate=60.0)), NEW).mean
    inside = (NEW**2).sum(axis=1) < 2.5
    assert (mean[inside][:, None] > mean[~inside]).mean() > 0.9
    away = process.scores(fit_pair_ep(process.posterior("auc", Y, learning_rate=60.0)), [[50.0, 50.0]])
    assert away.mean == pytest.approx(0.0)
    assert away.sd == pytest.approx(1.0)


def test_no_certificate_holds_for_features_of_the_rows():
    posterior = GaussianProcess(X).posterior("zero_one", Y, learning_rate=30.0)
    with pytest.raises(ModelError, match="prior"):
        certify(posterior, fit_gibbs_vi(posterior))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianProcess(X, length_scale=[1.0, 2.0, 3.0]), "one for each of 2 columns"),
        (lambda: GaussianProcess(X, length_scale=0.0), "length_scale=0.0"),
        (lambda: GaussianProcess(X, length_scale="1.0"), "length_scale: expected an array of numbers, got '1.0'"),
        (lambda: GaussianProcess(X, length_scale="wide"), "length_scale: expected an array of numbers, got 'wide'"),
        (lambda: GaussianProcess(X[:, 0]), r"X has shape \(30,\)"),
        (lambda: GaussianProcess(X, kernel=lambda a, b: np.zeros(3)), "expected finite values of shape"),
        (lambda: GaussianProcess(X, kernel=lambda a, b: a @ np.ones((2, 1)) + 0 * b[:, 0]), "not symmetric"),
        (lambda: GaussianProcess(X).scores(pb.GaussianApproximation(np.zeros(2), np.eye(2)), X), "2 coefficients"),
        (lambda: GaussianProcess(X).features(X[:, :1]), "X has 1 columns; the rows of the process have 2"),
        (lambda: inclusion_probabilities(None), "expected a fit by fit_pair_ep"),
    ],
)
def test_wrong_use(make, message):
    with pytest.raises(ModelError, match=message):
        make()
