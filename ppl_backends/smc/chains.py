"""The chains of one call: here or over an executor, with what is to be kept when they do not all finish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.errors import WorkerError
from ppl_backends.kernels.protocol import Kernel
from ppl_backends.parallel import map_until_interrupted
from ppl_backends.progress import ChainProgress
from ppl_backends.smc.checkpoint import Checkpoint
from ppl_backends.smc.path import TemperingPath
from ppl_backends.smc.sampler import SMCResult, Stage, Store, run_tempering

__all__ = ["run_chains"]


class _Job(NamedTuple):
    """One chain, complete, so that it can be sent elsewhere."""

    path: TemperingPath
    kernel: Kernel
    draws: int
    rng: np.random.Generator
    options: Mapping[str, Any]
    store: Store | None
    report: Callable[[Stage], None] | None


def _run(job: _Job) -> SMCResult:
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
) -> tuple[list[SMCResult], bool]:
    """All chains in order, or after Ctrl-C those there are; and whether there was one.

    Raises
    ------
    WorkerError
        If a worker died.
    KeyboardInterrupt
        If no chain has anything to show.
    """
    fields = ("β", "ESS", "acceptance", "moves", "ε", "L", "log Z", "ETA")
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
        found, interrupted = _run_all(jobs, executor, checkpoint)
        for chain, run in enumerate(found):
            if run is not None:
                _show(progress, chain, run.stages[-1])
    runs = [run for run in found if run is not None]
    if not runs:
        raise KeyboardInterrupt
    return runs, interrupted


def _result(job: _Job, run: SMCResult | None) -> SMCResult | None:
    """Return the chain's run; after an interrupt, where it handed in none, what its checkpoint holds."""
    if run is not None or job.store is None:
        return run
    saved = job.store.load()
    return SMCResult(**vars(saved), interrupted=True) if saved and saved.stages else None


def _run_all(
    jobs: Sequence[_Job], executor: Executor | None, checkpoint: Checkpoint | None
) -> tuple[list[SMCResult | None], bool]:
    """Return the runs of all chains, None for those that an interrupt left without a temperature."""
    try:
        found, interrupted = map_until_interrupted(_run, jobs, executor, lambda run: run.interrupted)
    except Exception as error:
        if not _says_that_a_worker_died(error):
            raise
        onward = (
            f"call again with checkpoint={str(checkpoint.path)!r} to go on from the last temperature"
            if checkpoint
            else "with checkpoint= a run can be continued"
        )
        raise WorkerError(f"a worker process died (killed, or out of memory?); {onward}") from error
    return [_result(job, run) if interrupted else run for job, run in zip(jobs, found, strict=True)], interrupted


def _says_that_a_worker_died(error: BaseException) -> bool:
    """A broken pool, or Dask's word for it (by name: Dask is optional)."""
    return any(kind.__name__ in ("BrokenExecutor", "KilledWorker") for kind in type(error).__mro__)


def _show(progress: ChainProgress, chain: int, stage: Stage) -> None:
    moves = stage.moves
    # The ladder is roughly geometric, so a root of β runs more evenly than β itself.
    done = stage.beta**0.25
    figures: dict[str, float | str] = {
        "β": stage.beta,
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
