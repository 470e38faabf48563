"""Sites t(s): the factors of a posterior that see the parameters through one scalar, s = aᵀθ + b.

A family holds ``n`` sites of one kind with their data. All its functions are vectorised over nodes × sites. ``rows``
picks sites, repeats allowed, so that a quadrature can spend its nodes on the sites that need them.

Where the moments of t(s)·N(s; m, v) have a closed form the family gives them (:meth:`SiteFamily.tilted`); everything
else goes through the quadrature of :mod:`ppl_backends.approximations.ep.moments`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, expit, gammaln, log_ndtr, logsumexp

from ppl_backends.errors import ModelError

__all__ = [
    "FunctionSites",
    "Laplace",
    "Logit",
    "NegativeBinomial",
    "Normal",
    "NormalMixture",
    "Poisson",
    "Probit",
    "SiteFamily",
    "StackedSites",
    "Step",
    "StudentT",
    "TiltedMoments",
]

Array = NDArray[np.float64]
Rows = NDArray[np.integer] | None
Piece = tuple["SiteFamily", Any, Rows]

LOG_2PI = float(np.log(2 * np.pi))


class TiltedMoments(NamedTuple):
    """Log normaliser, mean and variance of t(s)ᵖ·N(s; m, v), each ``(n,)``."""

    log_z: Array
    mean: Array
    variance: Array


class SiteFamily:
    """``n`` sites of one kind; subclasses define :meth:`log_site` and, where they can, its derivatives and moments.

    Parameters
    ----------
    **parameters : array_like
        The data of the sites, broadcast to a common leading length.

    Attributes
    ----------
    n : int
    bounds : tuple of two floats, or None
        Bounds on \\|∂² log t\\| and \\|∂ log t\\| over all s, where both exist.
    """

    bounds: tuple[float, float] | None = None

    def __init__(self, **parameters: Any) -> None:
        arrays = {name: np.asarray(value, dtype=np.float64) for name, value in parameters.items()}
        self.n = max(np.atleast_1d(array).shape[0] for array in arrays.values())
        for name, array in arrays.items():
            if array.ndim and array.shape[0] not in (1, self.n):
                raise ModelError(f"{type(self).__name__}: {name} has length {array.shape[0]}, the others {self.n}")
            if not np.isfinite(array).all() and not (name == "penalty" and not np.isnan(array).any()):
                raise ModelError(f"{type(self).__name__}: {name} has values that are not finite")
            shape = (self.n, *array.shape[1:])
            self.__dict__[name] = np.ascontiguousarray(np.broadcast_to(array, shape))
        self._fields = tuple(arrays)

    def take(self, rows: NDArray[np.integer]) -> SiteFamily:
        """The sites at ``rows`` as a family of their own."""
        taken = copy.copy(self)
        taken.n = len(rows)
        for name in self._fields:
            taken.__dict__[name] = self.__dict__[name][rows]
        return taken

    def pieces(self, rows: Rows) -> list[Piece]:
        """The families that ``rows`` fall in: each with the columns it fills and its own rows."""
        return [(self, slice(None), rows)]

    def _at(self, rows: Rows, *names: str) -> list[Array]:
        return [self.__dict__[name] if rows is None else self.__dict__[name][rows] for name in names]

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        """Log t at ``s`` ``(k, n)``, or ``(k, len(rows))``; ``-inf`` outside the support."""
        raise NotImplementedError(f"{type(self).__name__} must define log_site(s, rows)")

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        """First and second derivative of log t in s, shaped as ``s``; by central differences unless overridden."""
        step = 1e-4 * np.maximum(1.0, np.abs(s))
        with np.errstate(invalid="ignore"):
            up, middle, down = (self.log_site(s + shift, rows) for shift in (step, 0.0, -step))
            first, second = (up - down) / (2 * step), (up - 2 * middle + down) / step**2
        return np.where(np.isfinite(first), first, 0.0), np.where(np.isfinite(second), second, 0.0)

    def tilted(self, mean: Array, variance: Array, power: float, rows: Rows = None) -> TiltedMoments | None:
        """Moments of t(s)ᵖ·N(s; mean, variance) where they have a closed form, else None."""
        return None


def mills(z: Array) -> Array:
    """φ(z)/Φ(z) to full relative accuracy on the whole line."""
    return np.sqrt(2 / np.pi) / erfcx(-np.asarray(z) / np.sqrt(2))


def signs(y: Any) -> Array:
    """Outcomes coded 0/1, False/True or −1/+1 as −1/+1."""
    y = np.asarray(y, dtype=np.float64)
    if not np.isin(y, (-1.0, 0.0, 1.0)).all() or (np.any(y == 0.0) and np.any(y == -1.0)):
        raise ModelError("binary outcomes must be coded 0/1 or -1/+1")
    return np.where(y > 0, 1.0, -1.0)


class Probit(SiteFamily):
    """Φ(y s) with y = ±1; closed-form moments.

    Examples
    --------
    >>> import numpy as np
    >>> float(np.exp(Probit([1]).log_site(np.zeros((1, 1)))[0, 0]))
    0.5
    """

    sign: Array

    def __init__(self, y: Any) -> None:
        super().__init__(sign=signs(y))

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        (sign,) = self._at(rows, "sign")
        return log_ndtr(sign * s)

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        (sign,) = self._at(rows, "sign")
        r = mills(sign * s)
        return sign * r, -r * (sign * s + r)

    def tilted(self, mean: Array, variance: Array, power: float, rows: Rows = None) -> TiltedMoments | None:
        if power != 1.0:
            return None
        (sign,) = self._at(rows, "sign")
        scale = np.sqrt(1 + variance)
        z = sign * mean / scale
        shrunk = (1 + variance * _truncated_variance(z)) / (1 + variance)
        return TiltedMoments(log_ndtr(z), mean + sign * variance * mills(z) / scale, variance * shrunk)


class Logit(SiteFamily):
    """Binomial with logit link: ``successes`` out of ``trials`` (1 by default, then y may be coded ±1).

    Examples
    --------
    >>> import numpy as np
    >>> float(np.exp(Logit([1]).log_site(np.zeros((1, 1)))[0, 0]))
    0.5
    """

    successes: Array
    trials: Array
    constant: Array

    def __init__(self, y: Any, trials: Any = None) -> None:
        y = 0.5 * (1 + signs(y)) if trials is None else np.asarray(y, dtype=np.float64)
        trials = np.ones_like(y) if trials is None else np.asarray(trials, dtype=np.float64)
        if np.any(y < 0) or np.any(y > trials):
            raise ModelError("Logit: successes must lie between 0 and trials")
        constant = gammaln(trials + 1) - gammaln(y + 1) - gammaln(trials - y + 1)
        super().__init__(successes=y, trials=trials, constant=constant)
        self.bounds = (0.25 * float(self.trials.max()), float(self.trials.max()))

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        successes, trials, constant = self._at(rows, "successes", "trials", "constant")
        softplus = np.log1p(np.exp(-np.abs(s))) + np.maximum(s, 0.0)
        return successes * s - trials * softplus + constant

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        successes, trials = self._at(rows, "successes", "trials")
        p = expit(s)
        return successes - trials * p, -trials * p * expit(-s)


class Step(SiteFamily):
    """Exponential of a 0-1 loss, exp(−penalty · 1{y s < 0}); closed-form moments. An infinite penalty is a half-line.

    References
    ----------
    Ridgway, Alquier, Chopin & Liang (2014), PAC-Bayesian AUC classification and scoring, section 4.
    """

    sign: Array
    penalty: Array

    def __init__(self, y: Any, penalty: Any = np.inf) -> None:
        super().__init__(sign=signs(y), penalty=penalty)
        if np.any(self.penalty < 0):
            raise ModelError("Step: the penalty must be non-negative")

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        sign, penalty = self._at(rows, "sign", "penalty")
        return np.where(sign * s < 0, -penalty, 0.0)

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        return np.zeros_like(s), np.zeros_like(s)

    def tilted(self, mean: Array, variance: Array, power: float, rows: Rows = None) -> TiltedMoments | None:
        sign, penalty = self._at(rows, "sign", "penalty")
        sd = np.sqrt(variance)
        z = sign * mean / sd
        log_z = np.logaddexp(log_ndtr(z), -power * penalty + log_ndtr(-z))
        share = np.exp(log_ndtr(z) - log_z)  # weight of the half-line without penalty
        low, high = -mills(-z), mills(z)  # standardised means of the two halves, less z
        shift = share * high + (1 - share) * low
        within = share * _truncated_variance(z) + (1 - share) * _truncated_variance(-z)
        between = share * (1 - share) * (high - low) ** 2
        return TiltedMoments(log_z, mean + sign * sd * shift, variance * (within + between))


def _truncated_variance(z: Array) -> Array:
    """Variance of N(z, 1) truncated to (0, ∞): 1 − r(z + r) with r = φ(z)/Φ(z); in the tail, its series in 1/z²."""
    r, square = mills(z), np.maximum(z**2, 1.0)
    return np.where(z < -50, (1 - 6 / square + 50 / square**2) / square, 1 - r * (z + r))


class Laplace(SiteFamily):
    """Laplace density of ``y`` about s with the given scale; as a prior, of s about y. Closed-form moments."""

    y: Array
    scale: Array

    def __init__(self, y: Any = 0.0, scale: Any = 1.0) -> None:
        super().__init__(y=y, scale=scale)

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        y, scale = self._at(rows, "y", "scale")
        return -np.abs(s - y) / scale - np.log(2 * scale)

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        y, scale = self._at(rows, "y", "scale")
        return -np.sign(s - y) / scale, np.zeros_like(s)

    def tilted(self, mean: Array, variance: Array, power: float, rows: Rows = None) -> TiltedMoments | None:
        y, scale = self._at(rows, "y", "scale")
        rate, sd = power / scale, np.sqrt(variance)
        above, below = (mean - y - rate * variance) / sd, (y - mean - rate * variance) / sd
        log_above = log_ndtr(above) - rate * (mean - y)
        log_below = log_ndtr(below) + rate * (mean - y)
        log_mass = np.logaddexp(log_above, log_below)
        share = np.exp(log_above - log_mass)
        high, low = sd * (above + mills(above)), -sd * (below + mills(below))  # means of the two sides, less y
        centre = share * high + (1 - share) * low
        within = variance * (share * _truncated_variance(above) + (1 - share) * _truncated_variance(below))
        log_z = log_mass + 0.5 * rate**2 * variance - power * np.log(2 * scale)
        return TiltedMoments(log_z, y + centre, within + share * (1 - share) * (high - low) ** 2)


class NormalMixture(SiteFamily):
    """Σₖ wₖ N(s; μₖ, σₖ²), e.g. a spike and slab along a coordinate; closed-form moments.

    Parameters
    ----------
    weights, means, sds : array (k,) or (n, k)
    n : int, optional
        Number of sites where the parameters are shared.
    """

    log_weights: Array
    means: Array
    sds: Array

    def __init__(self, weights: Any, means: Any, sds: Any, n: int = 1) -> None:
        weights, means, sds = np.broadcast_arrays(*(np.atleast_2d(np.asarray(p, float)) for p in (weights, means, sds)))
        if np.any(weights <= 0) or np.any(sds <= 0):
            raise ModelError("NormalMixture: weights and standard deviations must be positive")
        if len(weights) == 1 and n > 1:
            weights, means, sds = (np.repeat(p, n, axis=0) for p in (weights, means, sds))
        super().__init__(log_weights=np.log(weights), means=means, sds=sds)

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        log_weights, means, sds = self._at(rows, "log_weights", "means", "sds")
        z = (s[..., None] - means) / sds
        return logsumexp(log_weights - np.log(sds) - 0.5 * (z**2 + LOG_2PI), axis=-1)

    def tilted(self, mean: Array, variance: Array, power: float, rows: Rows = None) -> TiltedMoments | None:
        if power != 1.0:
            return None
        log_weights, means, sds = self._at(rows, "log_weights", "means", "sds")
        spread = variance[:, None] + sds**2
        log_z = log_weights - 0.5 * ((mean[:, None] - means) ** 2 / spread + np.log(spread) + LOG_2PI)
        total = logsumexp(log_z, axis=1)
        share = np.exp(log_z - total[:, None])
        gain = variance[:, None] / spread
        centres = mean[:, None] + gain * (means - mean[:, None])
        centre = (share * centres).sum(axis=1)
        within = (share * variance[:, None] * sds**2 / spread).sum(axis=1)
        return TiltedMoments(total, centre, within + (share * (centres - centre[:, None]) ** 2).sum(axis=1))


class Normal(SiteFamily):
    """N(y; s, sd²); closed-form moments, with which EP is exact."""

    y: Array
    sd: Array

    def __init__(self, y: Any, sd: Any = 1.0) -> None:
        super().__init__(y=y, sd=sd)

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        y, sd = self._at(rows, "y", "sd")
        return -0.5 * (((y - s) / sd) ** 2 + LOG_2PI) - np.log(sd)

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        y, sd = self._at(rows, "y", "sd")
        return (y - s) / sd**2, np.broadcast_to(-1 / sd**2, s.shape)

    def tilted(self, mean: Array, variance: Array, power: float, rows: Rows = None) -> TiltedMoments | None:
        y, sd = self._at(rows, "y", "sd")
        noise = sd**2 / power
        total = variance + noise
        log_z = -0.5 * (power * (np.log(sd**2) + LOG_2PI) + (y - mean) ** 2 / total + np.log(total / noise))
        return TiltedMoments(log_z, mean + variance / total * (y - mean), variance * noise / total)


class Poisson(SiteFamily):
    """Poisson count ``y`` of mean exp(s); an exposure belongs in the offset."""

    y: Array
    constant: Array

    def __init__(self, y: Any) -> None:
        y = np.asarray(y, dtype=np.float64)
        super().__init__(y=y, constant=-gammaln(y + 1))

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        y, constant = self._at(rows, "y", "constant")
        with np.errstate(over="ignore"):
            return y * s - np.exp(s) + constant

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        (y,) = self._at(rows, "y")
        mean = np.exp(np.minimum(s, 700.0))
        return y - mean, -mean


class NegativeBinomial(SiteFamily):
    """Negative binomial count ``y`` of mean exp(s) and variance μ + μ²/alpha."""

    y: Array
    alpha: Array
    constant: Array

    def __init__(self, y: Any, alpha: Any) -> None:
        y, alpha = np.asarray(y, dtype=np.float64), np.asarray(alpha, dtype=np.float64)
        constant = gammaln(y + alpha) - gammaln(alpha) - gammaln(y + 1)
        super().__init__(y=y, alpha=alpha, constant=constant)

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        y, alpha, constant = self._at(rows, "y", "alpha", "constant")
        t = s - np.log(alpha)  # log odds of the mean against alpha
        return y * t - (y + alpha) * (np.log1p(np.exp(-np.abs(t))) + np.maximum(t, 0.0)) + constant

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        y, alpha = self._at(rows, "y", "alpha")
        p = expit(s - np.log(alpha))
        return y - (y + alpha) * p, -(y + alpha) * p * (1 - p)


class StudentT(SiteFamily):
    """Student density of ``y`` about s (or, as a prior, of s about ``y``); ``nu=1`` is Cauchy."""

    y: Array
    nu: Array
    scale: Array
    constant: Array

    def __init__(self, y: Any = 0.0, nu: Any = 1.0, scale: Any = 1.0) -> None:
        nu, scale = np.asarray(nu, dtype=np.float64), np.asarray(scale, dtype=np.float64)
        if np.any(nu <= 0) or np.any(scale <= 0):
            raise ModelError("StudentT: nu and scale must be positive")
        constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi) - np.log(scale)
        super().__init__(y=y, nu=nu, scale=scale, constant=constant)

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        y, nu, scale, constant = self._at(rows, "y", "nu", "scale", "constant")
        return constant - 0.5 * (nu + 1) * np.log1p(((s - y) / scale) ** 2 / nu)

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        y, nu, scale = self._at(rows, "y", "nu", "scale")
        z = s - y
        spread = nu * scale**2 + z**2
        return -(nu + 1) * z / spread, -(nu + 1) * (nu * scale**2 - z**2) / spread**2


class FunctionSites(SiteFamily):
    """Sites given as a function, e.g. compiled from a model.

    Parameters
    ----------
    function : callable
        ``function(s)`` with ``s`` ``(k, n)`` returns log t ``(k, n)``, for any k.
    n : int
    takes_rows : bool
        The function is called ``function(s, rows)``, with repeats among ``rows`` and ``rows=None`` for all sites.
    derivatives : callable, optional
        Called in the same way; returns the first and second derivative.

    Notes
    -----
    A function without ``rows`` is evaluated on a full block of nodes × sites, in which the rows asked for are filled in
    and all others repeat a point that was asked for.
    """

    def __init__(
        self,
        function: Callable[..., Array],
        n: int,
        takes_rows: bool = False,
        derivatives: Callable[..., tuple[Array, Array]] | None = None,
    ) -> None:
        self.n, self._function, self._takes_rows, self._derivatives = n, function, takes_rows, derivatives
        self._full_size = n
        self._subset: NDArray[np.integer] | None = None  # the sites of the function that are kept

    def take(self, rows: NDArray[np.integer]) -> SiteFamily:
        taken = copy.copy(self)
        taken.n = len(rows)
        taken._subset = rows if self._subset is None else self._subset[rows]
        return taken

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        value = np.asarray(self._call(self._function, s, rows)[0], dtype=np.float64)
        return np.where(np.isnan(value), -np.inf, value)

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        if self._derivatives is None:
            return super().derivatives(s, rows)
        first, second = self._call(self._derivatives, s, rows)
        return np.where(np.isfinite(first), first, 0.0), np.where(np.isfinite(second), second, 0.0)

    def _call(self, function: Callable[..., Any], s: Array, rows: Rows) -> tuple[Array, ...]:
        if self._subset is not None:
            rows = self._subset if rows is None else self._subset[rows]
        with np.errstate(all="ignore"):
            if self._takes_rows or rows is None:
                value = function(s, rows) if self._takes_rows else function(s)
                return value if isinstance(value, tuple) else (value,)
            return self._on_full_block(function, s, rows)

    def _on_full_block(self, function: Callable[..., Any], s: Array, rows: NDArray[np.integer]) -> tuple[Array, ...]:
        order = np.argsort(rows, kind="stable")
        sorted_rows = rows[order]
        first = np.searchsorted(sorted_rows, sorted_rows)
        copy_of = np.empty(len(rows), dtype=int)  # how many times the row came before
        copy_of[order] = np.arange(len(rows)) - first
        copies, size = int(copy_of.max(initial=0)) + 1, self._full_size
        block = np.full((copies, len(s), size), s.flat[0])
        block[copy_of, :, rows] = s.T
        value = function(block.reshape(-1, size))
        values = value if isinstance(value, tuple) else (value,)
        return tuple(np.asarray(v).reshape(copies, len(s), size)[copy_of, :, rows].T for v in values)


class StackedSites(SiteFamily):
    """Families one after another, e.g. a likelihood and then a Cauchy prior along every coordinate."""

    def __init__(self, families: Sequence[SiteFamily]) -> None:
        self.families = list(families)
        self._ends = np.cumsum([family.n for family in self.families])
        self.n = int(self._ends[-1])

    def take(self, rows: NDArray[np.integer]) -> SiteFamily:
        which, local = self._locate(rows)
        if np.any(np.diff(which) < 0):
            raise ModelError("sites of several families can only be taken in increasing order")
        kept = [family.take(local[which == k]) for k, family in enumerate(self.families) if np.any(which == k)]
        return kept[0] if len(kept) == 1 else StackedSites(kept)

    def _locate(self, rows: NDArray[np.integer]) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        which = np.searchsorted(self._ends, rows, side="right")
        return which, rows - np.concatenate([[0], self._ends])[which]

    def pieces(self, rows: Rows) -> list[Piece]:
        """Every family with the columns it fills and its own rows."""
        if rows is None:
            starts = np.concatenate([[0], self._ends])
            return [(f, slice(a, b), None) for f, a, b in zip(self.families, starts, self._ends, strict=False)]
        which, local = self._locate(rows)
        columns = [np.flatnonzero(which == k) for k in range(len(self.families))]
        return [(f, c, local[c]) for f, c in zip(self.families, columns, strict=True) if len(c)]

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        value = np.empty_like(s)
        for family, columns, local in self.pieces(rows):
            value[:, columns] = family.log_site(s[:, columns], local)
        return value

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        first, second = np.empty_like(s), np.empty_like(s)
        for family, columns, local in self.pieces(rows):
            first[:, columns], second[:, columns] = family.derivatives(s[:, columns], local)
        return first, second
