"""Targets with known answers that are hard for a sampler, by kind of difficulty, and easy ones that must not be flagged.

Every case has its log evidence and exact draws of its posterior, from which the reference moments and quantiles are taken.
``hostile_cases.py`` runs them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import integrate, stats
from scipy.special import gammaln, logsumexp

import ppl_backends as pb

LOG_2PI = np.log(2 * np.pi)
EXACT_DRAWS = 400_000


@dataclass(frozen=True)
class Case:
    """A target with its answers.

    Attributes
    ----------
    name, kind : str
    build : callable
        ``() -> target or pm.Model``.
    log_evidence : float
        Log integral of the density as written; NaN where only a flag is right.
    draw : callable, optional
        ``(n, rng) -> dict`` of exact posterior draws ``(n, ...)``, by variable.
    moments : bool
        Whether a fourth moment exists, without which a sample's sd has no standard error; else quantiles are compared.
    must_flag : bool
        Whether no answer is right, so that the result has to be distrusted.
    summary : dict, optional
        Mean, sd and quantiles by variable, where there are no exact draws.
    error : float
        Standard error of ``log_evidence``, where it is not exact.
    """

    name: str
    kind: str
    build: Callable[[], Any]
    log_evidence: float
    draw: Callable[[int, np.random.Generator], dict] | None = None
    moments: bool = True
    must_flag: bool = False
    summary: dict | None = None
    error: float = 0.0

    @cached_property
    def reference(self):
        """Return the mean, sd and the 5, 50, 95 % quantiles of every coordinate, by variable."""
        if self.summary is not None:
            return self.summary
        draws = self.draw(EXACT_DRAWS, np.random.default_rng(0))
        return {
            name: (x.mean(axis=0), x.std(axis=0), np.quantile(x, [0.05, 0.5, 0.95], axis=0))
            for name, x in ((name, np.asarray(x).reshape(len(x), -1)) for name, x in draws.items())
        }


# -- densities ---------------------------------------------------------------------------------------------------------


class Normal:
    """A normal density, its gradient and its draws."""

    def __init__(self, mean, cov):
        self.mean = np.atleast_1d(np.asarray(mean, float))
        self.cov = np.atleast_2d(np.asarray(cov, float))
        self.precision, self.root = np.linalg.inv(self.cov), np.linalg.cholesky(self.cov)
        self.constant = -0.5 * (np.linalg.slogdet(self.cov)[1] + len(self.mean) * LOG_2PI)

    def __call__(self, x):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        slope = -(x - self.mean) @ self.precision
        return self.constant + 0.5 * ((x - self.mean) * slope).sum(axis=1), slope

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        return self.mean + rng.standard_normal((n, len(self.mean))) @ self.root.T


class Student(Normal):
    """A multivariate Student density."""

    def __init__(self, df, mean, shape):
        super().__init__(mean, shape)
        dim, self.df = len(self.mean), df
        log_det = np.linalg.slogdet(self.cov)[1]
        self.log_c = gammaln((df + dim) / 2) - gammaln(df / 2) - 0.5 * (dim * np.log(df * np.pi) + log_det)

    def __call__(self, x):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        _, slope = super().__call__(x)
        distance = -((x - self.mean) * slope).sum(axis=1)
        dim = len(self.mean)
        value = self.log_c - 0.5 * (self.df + dim) * np.log1p(distance / self.df)
        return value, slope * ((self.df + dim) / (self.df + distance))[:, None]

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        z = super().draw(n, rng) - self.mean
        return self.mean + z / np.sqrt(rng.chisquare(self.df, size=(n, 1)) / self.df)


class StudentProduct:
    """Independent Student coordinates, seen through a linear map."""

    def __init__(self, df, dim, root=None):
        self.df, self.dim = df, dim
        self.root = np.eye(dim) if root is None else root
        self.inverse, self.log_det = np.linalg.inv(self.root), np.linalg.slogdet(self.root)[1]

    def __call__(self, x):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        z = x @ self.inverse.T
        constant = gammaln((self.df + 1) / 2) - gammaln(self.df / 2) - 0.5 * np.log(self.df * np.pi)
        value = (constant - 0.5 * (self.df + 1) * np.log1p(z**2 / self.df)).sum(axis=1) - self.log_det
        return value, (-(self.df + 1) * z / (self.df + z**2)) @ self.inverse

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        return rng.standard_t(self.df, size=(n, self.dim)) @ self.root.T


class Mixture:
    """A mixture of densities."""

    def __init__(self, shares, parts):
        self.log_shares, self.shares, self.parts = np.log(shares), np.asarray(shares), parts

    def __call__(self, x):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        values, slopes = zip(*(part(x) for part in self.parts), strict=True)
        logs = np.stack(values) + self.log_shares[:, None]
        total = logsumexp(logs, axis=0)
        return total, (np.exp(logs - total)[:, :, None] * np.stack(slopes)).sum(axis=0)

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        counts = rng.multinomial(n, self.shares)
        return np.concatenate([part.draw(k, rng) for part, k in zip(self.parts, counts, strict=True)])


def _joint(density):
    return lambda: pb.FunctionTarget(len(density.draw(1, np.random.default_rng(0))[0]), density)


def _as_x(density):
    return lambda n, rng: {"x": density.draw(n, rng)}


# -- 1: likelihoods that are flat on a part of the prior, and zero elsewhere -----------------------------------------


def _inside(dim, region, log_share, draw, name):
    """Return a case of N(0, I) that a 0-1 likelihood restricts to a region."""
    prior = Normal(np.zeros(dim), np.eye(dim))

    def likelihood(x):
        return np.where(region(x), 0.0, -np.inf), np.zeros_like(x)

    return Case(
        name,
        "zero density",
        lambda: pb.FunctionTarget(dim, likelihood, prior, prior.draw),
        float(log_share),
        lambda n, rng: {"x": draw(n, rng)},
    )


def _tail_draw(low, high=np.inf):
    return lambda n, rng: stats.truncnorm.rvs(low, high, size=(n, 1), random_state=rng)


def _turned(low):
    """Return draws of N(0, I) in the plane with (x₁ + x₂)/√2 > low."""

    def draw(n, rng):
        along, across = _tail_draw(low)(n, rng)[:, 0], rng.standard_normal(n)
        return np.column_stack([along + across, along - across]) / np.sqrt(2)

    return draw


def _shell(dim, low, high):
    mass = stats.chi(dim).cdf(high) - stats.chi(dim).cdf(low)

    def draw(n, rng):
        u = stats.chi(dim).cdf(low) + mass * rng.random(n)
        z = rng.standard_normal((n, dim))
        return stats.chi(dim).ppf(u)[:, None] * z / np.linalg.norm(z, axis=1, keepdims=True)

    def region(x):
        radius = np.linalg.norm(x, axis=1)
        return (radius > low) & (radius < high)

    return _inside(dim, region, np.log(mass), draw, f"shell {low} to {high}, d = {dim}")


def _pymc_corner():
    import pymc as pm

    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b")
        pm.Potential("corner", pm.math.switch(pm.math.and_(a > 1.5, b > 1.5), 0.0, -np.inf))
        pm.Normal("y", 0.0, 1.0, observed=0.0)
    return model


def zero_density():
    """Return cases of flat likelihoods."""
    box = stats.norm.cdf(0.05) - stats.norm.cdf(-0.05)
    above = stats.norm.sf(0.5)
    step = np.array([stats.norm.cdf(2.0) * np.exp(-10.0), stats.norm.sf(2.0)])

    def step_draw(n, rng):
        high = rng.random(n) < step[1] / step.sum()
        return np.where(high, _tail_draw(2.0)(n, rng)[:, 0], _tail_draw(-np.inf, 2.0)(n, rng)[:, 0])[:, None]

    prior = Normal([0.0], [[1.0]])
    return [
        _inside(1, lambda x: x[:, 0] > 2.5, stats.norm.logsf(2.5), _tail_draw(2.5), "x > 2.5"),
        _inside(1, lambda x: x[:, 0] > 3.5, stats.norm.logsf(3.5), _tail_draw(3.5), "x > 3.5"),
        _inside(1, lambda x: x[:, 0] > 1.0, stats.norm.logsf(1.0), _tail_draw(1.0), "x > 1"),
        _inside(
            1,
            lambda x: np.abs(x[:, 0]) > 2.5,
            np.log(2 * stats.norm.sf(2.5)),
            lambda n, rng: _tail_draw(2.5)(n, rng) * rng.choice([-1.0, 1.0], size=(n, 1)),
            "|x| > 2.5",
        ),
        _inside(
            2,
            lambda x: (np.abs(x) < 0.05).all(axis=1),
            2 * np.log(box),
            lambda n, rng: _tail_draw(-0.05, 0.05)(2 * n, rng).reshape(n, 2),
            "box of half width 0.05, d = 2",
        ),
        _inside(
            5,
            lambda x: (x > 0.5).all(axis=1),
            5 * np.log(above),
            lambda n, rng: _tail_draw(0.5)(5 * n, rng).reshape(n, 5),
            "all above 0.5, d = 5",
        ),
        _inside(2, lambda x: x.sum(axis=1) > 3.5, stats.norm.logsf(3.5 / 2**0.5), _turned(3.5 / 2**0.5), "sum > 3.5"),
        _shell(3, 3.0, 3.2),
        _shell(2, 0.5, 0.55),
        Case(
            "a step of 10 at x = 2",
            "zero density",
            lambda: pb.FunctionTarget(
                1, lambda x: (np.where(x[:, 0] > 2, 0.0, -10.0), np.zeros_like(x)), prior, prior.draw
            ),
            float(np.log(step.sum())),
            lambda n, rng: {"x": step_draw(n, rng)},
        ),
        Case(
            "PyMC, two normals above 1.5",
            "zero density",
            _pymc_corner,
            float(2 * stats.norm.logsf(1.5) - 0.5 * LOG_2PI),
            lambda n, rng: {"a": _tail_draw(1.5)(n, rng)[:, 0], "b": _tail_draw(1.5)(n, rng)[:, 0]},
        ),
    ]


# -- 2, 3: priors that do not integrate to one -----------------------------------------------------------------------


def _restricted(name, transform, low, high):
    """Return x ~ N(1, 2²), restricted to (low, high) by a transform, and three observations N(x, 1)."""
    y = np.array([0.2, 1.4, 0.9])
    precision = len(y) + 0.25
    mean, sd = (y.sum() + 0.25) / precision, precision**-0.5
    covariance = np.eye(3) + 4.0
    marginal = stats.multivariate_normal(np.ones(3), covariance).logpdf(y)
    a, b = (low - mean) / sd, (high - mean) / sd
    mass = np.log(stats.norm.cdf(b) - stats.norm.cdf(a))

    def build():
        import pymc as pm

        with pm.Model() as model:
            x = pm.Normal("x", 1.0, 2.0, transform=transform(pm.distributions.transforms), initval=1.0)
            pm.Normal("y", x, 1.0, observed=y)
        return model

    def draw(n, rng):
        return {"x": stats.truncnorm.rvs(a, b, loc=mean, scale=sd, size=n, random_state=rng)}

    return Case(name, "restricted prior", build, float(marginal + mass), draw)


def _ordered():
    """Return three normals of unequal locations, in order; one observation each, N(x, 0.8²)."""
    location, y = np.array([0.0, 1.0, 0.4]), np.array([0.3, 0.1, 0.9])
    variance = 1.0 / (1.0 + 0.8**-2)
    mean = variance * (location + y / 0.8**2)
    marginal = stats.norm.logpdf(y, location, np.hypot(1.0, 0.8)).sum()

    sd = variance**0.5
    # P(x₁ < x₂ < x₃) of independent normals: x₂ by quadrature, the other two in closed form
    inner = integrate.quad(
        lambda t: stats.norm.pdf(t, mean[1], sd) * stats.norm.cdf(t, mean[0], sd) * stats.norm.sf(t, mean[2], sd),
        -10,
        10,
    )[0]

    def build():
        import pymc as pm

        with pm.Model() as model:
            x = pm.Normal(
                "x", location, 1.0, transform=pm.distributions.transforms.ordered, initval=np.array([-1.0, 0.0, 1.0])
            )
            pm.Normal("y", x, 0.8, observed=y)
        return model

    def draw(n, rng):
        x = mean + sd * rng.standard_normal((8 * n, 3))
        kept = x[(np.diff(x, axis=1) > 0).all(axis=1)]
        return {"x": kept[: min(n, len(kept))]}

    return Case(
        "ordered normals of unequal locations", "restricted prior", build, float(marginal + np.log(inner)), draw
    )


def restricted():
    """Return cases of PyMC priors that a transform truncates."""
    return [
        _restricted("normal by log", lambda t: t.log, 0.0, np.inf),
        _restricted("normal on (0.5, 2)", lambda t: t.Interval(0.5, 2.0), 0.5, 2.0),
        _restricted("normal on (3, inf)", lambda t: t.Interval(3.0, None), 3.0, np.inf),
        _ordered(),
    ]


# -- 5: heavy tails ---------------------------------------------------------------------------------------------------


class Marginals:
    """Independent coordinates of a SciPy distribution, with the score in closed form."""

    def __init__(self, distribution, score, dim):
        self.distribution, self.score, self.dim = distribution, score, dim

    def __call__(self, x):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        return self.distribution.logpdf(x).sum(axis=1), self.score(x)

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        return self.distribution.rvs(size=(n, self.dim), random_state=rng)


class LogInverseGamma:
    """Log of an inverse gamma of a small shape: one tail exponential, the other double exponential."""

    def __init__(self, shape, dim):
        self.shape, self.dim = shape, dim

    def __call__(self, x):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        with np.errstate(over="ignore"):
            e = np.exp(-x)
        return (-self.shape * x - e - gammaln(self.shape)).sum(axis=1), -self.shape + e

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        return -np.log(rng.gamma(self.shape, size=(n, self.dim)))


def _heavy(name, density, dim, moments):
    return Case(
        name,
        "heavy tails",
        lambda: pb.FunctionTarget(dim, density),
        0.0,
        _as_x(density),
        moments=moments,
    )


def _correlated(dim, rho):
    return rho + (1 - rho) * np.eye(dim)


def heavy_tails():
    """Return normalised densities with heavy tails; by quantiles where a sample's sd has no standard error."""
    shear = np.linalg.cholesky(_correlated(3, 0.7)) * np.array([[1.0], [3.0], [0.3]])
    half_cauchy = Marginals(  # log of a half-Cauchy variable: sech
        stats.hypsecant, lambda x: -np.tanh(x), 2
    )
    return [
        _heavy("Cauchy, d = 1", Student(1, [0.0], [[1.0]]), 1, False),
        _heavy("Cauchy, d = 3", Student(1, np.zeros(3), np.eye(3)), 3, False),
        _heavy("Cauchy, d = 10", Student(1, np.zeros(10), np.eye(10)), 10, False),
        _heavy("Cauchy product, d = 3", StudentProduct(1, 3), 3, False),
        _heavy("t3, d = 1", Student(3, [0.0], [[1.0]]), 1, False),
        _heavy("t3, d = 10", Student(3, np.zeros(10), np.eye(10)), 10, False),
        _heavy("t3 product, d = 10", StudentProduct(3, 10), 10, False),
        _heavy("t2, correlated, d = 3", Student(2, np.array([3.0, -1.0, 10.0]), shear @ shear.T), 3, False),
        _heavy("t3 product, sheared, d = 3", StudentProduct(3, 3, shear), 3, False),
        _heavy("t4, scaled, d = 5", Student(4, np.arange(5.0), np.diag(10.0 ** np.arange(-2, 3))), 5, False),
        _heavy("logistic, d = 5", Marginals(stats.logistic, lambda x: -np.tanh(x / 2), 5), 5, True),
        _heavy("Laplace, d = 3", Marginals(stats.laplace, lambda x: -np.sign(x), 3), 3, True),
        _heavy("log half-Cauchy, d = 2", half_cauchy, 2, True),
        _heavy("log inverse gamma 0.5, d = 2", LogInverseGamma(0.5, 2), 2, True),
        _heavy(
            "t3 and normal",
            Mixture([0.5, 0.5], [Student(3, np.zeros(2), 4 * np.eye(2)), Normal(np.zeros(2), np.eye(2))]),
            2,
            False,
        ),
    ]


