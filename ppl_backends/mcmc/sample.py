"""``sample_mcmc``: any step method on any model, without PyMC's loop."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.approximations.lost_mode import lost_mode_reason
from ppl_backends.approximations.without_draws import ADVICE, mode_without_chains
from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.kernels.algorithm import Algorithm
from ppl_backends.kernels.calibrated import TargetDensity
from ppl_backends.kernels.streams import Generators
from ppl_backends.options import array, check_memory, checked, integer
from ppl_backends.parallel import run_jobs
from ppl_backends.progress import ChainProgress
from ppl_backends.random import spawn_generators
from ppl_backends.results.convergence import (
    FEWEST_DRAWS,
    differing_chains,
    effective_in_moments,
    few_effective,
    rank_rhat,
    slowest,
)
from ppl_backends.results.inference_data import build_inference_data
from ppl_backends.steps.calibrated import HMC
from ppl_backends.steps.specification import Step, is_bound
from ppl_backends.targets.convert import as_target, naming
from ppl_backends.targets.power import with_power
from ppl_backends.targets.protocol import Array, BaseTarget, as_points, named_point

REPORTS = 50  # per chain
_LOOKED_AT = 50  # slowest coordinates, for which effective numbers of draws are computed


class ChainDraws(NamedTuple):
    """Draws ``(chains, draws, dim)`` and their statistics, name → ``(chains, draws)``; fewer if interrupted."""

    x: Array
    stats: dict[str, np.ndarray]

    def chains(self) -> list[ChainDraws]:
        """Return the draws of each chain."""
        rows = [slice(k, k + 1) for k in range(len(self.x))]
        return [ChainDraws(self.x[k], {name: values[k] for name, values in self.stats.items()}) for k in rows]


@checked(tune=integer(0))
def sample_mcmc(
    model: Any = None,
    *,
    data: Any = None,
    step: Any = None,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    cores: int | None = 1,
    executor: Executor | None = None,
    initvals: Any = None,
    power: float = 1.0,
    power_potentials: bool = False,
    random_seed: Any = None,
    progressbar: bool = True,
    log_likelihood: Any = False,
    **target_options: Any,
) -> Any:
    """Draw from a posterior by a step method of ``pb.steps``.

    Parameters
    ----------
    model : pymc.Model, Stan program or Target, optional
        The PyMC model on the context stack by default.
    data : dict or path, optional
        Data of a Stan program.
    step : Step, optional
        A step, such as ``pb.steps.RandomWalk()``. Default: Hamiltonian Monte Carlo, calibrated by Laplace.
    draws, tune, chains : int
        Draws kept per chain, and tuning draws before them, which adapt the step and are dropped.
    cores : int, optional
        Number of chains that run at once, in threads: steps spend their time in compiled code, and share the data. Not
        used with ``executor``, and not by steps whose chains move as one batch, which are those that an approximation
        calibrates.
    executor : concurrent.futures.Executor, optional
        Runs the chains elsewhere, a batch as a whole; the result is the same.
    initvals : dict, list of dict, or array (dim,) or (chains, dim), optional
        Starting points of the chains: values of all variables in model space, or points on the unconstrained space. By
        default draws of the step's approximation, else dispersed points.
    power : float
        α of the tempered posterior p(θ)L(θ)^α; Potentials keep power one unless ``power_potentials``.
    power_potentials : bool
    random_seed : int or Generator, optional
    progressbar : bool
    log_likelihood : bool
        Whether to store the pointwise log likelihood; names of a Stan program's generated quantities count as True.
    **target_options
        Passed to :func:`~ppl_backends.as_target`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        ``sample_stats`` holds the step's statistics. After an interrupt (Ctrl-C) the result has the draws made so far,
        with a warning that counts them; it keeps the chains, and an equal number of draws of each, that give the most
        draws in total. Its ``accuracy`` is then ``"approximate"``, and attribute ``complete`` of ``posterior`` is 0
        instead of 1. ``accuracy`` is also ``"approximate"``, with the reason in attribute ``warnings``, if two or more
        chains have a rank-normalised R̂ above 1.05, no chain ever moved in a coordinate, or a search from draws of the
        prior finds a mode that chains of a step with an approximation miss.

    Raises
    ------
    ModelError
        If an option is out of range, or the step does not apply to the model.

    Warns
    -----
    SamplerWarning
        If the run was interrupted, R̂ of a coordinate is above 1.05, no chain ever moved in it, or chains miss a mode.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends import FunctionTarget, sample_mcmc, steps
    >>> target = FunctionTarget(1, lambda x: (-0.5 * (x[:, 0] - 3) ** 2, 3 - x))
    >>> idata = sample_mcmc(target, step=steps.Independent(), draws=500, chains=2, random_seed=1, progressbar=False)
    >>> bool(abs(float(idata.posterior["x"].mean()) - 3) < 0.2)
    True
    """
    clock = time.perf_counter()
    options = {**naming(log_likelihood), **target_options}
    target, bind = _resolve(model, data, step, power, power_potentials, options)
    check_memory(draws, chains, target.values_per_draw)
    given = _given_starts(target, initvals, chains)
    algorithm = bind(target)
    *generators, start_rng, result_rng = spawn_generators(random_seed, chains + 2)
    starts = _drawn_starts(target, algorithm, chains, start_rng) if given is None else given
    runs = _run_chains(algorithm, starts, draws, tune, generators, cores, executor, progressbar)
    return _inference_data(target, algorithm, runs, draws, chains, result_rng, clock, log_likelihood)


def _resolve(
    model: Any, data: Any, step: Any, power: float, power_potentials: bool, options: Mapping[str, Any]
) -> tuple[BaseTarget, Callable[[BaseTarget], Algorithm]]:
    """Return the target, and a function that makes the algorithm for it."""
    if is_bound(step):
        if len(step.target.others):
            raise ModelError("the step moves only some variables: use it in pm.sample(step=[...]) together with others")
        if power != 1:
            raise ModelError("power= needs a step made outside of a model context: this one has its target already")
        return step.target, lambda target: step.algorithm
    if isinstance(step, type) and issubclass(step, Step):
        raise ModelError(f"step={step.__name__} is a class: write step={step.__name__}()")
    if step is not None and not isinstance(step, Step):
        raise ModelError(f"step is of type {type(step).__name__}: expected one of ppl_backends.steps")
    specification = HMC.specification() if step is None else step
    target = with_power(as_target(model, data, **options), power, power_potentials)
    return target, specification.bind


def _given_starts(target: BaseTarget, initvals: Any, chains: int) -> Array | None:
    """Return the starting points ``(chains, dim)`` that the user gave, or None."""
    if initvals is None:
        return None
    if isinstance(initvals, Mapping):
        initvals = [initvals] * chains
    if isinstance(initvals, Sequence) and initvals and all(isinstance(one, Mapping) for one in initvals):
        x = np.concatenate([named_point(target, one, "initvals") for one in initvals])
    else:
        x = array("a dict of values by name, one for each chain, or an array").check("initvals", initvals)
        x = as_points(x, target.dim)
        x = np.tile(x, (chains, 1)) if len(x) == 1 else x
    if len(x) != chains:
        raise ModelError(f"initvals gives {len(x)} points for {chains} chains")
    return x


def _drawn_starts(target: BaseTarget, algorithm: Algorithm, chains: int, rng: np.random.Generator) -> Array:
    """Draw starting points ``(chains, dim)``."""
    drawn = [algorithm.initial_point(rng) for _ in range(chains)]
    if any(x is None for x in drawn):
        return target.initial_points(chains, rng)
    return np.array(drawn)


def _run(
    algorithm: Algorithm, start: Array, draws: int, tune: int, rng: Any, report: Any = None, stop: Any = None
) -> ChainDraws:
    """Run a chain, or all chains as one batch; return the draws so far if interrupted."""
    total = tune + draws
    x = np.empty((len(start), draws, algorithm.dim))
    shape, own = x.shape[:2], algorithm.shapes
    stats: dict[str, Any] = {n: np.zeros(shape + own.get(n, ()), dtype=kind) for n, kind in algorithm.stats.items()}
    kept = 0
    try:
        state = algorithm.start(start if algorithm.batched else start[0], rng)
        every = max(1, total // REPORTS)
        for iteration in range(total):
            if stop is not None and stop.is_set():
                break
            state, figures = algorithm.step(state, rng, iteration < tune)
            if iteration >= tune:
                x[:, kept] = state.x
                for name, value in figures.items():
                    stats[name][:, kept] = value
                kept += 1
            if report is not None and iteration % every == every - 1:
                report((iteration + 1) / total, figures["accept"])
    except KeyboardInterrupt:
        if stop is not None:
            stop.set()
    return ChainDraws(x[:, :kept], {name: values[:, :kept] for name, values in stats.items()})


def _run_chains(
    algorithm: Algorithm,
    starts: Array,
    draws: int,
    tune: int,
    generators: Sequence[np.random.Generator],
    cores: int | None,
    executor: Executor | None,
    progressbar: bool,
) -> list[ChainDraws]:
    """Run all chains, in order or as one batch, with their progress; each draws from its own generator."""
    local, stop, n = executor is None, threading.Event(), len(starts)
    with ChainProgress(algorithm.name, n, ("draws", "acceptance", "draws/s"), enabled=progressbar) as progress:

        def report(chains: Sequence[int], done: float, acceptance: Any) -> None:
            steps = done * (tune + draws)
            for chain, rate in zip(chains, np.broadcast_to(acceptance, len(chains)), strict=True):
                drawn = f"{steps - tune:.0f}" if steps > tune else "tuning"
                speed = steps / max(progress.elapsed(chain), 1e-9)
                progress.update(chain, done, acceptance=float(rate), draws=drawn, **{"draws/s": f"{speed:.0f}"})

        groups = [range(n)] if algorithm.batched else [range(chain, chain + 1) for chain in range(n)]
        jobs = []
        for group in groups:
            rng = generators[group[0]] if len(group) == 1 else Generators([generators[k] for k in group])
            told = (partial(report, group), stop) if local else (None, None)
            jobs.append(partial(_run, algorithm, starts[group], draws, tune, rng, *told))
        workers = min(len(jobs), cores or len(jobs))
        found, _ = run_jobs(jobs, executor, lambda run: run.x.shape[1] < draws, workers, stop)
        return [run for run in found if run is not None]


def _inference_data(
    target: BaseTarget,
    algorithm: Algorithm,
    runs: list[ChainDraws],
    draws: int,
    chains: int,
    rng: np.random.Generator,
    clock: float,
    log_likelihood: bool,
) -> Any:
    kept, length = _longest_block([chain for run in runs for chain in run.chains()])
    complete = length == draws and len(kept) == chains
    if not complete:
        message = f"interrupted: {length} of {draws} draws of {len(kept)} of {chains} chains are returned"
        warnings.warn(message, SamplerWarning, stacklevel=user_level())
    x = np.array([run.x[0, :length] for run in kept])
    trouble = why_not_converged(x, target.names)
    if trouble:
        warnings.warn(f"{algorithm.name}: {trouble}: increase tune and draws", SamplerWarning, stacklevel=user_level())
    elif complete:
        trouble = _misses_a_mode(target, algorithm, x, rng)
    on, own = ("chain", "draw"), ("time", "state")
    stats: dict[str, Any] = {
        name: (
            (*on, *own[: len(algorithm.shapes.get(name, ()))]),
            np.array([run.stats[name][0, :length] for run in kept]).astype(kind if kind is not bool else int),
        )
        for name, kind in algorithm.stats.items()
        if name != "tune"
    }
    return build_inference_data(
        target,
        x,
        method=algorithm.name,
        accuracy="approximate" if trouble or not complete or algorithm.approximate else "exact",
        sampling_time=time.perf_counter() - clock,
        rng=rng,
        attrs={**algorithm.attributes, "complete": int(complete), "warnings": trouble},
        sample_stats=stats,
        log_likelihood=log_likelihood,
    )


def _misses_a_mode(target: BaseTarget, algorithm: Algorithm, x: Array, rng: np.random.Generator) -> str:
    """Warn about a mode without chains, if they move by a kernel that an approximation calibrates; return the warning."""
    if not isinstance(algorithm.density, TargetDensity):
        return ""
    missed = mode_without_chains(target, np.concatenate(x), rng.spawn(1)[0])
    if missed is None:
        return ""
    text = lost_mode_reason(missed, target.names, ADVICE)
    warnings.warn(f"{algorithm.name}: {text}", SamplerWarning, stacklevel=user_level())
    return text


def _longest_block(runs: Sequence[ChainDraws]) -> tuple[list[ChainDraws], int]:
    """Return the chains, and the number of draws of each, with most draws in total; raise an interrupt if there are none."""
    lengths = sorted((run.x.shape[1] for run in runs), reverse=True)
    length = max(lengths, key=lambda length: length * sum(other >= length for other in lengths), default=0)
    if not length:
        raise KeyboardInterrupt("interrupted before the first draw")
    return [run for run in runs if run.x.shape[1] >= length], length


def why_not_converged(draws: Array, names: Sequence[str]) -> str:
    """Return why chains have not converged, with the figure; empty if nothing shows it."""
    if draws.shape[1] < FEWEST_DRAWS:
        return ""
    stuck = np.flatnonzero(np.ptp(draws, axis=1).max(axis=0) == 0)
    if len(stuck):
        return f"no chain ever moved in `{names[stuck[0]]}`"
    if len(draws) > 1:
        rhat = rank_rhat(draws)
        differ = differing_chains(np.where(np.isnan(rhat), 1.0, rhat), names)
        if differ:
            return differ
    looked_at = slowest(draws, _LOOKED_AT)
    return few_effective(effective_in_moments(draws[:, :, looked_at]), [names[j] for j in looked_at])
