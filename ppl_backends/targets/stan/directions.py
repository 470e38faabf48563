"""Unit vectors of a Stan program, whose values do not determine their length on the unconstrained space."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import chi

from ppl_backends.targets.protocol import Array, Index
from ppl_backends.targets.stan.library import CompiledModel
from ppl_backends.targets.stan.storage import arrays, base_point


def unit_vectors(model: CompiledModel) -> list[Index]:
    """Return the unconstrained coordinates of every unit vector.

    They are as many as the values, which do not change if the coordinates of each vector are multiplied by a number. No
    other type of Stan has both properties. Stan stores one vector of an array after the other, and its names of
    unconstrained coordinates, which are in another order, are used only for the variable.
    """
    found: list[Index] = []
    for named, variable in arrays(model):
        if named.shape != variable.columns.shape:
            continue
        vectors = np.sort(named, axis=None).reshape(-1, named.shape[-1])
        x = np.tile(base_point(model), (2, 1))
        x[1, vectors] *= 2.0 + np.arange(len(vectors))[:, None]
        one, other = model.parameter_values(x)[:, variable.columns]
        if np.allclose(one, other, rtol=1e-10, atol=0.0):
            found += list(vectors)
    return found


def with_lengths(x: Array, vectors: Sequence[Index]) -> Array:
    """Return points ``(n, dim)`` whose unit vectors have lengths of Stan's density, which are chi, the first the median.

    The numbers are those of one seed, so that the same points have the same lengths.
    """
    u = np.random.default_rng(0).random((len(x), len(vectors)))
    u[:1] = 0.5
    x = x.copy()
    for j, columns in enumerate(vectors):
        length = chi.ppf(u[:, j], len(columns)) / np.linalg.norm(x[:, columns], axis=1)
        x[:, columns] *= length[:, None]
    return x
