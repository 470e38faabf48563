"""``sample_tempering``: non-reversible parallel tempering of any model, as InferenceData."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

import numpy as np

from ppl_backends.approximations.lost_mode import LostMode
from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.kernels.table import KERNELS
from ppl_backends.options import approximation, check_memory, checked, choice, integer
from ppl_backends.parallel import run_jobs
from ppl_backends.progress import ChainProgress
from ppl_backends.random import spawn_generators
from ppl_backends.results.inference_data import build_inference_data
from ppl_backends.smc.bridge_sampling import Sample
from ppl_backends.smc.by_mode import ModeEvidences, evidences_by_mode
from ppl_backends.smc.evidence import EvidenceEstimate
from ppl_backends.smc.health import agrees
from ppl_backends.smc.lost_modes import find_lost_mode
from ppl_backends.smc.path import TemperingPath
from ppl_backends.smc.records import Visited
from ppl_backends.smc.results import prior_normalizer, with_error_of, with_prior_error
from ppl_backends.smc.routes import choose_kernel, choose_path
from ppl_backends.smc.sampler import Settings
from ppl_backends.targets.convert import as_target, naming
from ppl_backends.targets.integral import PriorIntegral
from ppl_backends.targets.power import with_power
from ppl_backends.targets.propriety import improper_note
from ppl_backends.tempering.barrier import MOST
from ppl_backends.tempering.evidence import SteppingStones, stepping_stones
from ppl_backends.tempering.run import Run, run_ensemble
from ppl_backends.tempering.scan import Ensemble, Plan, ScanFigures
from ppl_backends.tempering.verdict import Diagnostics, Visits, diagnose, disagreement_by_mode, reasons

_BATCH = 20  # scans
_VISITED = 1024  # states at all temperatures that the search for lost modes starts from


@checked(
    draws=integer(2),
    tune=integer(0),
    initial=approximation("prior", "auto", "laplace", "ep", "vi"),
    kernel=choice("auto", *KERNELS),
    temperatures=choice("auto") | integer(2, MOST + 1),
    moves=choice("auto") | integer(1),
)
def sample_tempering(
    model: Any = None,
    *,
    data: Any = None,
    draws: int = 1000,
    tune: int = 1000,
    chains: int = 4,
    initial: Any = "prior",
    kernel: str = "auto",
    temperatures: int | str = "auto",
    moves: int | str = "auto",
    power: float = 1.0,
    power_potentials: bool = False,
    cores: int | None = None,
    executor: Executor | None = None,
    random_seed: Any = None,
    progressbar: bool = True,
    log_likelihood: Any = False,
    log_prior: bool = False,
    **target_options: Any,
) -> Any:
    r"""Draw from a posterior with several modes, and estimate its evidence, by non-reversible parallel tempering.

    Replicas at temperatures β from 0 (the reference: the prior, or an approximation) to 1 (the posterior) each move by
    a Markov kernel and swap places with their neighbours. A replica that travels from the reference to the posterior
    and back brings an independent state, possibly from another mode.

    Parameters
    ----------
    model : pymc.Model, Stan program or Target, optional
        The PyMC model on the context stack by default.
    data : dict or path, optional
        Data of a Stan program.
    draws, tune, chains : int
        Draws kept per chain, one for each scan; tuning scans before them, in rounds that double in length and adapt
        temperatures and kernels; and independent ensembles of replicas. All replicas of all chains move as one batch.
    initial : {"prior", "auto", "laplace", "ep", "vi"} or approximation
        The reference, as in :func:`~ppl_backends.sample_smc`. If it gives independent draws, every scan draws it anew.
    kernel : {"auto", "hmc", "mala", "barker", "mixed", "independent", "random_walk"}
        Moves of the replicas, with a metric and a step for every temperature. ``"auto"`` is HMC if the target has
        gradients, else ``"mixed"``.
    temperatures : int or "auto"
        Their number, including β = 0 and 1. ``"auto"`` is about 2Λ + 1, with Λ the communication barrier that tuning
        estimates.
    moves : int or "auto"
        Moves of every replica between swaps. ``"auto"`` makes enough moves for them alone to leave an
        autocorrelation of at most 0.6 in the log likelihood at a temperature.
    power : float
        α of the tempered posterior p(θ)L(θ)^α.
    power_potentials : bool
        Whether Potentials have this power too. They keep power one by default.
    cores : int, optional
        Threads for evaluating the density; all available by default. The result does not depend on it.
    executor : concurrent.futures.Executor, optional
        Runs the batch elsewhere; the result is the same.
    random_seed : int or Generator, optional
    progressbar : bool
    log_likelihood, log_prior : bool
        Whether to store those groups. ``log_likelihood`` may name generated quantities of a Stan program.
    **target_options
        Passed to :func:`~ppl_backends.as_target`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        ``posterior`` with attributes ``log_evidence`` (by stepping stones, or by a bridge in every separated mode, whose
        shares are ``mode_shares`` and those of the draws), ``log_evidence_se``, ``log_evidence_df``,
        ``log_evidence_trusted`` and ``warnings``, and ``communication_barrier``, ``round_trips``,
        ``expected_round_trips``, ``max_rhat``. ``sample_stats`` has per temperature ``beta``, ``local_barrier``,
        ``cumulative_barrier``, ``acceptance_rate_level``, ``step_size``, ``log_evidence_level``; per pair of
        neighbours (index i for i and i + 1, the last one NaN) and chain ``swap_acceptance``; and per draw ``lp`` and
        ``round_trip``. An interrupted run (Ctrl-C) returns the draws that there are, and attribute ``complete`` is 0.

    Raises
    ------
    ModelError
        If an option is out of range, the likelihood is an estimate, or no starting point has a finite density.

    Warns
    -----
    SamplerWarning
        If diagnostics of the run show that draws and evidence should not be trusted.

    References
    ----------
    Syed, S., Bouchard-Côté, A., Deligiannidis, G. and Doucet, A. (2022). Non-reversible parallel tempering: a scalable
    highly parallel MCMC scheme. *Journal of the Royal Statistical Society B* 84(2), 321-350.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends import FunctionTarget, sample_tempering
    >>> def two_modes(x):
    ...     near, far = -0.5 * (x[:, 0] - 4) ** 2 + np.log(0.3), -0.5 * (x[:, 0] + 4) ** 2 + np.log(0.7)
    ...     total = np.logaddexp(near, far)
    ...     share = np.exp(near - total)[:, None]
    ...     return total, share * (4 - x) + (1 - share) * (-4 - x)
    >>> prior = lambda x: (-0.5 * x[:, 0] ** 2 / 100 - 0.5 * np.log(200 * np.pi), -x / 100)
    >>> target = FunctionTarget(1, two_modes, prior, lambda n, rng: 10 * rng.standard_normal((n, 1)))
    >>> idata = sample_tempering(target, draws=500, tune=200, chains=2, random_seed=1, progressbar=False)
    >>> bool(abs(float((idata.posterior["x"] > 0).mean()) - 0.3) < 0.1)
    True
    """
    clock = time.perf_counter()
    target = with_power(
        as_target(model, data, cores=cores, **naming(log_likelihood), **target_options), power, power_potentials
    )
    check_memory(draws, chains, target.values_per_draw)
    if target.is_estimated:
        raise ModelError(f"{target.label}: the likelihood is an estimate; use sample_smc or sample_pmmh")
    rng, result_rng, initial_rng, check_rng = spawn_generators(random_seed, 4)
    chosen = choose_kernel(kernel, target, target.has_gradient)
    path = choose_path(target, initial, initial_rng, chosen, Settings()).for_moves(chosen.uses_gradient)
    plan = Plan(None if temperatures == "auto" else temperatures - 1, None if moves == "auto" else moves)  # type: ignore[operator, arg-type]
    make = partial(run_ensemble, path, chosen.name, chains, draws, tune, plan, rng)
    run = _run(make, executor, progressbar)

    stones = stepping_stones(run.betas, run.increment)
    evidence = _evidence(path, run, stones)
    lost = _lost(path, run, evidence, check_rng)
    found = diagnose(run, evidence, stones, lost)
    said = reasons(run, found, target.names, tune)
    by_mode = None if said or not run.complete else _by_mode(path, run, check_rng)
    if by_mode is not None and not agrees(evidence, by_mode.evidence):
        said.append(disagreement_by_mode(evidence, by_mode.evidence))
    if said or by_mode is None or not by_mode.evidence.standard_error < evidence.standard_error:
        by_mode = None
    else:
        run = _with_shares(run, by_mode, check_rng)
    _warn(run, said)
    return build_inference_data(
        target,
        run.x,
        method="parallel tempering",
        accuracy="exact" if run.complete and not said else "approximate",
        sampling_time=time.perf_counter() - clock,
        rng=result_rng,
        attrs=_attrs(path, run, found, said, by_mode) | {"kernel": chosen.name},
        sample_stats=_stats(run, found),
        log_likelihood=log_likelihood,
        log_prior=log_prior,
        looks_beyond=run.complete,
    )


def _run(make: Callable[..., Run], executor: Executor | None, progressbar: bool) -> Run:
    """Run the batch, here with a progress bar or over an executor."""
    shown = ("Λ", "levels", "round trips")
    with ChainProgress("Tempering", 1, shown, enabled=progressbar) as progress:
        trips, rejected, seen = 0, 0.0, 0

        def report(done: float, ensemble: Ensemble, figures: ScanFigures) -> None:
            nonlocal trips, rejected, seen
            trips, seen = trips + int(figures.trips.sum()), seen + 1
            rejected += (float(figures.rejection.mean(axis=0).sum()) - rejected) / min(seen, 100)
            if seen % 20 == 0 or done == 1.0:
                now: dict[str, float | str] = {
                    "Λ": f"{rejected:.2f}",
                    "levels": str(ensemble.levels),
                    "round trips": str(trips),
                }
                progress.update(0, done, **now)

        job = partial(make, report=report) if executor is None else make
        found, _ = run_jobs([job], executor, lambda run: not run.complete)
    if found[0] is None:
        raise KeyboardInterrupt("interrupted before the first draw")
    return found[0]


def _evidence(path: TemperingPath, run: Run, stones: SteppingStones) -> EvidenceEstimate:
    """Return the evidence: stepping stones from the reference, plus the log of its own integral and share in the support."""
    evidence, start, (share, tries) = stones.combined, run.start, run.support
    if not path.draws_are_independent:
        evidence = with_error_of(PriorIntegral(0.0, start.variance**0.5, start.df), evidence)
    if share < 1.0:
        error = float(np.sqrt((1.0 - share) / (tries * share)))
        evidence = with_error_of(PriorIntegral(0.0, error, max(1.0, tries * share)), evidence)
    base = start.log_normalizer + float(np.log(share))
    return with_prior_error(evidence._replace(log_evidence=evidence.log_evidence + base), path)


def _lost(path: TemperingPath, run: Run, evidence: EvidenceEstimate, rng: np.random.Generator) -> LostMode | None:
    """Return a mode that no draw is in but climbs from states at other temperatures find, or None."""
    chains, _, dim = run.x.shape
    x, first = np.unique(run.x.reshape(-1, dim), axis=0, return_index=True)
    if len(x) <= 2 * dim:
        return None
    visited = run.visited[:: -(-len(run.visited) // _VISITED)]
    log_density = path.evaluate(visited, 1.0, False).log_density
    seen = Visits(x, run.log_density.reshape(-1)[first], Visited.of(visited, log_density))
    # Moves have compiled no gradient of another size.
    rows = chains * len(run.betas) if path.uses_gradient else _VISITED
    return find_lost_mode(path, [seen], evidence.log_evidence, rows, rng)


def _by_mode(path: TemperingPath, run: Run, rng: np.random.Generator) -> ModeEvidences | None:
    """Return the evidences of separated modes by bridges from the draws in each; those of a batch of scans count as one."""
    batch = np.arange(run.x.shape[1]) // _BATCH
    samples = [Sample(x, log_density, batch) for x, log_density in zip(run.x, run.log_density, strict=True)]
    return evidences_by_mode(samples, path.log_density, rng)


def _with_shares(run: Run, by_mode: ModeEvidences, rng: np.random.Generator) -> Run:
    """Return the run with draws resampled, in their order, so that every mode has its share."""
    chosen = np.stack([by_mode.resampled(chain, rng) for chain in range(len(run.x))])
    rows = np.arange(len(run.x))[:, None]
    return run._replace(x=run.x[rows, chosen], log_density=run.log_density[rows, chosen])


def _warn(run: Run, said: list[str]) -> None:
    """Emit one warning with an interrupt and all reasons."""
    texts = [] if run.complete else [f"interrupted: {run.x.shape[1]} of {run.draws} draws are returned"]
    if said:
        texts.append("do not trust these draws yet: " + "; ".join(said))
    if texts:
        warnings.warn(f"parallel tempering: {'; '.join(texts)}", SamplerWarning, stacklevel=user_level())


def _attrs(
    path: TemperingPath, run: Run, found: Diagnostics, said: list[str], by_mode: ModeEvidences | None
) -> dict[str, Any]:
    """Return the attributes of the posterior, with the evidence of bridges in every mode where there is one."""
    stones, scans = found.evidence, run.x.shape[1]
    evidence = stones if by_mode is None else with_prior_error(by_mode.evidence, path)
    attrs: dict[str, Any] = {
        "log_evidence": evidence.log_evidence,
        "log_evidence_se": evidence.standard_error,
        "log_evidence_df": evidence.df,
        "log_evidence_method": "stepping stones" if by_mode is None else "bridge sampling by mode",
        "log_evidence_stones": stones.log_evidence,
        "log_evidence_stones_se": stones.standard_error,
        "log_evidence_forward": stones.log_evidence + found.stones.gap[0],
        "log_evidence_backward": stones.log_evidence
        + float((found.stones.backward - found.stones.log_evidence).mean()),
        "log_evidence_trusted": int(not said and run.complete),
        "log_evidence_note": improper_note(path.target),
        "warnings": "; ".join(said),
        "complete": int(run.complete),
        "initial": path.description,
        "communication_barrier": found.barrier.total,
        "round_trips": found.round_trips,
        "expected_round_trips": found.barrier.round_trip_rate * scans * len(run.x),
        "max_rhat": float(np.nanmax(found.rhat)) if np.isfinite(found.rhat).any() else None,
        "moves": run.moves,
        "mode_shares": None if by_mode is None else by_mode.shares,
    }
    integral = prior_normalizer(path, [run])  # type: ignore[list-item]
    return attrs if integral is None else attrs | integral.attrs(evidence.log_evidence)


def _stats(run: Run, found: Diagnostics) -> dict[str, Any]:
    """Return figures per temperature, per pair of neighbours and chain, and per draw."""
    swaps = np.pad(1.0 - run.rejection.mean(axis=1), ((0, 0), (0, 1)), constant_values=np.nan)
    return {
        "lp": (("chain", "draw"), run.log_density),
        "round_trip": (("chain", "draw"), run.trips),
        "beta": (("temperature",), run.betas),
        "swap_acceptance": (("chain", "temperature"), swaps),
        "local_barrier": (("temperature",), found.barrier.local),
        "cumulative_barrier": (("temperature",), found.barrier.cumulative),
        "acceptance_rate_level": (("temperature",), run.acceptance),
        "step_size": (("temperature",), np.asarray(run.scale)),
        "log_evidence_level": (("temperature",), found.stones.by_level),
        "round_trips": (("chain",), run.trips.sum(axis=1)),
        "log_evidence_single_run": (("chain",), found.stones.log_evidence),
        "log_evidence_single_run_se": (("chain",), np.sqrt(found.stones.variance)),
    }
