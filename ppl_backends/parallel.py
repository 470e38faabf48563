"""Independent pieces of work (chains, shards of data) as a map, in this process or over an executor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures import wait as wait_for
from typing import Any, TypeVar

__all__ = ["map_independent", "map_until_interrupted"]

Item = TypeVar("Item")
Result = TypeVar("Result")

# After an interrupt, pieces elsewhere that were interrupted too get this many seconds to hand in what they have.
_GRACE = 2.0


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


def map_until_interrupted(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    executor: Executor | None,
    is_partial: Callable[[Result], bool],
) -> tuple[list[Result | None], bool]:
    """Apply ``function`` to every item, as :func:`map_independent` does, and keep what there is after Ctrl-C.

    Parameters
    ----------
    function : callable
        It may catch KeyboardInterrupt itself and return a part of its result.
    items : sequence
    executor : concurrent.futures.Executor or None
    is_partial : callable
        Whether a result is such a part.

    Returns
    -------
    results : list
        In order; None for an item that has no result.
    interrupted : bool

    Notes
    -----
    A terminal sends Ctrl-C to the workers as well. Those that are at work hand in what they have; the pool may be broken
    afterwards, since an idle worker dies of it.
    """
    if executor is None:
        return _map_here(function, items, is_partial)
    futures = [executor.submit(function, item) for item in items]
    try:
        results: list[Result | None] = [future.result() for future in futures]
        return results, any(is_partial(result) for result in results if result is not None)
    except KeyboardInterrupt:
        for future in futures:
            future.cancel()
        with contextlib.suppress(KeyboardInterrupt):
            wait_for([future for future in futures if not future.cancelled()], timeout=_GRACE)
        return [_result_of(future) for future in futures], True
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _map_here(
    function: Callable[[Item], Result], items: Sequence[Item], is_partial: Callable[[Result], bool]
) -> tuple[list[Result | None], bool]:
    """Go through the items in this process until one is interrupted."""
    results: list[Result | None] = [None] * len(items)
    try:
        for place, item in enumerate(items):
            result = results[place] = function(item)
            if is_partial(result):
                return results, True
    except KeyboardInterrupt:
        return results, True
    return results, False


def _result_of(future: Future) -> Any:
    """Return what a piece handed in, if it did."""
    with contextlib.suppress(CancelledError, KeyboardInterrupt, Exception):
        return future.result(timeout=0)
    return None
