"""Functions of a model that mix particles or points: each must give a particle what it gives that particle alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.state_space.model import StateSpaceModel
from ppl_backends.targets.state_space.step import parameters_of, states, without_missing

POINTS, PARTICLES = 2, 3
CLOSE = 1e-6  # relative difference above which values differ by more than rounding


def check_elementwise(
    model: StateSpaceModel, values: Mapping[str, Array], rows: Mapping[str, Array], times: list[int], proposes: bool
) -> None:
    """Check in these rows that no function mixes particles or points, or draws random numbers of its own.

    It is evaluated for the first two of the ``values`` and three particles at once, and for each of these alone.

    Raises
    ------
    ModelError
        If a particle gets another value in company; the message names the function.
    """
    n = min([POINTS, *map(len, values.values())])
    known = without_missing(rows)
    some = {name: jnp.asarray(value, dtype=jnp.float64)[:n] for name, value in values.items()}
    rng = np.random.default_rng(1)
    shape = (n, PARTICLES) if model.n_normals == 1 else (n, PARTICLES, model.n_normals)
    normals = jnp.asarray(rng.standard_normal(shape)), jnp.asarray(rng.standard_normal(shape))
    for name, function, arguments in _functions(model, proposes):
        compare = jax.jit(_both_ways(model, function, arguments, known, n))
        for t in times:
            for together, alone in zip(*compare(some, normals, t), strict=True):
                if not np.allclose(together, alone, rtol=CLOSE, atol=CLOSE * _size(together), equal_nan=True):
                    raise ModelError(
                        f"{name} of the state-space model gives a particle another value when it is called for several: "
                        "it must act on each alone, without sums or means over particles, and without random numbers of "
                        "its own"
                    )


def _both_ways(model: StateSpaceModel, function: Callable, arguments: str, rows: Any, n: int) -> Callable:
    """Return a map from values, normals and a row to a function's values for all particles, and for each alone."""

    def at(values: Any, t: Any, *given: Any) -> list[Any]:
        found = function(parameters_of(values, rows, t), t, rows["y"][t], *given)
        found = found if isinstance(found, tuple | list) else (found,)
        return [states(each, *given[0].shape[:2]) for each in found]

    def compare(values: Any, normals: Any, t: Any) -> tuple[list[Any], list[Any]]:
        z, later = normals
        p = parameters_of(values, rows, t)
        x = states(model.initial(p, z), *z.shape[:2])
        new = states(model.transition(p, t, x, later), *z.shape[:2])
        given = [{"z": z, "later": later, "x": x, "new": new}[each] for each in arguments.split()]

        def alone(i: Any, j: Any) -> list[Any]:
            own = {name: jax.lax.dynamic_slice_in_dim(value, i, 1) for name, value in values.items()}
            each = [jax.lax.dynamic_slice(a, (i, j, *[0] * (a.ndim - 2)), (1, 1, *a.shape[2:])) for a in given]
            return [value[0, 0] for value in at(own, t, *each)]

        i, j = np.divmod(np.arange(n * PARTICLES), PARTICLES)
        parts = jax.vmap(alone)(i, j)
        return at(values, t, *given), [value.reshape(n, PARTICLES, *value.shape[1:]) for value in parts]

    return compare


def _functions(model: StateSpaceModel, proposes: bool) -> Iterator[tuple[str, Callable, str]]:
    """Yield the name of each function, a function of ``p``, a row, its data and arrays, and names of these arrays."""
    yield "initial", lambda p, t, y, z: model.initial(p, z), "z"
    yield "transition", lambda p, t, y, x, z: model.transition(p, t, x, z), "x later"
    yield "log_observation", lambda p, t, y, x: model.log_observation(p, t, x, y), "new"
    density: Any = model.log_transition
    if density is not None:
        yield "log_transition", lambda p, t, y, x, new: density(p, t, x, new), "x new"
    first: Any = model.log_initial
    if first is not None:
        yield "log_initial", lambda p, t, y, x: first(p, x), "x"
    if proposes:
        propose: Any = model.proposal
        yield "proposal", lambda p, t, y, x, z: propose(p, t, x, y, z), "x later"


def _size(values: Any) -> float:
    """Return the largest absolute finite value, or 0."""
    finite = np.asarray(values)[np.isfinite(values)]
    return float(np.abs(finite).max(initial=0.0))
