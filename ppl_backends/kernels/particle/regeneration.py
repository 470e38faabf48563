r"""Filters around a path: how SMC² renews the filters of its particles, in any size and without weights.

A path drawn from a filter by its weights, through its ancestors, is one of the states given the parameters and the data.
Around it the conditional filter draws all other particles afresh, with as many as one likes (Ridgway 2015, Algorithm 27).
Rows that come later are taken in by the ordinary filter; so one filter has two stretches, each with a law of its own, and
the estimate of the likelihood is unbiased all the same.

What a filter keeps is its path and two seeds. Its particles in earlier rows are computed again when a path is drawn, a few
filters at a time: memory grows with the number of rows plus that of the particles, not with their product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ppl_backends.kernels.particle.gibbs import conditional_history
from ppl_backends.kernels.particle.paths import drawn_paths
from ppl_backends.numerics.population import Population
from ppl_backends.targets.jax_process import double_precision
from ppl_backends.targets.protocol import Array, Index
from ppl_backends.targets.state_space.filter import Filter, FilterState, Seeds

_ELEMENTS = 2**22  # particles of all rows that are computed together


@dataclass(frozen=True)
class KeptPaths(Population):
    """Paths ``x`` ``(n, n_rows[, d])`` that filters were drawn around.

    Attributes
    ----------
    rows : ndarray of int (n,)
        So many rows of the path count; 0 for a filter that was drawn around none.
    seeds : ndarray of uint64 (n,)
        Of the particles around it.
    """

    rows: Index
    seeds: Seeds


def no_paths(particle_filter: Filter, values: Mapping[str, Array], n: int) -> KeptPaths:
    """Return the record of ``n`` filters that were drawn around no path."""
    shape = particle_filter.state_shape(values)
    return KeptPaths(np.zeros((n, particle_filter.n_rows, *shape)), np.zeros(n, np.intp), np.zeros(n, np.uint64))


def around(
    particle_filter: Filter, values: Mapping[str, Array], kept: KeptPaths, n_rows: int, n_particles: int, seeds: Seeds
) -> tuple[FilterState, Array]:
    """Return filters of the first ``n_rows`` rows around paths, and the increments of their log likelihoods ``(n, n_rows)``.

    ``seeds`` are those of the rows to come.
    """

    def draw(index: Index) -> tuple[Array, ...]:
        some, given = kept.take(index), {name: value[index] for name, value in values.items()}
        found = conditional_history(particle_filter, given, some.x, n_rows, n_particles, some.seeds)
        return found.x[n_rows - 1], found.log_weights[n_rows - 1], found.increments[:n_rows].T

    x, log_weights, increments = _in_blocks(draw, len(seeds), particle_filter.n_rows * n_particles)
    return FilterState(x, log_weights, increments.sum(axis=1), seeds), increments


def paths_out_of(
    particle_filter: Filter,
    values: Mapping[str, Array],
    filters: FilterState,
    kept: KeptPaths,
    n_rows: int,
    seeds: Seeds,
) -> Array:
    """Return a path ``(n, n_rows of the data[, d])`` out of each filter that has seen ``n_rows`` rows, zero behind them."""
    n_particles, path = filters.log_weights.shape[1], np.zeros_like(kept.x)
    for rows in np.unique(kept.rows):
        members = np.flatnonzero(kept.rows == rows)

        def draw(index: Index, rows: int = int(rows), members: Index = members) -> tuple[Array, ...]:
            place = members[index]
            given = {name: value[place] for name, value in values.items()}
            own = filters.take(place), kept.take(place), seeds[place]
            return (_paths_of_some(particle_filter, given, *own, rows, n_rows),)

        (path[members],) = _in_blocks(draw, len(members), particle_filter.n_rows * n_particles)
    return path


def _paths_of_some(
    particle_filter: Filter,
    values: Mapping[str, Array],
    filters: FilterState,
    kept: KeptPaths,
    seeds: Seeds,
    first: int,
    n_rows: int,
) -> Array:
    """Return paths out of filters whose first ``first`` rows were drawn around a path, and the others by the filter."""
    n_particles = filters.log_weights.shape[1]
    begun, history = particle_filter.start(values, n_particles, filters.seeds), None
    if first:
        history = conditional_history(particle_filter, values, kept.x, first, n_particles, kept.seeds)
        begun = FilterState(history.x[first - 1], history.log_weights[first - 1], begun.log_likelihood, filters.seeds)
    with double_precision():
        trace = _traced(particle_filter.rule("seeds"))
        arguments = dict(values), filters.seeds, particle_filter.rows, begun.x, begun.log_weights
        later, place = map(np.asarray, trace(*arguments, first, n_rows, seeds))
    path = np.moveaxis(later, 0, 1)[:, : particle_filter.n_rows].copy()
    if history is not None:
        log_weights = history.log_weights.copy()
        log_weights[first - 1] = np.where(np.arange(n_particles) == place[:, None], 0.0, -np.inf)
        before = drawn_paths(particle_filter, values, history._replace(log_weights=log_weights), ~seeds, first)
        path[:, :first] = before[:, :first]
    return path


def _in_blocks(draw: Callable[[Index], tuple[Array, ...]], n: int, elements: int) -> list[Array]:
    """Return what ``draw`` gives for all of ``n`` filters of so many elements each, a few at a time; all blocks are alike."""
    size = max(1, min(_ELEMENTS // elements, n))
    size = 1 << (size.bit_length() - 1) if size < n else 1 << (n - 1).bit_length()
    parts = []
    for start in range(0, n, size):
        index = np.minimum(np.arange(start, start + size), n - 1)
        parts.append([part[: n - start] for part in draw(index)])
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


@lru_cache(maxsize=16)
def _traced(rule: Any) -> Any:
    """Return the compiled filter from row ``start`` to ``stop`` and a path out of it, with its place in the row before."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from ppl_backends.targets.state_space.step import Carry, first_step, later_step
    from ppl_backends.targets.state_space.streams import keys_of

    def taken(values, place):
        return jnp.take_along_axis(values, place.reshape(-1, *(1,) * (values.ndim - 1)), axis=1)[:, 0]

    def run(values, source, rows, x, log_weights, start, stop, seeds):
        shape, length = log_weights.shape, rows["y"].shape[0]

        def forward(t, loop):
            carry, all_x, all_ancestors = loop
            step = lax.cond(
                t == 0,
                lambda: first_step(rule, values, source, rows, shape),
                lambda: later_step(rule, values, source, rows, t, carry),
            )
            all_x = lax.dynamic_update_index_in_dim(all_x, step.carry.x, t, 0)
            return step.carry, all_x, lax.dynamic_update_index_in_dim(all_ancestors, step.ancestors, t, 0)

        begun = Carry(x, log_weights, jnp.zeros(shape[0]))
        kept = jnp.zeros((length, *x.shape)), jnp.zeros((length, *shape), jnp.int32)
        carry, all_x, all_ancestors = lax.fori_loop(start, stop, forward, (begun, *kept))
        last = jax.vmap(jax.random.categorical)(keys_of(seeds, stop), carry.log_weights).astype(jnp.int32)

        def back(done, loop):
            path, place = loop
            t = stop - 1 - done
            path = lax.dynamic_update_index_in_dim(path, taken(all_x[t], place), t, 0)
            return path, taken(all_ancestors[t], place)

        return lax.fori_loop(0, stop - start, back, (jnp.zeros((length, shape[0], *x.shape[2:])), last))

    return jax.jit(run)
