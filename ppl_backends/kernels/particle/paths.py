"""Paths of states from filters that have run, by backward sampling or along their ancestors.

Backward sampling (Godsill, Doucet & West 2004) draws the last state by its weight, and every earlier one among the
particles of its row with weights W_t^i f(x_{t+1} | x_t^i). It needs the density of a transition. Ancestors need no
density, but those of the first rows are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ppl_backends.targets.jax_process import double_precision
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.state_space.compiled import normals_from
from ppl_backends.targets.state_space.filter import Filter, Seeds

_ELEMENTS = 2**24  # particles of all rows of the filters in one computation
_AWAY = np.uint64(0x9E3779B97F4A7C15)  # offset from a filter's seed to that of its path


def replayed_paths(
    particle_filter: Filter, parameters: Mapping[str, Array], n_particles: int, seeds: Seeds, by_numba: bool = False
) -> Array:
    """Return one path ``(n_theta, n_rows[, d])`` from each filter that has these seeds; the filters run again.

    ``by_numba`` is True for a :class:`~ppl_backends.targets.state_space.compiled.CompiledFilter`.
    """
    n, rows = len(seeds), particle_filter.n_rows
    size = max(1, _ELEMENTS // (rows * n_particles))
    parts = []
    for start in range(0, n, size):
        index = np.minimum(np.arange(start, start + min(size, n)), n - 1)
        values = {name: np.asarray(value)[index] for name, value in parameters.items()}
        normals = normals_from(seeds[index], particle_filter.n_normals(n_particles)) if by_numba else None
        found = particle_filter.history(values, n_particles, seeds[index], normals)
        path = drawn_paths(particle_filter, values, found, seeds[index] ^ _AWAY)
        parts.append(path[: min(n - start, len(index))])
    return np.concatenate(parts)


def drawn_paths(
    particle_filter: Filter, parameters: Mapping[str, Array], history: Any, seeds: Seeds, upto: int | None = None
) -> Array:
    """Return one path ``(n_theta, n_rows[, d])`` from each filter of a history, or from its rows before ``upto``."""
    if particle_filter.model.log_transition is None:
        return traced(history, seeds)
    with double_precision():
        draw = _backward(particle_filter.model)
        values = {name: np.asarray(value, dtype=np.float64) for name, value in parameters.items()}
        rows, upto = particle_filter.rows, len(history.x) if upto is None else upto
        path = draw(values, rows, history.x, history.log_weights, np.asarray(seeds, dtype=np.uint64), upto)
        return np.moveaxis(np.asarray(path), 0, 1)


def traced(history: Any, seeds: Seeds) -> Array:
    """Return a path from each filter along the ancestors of a particle drawn by its weight."""
    upto, n = len(history.x), len(seeds)
    uniform = np.array([np.random.default_rng(int(seed)).random() for seed in seeds])
    ends = np.cumsum(np.exp(history.log_weights[-1]), axis=1)
    place = (uniform[:, None] * ends[:, -1:] > ends).sum(axis=1)
    path = np.empty((n, upto, *history.x.shape[3:]))
    for t in range(upto - 1, -1, -1):
        path[:, t] = history.x[t, np.arange(n), place]
        place = history.ancestors[t, np.arange(n), place]
    return path


@lru_cache(maxsize=16)
def _backward(model: Any) -> Any:
    """Return the compiled backward sampling of a model."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from ppl_backends.targets.state_space.step import parameters_of
    from ppl_backends.targets.state_space.streams import keys_of

    def chosen(keys, log_weights):
        return jax.vmap(jax.random.categorical)(keys, log_weights)

    def taken(x, place):
        return jnp.take_along_axis(x, place.reshape(-1, *(1,) * (x.ndim - 1)), axis=1)

    def draw(values, rows, x, log_weights, seeds, upto):
        last = taken(x[upto - 1], chosen(keys_of(seeds, upto), log_weights[upto - 1]))
        path = jnp.zeros((x.shape[0], x.shape[1], *x.shape[3:]))
        path = lax.dynamic_update_index_in_dim(path, last[:, 0], upto - 1, 0)

        def body(back, loop):
            t, (after, path) = upto - 2 - back, loop
            p = parameters_of(values, rows, t + 1)
            ahead = model.log_transition(p, t + 1, x[t], jnp.broadcast_to(after, x[t].shape))
            now = taken(x[t], chosen(keys_of(seeds, t), log_weights[t] + ahead))
            return now, lax.dynamic_update_index_in_dim(path, now[:, 0], t, 0)

        return lax.fori_loop(0, upto - 1, body, (last, path))[1]

    return jax.jit(draw)