# -- 6: modes ---------------------------------------------------------------------------------------------------------


def _modes(name, shares, centres, sds, dim, prior_sd=5.0):
    """Return a likelihood that is a mixture of Gaussians, under N(0, prior_sd² I)."""
    prior = Normal(np.zeros(dim), prior_sd**2 * np.eye(dim))
    means = [np.full(dim, c) if np.ndim(c) == 0 else np.asarray(c, float) for c in centres]
    likelihood = Mixture(shares, [Normal(m, s**2 * np.eye(dim)) for m, s in zip(means, sds, strict=True)])
    logs, parts = [], []
    for share, m, s in zip(shares, means, sds, strict=True):
        total = s**2 + prior_sd**2
        logs.append(np.log(share) + Normal(np.zeros(dim), total * np.eye(dim))(m[None])[0][0])
        parts.append(Normal(m * prior_sd**2 / total, s**2 * prior_sd**2 / total * np.eye(dim)))
    posterior = Mixture(np.exp(np.array(logs) - logsumexp(logs)), parts)
    return Case(
        name,
        "several modes",
        lambda: pb.FunctionTarget(dim, likelihood, prior, prior.draw),
        float(logsumexp(logs)),
        _as_x(posterior),
    )


def several_modes():
    """Return cases of separated modes of unequal mass."""
    found = [_modes(f"0.8/0.2, d = {d}", [0.8, 0.2], [3.0, -3.0], [0.7, 0.7], d) for d in (1, 2, 5, 10)]
    found += [
        _modes("0.5/0.5, unequal widths, d = 2", [0.5, 0.5], [4.0, -4.0], [0.3, 1.2], 2),
        _modes("three modes, d = 2", [0.5, 0.3, 0.2], [[4, 0], [-4, 3], [0, -5]], [0.6, 0.6, 0.6], 2),
        _modes("0.95/0.05, d = 3", [0.95, 0.05], [2.5, -4.0], [0.6, 0.6], 3),
        _modes("four modes, d = 2", [0.25] * 4, [[4, 4], [-4, 4], [4, -4], [-4, -4]], [0.5] * 4, 2),
        _modes("0.3/0.7 at 4 and -4, d = 5", [0.3, 0.7], [4.0, -4.0], [0.7, 0.7], 5, 3.0),
        _modes("0.3/0.7 at 4 and -4, d = 10", [0.3, 0.7], [4.0, -4.0], [0.7, 0.7], 10, 3.0),
        _modes("overlapping, d = 3", [0.6, 0.4], [1.2, -1.2], [0.8, 0.8], 3),
    ]
    return found


