"""Checks a split of a Stan program into prior and likelihood by evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.numerics.arrays import Array

__all__ = ["changed_data", "check_split"]

LogDensity = Callable[[Array], Array]


def changed_data(data: Mapping[str, Any], likelihood_data: Sequence[str]) -> dict[str, Any] | None:
    """Data whose observed values differ, for :func:`check_split`; None where nothing can be changed safely.

    The second half of every observed container is replaced by its first half, or if that changes nothing by its first
    row, so that bounds and types that hold for all rows still hold.

    Examples
    --------
    >>> from ppl_backends.targets.stan.split.check import changed_data
    >>> changed_data({"N": 4, "y": [1, 2, 3, 4]}, ["y"])["y"].tolist()
    [1, 2, 1, 2]
    """
    changed = dict(data)
    for name in likelihood_data:
        values = np.asarray(data[name])
        if values.ndim == 0 or len(values) < 2:
            continue
        half = len(values) // 2
        halves = np.concatenate([values[: len(values) - half], values[:half]])
        if np.array_equal(halves, values):
            halves = np.repeat(values[:1], len(values), axis=0)
        if not np.array_equal(halves, values):
            changed[name] = halves
    return changed if any(changed[name] is not data[name] for name in likelihood_data) else None


def check_split(
    evaluate_full: LogDensity,
    evaluate_prior: LogDensity,
    evaluate_full_on_changed_data: LogDensity | None,
    points: Array,
    *,
    evaluate_prior_on_changed_data: LogDensity | None = None,
    evaluate_log_lik: LogDensity | None = None,
    label: str = "Stan program",
) -> str:
    """Check a split by evaluation at random points.

    Parameters
    ----------
    evaluate_full, evaluate_prior : callable
        Points ``(n, dim)`` → log densities ``(n,)``, constants kept.
    evaluate_full_on_changed_data, evaluate_prior_on_changed_data : callable or None
        The same with the observed values changed (:func:`changed_data`).
    points : ndarray (n, dim)
    evaluate_log_lik : callable or None
        The sum of the generated quantity ``log_lik``, where the program has it.
    label : str
        What messages call the program.

    Returns
    -------
    str
        What was found, for the report.

    Raises
    ------
    ModelError
        If the prior is undefined where the joint density is not, or depends on the observed values, or is all there is,
        or the likelihood does not depend on them.
    """
    full, prior = np.asarray(evaluate_full(points)), np.asarray(evaluate_prior(points))
    usable = np.isfinite(full)
    if not usable.any():
        return "not checked: the joint density is zero at every point tried"
    if not np.isfinite(prior[usable]).all():
        raise ModelError(f"{label}: the prior part of the density is zero or undefined where the joint density is not")
    scale = 1e-9 * (1.0 + np.abs(full[usable]) + np.abs(prior[usable]))
    found = [f"checked at {usable.sum()} points"]
    if evaluate_prior_on_changed_data is not None:
        moved = np.abs(np.asarray(evaluate_prior_on_changed_data(points))[usable] - prior[usable])
        if not (moved <= scale).all():
            raise ModelError(f"{label}: the prior part changes with the observed data (by {np.nanmax(moved):.3g})")
        found.append("the prior does not depend on the observed values")
    if evaluate_full_on_changed_data is not None:
        changed = np.asarray(evaluate_full_on_changed_data(points))[usable]
        if (np.abs(changed - full[usable]) <= scale).all():
            raise ModelError(f"{label}: the joint density does not depend on the data taken for observed")
        if (np.abs(full - prior)[usable] <= scale).all():
            raise ModelError(f"{label}: the part taken for the prior is the whole density")
        found.append("the likelihood does")
    if evaluate_log_lik is not None:
        gap = np.asarray(evaluate_log_lik(points))[usable] - (full - prior)[usable]
        largest = float(np.abs(gap).max())
        same = bool((np.abs(gap) <= 10 * scale).all())
        found.append("it equals sum(log_lik)" if same else f"it differs from sum(log_lik) by up to {largest:.3g}")
    return "; ".join(found)
