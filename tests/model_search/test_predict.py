"""Predictions averaged over models against sums over all of them."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.errors import ModelError
from ppl_backends.model_search.evidences.ep import EPEvidence
from ppl_backends.model_search.evidences.laplace import ImportanceEvidence, LaplaceEvidence
from ppl_backends.model_search.evidences.linear import LinearEvidence
from ppl_backends.model_search.forms import design_form
from ppl_backends.model_search.predictions import predict
from ppl_backends.model_search.space import make_space
from tests.statistics import normal_bound

RNG = np.random.default_rng(41)
X = RNG.standard_normal((50, 4)) + 3.0
Y = X[:, 0] - 0.5 * X[:, 2] + RNG.standard_normal(50)
NEW = RNG.standard_normal((6, 4)) * 2.0
PIMA = load_binary_regression("pima")


def select(**options):
    return pb.select_variables(random_seed=2, progressbar=False, **options)


@pytest.mark.parametrize("method", ["enumerate", "smc"])
def test_a_linear_model_predicts_the_mean_of_shrunken_least_squares(method):
    idata = select(X=X, y=Y, family="gaussian", method=method, draws=4000)
    bits = make_space(tuple("abcd"), np.zeros(4, bool), None, None, "uniform").all()
    logs = LinearEvidence(X, Y, "g").compute(bits, None)
    expected = np.zeros(len(NEW))
    for on, weight in zip(bits, np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum(), strict=True):
        centred = X[:, on] - X[:, on].mean(axis=0)
        slopes = np.linalg.lstsq(centred, Y - Y.mean(), rcond=None)[0] * 50 / 51
        expected += weight * (Y.mean() + (NEW[:, on] - X[:, on].mean(axis=0)) @ slopes)
    found = predict(idata, NEW)
    assert np.abs((found.mean - expected) / found.se).max() < normal_bound()
    assert np.all(found.se < 0.1 * found.sd)
    assert found.se.min() > 0


def test_probabilities_are_means_over_models_and_coefficients():
    idata, new = select(X=PIMA.X, y=PIMA.y, link="probit"), PIMA.X[:40]
    form = design_form(PIMA.X, PIMA.y, "binomial", "probit", None, None)
    evidence, expected = EPEvidence(form.regression), np.zeros(40)
    on = idata.selection["model_gamma"].values.astype(bool)
    for columns, weight in zip(on, idata.selection["model_probability"].values, strict=True):
        mean, factor = evidence.fit(columns)
        root = np.linalg.solve(factor, new[:, columns].T)
        expected += weight * ndtr(new[:, columns] @ mean / np.sqrt(1 + (root**2).sum(axis=0)))
    found = predict(idata, new)
    assert np.abs((found.mean - expected) / found.se).max() < normal_bound()
    assert found.se.max() < 0.002
    assert np.all((found.mean > 0) & (found.mean < 1))


def test_coefficients_of_estimated_evidences_are_not_those_of_the_gaussian():
    """Few rows, all of one kind: the posterior is skewed."""
    form = design_form(np.ones((5, 1)), np.ones(5), "binomial", "logit", None, None)
    laplace, rng = LaplaceEvidence(form.regression), np.random.default_rng(5)
    on = np.ones(1, dtype=bool)
    grid = np.linspace(-20, 120, 14_001)
    density = np.exp(-5 * np.logaddexp(0, -grid) - 0.5 * (grid / 20.0) ** 2)
    exact = density @ grid / density.sum()
    drawn = ImportanceEvidence(laplace, 1).coefficients(on, 20_000, rng)["coefficients"][:, 0]
    rough = laplace.coefficients(on, 20_000, rng)["coefficients"][:, 0]
    assert abs(drawn.mean() - exact) < 0.3 * abs(rough.mean() - exact)


def test_columns_are_found_by_name():
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    idata = select(X=frame, y=Y, family="gaussian")
    new = pd.DataFrame(NEW, columns=["a", "b", "c", "d"])
    np.testing.assert_array_equal(predict(idata, new[["d", "c", "a", "b"]]).mean, predict(idata, NEW).mean)
    with pytest.raises(ModelError, match="no column 'c', which the search had"):
        predict(idata, new[["a", "b", "d"]])
    with pytest.raises(ModelError, match="has 3 columns, the search had 4"):
        predict(idata, NEW[:, :3])
    with pytest.raises(ModelError, match="has 5 columns, the search had 4"):  # also if it was of an array
        predict(select(X=X, y=Y, family="gaussian"), np.column_stack([np.ones(6), NEW]))
    assert predict(idata, NEW[:0]).mean.shape == (0,)


def test_a_search_over_a_model_leaves_predictions_to_it():
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        x = pm.Data("x", X)
        beta = pm.Normal("beta", 0, 2, shape=4)
        pm.Normal("y", 1.0 + x @ beta, 1.0, observed=Y, shape=x.shape[0])
        idata = select(model=model, select={"beta": True}, draws=500)
        with pytest.raises(ModelError, match="sample_posterior_predictive"):
            predict(idata, NEW)
        pm.set_data({"x": NEW})
        drawn = pm.sample_posterior_predictive(idata, predictions=True, progressbar=False, random_seed=3)
    mean = 1.0 + idata.posterior["beta"].values.mean(axis=(0, 1)) @ NEW.T
    found = drawn.predictions["y"].values
    assert np.all(np.abs(found.mean(axis=(0, 1)) - mean) < 6 * found.std(axis=(0, 1)) / found[..., 0].size ** 0.5)
