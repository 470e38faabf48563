"""Calls of a simulator: many data sets at once if its batched form is valid, else one after the other.

A simulator that draws one noise vector and adds it to every row of a batch returns arrays of the right shape, but its
data sets are not independent. A batched form is used only if repeated rows of parameters give independent data, and
data with the distribution that calls of a single row give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import ks_2samp, rankdata

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array
from ppl_backends.simulators.abc.discrepancy import in_one_line

__all__ = ["Simulator", "measured", "with_valid_batches"]

Values = Mapping[str, NDArray]

CHECKS = 48  # calls in the test of a batched form
FALSE_ALARM = 1e-4  # rate at which a valid one is rejected
SHOWN_VALUES = 6
SAME = 8  # calls that give the same data, from which on their simulator is taken to ignore its generator


@dataclass(frozen=True)
class Simulator:
    """One way to draw data sets.

    Attributes
    ----------
    name : str
        Name of the data in messages and results.
    shape : tuple of int
        Shape of one data set.
    batched : callable
        ``(values with a leading axis, rng) -> (n, *shape)``.
    single : callable
        ``(values, rng) -> (*shape)``.
    at_once : bool
        Whether to use ``batched``.
    """

    name: str
    shape: tuple[int, ...]
    batched: Callable[[Values, np.random.Generator], Any]
    single: Callable[[Values, np.random.Generator], Any]
    at_once: bool = False

    def __call__(self, values: Values, rng: np.random.Generator) -> NDArray:
        """Return data sets ``(n, *shape)``, one for each row of the values.

        Raises
        ------
        ModelError
            If the simulator fails; the message names the parameters.
        """
        n = len(next(iter(values.values())))
        if self.at_once:
            try:
                return self._checked(self._called(self.batched, values, rng), (n, *self.shape), values)
            except ModelError:
                self._one_by_one(values, rng)  # whose error names one row
                raise
        return self._one_by_one(values, rng)

    def _one_by_one(self, values: Values, rng: np.random.Generator) -> NDArray:
        n = len(next(iter(values.values())))
        data = np.empty((n, *self.shape))
        for i in range(n):
            row = {name: value[i] for name, value in values.items()}
            data[i] = self._checked(self._called(self.single, row, rng), self.shape, row)
        return data

    def _called(self, function: Callable, values: Values, rng: np.random.Generator) -> Any:
        try:
            return function(values, rng)
        except Exception as error:
            raise ModelError(f"simulator '{self.name}' failed at {_shown(values)}: {in_one_line(error)}") from error

    def _checked(self, drawn: Any, shape: tuple[int, ...], values: Values) -> NDArray:
        data = np.asarray(drawn)
        if data.shape != shape or data.dtype.kind not in "biuf":
            raise ModelError(
                f"simulator '{self.name}' returned shape {data.shape} of {data.dtype} at {_shown(values)}: expected numbers "
                f"of shape {shape}, that of the observed data"
            )
        return data


def _shown(values: Values) -> str:
    """Return parameters in the form that a message shows; ranges if there are many."""
    parts = []
    for name, value in values.items():
        flat = np.ravel(value)
        if flat.size == 1:
            parts.append(f"{name}={flat[0]:.6g}")
        elif flat.size <= SHOWN_VALUES:
            parts.append(f"{name}=[{', '.join(f'{v:.6g}' for v in flat)}]")
        else:
            parts.append(f"{name} from {flat.min():.6g} to {flat.max():.6g}")
    return ", ".join(parts)


Measured = TypeVar("Measured")


def measured(function: Callable[[NDArray], Measured], data: NDArray, name: str, values: Values) -> Measured:
    """Return the values of a function at data sets ``(n, ...)`` drawn at rows of parameters.

    Raises
    ------
    ModelError
        If it fails; the message names the parameters of one data set if a single one fails.
    """
    try:
        return function(data)
    except Exception as error:
        for i in range(len(data) if len(data) > 1 else 0):
            measured(function, data[i : i + 1], name, {key: value[i : i + 1] for key, value in values.items()})
        where = f"data '{name}' drawn at {_shown(values)}"
        raise ModelError(f"summary or distance failed on {where}: {in_one_line(error)}") from error


def with_valid_batches(
    simulator: Simulator, values: Values, distances: Callable[[NDArray], Array], rng: np.random.Generator
) -> tuple[Simulator, str]:
    """Return the simulator with its batched form if that is valid, and the reason if it is not.

    Parameters
    ----------
    simulator : Simulator
    values : mapping
        Two different rows of parameters.
    distances : callable
        Function from data sets ``(n, *shape)`` to distances ``(n,)``.
    rng : numpy.random.Generator

    Raises
    ------
    ModelError
        If the simulator makes a generator of its own with a fixed seed.

    Notes
    -----
    Batches hold the rows (a, b, a, b): over calls, the two data sets at a must be independent of each other, and data
    at a and at b must have the distribution of single calls.
    """
    rows = {name: np.asarray(value)[[0, 1, 0, 1]] for name, value in values.items()}
    single = {name: np.asarray(value)[:2] for name, value in values.items()}
    together, alone = replace(simulator, at_once=True), replace(simulator, at_once=False)
    try:
        batches = [together(rows, rng)]
    except ModelError as error:
        return alone, str(error)
    batches += [together(rows, rng) for _ in range(CHECKS - 1)]
    _check_noise(batches, simulator.name)
    singles = [alone(single, rng) for _ in range(CHECKS)]
    level = FALSE_ALARM / 8
    for feature in (distances, _mean_value):
        many, few = (
            _finite(np.array([measured(feature, batch, simulator.name, at) for batch in calls]))
            for calls, at in ((batches, rows), (singles, single))
        )
        for row in (0, 1):
            if _correlated(many[:, row], many[:, row + 2], level):
                return alone, "data of repeated rows of parameters are not independent"
            both = np.concatenate([many[:, row], many[:, row + 2]])  # the tests found no dependence
            if ks_2samp(both, few[:, row]).pvalue < level:
                return alone, "data of a batch have another distribution than data of single calls"
    return together, ""


def _check_noise(batches: list[NDArray], name: str) -> None:
    """Check that noise differs between calls if it differs between the rows of a call, which hold (a, b, a, b)."""
    first = batches[0]
    if np.array_equal(first[0], first[2], equal_nan=True):
        return
    if all(np.array_equal(first, batch, equal_nan=True) for batch in batches):
        raise ModelError(
            f"simulator '{name}' returns the same data in {len(batches)} calls, although data sets of one call differ at the "
            "same parameters: it has a fixed seed of its own; draw all random numbers from the rng it is given"
        )


def repeats(simulator: Simulator, values: Values, rng: np.random.Generator) -> bool:
    """Return whether two calls with generators of one seed give the same data."""
    seed = int(rng.integers(2**63))
    first, second = (simulator(values, np.random.default_rng(seed)) for _ in range(2))
    return np.array_equal(first, second, equal_nan=True)


def ignores_generator(simulator: Simulator, values: Values, rng: np.random.Generator) -> bool:
    """Return whether data of a row are the same in several calls with different generators, and differ between two rows."""
    first = simulator(values, rng)
    if all(np.array_equal(first[0], row, equal_nan=True) for row in first[1:]):
        return False
    return all(np.array_equal(first, simulator(values, rng), equal_nan=True) for _ in range(SAME - 1))


def _mean_value(data: NDArray) -> Array:
    return data.reshape(len(data), -1).mean(axis=1)


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, np.finfo(float).max)


def _correlated(a: Array, b: Array, level: float) -> bool:
    """Return whether the ranks of two series are correlated at that level; False for constant ones."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return False
    correlation = np.corrcoef(rankdata(a), rankdata(b))[0, 1]
    return bool(np.arctanh(np.clip(abs(correlation), 0, 1 - 1e-12)) * np.sqrt(len(a) - 3) > -ndtri(level / 2))
