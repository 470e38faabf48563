"""Functions of a model that mix particles or points: each must give a particle what it gives that particle alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.state_space.model import Parameters, StateSpaceModel
from ppl_backends.targets.state_space.step import parameters_of, states

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
    known = {name: jnp.asarray(np.nan_to_num(value)) for name, value in rows.items()}
    some = {name: jnp.asarray(value, dtype=jnp.float64)[:n] for name, value in values.items()}
    rng = np.random.default_rng(1)
    shape = (n, PARTICLES) if model.n_normals == 1 else (n, PARTICLES, model.n_normals)
    z, later = jnp.asarray(rng.standard_normal(shape)), jnp.asarray(rng.standard_normal(shape))
    calls = [(t, *each) for t in times for each in _calls(model, some, known, t, (z, later), proposes)]
    for t, name, call, arguments in calls:

        def at(values: Any, *arguments: Any, call: Callable = call, t: int = t) -> Any:
            found = call(parameters_of(values, known, t), *arguments)
            found = found if isinstance(found, tuple | list) else (found,)
            return [states(each, *arguments[0].shape[:2]) for each in found]

        together = at(some, *arguments)
        each = jax.vmap(lambda i, j, at=at, arguments=arguments: [
            value[0, 0]
            for value in at(
                {name: jax.lax.dynamic_slice_in_dim(value, i, 1) for name, value in some.items()},
                *(jax.lax.dynamic_slice(a, (i, j, *[0] * (a.ndim - 2)), (1, 1, *a.shape[2:])) for a in arguments),
            )
        ])  # fmt: skip
        i, j = np.divmod(np.arange(n * PARTICLES), PARTICLES)
        alone = [value.reshape(n, PARTICLES, *value.shape[1:]) for value in each(i, j)]
        for joint, single in zip(together, alone, strict=True):
            if not np.allclose(joint, single, rtol=CLOSE, atol=CLOSE * _size(joint), equal_nan=True):
                raise ModelError(
                    f"{name} of the state-space model gives a particle another value when it is called for several: "
                    "it must act on each alone, without sums or means over particles, and without random numbers of its own"
                )


def _calls(
    model: StateSpaceModel, values: Any, rows: Any, t: int, normals: tuple[Any, Any], proposes: bool
) -> Iterator[tuple[str, Callable, tuple[Any, ...]]]:
    """Yield the name of each function, a function of ``p`` and arrays over particles, and these arrays."""
    z, later = normals
    p: Parameters = parameters_of(values, rows, t)
    y = rows["y"][t]
    yield "initial", model.initial, (z,)
    x = states(model.initial(p, z), *z.shape[:2])
    yield "transition", lambda p, x, z: model.transition(p, t, x, z), (x, later)
    new = states(model.transition(p, t, x, later), *z.shape[:2])
    yield "log_observation", lambda p, x: model.log_observation(p, t, x, y), (new,)
    if model.log_transition is not None:
        density: Any = model.log_transition
        yield "log_transition", lambda p, x, new: density(p, t, x, new), (x, new)
    if model.log_initial is not None:
        yield "log_initial", model.log_initial, (x,)
    if proposes:
        propose: Any = model.proposal
        yield "proposal", lambda p, x, z: propose(p, t, x, y, z), (x, later)


def _size(values: Any) -> float:
    """Return the largest absolute finite value, or 0."""
    finite = np.asarray(values)[np.isfinite(values)]
    return float(np.abs(finite).max(initial=0.0))
