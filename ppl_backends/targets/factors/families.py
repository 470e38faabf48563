"""Known families of sites, with closed-form tilted moments if they exist, and derivatives for all.

The closed forms are those of truncated, exponentially tilted (:mod:`.truncated`) or mixed normal distributions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, gammaln, log_ndtr, logsumexp

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import as_floats
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.targets.factors.sites import (
    LOGIT,
    NORMAL,
    POISSON,
    PROBIT,
    Array,
    CompiledFamily,
    Rows,
    SiteFamily,
    TiltedMoments,
)
from ppl_backends.targets.factors.truncated import mills, on_interval, truncated_variance, two_sides


def signs(y: Any) -> Array:
    """Return outcomes coded 0/1, False/True or −1/+1 as −1/+1."""
    y = as_floats("binary outcomes", y)
    if not np.isin(y, (-1.0, 0.0, 1.0)).all() or (np.any(y == 0.0) and np.any(y == -1.0)):
        raise ModelError("binary outcomes must be coded 0/1 or -1/+1")
    return np.where(y > 0, 1.0, -1.0)


def positive(name: str, value: Any) -> Array:
    """Return numbers as floats, if all are above zero."""
    values = as_floats(name, value)
    if not np.all(values > 0):
        raise ModelError(f"{name} must be positive")
    return values


def counts(family: str, y: Any) -> Array:
    """Return counts as floats, if none is below zero."""
    y = as_floats(f"{family}: y", y)
    if np.any(y < 0):
        raise ModelError(f"{family}: counts must not be negative")
    return y


class Probit(SiteFamily):
    """Φ(y s) with y = ±1; closed-form moments.

    Parameters
    ----------
    y : array (n,)
        Outcomes, coded 0 and 1, or −1 and 1.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import Factors, Probit, fit_ep
    >>> sites = Probit([1.0, -1.0])
    >>> fit_ep(Factors(np.eye(2), 0.0, sites, 0.0, 1.0)).converged
    True
    """

    log_concave = True
    sign: Array

    def __init__(self, y: Any) -> None:
        super().__init__(sign=signs(y))

    def compiled(self) -> CompiledFamily:
        return CompiledFamily(PROBIT, self.sign, np.ones(self.n))

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
        shrunk = (1 + variance * truncated_variance(z)) / (1 + variance)
        return TiltedMoments(log_ndtr(z), mean + sign * variance * mills(z) / scale, variance * shrunk)


class Logit(SiteFamily):
    """Binomial with logit link: ``successes`` out of ``trials`` (1 by default).

    Parameters
    ----------
    y : array (n,)
        Successes; without ``trials`` outcomes, coded 0 and 1, or −1 and 1.
    trials : array (n,), optional
        Numbers of trials; 1 by default.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import Factors, Logit, fit_ep
    >>> sites = Logit([3, 1], trials=[5, 4])
    >>> fit_ep(Factors(np.eye(2), 0.0, sites, 0.0, 1.0)).converged
    True
    """

    log_concave = True
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

    def compiled(self) -> CompiledFamily:
        return CompiledFamily(LOGIT, self.successes, self.trials)

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        successes, trials, constant = self._at(rows, "successes", "trials", "constant")
        value = np.abs(s)  # in place from here on, because a sweep of EP spends most of its time here
        np.exp(np.negative(value, out=value), out=value)
        np.log1p(value, out=value)
        value += np.maximum(s, 0.0)
        value *= -trials
        value += successes * s
        value += constant
        return value

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        successes, trials = self._at(rows, "successes", "trials")
        p = expit(s)
        return successes - trials * p, -trials * p * expit(-s)


class Step(SiteFamily):
    """Exponential of a 0-1 loss, exp(−penalty · 1{y s < 0}); closed-form moments. An infinite penalty is a half-line.

    Ridgway, Alquier, Chopin & Liang (2014), PAC-Bayesian AUC classification and scoring, section 4.

    Parameters
    ----------
    y : array (n,)
        Signs of the penalised scores, coded 0 and 1, or −1 and 1.
    penalty : float or array (n,)
        Non-negative loss on the wrong side.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import Factors, Step, fit_ep
    >>> sites = Step([1.0, -1.0])
    >>> fit_ep(Factors(np.eye(2), 0.0, sites, 0.0, 1.0)).converged
    True
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
        low, high = -mills(-z), mills(z)  # standardised means of the two halves, minus z
        shift = share * high + (1 - share) * low
        within = share * truncated_variance(z) + (1 - share) * truncated_variance(-z)
        between = share * (1 - share) * (high - low) ** 2
        return TiltedMoments(log_z, mean + sign * sd * shift, variance * (within + between))


