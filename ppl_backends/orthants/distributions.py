"""Distributions for PyMC models whose likelihood is the probability of a rectangle, or is divided by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.shape_utils import rv_size_is_none
from pymc.distributions.transforms import Transform

from ppl_backends.errors import ModelError
from ppl_backends.orthants.op import log_rectangle
from ppl_backends.orthants.truncated import sample_truncated

N_POINTS = 128
REJECTIONS = 50  # rounds for draws of many truncated vectors at once


class _Distribution:
    """A ``pm.CustomDist`` of a log probability, a sampler and a signature, with its own name."""

    signature: str
    dtype = "int64"
    _parameters: ClassVar[Callable[..., Any]]  # maps the arguments to the parameters and options of pm.CustomDist
    _logp: ClassVar[Callable[..., Any]]  # function of a value and the parameters
    _random: ClassVar[Callable[..., Any]]  # function of the parameters, a generator and a size

    def __new__(cls, name: str, *args: Any, **kwargs: Any) -> Any:
        """Add a variable to the model on the context stack."""
        given, options = cls._parameters(*args, **kwargs)
        if cls.dtype == "int64" and options.get("observed") is None:
            raise ModelError(
                f"{cls.__name__}: give the data as observed=; its values are integers that are not sampled"
            )
        return pm.CustomDist(name, *given, **cls._functions(), **options)

    @classmethod
    def dist(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a variable outside of any model; ``args`` and ``kwargs`` are those of the class, without the name."""
        given, options = cls._parameters(*args, **kwargs)
        return pm.CustomDist.dist(*given, class_name=cls.__name__, **cls._functions(), **options)

    @classmethod
    def _functions(cls) -> dict[str, Any]:
        return {"logp": cls._logp, "random": cls._random, "signature": cls.signature, "dtype": cls.dtype}


def _mean_and_cholesky(cls: type, mean: Any, cholesky: Any, **options: Any) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """Return a mean and a Cholesky factor as tensors, and the remaining options."""
    cholesky = pt.as_tensor(cholesky)
    if cholesky.ndim != 2:
        raise ModelError(f"{cls.__name__}: cholesky is a lower triangular matrix; it has {cholesky.ndim} dimensions")
    return (pt.as_tensor(mean), cholesky), options


def _normals(mean: Any, cholesky: Any, rng: np.random.Generator, size: Any) -> Any:
    """Return draws of N(mean, C C') of a batch shape."""
    dim = np.shape(mean)[-1]
    batch = np.shape(mean)[:-1] if size is None else tuple(np.atleast_1d(size))
    cholesky = np.asarray(cholesky)
    return mean + np.einsum("...ij,...j->...i", cholesky, rng.standard_normal((*batch, dim)))


def _log_rectangle_of(mean: Any, cholesky: Any, lower: Any, upper: Any) -> Any:
    """Return log P for means and bounds of any batch shape; with one Cholesky factor, or one for each."""
    if mean.ndim <= 1:
        return log_rectangle(mean, cholesky, lower, upper, n_points=N_POINTS)
    flat = [x.reshape((-1, x.shape[-1])) for x in (mean + lower * 0 if lower.ndim > mean.ndim else mean, lower, upper)]
    factors = cholesky if cholesky.ndim == 2 else cholesky.reshape((-1, *[cholesky.shape[-1]] * 2))
    return log_rectangle(flat[0], factors, flat[1], flat[2], n_points=N_POINTS).reshape(mean.shape[:-1])


def _one_factor(cholesky: Any) -> Any:
    """Return the common factor of a batch."""
    return cholesky[(0,) * (cholesky.ndim - 2)]


