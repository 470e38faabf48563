"""The memory of a filter of SMC² grows with rows plus particles; recomputation from seeds stays within a block."""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from ppl_backends.kernels.particle import regeneration
from ppl_backends.kernels.particle.filters import filter_of
from ppl_backends.smc.filters import FilterPath, Growth
from ppl_backends.smc.path import PriorPath
from tests.state_space.toys import series, target

N = 8


def filters_of(rows, size):
    """Return a path over a series, and eight particles whose filters have seen all of it."""
    y = series(rows)
    path = FilterPath(target(y), PriorPath(target(y).rest), filter_of(target(y)), Growth(first=size), "growth")
    return path, path.density(path.all_of(rows))(np.zeros((N, 1)), np.random.default_rng(1))


def numbers(kept):
    """Return how many numbers an object and its parts keep."""
    if isinstance(kept, np.ndarray):
        return kept.size
    if is_dataclass(kept):
        return sum(numbers(getattr(kept, field.name)) for field in fields(kept))
    return sum(map(numbers, kept)) if isinstance(kept, tuple) else 0


def assert_rows_plus_particles(kept, rows, size):
    assert numbers(kept) <= N * (3 * (rows + size) + 20)


def test_particles_keep_rows_plus_particles_and_not_their_product():
    rows, size = 64, 128
    _, population = filters_of(rows, size)
    assert numbers(population) > N * (rows + size)
    assert_rows_plus_particles(population, rows, size)
    states_of_all_rows = np.zeros((rows, N, size))
    with pytest.raises(AssertionError):
        assert_rows_plus_particles((population, states_of_all_rows), rows, size)


@pytest.mark.slow
def test_particles_of_all_rows_are_computed_in_blocks_with_the_same_paths(monkeypatch):
    rows, size, drawn = 16, 32, []
    path, population = filters_of(rows, size)
    together = path.paths_of(population, np.random.default_rng(2))
    traced = regeneration._traced

    def noted(*options):
        trace = traced(*options)

        def run(values, *others):
            drawn.append(len(values["mu"]))
            return trace(values, *others)

        return run

    monkeypatch.setattr(regeneration, "_traced", noted)
    monkeypatch.setattr(regeneration, "_ELEMENTS", 2 * rows * size)
    apart = path.paths_of(population, np.random.default_rng(2))
    assert drawn == [2] * (N // 2)
    np.testing.assert_array_equal(apart[0], together[0])
