"""Posterior means that draws do not determine, because a tail is so heavy that the mean may not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ppl_backends.numerics.arrays import Array
from ppl_backends.numerics.weights import FEWEST_FOR_PARETO_K, LARGEST_PARETO_K, error_of_pareto_k, pareto_k

_NEAR = 20.0  # median absolute deviations from the median within which no tail is heavy
_ELEMENTS = 10_000_000  # of an array whose columns are judged at once
_NAMED = 3  # elements that a message names


FarTail = Callable[[str, int, Array], float]
"""Pareto k of a tail with few draws, of element number i of a variable with draws ``(n,)``; 0 if it is light."""


def unreliable_means(values: Mapping[str, Array], far_tail: FarTail | None = None) -> str:
    """Return which variables ``(draws, *shape)`` have unreliable means, with Pareto k of their tails; empty if none has.

    The mean of draws is unreliable at any practical number of them if Pareto k of a tail is above 0.7, and there is no
    mean above 1 (Vehtari et al. 2024). A tail counts if k is above 0.7 by half its standard error: of many
    lighter tails some have an estimate above 0.7 by chance. A ``far_tail`` is asked if the draws do not decide.
    """
    found = sorted(
        ((k, name) for variable, value in values.items() for name, k in _heavy(variable, value, far_tail)), reverse=True
    )
    if not found:
        return ""
    named = ", ".join(f"`{name}`" for _, name in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return (
        f"a tail of {named}{more} has Pareto k {found[0][0]:.2f}, above {LARGEST_PARETO_K}, so means and "
        "standard deviations are unreliable and may not exist: use medians and quantiles"
    )


def _heavy(name: str, value: Array, far_tail: FarTail | None) -> Iterator[tuple[str, float]]:
    """Yield the names of elements ``(draws, *shape)`` with a heavy tail, and its Pareto k."""
    if value.dtype.kind != "f" or len(value) < FEWEST_FOR_PARETO_K:
        return
    shape, columns = value.shape[1:], value.reshape(len(value), -1)
    width = max(1, _ELEMENTS // len(value))
    for first in range(0, columns.shape[1], width):
        for j, certain in _far_columns(columns[:, first : first + width]):
            k = certain
            if not k and far_tail is not None:
                k = far_tail(name, first + j, columns[:, first + j])
            if k:
                index = ", ".join(map(str, np.unravel_index(first + j, shape)))
                yield (f"{name}[{index}]" if shape else name), k


def _far_columns(x: Array) -> Iterator[tuple[int, float]]:
    """Yield the columns with draws far from the median, and Pareto k of the draws if it is certain to be high, else 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        deviation = x - np.median(x, axis=0)
        size = np.abs(deviation)
        far = np.flatnonzero(size.max(axis=0) > _NEAR * np.median(size, axis=0))
        above, below = np.log(deviation[:, far].clip(min=0.0)), np.log((-deviation[:, far]).clip(min=0.0))
    for column, j in enumerate(far):
        yield int(j), max(_certain_k(above[:, column]), _certain_k(below[:, column]))


def _certain_k(logs: Array) -> float:
    """Return Pareto k of logarithms of deviations if it is above the limit by half its standard error, else 0."""
    n = int(np.isfinite(logs).sum())
    if n < FEWEST_FOR_PARETO_K:
        return 0.0
    k = pareto_k(logs)
    return k if k - 0.5 * error_of_pareto_k(k, n) > LARGEST_PARETO_K else 0.0
