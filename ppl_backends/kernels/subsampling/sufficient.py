r"""Sufficient statistics of a model's rows, found from their log likelihood.

In an exponential family ℓᵢ(θ) = t(yᵢ)ᵀη(θ) + h(yᵢ) − A(θ), where yᵢ includes covariates. For K points θₖ, the matrix
of ℓᵢ(θₖ) − ℓᵢ(θ̂), centred over the rows, is T (η(θₖ) − η(θ̂))ᵀ with T the centred statistics. It has rank r, the
number of statistics, for any large K. Any r independent columns of it *are* sufficient statistics: log likelihoods of
a row at r values of θ. A pivoted QR of the matrix for a few thousand rows finds r and these values; one pass over the
data evaluates them. The points are spread like the posterior of a single observation, √N times the posterior's width,
so that a smooth likelihood outside of such a family is recognised.

If r = d (a normal, gamma, Poisson or Bernoulli sample), the scores at the mode are r independent combinations of the
statistics, and themselves sufficient. If r > d (a regression: y², xy and xx′), they are not: a subset with the right
scores still has the wrong curvature. A likelihood with more than d(d + 3)/2 statistics, the number for its own
second-order expansion, gains nothing and is refused.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import qr

from ppl_backends.errors import ModelError
from ppl_backends.kernels.subsampling.rows import BLOCK, Index, Rows
from ppl_backends.targets.protocol import Array

MOST = 100  # statistics
SPARE = 5  # points beyond the largest rank searched for
SPREAD = 0.5  # of the points, in standard deviations of the posterior of one observation
ROWS = 4000
TOLERANCE = 1e-8
HALVINGS = 20
ROUNDING = 1e-12  # relative differences of log likelihoods that are rounding errors


class Sufficient(NamedTuple):
    """Statistics of the rows.

    Attributes
    ----------
    statistics : ndarray (N, rank)
    rank : int
    residual : float
        The relative part of the rows' log likelihood at a fresh point that they do not explain: rounding error.
    """

    statistics: Array
    rank: int
    residual: float


def sufficient_statistics(rows: Rows, rng: np.random.Generator) -> Sufficient:
    """Return sufficient statistics of an exponential family with at most d(d + 3)/2 of them.

    Parameters
    ----------
    rows : Rows
    rng : Generator
        For the points of θ and the rows on which the family is recognised.

    Raises
    ------
    ModelError
        If the likelihood is not such a family, with the figure that shows it.

    Examples
    --------
    A logistic regression on two binary covariates has Σ y x and the counts of three of the four cells of covariates.

    >>> import numpy as np
    >>> from ppl_backends.kernels.subsampling.rows import SiteRows, QuadraticLogPrior
    >>> from ppl_backends.targets.factors import compiled
    >>> rng = np.random.default_rng(0)
    >>> design = np.c_[np.ones(500), rng.integers(0, 2, size=(500, 2))]
    >>> log_prior_and_potentials = QuadraticLogPrior(0.0, np.zeros(3), -np.eye(3))
    >>> rows = SiteRows(design, 0.0, rng.integers(0, 2, size=500), 1.0, compiled.LOGIT, log_prior_and_potentials)
    >>> sufficient_statistics(rows, rng).rank
    6
    """
    rows = rows.whole
    most = min(MOST, rows.dim * (rows.dim + 3) // 2)
    index = np.sort(rng.choice(rows.n, size=min(rows.n, ROWS), replace=False))
    points, values = _spread_points(rows, most + SPARE + 1, index, rng)
    values /= np.sqrt(np.square(values).sum(axis=0))
    _, triangle, order = qr(values[:, :-1], mode="economic", pivoting=True)
    sizes = np.abs(np.diag(triangle)) / abs(triangle[0, 0])
    rank = int((sizes > TOLERANCE).sum())
    if rank > most:
        raise ModelError(
            f"no sufficient statistics: the rows' log likelihood has more than {most} independent terms in a family of "
            f"{rows.dim} parameters (the {most + 1}th is {sizes[most]:.1g} of the largest); use summary='scores'"
        )
    if rank == len(index) - 1:
        raise ModelError(
            f"no sufficient statistics: {len(index)} rows are too few to recognise a family of {rows.dim} parameters; use "
            "summary='scores'"
        )
    chosen = [*order[:rank], len(points) - 1]
    found = np.empty((rows.n, rank + 1))
    for start in range(0, rows.n, BLOCK):
        block = np.arange(start, min(rows.n, start + BLOCK))
        for k, point in enumerate(chosen):
            found[block, k] = rows.differences(rows.expansion_point.mean, points[point], block)
    residual = _left(found[:, :-1], found[:, -1])
    if residual > 1e3 * TOLERANCE:
        raise ModelError(
            f"no sufficient statistics: {rank} of them leave {residual:.1g} of the rows' log likelihood unexplained; "
            "use summary='scores'"
        )
    return Sufficient(found[:, :-1], rank, residual)


def _spread_points(rows: Rows, n: int, index: Index, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return points of θ about the mode and centred log likelihoods there ``(m, n)``; nearer points if these overflow."""
    scale, z = SPREAD * np.sqrt(rows.n), rng.standard_normal((n, rows.dim))
    for _ in range(HALVINGS):
        points = rows.expansion_point.mean + scale * z @ rows.expansion_point.factor.T
        with np.errstate(all="ignore"):
            values = np.stack([rows.differences(rows.expansion_point.mean, x, index) for x in points], axis=1)
        if np.isfinite(values).all():
            if not (np.ptp(values, axis=0) > ROUNDING * np.abs(values).max(axis=0)).all():
                raise ModelError(
                    f"no sufficient statistics: the {len(index)} rows have equal log likelihoods; use summary='scores'"
                )
            return points, values - values.mean(axis=0)
        scale *= 0.5
    raise ModelError("no sufficient statistics: the log likelihood is not finite around the mode; use summary='scores'")


def _left(statistics: Array, values: Array) -> float:
    """Return the relative root mean square of the residuals of a regression of ``values`` on the statistics."""
    centred = statistics - statistics.mean(axis=0)
    centred /= np.maximum(centred.std(axis=0), 1e-300)
    wanted = values - values.mean()
    left = wanted - centred @ np.linalg.lstsq(centred, wanted, rcond=None)[0]
    return float(left.std() / max(wanted.std(), 1e-300))
