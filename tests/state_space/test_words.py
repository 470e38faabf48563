"""Random words and normals of filters: published words of Threefry, quantiles of SciPy, moments and independence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtri

from ppl_backends.targets.jax_process import double_precision
from ppl_backends.targets.state_space.resampling import cumulated
from ppl_backends.targets.state_space.words import normal_quantile, normals, row_keys, threefry, uniforms

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((ONES, ONES), (ONES, ONES), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_words_are_the_published_ones(key, counter, words):
    """Known answers of Random123 for threefry2x32 with 20 rounds."""
    found = threefry(tuple(map(jnp.uint32, key)), tuple(map(jnp.uint32, counter)))
    assert tuple(map(int, found)) == words


def test_normals_are_quantiles_of_their_words():
    near = np.arange(3000, dtype=np.uint32)
    half = np.uint32(2**31)
    words = np.concatenate([near, ~near, half + near, half - near - np.uint32(1)])
    words = np.concatenate([words, np.random.default_rng(1).integers(0, 2**32, 200_000, dtype=np.uint32)])
    with double_precision():
        found = np.asarray(normal_quantile(jnp.asarray(words)))
    smaller = np.minimum(words, ~words)
    exact = np.where(words >= half, -1, 1) * ndtri((smaller + 0.5) * 2.0**-32)
    np.testing.assert_allclose(found, exact, rtol=1e-6)


def test_numbers_of_seeds_and_rows_are_independent():
    """Correlations between halves of one key, between rows and between neighbouring seeds, and four moments."""
    seeds = np.arange(1000, dtype=np.uint64)
    with double_precision():
        z, later = (np.asarray(normals(row_keys(jnp.asarray(seeds), t), 201)) for t in (3, 4))
        u = np.asarray(uniforms(row_keys(jnp.asarray(seeds), 3), 200))
        folded = jax.vmap(lambda seed: jax.random.key_data(jax.random.fold_in(jax.random.key(seed), 3)))(seeds)
        np.testing.assert_array_equal(np.stack(row_keys(jnp.asarray(seeds), 3), axis=1), folded)
    error = 1 / np.sqrt(z.size)
    for product in (z * later, z[:-1] * z[1:], z[:, :100] * z[:, 101:], z[:, :-1] * z[:, 1:], z[:, :200] * (u - 0.5)):
        assert abs(product.mean()) < 4.5 * error * z.std() * product.std() * np.sqrt(z.size / product.size)
    assert abs(z.mean()) < 4.5 * error
    assert abs(z.var() - 1) < 4.5 * error * np.sqrt(2)
    assert abs((z**4).mean() - 3) < 4.5 * error * np.sqrt(96)
    assert abs(u.mean() - 0.5) < 4.5 * np.sqrt(1 / 12 / u.size)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 16, 101])
def test_sums_in_blocks_are_cumulated_sums(n):
    values = np.random.default_rng(n).random((2, n))
    with double_precision():
        np.testing.assert_allclose(cumulated(jnp.asarray(values)), np.cumsum(values, axis=1), rtol=1e-14)