class Interval(SiteFamily):
    """1{lower < s < upper}, both ends finite; closed-form moments."""

    log_concave = True
    lower: Array
    upper: Array

    def __init__(self, lower: Any, upper: Any) -> None:
        super().__init__(lower=lower, upper=upper)
        if not np.all(self.lower < self.upper):
            raise ModelError("Interval: lower must be below upper")

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        lower, upper = self._at(rows, "lower", "upper")
        return np.where((s > lower) & (s < upper), 0.0, -np.inf)

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        return np.zeros_like(s), np.zeros_like(s)

    def tilted(self, mean: Array, variance: Array, power: float, rows: Rows = None) -> TiltedMoments | None:
        lower, upper = self._at(rows, "lower", "upper")
        sd = np.sqrt(variance)
        log_z, shift, within = on_interval((lower - mean) / sd, (upper - mean) / sd)
        return TiltedMoments(log_z, mean + sd * shift, variance * within)


class Laplace(SiteFamily):
    """Laplace density of ``y`` about s with the given scale; as a prior, of s about y. Closed-form moments.

    Parameters
    ----------
    y : array (n,) or float
        Location.
    scale : array (n,) or float

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import Factors, Laplace, fit_ep
    >>> sites = Laplace([0.5, -1.0], scale=2.0)
    >>> fit_ep(Factors(np.eye(2), 0.0, sites, 0.0, 1.0)).converged
    True
    """

    log_concave = True
    y: Array
    scale: Array

    def __init__(self, y: Any = 0.0, scale: Any = 1.0) -> None:
        super().__init__(y=y, scale=positive("Laplace: scale", scale))

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        y, scale = self._at(rows, "y", "scale")
        return -np.abs(s - y) / scale - np.log(2 * scale)

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        y, scale = self._at(rows, "y", "scale")
        return -np.sign(s - y) / scale, np.zeros_like(s)

    def tilted(self, mean: Array, variance: Array, power: float, rows: Rows = None) -> TiltedMoments | None:
        y, scale = self._at(rows, "y", "scale")
        log_z, centre, spread = two_sides(mean - y, variance, power / scale, power / scale)
        return TiltedMoments(log_z - power * np.log(2 * scale), y + centre, spread)


class Components(NamedTuple):
    """Normal components of tilted distributions: log normalisers ``(n,)``; shares, means and variances ``(n, k)``."""

    log_z: Array
    shares: Array
    means: Array
    variances: Array


