"""Problems of ``evidence_suite.py``: a prior that points of the unit cube give, and a log likelihood of batches.

The problems need only NumPy and SciPy, so they run in the environment of every sampler.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import integrate, stats
from scipy.special import gammaln, logsumexp, ndtri

LOG_2PI = np.log(2 * np.pi)


@dataclass(frozen=True)
class Problem:
    """A likelihood under a prior with independent coordinates, uniform on (low, high) or normal of mean zero.

    Attributes
    ----------
    dim : int
    log_likelihood : callable
        ``x (n, dim) -> values (n,), gradients (n, dim)``.
    log_evidence : float
        Exact, or with an error far below that of the samplers.
    low, high : ndarray (dim,), optional
    sd : float, optional
        Of the normal prior.
    """

    dim: int
    log_likelihood: Callable[[Any], tuple]
    log_evidence: float
    low: Any = None
    high: Any = None
    sd: float | None = None

    def from_uniform(self, u):
        """Return draws of the prior ``(n, dim)`` from points of the unit cube."""
        return self.low + (self.high - self.low) * u if self.sd is None else self.sd * ndtri(u)


def box(dim, low, high):
    """Return the bounds of a cube."""
    return {"low": np.full(dim, float(low)), "high": np.full(dim, float(high))}


def shells(dim):
    """Return two Gaussian shells of radius 2 and width 0.1 around ±3.5 on the first axis (Feroz et al. 2009)."""
    radius, width, centre = 2.0, 0.1, 3.5 * (np.arange(dim) == 0)

    def density(x):
        values, slopes = [], []
        for sign in (1.0, -1.0):
            away = x - sign * centre
            r = np.maximum(np.sqrt((away**2).sum(axis=1)), 1e-300)
            values.append(-0.5 * ((r - radius) / width) ** 2 - 0.5 * LOG_2PI - np.log(width))
            slopes.append(-((r - radius) / width**2 / r)[:, None] * away)
        total = np.logaddexp(*values)
        return total, sum(np.exp(v - total)[:, None] * s for v, s in zip(values, slopes, strict=True))

    one = integrate.quad(lambda r: r ** (dim - 1) * np.exp(-0.5 * ((r - radius) / width) ** 2), 1.0, 3.0, epsrel=1e-12)
    volume = np.log(2) + 0.5 * dim * np.log(np.pi) - gammaln(0.5 * dim)
    exact = np.log(2) + volume + np.log(one[0]) - 0.5 * LOG_2PI - np.log(width) - dim * np.log(12.0)
    return Problem(dim, density, float(exact), **box(dim, -6, 6))


def eggbox():
    """Return (2 + cos(u / 2) cos(v / 2))⁵ on (0, 10π)²."""

    def density(x):
        cosines, sines = np.cos(x / 2), np.sin(x / 2)
        base = 2 + cosines.prod(axis=1)
        return base**5, -2.5 * base[:, None] ** 4 * sines * cosines[:, ::-1]

    grid = 10 * np.pi * (np.arange(4000) + 0.5) / 4000
    exact = logsumexp((2 + np.cos(grid / 2)[:, None] * np.cos(grid / 2)) ** 5) - 2 * np.log(4000)
    return Problem(2, density, float(exact), **box(2, 0, 10 * np.pi))


def funnel(dim, half=30.0):
    """Return Neal's funnel under a uniform prior: v on (−15, 15), x on (−30, 30), which cuts a part off."""

    def density(x):
        v, rest = x[:, 0], x[:, 1:]
        square = (rest**2).sum(axis=1) * np.exp(-v)
        value = -(v**2) / 18 - np.log(3) - 0.5 * square - 0.5 * (dim - 1) * v - 0.5 * dim * LOG_2PI
        return value, np.column_stack([-v / 9 + 0.5 * square - 0.5 * (dim - 1), -rest * np.exp(-v)[:, None]])

    def inside(v):
        return stats.norm.pdf(v, 0, 3) * (1 - 2 * stats.norm.sf(half * np.exp(-v / 2))) ** (dim - 1)

    share = integrate.quad(inside, -15, 15, epsabs=1e-13, limit=400)[0]
    low, high = np.r_[-15.0, np.full(dim - 1, -half)], np.r_[15.0, np.full(dim - 1, half)]
    return Problem(dim, density, float(np.log(share) - np.log(high - low).sum()), low, high)