class MultivariateProbit(_Distribution):
    """Several yes-or-no answers with correlated residuals: y_j = 1 where mean_j + e_j > 0, e ~ N(0, C C').

    Parameters
    ----------
    name : str
    mean : tensor (..., items)
    cholesky : tensor (items, items)
        Lower Cholesky factor C of the residuals, usually of a correlation matrix, because the data do not identify the
        scales.
    **kwargs
        ``observed`` ``(..., items)`` of 0 and 1, ``dims``, as for any distribution of PyMC.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model(coords={"person": range(2), "item": ["a", "b"]}) as model:
    ...     mean = pm.Normal("mean", 0, 1, dims="item")
    ...     y = pb.MultivariateProbit("y", mean, np.eye(2), observed=[[1, 0], [1, 1]], dims=("person", "item"))
    >>> round(float(model.compile_logp(vars=y)({"mean": np.zeros(2)})), 3)  # 4 log ½
    -2.773
    """

    signature = "(k),(k,k)->(k)"
    _parameters: ClassVar[Any] = classmethod(_mean_and_cholesky)

    @staticmethod
    def _logp(value: Any, mean: Any, cholesky: Any) -> Any:
        yes = pt.eq(value, 1)
        lower, upper = pt.switch(yes, 0.0, -np.inf), pt.switch(yes, np.inf, 0.0)
        log_p = _log_rectangle_of(mean + 0.0 * value, _one_factor(cholesky), lower, upper)
        return pt.switch(pt.all(yes | pt.eq(value, 0), axis=-1), log_p, -np.inf)

    @staticmethod
    def _random(mean: Any, cholesky: Any, rng: Any = None, size: Any = None) -> Any:
        return (_normals(mean, cholesky, rng, size) > 0).astype("int64")


class MultivariateOrdinal(_Distribution):
    """Several ordered answers with correlated residuals: y_j counts the cutpoints below mean_j + e_j, e ~ N(0, C C').

    Parameters
    ----------
    name : str
    mean : tensor (..., items)
    cholesky : tensor (items, items)
    cutpoints : tensor (items, levels - 1)
        Ascending in each row. One row ``(levels - 1,)`` is used for all items.
    **kwargs
        ``observed`` ``(..., items)`` of 0, ..., levels − 1, ``dims``, as for any distribution of PyMC.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     mean = pm.Normal("mean", 0, 1, shape=2)
    ...     y = pb.MultivariateOrdinal("y", mean, np.eye(2), [-1.0, 1.0], observed=np.array([[0, 2], [1, 1]]))
    """

    signature = "(k),(k,k),(k,c)->(k)"

    @classmethod
    def _parameters(
        cls, mean: Any, cholesky: Any, cutpoints: Any, **options: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        (mean, cholesky), options = _mean_and_cholesky(cls, mean, cholesky, **options)
        cutpoints = pt.as_tensor(cutpoints)
        if cutpoints.ndim == 1:
            cutpoints = pt.zeros_like(cholesky[:, :1]) + cutpoints
        return (mean, cholesky, cutpoints), options

    @staticmethod
    def _logp(value: Any, mean: Any, cholesky: Any, cutpoints: Any) -> Any:
        cuts = _one_factor(cutpoints)
        items, levels = pt.arange(cuts.shape[0]), cuts.shape[1] + 1
        known = pt.all((value >= 0) & (value < levels), axis=-1)
        end = pt.full((cuts.shape[0], 1), np.inf)
        edges = pt.concatenate([-end, cuts, end], axis=1)
        level = pt.clip(value, 0, levels - 1).astype("int64")
        log_p = _log_rectangle_of(
            mean + 0.0 * value, _one_factor(cholesky), edges[items, level], edges[items, level + 1]
        )
        return pt.switch(known, log_p, -np.inf)

    @staticmethod
    def _random(mean: Any, cholesky: Any, cutpoints: Any, rng: Any = None, size: Any = None) -> Any:
        x = _normals(mean, cholesky, rng, size)
        return (x[..., None] > cutpoints).sum(axis=-1).astype("int64")


class MultinomialProbit(_Distribution):
    """Choices among alternatives by largest utility; utilities are mean + e, e ~ N(0, C C').

    A panel has several choices of each person, whose residuals are correlated over alternatives and periods
    (Börsch-Supan et al. 1992): see :func:`ppl_backends.math.panel_cholesky`.

    Parameters
    ----------
    name : str
    mean : tensor (..., periods, alternatives)
        Utilities; one period for single choices.
    cholesky : tensor (periods * alternatives, periods * alternatives)
        Lower Cholesky factor of the residuals, those of the first period first.
    **kwargs
        ``observed`` ``(..., periods)`` of 0, ..., alternatives − 1, ``dims``, as for any distribution of PyMC.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     mean = pm.Normal("mean", 0, 1, shape=(1, 3))
    ...     y = pb.MultinomialProbit("y", mean, np.eye(3), observed=np.array([[0], [2], [1]]))
    >>> at = {"mean": np.zeros((1, 3))}
    >>> bool(abs(model.compile_logp(vars=y)(at) - 3 * np.log(1 / 3)) < 0.01)
    True
    """

    signature = "(t,j),(m,m)->(t)"
    _parameters: ClassVar[Any] = classmethod(_mean_and_cholesky)

    @staticmethod
    def _logp(value: Any, mean: Any, cholesky: Any) -> Any:
        factor = _one_factor(cholesky)
        periods, alternatives = mean.shape[-2], mean.shape[-1]
        known = pt.all((value >= 0) & (value < alternatives), axis=-1)
        chosen = pt.clip(value, 0, alternatives - 1).astype("int64").reshape((-1, periods, 1))
        # The other alternatives of each period, as positions in the vector of all utilities.
        others = pt.arange(alternatives - 1)[None, None, :]
        others = others + (others >= chosen)
        offset = (pt.arange(periods) * alternatives)[None, :, None]
        taken = pt.flatten(chosen + offset + 0 * others, ndim=2)
        left = pt.flatten(others + offset, ndim=2)
        batch = mean.ndim > 2
        utilities = mean.reshape((-1, periods * alternatives)) if batch else pt.flatten(mean, ndim=1)[None]
        row = pt.arange(taken.shape[0])[:, None] % utilities.shape[0]  # one row of utilities may be used for all
        gap = utilities[row, left] - utilities[row, taken]
        spread = factor[left] - factor[taken]
        roots = pt.linalg.cholesky(spread @ spread.transpose((0, 2, 1)))
        log_p = log_rectangle(gap, roots, pt.full_like(gap, -np.inf), pt.zeros_like(gap), n_points=N_POINTS)
        return pt.switch(known, log_p.reshape(value.shape[:-1]), -np.inf)

    @staticmethod
    def _random(mean: Any, cholesky: Any, rng: Any = None, size: Any = None) -> Any:
        mean = np.asarray(mean)
        flat = mean.reshape((*mean.shape[:-2], -1))
        return (
            _normals(flat, cholesky, rng, size)
            .reshape((-1, *mean.shape[-2:]))
            .argmax(axis=-1)
            .reshape((*(mean.shape[:-2] if size is None else tuple(np.atleast_1d(size))), mean.shape[-2]))
        )


class ThurstoneRanking(_Distribution):
    """Rankings of items by their worths plus independent noise (Thurstone 1927): the order of mean + e, e_j ~ N(0, scale_j²).

    Parameters
    ----------
    name : str
    mean : tensor (..., items)
        Worths; their level is not identified.
    scale : tensor (items,) or float
        Scale of the noise; 1 by default.
    **kwargs
        ``observed`` ``(..., items)``: the items from first to last, as numbers 0, ..., items − 1; ``dims``.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     worth = pm.Normal("worth", 0, 1, shape=3)
    ...     y = pb.ThurstoneRanking("y", worth, observed=np.array([[0, 2, 1], [1, 0, 2]]))
    >>> bool(abs(model.compile_logp(vars=y)({"worth": np.zeros(3)}) - 2 * np.log(1 / 6)) < 0.01)
    True
    """

    signature = "(k),(k)->(k)"

    @classmethod
    def _parameters(cls, mean: Any, scale: Any = 1.0, **options: Any) -> Any:
        mean = pt.as_tensor(mean)
        scale = pt.as_tensor(scale).astype("float64")
        return (mean, scale + pt.zeros(mean.shape[-1:]) if scale.ndim == 0 else scale), options

    @staticmethod
    def _logp(value: Any, mean: Any, scale: Any) -> Any:
        variance = scale[(0,) * (scale.ndim - 1)] ** 2
        items = variance.shape[0]
        ranked = pt.eq(pt.sort(value, axis=-1), pt.arange(items))
        order = pt.clip(value, 0, items - 1).astype("int64").reshape((-1, items))
        worths = pt.atleast_2d(mean).reshape((-1, items))
        in_order = worths[pt.arange(order.shape[0])[:, None] % worths.shape[0], order]  # one row may be used for all
        first, second = variance[order[:, :-1]], variance[order[:, 1:]]
        # Differences of neighbours have a tridiagonal covariance, whose factor has two diagonals.
        on: list[Any] = []
        below: list[Any] = []
        for i in range(_static(mean, value) - 1):
            before = 0.0 if i == 0 else (second[:, i - 1] / on[-1]) ** 2
            if i:
                below.append(-second[:, i - 1] / on[-1])
            on.append(pt.sqrt(first[:, i] + second[:, i] - before))
        roots = pt.zeros((order.shape[0], items - 1, items - 1))
        for i, entry in enumerate(on):
            roots = roots[:, i, i].set(entry)
            if i:
                roots = roots[:, i, i - 1].set(below[i - 1])
        gap = in_order[:, :-1] - in_order[:, 1:]
        log_p = log_rectangle(gap, roots, pt.zeros_like(gap), pt.full_like(gap, np.inf), n_points=N_POINTS)
        return pt.switch(pt.all(ranked, axis=-1), log_p.reshape(value.shape[:-1]), -np.inf)

    @staticmethod
    def _random(mean: Any, scale: Any, rng: Any = None, size: Any = None) -> Any:
        batch = np.shape(mean)[:-1] if size is None else tuple(np.atleast_1d(size))
        return np.argsort(-(mean + scale * rng.standard_normal((*batch, np.shape(mean)[-1]))), axis=-1)


def _static(*variables: Any) -> int:
    """Return the last dimension, which at least one of the variables must have."""
    for variable in variables:
        if variable.type.shape and variable.type.shape[-1] is not None:
            return int(variable.type.shape[-1])
    raise ModelError("ThurstoneRanking: the number of items must be known: give mean= or observed= a fixed shape")


class TruncatedMvNormal(_Distribution):
    """A Gaussian vector restricted to a rectangle.

    Parameters
    ----------
    name : str
    mean : tensor (dim,)
    cholesky : tensor (dim, dim)
    lower, upper : array (dim,) or float
        Constants; infinite for no bound.
    **kwargs
        ``observed`` ``(..., dim)``, ``shape``, ``dims``, as for any distribution of PyMC.

    Examples
    --------
    >>> import numpy as np, pymc as pm, ppl_backends as pb
    >>> with pm.Model() as model:
    ...     x = pb.TruncatedMvNormal("x", np.zeros(2), np.eye(2), lower=0.0)
    >>> at_one = {"x_bounds__": np.zeros(2)}  # −1 − log 2π + 2 log 2
    >>> round(float(model.compile_logp(jacobian=False)(at_one)), 3)
    -1.452
    """

    signature = "(k),(k,k),(k),(k)->(k)"
    dtype = "float64"

    @classmethod
    def _parameters(
        cls, mean: Any, cholesky: Any, lower: Any = -np.inf, upper: Any = np.inf, **options: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        (mean, cholesky), options = _mean_and_cholesky(cls, mean, cholesky, **options)
        dim = next((n for n in (*cholesky.type.shape, mean.type.shape[-1] if mean.ndim else None) if n), None)
        if dim is None:
            raise ModelError("TruncatedMvNormal: the dimension must be known: give cholesky= a fixed shape")
        try:
            low, high = (np.array(np.broadcast_to(np.asarray(b, dtype=float), (dim,))) for b in (lower, upper))
        except (TypeError, ValueError):
            raise ModelError(f"TruncatedMvNormal: lower and upper are constants, numbers or arrays ({dim},)") from None
        if not (low < high).all():
            raise ModelError("TruncatedMvNormal: every lower bound must be below its upper bound")
        if options.get("observed") is None:
            options.setdefault("transform", Bounds(low, high))
        return (mean + pt.zeros(dim), cholesky, pt.as_tensor(low), pt.as_tensor(high)), options

    @classmethod
    def dist(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a variable without a transform, outside of any model; ``args`` and ``kwargs`` are those of the class."""
        given, options = cls._parameters(*args, **kwargs)
        options.pop("transform", None)
        return pm.CustomDist.dist(*given, class_name=cls.__name__, **cls._functions(), **options)

    @staticmethod
    def _logp(value: Any, mean: Any, cholesky: Any, lower: Any, upper: Any) -> Any:
        factor = _one_factor(cholesky)
        while mean.ndim > 1 and mean.type.broadcastable[0]:  # one mean, and therefore one rectangle, for all values
            mean, lower, upper = mean[0], lower[0] if lower.ndim > 1 else lower, upper[0] if upper.ndim > 1 else upper
        low, high = (bound + 0.0 * mean for bound in (lower, upper))
        z = pt.linalg.solve_triangular(factor, (value - mean).T, lower=True, b_ndim=min(value.ndim, 2))
        dim = factor.shape[0].astype("float64")
        log_density = -0.5 * (z**2).sum(axis=0) - pt.log(pt.diag(factor)).sum() - 0.5 * dim * np.log(2 * np.pi)
        inside = pt.all((value >= lower) & (value <= upper), axis=-1)
        return pt.switch(inside, log_density - _log_rectangle_of(mean, factor, low, high), -np.inf)

    @staticmethod
    def _support_point(rv: Any, size: Any, mean: Any, cholesky: Any, lower: Any, upper: Any) -> Any:
        """Return the mean, moved inside if it is outside or at a bound."""
        sd = pt.sqrt((cholesky**2).sum(axis=-1))
        margin = pt.switch(pt.isinf(lower) | pt.isinf(upper), sd, 0.1 * (upper - lower))
        point = pt.minimum(pt.maximum(mean, lower + margin), upper - margin)
        return point if rv_size_is_none(size) else pt.full(pt.concatenate([size, point.shape[-1:]]), point)

    @classmethod
    def _functions(cls) -> dict[str, Any]:
        return {**super()._functions(), "support_point": cls._support_point}


class _Inside:
    """The ``random`` function of :class:`TruncatedMvNormal`; prior samplers ask it whether the density is normalised."""

    integrates_to_one = True

    def __call__(
        self, mean: Any, cholesky: Any, lower: Any, upper: Any, rng: np.random.Generator, size: Any = None
    ) -> Any:
        dim, given = np.shape(mean)[-1], np.broadcast_shapes(np.shape(mean)[:-1], np.shape(cholesky)[:-2])
        batch = given if size is None else tuple(np.atleast_1d(size))
        means = np.broadcast_to(mean, (*batch, dim)).reshape(-1, dim)
        factors = np.broadcast_to(cholesky, (*batch, dim, dim)).reshape(-1, dim, dim)
        low, high = (np.reshape(bound, (-1, dim))[0] for bound in (lower, upper))
        if (means == means[:1]).all() and (factors == factors[:1]).all():
            found = self._draw(means[0], factors[0], low, high, len(means), rng)
        else:
            found = self._one_each(means, factors, low, high, rng)
        return found.reshape((*batch, dim))

    @staticmethod
    def _draw(mean: Any, factor: Any, low: Any, high: Any, n: int, rng: np.random.Generator) -> Any:
        return sample_truncated(cholesky=factor, lower=low, upper=high, mean=mean, draws=n, random_seed=rng).draws

    def _one_each(self, means: Any, factors: Any, low: Any, high: Any, rng: np.random.Generator) -> Any:
        """Return a draw of each distribution: by rejection for all, then one by one for those with most rejections."""
        x, left = means.copy(), np.arange(len(means))
        for _ in range(REJECTIONS):
            x[left] = means[left] + np.einsum("nij,nj->ni", factors[left], rng.standard_normal(means[left].shape))
            left = left[~((x[left] >= low) & (x[left] <= high)).all(axis=1)]
            if not left.size:
                break
        for i in left:
            x[i] = self._draw(means[i], factors[i], low, high, 1, rng)[0]
        return x


TruncatedMvNormal._random = _Inside()


class Bounds(Transform):
    """Map an interval to the line, each coordinate by its bounds: log, negative log, log odds or identity."""

    name = "bounds"

    def __init__(self, lower: Any, upper: Any) -> None:
        self.lower, self.upper = lower, upper
        self.below, self.above = np.isfinite(lower), np.isfinite(upper)
        self.low, self.high = np.where(self.below, lower, 0.0), np.where(self.above, upper, 1.0)

    def forward(self, value: Any, *inputs: Any) -> Any:
        """Return the points on the line."""
        from_low = pt.log(pt.switch(self.below, value - self.low, 1.0))
        from_high = pt.log(pt.switch(self.above, self.high - value, 1.0))
        return pt.switch(self.below | self.above, from_low - from_high, value)

    def backward(self, value: Any, *inputs: Any) -> Any:
        """Return the points inside the bounds."""
        between = self.low + (self.high - self.low) * pt.sigmoid(value)
        one = pt.switch(self.below, self.low + pt.exp(value), pt.switch(self.above, self.high - pt.exp(-value), value))
        return pt.switch(self.below & self.above, between, one)

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        """Return the log determinants."""
        width = np.log(np.where(self.below & self.above, self.high - self.low, 1.0))
        both = width - pt.softplus(-value) - pt.softplus(value)
        one = pt.switch(self.below, value, pt.switch(self.above, -value, 0.0))
        return pt.sum(pt.switch(self.below & self.above, both, one), axis=-1)