def _late(name, dim, rho, shares=(0.3, 0.7), centres=(4.0, -4.0), sd=1.2):
    """Return a mixture as posterior of the prior N(1, 5 I): the larger mode is farther and separates late."""
    prior = Normal(np.ones(dim), 5.0 * np.eye(dim))
    shape = sd**2 * _correlated(dim, rho)
    posterior = Mixture(list(shares), [Normal(np.full(dim, centre), shape) for centre in centres])

    def likelihood(x):
        return tuple(a - b for a, b in zip(posterior(x), prior(x), strict=True))

    def build():
        return pb.FunctionTarget(dim, likelihood, prior, prior.draw)

    return Case(name, "late modes", build, 0.0, _as_x(posterior))


def late_modes():
    """Return cases of modes with very few particles where they separate."""
    return [
        _late("0.3/0.7 from N(1, 5 I), d = 5", 5, 0.7),
        _late("0.3/0.7 from N(1, 5 I), d = 10", 10, 0.7),
        _late("0.3/0.7 from N(1, 5 I), d = 10, uncorrelated", 10, 0.0),
        _late("0.2/0.3/0.5 from N(1, 5 I), d = 10", 10, 0.3, (0.2, 0.3, 0.5), (4.0, 0.0, -4.0), 0.8),
        _late("0.3/0.7 from N(1, 5 I), d = 20", 20, 0.3),
    ]


