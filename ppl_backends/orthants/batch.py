"""Many small rectangles at once, with derivatives: one covariance, one row of bounds and means for each.

The variables stay in the order given and the points are fixed, so that the estimate is a smooth function of its arguments,
as gradients need. Tilts are found by Newton's method for all rows together; derivatives are those of
:mod:`ppl_backends.orthants.gradients`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from ppl_backends.orthants.intervals import Array, moments, quantile

__all__ = ["RowDerivatives", "log_rectangles"]

STEPS = 30
TOLERANCE = 1e-10


class RowDerivatives(NamedTuple):
    """Log probabilities ``(n,)`` and their derivatives by mean, lower, upper ``(n, dim)`` and factor ``(n, dim, dim)``."""

    log_p: Array
    mean: Array
    lower: Array
    upper: Array
    cholesky: Array


def log_rectangles(mean: Array, cholesky: Array, lower: Array, upper: Array, uniforms: Array) -> RowDerivatives:
    """Return log P(lower ≤ X ≤ upper) for every row, X ~ N(mean, C C'), and its derivatives.

    Parameters
    ----------
    mean, lower, upper : ndarray (n, dim)
    cholesky : ndarray (dim, dim)
        Lower triangular, its diagonal above zero.
    uniforms : ndarray (points, dim)
        The same for all rows.

    Examples
    --------
    >>> import numpy as np
    >>> u = (np.arange(4096)[:, None] + 0.5) / 4096
    >>> found = log_rectangles(np.zeros((2, 1)), np.eye(1), np.array([[0.0], [1.0]]), np.full((2, 1), np.inf), u)
    >>> found.log_p.round(3), found.lower.round(3).ravel()
    (array([-0.693, -1.841]), array([-0.798, -1.525]))
    """
    a, b = lower - mean, upper - mean
    diagonal = np.diag(cholesky)
    rows = cholesky / diagonal[:, None]
    low, high = a / diagonal, b / diagonal
    push = _pushes(rows, low, high)
    centre = push @ (rows - np.eye(len(rows)))

    n, dim = mean.shape
    z, log_w = np.empty((dim, n, len(uniforms))), np.zeros((n, len(uniforms)))
    for k in range(dim):
        offset = np.tensordot(rows[k, :k], z[:k], axes=1)
        shift = offset + centre[:, k, None]
        x, log_mass = quantile(
            np.broadcast_to(uniforms[:, k], log_w.shape), low[:, k, None] - shift, high[:, k, None] - shift
        )
        z[k] = x + centre[:, k, None]
        log_w += log_mass + (0.5 * centre[:, k, None] ** 2 - push[:, k, None] * offset)
    total = logsumexp(log_w, axis=1)
    with np.errstate(invalid="ignore"):
        weights = np.where(np.isfinite(total[:, None]), np.exp(log_w - total[:, None]), 0.0)

    first = np.einsum("knm,nm->nk", z, weights)
    second = np.einsum("knm,nm,jnm->nkj", z, weights, z, optimize=True)
    inverse = np.linalg.inv(cholesky).T
    by_mean = first @ inverse.T
    by_cov = 0.5 * inverse @ (second - np.eye(dim)) @ inverse.T
    excess = np.einsum("ij,njk,ik->ni", cholesky, second, inverse) - 1
    both = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore", divide="ignore"):
        at_upper = np.where(both, (a * by_mean - excess) / np.where(both, b - a, 1.0), 0.0)
    at_upper = np.where(np.isinf(a) & np.isfinite(b), -by_mean, at_upper)
    at_lower = np.where(np.isfinite(a), by_mean + at_upper, 0.0)
    return RowDerivatives(total - np.log(len(uniforms)), by_mean, -at_lower, at_upper, np.tril(2 * by_cov @ cholesky))


def _pushes(rows: Array, low: Array, high: Array) -> Array:
    """Return P at the saddle points, for all rows of bounds; where one is not found estimates are unbiased all the same."""
    beyond = rows @ rows.T - np.eye(len(rows))
    s = np.zeros(low.shape)
    at = moments(low - s, high - s)
    residual = s - at.mean @ beyond
    for _ in range(STEPS):
        size = (residual**2).sum(axis=1)
        if (size <= TOLERANCE**2).all():
            break
        jacobian = np.eye(len(rows)) + beyond * (1 - at.variance)[:, None, :]
        step = np.linalg.solve(jacobian, residual[:, :, None])[:, :, 0]
        length = np.ones(len(s))
        for _ in range(10):
            new = s - length[:, None] * step
            at = moments(low - new, high - new)
            residual = new - at.mean @ beyond
            worse = (residual**2).sum(axis=1) > size
            if not worse.any():
                break
            length[worse] /= 2
        s = new
    return at.mean
