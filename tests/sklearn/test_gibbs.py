"""The estimators of Gibbs posteriors, by scikit-learn's own checks and against the posteriors they stand for."""

import numpy as np
import pytest

sklearn = pytest.importorskip("sklearn")

from sklearn.base import clone  # noqa: E402
from sklearn.metrics import roc_auc_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

import ppl_backends as pb  # noqa: E402
from ppl_backends.errors import ModelError  # noqa: E402
from ppl_backends.sklearn import GibbsClassifier, GibbsRanker  # noqa: E402


@parametrize_with_checks([GibbsClassifier(), GibbsRanker(loss="auc_hinge")])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 3)) * [1.0, 10.0, 0.1] + [0.0, 5.0, 1.0]
    score = X @ [1.0, -0.1, 5.0] - 5.0 + 0.7 * rng.normal(size=150)
    return X, np.where(score > 0, "b", "a")


@pytest.mark.parametrize("method", ["vi", "ep", "smc"])
@pytest.mark.parametrize("kind", [GibbsClassifier, GibbsRanker])
def test_methods_agree(data, kind, method):
    X, y = data
    fitted, reference = (kind(method=m, random_state=1).fit(X, y) for m in (method, "vi"))
    assert fitted.score(X, y) > 0.8
    assert np.corrcoef(fitted.mean_score(X), reference.mean_score(X))[0, 1] > 0.99
    linear = X @ fitted.coef_[0] + fitted.intercept_[0]
    np.testing.assert_allclose(linear, fitted.mean_score(X), atol=1e-9)
    np.testing.assert_array_equal(fitted.predict(X), np.where(linear > 0, "b", "a"))


def test_probabilities_and_intervals_are_of_the_posterior(data):
    X, y = data
    fitted = GibbsClassifier(learning_rate=50.0).fit(X, y)
    q = fitted.approximation_
    design = np.column_stack([np.ones(150), (X - X.mean(axis=0)) / X.std(axis=0)])
    scores = q.sample(20_000, np.random.default_rng(0)) @ design.T
    np.testing.assert_allclose(fitted.predict_proba(X)[:, 1], (scores > 0).mean(axis=0), atol=0.02)
    low, high = fitted.score_interval(X, 0.8).T
    np.testing.assert_allclose(((low < scores) & (scores < high)).mean(axis=0), 0.8, atol=0.02)
    assert fitted.learning_rate_ == 50.0


def test_ranker_scores_by_auc_and_cuts_at_the_share_of_the_class(data):
    X, y = data
    ranker = GibbsRanker().fit(X, y)
    assert ranker.score(X, y) == pytest.approx(roc_auc_score(y == "b", ranker.decision_function(X)))
    assert (ranker.predict(X) == "b").sum() == (y == "b").sum()


def test_learning_rates_are_chosen_and_certified(data):
    X, y = data
    tuned = GibbsClassifier(loss="zero_one", learning_rate="bound").fit(X, y)
    certificate = tuned.certificate()
    assert certificate.candidates == 8
    assert certificate.bound > certificate.expected_risk
    assert any("scaling" in assumption for assumption in certificate.assumptions)
    assert GibbsClassifier(learning_rate="cv", random_state=1).fit(X, y).learning_rate_ in 150 * 2.0 ** np.arange(-4, 4)
    with pytest.raises(ModelError, match="not bounded"):
        GibbsClassifier().fit(X, y).certificate()


def test_works_in_a_pipeline_and_is_reachable(data):
    X, y = data
    pipeline = make_pipeline(StandardScaler(), pb.sklearn.GibbsClassifier(standardize=False))
    assert clone(pipeline).fit(X, y).score(X, y) > 0.8


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (GibbsClassifier(loss="auc"), "not a loss of two classes"),
        (GibbsRanker(loss="hinge"), "not a loss of pairs"),
        (GibbsClassifier(method="mcmc"), "expected one of vi, ep, smc"),
        (GibbsClassifier(learning_rate="best"), "expected a number, 'cv', 'bound' or None"),
    ],
)
def test_what_does_not_fit_is_refused(data, estimator, message):
    with pytest.raises(ModelError, match=message):
        estimator.fit(*data)