# -- 7: long paths ----------------------------------------------------------------------------------------------------


def _shape(dim):
    sd = np.sqrt(np.linspace(0.1, 10.0, dim))
    return _correlated(dim, 0.7) * sd[:, None] * sd


def _bridged(name, start, end, dim, posterior=None):
    """Return the path from one normalised density to another, as prior and likelihood."""

    def likelihood(x):
        (low, low_slope), (high, high_slope) = start(x), end(x)
        return high - low, high_slope - low_slope

    return Case(
        name, "long path", lambda: pb.FunctionTarget(dim, likelihood, start, start.draw), 0.0, _as_x(posterior or end)
    )


def _wide_regression(n, p, prior_sd, seed):
    """Return linear regression with known noise under a wide prior."""
    rng = np.random.default_rng(seed)
    design = rng.standard_normal((n, p)) @ np.linalg.cholesky(_correlated(p, 0.5)).T
    y = design @ rng.standard_normal(p) + rng.standard_normal(n)
    prior = Normal(np.zeros(p), prior_sd**2 * np.eye(p))
    cov = np.linalg.inv(design.T @ design + np.eye(p) / prior_sd**2)
    marginal = stats.multivariate_normal(np.zeros(n), np.eye(n) + prior_sd**2 * design @ design.T).logpdf(y)
    posterior = Normal(cov @ design.T @ y, 0.5 * (cov + cov.T))

    def likelihood(x):
        residual = y - x @ design.T
        return -0.5 * (residual**2).sum(axis=1) - 0.5 * n * LOG_2PI, residual @ design

    return Case(
        f"regression, {p} slopes N(0, {prior_sd:g}²)",
        "long path",
        lambda: pb.FunctionTarget(p, likelihood, prior, prior.draw),
        float(marginal),
        _as_x(posterior),
    )


