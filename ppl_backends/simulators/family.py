"""Exponential families p(y | θ) = exp(θᵀs(y)) / Z(θ) over finite sets: the interface that methods use."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array


class Enumeration:
    """The distribution of the statistics over a small set of data sets: their distinct values, and their frequencies."""

    def __init__(self, statistics: Array) -> None:
        _, index, counts = np.unique(statistics.round(9), axis=0, return_index=True, return_counts=True)
        self.values, self.log_counts = statistics[index], np.log(counts)

    def log_normalizer(self, theta: Array) -> float:
        """Return log Z(θ)."""
        return float(np.logaddexp.reduce(self.values @ theta + self.log_counts))

    def draw(self, theta: Array, n: int, rng: np.random.Generator) -> Array:
        """Return statistics ``(n, n_parameters)`` of ``n`` exact draws."""
        energy = self.values @ theta + self.log_counts
        cumulated = np.cumsum(np.exp(energy - energy.max()))
        return self.values[np.searchsorted(cumulated, rng.random(n) * cumulated[-1], side="right")]


class ExponentialFamily:
    """Base of the ready-made simulators.

    Inference depends on a data set only through the statistics s(y), so methods use only these. Subclasses define
    :meth:`_count`, :meth:`simulate` and :meth:`simulate_statistics`.

    Attributes
    ----------
    statistic_names : tuple of str
        One per parameter.
    shape : tuple of int
        Shape of one data set.
    exact : bool
        Whether draws follow p(· | θ) exactly. The end of a Markov chain of finite length is not exact.

    Examples
    --------
    >>> from ppl_backends.simulators import ExponentialFamily, Ising
    >>> isinstance(Ising((4, 4)), ExponentialFamily), Ising((4, 4)).statistic_names
    (True, ('interaction',))
    """

    statistic_names: tuple[str, ...]
    shape: tuple[int, ...]
    exact: bool = False

    @property
    def n_parameters(self) -> int:
        """Return the number of parameters, which equals that of the statistics."""
        return len(self.statistic_names)

    def statistics(self, data: Any) -> Array:
        """Return the statistics ``(n_parameters,)`` of ``data``, or ``(n, n_parameters)`` of ``n`` data sets."""
        data = np.asarray(data)
        if data.shape[data.ndim - len(self.shape) :] != self.shape or data.ndim > len(self.shape) + 1:
            raise ModelError(f"data have shape {data.shape}; expected {self.shape}, or (n, *{self.shape})")
        self._check(data)
        counts = self._count(data.reshape(-1, *self.shape))
        return counts if data.ndim > len(self.shape) else counts[0]

    def simulate(self, theta: Any, n: int, rng: np.random.Generator) -> NDArray[np.int8]:
        """Return ``n`` data sets ``(n, *shape)`` from p(· | θ)."""
        raise NotImplementedError

    def simulate_statistics(self, theta: Any, n: int, rng: np.random.Generator) -> Array:
        """Return statistics ``(n, n_parameters)`` of ``n`` data sets from p(· | θ)."""
        raise NotImplementedError

    def log_unnormalized(self, theta: Any, statistics: Any) -> Array:
        """Return θᵀs: the log density without log Z(θ), for every row of ``statistics``."""
        return np.asarray(statistics, dtype=np.float64) @ self._parameters(theta)

    def _enumerate(self) -> Array:
        """Return statistics of all data sets, for small sets."""
        raise NotImplementedError

    @cached_property
    def _enumeration(self) -> Enumeration:
        return Enumeration(self._enumerate())

    def _check(self, data: NDArray) -> None:
        """Raise ModelError for data that are not of this family."""

    def _count(self, data: NDArray) -> Array:
        """Return statistics of checked data sets ``(n, *shape)``."""
        raise NotImplementedError

    def _parameters(self, theta: Any) -> Array:
        theta = np.ascontiguousarray(theta, dtype=np.float64).reshape(-1)
        if theta.shape != (self.n_parameters,):
            names = ", ".join(self.statistic_names)
            raise ModelError(f"theta has {theta.size} elements; expected {self.n_parameters} ({names})")
        return theta
