"""``sample_smc``: independent runs of tempering SMC on any model, as InferenceData."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

from ppl_backends.errors import ModelError
from ppl_backends.kernels.metric import METRICS
from ppl_backends.kernels.table import KERNELS
from ppl_backends.kernels.tuning import FirstPairs
from ppl_backends.options import (
    approximation,
    check_memory,
    checked,
    choice,
    flag,
    increasing,
    instance,
    integer,
    number,
)
from ppl_backends.random import spawn_generators
from ppl_backends.smc.checkpoint import Checkpoint
from ppl_backends.smc.health import reasons_of_lone_chain, warn_if_distrusted
from ppl_backends.smc.moves import move_settings
from ppl_backends.smc.outcome import Call
from ppl_backends.smc.polya_gamma import TemperedPolyaGamma
from ppl_backends.smc.results import smc_inference_data
from ppl_backends.smc.routes import choose_kernel, choose_path
from ppl_backends.smc.sampler import Settings
from ppl_backends.smc.schedule import make_schedule
from ppl_backends.smc.straightened import is_straightened
from ppl_backends.targets.convert import as_target, naming
from ppl_backends.targets.power import with_power

_DEFAULT_TUNING = "acceptance"
# Defaults of waste-free chains: their number, and their shortest and longest length. Runs with shorter chains are not
# waste-free.
_AUTO_CHAINS, _FEWEST_AUTO, _LONGEST_AUTO = 100, 5, 50


@checked(
    draws=integer(2),
    initial=approximation("prior", "auto", "laplace", "ep", "vi"),
    kernel=choice("auto", *KERNELS, TemperedPolyaGamma.name),
    tuning=choice("auto", "acceptance", "ft", "pr") | instance(FirstPairs, "FirstPairs"),
    metric=choice(*METRICS),
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
    kernel: str = "auto",
    tuning: str | FirstPairs = "auto",
    metric: str = "dense",
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
    log_likelihood: Any = False,
    log_prior: bool = False,
    **target_options: Any,
) -> Any:
    r"""Estimate posterior and evidence by tempering SMC from the prior or from a Gaussian approximation.

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
        Start of the path. ``"prior"`` tempers the likelihood, p(θ)L(θ)^β; if the prior cannot be sampled, it warns and
        uses ``"laplace"``. The others bridge q(θ)^{1−β}{p(θ)L(θ)}^β. ``"laplace"`` is Laplace at every mode that a search
        from a few draws of the prior finds. ``"auto"`` is EP if the target has the factors for it, else Laplace. If Laplace
        is a poor start, without a mode or far from the posterior, both use the prior.
    kernel : {"auto", "hmc", "mala", "barker", "mixed", "independent", "random_walk", "polya_gamma"}
        ``"auto"`` is HMC if the target has gradients, else random-walk and independent proposals alternately (``"mixed"``).
        If HMC does not mix because the log density jumps, as at a change point, all chains run with ``"mixed"`` instead.
        Attribute ``kernel`` names the kernel used. ``"polya_gamma"`` is the Gibbs step of logistic, negative
        binomial and normal regressions without hyper-parameters, whose likelihood to a power has the same latent variables;
        it needs ``initial="prior"`` and the extra of that name.
    tuning : {"auto", "acceptance", "ft", "pr"} or FirstPairs
        Tuning of the kernel's step size and number of leapfrog steps. ``"acceptance"`` adapts one step size for all particles
        to an acceptance rate; ``"ft"`` lets each particle carry its own (Fearnhead & Taylor); ``"pr"`` makes trial moves at
        every temperature (Buchholz). ``"auto"`` is the first. :class:`~ppl_backends.FirstPairs` sets the first pairs of the
        last two.
    metric : {"dense", "diagonal"}
        Scales of proposals: the particles' covariance, or only their standard deviations, which is cheap in many
        dimensions but ignores correlations.
    schedule : {"ess", "cess"} or sequence of float
        Choice of the powers β: by the ESS of the weights; by conditional ESS (Zhou, Johansen & Aston 2016), with
        resampling only when the ESS is below half (waste-free chains resample at every β); or a given sequence that
        increases to 1.
    ess_threshold : float or "auto"
        ESS of every reweighting as a share of the particles; it determines the ladder. ``"auto"`` is a half if the
        weights are light-tailed and the chains mix, and up to 0.97 otherwise; with ``schedule="cess"`` it is 0.9. If at the
        end chains disagree, trajectories diverge in a funnel, or the effective sample size of a mean or sd is small, also
        after more moves at the last temperature, ``"auto"`` repeats the run with 0.9 and four times as many waste-free
        chains, unless ``len_chain``, ``max_time`` or ``unbiased`` is given.
    min_moves, max_moves : int
        Smallest and largest number of moves per temperature; the number is chosen automatically between them.
    len_chain : int, "auto" or None
        Length of waste-free chains (Dau & Chopin 2022): ``draws / len_chain`` particles are resampled, each begins a chain,
        and ``len_chain`` states of every chain are kept, from as many moves, or from a multiple if they still correlate with
        the start. ``"auto"`` is draws / 100 but at most 50. None, and ``"auto"`` below 500 draws, moves every particle until
        it has mixed and keeps only the last state.
    unbiased : bool
        Whether each chain runs twice, the second time with the betas, moves, scales and metrics that the first run chose.
        The evidence (not its log) is then unbiased.
    power : float
        α of the tempered posterior p(θ)L(θ)^α.
    power_potentials : bool
        Whether Potentials have this power too. They keep power one by default.
    cores : int, optional
        Threads for evaluating the density; all available by default.
    executor : concurrent.futures.Executor, optional
        Runs the chains elsewhere, e.g. in spawned processes; the result is the same.
    max_time : float, optional
        Seconds per chain. A chain that exceeds them is left out; if no chain finishes, the result has the particles of the
        last finished temperature, marked incomplete. At least one temperature is finished.
    checkpoint : path, optional
        File that saves the run after every temperature (with one more file per chain beside it). The same call with
        the same file continues an unfinished run, with the result that it would have had.
    keep_ladder : bool
        Whether to keep the particles of every temperature, in group ``ladder``; see :func:`~ppl_backends.reweight`.
    random_seed : int or Generator, optional
    progressbar : bool
    log_likelihood, log_prior : bool
        Whether to store those groups. ``log_likelihood`` may name generated quantities of a Stan program.
    **target_options
        Passed to :func:`~ppl_backends.as_target`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        ``posterior`` with attributes ``log_evidence``, ``log_evidence_se``, ``log_evidence_df``,
        ``log_evidence_trusted`` and ``log_evidence_method``. The method is bridge sampling if the last particles are healthy
        and either its standard error is smaller or tempering's evidence is distrusted (a warning then says so); else it is
        tempering. ``sample_stats`` has, per chain and stage, ``beta``, ``log_marginal_likelihood`` and the
        particles' summary, and per draw ``ancestor``. Particles are not a time series: copies of one particle are adjacent.

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
    moves, length = move_settings(min_moves, max_moves), chain_length(len_chain, draws)
    target = with_power(
        as_target(model, data, cores=cores, **naming(log_likelihood), **target_options), power, power_potentials
    )
    check_memory(draws, chains, target.values_per_draw)
    clock = time.perf_counter()
    chosen = choose_kernel(kernel, target, target.has_gradient)
    settings = Settings(
        schedule=make_schedule(schedule, ess_threshold),
        moves=moves,
        len_chain=length,
        tuning=_DEFAULT_TUNING if tuning == "auto" else tuning,
        metric=metric,
        unbiased=unbiased,
        keep_ladder=keep_ladder,
        max_time=max_time,
    )
    identity = {"draws": draws, "chains": chains, "kernel": chosen.name, **settings._asdict()}
    identity |= {"max_time": None, "power": power, "power_potentials": power_potentials}
    saved = None if checkpoint is None else Checkpoint.open(checkpoint, target, identity, initial, random_seed)
    generators = spawn_generators(saved.seed if saved else random_seed, 7 * chains + 4)
    result_rng, initial_rng, *of_judge = generators[chains : chains + 4]
    path = choose_path(target, saved.initial if saved else initial, initial_rng, chosen, settings)

    call = Call(path, chosen, draws, executor, progressbar)
    may_run_again = settings.schedule.is_adaptive and len_chain in ("auto", None) and not unbiased and max_time is None
    again, *others = [generators[k * chains + 4 : (k + 1) * chains + 4] for k in range(1, 6)] if may_run_again else [[]]
    across = generators[-chains:] if may_run_again and kernel == "auto" and chosen.uses_gradient else []
    begun = saved.begin(path) if saved else None
    call, finished = call.run_across_jumps(settings, generators[:chains], again, across, begun)
    done, unfinished = call.judge(finished, *of_judge), finished.unfinished
    if unfinished:
        done = done.distrusted(reasons_of_lone_chain(done.figures.runs, chains))
    else:
        done = done.checked_by_others(settings, others, of_judge)
    call, figures, verdict, attrs, made = done
    warn_if_distrusted(unfinished, verdict.reasons, verdict.replaced)
    return smc_inference_data(
        call.path,
        call.kernel.name,
        figures.runs,
        verdict,
        unfinished,
        rng=result_rng,
        sampling_time=time.perf_counter() - clock,
        log_likelihood=log_likelihood,
        log_prior=log_prior,
        attrs={
            "tuning": made.tuning if isinstance(made.tuning, str) else made.tuning.tuning,
            "metric": made.metric,
            "len_chain": made.len_chain or 1,
            "schedule": made.schedule.kind,
            "unbiased": int(unbiased),
            "run_again": int(made.schedule is not settings.schedule or is_straightened(call.path)),
        }
        | attrs,
        looks_beyond=not unfinished and not target.is_estimated,
    )


def chain_length(len_chain: int | str | None, draws: int) -> int | None:
    """Return the number of states kept of a waste-free chain; None if only the last state is kept."""
    if isinstance(len_chain, int) and len_chain > draws // 2:
        raise ModelError(f"len_chain={len_chain!r}: expected 'auto', None or an integer from 2 to draws / 2")
    if len_chain == "auto":
        return min(draws // _AUTO_CHAINS, _LONGEST_AUTO) if draws >= _FEWEST_AUTO * _AUTO_CHAINS else None
    return len_chain  # type: ignore[return-value]
