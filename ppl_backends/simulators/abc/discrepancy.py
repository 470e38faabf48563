"""Discrepancies between simulated and observed data: summaries of data sets, and distances between summaries."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array

__all__ = ["DISTANCES", "SUMMARIES", "Discrepancy", "by_rows", "in_one_line"]

Function = Callable[..., Any]

SUMMARIES: dict[str, Callable[[NDArray], NDArray]] = {
    "identity": lambda data: data,
    "sort": lambda data: np.sort(data, axis=-1) if data.ndim > 1 else data,
    "mean": lambda data: data.reshape(len(data), -1).mean(axis=1),
    "median": lambda data: np.median(data.reshape(len(data), -1), axis=1),
}
"""Summaries of data sets ``(n, ...)``, by PyMC's names."""

DISTANCES = {"euclidean": 2, "manhattan": 1}
"""Norms by name."""


class Discrepancy:
    """Summaries of one kind of data, and their distances to those of the observed data.

    Parameters
    ----------
    observed : array
    summary : callable, optional
        Function of data sets ``(n, ...)`` that returns summaries ``(n, ...)``.
    distance : {"euclidean", "manhattan"} or callable
        ``(observed summaries, simulated summaries (n, ...)) -> (n,)``.
    scale : float or array
        Divisor of the summaries.
    signed : bool
        Whether the distance may be negative, as minus the log of a kernel.

    Attributes
    ----------
    norm : {1, 2, None}
        None for a distance that is a function.
    label : str
        Name of distance and summary.
    """

    def __init__(
        self,
        observed: Any,
        summary: Function | None,
        distance: str | Function,
        scale: Any = 1.0,
        signed: bool = False,
    ) -> None:
        self.label = f"{_label(distance)} of {_label(summary or 'identity')}"
        self._summary = SUMMARIES["identity"] if summary is None else summary
        self._distance, self._signed = distance, signed
        self.norm = DISTANCES[distance] if isinstance(distance, str) else None
        try:
            self._observed = np.asarray(self._summary(np.asarray(observed)[None]), dtype=np.float64)
        except Exception as error:
            raise ModelError(f"the summary failed on the observed data: {in_one_line(error)}") from error
        self.scale = np.broadcast_to(np.asarray(scale, dtype=np.float64), self._observed.shape[1:])
        if not np.isfinite(self._observed).all():
            raise ModelError("the summaries of the observed data are not finite")

    @property
    def observed_summaries(self) -> Array:
        """Return the summaries ``(k,)`` of the observed data."""
        return (self._observed / self.scale).ravel()

    def summaries(self, data: NDArray) -> Array:
        """Return the scaled summaries ``(n, k)`` of data sets ``(n, ...)``."""
        return (np.asarray(self._summary(data), dtype=np.float64) / self.scale).reshape(len(data), -1)

    def distances(self, summaries: Array) -> Array:
        """Return the distances ``(n,)`` of summaries ``(n, k)``; infinite for values that are not numbers."""
        if callable(self._distance):
            shaped = (summaries * self.scale.ravel()).reshape(len(summaries), *self._observed.shape[1:])
            found = np.asarray(self._distance(self._observed[0], shaped), dtype=np.float64)
            if found.size != len(summaries):
                raise ValueError(f"a distance is one number per data set, not an array of shape {found.shape[1:]}")
            if not self._signed and (found < 0).any():
                raise ValueError(f"a distance is at least 0, and this one is {np.nanmin(found):.3g}")
            return found.reshape(len(summaries))
        with np.errstate(invalid="ignore", over="ignore"):
            apart = summaries - self.observed_summaries
            return np.abs(apart).sum(axis=1) if self.norm == 1 else np.sqrt(np.einsum("nk,nk->n", apart, apart))

    def measure(self, data: NDArray) -> tuple[Array, Array]:
        """Return the summaries ``(n, k)`` and the distances ``(n,)`` of data sets."""
        summaries = self.summaries(data)
        return summaries, self.distances(summaries)

    def __call__(self, data: NDArray) -> Array:
        """Return the distances ``(n,)`` of data sets."""
        return self.measure(data)[1]


def in_one_line(error: Exception) -> str:
    """Return the type and the message of an error."""
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"


def _label(part: Any) -> str:
    """Return the name of a summary or a distance with a digest of its code, because two functions may have one name."""
    known = {function: name for name, function in SUMMARIES.items()}
    if isinstance(part, str) or part in known:
        return str(known.get(part, part))
    inner = getattr(part, "function", None) or getattr(part, "log_kernel", None) or part
    inner = inspect.unwrap(inner)
    if not inspect.isfunction(inner):
        return type(inner).__name__
    code = inner.__code__
    digest = zlib.crc32(
        code.co_code + repr((code.co_names, [c for c in code.co_consts if not inspect.iscode(c)])).encode()
    )
    return f"{inner.__qualname__} ({digest:08x})"


def by_rows(function: Function, fixed: tuple[Any, ...], examples: NDArray) -> Function:
    """Return a function of many rows: the function itself if a batch gives the same values as single rows.

    Parameters
    ----------
    function : callable
        ``(*fixed, row) -> value``, or the same of a batch of rows.
    fixed : tuple
        Arguments before the rows.
    examples : ndarray (n, ...)
        At least two different rows.
    """

    def one_by_one(*arguments: Any) -> NDArray:
        *first, rows = arguments
        return np.stack([np.asarray(function(*first, row), dtype=np.float64) for row in rows])

    if inspect.isfunction(function):
        one_by_one.__wrapped__ = function  # type: ignore[attr-defined]
    try:
        expected = one_by_one(*fixed, examples)
        together = np.asarray(function(*fixed, examples), dtype=np.float64)
    except Exception:
        return one_by_one
    same = together.shape == expected.shape and np.allclose(together, expected, rtol=1e-10, equal_nan=True)
    return function if same and len(np.unique(expected, axis=0)) > 1 else one_by_one
