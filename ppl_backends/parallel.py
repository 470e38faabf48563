"""Independent pieces of work (chains, shards of data) as a map, in this process or over an executor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from threading import Event
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# After an interrupt, pieces elsewhere that were interrupted too get this many seconds to hand in what they have.
_GRACE = 2.0


def map_independent(
    function: Callable[[Item], Result], items: Sequence[Item], executor: Executor | None = None
) -> list[Result]:
    """Apply ``function`` to every item, in order; over ``executor`` where one is given.

    The executor must not fork processes, since JAX hangs in them. On Ctrl-C the pending pieces are cancelled first.
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


def run_jobs(
    jobs: Sequence[Callable[[], Result]],
    executor: Executor | None,
    is_partial: Callable[[Result], bool],
    threads: int = 1,
    stop: Event | None = None,
) -> tuple[list[Result | None], bool]:
    """Run independent jobs; return their results, None where there is none, and whether Ctrl-C came.

    A job may catch KeyboardInterrupt and return a part of its result, which ``is_partial`` knows. Without an
    ``executor`` they run in order, or in ``threads``, which look at ``stop``. A terminal sends Ctrl-C to workers of an
    executor as well: those at work hand in what they have; the pool may be broken afterwards, since an idle worker dies
    of it.
    """
    if executor is not None:
        return _run_over(executor, jobs, is_partial, None, _GRACE)
    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            return _run_over(pool, jobs, is_partial, stop, None)
    return _run_here(jobs, is_partial)


def _run_over(
    executor: Executor,
    jobs: Sequence[Callable[[], Result]],
    is_partial: Callable[[Result], bool],
    stop: Event | None,
    grace: float | None,
) -> tuple[list[Result | None], bool]:
    futures = [executor.submit(job) for job in jobs]
    try:
        results: list[Result | None] = [future.result() for future in futures]
        return results, any(is_partial(result) for result in results if result is not None)
    except BaseException as error:
        for future in futures:
            future.cancel()
        if not isinstance(error, KeyboardInterrupt):
            raise
        if stop is not None:
            stop.set()
        with contextlib.suppress(KeyboardInterrupt):
            wait_for([future for future in futures if not future.cancelled()], timeout=grace)
        return [_result_of(future) for future in futures], True


def _run_here(
    jobs: Sequence[Callable[[], Result]], is_partial: Callable[[Result], bool]
) -> tuple[list[Result | None], bool]:
    """Run the jobs in this process until one is interrupted."""
    results: list[Result | None] = [None] * len(jobs)
    try:
        for place, job in enumerate(jobs):
            result = results[place] = job()
            if is_partial(result):
                return results, True
    except KeyboardInterrupt:
        return results, True
    return results, False


def _result_of(future: Future) -> Any:
    """Return the result of a piece, if there is one."""
    with contextlib.suppress(CancelledError, KeyboardInterrupt, Exception):
        return future.result(timeout=0)
    return None
