"""Records of arrays: the operations are right for every field, nested records, fields that are None, and any dtype."""

from dataclasses import dataclass

import numpy as np
import pytest

from ppl_backends.numerics.population import Population, concatenate


@dataclass(frozen=True)
class Subset(Population):
    """A record inside a record."""

    rows: np.ndarray


@dataclass(frozen=True)
class Full(Population):
    """One field of every kind."""

    log_density: np.ndarray
    gradient: np.ndarray | None
    subset: Subset | None
    beta: float


def make(n, dtype=np.float64, offset=0):
    x = (np.arange(2 * n).reshape(n, 2) + offset).astype(dtype)
    subset = Subset(x + 1, np.arange(n * 12).reshape(n, 3, 4) + offset)
    return Full(x, np.arange(n) + float(offset), None, subset, 0.5)


@pytest.mark.parametrize("dtype", [np.float64, np.bool_, np.int64])
def test_every_field_keeps_its_rows_together(dtype):
    first, second = make(4, dtype), make(4, dtype, offset=100)
    taken = first.take(np.array([3, 0, 0]))
    np.testing.assert_array_equal(taken.x, first.x[[3, 0, 0]])
    np.testing.assert_array_equal(taken.subset.rows, first.subset.rows[[3, 0, 0]])
    assert taken.gradient is None
    assert taken.beta == 0.5
    assert taken.x.dtype == dtype
    chosen = first.where(np.array([True, False, False, True]), second)
    both = concatenate([first, second])
    put = first.scatter(np.array([0, 3]), second.take([0, 3]))
    for record, index in ((chosen, [4, 1, 2, 7]), (put, [4, 1, 2, 7])):
        wanted = both.take(index)
        np.testing.assert_array_equal(record.x, wanted.x)
        np.testing.assert_array_equal(record.log_density, wanted.log_density)
        np.testing.assert_array_equal(record.subset.x, wanted.subset.x)
        np.testing.assert_array_equal(record.subset.rows, wanted.subset.rows)
        assert record.x.dtype == dtype


def test_nothing_is_changed_in_place():
    first = make(3)
    before = first.x.copy()
    first.scatter(np.array([1]), make(1, offset=9))
    np.testing.assert_array_equal(first.x, before)


def test_a_field_that_one_record_lacks_is_an_error():
    with pytest.raises(TypeError, match="log_density"):
        make(2).where(np.array([True, False]), Full(np.zeros((2, 2)), None, None, None, 0.5))
