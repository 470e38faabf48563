"""Sources of a filter's normals: a seed per filter, a Sobol net, or given normals.

Every stream gives the random numbers for one row of data: standard normals for the states, and a uniform offset for
resampling. A seed and the number of a row determine both, so that any stretch of a filter can be computed again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri
from scipy.stats import qmc

from ppl_backends.errors import ModelError
from ppl_backends.targets.state_space.words import normals, row_keys, uniforms

_BITS = 32


def _shaped(z: Any, n_normals: int) -> Any:
    """Drop the last axis ``(n_theta, n_x, n_normals)`` if there is one normal per state."""
    return z[..., 0] if n_normals == 1 else z


def keys_of(seeds: Any, t: Any) -> Any:
    """Return the key of row ``t`` for every seed ``(n_theta,)`` of 64 bits."""
    return jax.random.wrap_key_data(jnp.stack(row_keys(seeds, t), axis=-1))


def pseudo_random(seeds: Any, t: Any, n_x: int, n_normals: int) -> tuple[Any, Any]:
    """Return normals ``(n_theta, n_x[, n_normals])`` and resampling offsets ``(n_theta,)`` of row ``t``."""
    key = row_keys(seeds, t)
    z = normals(key, n_x * n_normals).reshape(-1, n_x, n_normals)
    return _shaped(z, n_normals), uniforms(key, 1)[:, 0]


def beside_a_path(seeds: Any, t: Any) -> Any:
    """Return the additional uniforms ``(n_theta, 2)`` for resampling given a kept state in row ``t``."""
    return uniforms(row_keys(seeds, t), 3)[:, 1:]


def sobol(seeds: Any, t: Any, n_x: int, n_normals: int) -> tuple[Any, Any]:
    """Return the same from one Sobol net under a new digital shift for every filter and row.

    Gerber & Chopin (2015). The first coordinate of a point chooses its ancestor among the sorted particles, the others
    are its normals. The first coordinates of a net of 2^k points are the multiples of 2^−k, which a shift permutes and
    moves by less than 2^−k: in sorted order they are the points of systematic resampling, and no sort is needed.
    """
    net, place = _net(n_x, 1 + n_normals)
    shift = jax.vmap(lambda key: jax.random.bits(key, (1 + n_normals,), jnp.uint32))(keys_of(seeds, t))
    k = int(n_x).bit_length() - 1
    high = (shift[:, :1] >> (_BITS - k) if k else jnp.zeros_like(shift[:, :1])).astype(jnp.int32)
    low = (shift[:, 0] & np.uint32(2 ** (_BITS - k) - 1)).astype(jnp.float64)
    offset = (low + 0.5) * 2.0 ** (k - _BITS)
    rows = jnp.asarray(place)[jnp.arange(n_x, dtype=jnp.int32)[None] ^ high]
    words = jnp.asarray(net)[rows] ^ shift[:, None, 1:]
    z = ndtri((words.astype(jnp.float64) + 0.5) * 2.0**-_BITS)
    return _shaped(z, n_normals), offset


def given(numbers: Any, t: Any, n_x: int, n_normals: int) -> tuple[Any, Any]:
    """Return the same from standard normals ``(n_rows, n_theta, n_x · n_normals + 1)``; the last makes the offset."""
    row = numbers[t]
    z = row[:, : n_x * n_normals].reshape(-1, n_x, n_normals)
    return _shaped(z, n_normals), ndtr(row[:, -1])


@lru_cache(maxsize=8)
def _net(n_x: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the words ``(n_x, dim − 1)`` of a Sobol net without its first coordinate, and the point of every first word."""
    if n_x & (n_x - 1):
        power = 2 ** round(np.log2(n_x))
        raise ModelError(f"method='sqmc' needs a power of two, not {n_x} particles: write n_particles={power}")
    if dim > qmc.Sobol.MAXDIM:
        raise ModelError(f"method='sqmc': {dim} normals per state are more than Sobol's sequence has dimensions")
    points = qmc.Sobol(dim, scramble=False, bits=_BITS).random(n_x)
    words = np.floor(points * 2.0**_BITS).astype(np.uint32)
    first = np.floor(points[:, 0] * n_x).astype(int)
    place = np.empty(n_x, dtype=np.int32)
    place[first] = np.arange(n_x)
    return words[:, 1:], place
