r"""Particle Gibbs: a path of states given parameters, and parameters given the path (Andrieu, Doucet & Holenstein 2010).

A conditional particle filter renews the path: it draws N − 1 particles beside the current path, which is particle 0 in
every row. Backward sampling (Whiteley 2010) draws the new path from these particles, which leaves the distribution of
the states given parameters and data invariant for any N ≥ 2. A path traced through ancestors would never leave the old
one in the first rows of a long series, because there all particles descend from it.

Given the path, the density of the parameters is that of the complete data, which needs one pass over the series.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.kernels.adaptation import Adaptation
from ppl_backends.kernels.algorithm import Algorithm
from ppl_backends.kernels.particle.metropolis import rest_of, seeds_from
from ppl_backends.kernels.particle.paths import drawn_paths
from ppl_backends.kernels.protocol import Kernel, KernelInfo, KernelParameters, accept, column
from ppl_backends.numerics.population import Population
from ppl_backends.targets.jax_process import double_precision
from ppl_backends.targets.protocol import Array, BaseTarget
from ppl_backends.targets.state_space.filter import Filter, History, Seeds

INNER_STEPS = 5  # of the parameters given a path, each a small part of a sweep's run time


@dataclass(frozen=True)
class PointsWithPaths(Population):
    """Points, the log density of all but the series, and paths ``(n, n_rows[, d])`` with their complete log likelihood."""

    log_rest: Array
    path: Array
    complete: Array

    gradient = None

    @property
    def log_density(self) -> Array:
        """Return the log density ``(n,)`` of the points given their paths."""
        return np.where(self.complete < np.inf, self.log_rest + self.complete, -np.inf)  # as in a filter, for NaN too


class PathDensity:
    """A state-space model with its states.

    Parameters
    ----------
    target : BaseTarget, or a block of one
        A target with ``state_space``.
    particle_filter : Filter
    n_particles : int
        N of the conditional filter.
    tuning : Adaptation, optional
        Of a chain.
    n_rows : int, optional
        Number of rows in use; all by default. Paths have all rows.
    """

    def __init__(
        self,
        target: BaseTarget,
        particle_filter: Filter,
        n_particles: int,
        tuning: Adaptation | None = None,
        n_rows: int | None = None,
    ) -> None:
        model = particle_filter.model
        for name, given in (("log_transition", model.log_transition), ("log_initial", model.log_initial)):
            if given is None:
                raise ModelError(
                    f"particle Gibbs needs {name}= of the state-space model; use sample_pmmh, which does not"
                )
        self.target, self.rest, self.dim = target, rest_of(target), target.dim
        self.filter, self.n_particles, self._tuning = particle_filter, n_particles, tuning
        self.n_rows = particle_filter.n_rows if n_rows is None else n_rows

    def __call__(self, x: Array, rng: Any) -> Any:
        """Raise an error: points have paths, see :meth:`beside`."""
        raise NotImplementedError

    def initial_point(self, rng: np.random.Generator) -> None:
        """Return None: the target chooses."""
        return

    def parameters(self) -> KernelParameters:
        """Return the initial proposals."""
        assert self._tuning is not None
        return self._tuning.parameters

    def start(self, x: Array, rng: Any) -> PointsWithPaths:
        """Return points ``(n, dim)`` with paths from separate filters."""
        x = np.array(x, dtype=np.float64)
        if not np.isfinite(self.rest.log_density(x)).all():
            raise ModelError(f"{self.target.label}: the log density is not finite at the starting point")
        seeds, values = seeds_from(rng, len(x)), self._values(x)
        self.check(x)
        path = drawn_paths(self.filter, values, self.filter.history(values, 10 * self.n_particles, seeds), seeds)
        return self.with_path(x, path)

    def check(self, x: Array) -> None:
        """Check once, at the first of the points and beside it, that densities of states lack no factor."""
        self.filter.check_factors(self._values(x[:1] + np.array([[0.0], [1.0]])))

    def with_path(self, x: Array, path: Array) -> PointsWithPaths:
        """Return the points with given paths."""
        return PointsWithPaths(x, self.rest.log_density(x), path, self._complete(x, path))

    def beside(self, points: PointsWithPaths, x: Array, rng: Any) -> PointsWithPaths:
        """Return other points with the same paths."""
        return self.with_path(x, points.path)

    def renewed(self, points: PointsWithPaths, rng: Any) -> PointsWithPaths:
        """Return the same points with new paths, by one sweep of the conditional filter."""
        seeds, values = seeds_from(rng, len(points.x)), self._values(points.x)
        path = drawn_paths(self.filter, values, self.history(values, points.path, seeds), ~seeds, self.n_rows)
        return replace(points, path=path, complete=self._complete(points.x, path))

    def history(self, values: Mapping[str, Array], path: Array, seeds: Seeds) -> History:
        """Return the particles and weights of conditional filters, row by row."""
        return conditional_history(self.filter, values, path, self.n_rows, self.n_particles, seeds)

    def refresh(self, population: PointsWithPaths, rng: Any) -> PointsWithPaths:
        """Return the points with new densities after other coordinates moved; keep the paths."""
        return self.with_path(population.x, population.path)

    def _values(self, x: Array) -> dict[str, Array]:
        found = self.target.full.state_space.parameters_at(self.target.embed(x))
        return {name: np.asarray(value, dtype=np.float64) for name, value in found.items()}

    def _complete(self, x: Array, path: Array) -> Array:
        """Return the log density of paths and data given the points ``(n,)``."""
        with double_precision(), np.errstate(all="ignore"):
            density = _complete_data(self.filter.model)
            found = density(self._values(x), self.filter.rows, np.moveaxis(path, 1, 0), self.n_rows)
            return np.asarray(found)


class ParticleGibbsKernel(Kernel):
    """Draw the parameters given their path by random-walk steps, and a new path."""

    name = "particle Gibbs"
    target_acceptance = 0.3
    stats: Mapping[str, type] = MappingProxyType(
        {"scaling": float, "n_particles": int, "renewed": float, "renewed_first": bool}
    )

    def __init__(self, n_particles: int, shape: tuple[int, ...] | None) -> None:
        super().__init__()
        self._n_particles, self._keeps = n_particles, shape is not None
        if shape is not None:
            self.stats = {**self.stats, "states": float}
            self.shapes = {"states": shape}

    def initial_scale(self, dim: int) -> float:
        """Return 2.38 / √dim."""
        return float(2.38 / np.sqrt(dim))

    def step(self, rng: Any, population: Any, density: Any, parameters: KernelParameters) -> tuple[Any, KernelInfo]:
        """Move the parameters a few times, and the paths once."""
        infos = []
        for _ in range(INNER_STEPS):
            jump = column(parameters.scale) * rng.standard_normal(population.x.shape)
            proposal = density.beside(population, population.x + parameters.metric.colour(jump), rng)
            ratio = self.log_ratio(population, proposal)
            population, info = accept(rng, population, proposal, ratio, (jump**2).sum(axis=1))
            infos.append(info)
        means = {
            name: np.mean([getattr(each, name) for each in infos], axis=0) for name in ("acceptance", "squared_jump")
        }
        info = infos[-1]._replace(**means, accepted=np.any([each.accepted for each in infos], axis=0))
        return density.renewed(population, rng), info

    def statistics(self, before: Any, after: Any, parameters: KernelParameters, info: KernelInfo) -> Mapping[str, Any]:
        """Return the scale, the share of rows whose state changed, and the states if they are kept."""
        n, rows = before.path.shape[:2]
        changed = (before.path != after.path).reshape(n, rows, -1).any(axis=2)
        found = {"scaling": parameters.scale, "n_particles": self._n_particles}
        found |= {"renewed": changed.mean(axis=1), "renewed_first": changed[:, 0]}
        return found | {"states": after.path} if self._keeps else found


class ParticleGibbs(Algorithm):
    """Draw parameters given states, and states given parameters, alternately. Exact for at least two particles.

    Parameters
    ----------
    target : BaseTarget, or a block of one
        A target with ``state_space`` whose model has ``log_transition`` and ``log_initial``.
    particle_filter : Filter
    n_particles : int
    covariance : array (dim, dim), optional
        Shape of the proposals of the parameters; learnt during tuning by default.
    keeps_states : bool
        Whether to store the path of every draw in the statistics.
    """

    def __init__(
        self,
        target: BaseTarget,
        particle_filter: Filter,
        *,
        n_particles: int = 20,
        covariance: Any = None,
        keeps_states: bool = False,
    ) -> None:
        shape: tuple[int, ...] | None = None
        if keeps_states:
            values = target.full.state_space.parameters_at(np.zeros((1, target.full.dim)))
            shape = (particle_filter.n_rows, *particle_filter.state_shape(values))
        kernel = ParticleGibbsKernel(n_particles, shape)
        scale, rate = kernel.initial_scale(target.dim), kernel.target_acceptance
        tuning = Adaptation.of_covariance(covariance, target.dim, scale, rate, pooled=True)
        super().__init__(kernel, PathDensity(target, particle_filter, n_particles, tuning))
        self.attributes = {"n_particles": n_particles}


def conditional_history(
    particle_filter: Filter, values: Mapping[str, Array], path: Array, upto: int, n_particles: int, seeds: Seeds
) -> History:
    """Return particles, weights and increments of filters whose particle 0 is ``path`` ``(n, n_rows[, d])``, row by row.

    States are drawn from the transition, and the others are resampled in every row, by independent draws; rows from
    ``upto`` on are not used.
    """
    with double_precision():
        run, kept = _conditional(particle_filter.model, n_particles), np.moveaxis(path, 1, 0)
        found = run(values, seeds, particle_filter.rows, kept, upto)
    x, log_weights, increments = (np.asarray(part)[: len(kept)] for part in found)
    nothing: Any = None
    return History(x, log_weights, nothing, increments, nothing)


@lru_cache(maxsize=16)
def _conditional(model: Any, n_x: int) -> Any:
    """Return the compiled conditional filter: states ``(n_rows, n_theta, n_x[, d])``, their log weights, increments."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    from ppl_backends.targets.state_space.step import normalise, observation, parameters_of, states
    from ppl_backends.targets.state_space.streams import keys_of, pseudo_random

    def ancestors(seeds, t, log_weights):
        def drawn(key, weights):
            return jnp.searchsorted(jnp.cumsum(weights), jax.random.uniform(key, (n_x,)) * jnp.sum(weights))

        keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys_of(seeds, t))
        return jnp.minimum(jax.vmap(drawn)(keys, jnp.exp(log_weights)), n_x - 1)

    def run(values, seeds, rows, path, upto):
        n, length = seeds.shape[0], rows["y"].shape[0]

        def weighted(p, t, x):
            x = states(x, n, n_x).at[:, 0].set(path[t])
            return x, *normalise(observation(model, p, t, x, rows) - jnp.log(n_x * 1.0))

        p = parameters_of(values, rows, 0)
        x, log_weights, increment = weighted(p, 0, model.initial(p, pseudo_random(seeds, 0, n_x, model.n_normals)[0]))

        def body(t, loop):
            x, log_weights, all_x, all_weights, increments = loop
            place = ancestors(seeds, t, log_weights).reshape(n, n_x, *(1,) * (x.ndim - 2))
            z, _ = pseudo_random(seeds, t, n_x, model.n_normals)
            p = parameters_of(values, rows, t)
            x, log_weights, now = weighted(p, t, model.transition(p, t, jnp.take_along_axis(x, place, axis=1), z))
            kept = lax.dynamic_update_index_in_dim(all_x, x, t, 0)
            all_weights = lax.dynamic_update_index_in_dim(all_weights, log_weights, t, 0)
            return x, log_weights, kept, all_weights, lax.dynamic_update_index_in_dim(increments, now, t, 0)

        all_x = jnp.zeros((length, *x.shape)).at[0].set(x)
        all_weights = jnp.zeros((length, n, n_x)).at[0].set(log_weights)
        increments = jnp.zeros((length, n)).at[0].set(increment)
        return lax.fori_loop(1, upto, body, (x, log_weights, all_x, all_weights, increments))[2:]

    return jax.jit(run)


@lru_cache(maxsize=16)
def _complete_data(model: Any) -> Any:
    """Return the compiled log density of paths ``(n_rows, n_theta[, d])`` and data before row ``upto`` ``(n_theta,)``."""
    import jax
    import jax.numpy as jnp

    from ppl_backends.targets.state_space.step import observation, parameters_of

    def density(values, rows, path, upto):
        x = path[:, :, None]

        def of_row(t):
            p = parameters_of(values, rows, t)
            here = observation(model, p, t, x[t], rows)
            first = model.log_initial(p, x[t])
            moved = model.log_transition(p, t, x[jnp.maximum(t - 1, 0)], x[t])
            return jnp.where(t < upto, here + jnp.where(t == 0, first, moved), 0.0)

        return jax.vmap(of_row)(jnp.arange(len(path))).sum(axis=(0, 2))

    return jax.jit(density)
