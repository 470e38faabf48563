"""``sample_smc``: independent runs of tempering SMC on any model, as InferenceData."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

import numpy as np

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.errors import ModelError, PriorSamplingError, SamplerWarning
from ppl_backends.importance.tails import with_tails
from ppl_backends.kernels.protocol import Kernel
from ppl_backends.kernels.table import KERNELS, make_kernel
from ppl_backends.options import approximation, check_memory, checked, choice, flag, increasing, integer, number
from ppl_backends.random import spawn_generators
from ppl_backends.smc.again import finer, is_too_coarse
from ppl_backends.smc.bridge_sampling import Sample, bridge_evidence
from ppl_backends.smc.chains import run_chains
from ppl_backends.smc.checkpoint import Checkpoint
from ppl_backends.smc.evidence import EvidenceEstimate, combine_evidence
from ppl_backends.smc.health import Verdict, judge, split_finished, try_short_steps, warn_if_distrusted
from ppl_backends.smc.moves import MoveSettings
from ppl_backends.smc.path import BridgePath, PriorPath, SampledPriorPath, TemperingPath
from ppl_backends.smc.results import evidence_attrs, prior_normalizer, smc_inference_data, with_prior_error
from ppl_backends.smc.sampler import SMCResult
from ppl_backends.smc.schedule import make_schedule
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.power import with_power
from ppl_backends.targets.protocol import BaseTarget

__all__ = ["sample_smc"]

_DEFAULT_TUNING = "acceptance"
# Waste-free by default: so many chains, if each then has at least so many states; and none with more than so many.
_AUTO_CHAINS, _FEWEST_AUTO, _LONGEST_AUTO = 100, 5, 50


@checked(
    draws=integer(2),
    initial=approximation("prior", "auto", "laplace", "ep", "vi"),
    path=choice("tempering", "data"),
    kernel=choice("auto", *KERNELS),
    tuning=choice("auto", "acceptance", "ft", "pr"),
    schedule=choice("ess", "cess") | increasing(above=0, at_most=1),
    ess_threshold=number(above=0, below=1) | choice("auto"),
    min_moves=integer(1),
    max_moves=integer(1),
    len_chain=choice("auto", None) | integer(2),
    unbiased=flag,
    keep_ladder=flag,
)
def sample_smc(
    model: Any = None,
    *,
    data: Any = None,
    draws: int = 2000,
    chains: int = 4,
    initial: Any = "prior",
    path: str = "tempering",
    kernel: str = "auto",
    tuning: str = "auto",
    schedule: str | Sequence[float] = "ess",
    ess_threshold: float | str = "auto",
    min_moves: int = 1,
    max_moves: int = 100,
    len_chain: int | str | None = "auto",
    unbiased: bool = False,
    power: float = 1.0,
    power_potentials: bool = False,
    cores: int | None = None,
    executor: Executor | None = None,
    max_time: float | None = None,
    checkpoint: str | os.PathLike | None = None,
    keep_ladder: bool = False,
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
        Where the path starts. ``"prior"`` tempers the likelihood, p(θ)L(θ)^β, and falls back to ``"laplace"`` with a
        warning where the prior cannot be sampled; the others bridge q(θ)^{1−β}{p(θ)L(θ)}^β. ``"laplace"`` is Laplace
        at every mode that climbs from a few draws of the prior find, ``"auto"`` EP where the target has the factors that it
        needs, else the former. Where Laplace is a poor start, without a mode or far off, both fall back to the prior.
    path : {"tempering", "data"}
        Along powers of the likelihood, or along the observations in their order, which :func:`~ppl_backends.update_smc`
        continues when there are more; the latter starts from the prior.
    kernel : {"auto", "hmc", "mala", "mixed", "independent", "random_walk"}
        ``"auto"`` takes HMC where the target has gradients, else random-walk and independent proposals in turn
        (``"mixed"``). Attribute ``kernel`` says which it was.
    tuning : {"auto", "acceptance", "ft", "pr"}
        Of the kernel's step, and of the number of leapfrog steps: one step for all, led to an acceptance rate; Fearnhead &
        Taylor's carrying of each particle's own; Buchholz's trial at every temperature. ``"auto"`` is the first.
    schedule : {"ess", "cess"} or sequence of float
        How the betas β are found: by the ESS of the weights; by conditional ESS (Zhou, Johansen & Aston 2016), particles
        being resampled only where their ESS is below half; or as given, increasing to 1.
    ess_threshold : float or "auto"
        Share of the particles that the ESS of every reweighting keeps; it sets the ladder. ``"auto"`` keeps a half where the
        weights are light-tailed and the chains mix, up to 0.97 elsewhere; with ``schedule="cess"`` it is 0.9. And where in
        the end a mean is worth few independent draws, or chains contradict each other, all chains run again with 0.9 and
        four times as many waste-free chains; not if ``len_chain``, ``max_time`` or ``unbiased`` is given.
    min_moves, max_moves : int
        Floor and cap of the number of moves per temperature, which is otherwise automatic.
    len_chain : int, "auto" or None
        Waste-free moves (Dau & Chopin 2022): ``draws / len_chain`` particles are resampled, each begins a chain, and of every
        chain so many states are kept, from as many moves or, where those do not forget the start, from a multiple.
        ``"auto"`` is draws / 100 but at most 50. None, and ``"auto"`` below 500 draws, moves every particle until it has
        mixed and keeps the last state alone.
    unbiased : bool
        Whether each chain runs twice, the second time with the betas, moves, scales and metrics that the first one found:
        its evidence (not the log) is then unbiased.
    power : float
        α of the tempered posterior p(θ)L(θ)^α; Potentials keep power one unless ``power_potentials``.
    cores : int, optional
        Threads for evaluating the density; all available by default.
    executor : concurrent.futures.Executor, optional
        Runs the chains elsewhere, e.g. in spawned processes; the result is the same.
    max_time : float, optional
        Seconds per chain; a chain that meets it returns what it has, marked incomplete.
    checkpoint : path, optional
        File in which the run is kept after every temperature (with one more per chain beside it). Called again with the
        same file, an unfinished run goes on from there, with the result it would have had.
    keep_ladder : bool
        Whether to keep the particles of every temperature, in group ``ladder``; see :func:`~ppl_backends.reweight`.
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
        ``log_evidence_trusted`` and ``log_evidence_method``: that of bridge sampling where the last particles are healthy and
        its standard error is the smaller one, or there is reason to distrust that of tempering (a warning then says so);
        else that of tempering. ``sample_stats`` with, per chain and stage, ``beta``, ``log_marginal_likelihood`` and the
        particles' summary, and per draw ``ancestor``.
        Particles are no time series: siblings are adjacent.

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
    _check_moves(draws, min_moves, max_moves, len_chain)
    target = with_power(as_target(model, data, cores=cores, **target_options), power, power_potentials)
    check_memory(draws, chains, target.dim)
    others = [schedule != "ess", tuning != "auto", len_chain not in (None, "auto"), unbiased, checkpoint, keep_ladder]
    if _over_data(path, initial, others):
        from ppl_backends.smc.sequential import sample_data_path

        return sample_data_path(
            target,
            draws=draws,
            chains=chains,
            kernel=kernel,
            schedule=make_schedule("ess", ess_threshold),
            moves=MoveSettings(min_moves, max_moves),
            executor=executor,
            max_time=max_time,
            random_seed=random_seed,
            progressbar=progressbar,
            log_likelihood=log_likelihood,
            log_prior=log_prior,
        )
    clock = time.perf_counter()
    chosen = choose_kernel(kernel, target)
    options: dict[str, Any] = {
        "schedule": make_schedule(schedule, ess_threshold),
        "moves": MoveSettings(min_moves, max_moves),
        "len_chain": _chain_length(len_chain, draws),
        "tuning": _DEFAULT_TUNING if tuning == "auto" else tuning,
        "unbiased": unbiased,
        "keep_ladder": keep_ladder,
    }
    identity = {"draws": draws, "chains": chains, "kernel": chosen.name, **options, "power": power}
    identity["power_potentials"] = power_potentials
    saved = None if checkpoint is None else Checkpoint.open(checkpoint, target, identity, initial, random_seed)
    seed = saved.seed if saved else random_seed
    generators = spawn_generators(seed, 2 * chains + 4)
    result_rng, initial_rng, bridge_rng, check_rng = generators[chains : chains + 4]
    route = choose_path(target, saved.initial if saved else initial, initial_rng)
    if saved:
        saved = saved.begin(route)
    begin = partial(run_chains, route, chosen, draws, executor=executor, progressbar=progressbar)
    runs, interrupted = begin(generators[:chains], options | {"max_time": max_time}, checkpoint=saved)
    runs, unfinished = split_finished(runs, chains, interrupted)
    left_to_run = options["schedule"].is_adaptive and len_chain in ("auto", None) and not unbiased and max_time is None
    again = None
    if left_to_run and not unfinished and is_too_coarse(runs, _estimate(runs)):
        again = _run_again(partial(begin, generators[chains + 4 :], finer(options), checkpoint=None))
    if again:
        runs, options = again, finer(options)
    estimate = with_prior_error(_estimate(runs), route)
    bridge = _bridge(route, runs, bridge_rng)
    waste_free = options["len_chain"] is not None
    prior = prior_normalizer(route, runs) if isinstance(route, PriorPath) else None
    verdict = judge(
        runs,
        estimate,
        bridge,
        chains_kept=waste_free,
        replaceable=not unbiased,
        prior_error=0.0 if prior is None else prior.standard_error,
        short_steps=try_short_steps(route, chosen, runs, check_rng),
        names=target.names,
    )
    verdict = _with_start(verdict, route)
    warn_if_distrusted(unfinished, verdict.reasons, verdict.replaced)
    return smc_inference_data(
        route,
        chosen.name,
        runs,
        verdict,
        unfinished,
        rng=result_rng,
        sampling_time=time.perf_counter() - clock,
        log_likelihood=log_likelihood,
        log_prior=log_prior,
        attrs={
            "tuning": options["tuning"],
            "len_chain": options["len_chain"] or 1,
            "schedule": options["schedule"].kind,
            "unbiased": int(unbiased),
            "run_again": int(again is not None),
        }
        | (evidence_attrs(estimate, bridge) if all(run.complete for run in runs) else {}),
    )


def _run_again(begin: Callable[[], tuple[list[SMCResult], bool]]) -> list[SMCResult] | None:
    """The chains of a second run; None where Ctrl-C ended it, since those of the first one are there."""
    try:
        runs, interrupted = begin()
    except KeyboardInterrupt:
        return None
    return None if interrupted or not all(run.complete for run in runs) else runs


def _estimate(runs: Sequence[SMCResult]) -> EvidenceEstimate:
    """The evidence of tempering."""
    return combine_evidence(*np.array([(run.log_evidence, run.lineage.variance, run.lineage.df) for run in runs]).T)


def _bridge(path: TemperingPath, runs: Sequence[SMCResult], rng: np.random.Generator) -> EvidenceEstimate | None:
    """The evidence from the last particles alone, where these were moved at β = 1."""
    if not all(run.complete and run.weighted is None for run in runs):
        return None
    samples = [Sample(run.x, run.log_density, run.lineage.ancestor) for run in runs]
    return bridge_evidence(samples, lambda x: path.evaluate(x, 1.0, False).log_density, rng)


def _over_data(path: str, initial: Any, others: Sequence[Any]) -> bool:
    """Whether the path runs over the data, with which some options do not go."""
    if path == "data" and not (isinstance(initial, str) and initial == "prior"):
        raise ModelError("path='data' starts from the prior: leave initial= out")
    if path == "data" and any(others):
        raise ModelError(
            "schedule=, tuning=, len_chain=, unbiased=, checkpoint= and keep_ladder= need path='tempering'; "
            "what path='data' returns can itself go on"
        )
    return path == "data"


def _with_start(verdict: Verdict, path: TemperingPath) -> Verdict:
    """The verdict on a run, with what is wrong with the Gaussian it began with where it is not to be trusted."""
    start = path.approximation if isinstance(path, BridgePath) else None
    if not verdict.reasons or not isinstance(start, GaussianApproximation) or not start.trouble:
        return verdict
    said = f"the {start.method} approximation that it starts from is far from the posterior ({start.trouble})"
    return verdict._replace(reasons=[*verdict.reasons, said])


def choose_path(target: BaseTarget, initial: Any, rng: np.random.Generator) -> TemperingPath:
    """The path that ``initial`` names; the prior and approximations fall back on one another where one cannot be had."""
    name = initial if isinstance(initial, str) else "given"
    if name == "prior":
        try:
            return prior_path(target, rng)
        except PriorSamplingError as error:
            warnings.warn(f"{error}; starting from the Laplace approximation instead", SamplerWarning, stacklevel=4)
            initial = name = "laplace"
    if name == "given":
        from ppl_backends.approximations.resolve import resolve_approximation

        approximation = resolve_approximation(target, initial, random_seed=rng, argument="initial")
        return BridgePath(target, approximation, with_tails(target, approximation))
    return _approximation_path(target, name, rng)


def _approximation_path(target: BaseTarget, name: str, rng: np.random.Generator) -> TemperingPath:
    """The path from the approximation of that name; from the prior where it is a poor start, and the prior can be sampled."""
    from ppl_backends.approximations.given import is_poor_start
    from ppl_backends.approximations.modes import with_other_modes
    from ppl_backends.approximations.resolve import resolve_start, warn_if_poor

    try:
        approximation = resolve_start(target, name, random_seed=rng, argument="initial")
    except ModelError as error:
        path = _prior_path_if_any(target, rng) if name == "auto" else None
        if path is None:
            raise
        text = f"initial: there is no Laplace approximation to start from ({error}); starting from the prior instead"
        warnings.warn(text, SamplerWarning, stacklevel=5)
        return path
    if name == "laplace":
        approximation = with_other_modes(target, approximation)
    path = _prior_path_if_any(target, rng) if is_poor_start(approximation) else None
    warn_if_poor(target, approximation, "initial", "" if path is None else "; starting from the prior instead")
    return BridgePath(target, approximation, with_tails(target, approximation)) if path is None else path


def _prior_path_if_any(target: BaseTarget, rng: np.random.Generator) -> TemperingPath | None:
    """The path from the prior; None where the prior cannot be sampled."""
    try:
        return prior_path(target, rng)
    except PriorSamplingError:
        return None


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
        prior = target.prior_target()
        if prior is None:
            raise
        return SampledPriorPath(target, prior)


def choose_kernel(name: str, target: BaseTarget) -> Kernel:
    """The kernel asked for; ``"auto"`` is HMC where the target has gradients, else the mixed one."""
    if name == "auto":
        return make_kernel("hmc" if target.has_gradient else "mixed")
    chosen = make_kernel(name)
    if chosen.uses_gradient and not target.has_gradient:
        raise ModelError(f"kernel={name!r} needs gradients and {target.label} has none; use kernel='random_walk'")
    return chosen


def _check_moves(draws: int, min_moves: int, max_moves: int, len_chain: int | str | None) -> None:
    if min_moves > max_moves:
        raise ModelError(f"min_moves={min_moves!r}, max_moves={max_moves!r}: expected min_moves <= max_moves")
    if isinstance(len_chain, int) and len_chain > draws // 2:
        raise ModelError(f"len_chain={len_chain!r}: expected 'auto', None or an integer from 2 to draws / 2")


def _chain_length(len_chain: int | str | None, draws: int) -> int | None:
    """States kept of a waste-free chain; None where only the last one is."""
    if len_chain == "auto":
        return min(draws // _AUTO_CHAINS, _LONGEST_AUTO) if draws >= _FEWEST_AUTO * _AUTO_CHAINS else None
    return len_chain  # type: ignore[return-value]
