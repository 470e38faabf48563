"""Matrix completion with scikit-learn's interface."""

import numpy as np
import pandas as pd
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


def test_weights_are_copies_of_rows(triplets):
    pairs, y, _ = triplets
    weights = np.random.default_rng(0).integers(0, 3, len(y))
    model = pb.sklearn.MatrixCompletion(max_rank=4, random_state=1)
    weighted = clone(model).fit(pairs, y, sample_weight=weights)
    copied = clone(model).fit(np.repeat(pairs, weights, axis=0), np.repeat(y, weights))
    assert copied.elbo_ == pytest.approx(weighted.elbo_, rel=1e-8)
    np.testing.assert_allclose(copied.predict(pairs), weighted.predict(pairs), atol=1e-4)
    kept = sparse.coo_matrix((y, tuple(pairs.T)))
    by_matrix = clone(model).fit(kept, sample_weight=weights)
    np.testing.assert_allclose(by_matrix.predict(pairs), weighted.predict(pairs), atol=1e-2)
    for wrong, message in ((-np.ones(len(y)), "negative"), (np.zeros(len(y)), "at least one non-zero")):
        with pytest.raises(ValueError, match=message):
            clone(model).fit(pairs, y, sample_weight=wrong)


def test_updates_end_where_a_fit_to_all_entries_does(triplets):
    """New rows, new columns, repeated pairs and a second component arrive in the second half."""
    pairs, y, _ = triplets
    named = np.char.add(np.array([["u", "i"]]), np.char.zfill(pairs.astype(str), 3))
    order = np.random.default_rng(2).permutation(len(y))
    early = order[(pairs[order, 0] % 10 != 3) & (pairs[order, 1] < 50)][: len(y) // 2]
    late = np.concatenate([np.setdiff1d(order, early), early[:20]])
    model = pb.sklearn.MatrixCompletion(max_rank=6, random_state=1)
    everything = np.concatenate([early, late])
    whole = clone(model).fit(named[everything], y[everything])
    pieces = clone(model).fit(named[early], y[early])
    assert len(pieces.row_labels_) < 80
    assert pieces.update(named[late], y[late]) is pieces
    assert pieces.rank_ == whole.rank_ == 2
    assert pieces.elbo_ == pytest.approx(whole.elbo_, rel=1e-4)
    np.testing.assert_allclose(pieces.predict(named), whole.predict(named), atol=0.02)
    with pytest.raises(ValueError, match="labels of type"):
        pieces.update([[1, 2]], [3.0])
    with pytest.raises(NotFittedError):
        clone(model).update(pairs, y)


def test_labels_that_would_be_matched_in_silence_are_refused(triplets):
    """Swapped columns, numbers written as text, and missing labels all used to predict something."""
    pairs, y, _ = triplets
    frame = pd.DataFrame(pairs, columns=["user", "item"])
    gap = frame.astype(float)
    gap.loc[2, "item"] = np.nan
    model = pb.sklearn.MatrixCompletion(max_rank=4, random_state=1).fit(frame, y)
    assert list(model.feature_names_in_) == ["user", "item"]
    for wrong in (model.predict, lambda X: model.update(X, y)):
        with pytest.raises(ValueError, match="must be in the same order"):
            wrong(frame[["item", "user"]])
        with pytest.raises(ValueError, match="column 0 of X has labels of type string; those of fit are of type numb"):
            wrong(frame.astype(str))
        with pytest.raises(ValueError, match="no label in row 2, column 1"):
            wrong(gap)
    np.testing.assert_array_equal(model.predict(frame.astype(float)), model.predict(frame))
    mixed = frame.assign(user=[f"u{i:02d}" for i in frame["user"]])
    named = clone(model).fit(mixed, y)
    np.testing.assert_allclose(named.predict(mixed), model.predict(frame))
    assert named.predict(mixed[:0]).shape == (0,)
    unfit = clone(model)
    for X, message in (
        (frame.assign(user=[None, *frame["user"][1:]]), "no label in row 0, column 0"),
        (frame.assign(user=["a", *frame["user"][1:]]), "labels of types int, str, which do not sort"),
        (frame[:0], "no entries"),
    ):
        with pytest.raises(ValueError, match=message):
            unfit.fit(X, y[: len(X)])
    with pytest.raises(ValueError, match="is a sparse matrix"):
        model.predict(sparse.eye(3))
