"""``sample_smc``: independent runs of tempering SMC on any model, as InferenceData."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.errors import ModelError, PriorSamplingError, SamplerWarning
from ppl_backends.mcmc.kernels import Kernel, make_kernel
from ppl_backends.parallel import map_independent
from ppl_backends.progress import ChainProgress
from ppl_backends.random import spawn_generators
from ppl_backends.smc.evidence import combine_evidence
from ppl_backends.smc.health import distrust, warn_if_distrusted
from ppl_backends.smc.moves import MoveSettings
from ppl_backends.smc.path import BridgePath, PriorPath, SampledPriorPath, TemperingPath
from ppl_backends.smc.results import smc_inference_data
from ppl_backends.smc.sampler import SMCRun, Stage, run_tempering
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.power import with_power
from ppl_backends.targets.protocol import BaseTarget

__all__ = ["sample_smc"]


def sample_smc(
    model: Any = None,
    *,
    data: Any = None,
    draws: int = 2000,
    chains: int = 4,
    initial: Any = "prior",
    kernel: str = "auto",
    ess_threshold: float = 0.5,
    min_moves: int = 1,
    max_moves: int = 100,
    power: float = 1.0,
    power_potentials: bool = False,
    cores: int | None = None,
    executor: Executor | None = None,
    max_time: float | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    log_likelihood: bool = False,
    log_prior: bool = False,
    **target_options: Any,
) -> Any:
    r"""Posterior and evidence by tempering SMC from the prior or from a Gaussian approximation.

    Parameters
    ----------
    model : pymc.Model, Stan program or Target, optional
        The PyMC model on the context stack by default.
    data : dict or path, optional
        Data of a Stan program.
    draws : int
        Particles per chain, all of which are kept.
    chains : int
        Independent runs; their spread is part of the evidence's standard error.
    initial : {"prior", "auto", "laplace", "ep", "vi"} or approximation
        Where the path starts. ``"prior"`` tempers the likelihood, p(θ)L(θ)^λ, and falls back to ``"laplace"`` with a
        warning where the prior cannot be sampled; the others bridge q(θ)^{1−λ}{p(θ)L(θ)}^λ.
    kernel : {"auto", "hmc", "mala", "random_walk"}
        ``"auto"`` takes HMC where the target has gradients, else the random walk.
    ess_threshold : float
        Share of the particles that the ESS of every reweighting keeps; it sets the ladder.
    min_moves, max_moves : int
        Floor and cap of the number of moves per temperature, which is otherwise automatic.
    power : float
        α of the tempered posterior p(θ)L(θ)^α; Potentials keep power one unless ``power_potentials``.
    cores : int, optional
        Threads for evaluating the density; all available by default.
    executor : concurrent.futures.Executor, optional
        Runs the chains elsewhere, e.g. in spawned processes; the result is the same.
    max_time : float, optional
        Seconds per chain; a chain that meets it returns what it has, marked incomplete.
    random_seed : int or Generator, optional
    progressbar : bool
    log_likelihood, log_prior : bool
        Whether to store those groups.
    **target_options
        Passed on to :func:`~ppl_backends.as_target`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        ``posterior`` with attributes ``log_evidence``, ``log_evidence_se``, ``log_evidence_df``,
        ``log_evidence_trusted``; ``sample_stats`` with, per chain and stage, ``beta``, ``log_marginal_likelihood`` and the
        particles' summary, and per draw ``ancestor``. Particles are no time series: siblings are adjacent.

    Raises
    ------
    ModelError
        If an option is out of range, or no starting point has a finite density.

    References
    ----------
    Chopin, N. and Ridgway, J. (2017). Leave Pima Indians alone. *Statistical Science* 32(1).

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends import FunctionTarget, sample_smc
    >>> target = FunctionTarget(
    ...     1,
    ...     lambda x: (-0.5 * (x[:, 0] - 1) ** 2 - 0.5 * np.log(2 * np.pi), 1 - x),
    ...     lambda x: (-0.5 * x[:, 0] ** 2 - 0.5 * np.log(2 * np.pi), -x),
    ...     sample_prior=lambda n, rng: rng.standard_normal((n, 1)),
    ... )
    >>> idata = sample_smc(target, draws=500, chains=2, random_seed=1, progressbar=False)
    >>> exact = -0.25 - 0.5 * np.log(4 * np.pi)
    >>> bool(abs(idata.posterior.attrs["log_evidence"] - exact) < 0.2)
    True
    """
    _check_options(draws, chains, ess_threshold, min_moves, max_moves)
    target = with_power(as_target(model, data, cores=cores, **target_options), power, power_potentials)
    clock = time.perf_counter()
    *generators, result_rng, initial_rng = spawn_generators(random_seed, chains + 2)
    path = choose_path(target, initial, initial_rng)
    chosen = choose_kernel(kernel, target)
    settings = _Settings(draws, ess_threshold, MoveSettings(min_moves, max_moves), max_time)
    runs = _run_chains(path, chosen, settings, generators, executor, progressbar)
    estimate = combine_evidence(*np.array([(run.log_evidence, run.lineage.variance, run.lineage.df) for run in runs]).T)
    reasons = distrust(runs, estimate)
    warn_if_distrusted(reasons)
    return smc_inference_data(
        path,
        chosen.name,
        runs,
        estimate,
        reasons,
        rng=result_rng,
        sampling_time=time.perf_counter() - clock,
        log_likelihood=log_likelihood,
        log_prior=log_prior,
    )


class _Settings(NamedTuple):
    """What every chain is run with."""

    draws: int
    ess_fraction: float
    moves: MoveSettings
    max_time: float | None


class _Job(NamedTuple):
    """One chain, complete, so that it can be sent elsewhere."""

    path: TemperingPath
    kernel: Kernel
    settings: _Settings
    rng: np.random.Generator
    report: Callable[[Stage], None] | None


def _run(job: _Job) -> SMCRun:
    settings = job.settings
    return run_tempering(
        job.path,
        job.kernel,
        settings.draws,
        job.rng,
        ess_fraction=settings.ess_fraction,
        moves=settings.moves,
        max_time=settings.max_time,
        report=job.report,
    )


def _run_chains(
    path: TemperingPath,
    kernel: Kernel,
    settings: _Settings,
    generators: Sequence[np.random.Generator],
    executor: Executor | None,
    progressbar: bool,
) -> list[SMCRun]:
    """All chains, in order, with their progress."""
    fields = ("λ", "ESS", "acceptance", "moves", "log Z")
    with ChainProgress("SMC", len(generators), fields, enabled=progressbar) as progress:
        jobs = [
            _Job(path, kernel, settings, rng, None if executor else partial(_show, progress, chain))
            for chain, rng in enumerate(generators)
        ]
        runs = map_independent(_run, jobs, executor)
        for chain, run in enumerate(runs):
            _show(progress, chain, run.stages[-1])
    return runs


def _show(progress: ChainProgress, chain: int, stage: Stage) -> None:
    moves = stage.moves
    figures: dict[str, float | str] = {
        "λ": stage.exponent,
        "ESS": f"{stage.ess:.0f}",
        "log Z": f"{stage.log_evidence:.2f}",
    }
    if moves is not None:
        figures |= {"acceptance": moves.acceptance, "moves": f"{moves.n_moves}"}
    # The ladder is roughly geometric, so a root of λ runs more evenly than λ itself.
    progress.update(chain, stage.exponent**0.25, **figures)


def choose_path(target: BaseTarget, initial: Any, rng: np.random.Generator) -> TemperingPath:
    """The path that ``initial`` names, with the fall-back from a prior that cannot be sampled."""
    if isinstance(initial, str) and initial == "prior":
        try:
            return prior_path(target, rng)
        except PriorSamplingError as error:
            warnings.warn(f"{error}; starting from the Laplace approximation instead", SamplerWarning, stacklevel=3)
            initial = "laplace"
    from ppl_backends.approximations.resolve import resolve_approximation

    return BridgePath(target, resolve_approximation(target, initial, random_seed=rng))


def prior_path(target: BaseTarget, rng: np.random.Generator) -> TemperingPath:
    """The path from the prior, drawn from directly or, where the target has it as a density only, by a run of its own.

    Raises
    ------
    PriorSamplingError
        If the prior is improper, or not known apart from the likelihood.
    """
    try:
        target.sample_prior(1, rng)
        return PriorPath(target)
    except PriorSamplingError:
        if not hasattr(target, "prior_target"):
            raise
        return SampledPriorPath(target, target.prior_target())


def choose_kernel(name: str, target: BaseTarget) -> Kernel:
    """The kernel asked for; ``"auto"`` is HMC where the target has gradients, else random walk."""
    if name == "auto":
        return make_kernel("hmc" if target.has_gradient else "random_walk")
    chosen = make_kernel(name)
    if chosen.uses_gradient and not target.has_gradient:
        raise ModelError(f"kernel={name!r} needs gradients and {target.label} has none; use kernel='random_walk'")
    return chosen


def _check_options(draws: int, chains: int, ess_threshold: float, min_moves: int, max_moves: int) -> None:
    if not isinstance(draws, (int, np.integer)) or draws < 2:
        raise ModelError(f"draws={draws!r}: expected an integer of at least 2 (particles per chain)")
    if not isinstance(chains, (int, np.integer)) or chains < 1:
        raise ModelError(f"chains={chains!r}: expected an integer of at least 1")
    if not 0 < ess_threshold < 1:
        raise ModelError(f"ess_threshold={ess_threshold!r}: expected a share strictly between 0 and 1")
    if not 1 <= min_moves <= max_moves:
        raise ModelError(f"min_moves={min_moves!r}, max_moves={max_moves!r}: expected 1 <= min_moves <= max_moves")
