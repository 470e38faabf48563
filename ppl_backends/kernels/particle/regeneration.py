r"""Filters around a path, by which SMC² renews the filters of its particles, with any size and without weights.

A path drawn from a filter by its weights, along its ancestors, is a draw of the states given the parameters and the
data. Around it a conditional filter draws all other particles afresh, with any number of particles (Ridgway 2015,
Algorithm 27). It is the same filter with the same resampling, given that the path is one of its particles. Fresh
filters, with which particle Metropolis proposes, then have the distribution of the current ones; otherwise its steps
would not be exact. The path includes the factors of its weight in every row, so that no density of a transition is
needed.

A filter stores its path and two seeds. Its particles in earlier rows are computed again when a path is drawn, a few
filters at a time, so memory grows with the number of rows plus that of the particles, not with their product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.numerics.population import Population
from ppl_backends.targets.jax_process import double_precision
from ppl_backends.targets.protocol import Array, Index
from ppl_backends.targets.state_space.filter import Filter, FilterState, Seeds

_ELEMENTS = 2**22  # particles of all rows in one computation


class Filters(NamedTuple):
    """The filter of new rows, and that of rows around a path."""

    ahead: Filter
    around: Filter

    @classmethod
    def of(cls, particle_filter: Filter, from_transition: bool) -> Filters:
        """Return filters with equal proposals, or with states around a path drawn ``from_transition``.

        If parameters moved since the path was drawn, the factors of a proposal's weight are no longer known.
        """
        if not from_transition:
            return cls(particle_filter, particle_filter)
        f = particle_filter
        return cls(f, Filter(f.model, f.y, f.covariates, "bootstrap", f.resample_below))


@dataclass(frozen=True)
class KeptPaths(Population):
    """Paths ``x`` ``(n, n_rows[, d])`` around which filters were drawn.

    Attributes
    ----------
    log_g : ndarray (n, n_rows)
        Logs of the factors of the path's weight.
    rows : ndarray of int (n,)
        Number of rows of the path in use; 0 for a filter that was not drawn around a path.
    seeds : ndarray of uint64 (n,)
        Seeds of the particles around it.
    """

    log_g: Array
    rows: Index
    seeds: Seeds


def no_paths(particle_filter: Filter, values: Mapping[str, Array], n: int) -> KeptPaths:
    """Return the record of ``n`` filters that were not drawn around a path."""
    rows, shape = particle_filter.n_rows, particle_filter.state_shape(values)
    return KeptPaths(np.zeros((n, rows, *shape)), np.zeros((n, rows)), np.zeros(n, np.intp), np.zeros(n, np.uint64))


def around(
    filters: Filters, values: Mapping[str, Array], kept: KeptPaths, n_rows: int, n_particles: int, seeds: Seeds
) -> tuple[FilterState, Array]:
    """Return filters of the first ``n_rows`` rows around paths, and the increments of their log likelihoods ``(n, n_rows)``.

    ``seeds`` are those of new rows.
    """
    run, rows = _around(filters.around.rule("seeds"), n_particles), filters.around.rows

    def draw(index: Index) -> tuple[Array, ...]:
        some, given = kept.take(index), {name: value[index] for name, value in values.items()}
        with double_precision():
            found = run(given, some.seeds, rows, _by_row(some.x, rows), _by_row(some.log_g, rows), n_rows)
            x, log_weights, increments = map(np.asarray, found)
        return x, log_weights, increments[:n_rows].T

    x, log_weights, increments = _in_blocks(draw, len(seeds), filters.around.n_rows + n_particles)
    return FilterState(x, log_weights, increments.sum(axis=1), seeds), increments


def paths_out_of(
    filters: Filters,
    values: Mapping[str, Array],
    states: FilterState,
    kept: KeptPaths,
    n_rows: int,
    seeds: Seeds,
) -> tuple[Array, Array]:
    """Return a path ``(n, n_rows of the data[, d])`` from each filter that has processed ``n_rows`` rows, then zeros.

    The logs of the factors of its weight ``(n, n_rows of the data)`` are returned too.
    """
    n_particles, data_rows = states.log_weights.shape[1], filters.ahead.n_rows
    path, log_g = np.zeros_like(kept.x), np.zeros_like(kept.log_g)
    trace = _traced(filters.ahead.rule("seeds"), filters.around.rule("seeds"), n_particles)
    rows = filters.ahead.rows
    for first in np.unique(kept.rows):
        members = np.flatnonzero(kept.rows == first)

        def draw(index: Index, first: int = int(first), members: Index = members) -> tuple[Array, ...]:
            place = members[index]
            given, own = {name: value[place] for name, value in values.items()}, kept.take(place)
            source = states.seeds[place], own.seeds, _by_row(own.x, rows), _by_row(own.log_g, rows)
            with double_precision():
                found = map(np.asarray, trace(given, rows, *source, first, n_rows, seeds[place]))
            return tuple(np.moveaxis(part, 0, 1)[:, :data_rows] for part in found)

        path[members], log_g[members] = _in_blocks(draw, len(members), data_rows * n_particles)
    return path, log_g


def _by_row(values: Array, rows: Mapping[str, Any]) -> Array:
    """Return values of paths ``(n, n_rows, …)`` as ``(rows and their padding, n, …)``."""
    by_row = np.zeros((len(rows["y"]), len(values), *values.shape[2:]))
    by_row[: values.shape[1]] = np.moveaxis(values, 1, 0)
    return by_row


def _in_blocks(draw: Callable[[Index], tuple[Array, ...]], n: int, elements: int) -> list[Array]:
    """Return the output of ``draw`` for ``n`` filters, computed in equal blocks that fit in memory."""
    size = max(1, min(_ELEMENTS // elements, n))
    size = 1 << (size.bit_length() - 1) if size < n else 1 << (n - 1).bit_length()
    parts = []
    for start in range(0, n, size):
        index = np.minimum(np.arange(start, start + size), n - 1)
        parts.append([part[: n - start] for part in draw(index)])
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def _step_around(rule: Any) -> Callable[..., Any]:
    """Return the step of a filter with a path as its particle 0, in the first row and in later ones."""
    from jax import lax

    from ppl_backends.targets.state_space.step import Kept, first_step, later_step
    from ppl_backends.targets.state_space.streams import beside_a_path

    def step(values: Any, source: Any, rows: Any, path: Any, log_g: Any, t: Any, carry: Any) -> Any:
        kept = Kept(path[t], log_g[t], beside_a_path(source, t))
        return lax.cond(
            t == 0,
            lambda: first_step(rule, values, source, rows, carry.log_weights.shape, kept),
            lambda: later_step(rule, values, source, rows, t, carry, kept),
        )

    return step


def _empty(path: Any, n_x: int) -> Any:
    """Return filters before the first row."""
    import jax.numpy as jnp

    from ppl_backends.targets.state_space.step import Carry

    n = path.shape[1]
    return Carry(jnp.zeros((n, n_x, *path.shape[2:])), jnp.zeros((n, n_x)), jnp.zeros(n))


@lru_cache(maxsize=16)
def _around(rule: Any, n_x: int) -> Any:
    """Return the compiled filter around paths: states and log weights of the last row, increments ``(n_rows, n_theta)``."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    step = _step_around(rule)

    def run(values, source, rows, path, log_g, upto):
        def body(t, loop):
            carry, increments = loop
            found = step(values, source, rows, path, log_g, t, carry)
            return found.carry, lax.dynamic_update_index_in_dim(increments, found.increment, t, 0)

        carry, increments = lax.fori_loop(0, upto, body, (_empty(path, n_x), jnp.zeros(log_g.shape)))
        return carry.x, carry.log_weights, increments

    return jax.jit(run)


