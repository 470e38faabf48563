"""Marginal densities on grids, one row per coordinate, the results of expectation propagation and improved Laplace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import cumulative_trapezoid, trapezoid

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array
from ppl_backends.options import shown
from ppl_backends.targets.names import coordinates_of


class Marginals(NamedTuple):
    """Marginal densities on a grid, with their moments.

    Attributes
    ----------
    names : tuple of str
    grid, density : ndarray (k, m)
        One row per coordinate; each row of ``density`` integrates to one over its grid.
    mean, sd, skewness : ndarray (k,)

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.approximations.ep import Factors, Logit
    >>> marginals = pb.fit_ep(Factors(np.eye(2), 0.0, Logit([0, 1]), 0.0, 1.0)).marginals()
    >>> marginals.mean.round(2), marginals.density.shape == marginals.grid.shape
    (array([-0.41,  0.41]), True)
    """

    names: tuple[str, ...]
    grid: Array
    density: Array
    mean: Array
    sd: Array
    skewness: Array

    @classmethod
    def of_densities(cls, names: Sequence[str], grid: Array, density: Array) -> Marginals:
        """Return the marginals of ``density`` ``(k, m)`` on ``grid`` ``(k, m)`` for ``names``, scaled to integrate to one."""
        density = density / trapezoid(density, grid, axis=1)[:, None]
        mean = trapezoid(density * grid, grid, axis=1)
        apart = grid - mean[:, None]
        second, third = (trapezoid(density * apart**p, grid, axis=1) for p in (2, 3))
        return cls(tuple(names), grid, density, mean, np.sqrt(second), third / second**1.5)

    def pdf(self, x: Any) -> Array:
        """Return densities ``(m, k)`` at points ``(m, k)`` or ``(m,)``, one column per coordinate."""
        return self._at(x, self.density, 0.0)

    def cdf(self, x: Any) -> Array:
        """Return distribution functions ``(m, k)`` at points ``(m, k)`` or ``(m,)``, one column per coordinate."""
        return self._at(x, self._cumulative(), 1.0)

    def quantile(self, probability: Any) -> Array:
        """Return the quantile of every coordinate ``(k,)``; for ``probability`` ``(m,)``, one row each ``(m, k)``."""
        wanted = np.asarray(probability, dtype=np.float64)
        if not np.all((wanted >= 0) & (wanted <= 1)):
            raise ModelError(f"quantile({shown(probability)}): probabilities are from 0 to 1")
        rows = zip(self._cumulative(), self.grid, strict=True)
        return np.stack([np.interp(probability, c, g) for c, g in rows], axis=-1)

    def _cumulative(self) -> Array:
        cumulative = cumulative_trapezoid(self.density, self.grid, axis=1, initial=0.0)
        return cumulative / cumulative[:, -1:]

    def _at(self, x: Any, values: Array, right: float) -> Array:
        """Return rows of values interpolated at points, one column per coordinate."""
        x = np.atleast_1d(np.asarray(x, dtype=np.float64))
        columns = x if x.ndim == 2 else np.repeat(x[:, None], len(self.grid), axis=1)
        rows = zip(columns.T, self.grid, values, strict=True)
        return np.stack([np.interp(c, g, v, left=0.0, right=right) for c, g, v in rows], axis=1)


def chosen(coordinates: Any, names: Sequence[str]) -> NDArray[np.integer]:
    """Return the indices of coordinates given by name, variable or number; all of them if none are given."""
    if coordinates is None:
        return np.arange(len(names))
    found: list[int] = []
    for c in np.atleast_1d(np.asarray(coordinates, dtype=object)):
        if isinstance(c, str):
            places = [names.index(c)] if c in names else coordinates_of(c, names)
        else:
            number = isinstance(c, int | np.integer) and not isinstance(c, bool)
            places = [int(c) % len(names)] if number and -len(names) <= c < len(names) else []
        if not places:
            some = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
            raise ModelError(f"{c!r} is not a coordinate; the {len(names)} coordinates are {some}")
        found += places
    return np.array(found)