def normals(dim, shares, centres, sds, prior_sd):
    """Return a mixture of spherical normals as a posterior under N(0, prior_sd² I); the log evidence is zero."""
    centres, prior = np.atleast_2d(np.asarray(centres, float)), ([1.0], np.zeros((1, dim)), [prior_sd])

    def mixture(x, shares, centres, sds):
        apart = [(x - centre) / sd for centre, sd in zip(centres, sds, strict=True)]
        logs = [
            np.log(share) - 0.5 * (z**2).sum(axis=1) - dim * (np.log(sd) + 0.5 * LOG_2PI)
            for share, z, sd in zip(shares, apart, sds, strict=True)
        ]
        total = np.logaddexp.reduce(logs)
        return total, -sum(np.exp(v - total)[:, None] * z / sd for v, z, sd in zip(logs, apart, sds, strict=True))

    def density(x):
        (value, slope), (base, base_slope) = mixture(x, shares, centres, sds), mixture(x, *prior)
        return value - base, slope - base_slope

    return Problem(dim, density, 0.0, sd=prior_sd)


def spike(dim=5, width=0.05, offset=0.5):
    """Return 0.9 of the mass in a spike, which takes over at one temperature."""
    return normals(dim, [0.1, 0.9], [np.zeros(dim), np.full(dim, offset)], [1.0, width], 3.0)


def two_modes(dim):
    """Return 0.3 and 0.7 of the mass ten standard deviations apart along the diagonal."""
    c = np.full(dim, 5.0 / np.sqrt(dim))
    return normals(dim, [0.3, 0.7], [-c, c], [1.0, 1.0], 10.0)


def regression(n=200, dim=8, seed=4):
    """Return a logistic regression with N(0, 2.5²) coefficients on simulated rows.

    Importance sampling from a Student t at the mode, 10⁶ points with a standard error below 10⁻³, gives the evidence.
    """
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, dim - 1)) @ (np.eye(dim - 1) + 0.3)])
    y = rng.random(n) < 1 / (1 + np.exp(-X @ np.linspace(-1, 1, dim)))
    signed, sd = X * (2.0 * y[:, None] - 1), 2.5

    def density(x):
        eta = x @ signed.T
        return -np.logaddexp(0, -eta).sum(axis=1), (1 / (1 + np.exp(eta))) @ signed

    def joint(x):
        value, slope = density(x)
        square = (x**2).sum(axis=1) / sd**2
        return value - 0.5 * square - dim * np.log(sd) - 0.5 * dim * LOG_2PI, slope - x / sd**2

    mode = np.zeros((1, dim))
    for _ in range(30):
        p = 1 / (1 + np.exp(-mode[0] @ signed.T))
        precision = signed.T @ (signed * (p * (1 - p))[:, None]) + np.eye(dim) / sd**2
        mode = mode + np.linalg.solve(precision, joint(mode)[1][0])
    proposal = stats.multivariate_t(mode[0], np.linalg.inv(precision), df=10, seed=1)
    blocks = [proposal.rvs(20_000) for _ in range(50)]
    logs = np.concatenate([joint(x)[0] - proposal.logpdf(x) for x in blocks])
    return Problem(dim, density, float(logsumexp(logs) - np.log(len(logs))), sd=sd)


PROBLEMS = {
    "shells, d = 2": lambda: shells(2),
    "shells, d = 10": lambda: shells(10),
    "egg box": eggbox,
    "funnel, d = 6": lambda: funnel(6),
    "funnel, d = 20": lambda: funnel(20),
    "spike, d = 5": spike,
    "two modes, d = 20": lambda: two_modes(20),
    "two modes, d = 50": lambda: two_modes(50),
    "logistic regression, d = 8": regression,
}
