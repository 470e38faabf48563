"""Classification and ranking by Gibbs posteriors, as scikit-learn estimators."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import roc_auc_score
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ppl_backends.approximations.given import from_draws
from ppl_backends.errors import ModelError
from ppl_backends.gibbs.certificates import Certificate, certify
from ppl_backends.gibbs.fit import fit_gibbs_vi
from ppl_backends.gibbs.learning_rate import choose_learning_rate
from ppl_backends.gibbs.losses import PairLoss, Weighted, loss_of
from ppl_backends.gibbs.posterior import GibbsPosterior
from ppl_backends.gibbs.theory import THEORY
from ppl_backends.options import flag, number, shown
from ppl_backends.targets.factors.sites import Array

METHODS = ("vi", "ep", "smc")


class _Rows(NamedTuple):
    """Rows as given, with labels −1 and +1 and positive weights."""

    X: Array
    labels: Array
    weight: Array


def _weighted(loss: Any, labels: Array, weight: Array) -> tuple[Any, Array]:
    """Return a loss and its outcomes such that the mean over rows is the mean over copies of rows."""
    n, total = len(weight), weight.sum()
    found = loss_of(loss)
    if (weight == weight[0]).all() and (weight[0] == 1 or not isinstance(found, PairLoss)):
        return found, labels
    if not isinstance(found, PairLoss):
        return Weighted(found), labels * weight * (n / total)
    if not total > 1:
        raise ValueError(
            f"sample_weight sums to {total:.3g}: weights of pairs count copies of rows, and expected is a sum above 1"
        )
    return PairLoss(Weighted(found.inner)), labels * weight * np.sqrt(n * (n - 1) / (total * (total - 1)))


class _LinearGibbs(ClassifierMixin, BaseEstimator):
    """Base of classifier and ranker: linear scores Xθ under a pseudo-posterior of θ."""

    loss: Any
    prior_scale: float
    learning_rate: Any
    method: str
    family: str
    standardize: bool
    random_state: Any
    fit_intercept: bool = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Fit the pseudo-posterior.

        Parameters
        ----------
        X : array (n, p)
        y : array (n,)
            Two classes.
        sample_weight : array (n,), optional
            Weights of the losses of rows, and products of two weights for pairs; a whole number acts as that many
            copies of the row. λ is their sum by default.

        Returns
        -------
        self
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        self.classes_ = np.unique(y)
        return self._fit_rows(self._checked_rows(X, y, sample_weight), None)

    def update(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Add rows, and update the current pseudo-posterior.

        The result is that of ``fit`` on all rows: VI starts at the current Gaussian, SMC bridges from it to the new
        pseudo-posterior, and EP is run again. For the 0–1 loss VI stays at its current local minimum.

        Parameters
        ----------
        X : array (n, p)
            New rows; earlier rows are kept.
        y : array (n,)
            Labels; the classes must be among those of ``fit``.
        sample_weight : array (n,), optional

        Returns
        -------
        self
        """
        check_is_fitted(self)
        X, y = validate_data(self, X, y, dtype=np.float64, reset=False)
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y has the class {shown(unknown[0])}, which fit has not seen")
        new = self._checked_rows(X, y, sample_weight)
        return self._fit_rows(_Rows(*map(np.concatenate, zip(self._rows, new, strict=True))), self.approximation_)

    def _checked_rows(self, X: Array, y: Any, sample_weight: Any) -> _Rows:
        """Return rows of positive weight."""
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if (weight < 0).any():
            raise ValueError("sample_weight has negative values")
        kept = weight > 0
        return _Rows(X[kept], np.where(y == self.classes_[-1], 1.0, -1.0)[kept], weight[kept])

    def _fit_rows(self, rows: _Rows, start: Any) -> Any:
        """Fit to rows with weights; start from an earlier approximation if there is one."""
        X, labels, weight = self._rows = rows
        for name in ("fit_intercept", "standardize"):
            flag.check(name, getattr(self, name))
        if len(self.classes_) < 2 or len(np.unique(labels)) < 2:
            raise ValueError(
                f"y has one class only, {shown(self.classes_[0])}, among rows of positive weight; two are needed"
            )
        self.center_ = np.average(X, axis=0, weights=weight) if self.standardize else np.zeros(X.shape[1])
        spread = (
            np.sqrt(np.average((X - self.center_) ** 2, axis=0, weights=weight))
            if self.standardize
            else np.ones(X.shape[1])
        )
        self.scale_ = np.where(spread > 1e-12 * (1 + np.abs(self.center_)), spread, 1.0)
        prior = (0.0, number(above=0).check("prior_scale", self.prior_scale) ** 2)
        loss, outcomes = _weighted(self.loss, labels, weight)
        posterior = GibbsPosterior(prior, loss, self._design(X), outcomes, learning_rate=float(weight.sum()))
        self._check_loss(posterior)
        self.posterior_ = self._with_rate(posterior)
        self._fit_approximation(start)
        self.threshold_ = self._threshold(rows)
        self.coef_ = (self._coefficients() / self.scale_)[None]
        offset = self._mean[0] if self.fit_intercept else 0.0
        self.intercept_ = np.array([offset - self.threshold_ - self.coef_[0] @ self.center_])
        self.learning_rate_ = self.posterior_.learning_rate
        return self

    def _check_loss(self, posterior: GibbsPosterior) -> None:
        raise NotImplementedError

    def _threshold(self, rows: _Rows) -> float:
        return 0.0

    def _design(self, X: Array) -> Array:
        X = (X - self.center_) / self.scale_
        return np.column_stack([np.ones(len(X)), X]) if self.fit_intercept else X

    def _with_rate(self, posterior: GibbsPosterior) -> GibbsPosterior:
        """Return the posterior at the chosen learning rate."""
        rate = self.learning_rate
        if rate is None:
            return posterior
        if isinstance(rate, str):
            how = {"cv": "cross-validation", "bound": "bound", THEORY: THEORY}.get(rate)
            if how is None:
                raise ModelError(f"learning_rate={rate!r}: expected a number, 'cv', 'bound', 'theory' or None")
            if how in ("bound", THEORY):
                self._refuse_weights()
            if how == THEORY:
                return posterior.with_learning_rate(how)
            assert posterior.y is not None
            positive = int((posterior.y > 0).sum())
            folds = min(5, max(2, min(positive, posterior.n - positive)))
            return choose_learning_rate(
                posterior, method=how, family=self.family, folds=folds, random_seed=self._seed()
            ).posterior
        return posterior.with_learning_rate(rate)

    def _seed(self) -> Any:
        state = self.random_state
        return int(state.randint(2**31)) if isinstance(state, np.random.RandomState) else state

    def _refuse_weights(self) -> None:
        if (self._rows.weight != 1).any():
            raise ModelError("PAC-Bayes bounds are for independent rows of equal weight; leave out sample_weight")

    def _fit_approximation(self, start: Any) -> None:
        """Compute mean and a factor of the covariance of θ, and the draws of SMC."""
        if self.method not in METHODS:
            raise ModelError(f"method={self.method!r}: expected one of {', '.join(METHODS)}")
        if self.method == "smc":
            from ppl_backends.smc import sample_smc

            initial = "prior" if start is None else from_draws(start, self.posterior_)
            self.approximation_ = sample_smc(
                self.posterior_, draws=1000, chains=2, initial=initial, random_seed=self._seed(), progressbar=False
            )
            theta = self.approximation_["posterior"]["theta"].values.reshape(-1, self.posterior_.dim)
            self._mean = theta.mean(axis=0)
            self._factor = np.linalg.cholesky(
                np.cov(theta.T).reshape(2 * (len(self._mean),)) + 1e-12 * np.eye(len(self._mean))
            )
            return
        if self.method == "ep":
            from ppl_backends.approximations.ep import fit_ep

            self.approximation_ = fit_ep(self.posterior_)
        else:
            self.approximation_ = fit_gibbs_vi(
                self.posterior_, family=self.family, initial=start, random_seed=self._seed()
            )
        self._mean, factor = self.approximation_.mean, self.approximation_.cholesky
        self._factor = factor if factor.ndim == 2 else np.diag(factor)

    def _coefficients(self) -> Array:
        return self._mean[1:] if self.fit_intercept else self._mean

    def _scores(self, X: Any) -> tuple[Array, Array]:
        """Return mean and standard deviation of the scores of rows under the pseudo-posterior."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        design = self._design(X)
        return design @ self._mean - self.threshold_, np.sqrt(((design @ self._factor) ** 2).sum(axis=1))

    def mean_score(self, X: Any) -> Array:
        """Return mean scores ``(n,)`` under the pseudo-posterior: linear, ``X @ coef_[0] + intercept_``."""
        return self._scores(X)[0]

    def decision_function(self, X: Any) -> Array:
        """Return mean scores ``(n,)``; positive scores predict ``classes_[1]``."""
        return self.mean_score(X)

    def predict(self, X: Any) -> Any:
        """Return the class of each row ``(n,)``, by the sign of its mean score."""
        positive = self.decision_function(X) > 0
        return self.classes_[positive.astype(int)]

    def score_interval(self, X: Any, level: float = 0.9) -> Array:
        """Return central intervals ``(n, 2)`` of probability ``level`` of the scores, under the pseudo-posterior."""
        if not 0 < level < 1:
            raise ModelError(f"level={level}: expected a probability strictly between 0 and 1")
        mean, sd = self._scores(X)
        half = ndtri(0.5 + 0.5 * level) * sd
        return np.column_stack([mean - half, mean + half])

    def certificate(self, epsilon: float = 0.05, **options: Any) -> Certificate:
        """Return the PAC-Bayes bound on the risk; ``epsilon`` and ``options`` are those of :func:`ppl_backends.certify`."""
        check_is_fitted(self)
        self._refuse_weights()
        found = certify(self.posterior_, self.approximation_, epsilon=epsilon, **options)
        if not self.standardize:
            return found
        return found._replace(
            assumptions=(*found.assumptions, "the centring and scaling of X had been fixed in advance")
        )


class GibbsClassifier(_LinearGibbs):
    """Linear classifier of two classes: a pseudo-posterior exp(−λ · mean loss) · N(0, prior_scale² I) of its coefficients.

    Parameters
    ----------
    loss : {"hinge", "zero_one", "logistic"} or Loss
    prior_scale : float
        Standard deviation of every coefficient, the intercept included.
    learning_rate : float, None, "cv", "bound" or "theory"
        λ; None is λ = n, a weight of one for every observation. ``"cv"`` chooses by cross-validation, ``"bound"`` by
        the PAC-Bayes bound, ``"theory"`` is √(nd) with d columns of the design (bounded losses only).
    method : {"vi", "ep", "smc"}
    family : {"dense", "diagonal", "isotropic"}
        Family of covariances, for VI.
    fit_intercept, standardize : bool
    random_state : int, optional
        Seed of folds and SMC.

    Attributes
    ----------
    coef_, intercept_ : ndarray
        Coefficients of the mean score, on the scale of the data.
    classes_ : ndarray
    posterior_ : GibbsPosterior
    approximation_ : GibbsVI, EPApproximation or InferenceData
    learning_rate_ : float

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> y = np.where(X @ [1.0, -1.0] > 0, "yes", "no")
    >>> classifier = GibbsClassifier().fit(X, y)
    >>> float(classifier.score(X, y)) > 0.95
    True
    >>> classifier.predict_proba([[2.0, -2.0]]).round(2)
    array([[0., 1.]])
    """

    def __init__(
        self,
        loss: Any = "hinge",
        prior_scale: float = 1.0,
        learning_rate: Any = None,
        method: str = "vi",
        family: str = "dense",
        fit_intercept: bool = True,
        standardize: bool = True,
        random_state: Any = None,
    ) -> None:
        self.loss = loss
        self.prior_scale = prior_scale
        self.learning_rate = learning_rate
        self.method = method
        self.family = family
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.random_state = random_state

    def decision_function(self, X: Any) -> Array:
        """Return mean scores over their standard deviations ``(n,)``: the vote, as a normal quantile."""
        mean, sd = self._scores(X)
        return mean / np.maximum(sd, 1e-300)

    def predict_proba(self, X: Any) -> Array:
        """Return the share of the pseudo-posterior that votes for each class ``(n, 2)``.

        It measures how well the data determine the vote. It is a pseudo-probability, not the frequency of the class.
        """
        share = ndtr(self.decision_function(X))
        return np.column_stack([1 - share, share])

    def _check_loss(self, posterior: GibbsPosterior) -> None:
        if posterior.paired or posterior.loss is None or not posterior.loss.classification:
            raise ModelError(f"loss={self.loss!r} is not a loss of two classes")


class GibbsRanker(_LinearGibbs):
    """Linear ranking of two classes by the AUC: a pseudo-posterior with a loss of pairs.

    ``decision_function`` ranks. ``predict`` cuts the scores so that as many training rows are above the cut as are
    positive. ``score`` is the AUC.

    Parameters
    ----------
    loss : {"auc", "auc_hinge"} or PairLoss
    prior_scale : float
        Standard deviation of every coefficient.
    learning_rate : float, None, "cv", "bound" or "theory"
        λ of the mean over all ordered pairs; None is λ = n, ``"theory"`` is √(d(n − 1)/2).
    method : {"vi", "ep", "smc"}
    family : {"diagonal", "dense", "isotropic"}
        Family of covariances, for VI.
    standardize : bool
    random_state : int, optional

    Attributes
    ----------
    coef_, intercept_, classes_, posterior_, approximation_, learning_rate_
        As for :class:`GibbsClassifier`; the intercept is minus the cut.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> y = X @ [1.0, -1.0] + rng.normal(size=100) > 1
    >>> bool(GibbsRanker().fit(X, y).score(X, y) > 0.8)
    True
    """

    def __init__(
        self,
        loss: Any = "auc",
        prior_scale: float = 1.0,
        learning_rate: Any = None,
        method: str = "vi",
        family: str = "diagonal",
        standardize: bool = True,
        random_state: Any = None,
    ) -> None:
        self.loss = loss
        self.prior_scale = prior_scale
        self.learning_rate = learning_rate
        self.method = method
        self.family = family
        self.standardize = standardize
        self.random_state = random_state

    def _check_loss(self, posterior: GibbsPosterior) -> None:
        if not posterior.paired:
            raise ModelError(f"loss={self.loss!r} is not a loss of pairs; use GibbsClassifier")

    def _threshold(self, rows: _Rows) -> float:
        """Return the score above which rows have the total weight of the positive class."""
        scores = self._design(rows.X) @ self._mean
        order = np.argsort(scores, kind="stable")
        below, negative = np.cumsum(rows.weight[order]), rows.weight[rows.labels < 0].sum()
        k = int(np.argmax(below >= negative * (1 - 1e-12)))
        reached = below[k] <= negative * (1 + 1e-12)  # else the cut falls among the copies of one row
        return float(0.5 * (scores[order[k]] + scores[order[k + 1 if reached else k]]))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the AUC of the scores, with rows weighted by ``sample_weight``."""
        return float(
            roc_auc_score(np.asarray(y) == self.classes_[1], self.decision_function(X), sample_weight=sample_weight)
        )
