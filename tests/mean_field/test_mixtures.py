"""Mixtures: the number of components, exact answers for one component, and bounds below exact evidences."""

from itertools import product

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp, multigammaln

from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.mean_field import fit_categorical_mixture, fit_gaussian_mixture

OPTIONS = {"random_seed": 1, "progressbar": False}


def gaussians(seed, k, n=400, d=2, apart=5.0):
    rng = np.random.default_rng(seed)
    centres = apart * np.stack([np.cos(2 * np.pi * np.arange(k) / k), np.sin(2 * np.pi * np.arange(k) / k)], axis=1)
    centres = np.pad(centres, ((0, 0), (0, d - 2)))
    label = rng.integers(k, size=n)
    return centres[label] + rng.normal(size=(n, d)) @ np.diag(np.linspace(0.6, 1.2, d)), label


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_number_of_gaussian_components(k):
    x, label = gaussians(k, k, d=3)
    fit = fit_gaussian_mixture(x, range(1, 8), **OPTIONS)
    assert fit.k == k == fit.n_used
    assert fit.elbo == max(fit.selection.values()) == fit.restarts.max()
    assert (np.diff(fit.trace) > -1e-8 * abs(fit.elbo)).all()
    found = fit.predict(x)
    for component in range(k):  # labels agree up to a permutation, except for points between clusters
        assert np.mean(found[label == component] == np.bincount(found[label == component]).argmax()) > 0.97


@pytest.mark.parametrize("k", [1, 2, 4])
def test_number_of_latent_classes(k):
    rng = np.random.default_rng(k)
    probabilities = rng.dirichlet(np.full(3, 0.3), size=(k, 12))
    label = rng.integers(k, size=600)
    x = np.array([[rng.choice(3, p=p) for p in probabilities[z]] for z in label])
    fit = fit_categorical_mixture(x, range(1, 7), **OPTIONS)
    assert fit.k == k
    assert (np.diff(fit.trace) > -1e-8 * abs(fit.elbo)).all()
    assert all(p.shape[0] == k and np.allclose(p.sum(axis=1), 1) for p in fit.probabilities)


def test_one_gaussian_component_is_conjugate():
    x = np.random.default_rng(0).normal(size=(30, 2)) @ [[1.0, 0.4], [0.0, 0.7]]
    fit = fit_gaussian_mixture(x, 1, mean_precision=0.05, **OPTIONS)
    n, d, kappa, nu, s0 = 30, 2, 0.05, 4.0, np.diag(x.var(axis=0))
    s1 = s0 + n * np.cov(x.T, bias=True)  # the prior mean is the mean of the data
    exact = -0.5 * n * d * np.log(np.pi) + multigammaln(0.5 * (nu + n), d) - multigammaln(0.5 * nu, d)
    exact += 0.5 * nu * np.linalg.slogdet(s0)[1] - 0.5 * (nu + n) * np.linalg.slogdet(s1)[1]
    exact += 0.5 * d * np.log(kappa / (kappa + n))
    assert fit.elbo == pytest.approx(exact, abs=1e-8)
    np.testing.assert_allclose(fit.covariances[0], s1 / (nu + n))


def test_the_bound_is_below_the_evidence_summed_over_all_labels():
    rng = np.random.default_rng(3)
    x = rng.integers(2, size=(8, 2))
    fit = fit_categorical_mixture(x, 2, restarts=10, **OPTIONS)

    def normaliser(counts):
        counts = np.asarray(counts, dtype=float)
        return gammaln(counts + 1).sum() - gammaln(counts.sum() + len(counts)) + gammaln(len(counts))

    terms = []
    for labels in product(range(2), repeat=8):
        z = np.array(labels)
        value = normaliser(np.bincount(z, minlength=2))
        for k, column in product(range(2), range(2)):
            value += normaliser(np.bincount(x[z == k, column], minlength=2))
        terms.append(value)
    exact = logsumexp(terms)
    assert exact - 4 < fit.elbo < exact


def test_predictions_are_at_the_array_given_and_not_at_the_data_of_the_fit():
    x = np.repeat([[0, 1, 1], [1, 0, 0]], 20, axis=0)
    fit = fit_categorical_mixture(x, [2], **OPTIONS)
    before = fit.predict(x.copy())
    x[:] = 1 - x
    np.testing.assert_array_equal(fit.predict(x), 1 - before)


def test_refusals_and_warnings():
    x = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(ModelError, match="components="):
        fit_gaussian_mixture(x, [0, 1], **OPTIONS)
    with pytest.raises(ModelError, match="no constant column"):
        fit_gaussian_mixture(np.ones((5, 1)), 1, **OPTIONS)
    with pytest.raises(ModelError, match="as integers"):
        fit_categorical_mixture(x, 2, **OPTIONS)
    with pytest.raises(ModelError, match="that the data of the fit do not have"):
        fit_categorical_mixture(np.array([[0, 1], [1, 0], [0, 0]]), 1, **OPTIONS).predict(np.array([[2, 0]]))
    with pytest.warns(ApproximationWarning, match="sweeps with 4 components, of which one may have the highest bound"):
        fit_gaussian_mixture(x, [1, 4], max_sweeps=4, **OPTIONS)
    with pytest.warns(ApproximationWarning, match="not converged in 2 sweeps"):
        fit_gaussian_mixture(gaussians(1, 3)[0], 3, max_sweeps=2, **OPTIONS)
