"""``GibbsPosterior``: exp{−λ r_n(θ)} π(θ) as a target.

The learning rate λ multiplies the *mean* loss. With observations (Xᵢ, yᵢ) it is r_n(θ) = n⁻¹ Σ ℓ(xᵢᵀθ, yᵢ), so that
one observation has weight η = λ/n. For pairs it is the mean over the n(n − 1) ordered pairs (i, j), i ≠ j. Each pair
of the two classes counts twice, so a pair has weight 2λ/(n(n − 1)), and λ is n(n − 1)/(2n₊n₋) times the rate of the
form that averages over the n₊n₋ pairs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.gibbs.losses import Loss, PairLoss, loss_of, resolve_loss
from ppl_backends.gibbs.priors import GaussianPriorTarget, coefficient_columns, resolve_prior
from ppl_backends.gibbs.risks import FunctionRisk, LinearRisk, LossObservations
from ppl_backends.gibbs.theory import THEORY, theory_prior, theory_rate
from ppl_backends.numerics.arrays import as_floats
from ppl_backends.options import instance, number
from ppl_backends.targets.factors import Factors, SiteFamily
from ppl_backends.targets.protocol import Array, BaseTarget, Evaluation, Index, as_points, sanitize
from ppl_backends.targets.wrapped import WrappedTarget

MAX_PAIR_BYTES = 2**29
"""Largest size of the design of pairs, n₊n₋ rows, for EP."""


class TuningRecord(NamedTuple):
    """A choice that was made with the same data.

    Attributes
    ----------
    what : str
        ``"learning rate"`` or ``"prior"``.
    how : str
        Name of the method.
    candidates : int or None
        Size of the grid it was chosen from, fixed before the data were seen; None if there was no such grid.

    Examples
    --------
    >>> from ppl_backends.gibbs import TuningRecord
    >>> TuningRecord("learning rate", "cross-validation", 5).candidates
    5
    """

    what: str
    how: str
    candidates: int | None


class GibbsPosterior(WrappedTarget):
    r"""A posterior with a loss in place of a likelihood, exp{−λ r_n(θ)} π(θ), as a target for every method.

    Parameters
    ----------
    prior : mean and covariance, "theory", pm.Model, Stan program, approximation, or target
        A Gaussian (numbers, vectors, or a covariance matrix), a model without likelihood, or a Stan program, of which
        only the prior is used. ``"theory"`` is N(0, I/d) with d columns of X, or N(0, I) for pairs.
    loss : str, Loss, function or PyTensor expression
        ``"zero_one"``, ``"hinge"``, ``"logistic"``, ``"squared"``, ``"absolute"``, ``"quantile"`` (a median;
        ``Quantile(0.9)`` for others), ``"auc"``, ``"auc_hinge"``, or an object of
        :mod:`ppl_backends.gibbs.losses`. If ``X`` is given, a function takes ``(scores, y)``. Otherwise it takes a
        dict of values in model space, ``(n_points, *shape)`` each, and returns losses ``(n_points, m)``, one column
        per observation or pair. An expression depends on the variables of the prior, a ``pm.Model``, and has one
        element per observation or pair.
    X, y : array (n, p) and (n,), optional
        Data of a linear score Xθ. An intercept needs a column of ones.
    learning_rate : float or "theory"
        λ, which multiplies the mean loss. ``"theory"`` is √(nd) for bounded losses of observations and √(d(n − 1)/2)
        for pairs, which do not depend on the data: see :mod:`ppl_backends.gibbs.theory`.
    offset : float or array (n,)
        Added to the scores.
    coefficients : str or sequence of str, optional
        Variables of the prior that form θ; needed if several could.
    n : int, optional
        Number of observations, if a function or expression returns pairs.
    labels : sequence of str, optional
        Names of the columns of X.
    data : dict or path, optional
        Data of a Stan program.
    **options
        Passed to :func:`ppl_backends.as_target` for the prior.

    Attributes
    ----------
    learning_rate, eta : float
        λ, and λ/n.
    n : int
    pair_rate : float
        λ · 2n₊n₋/(n(n − 1)), the learning rate of the mean over pairs of the two classes; NaN for other losses.
    loss : Loss or None
    X, y : ndarray or None
    tuning : tuple of TuningRecord
        Choices made with the same data, which enter certificates.

    Raises
    ------
    ModelError
        If the prior has a likelihood, the data do not fit, or λ is not positive.

    Notes
    -----
    Its evidence is the normalising constant ∫ exp{−λ r_n} dπ, a pseudo-evidence. It compares priors for one loss and
    one λ but is not a probability of the data. Results state this.

    References
    ----------
    Alquier, Ridgway & Chopin (2016), On the properties of variational approximations of Gibbs posteriors. JMLR 17.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(60, 2))
    >>> y = np.sign(X @ [1.0, -1.0] + 0.3 * rng.normal(size=60))
    >>> posterior = GibbsPosterior((0.0, 1.0), "hinge", X, y, learning_rate=60.0)
    >>> posterior
    GibbsPosterior(loss='hinge', dim=2, n=60, learning_rate=60, eta=1)
    >>> posterior.risk([[1.0, -1.0]]).round(2)
    array([0.32])
    """

    has_split = True
    has_gradient = True
    has_potentials = is_prior = False
    split_problem = log_likelihood_estimate = simulate = likelihood_factors = None
    label = "Gibbs posterior"
    evidence_note = "pseudo-evidence: the normalising constant of a Gibbs posterior"
    observed_data: Mapping[str, Array] = {}
    constant_data: Mapping[str, Array] = {}
    generated_groups: Mapping[str, Mapping[str, str]] = {}
    digests, append, evaluate_potentials = BaseTarget.digests, BaseTarget.append, BaseTarget.evaluate_potentials
    with_fixed_batch_size = BaseTarget.with_fixed_batch_size

    def __init__(
        self,
        prior: Any,
        loss: Any,
        X: Any = None,
        y: Any = None,
        *,
        learning_rate: float | str,
        offset: Any = 0.0,
        coefficients: str | Sequence[str] | None = None,
        n: int | None = None,
        labels: Sequence[str] | None = None,
        data: Any = None,
        **options: Any,
    ) -> None:
        self.tuning: tuple[TuningRecord, ...] = ()
        self.loss: Loss | None = None
        self.X = self.y = None
        self._gaussian_factors: Factors | None = None
        if type(loss).__module__.startswith("pytensor") or type(loss).__name__ == "TensorVariable":
            from ppl_backends.gibbs.expression import ExpressionRisk

            _refuse_data(X, y)
            self._risk: Any = ExpressionRisk(prior, loss, n, options)
            prior = self._risk.target
        elif X is None:
            if not callable(loss) or isinstance(loss, Loss):
                raise ModelError(f"loss={loss!r} needs X and y; without them the loss is a function or an expression")
            _refuse_data(X, y)
            prior = resolve_prior(prior, None, data, labels, options)
            self._risk = FunctionRisk(loss, prior.constrain, prior.initial_points(1, np.random.default_rng(0)), n)
        else:
            if labels is None and hasattr(X, "columns"):
                labels = [str(column) for column in X.columns]
            self.loss = loss_of(loss)
            self.X, self.y, offset = _checked_data(self.loss, X, y, offset)
            if isinstance(prior, str) and prior == THEORY:
                prior = theory_prior(self.loss, self.X.shape[1])
            prior = resolve_prior(prior, self.X.shape[1], data, labels, options)
            if isinstance(prior, GaussianPriorTarget):
                columns: Index = np.arange(prior.dim)
            else:
                columns = coefficient_columns(prior, coefficients, self.X.shape[1])
            self._risk = LinearRisk(self.loss, self.X, self.y, offset, columns, prior.dim)
        super().__init__(prior)
        self._adopt_data()
        self.learning_rate = self._checked_rate(learning_rate)

    @property
    def prior(self) -> BaseTarget:
        """Return the prior; the posterior has its coordinates, names and model space."""
        return self.target

    def _adopt_data(self) -> None:
        """Keep the figures and groups of the data."""
        self.constant_data = dict(self.prior.constant_data)
        if self.X is not None and self.y is not None:
            self.constant_data |= {"X": self.X}
            self.observed_data = {"y": self.y}
        self.n = self._risk.n
        self.has_gradient = bool(self._risk.has_gradient and self.prior.has_gradient)

    # -- figures ---------------------------------------------------------------------------------------------------

    @property
    def eta(self) -> float:
        """Return λ/n, the weight of one observation."""
        return self.learning_rate / self.n

    @property
    def paired(self) -> bool:
        """Return whether the loss is a loss of pairs."""
        return isinstance(self.loss, PairLoss)

    @property
    def pair_rate(self) -> float:
        """Return λ · 2n₊n₋/(n(n − 1)); NaN for losses of single observations."""
        if not self.paired or self.y is None:
            return float("nan")
        positive = int((self.y > 0).sum())
        return self.learning_rate * 2 * positive * (self.n - positive) / (self.n * (self.n - 1))

    @property
    def site_weight(self) -> float:
        """Return the factor of one loss: λ/n, or 2λ/(n(n − 1)) for a pair."""
        return 2 * self.learning_rate / (self.n * (self.n - 1)) if self.paired else self.eta

    @property
    def gaussian_prior(self) -> GaussianPriorTarget | None:
        """Return the prior if it is a Gaussian on the coefficients, else None."""
        return self.prior if isinstance(self.prior, GaussianPriorTarget) else None

    def risk(self, x: Any) -> Array:
        """Return the empirical risk r_n ``(k,)`` at points ``(k, dim)`` of the unconstrained space."""
        return self._risk.evaluate(as_points(x, self.dim))[0]

    def scores(self, x: Any, X: Any = None, offset: Any = None) -> Array:
        """Return linear scores ``(k, n)`` of the data, or of other rows ``X`` and their ``offset``, at points ``(k, dim)``.

        An offset that all rows of the data share is that of other rows too.
        """
        risk = self._linear("scores")
        theta = as_points(x, self.dim)[:, risk.columns]
        if X is None:
            return risk.scores(theta)
        rows = as_floats("X", X)
        if rows.ndim != 2 or rows.shape[1] != theta.shape[1]:
            raise ModelError(f"X has shape {rows.shape}; expected (n, {theta.shape[1]})")
        return theta @ rows.T + self._offset_of_new(offset)

    # -- relatives -------------------------------------------------------------------------------------------------

    def with_learning_rate(self, learning_rate: float | str) -> GibbsPosterior:
        """Return the same posterior at another ``learning_rate`` λ; nothing is compiled again."""
        other = copy.copy(self)
        other.learning_rate = self._checked_rate(learning_rate)
        other._gaussian_factors = None
        return other

    def _checked_rate(self, learning_rate: Any) -> float:
        if isinstance(learning_rate, str) and learning_rate == THEORY:
            return theory_rate(self.loss, self.n, 0 if self.X is None else self.X.shape[1])
        return number(above=0).check("learning_rate", learning_rate)

    def tempered(self, power: float) -> GibbsPosterior:
        """Return exp{−λ r_n} to a power, with the learning rate multiplied by it."""
        return self.with_learning_rate(power * self.learning_rate)

    def with_prior(self, prior: Any, **options: Any) -> GibbsPosterior:
        """Return the same loss and data under another ``prior``; ``options`` are those of :class:`GibbsPosterior`."""
        risk = self._linear("with_prior")
        return GibbsPosterior(
            prior, risk.loss, self.X, self.y, learning_rate=self.learning_rate, offset=risk.offset, **options
        )._tuned(*self.tuning)

    def with_loss(self, loss: Any) -> GibbsPosterior:
        """Return the posterior of another ``loss`` of the same scores and outcomes, with the same prior and λ."""
        risk, other = self._linear("with_loss"), copy.copy(self)
        other.loss = resolve_loss(loss)
        other.X, other.y, offset = _checked_data(other.loss, risk.X, risk.y, risk.offset)
        other._risk = LinearRisk(other.loss, other.X, other.y, offset, risk.columns, self.dim)
        other._gaussian_factors = None
        other._adopt_data()
        return other

    def subset(self, rows: Any) -> GibbsPosterior:
        """Return the posterior given only some observations, with the same weight η of each."""
        risk = self._linear("subset")
        rows = np.arange(self.n)[rows]
        return self._on(risk.X[rows], risk.y[rows], risk.offset[rows]).with_learning_rate(self.eta * len(rows))

    def with_data(self, new: Mapping[str, Any]) -> GibbsPosterior:
        """Return the same posterior on other data ``{"X": …, "y": …}``, with the same λ; offsets of rows are data too."""
        risk = self._linear("with_data")
        if set(new) - {"offset"} != {"X", "y"}:
            raise ModelError(f"new data {sorted(new)}: expected X and y, and offset if rows have one")
        offset = self._offset_of_new(new.get("offset"))
        return self._on(*_checked_data(risk.loss, new["X"], new["y"], offset))

    def _offset_of_new(self, offset: Any) -> Any:
        """Return the offset of other rows: the one given, or else the one that all rows of the data share."""
        own = self._linear("offset").offset
        if offset is None and np.ptp(own) > 0:
            raise ModelError("new data lack 'offset', which differs between the rows of this posterior")
        return own[0] if offset is None else as_floats("offset", offset)

    def _on(self, X: Array, y: Array, offset: Array) -> GibbsPosterior:
        """Return the same posterior on other rows."""
        risk, other = self._linear("with_data"), copy.copy(self)
        other.X, other.y, other._gaussian_factors = X, y, None
        other._risk = LinearRisk(risk.loss, X, y, offset, risk.columns, self.dim)
        other._adopt_data()
        return other

    def _tuned(self, *tuning: TuningRecord) -> GibbsPosterior:
        """Return a copy with records of choices added."""
        other = copy.copy(self)
        other.tuning = tuple(tuning)
        return other

    def _linear(self, wanted: str) -> LinearRisk:
        if not isinstance(self._risk, LinearRisk):
            raise ModelError(f"{wanted}: the loss is a function or an expression, not one of linear scores")
        return self._risk

    # -- the target protocol ---------------------------------------------------------------------------------------

    def evaluate_prior(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        """Return the log prior, or the whole density of a prior without a split, and its gradient."""
        parts = self.prior.evaluate(as_points(x, self.dim), gradient)
        if parts.log_prior is None:
            return parts.log_density, parts.gradient
        return parts.log_prior, parts.log_prior_gradient

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation:
        """Return log prior, and −λ r_n as the log likelihood."""
        x = as_points(x, self.dim)
        prior, prior_slope = self.evaluate_prior(x, gradient)
        risk, slope = self._risk.evaluate(x, gradient)
        value, slope = sanitize(-self.learning_rate * risk, None if slope is None else -self.learning_rate * slope)
        return Evaluation(prior, value, prior_slope, slope) if gradient else Evaluation(prior, value)

    def hessian(self, x: Array, part: str = "joint") -> Array:
        """Return Hessian ``(k, dim, dim)``, for losses that have one."""
        if part not in ("joint", "likelihood"):
            raise ModelError(f"part={part!r}: expected 'joint' or 'likelihood'")
        x = as_points(x, self.dim)
        if isinstance(self._risk, LinearRisk) and not self.paired:
            if not self._risk.loss.smooth:
                raise ModelError(f"the {self._risk.loss.name} loss has no second derivative; use fit_ep or sample_smc")
            likelihood = -self.learning_rate * self._risk.hessian(x)
            if part == "likelihood":
                return likelihood
            both = self.prior.hessian(x, "joint")
            return both + likelihood
        if not self.has_gradient or self.paired:
            raise ModelError(f"{self._name} has no second derivative; use sample_smc, or fit_ep where it applies")
        return BaseTarget.hessian(self, x, part)

    @property
    def _name(self) -> str:
        return f"the {self.loss.name} loss" if self.loss is not None else "the loss"

    @property
    def factors(self) -> Factors | None:
        """Return a Gaussian prior times one site per observation or pair; all but logistic sites have closed-form moments.

        Raises
        ------
        ModelError
            If there are too many pairs for a design in memory.
        """
        if self.gaussian_prior is None or self.loss is None:
            return None
        if self._gaussian_factors is None:
            design, offset, sites = self._sites()
            gaussian = self.gaussian_prior.gaussian
            self._gaussian_factors = Factors(
                design, offset, sites, gaussian.mean, gaussian.precision, names=self.prior.names
            )
        return self._gaussian_factors

    def _sites(self) -> tuple[Array, Array, SiteFamily]:
        risk = self._linear("factors")
        if not isinstance(risk.loss, PairLoss):
            return risk.X, risk.offset, risk.loss.sites(risk.y, self.site_weight)
        pairs = len(risk.above) * len(risk.below)
        size = 8 * pairs * risk.X.shape[1]
        if size > MAX_PAIR_BYTES:
            raise ModelError(
                f"EP on {pairs} pairs takes a design of {size / 2**30:.1f} GiB; use "
                "ppl_backends.gibbs.fit_pair_ep, which makes it in pieces, fit_gibbs_vi or sample_smc"
            )
        rows = risk.all_pairs()
        return *risk.differences(*rows), risk.loss.inner.sites(risk.pair_labels(*rows), self.site_weight)

    @property
    def observations(self) -> LossObservations | None:  # type: ignore[override]
        """Return −(λ/n) ℓᵢ row by row, for losses of single observations of a linear score."""
        if not isinstance(self._risk, LinearRisk) or self.paired:
            return None
        return LossObservations(self._risk, self.eta)

    def pointwise_log_likelihood(self, x: Array) -> dict[str, Array]:
        """Return −(λ/n) ℓᵢ of every observation."""
        if self.observations is None:
            raise ModelError(f"{self._name} is not a sum over observations")
        return {"y": self.observations.log_likelihood(x)}

    def prior_target(self) -> BaseTarget:
        """Return the prior; if it cannot be drawn from directly (Stan), a separate run samples it."""
        return self.prior

    def __repr__(self) -> str:
        name = self.loss.name if self.loss is not None else "expression"
        return (
            f"GibbsPosterior(loss={name!r}, dim={self.dim}, n={self.n}, learning_rate={self.learning_rate:.6g}, "
            f"eta={self.eta:.4g})"
        )


def _checked_data(loss: Loss, X: Any, y: Any, offset: Any) -> tuple[Array, Array, Array]:
    X = np.ascontiguousarray(as_floats("X", X))
    if X.ndim != 2 or 0 in X.shape or not np.isfinite(X).all():
        raise ModelError(f"X has shape {X.shape}; expected (n, p), with finite values")
    if y is None or np.shape(y) != (len(X),):
        raise ModelError(f"y has shape {np.shape(y)}; expected ({len(X)},), one outcome per row of X")
    y = loss.prepare(y)
    if isinstance(loss, PairLoss) and not 0 < (y > 0).sum() < len(y):
        raise ModelError("y has one class only, so that there are no pairs to rank")
    offset = np.broadcast_to(as_floats("offset", offset), (len(X),))
    if not np.isfinite(offset).all():
        raise ModelError("offset has values that are not finite")
    return X, y, offset


def _refuse_data(X: Any, y: Any) -> None:
    if X is not None or y is not None:
        raise ModelError("X and y belong to losses of linear scores; a function or an expression has its own data")


POSTERIOR = instance(GibbsPosterior, "a GibbsPosterior")
