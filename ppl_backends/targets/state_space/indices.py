"""Indices beyond the end of an array in the observation density: JAX takes the last element there, and says nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from ppl_backends.targets.protocol import Array, Index
from ppl_backends.targets.state_space.model import StateSpaceModel
from ppl_backends.targets.state_space.step import parameters_of, states, without_missing


def index_beyond(model: StateSpaceModel, values: Mapping[str, Array], rows: Mapping[str, Array], n_rows: int) -> str:
    """Return where ``log_observation`` reads beyond the end of an array; empty if it does not.

    It is evaluated in every row that has data, with the first of the ``values`` and the state that ``initial`` returns
    without noise. Entries that are missing count as zero.
    """
    first = {name: jnp.asarray(value)[:1] for name, value in values.items()}
    known = without_missing(rows)
    asked: set[str] = set()

    def inputs(t: Any) -> tuple[Any, Any, Any]:
        p = parameters_of(first, known, t, asked)
        z = jnp.zeros((1, 1) if model.n_normals == 1 else (1, 1, model.n_normals))
        return p, states(model.initial(p, z), 1, 1), known["y"][t]

    def density(t: Any) -> Any:
        p, x, y = inputs(t)
        return model.log_observation(p, t, x, y)

    if _reads(density) == _reads(lambda t: inputs(t)[1:]):
        return ""
    at = np.flatnonzero(np.logical_not(rows["missing"][:n_rows]))
    at = at[at > 0] if "y_previous" in asked else at  # row 0 has none
    size, said = len(at), _first_said(density, at)
    while said and len(at) > 1:
        half = at[: len(at) // 2]
        said_there = _first_said(density, np.resize(half, size))  # of one size, for which JAX has its programs
        at, said = (half, said_there) if said_there else (at[len(at) // 2 :], said)
    return f"row {at[0]} ({said})" if said else ""


def _reads(call: Callable[[Any], Any]) -> int:
    """Return the number of reads at computed places in a function of the row."""
    text = str(jax.make_jaxpr(call)(1))
    return text.count("gather[") + text.count("dynamic_slice[")


def _first_said(density: Callable[[Any], Any], at: Index) -> str:
    """Return the first line that JAX says of an index in these rows."""
    if not len(at):
        return ""
    error, _ = checkify.checkify(jax.vmap(density), errors=checkify.index_checks)(jnp.asarray(at))
    return (error.get() or "").split("\n")[0].strip(" .")
