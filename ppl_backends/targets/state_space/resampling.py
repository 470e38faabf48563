"""Resampling of many filters at once, and the order of particles for quasi-Monte Carlo and correlated estimates.

Arrays are JAX arrays ``(n_theta, n_x, …)``, with one row per filter.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

HILBERT_BITS = 16  # per coordinate, fewer in many dimensions
SUMMED_TOGETHER = 4


def systematic(weights: Any, offset: Any) -> Any:
    """Return ancestors ``(n_theta, n_x)`` by systematic resampling, in increasing order.

    The point (k + offset)/n_x goes to the particle whose interval of cumulated weight contains it. Points before the
    end of every interval are counted and the counts cumulated, which needs no search and is several times faster.

    Parameters
    ----------
    weights : array (n_theta, n_x)
        They sum to one in every row.
    offset : array (n_theta,)
        Uniform on [0, 1).
    """
    n = weights.shape[1]
    before = jnp.ceil(cumulated(weights) * n - offset[:, None])
    before = jnp.clip(before, 0, n).astype(jnp.int32)
    ends = jax.vmap(lambda b: jnp.zeros(n + 1, jnp.int32).at[b].add(1))(before)
    return _heaviest_at_most(cumulated(ends[:, :n]), weights)


def cumulated(values: Any) -> Any:
    """Return the cumulated sums ``(n_theta, n_x)`` of every row, in blocks of four; XLA's own take twice as long."""
    n_theta, n = values.shape
    padded = -n % SUMMED_TOGETHER if n > SUMMED_TOGETHER else 0
    blocks = jnp.pad(values, ((0, 0), (0, padded))).reshape(n_theta, -1, min(n, SUMMED_TOGETHER))
    sums = [blocks[..., 0]]
    for j in range(1, blocks.shape[2]):
        sums.append(sums[-1] + blocks[..., j])
    if blocks.shape[1] > 1:
        before = jnp.pad(cumulated(sums[-1])[:, :-1], ((0, 0), (1, 0)))
        sums = [part + before for part in sums]
    return jnp.stack(sums, axis=-1).reshape(n_theta, -1)[:, :n]


def keeping_the_first(weights: Any, offset: Any, uniform: Any) -> Any:
    """Return ancestors ``(n_theta, n_x)`` by systematic resampling given that particle 0 is the ancestor of the first.

    Chopin & Singh (2015, Algorithm 4): the offset is drawn in proportion to the number of points that it gives
    particle 0, and the points are rotated by a uniform draw so that one of these comes first. On a circle they are
    those of :func:`systematic`.

    Parameters
    ----------
    weights : array (n_theta, n_x)
    offset : array (n_theta,)
        Uniform on [0, 1).
    uniform : array (n_theta, 2)
        Uniform on [0, 1), independent of the offset.
    """
    n = weights.shape[1]
    expected = jnp.maximum(weights[:, 0] * n, 1e-300)
    whole = jnp.floor(expected)
    rest = expected - whole
    one_more = uniform[:, 0] * expected < rest * (whole + 1)
    turned = systematic(weights, jnp.where(one_more, rest * offset, rest + (1 - rest) * offset))
    own = jnp.sum(turned == 0, axis=1)
    by = jnp.minimum(jnp.floor(uniform[:, 1] * own).astype(jnp.int32), jnp.maximum(own - 1, 0))
    index = (jnp.arange(n, dtype=jnp.int32)[None] + by[:, None]) % n
    return jnp.take_along_axis(turned, index, axis=1).at[:, 0].set(0)


def _heaviest_at_most(ancestors: Any, weights: Any) -> Any:
    """Move points that rounding of the sum puts after the last particle to the last one with positive weight."""
    n = weights.shape[1]
    last = n - 1 - jnp.argmax(weights[:, ::-1] > 0, axis=1)
    return jnp.minimum(ancestors, last[:, None].astype(ancestors.dtype))


def order_of(x: Any) -> Any:
    """Return the indices ``(n_theta, n_x)`` that sort states: by value, or vectors along a Hilbert curve."""
    return jnp.argsort(x if x.ndim == 2 else hilbert_index(_in_unit_cube(x)), axis=1)


def _in_unit_cube(x: Any) -> Any:
    """Map states ``(n_theta, n_x, d)`` to the unit cube, each coordinate by a logistic curve of its mean and sd.

    The curve of Gerber & Chopin (2015).
    """
    mean = jnp.mean(x, axis=1, keepdims=True)
    sd = jnp.std(x, axis=1, keepdims=True)
    return jax.nn.sigmoid((x - mean) / jnp.where(sd > 0, sd, 1.0))


def hilbert_index(u: Any) -> Any:
    """Return the position on a Hilbert curve ``(n_theta, n_x)`` of points of the unit cube ``(n_theta, n_x, d)``.

    Skilling (2004), "Programming the Hilbert curve": coordinates to their transposed index, then one integer.
    """
    d = u.shape[-1]
    bits = min(HILBERT_BITS, 62 // d)
    cells = jnp.clip(jnp.floor(jnp.nan_to_num(u) * 2**bits), 0, 2**bits - 1).astype(jnp.int64)
    axes = [cells[..., j] for j in range(d)]
    for level in range(bits - 1, 0, -1):
        bit, lower = 1 << level, (1 << level) - 1
        for j in range(d):
            is_set = (axes[j] & bit) != 0
            exchanged = (axes[0] ^ axes[j]) & lower
            if j > 0:
                axes[j] = jnp.where(is_set, axes[j], axes[j] ^ exchanged)
            axes[0] = jnp.where(is_set, axes[0] ^ lower, axes[0] ^ exchanged)
    for j in range(1, d):  # Gray code
        axes[j] = axes[j] ^ axes[j - 1]
    correction = jnp.zeros_like(axes[0])
    for level in range(bits - 1, 0, -1):
        correction = jnp.where((axes[d - 1] & (1 << level)) != 0, correction ^ ((1 << level) - 1), correction)
    index = jnp.zeros_like(axes[0])
    for level in range(bits - 1, -1, -1):
        for j in range(d):
            index = (index << 1) | (((axes[j] ^ correction) >> level) & 1)
    return index