def long_paths():
    """Return cases of posteriors far from their priors."""
    found = [
        _bridged(f"N(2, Ξ), d = {d}", Normal(np.zeros(d), np.eye(d)), Normal(np.full(d, 2.0), _shape(d)), d)
        for d in (10, 50)
    ]
    found += [_wide_regression(60, 8, 100.0, 1), _wide_regression(200, 20, 30.0, 2), _wide_regression(100, 50, 10.0, 3)]
    shapes = Normal(np.zeros(10), 25 * np.eye(10)), Normal(np.full(10, 4.0), 0.01 * np.eye(10))
    found.append(_bridged("N(0, 25) to N(4, 0.01), d = 10", *shapes, 10))
    student = Student(5, np.zeros(5), 100 * np.eye(5)), Normal(np.full(5, 20.0), np.eye(5))
    found.append(_bridged("t5 prior, 2 sd off, d = 5", *student, 5))
    return found


# -- 8: densities that are not numbers -------------------------------------------------------------------------------


def _holes(name, dim, where, value, must_flag, log_evidence=0.0):
    density = Normal(np.full(dim, 1.0), 0.25 * np.eye(dim))
    prior = Normal(np.zeros(dim), np.eye(dim))

    def likelihood(x):
        (low, low_slope), (high, high_slope) = prior(x), density(x)
        hole = where(x)
        return np.where(hole, value, high - low), np.where(hole[:, None], np.nan, high_slope - low_slope)

    return Case(
        name,
        "not a number",
        lambda: pb.FunctionTarget(dim, likelihood, prior, prior.draw),
        log_evidence,
        _as_x(density),
        must_flag=must_flag,
    )


