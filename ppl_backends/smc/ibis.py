"""``sample_ibis`` and ``update_smc``: posteriors that are updated with new data.

The result is InferenceData that also holds the state of the run: the particles on the unconstrained space, the initial
particle that each descends from, and the contribution of that particle to the error of the evidence. So a result can
be written to a file and updated later in another process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.kernels.metric import METRICS
from ppl_backends.kernels.protocol import Kernel
from ppl_backends.kernels.table import KERNELS
from ppl_backends.options import check_memory, checked, choice, instance, integer, none, number
from ppl_backends.random import spawn_generators
from ppl_backends.results.inference_data import group, inference_data
from ppl_backends.smc.chains import Shows, run_chains
from ppl_backends.smc.checkpoint import ChainStore, Checkpoint
from ppl_backends.smc.core import Parts, SMCState, run_smc
from ppl_backends.smc.filters import filter_path
from ppl_backends.smc.moves import move_settings
from ppl_backends.smc.path import PriorPath
from ppl_backends.smc.records import SMCResult, stage_figures
from ppl_backends.smc.routes import prior_path, rows_kernel
from ppl_backends.smc.rows import Prequential, RowsPath
from ppl_backends.smc.sampler import Settings, Watcher
from ppl_backends.smc.schedule import Resampling, make_schedule
from ppl_backends.smc.updates import before_stages, ibis_inference_data, n_chains, restored
from ppl_backends.targets.convert import as_target, naming
from ppl_backends.targets.protocol import BaseTarget

_OPTIONS = {
    "kernel": choice("auto", *KERNELS),
    "metric": choice(*METRICS),
    "ess_threshold": number(above=0, below=1) | choice("auto"),
    "min_moves": integer(1),
    "max_moves": integer(1),
}


@checked(
    draws=integer(2),
    **_OPTIONS,
)
def sample_ibis(
    model: Any = None,
    *,
    data: Any = None,
    draws: int = 2000,
    chains: int = 4,
    kernel: str = "auto",
    metric: str = "dense",
    ess_threshold: float | str = "auto",
    min_moves: int = 1,
    max_moves: int = 100,
    cores: int | None = None,
    executor: Executor | None = None,
    max_time: float | None = None,
    checkpoint: str | os.PathLike | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    log_likelihood: Any = False,
    log_prior: bool = False,
    **target_options: Any,
) -> Any:
    r"""Estimate posterior and evidence by adding observations in order; each is predicted before it is added.

    This is iterated batch importance sampling. Particles of the prior are weighted by the likelihood of the next rows,
    as many as keep the effective sample size above its threshold, resampled, and moved by a kernel that uses only the
    rows so far. :func:`~ppl_backends.update_smc` adds more rows later.

    Parameters
    ----------
    model : pymc.Model, Stan program or Target, optional
        The PyMC model on the context stack by default. Its observations must be available one by one, and its prior
        must be proper.
    data : dict or path, optional
        Data of a Stan program.
    draws : int
        Particles per chain, all of which are kept.
    chains : int
        Independent runs; their spread is part of the evidence's standard error.
    kernel : {"auto", "hmc", "mala", "barker", "mixed", "independent", "random_walk"}
        ``"auto"`` is HMC if the observations have gradients, else random-walk and independent proposals alternately. The
        independent proposals for a state-space model are from the smoothed particles, otherwise from a Gaussian.
    metric : {"dense", "diagonal"}
        Scales of the proposals: the particles' covariance, or only their standard deviations.
    ess_threshold : float or "auto"
        Relative ESS that every reweighting keeps.
    min_moves, max_moves : int
        Smallest and largest number of moves per block of rows; the number is chosen automatically between them.
    max_time : float, optional
        Seconds per chain; a chain that exceeds them returns its particles, marked incomplete, after at least one block.
    checkpoint : path, optional
        File that saves the run after every block of rows (with one more file per chain beside it). The same call with
        the same file continues an unfinished run, with the result that it would have had.
    cores, executor, random_seed, progressbar, log_likelihood, log_prior
        As for :func:`~ppl_backends.sample_smc`.
    **target_options
        Passed to :func:`~ppl_backends.as_target`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        As from :func:`~ppl_backends.sample_smc`. Attribute ``n_observations`` is the number of rows added, variable
        ``n_observations`` of ``sample_stats`` is their number at every stage, and ``log_score`` of group ``prequential`` is
        the log predictive density of every row given those before it.

    Raises
    ------
    ModelError
        If the observations are not available one by one, or the prior cannot be sampled.

    References
    ----------
    Chopin, N. (2002). A sequential particle filter method for static models. *Biometrika* 89(3), 539–552.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.targets.factors import Logit
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(20, 2)), rng.integers(0, 2, size=20)
    >>> model = pb.Factors(X, 0.0, Logit(y), prior_mean=0.0, prior_precision=0.25)
    >>> idata = pb.sample_ibis(model, draws=200, chains=2, random_seed=1, progressbar=False)
    >>> scores = idata.prequential["log_score"].sum("observation")
    >>> bool(np.allclose(scores, idata.sample_stats["log_evidence_single_run"]))
    True
    """
    clock = time.perf_counter()
    target = as_target(model, data, cores=cores, **naming(log_likelihood), **target_options)
    asked = {"log_likelihood": log_likelihood, "log_prior": log_prior}
    settings = row_settings(ess_threshold, min_moves, max_moves, max_time, metric)
    call = RowsCall(clock, settings, executor, progressbar, asked)
    chosen = rows_kernel(kernel, target)
    return call.sample(target, chosen, partial(RowsPath, target), (draws, chains), random_seed, checkpoint)


@checked(
    idata=inference_data("posterior", "sample_stats"),
    new=none | instance(Mapping, "a mapping of names to new rows"),
    **_OPTIONS,
)
def update_smc(
    idata: Any,
    model: Any,
    new: Mapping[str, Any] | None = None,
    *,
    data: Any = None,
    kernel: str = "auto",
    metric: str = "dense",
    ess_threshold: float | str = "auto",
    min_moves: int = 1,
    max_moves: int = 100,
    cores: int | None = None,
    executor: Executor | None = None,
    max_time: float | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    log_likelihood: Any = False,
    log_prior: bool = False,
    **target_options: Any,
) -> Any:
    r"""Update a posterior with new observations, without a run from the start.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of :func:`~ppl_backends.sample_ibis`, :func:`~ppl_backends.sample_smc2` or this function. It is not changed.
    model : pymc.Model, Stan program or Target
        The model. Without ``new`` it holds all observations, first those that ``idata`` includes, then the new ones.
    new : mapping, optional
        Only the new rows, by name: values of ``pm.Data`` containers, or of the data variables that ``rows=`` names for
        a Stan program. They are appended to the rows of ``model``, along the first axis (in Stan along the axis of the
        rows). For a state-space model they are the observed variable and covariates, and the coordinates of the new rows
        under the name of their axis if it has a name; without coordinates all rows are counted from 0.
    data : dict or path, optional
        Data of a Stan program without the new rows.
    kernel, metric, ess_threshold, min_moves, max_moves, max_time
        As for :func:`~ppl_backends.sample_ibis`.
    cores, executor, random_seed, progressbar, log_likelihood, log_prior
        As for :func:`~ppl_backends.sample_smc`.
    **target_options
        Passed to :func:`~ppl_backends.as_target`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        As from :func:`~ppl_backends.sample_ibis`. ``log_evidence`` is that of all rows; ``log_evidence_new`` and
        ``log_evidence_new_se`` are of the new ones given the old, log p(new | old). Where ``idata`` has paths of states,
        new ones over all rows are drawn.

    Raises
    ------
    ModelError
        If ``idata`` cannot be continued, or its rows are not the first rows of the model.

    Examples
    --------
    >>> import numpy as np, ppl_backends as pb
    >>> from ppl_backends.targets.factors import Logit
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(30, 2)), rng.integers(0, 2, size=30)
    >>> def regression(n):
    ...     return pb.Factors(X[:n], 0.0, Logit(y[:n]), prior_mean=0.0, prior_precision=0.25)
    >>> options = {"random_seed": 1, "progressbar": False}
    >>> yesterday = pb.sample_ibis(regression(20), draws=200, chains=2, **options)
    >>> today = pb.update_smc(yesterday, regression(30), **options)
    >>> int(today.posterior.attrs["n_observations"])
    30
    """
    clock = time.perf_counter()
    target = as_target(model, data, cores=cores, **naming(log_likelihood), **target_options)
    if new is not None:
        target = target.append(new)
    *generators, prior_rng, result_rng = spawn_generators(random_seed, n_chains(idata) + 2)
    settings = row_settings(ess_threshold, min_moves, max_moves, max_time, metric)
    has_filters = "filter" in group(idata, "posterior").attrs
    chosen = rows_kernel(kernel, target)
    prior = prior_path(target, prior_rng, chosen, settings)
    path = filter_path(target, prior, idata) if has_filters else RowsPath(target, prior)
    path = path.for_moves(chosen.uses_gradient, metric)
    then = restored(idata, path, chosen, generators)
    jobs = [partial(run_ibis, path, chosen, len(run.population.x), run.rng, run, settings) for run in then]
    asked = {"log_likelihood": log_likelihood, "log_prior": log_prior}
    asked["states"] = has_filters and "states" in group(idata, "posterior")
    return RowsCall(clock, settings, executor, progressbar, asked).run(path, chosen, jobs, result_rng)


def row_settings(
    ess_threshold: float | str, min_moves: int, max_moves: int, max_time: float | None, metric: str = "dense"
) -> Settings:
    """Return the settings of a run over rows."""
    schedule, moves = make_schedule("ess", ess_threshold), move_settings(min_moves, max_moves)
    return Settings(schedule=schedule, moves=moves, metric=metric, max_time=max_time)


def run_ibis(
    path: RowsPath,
    kernel: Kernel,
    draws: int,
    rng: np.random.Generator,
    then: SMCState | None,
    settings: Settings,
    *,
    report: Callable[[SMCState], None] | None = None,
    store: ChainStore | None = None,
) -> SMCResult:
    """Add the rows that a run has not included; a time limit or Ctrl-C stops the run after a complete block.

    A ``store`` saves the run after every block; a saved run in it is continued.
    """
    begun = (store.load() if store else None) or then
    if begun is None:
        rows = Prequential((0.0,), np.empty(0), np.zeros(draws))
        begun = before_stages(path, kernel, path.start(draws, rng), rng, rows)
    parts = Parts(settings.schedule, Resampling(draws), path.moves(kernel, settings.moves), stage_figures)
    watch = _Blocks(begun, settings.max_time, report, store)
    _, ended = run_smc(begun, path, parts, watch)
    if ended == "interrupted" and len(watch.whole.stages) == 1:
        raise KeyboardInterrupt
    return SMCResult.of(watch.whole, ended)


class _Blocks(Watcher):
    """Stop a run only between blocks of rows."""

    def __init__(self, run: SMCState, *others: Any) -> None:
        super().__init__(*others)
        self.whole = run

    def stops(self, run: SMCState) -> str:
        """Return why the run stops, between blocks only."""
        return super().stops(run) if run is self.whole else ""

    def see(self, run: SMCState) -> None:
        if run.stage.beta == 1.0:
            self.whole = run
            super().see(run)


class RowsCall(NamedTuple):
    """Arguments of calls that add rows: settings, places, and the ``asked`` groups of the result."""

    clock: float
    settings: Settings
    executor: Executor | None
    progressbar: bool
    asked: Mapping[str, bool]

    def sample(
        self,
        target: BaseTarget,
        kernel: Kernel,
        make_path: Callable[[PriorPath], RowsPath],
        size: tuple[int, int],
        random_seed: Any,
        checkpoint: str | os.PathLike | None,
        **identity: Any,
    ) -> Any:
        """Run chains of particles from the prior; ``size`` has their numbers, and ``identity`` identifies the call."""
        draws, chains = size
        check_memory(draws, chains, target.values_per_draw)
        identity |= {"draws": draws, "chains": chains, "kernel": kernel.name, **self.settings._asdict()}
        identity["max_time"] = None
        saved = None if checkpoint is None else Checkpoint.open(checkpoint, target, identity, "prior", random_seed)
        *generators, result_rng, prior_rng = spawn_generators(saved.seed if saved else random_seed, chains + 2)
        path = make_path(prior_path(target, prior_rng, kernel, self.settings)).for_moves(
            kernel.uses_gradient, self.settings.metric
        )
        jobs = [partial(run_ibis, path, kernel, draws, rng, None, self.settings) for rng in generators]
        return self.run(path, kernel, jobs, result_rng, saved.begin(path) if saved else None)

    def run(
        self,
        path: RowsPath,
        kernel: Kernel,
        jobs: Sequence[Callable[..., SMCResult]],
        rng: np.random.Generator,
        checkpoint: Checkpoint | None = None,
    ) -> Any:
        """Run the chains and return the result as InferenceData."""
        found, interrupted = run_chains(
            jobs,
            shows=Shows(("rows", "ESS", "acceptance", "moves", "log Z"), partial(_figures, path.n)),
            executor=self.executor,
            checkpoint=checkpoint,
            progressbar=self.progressbar,
        )
        size = len(jobs), interrupted
        return ibis_inference_data(path, kernel.name, found, size, rng=rng, clock=self.clock, **self.asked)


def _figures(n: int, run: SMCState) -> tuple[float, dict[str, float | str]]:
    """Return the progress of a run, and the figures to show."""
    stage, rows = run.stages[-1], run.stage.rows
    shown: dict[str, float | str] = {
        "rows": f"{rows:.0f}",
        "ESS": f"{stage.ess:.0f}",
        "log Z": f"{stage.log_evidence:.2f}",
    }
    if stage.moves is not None:
        shown |= {"acceptance": stage.moves.acceptance, "moves": f"{stage.moves.n_moves}"}
    return rows / max(n, 1), shown
