"""Unit vectors of a Stan program, whose values do not determine their length on the unconstrained space."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import chi

from ppl_backends.targets.protocol import Array, Index
from ppl_backends.targets.stan.library import CompiledModel
from ppl_backends.targets.stan.variables import parse_names


def unit_vectors(model: CompiledModel) -> list[Index]:
    """Return the unconstrained coordinates of every unit vector.

    They are as many as the values, which do not change if the coordinates of each vector are multiplied by a number. No
    other type of Stan has both properties. Stan stores one vector of an array after the other, and its names of
    unconstrained coordinates, which are in another order, are used only for the variable.
    """
    constrained = {variable.name: variable.columns for variable in model.parameters if variable.imaginary is None}
    found: list[Index] = []
    for name, columns, imaginary in parse_names(model.names):
        own = constrained.get(name)
        if own is None or own.shape != columns.shape or not columns.ndim or imaginary is not None:
            continue
        vectors = np.sort(columns, axis=None).reshape(-1, columns.shape[-1])
        x = np.repeat(np.random.default_rng(0).uniform(0.5, 1.5, (1, model.dim)), 2, axis=0)
        x[1, vectors] *= 2.0 + np.arange(len(vectors))[:, None]
        values, _ = model.constrain(x, np.zeros(2, dtype=np.uint32), False, 1)
        if np.allclose(values[0, own], values[1, own], rtol=1e-10, atol=0.0):
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
