"""Evaluation of batched functions in blocks of points: few compiled shapes, temporaries that fit the cache, threads.

A compiled backend needs one program per shape. Points are therefore cut into blocks of ``cap`` rows, ``cap`` a power
of two chosen from a byte budget, and the last block is padded to 1, 8 or 64 rows, above to a power of two. So few
shapes occur; compiling a shape costs more than idle rows in one block. But a sampler that moves a hundred points a
thousand times should not pay for 128: if more than an eighth of all rows would be idle, the number of blocks is the
same and all have one size, of which at most an eighth is idle. There are eight such sizes between two powers of two,
because trajectories of different lengths leave any number of points. The cuts depend only on the number of points, not
on the number of threads, so results are bitwise equal for any ``cores``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array

_COARSE = 64  # rows below which idle ones are nearly free
_IDLE = 1 / 8  # of all rows
_FEW_OPERATIONS = 10**8  # number up to which one thread is fastest

BlockFunction = Callable[[Array], Sequence[Array]]


class Block(NamedTuple):
    """Rows ``start:stop``, evaluated as ``padded`` rows."""

    start: int
    stop: int
    padded: int


def available_cores(cores: int | None = None) -> int:
    """Return the number of cores to use: those asked for, or all that this process may use."""
    if cores is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if isinstance(cores, bool) or int(cores) != cores or cores < 1:
        raise ModelError(f"cores={cores!r}: expected a positive integer, or None for all available cores")
    return int(cores)


def block_cap(row_bytes: int, budget: int = 2**20, *, fewest: int = 32, largest: int = 1024) -> int:
    """Return the largest number of rows of a block, a power of two, at most ``largest``.

    The largest temporary of a block is within ``budget`` bytes, or within four times as many if blocks would otherwise
    have fewer than ``fewest`` rows, because the data are read once per block.
    """

    def rows(limit: int) -> int:
        return 1 << (max(1, limit // max(1, row_bytes)).bit_length() - 1)

    return min(largest, max(rows(budget), min(fewest, rows(4 * budget))))


def partition(n: int, cap: int) -> list[Block]:
    """Cut ``n`` rows into blocks of ``cap`` rows and a last one padded to 1, 8, 64, 128, 256, ... rows, or to ``cap``.

    Above 64 rows, if more than an eighth of all rows would be idle, blocks have one size, a multiple of a sixteenth of the
    next power of two.
    """
    full, rest = divmod(n, cap)
    padded = int(rest > 0 or n == 0)
    while padded < rest:
        padded *= 8 if padded < _COARSE else 2
    padded = min(padded, cap)
    if n > _COARSE and padded - rest > _IDLE * n:
        each = -(-n // (full + 1))
        unit = max(8, (1 << (each - 1).bit_length()) // 16)
        cap = padded = min(cap, unit * -(-each // unit))
        full = (n - 1) // cap
    blocks = [Block(cap * k, cap * (k + 1), cap) for k in range(full)]
    if padded:
        blocks.append(Block(cap * full, n, padded))
    return blocks


def pad_rows(x: Array, rows: int) -> Array:
    """Return ``rows`` rows: ``x``, then copies of its last row, or zeros if it has none; contiguous and writeable."""
    padded = np.zeros((rows, *x.shape[1:]))
    padded[: len(x)] = x
    if len(x):
        padded[len(x) :] = x[-1]
    return padded


def pad_to_blocks(x: Array, rows: int) -> Array:
    """Return ``x`` padded to whole blocks of ``rows`` rows, at least one."""
    return pad_rows(x, rows * max(1, -(-len(x) // rows)))


def evaluate_in_blocks(function: BlockFunction, x: Array, cap: int, cores: int = 1, *, pad: bool = True) -> list[Array]:
    """Apply a batched function to the rows of ``x`` block by block, on ``cores`` threads."""
    blocks = partition(len(x), cap)

    def run(block: Block) -> Sequence[Array]:
        rows = block.padded if pad else max(1, block.stop - block.start)
        outputs = function(pad_rows(x[block.start : block.stop], rows))
        return [np.asarray(output)[: block.stop - block.start] for output in outputs]

    if len(blocks) == 1:
        return list(run(blocks[0]))
    with _blas().limit(limits=1, user_api="blas"):
        parts = list(map(run, blocks) if cores == 1 else _pool(cores).map(run, blocks))
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def threads_worth_having(operations: int) -> AbstractContextManager[Any]:
    """Limit BLAS to one thread for small operations, for which threads cost more than they save."""
    return nullcontext() if operations > _FEW_OPERATIONS else _blas().limit(limits=1, user_api="blas")


@cache
def _blas() -> ThreadpoolController:
    """Return the loaded BLAS libraries."""
    return ThreadpoolController()


_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def _pool(cores: int) -> ThreadPoolExecutor:
    """Return one pool per number of threads and process (threads do not survive a fork)."""
    key = (os.getpid(), cores)
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(cores, thread_name_prefix="ppl_backends")
    return _pools[key]