@lru_cache(maxsize=16)
def _traced(rule: Any, rule_around: Any, n_x: int) -> Any:
    """Return the compiled filter, around a path in its first rows, and a path from it with the logs of its weights."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from ppl_backends.targets.state_space.step import first_step, later_step
    from ppl_backends.targets.state_space.streams import keys_of

    step_around = _step_around(rule_around)

    def taken(values, place):
        return jnp.take_along_axis(values, place.reshape(-1, *(1,) * (values.ndim - 1)), axis=1)[:, 0]

    def run(values, rows, source, source_around, path, log_g, first, stop, seeds):
        begun = _empty(path, n_x)
        shape, length = begun.log_weights.shape, len(path)

        def forward(step):
            def body(t, loop):
                carry, kept = loop
                found = step(t, carry)
                new = found.carry.x, found.ancestors, found.log_g
                kept = [lax.dynamic_update_index_in_dim(all_, one, t, 0) for all_, one in zip(kept, new, strict=True)]
                return found.carry, kept

            return body

        def beside(t, carry):
            return step_around(values, source_around, rows, path, log_g, t, carry)

        def ahead(t, carry):
            return lax.cond(
                t == 0,
                lambda: first_step(rule, values, source, rows, shape),
                lambda: later_step(rule, values, source, rows, t, carry),
            )

        kept = [
            jnp.zeros((length, *begun.x.shape)),
            jnp.zeros((length, *shape), jnp.int32),
            jnp.zeros((length, *shape)),
        ]
        loop = lax.fori_loop(0, first, forward(beside), (begun, kept))
        carry, (all_x, all_ancestors, all_log_g) = lax.fori_loop(first, stop, forward(ahead), loop)
        last = jax.vmap(jax.random.categorical)(keys_of(seeds, stop), carry.log_weights).astype(jnp.int32)

        def back(done, loop):
            (new, new_log_g), place = loop
            t = stop - 1 - done
            new = lax.dynamic_update_index_in_dim(new, taken(all_x[t], place), t, 0)
            new_log_g = lax.dynamic_update_index_in_dim(new_log_g, taken(all_log_g[t], place), t, 0)
            return (new, new_log_g), taken(all_ancestors[t], place)

        return lax.fori_loop(0, stop, back, ((jnp.zeros(path.shape), jnp.zeros(log_g.shape)), last))[0]

    return jax.jit(run)
