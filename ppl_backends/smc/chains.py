"""The chains of one call: here or over an executor, with what is to be kept when they do not all finish."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures import wait as wait_for
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.errors import WorkerError
from ppl_backends.mcmc.kernels import Kernel
from ppl_backends.progress import ChainProgress
from ppl_backends.smc.checkpoint import Checkpoint
from ppl_backends.smc.path import TemperingPath
from ppl_backends.smc.sampler import SMCRun, Stage, Store, run_tempering

__all__ = ["run_chains"]

# After an interrupt, chains elsewhere that were interrupted too get this many seconds to hand in what they have.
_GRACE = 2.0


class _Job(NamedTuple):
    """One chain, complete, so that it can be sent elsewhere."""

    path: TemperingPath
    kernel: Kernel
    draws: int
    rng: np.random.Generator
    options: Mapping[str, Any]
    store: Store | None
    report: Callable[[Stage], None] | None


def _run(job: _Job) -> SMCRun:
    return run_tempering(job.path, job.kernel, job.draws, job.rng, **job.options, store=job.store, report=job.report)


def run_chains(
    path: TemperingPath,
    kernel: Kernel,
    draws: int,
    generators: Sequence[np.random.Generator],
    options: Mapping[str, Any],
    *,
    executor: Executor | None,
    checkpoint: Checkpoint | None,
    progressbar: bool,
) -> tuple[list[SMCRun], bool]:
    """All chains in order, or after Ctrl-C those there are; and whether there was one.

    Raises
    ------
    WorkerError
        If a worker died.
    KeyboardInterrupt
        If no chain has anything to show.
    """
    fields = ("λ", "ESS", "acceptance", "moves", "ε", "L", "log Z", "ETA")
    with ChainProgress("SMC", len(generators), fields, enabled=progressbar) as progress:
        jobs = [
            _Job(
                path,
                kernel,
                draws,
                rng,
                options,
                checkpoint.chain(chain) if checkpoint else None,
                None if executor else partial(_show, progress, chain),
            )
            for chain, rng in enumerate(generators)
        ]
        runs, interrupted = _run_here(jobs) if executor is None else _run_there(jobs, executor, checkpoint)
        for chain, run in enumerate(runs):
            _show(progress, chain, run.stages[-1])
    return runs, interrupted


def _run_here(jobs: Sequence[_Job]) -> tuple[list[SMCRun], bool]:
    runs: list[SMCRun] = []
    try:
        for job in jobs:
            runs.append(_run(job))
            if runs[-1].interrupted:
                return runs, True
    except KeyboardInterrupt:
        if not runs:
            raise
        return runs, True
    return runs, False


def _run_there(jobs: Sequence[_Job], executor: Executor, checkpoint: Checkpoint | None) -> tuple[list[SMCRun], bool]:
    futures = [executor.submit(_run, job) for job in jobs]
    try:
        runs = [future.result() for future in futures]
        return runs, any(run.interrupted for run in runs)
    except KeyboardInterrupt:
        for future in futures:
            future.cancel()
        with contextlib.suppress(TimeoutError, KeyboardInterrupt):
            wait_for([future for future in futures if not future.cancelled()], timeout=_GRACE)
        runs = [run for run in map(_finished, futures) if run is not None]
        if not runs:
            raise
        return runs, True
    except BaseException as error:
        for future in futures:
            future.cancel()
        if _says_that_a_worker_died(error):
            onward = (
                f"call again with checkpoint={str(checkpoint.path)!r} to go on from the last temperature"
                if checkpoint
                else "with checkpoint= a run can be continued"
            )
            raise WorkerError(f"a worker process died (killed, or out of memory?); {onward}") from error
        raise


def _finished(future: Future) -> SMCRun | None:
    """What a chain handed in, if it did."""
    with contextlib.suppress(CancelledError, KeyboardInterrupt, Exception):
        return future.result(timeout=0) if future.done() else None
    return None


def _says_that_a_worker_died(error: BaseException) -> bool:
    """A broken pool, or Dask's word for it (by name: Dask is optional)."""
    return any(kind.__name__ in ("BrokenExecutor", "KilledWorker") for kind in type(error).__mro__)


def _show(progress: ChainProgress, chain: int, stage: Stage) -> None:
    moves = stage.moves
    # The ladder is roughly geometric, so a root of λ runs more evenly than λ itself.
    done = stage.exponent**0.25
    figures: dict[str, float | str] = {
        "λ": stage.exponent,
        "ESS": f"{stage.ess:.0f}",
        "log Z": f"{stage.log_evidence:.2f}",
        "ETA": _clock(stage.seconds * (1.0 - done) / done),
    }
    if moves is not None:
        figures |= {"acceptance": moves.acceptance, "moves": f"{moves.n_moves}", "ε": moves.scale}
        figures |= {"L": f"{moves.gradients / max(moves.n_moves, 1):.0f}"}
    progress.update(chain, done, **figures)


def _clock(seconds: float) -> str:
    """Seconds as 0:05, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