def not_a_number():
    """Return cases with NaN or +inf on a part of the space: harmless far from the posterior, not to be trusted near it."""
    return [
        _holes("NaN on half the posterior", 1, lambda x: x[:, 0] > 1.0, np.nan, True),
        _holes("NaN on half the posterior, d = 4", 4, lambda x: x[:, 1] < 1.0, np.nan, True),
        _holes("NaN on a tenth of the posterior", 2, lambda x: x[:, 0] > 1.64, np.nan, True),
        _holes("+inf on a quarter of the posterior", 2, lambda x: x[:, 0] > 1.34, np.inf, True),
        _holes("NaN far below", 2, lambda x: x[:, 0] < -2.0, np.nan, False),
        _holes("NaN far above", 3, lambda x: x[:, 0] > 4.5, np.nan, False),
    ]


# -- 12: right answers -----------------------------------------------------------------------------------------------


class Funnel:
    """Neal's funnel: v ~ N(0, sd²), x_i ~ N(0, exp(v))."""

    def __init__(self, dim, sd=3.0):
        self.dim, self.sd = dim, sd

    def __call__(self, points):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        v, x = points[:, 0], points[:, 1:]
        with np.errstate(over="ignore"):
            shrunk = (x**2).sum(axis=1) * np.exp(-v)
            slopes = -x * np.exp(-v)[:, None]
        value = (
            -0.5 * (v / self.sd) ** 2 - np.log(self.sd) - 0.5 * LOG_2PI - 0.5 * shrunk - 0.5 * self.dim * (v + LOG_2PI)
        )
        return value, np.concatenate([(-v / self.sd**2 + 0.5 * shrunk - 0.5 * self.dim)[:, None], slopes], axis=1)

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        v = self.sd * rng.standard_normal(n)
        return np.column_stack([v, np.exp(v / 2)[:, None] * rng.standard_normal((n, self.dim))])


class Ring:
    """A ring of radius 5 and width 0.3 in the plane."""

    radius, width = 5.0, 0.3

    def __init__(self):
        self.log_z = np.log(2 * np.pi) + np.log(
            integrate.quad(lambda r: r * np.exp(-0.5 * ((r - self.radius) / self.width) ** 2), 0, 10)[0]
        )

    def __call__(self, x):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        r = np.maximum(np.linalg.norm(x, axis=1), 1e-12)
        z = (r - self.radius) / self.width
        return -0.5 * z**2 - self.log_z, -(z / self.width / r)[:, None] * x

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        r = self.radius + self.width * rng.standard_normal(4 * n)
        r = r[rng.random(4 * n) < r / 8.0][:n]
        angle = 2 * np.pi * rng.random(len(r))
        return np.column_stack([r * np.cos(angle), r * np.sin(angle)])


class Banana:
    """A twisted Gaussian: x₂ + b x₁² is normal."""

    def __init__(self, b, sd=1.0):
        self.b, self.sd = b, sd

    def __call__(self, x):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        a, c = x[:, 0], x[:, 1] + self.b * (x[:, 0] ** 2 - self.sd**2)
        value = -0.5 * (a / self.sd) ** 2 - np.log(self.sd) - 0.5 * c**2 - LOG_2PI
        return value, np.column_stack([-a / self.sd**2 - 2 * self.b * a * c, -c])

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        a, c = self.sd * rng.standard_normal(n), rng.standard_normal(n)
        return np.column_stack([a, c - self.b * (a**2 - self.sd**2)])


def curved():
    """Return cases with flat or curved directions."""
    return [
        Case("ring", "curved", _joint(Ring()), 0.0, _as_x(Ring())),
        Case("banana, b = 0.5", "curved", _joint(Banana(0.5)), 0.0, _as_x(Banana(0.5))),
        Case("banana, b = 1, sd 3", "curved", _joint(Banana(1.0, 3.0)), 0.0, _as_x(Banana(1.0, 3.0))),
        Case("funnel, d = 3", "curved", _joint(Funnel(2)), 0.0, _as_x(Funnel(2)), moments=False),
        Case("funnel, d = 6", "curved", _joint(Funnel(5)), 0.0, _as_x(Funnel(5)), moments=False),
        Case("funnel, d = 10", "curved", _joint(Funnel(9)), 0.0, _as_x(Funnel(9)), moments=False),
    ]


