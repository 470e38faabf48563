"""Independent pieces of work (chains, shards of data) as a map, in this process or over an executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

__all__ = ["map_independent"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_independent(
    function: Callable[[Item], Result], items: Sequence[Item], executor: Executor | None = None
) -> list[Result]:
    """Apply ``function`` to every item, in order; over ``executor`` where one is given.

    Parameters
    ----------
    function : callable
        Picklable where the executor runs other processes.
    items : sequence
    executor : concurrent.futures.Executor, optional
        Spawned processes or Dask's executor; forked processes must not be used, since JAX hangs in them.

    Notes
    -----
    On an interrupt (Ctrl-C) the pending pieces are cancelled before the exception travels on.
    """
    if executor is None:
        return [function(item) for item in items]
    futures = [executor.submit(function, item) for item in items]
    try:
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise
