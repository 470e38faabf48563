import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppl_backends.errors import ModelError
from ppl_backends.targets.blocks import available_cores, block_cap, evaluate_in_blocks, pad_rows, partition


@given(n=st.integers(0, 3000), log_cap=st.integers(0, 10))
def test_blocks_cover_every_row_once_and_few_sizes_occur(n, log_cap):
    cap = 2**log_cap
    blocks = partition(n, cap)
    assert [row for block in blocks for row in range(block.start, block.stop)] == list(range(n))
    assert all(block.stop - block.start <= block.padded <= cap for block in blocks)
    coarse = {block.padded for block in blocks} <= {1, 8, 64, 128, 256, 512, cap}
    assert coarse or len({block.padded for block in blocks}) == 1
    assert sum(block.padded for block in blocks) <= max(64, 1.125 * n + 8 * len(blocks))
    assert len(blocks) == max(1, -(-n // cap))


def test_any_numbers_of_points_need_few_sizes_of_blocks():
    """Points that trajectories of different lengths leave once had 120 sizes, for each of which JAX compiles a program."""
    sizes = {block.padded for n in range(1, 3000) for block in partition(n, 1024)}
    assert len(sizes) <= 3 + 8 * 4  # 1, 8, 64, and eight up to each of 128, 256, 512 and 1024


@given(row_bytes=st.integers(1, 10**9))
def test_cap_is_a_power_of_two_within_the_budget(row_bytes):
    cap = block_cap(row_bytes, 2**20)
    assert cap & (cap - 1) == 0
    assert cap == 1 or cap * row_bytes <= (2**20 if cap > 32 else 2**22)


@pytest.mark.parametrize("n", [0, 1, 3, 33, 200])
@pytest.mark.parametrize("cores", [1, 2, 3])
def test_blocks_give_what_the_whole_gives(n, cores):
    x = np.random.default_rng(0).normal(size=(n, 3))
    value, outer = evaluate_in_blocks(lambda b: [b.sum(1), b[:, :, None] * b[:, None, :]], x, 16, cores)
    np.testing.assert_array_equal(value, x.sum(1))
    np.testing.assert_array_equal(outer, x[:, :, None] * x[:, None, :])


def test_padding_repeats_the_last_row():
    assert pad_rows(np.array([[1.0], [5.0]]), 4).ravel().tolist() == [1, 5, 5, 5]
    assert pad_rows(np.empty((0, 2)), 1).tolist() == [[0, 0]]


def test_an_error_in_a_thread_reaches_the_caller():
    def fail(block):
        raise ModelError("this block")

    with pytest.raises(ModelError, match="this block"):
        evaluate_in_blocks(fail, np.ones((40, 1)), 8, 2)


@pytest.mark.parametrize("cores", [0, -1, 1.5, True])
def test_cores_must_be_a_positive_integer(cores):
    with pytest.raises(ModelError, match=r"cores=.*positive integer"):
        available_cores(cores)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_threads_work_in_a_forked_child():
    script = """
import os, numpy as np
from ppl_backends.targets.blocks import evaluate_in_blocks
run = lambda: evaluate_in_blocks(lambda b: [b.sum(1)], np.ones((64, 2)), 8, 2)[0].sum()
assert run() == 128
child = os.fork()
if child == 0:
    os._exit(0 if run() == 128 else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)