class GammaPoisson:
    """Log of a Gamma rate with Poisson counts."""

    shape, rate = 1.5, 0.5

    def __init__(self, counts):
        self.counts = np.asarray(counts)

    def case(self, name):
        """Return the case with its answers."""
        a, b, total, n = self.shape, self.rate, self.counts.sum(), len(self.counts)
        constant = gammaln(self.counts + 1).sum()
        log_z = a * np.log(b) - gammaln(a) + gammaln(a + total) - (a + total) * np.log(b + n) - constant
        return Case(
            name,
            "easy",
            lambda: pb.FunctionTarget(
                1,
                lambda x: ((total * x - n * np.exp(x))[:, 0] - constant, total - n * np.exp(x)),
                lambda x: ((a * x - b * np.exp(x) + a * np.log(b) - gammaln(a))[:, 0], a - b * np.exp(x)),
                lambda n, rng: np.log(rng.gamma(a, 1 / b, size=(n, 1))),
            ),
            float(log_z),
            lambda size, rng: {"x": np.log(rng.gamma(a + total, 1 / (b + n), size=(size, 1)))},
        )


def easy():
    """Return cases on which any method should be right and trusted."""
    found = [_wide_regression(40, p, 2.0, 10 + p) for p in (1, 3, 10, 30)]
    found = [Case(c.name, "easy", c.build, c.log_evidence, c.draw) for c in found]
    exact = Normal(np.arange(4.0), _correlated(4, 0.9))
    return [
        *found,
        GammaPoisson((3, 0, 1, 2)).case("Poisson counts"),
        GammaPoisson((0,)).case("one Poisson count of zero"),
        GammaPoisson((40, 35, 52)).case("larger Poisson counts"),
        Case("a Gaussian by itself, d = 4", "easy", _joint(exact), 0.0, _as_x(exact)),
    ]


# -- several difficulties at once --------------------------------------------------------------------------------------


class SkewNormal:
    """Independent skew normal coordinates."""

    def __init__(self, slant, dim):
        self.slant, self.dim = slant, dim

    def __call__(self, x):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        t = self.slant * x
        below = stats.norm.logcdf(t)
        value = (stats.norm.logpdf(x) + np.log(2) + below).sum(axis=1)
        return value, -x + self.slant * np.exp(stats.norm.logpdf(t) - below)

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        along, across = np.abs(rng.standard_normal((n, self.dim))), rng.standard_normal((n, self.dim))
        return (self.slant * along + across) / np.hypot(1.0, self.slant)


class AsymmetricLaplace:
    """Independent coordinates with exponential tails of unequal rates."""

    def __init__(self, below, above, dim):
        self.below, self.above, self.dim = below, above, dim

    def __call__(self, x):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        constant = np.log(1 / self.below + 1 / self.above)
        slope = np.where(x > 0, -self.above, self.below)
        return (slope * x - constant).sum(axis=1), slope

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        size = rng.standard_exponential((n, self.dim))
        positive = rng.random((n, self.dim)) < self.below / (self.below + self.above)
        return np.where(positive, size / self.above, -size / self.below)


class Shell:
    """A shell of a radius and a width in three dimensions."""

    def __init__(self, radius, width):
        self.radius, self.width = radius, width
        self.log_z = np.log(4 * np.pi * integrate.quad(lambda r: r**2 * np.exp(self._exponent(r)), 0, 3 * radius)[0])

    def _exponent(self, r):
        return -0.5 * ((r - self.radius) / self.width) ** 2

    def __call__(self, x):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        r = np.maximum(np.linalg.norm(x, axis=1), 1e-12)
        return self._exponent(r) - self.log_z, -((r - self.radius) / self.width**2 / r)[:, None] * x

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        grid = np.linspace(0, 3 * self.radius, 100_001)
        r = _inverse(grid, grid**2 * np.exp(self._exponent(grid)), rng.random(n))
        z = rng.standard_normal((n, 3))
        return r[:, None] * z / np.linalg.norm(z, axis=1, keepdims=True)


def _inverse(grid, density, u):
    """Return quantiles ``u`` of a density on a grid."""
    total = integrate.cumulative_trapezoid(density, grid, initial=0.0)
    return np.interp(u * total[-1], total, grid)


class TwoWells:
    """A coordinate of density exp{−(x² − 4)²/4} and others that are normal around a half of it."""

    def __init__(self, dim):
        self.dim = dim
        self.log_z = np.log(integrate.quad(lambda v: np.exp(-((v * v - 4) ** 2) / 4), -6, 6)[0])

    def __call__(self, x):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        first, rest = x[:, 0], x[:, 1:] - 0.5 * x[:, :1]
        value = -((first**2 - 4) ** 2) / 4 - self.log_z - 0.5 * (rest**2).sum(axis=1) - 0.5 * (self.dim - 1) * LOG_2PI
        return value, np.column_stack([-first * (first**2 - 4) + 0.5 * rest.sum(axis=1), -rest])

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        grid = np.linspace(-6, 6, 100_001)
        first = _inverse(grid, np.exp(-((grid**2 - 4) ** 2) / 4), rng.random(n))
        return np.column_stack([first, 0.5 * first[:, None] + rng.standard_normal((n, self.dim - 1))])


