"""Matrix completion with scikit-learn's interface."""

import numpy as np
import pytest
from scipy import sparse

sklearn = pytest.importorskip("sklearn")

from sklearn.base import clone  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.model_selection import cross_val_score  # noqa: E402
from sklearn.utils import estimator_checks  # noqa: E402

import ppl_backends as pb  # noqa: E402

CHECKS = [
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_estimator_repr",
    "check_valid_tag_types",
    "check_estimators_unfitted",
]


@pytest.fixture(scope="module")
def triplets():
    rng = np.random.default_rng(0)
    truth = 3 + rng.normal(size=(80, 2)) @ rng.normal(size=(2, 60))
    pairs = np.argwhere(rng.random(truth.shape) < 0.3)
    return pairs, truth[tuple(pairs.T)] + 0.2 * rng.normal(size=len(pairs)), truth


@pytest.mark.parametrize("name", CHECKS)
def test_checks_that_apply_to_pairs(name):
    getattr(estimator_checks, name)("MatrixCompletion", pb.sklearn.MatrixCompletion())


def test_triplets_labels_and_sparse_matrices_agree(triplets):
    pairs, y, truth = triplets
    model = pb.sklearn.MatrixCompletion(max_rank=8, random_state=1)
    by_index = clone(model).fit(pairs, y)
    named = np.char.add(np.array([["u", "i"]]), np.char.zfill(pairs.astype(str), 3))
    by_name = clone(model).fit(named, y)
    whole = clone(model).fit(sparse.coo_matrix((y, tuple(pairs.T)), shape=truth.shape))
    assert by_index.rank_ == by_name.rank_ == whole.rank_ == 2
    np.testing.assert_allclose(by_index.predict(pairs), by_name.predict(named))
    np.testing.assert_allclose(by_index.predict(pairs), whole.predict(pairs))
    everywhere = np.argwhere(np.ones(truth.shape))
    assert np.sqrt(np.mean((by_index.predict(everywhere) - truth.ravel()) ** 2)) < 0.2


def test_intervals_and_unknown_labels(triplets):
    pairs, y, truth = triplets
    model = pb.sklearn.MatrixCompletion(max_rank=8, random_state=1).fit(pairs, y)
    fresh = truth[tuple(pairs.T)] + 0.2 * np.random.default_rng(1).normal(size=len(y))
    low, high = model.predict_interval(pairs, 0.9)
    assert np.mean((low < fresh) & (fresh < high)) == pytest.approx(0.9, abs=0.03)
    mean, sd = model.predict([[900, 0], [0, 0]], return_std=True)
    assert mean[0] == pytest.approx(y.mean())
    assert np.isnan(sd[0])
    assert sd[1] > 0.2


def test_cross_validation_and_refusals(triplets):
    pairs, y, _ = triplets
    model = pb.sklearn.MatrixCompletion(max_rank=4, random_state=1)
    order = np.random.default_rng(0).permutation(len(y))
    assert cross_val_score(model, pairs[order], y[order], cv=3).min() > 0.9
    with pytest.raises(NotFittedError):
        model.predict(pairs)
    with pytest.raises(ValueError, match=r"expected \(n, 2\)"):
        model.fit(np.ones((4, 3)), np.ones(4))
    with pytest.raises(ValueError, match="holds its values itself"):
        model.fit(sparse.eye(3), np.ones(3))
