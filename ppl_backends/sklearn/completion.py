"""Matrix completion, as a scikit-learn regressor on pairs of labels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ppl_backends.mean_field.matrix_completion import fit_matrix_completion
from ppl_backends.targets.protocol import Array


class _Entries(NamedTuple):
    """Observed entries ``(n,)``: labels of their rows and columns, values, and positive weights."""

    rows: Any
    columns: Any
    values: Array
    weight: Array


class MatrixCompletion(RegressorMixin, BaseEstimator):
    """Predict missing entries of a low-rank matrix, with intervals and an estimate of the rank.

    Parameters
    ----------
    max_rank : int
        Components to start from, at most the shorter side.
    restarts : int
    tolerance : float
    max_sweeps : int
    random_state : int, RandomState or None
    progressbar : bool

    Attributes
    ----------
    approximation_ : MatrixFactors
    row_labels_, column_labels_ : ndarray
        Sorted labels of the rows and of the columns.
    rank_ : int
    noise_sd_ : float
    elbo_ : float
    n_iter_ : int
    feature_names_in_ : ndarray
        Names of the two columns of X, if it is a DataFrame; later DataFrames need the same names in the same order.

    Examples
    --------
    Triplets (user, item, rating); labels may be of any type that sorts.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.normal(size=(60, 2)) @ rng.normal(size=(2, 40))
    >>> pairs = np.argwhere(rng.random((60, 40)) < 0.5)
    >>> y = truth[pairs[:, 0], pairs[:, 1]] + 0.1 * rng.normal(size=len(pairs))
    >>> model = MatrixCompletion(max_rank=6, random_state=1).fit(pairs, y)
    >>> model.rank_, bool(abs(model.predict([[3, 5]])[0] - truth[3, 5]) < 0.3)
    (2, True)

    New ratings, also of new users and items, are added by ``update``:

    >>> model.update([[60, 3], [60, 7], [5, 8]], [0.4, -0.2, 1.0]).predict([[60, 5]]).shape
    (1,)
    """

    row_labels_: Any
    column_labels_: Any

    def __init__(
        self,
        max_rank: int = 20,
        *,
        restarts: int = 1,
        tolerance: float = 1e-7,
        max_sweeps: int = 500,
        random_state: Any = None,
        progressbar: bool = False,
    ) -> None:
        self.max_rank = max_rank
        self.restarts = restarts
        self.tolerance = tolerance
        self.max_sweeps = max_sweeps
        self.random_state = random_state
        self.progressbar = progressbar

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.string = True
        tags.target_tags.required = False
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> MatrixCompletion:
        """Fit the factors.

        Parameters
        ----------
        X : array (n, 2) or sparse matrix
            Labels of the row and of the column of each value; or the matrix itself, whose stored entries, zeros
            included, are the known values. A pair that occurs more than once has been observed several times.
        y : array (n,), optional
            The values; None with a sparse matrix.
        sample_weight : array (n,), optional
            Weights of the values' log densities; a whole number is as many copies of the row. The weights of a sparse
            matrix are in the order of its ``tocoo().data``.

        Returns
        -------
        self
        """
        entries, known = self._read(X, y, sample_weight, reset=True)
        return self._fit_entries(entries, known, None)

    def update(self, X: Any, y: Any = None, sample_weight: Any = None) -> MatrixCompletion:
        """Add entries, also of new rows and columns, and continue from the current factors.

        The result is that of ``fit`` on all entries, up to the maximum of the bound that the ascent ends in.

        Parameters
        ----------
        X, y, sample_weight
            New entries, as for ``fit``; those of before are kept. A pair that is known already is observed once more.

        Returns
        -------
        self
        """
        check_is_fitted(self)
        new, known = self._read(X, y, sample_weight, reset=False)
        entries = _Entries(*map(np.concatenate, zip(self._entries, new, strict=True)))
        labels = np.union1d(self.row_labels_, known[0]), np.union1d(self.column_labels_, known[1])
        return self._fit_entries(entries, labels, self.approximation_)

    def _fit_entries(self, entries: _Entries, labels: Any, start: Any) -> MatrixCompletion:
        """Fit to entries in a matrix with these sorted labels, from earlier factors where there are any."""
        shape = len(labels[0]), len(labels[1])
        if start is not None:
            rows, columns = map(np.searchsorted, labels, (self.row_labels_, self.column_labels_))
            start = start.placed(rows, columns, shape)
        state = self.random_state
        self.approximation_ = fit_matrix_completion(
            np.searchsorted(labels[0], entries.rows),
            np.searchsorted(labels[1], entries.columns),
            entries.values,
            weights=entries.weight,
            shape=shape,
            max_rank=min(self.max_rank, *shape),
            initial=start,
            restarts=1 if start is not None else self.restarts,
            tolerance=self.tolerance,
            max_sweeps=self.max_sweeps,
            random_seed=int(state.randint(2**31)) if isinstance(state, np.random.RandomState) else state,
            progressbar=self.progressbar,
        )
        self._entries, (self.row_labels_, self.column_labels_) = entries, labels
        self.n_features_in_ = 2
        self.rank_, self.noise_sd_ = self.approximation_.rank, self.approximation_.noise_sd
        self.elbo_, self.n_iter_ = self.approximation_.elbo, len(self.approximation_.trace)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return posterior means of the entries.

        Parameters
        ----------
        X : array (n, 2)
            Labels. Labels that were not in the fit get the mean of all values.
        return_std : bool
            Whether to return the standard deviations of new observations too; NaN for labels not seen.

        Returns
        -------
        ndarray (n,), or two of them
        """
        rows, columns, known = self._indices(X)
        mean = np.full(len(known), self.approximation_.offset)
        mean[known] = self.approximation_.predict(rows, columns)
        if not return_std:
            return mean
        sd = np.full(len(known), np.nan)
        sd[known] = self.approximation_.predictive_sd(rows, columns)
        return mean, sd

    def predict_interval(self, X: Any, probability: float = 0.95) -> tuple[Array, Array]:
        """Return central intervals of ``probability`` for new observations of the entries; NaN for labels not seen."""
        rows, columns, known = self._indices(X)
        low, high = np.full((2, len(known)), np.nan)
        low[known], high[known] = self.approximation_.interval(rows, columns, probability)
        return low, high

    def _indices(self, X: Any) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
        """Return rows and columns of the pairs with known labels, and a mask of these pairs."""
        check_is_fitted(self)
        pairs = self._pairs(X, reset=False)
        found = []
        for labels, wanted in zip((self.row_labels_, self.column_labels_), pairs.T, strict=True):
            place = np.minimum(np.searchsorted(labels, wanted), len(labels) - 1)
            found.append((place, labels[place] == wanted))
        known = found[0][1] & found[1][1]
        return found[0][0][known], found[1][0][known], known

    def _read(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> tuple[_Entries, tuple[Any, Any]]:
        """Return entries of positive weight, and the sorted labels of rows and of columns."""
        if sparse.issparse(X):
            if y is not None:
                raise ValueError("expected y=None, because a sparse matrix holds its values itself")
            matrix = X.tocoo()
            rows, columns, values = matrix.row, matrix.col, np.asarray(matrix.data, dtype=np.float64)
            self._check_kinds((rows, columns), reset)
        else:
            pairs = self._pairs(X, reset)
            if y is None:
                raise ValueError("requires y to be passed, but the target y is None")
            rows, columns, values = pairs[:, 0], pairs[:, 1], np.asarray(y, dtype=np.float64)
            if values.shape != rows.shape:
                raise ValueError(f"y has shape {values.shape}; expected {rows.shape}, a value for each row of X")
        if not len(values):
            raise ValueError("X has no entries")
        weight = _check_sample_weight(sample_weight, values, dtype=np.float64)
        if (weight < 0).any():
            raise ValueError("sample_weight has negative values")
        kept = weight > 0
        entries = _Entries(rows[kept], columns[kept], values[kept], weight[kept])
        if sparse.issparse(X):
            return entries, (np.arange(X.shape[0]), np.arange(X.shape[1]))
        return entries, (np.unique(entries.rows), np.unique(entries.columns))

    def _pairs(self, X: Any, reset: bool) -> Any:
        """Return the labels ``(n, 2)``; refuse missing labels, other columns than those of ``fit``, and other types."""
        pairs = np.asarray(X)
        if sparse.issparse(X) or pairs.ndim != 2 or pairs.shape[1] != 2:
            what = "is a sparse matrix" if sparse.issparse(X) else f"has shape {pairs.shape}"
            raise ValueError(f"X {what}; expected (n, 2): labels of the row and of the column")
        missing = np.argwhere(pd.isna(pairs))
        if len(missing):
            row, column = missing[0]
            raise ValueError(f"X has no label in row {row}, column {column}: leave out rows without a label")
        validate_data(self, X, reset=reset, skip_check_array=True)  # names of the columns
        self._check_kinds(pairs.T, reset)
        return pairs

    def _check_kinds(self, labels: Any, reset: bool) -> None:
        """Refuse labels that cannot be compared with each other, or with those of ``fit``."""
        kinds = [_kind(column, j) for j, column in enumerate(labels)]
        if reset:
            self._kinds = kinds
        for j, (before, now) in enumerate(zip(self._kinds, kinds, strict=True)):
            if len(labels[j]) and now != before:
                raise ValueError(
                    f"column {j} of X has labels of type {now}; those of fit are of type {before}. "
                    "A NumPy array holds one type: pass mixed columns as a DataFrame or with dtype=object"
                )


def _kind(labels: Any, column: int) -> str:
    """Return the type of sortable labels: "number", "string" or another name of pandas."""
    kind = pd.api.types.infer_dtype(labels)
    if kind in {"integer", "floating", "mixed-integer-float", "boolean"}:
        return "number"
    if kind.startswith("mixed"):
        try:
            np.unique(labels)
        except TypeError:
            types = ", ".join(sorted({type(label).__name__ for label in labels}))
            raise ValueError(f"column {column} of X has labels of types {types}, which do not sort") from None
    return {"datetime": "datetime64", "timedelta": "timedelta64"}.get(kind, kind)
