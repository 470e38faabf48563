"""Factors of rectangle probabilities, by the utilities over which they are integrals.

P(lower ≤ M θ + m + C z ≤ upper), z ~ N(0, I), is the integral over z of a Gaussian times one indicator of a linear
predictor for each bound. With z among the coordinates each site depends on one scalar; EP of these factors is EP of
the rectangles and of the model at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from ppl_backends.errors import ModelError
from ppl_backends.targets.factors.factorisation import Factors
from ppl_backends.targets.factors.families import Interval, Step
from ppl_backends.targets.factors.sites import Array, SiteFamily

FAR, TOLERANCE = 3.0, 1e-8

Rows = Callable[[Array], list[Array]]


def with_utilities(factors: Factors, rows: Rows) -> Factors:
    """Return factors of θ and of utilities, for rectangles in addition to the ``factors`` of θ.

    ``rows`` takes θ ``(k, d)`` to means ``(k, n, m)``, Cholesky factors ``(k, n, m, m)``, lower and upper bounds.
    """
    mean, cholesky, lower, upper = _affine(rows, factors.dim - factors.n_auxiliary)
    n, m = lower.shape
    design = sparse.hstack([
        sparse.csr_matrix(mean[1:].reshape(-1, n * m).T),
        sparse.csr_matrix((n * m, factors.n_auxiliary)),
        sparse.block_diag([np.tril(c) for c in cholesky]),
    ]).tocsr()  # fmt: skip
    offset, low, high = mean[0].ravel(), lower.ravel(), upper.ravel()
    below, above = np.isfinite(low), np.isfinite(high)
    designs: list[Any] = []
    offsets: list[Array] = []
    families: list[SiteFamily] = []
    for one, bound, sign in ((below & ~above, low, 1.0), (above & ~below, high, -1.0)):
        if one.any():
            designs.append(design[one])
            offsets.append(offset[one] - bound[one])
            families.append(Step(np.full(one.sum(), sign)))
    both = below & above
    if both.any():
        designs.append(design[both])
        offsets.append(offset[both])
        families.append(Interval(low[both], high[both]))
    return _joined(factors, n * m, designs, offsets, families)


def _affine(rows: Rows, dim: int) -> tuple[Array, Array, Array, Array]:
    """Return the mean at the origin and its slopes ``(1 + dim, n, m)``, and the parts that do not depend on θ."""
    rng = np.random.default_rng(0)
    other = FAR * rng.standard_normal((2, dim))
    mean, *rest = rows(np.concatenate([np.zeros((1, dim)), np.eye(dim), other]))
    if not all(np.array_equal(part, np.broadcast_to(part[:1], part.shape)) for part in rest):
        raise ModelError(
            "EP of rectangles needs bounds and covariances that do not depend on parameters; use fit_laplace or sample_smc"
        )
    mean = np.concatenate([mean[:1], mean[1:] - mean[0]])
    found = mean[0] + np.einsum("kd,dnm->knm", other, mean[1 : 1 + dim])
    if not np.allclose(mean[1 + dim :] + mean[0], found, rtol=TOLERANCE, atol=TOLERANCE):
        raise ModelError(
            "EP of rectangles needs means that are linear in the parameters; use fit_laplace or sample_smc"
        )
    cholesky, lower, upper = (part[0] for part in rest)
    return mean[: 1 + dim], cholesky, lower, upper


def _joined(
    factors: Factors, n_new: int, designs: list[Any], offsets: list[Array], families: list[SiteFamily]
) -> Factors:
    """Return factors in more coordinates, the new ones standard normal, with more sites."""
    held = factors.design if np.any(np.abs(factors.design).sum(axis=1) > 0) else None
    old = [] if held is None else [sparse.hstack([sparse.csr_matrix(held), sparse.csr_matrix((held.shape[0], n_new))])]
    precision = factors.prior.add_to(np.zeros((factors.dim, factors.dim)))
    joint = np.eye(factors.dim + n_new)
    joint[: factors.dim, : factors.dim] = precision
    observed = np.ones(sum(len(o) for o in offsets), dtype=bool)
    return Factors(
        [design.tocsr() for design in (*old, *designs)],
        np.concatenate([*([factors.offset] if old else []), *offsets]),
        [*([factors.sites] if old else []), *families],
        np.concatenate([np.broadcast_to(factors.prior.mean, (factors.dim,)), np.zeros(n_new)]),
        joint,
        log_constant=factors.log_constant,
        observed=np.concatenate([factors.observed, observed]) if old else observed,
        names=(*factors.names, *(f"utility[{i}]" for i in range(n_new))),
        n_auxiliary=factors.n_auxiliary + n_new,
    )
