r"""Normals of a filter from a shifted lattice: a few numbers per row instead of one per particle.

The children of a row are counted in the order of their sorted parents. Child i chooses its parent at (i + U)/N, as in
systematic resampling, and uses the normals Φ⁻¹({iα_k + V_k}), k = 1 … d, with uniform shifts U and V. The points (i/N,
{iα}) fill the unit cube evenly for any N: α is the golden ratio's for d = 1, and that of its generalisations for more.
A single child has independent uniform numbers, so the likelihood estimate is unbiased, as with independent normals. It
varies less, because the points fill the space of parent and normal evenly (Gerber & Chopin 2015).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.jit import jit
from ppl_backends.numerics.normal import normal_quantile


def lattice_normals(shifts: Array, n_x: int) -> Array:
    """Return the normals ``(n_rows, n_x d + 1)`` of rows with ``shifts`` ``(n_rows, d + 1)``, themselves standard normals.

    The last of every row is the offset of systematic resampling.

    Examples
    --------
    >>> import numpy as np
    >>> normals = lattice_normals(np.random.default_rng(0).standard_normal((1, 2)), 16)[0]
    >>> bool(len(normals) == 17 and abs(normals[:-1].mean()) < 0.1)
    True
    """
    n_normals = shifts.shape[1] - 1
    normals = np.empty((len(shifts), n_x * n_normals + 1))
    _fill(ndtr(shifts[:, :-1]), _steps(n_normals), normals)
    normals[:, -1] = shifts[:, -1]
    return normals


@lru_cache(maxsize=16)
def _steps(n_normals: int) -> Array:
    """Return α: powers of 1/g, where g solves g^(d+1) = g + 1."""
    g = 2.0
    for _ in range(64):
        g = (1.0 + g) ** (1.0 / (n_normals + 1))
    return np.asarray(g ** -np.arange(1.0, n_normals + 1))


@jit
def _fill(v, alpha, normals):
    n_normals = len(alpha)
    for row in range(len(v)):
        for k in range(n_normals):
            u = v[row, k]
            for i in range((normals.shape[1] - 1) // n_normals):
                normals[row, i * n_normals + k] = normal_quantile(min(max(u, 1e-16), 1.0 - 1e-16))
                u += alpha[k]
                u -= u >= 1.0
