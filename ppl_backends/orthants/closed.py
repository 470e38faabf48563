"""Rectangles whose probability has a closed form: one dimension, independent variables, two dimensions."""

from __future__ import annotations

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy.special import logsumexp

from ppl_backends.orthants.intervals import LOG_ROOT_2PI, Array, log_interval

DROP = 45.0  # drop of the log integrand from the mode to where it is cut
NODES = 20
PANELS = 24


def independent(variance: Array, lower: Array, upper: Array) -> float:
    """Return log P of independent normals."""
    scale = np.sqrt(variance)
    return float(log_interval(lower / scale, upper / scale).sum())


def bivariate(cov: Array, lower: Array, upper: Array) -> float:
    """Return log P of two normals that are not fully correlated: ∫ φ(x) P(second | x) dx over the first's interval.

    The integrand is log-concave. Panels of a Gauss-Legendre rule cover the range in which it is within 45 nats of its
    maximum, and are narrower where the second's bounds cut.

    Examples
    --------
    >>> import numpy as np
    >>> p = np.exp(bivariate(np.array([[1.0, 0.5], [0.5, 1.0]]), np.zeros(2), np.full(2, np.inf)))
    >>> bool(abs(p - 1 / 3) < 1e-13)
    True
    """
    scale = np.sqrt(np.diag(cov))
    rho = cov[0, 1] / (scale[0] * scale[1])
    left = np.sqrt((1 - rho) * (1 + rho))
    a, b = lower / scale, upper / scale

    def log_integrand(x: Array) -> Array:
        return -0.5 * x**2 - LOG_ROOT_2PI + log_interval((a[1] - rho * x) / left, (b[1] - rho * x) / left)

    cuts = np.array([bound / rho for bound in (a[1], b[1]) if np.isfinite(bound) and rho != 0])
    reach = 40.0 + np.abs(cuts[np.abs(cuts) < 1e8]).max(initial=0.0)
    low, high = _support(log_integrand, max(a[0], min(-reach, b[0] - reach)), min(b[0], max(reach, a[0] + reach)))
    width = left / abs(rho) if rho != 0 else 1.0
    edges = np.concatenate([np.linspace(low, high, PANELS + 1), *(cut + width * np.arange(-9, 10.0) for cut in cuts)])
    edges = np.unique(edges[(edges >= low) & (edges <= high)])
    nodes, weights = leggauss(NODES)
    half = 0.5 * np.diff(edges)[:, None]
    x = 0.5 * (edges[1:] + edges[:-1])[:, None] + half * nodes
    with np.errstate(divide="ignore"):
        return float(logsumexp(log_integrand(x.ravel()) + np.log(half * weights).ravel()))


def _support(log_density, low: float, high: float) -> tuple[float, float]:
    """Return the points on both sides at which a log-concave function on [low, high] has dropped by 45 from its mode."""
    left, right = low, high
    for _ in range(14):
        grid = np.linspace(left, right, 33)
        best = int(np.argmax(log_density(grid)))
        left, right = grid[max(best - 1, 0)], grid[min(best + 1, 32)]
    mode = 0.5 * (left + right)
    floor = log_density(np.array([mode]))[0] - DROP
    ends = []
    for end in (low, high):
        inside, outside = mode, end
        if log_density(np.array([end]))[0] < floor:
            for _ in range(60):
                middle = 0.5 * (inside + outside)
                below = log_density(np.array([middle]))[0] < floor
                inside, outside = (inside, middle) if below else (middle, outside)
        ends.append(outside)
    return ends[0], ends[1]
