"""Factors that a density of states lacks: guided filters need none to be lacking, and particle Gibbs none that depends
on the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.state_space.densities import (
    DRAWS,
    LARGEST_Z,
    Row,
    columns_of,
    is_plain,
    is_singular,
    repeated,
)
from ppl_backends.targets.state_space.model import StateSpaceModel
from ppl_backends.targets.state_space.step import each_of_two, parameters_of, states, without_missing

OFTEN = 20  # number of draws of a value that counts
IN_BOX = 0.3  # share of independent draws in the box on which a density is integrated
CENTRAL = 0.8  # share of a proposal's draws between the ends of each side of a box


class _Integral(NamedTuple):
    """Estimate of the integral of a density as it is written, with its error."""

    value: float
    error: float


def check_proposal(
    model: StateSpaceModel, values: Mapping[str, Array], rows: Mapping[str, Array], times: list[int]
) -> None:
    """Check in these rows, at the first two of the ``values``, that weights f / q turn the proposal's draws into states.

    Raises
    ------
    ModelError
        If their mean over the draws in a box is not the probability of the box under the transition.
    """
    rng, known = np.random.default_rng(4), without_missing(rows)
    for one in each_of_two(values):
        first = Row(model, one, known, None)
        x = first.drawn(rng)[:, :1]
        for t in [0] * (model.log_initial is not None) + times:
            if not rows["missing"][t]:
                row = Row(model, one, known, t or None)
                _check_weights(row, x if t else None, rng)


def _check_weights(row: Row, x: Array | None, rng: np.random.Generator) -> None:
    """Compare the two estimates of the probability of a box around the proposal's draws."""
    before = None if x is None else repeated(x)
    propose = _compiled(row.model, x is None)
    (seen, _), (new, log_q) = (
        map(np.asarray, propose(row.values, row.rows, row.t or 0, before, row.normals(rng))) for _ in range(2)
    )
    drawn = row.drawn(rng, x)
    if not all(map(is_plain, (seen, new, drawn))):
        return
    low, high = np.quantile(columns_of(seen), [0.5 - CENTRAL / 2, 0.5 + CENTRAL / 2], axis=0)
    inside = [np.all((columns_of(each) >= low) & (columns_of(each) <= high), axis=1) for each in (new, drawn)]
    with np.errstate(all="ignore"):
        weights = np.where(inside[0], np.exp(row.log_density(x, new) - log_q), 0.0)
    if not np.isfinite(weights).all():
        return
    mean, share = weights.mean(), inside[1].mean()
    likely = np.clip(max(mean, share), 0.0, 1.0)
    error = np.sqrt((weights.var() + likely * (1 - likely)) / DRAWS + 1 / DRAWS**2)
    if abs(mean - share) > LARGEST_Z * error:
        where = "" if row.t is None else f" in row {row.t}"
        raise ModelError(
            f"proposal of the state-space model: its draws{where}, weighted by {row.name} and its own log density, give a "
            f"set of states the probability {mean:.3g}, and states of the model are there with {share:.3g}; both must be "
            "log densities with all their factors, of the same states"
        )


@lru_cache(maxsize=16)
def _compiled(model: StateSpaceModel, first: bool) -> Any:
    """Return the compiled proposal of the first row, or of later ones."""

    def proposed(values: Any, rows: Any, t: Any, x: Any, z: Any) -> tuple[Any, Any]:
        propose: Any = model.proposal
        new, log_q = propose(parameters_of(values, rows, t), t, None if first else x, rows["y"][t], z)
        return states(new, 1, DRAWS), jnp.broadcast_to(log_q, (1, DRAWS))[0]

    return jax.jit(proposed)


def check_factors(
    model: StateSpaceModel, values: Mapping[str, Array], rows: Mapping[str, Array], times: list[int]
) -> None:
    """Check in these rows, at two ``values``, that densities of states lack no factor that depends on the parameters.

    Raises
    ------
    ModelError
        If they do; the message names the function.
    """
    known, found = without_missing(rows), []
    for one in each_of_two(values):
        rng = np.random.default_rng(5)
        first = Row(model, one, known, None)
        x = first.drawn(rng)[:, :1]
        later = [Row(model, one, known, t) for t in times]
        found.append([_integral(first, None, rng), *(_integral(row, x, rng) for row in later)])
    for k, (a, b) in enumerate(zip(*found, strict=True)):
        if a and b and abs(np.log(a.value / b.value)) > LARGEST_Z * np.hypot(a.error / a.value, b.error / b.value):
            raise ModelError(
                f"{'log_transition' if k else 'log_initial'} of the state-space model lacks a factor that depends on the "
                f"parameters: its density has the integral {a.value:.3g} ± {a.error:.1g} at one value of them and "
                f"{b.value:.3g} ± {b.error:.1g} at another; add the terms that are left out, such as −log σ of a normal"
            )


def _integral(row: Row, x: Array | None, rng: np.random.Generator) -> _Integral | None:
    """Return the integral of a density: the volume of a box over the mean of 1/f of the draws in it; None if unknown."""
    seen, draws = row.drawn(rng, x), row.drawn(rng, x)
    if not is_plain(seen) or not is_plain(draws) or is_singular(row, x, seen, rng):
        return None
    columns, new = columns_of(seen), columns_of(draws)
    inside, volume = np.ones(DRAWS, dtype=bool), 1.0
    side = IN_BOX ** (1 / columns.shape[1])
    for k in range(columns.shape[1]):
        atoms, counts = np.unique(columns[:, k], return_counts=True)
        if counts.max() > 1:
            atoms = atoms[counts >= OFTEN]
            inside, volume = inside & np.isin(new[:, k], atoms), volume * len(atoms)
        else:
            low, high = np.quantile(columns[:, k], [0.5 - side / 2, 0.5 + side / 2])
            inside, volume = inside & (new[:, k] > low) & (new[:, k] < high), volume * (high - low)
    with np.errstate(all="ignore"):
        inverse = np.where(inside, np.exp(-row.log_density(x, draws)), 0.0)
    mean = inverse.mean()
    if not np.isfinite(inverse).all() or mean == 0:
        return None
    value = volume / mean
    return _Integral(value, value * inverse.std() / mean / np.sqrt(DRAWS))
