"""Random words of a key and a counter, and standard normals from them; functions of JAX arrays.

The words are those of Threefry (Salmon, Moraes, Dror & Shaw 2011) with 20 rounds, as in ``jax.random``, but both words
of a block are used, and the rounds are written out, so that XLA compiles them to one loop. A normal takes one word of
32 bits. It is computed in single precision, at a fifth of the cost of ``jax.random.normal`` in double precision.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_NORMALS = 0x80000000  # counters of normals; small numbers are those of jax.random's own use of a key
_UNIFORMS = 0x80000001

_CENTRE = 5.0  # of −log 4p(1 − p), where the polynomials meet
_MIDDLE, _MIDDLE_OF_TAIL = 2.5, 3.5
_COEFFICIENTS = (  # of the quantile over 1 − 2p, lowest power first: centre and tail, relative errors 1e-7 and 4e-7
    (2.12331357, 4.7170876),
    (0.34880266, 1.42463056),
    (-0.00590817077, 0.00467342158),
    (-0.00177301034, -0.00287838383),
    (0.000309150026, 0.00138533235),
    (-6.21793472e-06, -0.00105203503),
    (-4.99051706e-06, 0.000838740952),
    (4.86098603e-07, -0.000258674858),
    (4.03506239e-08, -1.69394611e-05),
)


def threefry(key: tuple[Any, Any], counter: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return two random words of 32 bits for every key and counter, which are pairs of such words."""
    keys = (*key, key[0] ^ key[1] ^ _PARITY)
    first, second = counter[0] + keys[0], counter[1] + keys[1]
    for i in range(5):
        for by in _ROTATIONS[i % 2]:
            first = first + second
            second = ((second << np.uint32(by)) | (second >> np.uint32(32 - by))) ^ first
        first = first + keys[(i + 1) % 3]
        second = second + keys[(i + 2) % 3] + np.uint32(i + 1)
    return first, second


def row_keys(seeds: Any, t: Any) -> tuple[Any, Any]:
    """Return the key of row ``t``, two words ``(n_theta,)``, for every seed ``(n_theta,)`` of 64 bits.

    It is ``jax.random.fold_in(seed, t)``.
    """
    key = (seeds >> 32).astype(jnp.uint32), (seeds & 0xFFFFFFFF).astype(jnp.uint32)
    return threefry(key, (np.uint32(0), jnp.asarray(t).astype(jnp.uint32)))


def normals(key: tuple[Any, Any], n: int) -> Any:
    """Return standard normals ``(n_theta, n)`` for every key."""
    counter = jnp.arange((n + 1) // 2, dtype=jnp.uint32)[None]
    blocks = threefry((key[0][:, None], key[1][:, None]), (np.uint32(_NORMALS), counter))
    return normal_quantile(jnp.concatenate(blocks, axis=1)[:, :n])


def uniforms(key: tuple[Any, Any], n: int) -> Any:
    """Return uniforms ``(n_theta, n)`` on [0, 1), of 53 bits, for every key."""
    counter = jnp.arange(n, dtype=jnp.uint32)[None]
    high, low = threefry((key[0][:, None], key[1][:, None]), (np.uint32(_UNIFORMS), counter))
    found = ((high >> 5).astype(jnp.float64) * 2.0**26 + (low >> 6).astype(jnp.float64)) * 2.0**-53
    # JAX 0.12 compiles resampling of a few particles at every row without end if XLA merges the two.
    return jax.lax.optimization_barrier(found)


def normal_quantile(words: Any) -> Any:
    """Return the standard normal quantiles of (word + ½)/2³², in float64 with the precision of float32.

    With the smaller tail p, the quantile is ±(1 − 2p) times a smooth function of −log 4p(1 − p), or of its root in the
    tail (Giles 2010). Both p and 1 − 2p are computed from the word, without a loss of digits near 0 and ½.
    """
    upper = words >> 31 == 1
    tail = jnp.where(upper, ~words, words).astype(jnp.int32)
    twice_p = (tail.astype(jnp.float32) + np.float32(0.5)) * np.float32(2.0**-31)
    distance = ((np.int32(2**31 - 1) - tail).astype(jnp.float32) + np.float32(0.5)) * np.float32(2.0**-31)
    depth = -jnp.log(twice_p * (np.float32(1) + distance))
    central = depth < _CENTRE
    place = jnp.where(central, depth - np.float32(_MIDDLE), jnp.sqrt(depth) - np.float32(_MIDDLE_OF_TAIL))
    size = jnp.zeros_like(place)
    for coefficients in reversed(_COEFFICIENTS):
        size = size * place + jnp.where(central, *(np.float32(value) for value in coefficients))
    return jnp.where(upper, distance, -distance).astype(jnp.float64) * size
