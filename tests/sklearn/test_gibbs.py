"""The estimators of Gibbs posteriors, by scikit-learn's own checks and against their posteriors."""

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

# VI of losses with jumps is too narrow, and says so
pytestmark = pytest.mark.filterwarnings("ignore:VI. .*weighted points:ppl_backends.errors.ApproximationWarning")


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


def test_learning_rates_of_theory(data):
    """√(nd) with a column for the intercept, and √(d(n − 1)/2)."""
    X, y = data
    n, d = X.shape
    classifier = GibbsClassifier(loss="zero_one", learning_rate="theory").fit(X, y)
    assert classifier.learning_rate_ == pytest.approx(np.sqrt(n * (d + 1)))
    assert GibbsRanker(learning_rate="theory").fit(X, y).learning_rate_ == pytest.approx(np.sqrt(d * (n - 1) / 2))
    with pytest.raises(ModelError, match="not bounded"):
        GibbsClassifier(loss="hinge", learning_rate="theory").fit(X, y)


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
        (GibbsClassifier(standardize="x"), "standardize='x': expected True or False"),
        (GibbsClassifier(fit_intercept=1), "fit_intercept=1: expected True or False"),
        (GibbsClassifier(learning_rate="best"), "expected a number, 'cv', 'bound', 'theory' or None"),
    ],
)
def test_what_does_not_fit_is_refused(data, estimator, message):
    with pytest.raises(ModelError, match=message):
        estimator.fit(*data)


KINDS = [
    GibbsClassifier(),
    GibbsClassifier(loss="zero_one"),
    GibbsClassifier(loss="logistic", learning_rate=40.0),
    GibbsRanker(),
    GibbsRanker(loss="auc_hinge"),
]


@pytest.fixture(scope="module")
def weights():
    return np.random.default_rng(1).integers(0, 4, size=60)


@pytest.mark.parametrize("estimator", KINDS, ids=str)
def test_a_whole_weight_is_as_many_copies_of_a_row(data, weights, estimator):
    X, y = data[0][:60], data[1][:60]
    weighted = clone(estimator).fit(X, y, sample_weight=weights)
    copies = clone(estimator).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.coef_, copies.coef_, rtol=1e-9)
    np.testing.assert_allclose(weighted.intercept_, copies.intercept_, rtol=1e-9)
    np.testing.assert_allclose(weighted._factor, copies._factor, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(weighted.approximation_.expected_risk, copies.approximation_.expected_risk, rtol=1e-9)
    assert weighted.learning_rate_ == copies.learning_rate_
    plain = clone(estimator).fit(X, y)
    assert np.abs(plain.coef_ / weighted.coef_ - 1).max() > 0.01  # weights do something


@pytest.mark.parametrize("kind", [GibbsClassifier, GibbsRanker])
@pytest.mark.filterwarnings("ignore:EP. by weighted points")  # sds of losses of pairs are too small
def test_weights_in_ep_and_in_the_density(data, weights, kind):
    """EP approximates the copies of a row one by one, and a row with a weight at once: near, not equal."""
    X, y = data[0][:60], data[1][:60]
    weighted = kind(method="ep").fit(X, y, sample_weight=weights)
    copies = kind(method="ep").fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.coef_, copies.coef_, rtol=0.05)
    points = np.random.default_rng(0).normal(size=(5, weighted.posterior_.dim))
    densities = [each.posterior_.log_density(points) for each in (weighted, copies)]
    np.testing.assert_allclose(densities[0], densities[1], rtol=1e-10)


@pytest.mark.parametrize("estimator", [*KINDS, GibbsClassifier(method="smc", random_state=1)], ids=str)
def test_update_is_a_fit_to_all_rows(data, weights, estimator):
    X, y = data[0][:60], data[1][:60]
    whole = clone(estimator).fit(X, y, sample_weight=weights)
    pieces = clone(estimator).fit(X[:40], y[:40], sample_weight=weights[:40])
    before = pieces.coef_.copy()
    assert pieces.update(X[40:], y[40:], sample_weight=weights[40:]) is pieces
    # VI to its tolerance of 1e-4 nats, that is 0.015 sds; SMC to five standard errors of 500 effective draws.
    error = (0.3 if estimator.method == "smc" else 0.03) * np.sqrt((whole._factor**2).sum(axis=-1).max()) / whole.scale_
    assert (np.abs(pieces.coef_[0] - whole.coef_[0]) < error).all()
    assert (np.abs(before[0] - whole.coef_[0]) > 0.1 * error).any()
    assert pieces.learning_rate_ == whole.learning_rate_


def test_weights_and_updates_that_do_not_fit_are_refused(data):
    X, y = data
    fitted = GibbsClassifier(loss="zero_one").fit(X, y, sample_weight=np.linspace(0.5, 1.5, 150))
    with pytest.raises(ModelError, match="bounds are for independent rows"):
        fitted.certificate()
    with pytest.raises(ModelError, match="bounds are for independent rows"):
        GibbsClassifier(loss="zero_one", learning_rate="bound").fit(X, y, sample_weight=np.arange(150))
    with pytest.raises(ValueError, match="negative"):
        GibbsClassifier().fit(X, y, sample_weight=-np.ones(150))
    with pytest.raises(ValueError, match="a sum above 1"):
        GibbsRanker().fit(X, y, sample_weight=np.full(150, 1e-3))
    with pytest.raises(ValueError, match="one class only"):
        GibbsClassifier().fit(X, y, sample_weight=(y == "a").astype(float))
    with pytest.raises(ValueError, match="the class 'c', which fit has not seen"):
        fitted.update(X[:2], ["a", "c"])
    with pytest.raises(ModelError, match="pairs with weights"):
        pb.gibbs.fit_pair_ep(GibbsRanker().fit(X, y, sample_weight=np.linspace(0.5, 1.5, 150)).posterior_)