class NormalMixture(SiteFamily):
    """Σₖ wₖ N(s; μₖ, σₖ²), e.g. a spike and slab along a coordinate; closed-form moments; ``(k,)`` or ``(n, k)`` each.

    Parameters
    ----------
    weights, means, sds : array (k,) or (n, k)
        Weights, means and standard deviations of the components.
    n : int
        Number of sites if the components are ``(k,)``.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import Factors, NormalMixture, fit_ep
    >>> sites = NormalMixture([0.5, 0.5], [0.0, 0.0], [0.1, 1.0], n=2)
    >>> fit_ep(Factors(np.eye(2), 0.0, sites, 0.0, 1.0)).converged
    True
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

    def shares(self, mean: Array, variance: Array | float = 0.0, rows: Rows = None) -> Array:
        """Return the probability of every component given s ~ N(mean, variance), shaped as ``mean`` and ``(k,)``."""
        log_weights, means, sds = self._at(rows, "log_weights", "means", "sds")
        spread = np.asarray(variance)[..., None] + sds**2
        log_share = log_weights - 0.5 * ((mean[..., None] - means) ** 2 / spread + np.log(spread))
        return np.exp(log_share - logsumexp(log_share, axis=-1, keepdims=True))

    def components(self, mean: Array, variance: Array, rows: Rows = None) -> Components:
        """Return the components of the tilted distributions with cavities N(mean, variance)."""
        log_weights, means, sds = self._at(rows, "log_weights", "means", "sds")
        spread = variance[:, None] + sds**2
        log_z = log_weights - 0.5 * ((mean[:, None] - means) ** 2 / spread + np.log(spread) + LOG_2PI)
        total = logsumexp(log_z, axis=1)
        centres = mean[:, None] + variance[:, None] / spread * (means - mean[:, None])
        return Components(total, np.exp(log_z - total[:, None]), centres, variance[:, None] * sds**2 / spread)

    def tilted(self, mean: Array, variance: Array, power: float, rows: Rows = None) -> TiltedMoments | None:
        if power != 1.0:
            return None
        log_z, shares, means, variances = self.components(mean, variance, rows)
        centre = (shares * means).sum(axis=1)
        within = (shares * variances).sum(axis=1)
        return TiltedMoments(log_z, centre, within + (shares * (means - centre[:, None]) ** 2).sum(axis=1))


class Normal(SiteFamily):
    """N(y; s, sd²); closed-form moments, with which EP is exact.

    Parameters
    ----------
    y : array (n,)
        Observations.
    sd : array (n,) or float
        Standard deviation of the noise.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import Factors, Normal, fit_ep
    >>> sites = Normal([0.5, -1.0], sd=2.0)
    >>> fit_ep(Factors(np.eye(2), 0.0, sites, 0.0, 1.0)).converged
    True
    """

    log_concave = True
    y: Array
    sd: Array

    def __init__(self, y: Any, sd: Any = 1.0) -> None:
        super().__init__(y=y, sd=positive("Normal: sd", sd))

    def compiled(self) -> CompiledFamily:
        return CompiledFamily(NORMAL, self.y, self.sd**-2.0)

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
    """Poisson count ``y`` of mean exp(s); an exposure belongs in the offset.

    Parameters
    ----------
    y : array (n,)
        Counts.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import Factors, Poisson, fit_ep
    >>> sites = Poisson([3, 0])
    >>> fit_ep(Factors(np.eye(2), 0.0, sites, 0.0, 1.0)).converged
    True
    """

    log_concave = True
    y: Array
    constant: Array

    def __init__(self, y: Any) -> None:
        y = counts("Poisson", y)
        super().__init__(y=y, constant=-gammaln(y + 1))

    def compiled(self) -> CompiledFamily:
        return CompiledFamily(POISSON, self.y, np.ones(self.n))

    def log_site(self, s: Array, rows: Rows = None) -> Array:
        y, constant = self._at(rows, "y", "constant")
        with np.errstate(over="ignore"):
            return y * s - np.exp(s) + constant

    def derivatives(self, s: Array, rows: Rows = None) -> tuple[Array, Array]:
        (y,) = self._at(rows, "y")
        mean = np.exp(np.minimum(s, 700.0))
        return y - mean, -mean


class NegativeBinomial(SiteFamily):
    """Negative binomial count ``y`` of mean exp(s) and variance μ + μ²/alpha.

    Parameters
    ----------
    y : array (n,)
        Counts.
    alpha : array (n,) or float
        Shape; larger values have less overdispersion.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import Factors, NegativeBinomial, fit_ep
    >>> sites = NegativeBinomial([3, 0], alpha=2.0)
    >>> fit_ep(Factors(np.eye(2), 0.0, sites, 0.0, 1.0)).converged
    True
    """

    log_concave = True
    y: Array
    alpha: Array
    constant: Array

    def __init__(self, y: Any, alpha: Any) -> None:
        y, alpha = counts("NegativeBinomial", y), positive("NegativeBinomial: alpha", alpha)
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
