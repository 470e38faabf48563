"""Map a function over independent tasks (chains, shards of data), in this process or with an executor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from threading import Event
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# After an interrupt, interrupted tasks in workers have this many seconds to return partial results.
_GRACE = 2.0


def map_independent(
    function: Callable[[Item], Result], items: Sequence[Item], executor: Executor | None = None
) -> list[Result]:
    """Apply ``function`` to every item, in order; use ``executor`` if one is given.

    The executor must not fork processes, because JAX hangs in forked processes. On Ctrl-C, pending tasks are cancelled first.
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
    """Run independent jobs; return their results (None for a job without one), and whether Ctrl-C was pressed.

    A job may catch KeyboardInterrupt and return a partial result, which ``is_partial`` recognises. Without an
    ``executor`` the jobs run in order, or in ``threads``, which check ``stop``. A terminal also sends Ctrl-C to the
    workers of an executor: working ones return their partial results. The pool may be broken afterwards, because Ctrl-C
    ends an idle worker.
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
    """Return the result of a future, or None if it has none."""
    with contextlib.suppress(CancelledError, KeyboardInterrupt, Exception):
        return future.result(timeout=0)
    return None
