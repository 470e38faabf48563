"""Whether the proposal of a guided filter is too narrow, so that the weights f g / q of its states have no variance.

Estimates of the likelihood are unbiased for any proposal. Without a variance of the weights almost all of them are too
low, by an amount that their spread does not show, and the variance of their logs does not fall as one over the number
of particles. The shape of the tail of the weights shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ppl_backends.numerics.weights import (
    NEGLIGIBLE_TAIL,
    normalised_weights,
    pareto_k,
    systematic_resampling,
    tail_share,
)
from ppl_backends.targets.jax_process import double_precision
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.state_space.filter import Filter

_FILTERS, _PARTICLES, _ROWS = 4, 512, 200
_LARGEST_SHAPE = 0.5  # of the tail of weights that have a variance


def narrow_proposal(particle_filter: Filter, values: Mapping[str, Array]) -> str:
    """Return what is wrong if the weights of states from the proposal have no variance at some of the points."""
    if not particle_filter.rule("seeds").proposes:
        return ""
    log_weights = _relative_weights(particle_filter, {k: np.asarray(v)[:_FILTERS] for k, v in values.items()})
    k = pareto_k(log_weights)
    if not _LARGEST_SHAPE < k < np.inf or tail_share(log_weights) < NEGLIGIBLE_TAIL:
        return ""
    return (
        f"the weights of states from the proposal have Pareto k {k:.2f}, above 0.5, so most likelihood estimates are too low "
        "by an unknown amount, and more particles hardly help: give proposal= a larger standard deviation or heavier tails"
    )


def _relative_weights(particle_filter: Filter, values: Mapping[str, Array]) -> Array:
    """Return logs of the weights of all rows and filters, which resample in every row, relative to their mean."""
    rng, model, rows = np.random.default_rng(1), particle_filter.model, particle_filter.rows
    n = len(next(iter(values.values()))) if values else 1
    shape = (n, _PARTICLES) if model.n_normals == 1 else (n, _PARTICLES, model.n_normals)
    place, found, x = np.arange(n)[:, None], list[Array](), None
    values = {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}
    with double_precision(), np.errstate(all="ignore"):
        for t in range(min(particle_filter.n_rows, _ROWS)):
            x, log_weights = map(np.asarray, _step(model, t > 0)(values, rows, t, x, rng.standard_normal(shape)))
            log_weights = np.where(log_weights < np.inf, log_weights, -np.inf)  # as in a filter, for NaN too
            if not np.isfinite(log_weights.max(axis=1)).all():
                break
            weights = np.array([normalised_weights(each)[0] for each in log_weights])
            if t and not particle_filter.missing[t]:
                found.append(np.log(_PARTICLES * weights).ravel())
            x = x[place, np.array([systematic_resampling(each, _PARTICLES, rng) for each in weights])]
    return np.concatenate(found) if found else np.zeros(1)


@lru_cache(maxsize=16)
def _step(model: Any, later: bool) -> Any:
    """Return the compiled draw of the states of a row, with the logs of their weights."""
    import jax

    from ppl_backends.targets.state_space.step import from_model, from_proposal, observation, parameters_of

    def draw(values: Any, rows: Any, t: Any, x: Any, z: Any) -> Any:
        p = parameters_of(values, rows, t)

        def by_model() -> Any:
            new, _ = from_model(model, p, t, x, rows["y"][t], z)
            return new, observation(model, p, t, new, rows)

        if not later:
            return by_model()
        return jax.lax.cond(rows["missing"][t], by_model, lambda: from_proposal(model, p, t, x, rows["y"][t], z))

    return jax.jit(draw)