class OneLogGamma:
    """A coordinate that is the log of a Gamma variable, with an exponential tail, and others that are standard normal."""

    def __init__(self, shape, dim):
        self.shape, self.dim = shape, dim

    def __call__(self, x):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        first, rest = x[:, 0], x[:, 1:]
        with np.errstate(over="ignore"):
            value = self.shape * first - np.exp(first) - gammaln(self.shape)
            slope = np.column_stack([self.shape - np.exp(first), -rest])
        return value - 0.5 * (rest**2).sum(axis=1) - 0.5 * (self.dim - 1) * LOG_2PI, slope

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        return np.column_stack([np.log(rng.gamma(self.shape, size=n)), rng.standard_normal((n, self.dim - 1))])


class BeyondCircle(Normal):
    """N(0, I) in the plane, outside a circle of radius 3; its mass is exp(−4.5)."""

    def __init__(self):
        super().__init__(np.zeros(2), np.eye(2))

    def __call__(self, x):
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        value, slope = super().__call__(x)
        return np.where((x**2).sum(axis=1) > 9.0, value, -np.inf), slope

    def draw(self, n, rng):
        """Draw ``(n, dim)`` points."""
        angle, r = 2 * np.pi * rng.random(n), np.sqrt(9.0 + 2 * rng.standard_exponential(n))
        return np.column_stack([r * np.cos(angle), r * np.sin(angle)])


def _mixed(name, density, dim, log_evidence=0.0, moments=True, prior_sd=5.0):
    """Return a posterior density as a likelihood under a wide normal prior."""
    prior = Normal(np.zeros(dim), prior_sd**2 * np.eye(dim))

    def likelihood(x):
        return tuple(a - b for a, b in zip(density(x), prior(x), strict=True))

    def build():
        return pb.FunctionTarget(dim, likelihood, prior, prior.draw)

    return Case(name, "mixed", build, log_evidence, _as_x(density), moments=moments)


def mixed():
    """Return targets with zero density, skewness, unequal modes, tails and curvature, several in most."""
    modes = [
        Normal([4, 0, 0, 0], np.eye(4)),
        Normal([-4, 0, 0, 0], np.eye(4) / 4),
        Normal([0, 5, 0, 0], 0.09 * np.eye(4)),
    ]
    students = [Student(3, np.full(5, -2.0), np.eye(5)), Student(3, np.full(5, 2.0), np.eye(5) / 4)]
    oblong = Normal(np.zeros(8), np.diag(np.array([4, 1, 1, 1, 1, 1, 0.5, 0.5]) ** 2))
    far = [Student(1, [0.0], [[1.0]]), Normal([5.0], [[0.01]])]
    spike = [Normal(np.zeros(4), np.eye(4)), Student(5, np.full(4, 0.4), 0.0025 * np.eye(4))]
    return [
        _mixed("N(0, I) beyond a circle, d = 2", BeyondCircle(), 2, -4.5),
        _mixed("skew normal of slant 20, d = 2", SkewNormal(20.0, 2), 2),
        _mixed("asymmetric Laplace, d = 3", AsymmetricLaplace(3.0, 0.5, 3), 3),
        _mixed("Cauchy and a narrow normal, d = 1", Mixture([0.5, 0.5], far), 1, moments=False),
        _mixed("three modes of three widths, d = 4", Mixture([0.6, 0.3, 0.1], modes), 4),
        _mixed("two t3 modes of two widths, d = 5", Mixture([0.4, 0.6], students), 5, moments=False),
        _mixed(
            "a narrow mode in an oblong one, d = 8",
            Mixture([0.8, 0.2], [Normal(np.zeros(8), 0.01 * np.eye(8)), oblong]),
            8,
        ),
        _mixed("shell of radius 4, width 0.2, d = 3", Shell(4.0, 0.2), 3),
        _mixed("two wells, d = 3", TwoWells(3), 3),
        _mixed("one log-Gamma of 16 coordinates", OneLogGamma(1.5, 16), 16),
        _mixed("a t5 spike in a normal, d = 4", Mixture([0.1, 0.9], spike), 4),
        _mixed("funnel of sd 2, d = 4", Funnel(3, 2.0), 4, moments=False),
        _holes("NaN below -1 sd, d = 3", 3, lambda x: x[:, 0] < 0.5, np.nan, True),
    ]


def all_cases():
    """Return every case, by kind."""
    return [
        *zero_density(),
        *restricted(),
        *curved(),
        *heavy_tails(),
        *several_modes(),
        *late_modes(),
        *long_paths(),
        *not_a_number(),
        *easy(),
        *mixed(),
    ]
