"""Targets whose likelihood is a product of rectangle probabilities, with a prior of any kind, such as a Stan program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.numerics.differences import STEP
from ppl_backends.options import checked, flag, function, integer
from ppl_backends.orthants.batch import best_log_rectangles, fixed_points
from ppl_backends.orthants.estimate import estimate_log_likelihood
from ppl_backends.orthants.intervals import Array
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.digest import digest_of_numbers
from ppl_backends.targets.digest import fixed_points as points_to_compare
from ppl_backends.targets.protocol import BaseTarget, Evaluation, as_points, sanitize
from ppl_backends.targets.wrapped import WrappedTarget


class Rectangles(NamedTuple):
    """Rectangles of ``n`` vectors at each of ``m`` points of the parameters.

    Attributes
    ----------
    mean : ndarray (m, n, dim)
    cholesky : ndarray (m, dim, dim) or (m, n, dim, dim)
    lower, upper : ndarray (n, dim) or (m, n, dim)

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.orthants import probit_rectangles
    >>> boxes = probit_rectangles([[1, 0], [1, 1]], np.zeros((1, 2)), np.eye(2))
    >>> boxes.mean.shape, boxes.lower.shape
    ((1, 2, 2), (2, 2))
    """

    mean: Array
    cholesky: Array
    lower: Array
    upper: Array

    def rows(self) -> tuple[Array, Array, Array, Array]:
        """Return all of them with shapes ``(m, n, ...)``."""
        mean, factor = np.asarray(self.mean, dtype=float), np.asarray(self.cholesky, dtype=float)
        factor = factor if factor.ndim == 4 else factor[:, None]
        lower, upper = (np.broadcast_to(np.asarray(b, dtype=float), mean.shape) for b in (self.lower, self.upper))
        return mean, np.broadcast_to(factor, (*mean.shape, mean.shape[2])), lower, upper


class RectangleTarget(WrappedTarget):
    """A prior times Π_i P(lower_i ≤ X_i ≤ upper_i), X_i ~ N(mean_i, C C'), with parameters in model space.

    Parameters
    ----------
    prior : model or target
        All other terms: a Stan program, a ``pm.Model``, functions. It may have a likelihood.
    rectangles : callable
        Function from the variables of ``prior`` at ``m`` points, name → ``(m, *shape)``, to :class:`Rectangles`;
        :func:`probit_rectangles` and similar functions make these from data.
    n_points : int
        Points of each rectangle; two or three variables need none.
    estimated : bool
        Whether to use only unbiased estimates of the likelihood, with fresh points each time, so that results are
        exact for any ``n_points``, with :func:`ppl_backends.sample_smc` from the prior. Otherwise the points are
        fixed, which gives a smooth function with gradients for every method.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.orthants import RectangleTarget, probit_rectangles
    >>> prior = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(axis=1), -x))
    >>> y = np.array([[1, 0], [1, 1]])
    >>> target = RectangleTarget(prior, lambda values: probit_rectangles(y, values["x"], np.eye(2)))
    >>> bool(abs(target.log_density(np.zeros((1, 2)))[0] - 4 * np.log(0.5)) < 1e-12)
    True
    """

    has_split, is_prior, split_problem = True, False, None
    factors = likelihood_factors = observations = None
    hessian, undefined, tempered = BaseTarget.hessian, BaseTarget.undefined, BaseTarget.tempered
    pointwise_log_likelihood = BaseTarget.pointwise_log_likelihood
    is_estimated: Any = False
    has_gradient: Any = True

    @checked(rectangles=function("a function of the prior's variables"), n_points=integer(2), estimated=flag)
    def __init__(
        self,
        prior: Any,
        rectangles: Callable[[dict[str, Array]], Rectangles],
        *,
        n_points: int = 128,
        estimated: bool = False,
    ) -> None:
        super().__init__(as_target(prior))
        self.rectangles, self.n_points = rectangles, 2 ** int(np.ceil(np.log2(n_points)))
        self.is_estimated, self.has_gradient = estimated, self.target.has_gradient and not estimated

    @property
    def rest(self) -> BaseTarget:
        """Return all terms except those of the rectangles."""
        return self.target

    def _at(self, x: Array) -> Rectangles:
        return self.rectangles(self.target.constrain(x))

    def evaluate(self, x: Array, gradient: bool = False) -> Evaluation:
        """Return prior and likelihood; derivatives of rectangles are exact, those of their parameters are differences."""
        if self.is_estimated:
            raise ModelError(
                "estimated=True: the likelihood of rectangles is not evaluated; use sample_smc or steps.PseudoMarginal"
            )
        x = as_points(x, self.dim)
        own = self.target.evaluate(x, gradient)
        if not isinstance(own, Evaluation):
            own = Evaluation(own.log_density, np.zeros(len(x)), own.gradient, np.zeros_like(x) if gradient else None)
        rows = self._at(x).rows()
        m, n = rows[0].shape[:2]
        mean, factor, lower, upper = (part.reshape(m * n, *part.shape[2:]) for part in rows)
        found = best_log_rectangles(mean, factor, lower, upper, fixed_points(self.n_points, 0))
        value, _ = sanitize(own.log_likelihood + found.log_p.reshape(m, n).sum(axis=1))
        if not gradient:
            return Evaluation(own.log_prior, value)
        by_parts = (found.mean, found.cholesky, found.lower, found.upper)
        slopes = [slope.reshape(part.shape) for slope, part in zip(by_parts, rows, strict=True)]
        assert own.log_likelihood_gradient is not None
        _, slope = sanitize(value, own.log_likelihood_gradient + self._chained(x, slopes))
        return Evaluation(own.log_prior, value, own.log_prior_gradient, slope)

    def _chained(self, x: Array, slopes: list[Array]) -> Array:
        """Return derivatives by the coordinates ``(m, dim)`` from those by the parameters of rectangles."""
        gradient = np.empty_like(x)
        for j in range(self.dim):
            step = np.zeros_like(x)
            step[:, j] = STEP * np.maximum(1.0, np.abs(x[:, j]))
            sides = zip(slopes, self._at(x + step).rows(), self._at(x - step).rows(), strict=True)
            with np.errstate(invalid="ignore"):  # infinite bounds
                changes = [slope * np.where(up == down, 0.0, up - down) for slope, up, down in sides]
            gradient[:, j] = sum(change.reshape(len(x), -1).sum(axis=1) for change in changes) / (2 * step[:, j])
        return gradient

    def evaluate_prior(self, x: Array, gradient: bool = False) -> tuple[Array, Array | None]:
        """Return the log prior ``(n,)`` and its gradient ``(n, dim)``, or None."""
        if self.target.has_split:
            return self.target.evaluate_prior(x, gradient)
        own = self.target.evaluate(x, gradient)
        return own.log_density, own.gradient

    def prior_target(self) -> BaseTarget | None:
        """Return all other terms, if they have no likelihood."""
        prior = self.target
        return prior if prior.is_prior or not prior.has_split else prior.prior_target()

    def estimate(self, values: Mapping[str, Array], rng: np.random.Generator) -> Array:
        """Return logs of unbiased estimates at points of model space, for :class:`ppl_backends.steps.PseudoMarginal`."""
        mean, factor, lower, upper = self.rectangles(dict(values)).rows()
        return estimate_log_likelihood(mean, factor, lower, upper, rng, n_points=self.n_points)

    def log_likelihood_estimate(self, x: Array, rng: np.random.Generator) -> Array:
        """Return logs of independent unbiased estimates of the likelihood ``(n,)``."""
        x = as_points(x, self.dim)
        estimate = self.estimate(self.target.constrain(x), rng)
        own = None if self.target.is_prior else self.target.evaluate(x)
        return estimate + own.log_likelihood if isinstance(own, Evaluation) else estimate

    def with_fixed_batch_size(self) -> BaseTarget:
        return self

    def digests(self) -> dict[str, str]:
        """Return digests of the other terms, and of rectangles at fixed points."""
        parts = self._at(points_to_compare(self.dim)[:8]).rows()
        return {**self.target.digests(), "rectangles": digest_of_numbers(np.concatenate([p.ravel() for p in parts]))}


def probit_rectangles(y: Any, mean: Array, cholesky: Array) -> Rectangles:
    """Return the rectangles of :class:`ppl_backends.MultivariateProbit`.

    Parameters
    ----------
    y : array (n, items)
        Answers, 0 or 1.
    mean : array (m, items) or (m, n, items)
        Means at m points.
    cholesky : array (items, items) or (m, items, items)
        Lower Cholesky factor of the residuals.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.orthants import probit_rectangles
    >>> boxes = probit_rectangles([[1, 0]], np.zeros((1, 2)), np.eye(2))
    >>> boxes.lower, boxes.upper
    (array([[  0., -inf]]), array([[inf,  0.]]))
    """
    yes = np.asarray(y) == 1
    return _of_utilities(yes.shape, mean, cholesky, np.where(yes, 0.0, -np.inf), np.where(yes, np.inf, 0.0))


def ordinal_rectangles(y: Any, mean: Array, cholesky: Array, cutpoints: Array) -> Rectangles:
    """Return the rectangles of :class:`ppl_backends.MultivariateOrdinal`.

    Parameters
    ----------
    y : array (n, items)
        Answers, 0 to levels − 1.
    mean : array (m, items) or (m, n, items)
        Means at m points.
    cholesky : array (items, items) or (m, items, items)
        Lower Cholesky factor of the residuals.
    cutpoints : array (levels - 1,) or (m, levels - 1)
        Ascending cutpoints, for all items.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.orthants import ordinal_rectangles
    >>> boxes = ordinal_rectangles([[0, 2]], np.zeros((1, 2)), np.eye(2), np.array([-1.0, 1.0]))
    >>> boxes.lower, boxes.upper
    (array([[[-inf,   1.]]]), array([[[-1., inf]]]))
    """
    y = np.asarray(y)
    cuts = np.atleast_2d(cutpoints)
    edges = np.pad(cuts, ((0, 0), (1, 1)), constant_values=((0, 0), (-np.inf, np.inf)))
    return _of_utilities(y.shape, mean, cholesky, edges[:, y], edges[:, y + 1])


def choice_rectangles(y: Any, utilities: Array, cholesky: Array) -> Rectangles:
    """Return the rectangles of :class:`ppl_backends.MultinomialProbit`.

    Parameters
    ----------
    y : array (n, periods)
        Chosen alternatives.
    utilities : array (m, periods, alternatives) or (m, n, periods, alternatives)
        Mean utilities at m points.
    cholesky : array (..., periods * alternatives, periods * alternatives)
        One factor, or one for each of the m points. Lower Cholesky factor of the residuals, those of the first period first.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.orthants import choice_rectangles
    >>> boxes = choice_rectangles([[2]], np.zeros((1, 1, 3)), np.eye(3))
    >>> boxes.mean.shape, boxes.upper.shape
    ((1, 1, 2), (1, 1, 2))
    """
    y, utilities = np.asarray(y), np.asarray(utilities, dtype=float)
    periods, alternatives = utilities.shape[-2:]
    others = np.arange(alternatives - 1) + (np.arange(alternatives - 1) >= y[:, :, None])
    offset = alternatives * np.arange(periods)[:, None]
    chosen = (y[:, :, None] + offset + 0 * others).reshape(len(y), -1)
    return _of_gaps(chosen, (others + offset).reshape(len(y), -1), utilities, cholesky, periods * alternatives)


def ranking_rectangles(y: Any, worths: Array, scale: Any = 1.0) -> Rectangles:
    """Return the rectangles of :class:`ppl_backends.ThurstoneRanking`.

    Parameters
    ----------
    y : array (n, items)
        Items from first to last.
    worths : array (m, items)
        Worths at m points.
    scale : array (items,) or float
        Scale of the noise.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.orthants import ranking_rectangles
    >>> boxes = ranking_rectangles([[1, 0, 2]], np.zeros((1, 3)))
    >>> boxes.mean.shape
    (1, 1, 2)
    """
    y, worths, scale = _ranking(y, worths, scale)
    factor = np.eye(y.shape[1]) * np.broadcast_to(scale, (*np.shape(scale)[:-1], y.shape[1]))[..., None, :]
    return _of_gaps(y[:, :-1], y[:, 1:], worths, factor, y.shape[1])


def _ranking(y: Any, worths: Any, scale: Any) -> tuple[Array, Array, Array]:
    """Return rankings, worths and scales as arrays of consistent shapes; raise ModelError otherwise."""
    try:
        y, worths, scale = np.asarray(y), np.asarray(worths, dtype=float), np.asarray(scale, dtype=float)
    except (TypeError, ValueError):
        raise ModelError("ranking_rectangles: y, worths and scale: expected arrays of numbers") from None
    if y.ndim != 2 or not y.size or not (np.sort(y, axis=1) == np.arange(y.shape[1])).all():
        raise ModelError(
            f"ranking_rectangles: y has shape {y.shape}: each row must be a permutation of 0, 1, ..., items - 1"
        )
    items = y.shape[1]
    if items < 2 or worths.ndim not in (2, 3) or worths.shape[-1] != items:
        raise ModelError(
            f"ranking_rectangles: worths has shape {worths.shape}: expected (m, {items}) with at least two items"
        )
    if not (scale > 0).all() or (scale.ndim and scale.shape[-1] not in (1, items)):
        raise ModelError(f"ranking_rectangles: scale={scale.tolist()}: expected one positive number or {items}")
    return y.astype(np.intp), worths, scale


def _of_utilities(shape: tuple[int, ...], mean: Array, cholesky: Array, lower: Array, upper: Array) -> Rectangles:
    mean, factor = np.asarray(mean, dtype=float), np.asarray(cholesky, dtype=float)
    mean = np.broadcast_to(mean[:, None] if mean.ndim == 2 else mean, (len(mean), *shape))
    factor = np.broadcast_to(factor, (len(mean), *factor.shape[-2:])) if factor.ndim == 2 else factor
    return Rectangles(mean, factor, lower, upper)


def _of_gaps(first: Array, second: Array, utilities: Array, cholesky: Array, size: int) -> Rectangles:
    """Return the rectangles of utilities ``first`` above those of ``second``, both ``(n, pairs)``."""
    factor = np.asarray(cholesky, dtype=float)
    flat = utilities.reshape(len(utilities), -1, size)
    row = np.arange(len(first))[:, None] if flat.shape[1] > 1 else 0
    gap = flat[:, row, second] - flat[:, row, first]
    factor = np.broadcast_to(factor, (len(flat), size, size)) if factor.ndim == 2 else factor
    spread = factor[:, second] - factor[:, first]  # (m, n, pairs, size)
    return Rectangles(
        gap, np.linalg.cholesky(spread @ np.swapaxes(spread, 2, 3)), np.full(gap.shape, -np.inf), np.zeros(gap.shape)
    )
