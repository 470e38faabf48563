"""The chains of one call: run here or with an executor; keep what is there if they do not all finish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

from ppl_backends.errors import WorkerError
from ppl_backends.parallel import run_jobs
from ppl_backends.progress import ChainProgress
from ppl_backends.smc.checkpoint import Checkpoint
from ppl_backends.smc.core import SMCState
from ppl_backends.smc.records import SMCResult


def run_chains(
    chains: Sequence[Callable[..., SMCResult]],
    *,
    shows: Shows,
    executor: Executor | None,
    checkpoint: Checkpoint | None = None,
    progressbar: bool,
) -> tuple[list[SMCResult], bool]:
    """Return all chains in order, or after Ctrl-C those with a result; and whether Ctrl-C was pressed.

    Each of ``chains`` is a complete function that runs one chain, so that it can be sent elsewhere; it takes
    ``report=`` and ``store=``.
    """
    with ChainProgress("SMC", len(chains), shows.fields, enabled=progressbar) as progress:

        def show(number: int, run: SMCState) -> None:
            done, figures = shows.figures(run)
            progress.update(number, done, **figures)

        jobs = []
        for number, chain in enumerate(chains):
            report = None if executor else partial(show, number)
            jobs.append(partial(chain, report=report, store=checkpoint.chain(number) if checkpoint else None))
        found, interrupted = _run_all(jobs, executor, checkpoint)
        for number, run in enumerate(found):
            if run is not None:
                show(number, run)
    runs = [run for run in found if run is not None]
    if not runs:
        raise KeyboardInterrupt
    return runs, interrupted


class Shows(NamedTuple):
    """Display of a run: names of figures, and a function that returns progress from 0 to 1 with these figures."""

    fields: tuple[str, ...]
    figures: Callable[[SMCState], tuple[float, dict[str, float | str]]]


def _run_all(
    jobs: Sequence[partial[SMCResult]], executor: Executor | None, checkpoint: Checkpoint | None
) -> tuple[list[SMCResult | None], bool]:
    """Return the runs of all chains, None for those that were interrupted before the first temperature."""
    try:
        found, interrupted = run_jobs(jobs, executor, lambda run: run.interrupted)
    except Exception as error:
        if not _says_that_a_worker_died(error):
            raise
        onward = (
            f"call again with checkpoint={str(checkpoint.path)!r} to continue from the last temperature"
            if checkpoint
            else "a run with checkpoint= can be continued"
        )
        raise WorkerError(f"a worker process ended unexpectedly (killed, or out of memory?); {onward}") from error
    return [_result(job, run) if interrupted else run for job, run in zip(jobs, found, strict=True)], interrupted


def _result(job: partial[SMCResult], run: SMCResult | None) -> SMCResult | None:
    """Return the chain's run; if an interrupt left none, return the content of its checkpoint."""
    store = job.keywords["store"]
    if run is not None or store is None:
        return run
    saved = store.load()
    return SMCResult.of(saved, "interrupted") if saved and saved.stages else None


def _says_that_a_worker_died(error: BaseException) -> bool:
    """Return whether a pool is broken, including Dask's exception for it (by name, because Dask is optional)."""
    return any(kind.__name__ in ("BrokenExecutor", "KilledWorker") for kind in type(error).__mro__)


def _of_tempering(run: SMCState) -> tuple[float, dict[str, float | str]]:
    stage = run.stages[-1]
    moves = stage.moves
    # The ladder is roughly geometric, so a root of β progresses more evenly than β itself.
    done = stage.beta**0.25
    figures: dict[str, float | str] = {
        "β": stage.beta,
        "ESS": f"{stage.ess:.0f}",
        "log Z": f"{stage.log_evidence:.2f}",
    }
    if moves is not None:
        figures |= {"acceptance": moves.acceptance, "moves": f"{moves.n_moves}", "ε": moves.scale}
        figures |= {"L": f"{moves.evaluations:.0f}"}
    return done, figures


TEMPERING = Shows(("β", "ESS", "acceptance", "moves", "ε", "L", "log Z"), _of_tempering)
