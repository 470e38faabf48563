"""``sample_abc``: approximate Bayesian computation with randomised quasi-Monte Carlo points."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.numerics.weights import systematic_resampling
from ppl_backends.options import array, check_memory, checked, choice, flag, function, instance, integer, none, number
from ppl_backends.progress import ChainProgress
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.results import build_inference_data
from ppl_backends.simulators.abc.adjustment import adjusted
from ppl_backends.simulators.abc.discrepancy import DISTANCES, SUMMARIES
from ppl_backends.simulators.abc.importance import mean_with_error
from ppl_backends.simulators.abc.kernels import KERNELS
from ppl_backends.simulators.abc.problem import AbcProblem, make_problem
from ppl_backends.simulators.abc.proposals import prior_points
from ppl_backends.simulators.abc.sequential import Plan, Record, SequentialResult, run_sequential
from ppl_backends.simulators.abc.stages import Budget
from ppl_backends.targets.protocol import Array

__all__ = ["sample_abc"]

SMALLEST_SIZE = 100  # effective size of the last stage below which nothing is trusted
DATA_SETS = 4
CAP = 100  # times r: data sets of a point, with negative-binomial weights


@checked(
    acceptance_floor=number(above=0, below=1),
    adjust=choice(None, "linear", "heteroscedastic"),
    data_sets=none | integer(1),
    distance=none | choice(*DISTANCES) | function("a function of observed and simulated summaries"),
    epsilon=choice("auto") | number(at_least=0) | instance(Mapping, "a dict from names of Simulators to numbers"),
    hits=none | integer(3),
    kernel=choice(None, *KERNELS),
    max_hit_simulations=none | integer(3),
    max_simulations=none | integer(100),
    method=choice("auto", "importance", "sequential"),
    observed=none | array(),
    pilot_points=integer(64),
    qmc=flag,
    simulate=none | function("a function of parameters and a generator"),
    summary=none | choice(*SUMMARIES) | function("a function of a data set"),
)
def sample_abc(
    model: Any = None,
    *,
    epsilon: Any = "auto",
    kernel: str | None = None,
    qmc: bool = True,
    method: str = "auto",
    simulate: Any = None,
    observed: Any = None,
    data: Any = None,
    summary: Any = None,
    distance: Any = None,
    executor: Executor | None = None,
    cores: int | None = None,
    draws: int = 2000,
    chains: int = 4,
    data_sets: int | None = None,
    hits: int | None = None,
    max_hit_simulations: int | None = None,
    pilot_points: int = 1024,
    acceptance_floor: float = 0.01,
    max_simulations: int | None = None,
    max_time: float | None = None,
    adjust: str | None = None,
    random_seed: SeedLike = None,
    progressbar: bool = True,
) -> Any:
    """Posterior and evidence by simulation, for models that can be simulated and not evaluated.

    Data are simulated at points of adaptive proposals and weighted by how near they are to the observed. The result is the
    ABC posterior, p(θ) E[K_ε(d) | θ] up to a constant: wider than the posterior, the less so the smaller ε.

    Parameters
    ----------
    model : pymc.Model, Stan model or target, optional
        With ``pm.Simulator`` variables, whose function, ``distance``, ``sum_stat`` and ``epsilon`` mean what they mean in
        PyMC; or any model with a prior, together with ``simulate`` and ``observed``. Ordinary likelihoods join the weights.
    epsilon : "auto", float or dict
        The last tolerance; of the joint distance where there are several Simulators, or of each by name. ``"auto"`` ends at
        the Simulators' own where one was set, else where ``acceptance_floor``, ``max_simulations`` or ``max_time`` end it.
    kernel : {"uniform", "gaussian", "laplace", "epanechnikov"}, optional
        K with K(0) = 1. By default a Simulator's own, else ``"uniform"``.
    qmc : bool
        Whether parameters are points of scrambled nets.
    method : {"auto", "sequential", "importance"}
        ``"importance"`` draws all parameters from the prior; ``"auto"`` is sequential.
    simulate : callable, optional
        ``(parameters, rng) -> data``: arrays with a leading axis, by name, to data sets ``(n, ...)``; a function of single
        values is called for one data set after the other. So is one whose batches do not hold independent data sets.
    observed : array, optional
    data : dict or path, optional
        Data of a Stan model, or new values of ``pm.Data``.
    summary : {"identity", "sort", "mean", "median"} or callable, optional
        Of a data set, or of many ``(n, ...)``.
    distance : {"euclidean", "manhattan"} or callable, optional
        ``(observed summary, simulated summary) -> float``, or the same of many.
    executor : concurrent.futures.Executor, optional
        Where blocks of points are simulated; the results are the same bits.
    cores : int, optional
        Threads for evaluating densities.
    draws, chains : int
        Equally weighted draws kept per chain; a chain is an independent scramble of the next power of two of points, with an
        eighth of points from the prior on top.
    data_sets : int, optional
        M, simulated data sets a point, on average; four by default, and then a simulator that draws many at once has up to
        16 times the points, so that the evidence has an error of 1.5 %. With one there is no single-run error and no
        posterior predictive.
    hits : int, optional
        r, for negative-binomial weights in the last stage: data sets are simulated at a point until r are within ε. Uniform
        kernel.
    max_hit_simulations : int, optional
        Most data sets of such a point, 100 r by default; the weights remain unbiased.
    pilot_points : int
        Of a stage before the last, all chains together.
    acceptance_floor : float
        Mean of K at which the tolerance falls no further, where nobody set the last one.
    max_simulations : int, optional
        Data sets of the whole run; stages before the last have half of them.
    max_time : float, optional
        Seconds after which no further data sets are simulated.
    adjust : {"linear", "heteroscedastic"}, optional
        Regression adjustment of the draws. ``accuracy`` and ``adjusted`` say so; evidence and ``estimates`` are not adjusted.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        ``posterior`` with attributes ``log_evidence`` (log E[K_ε] under the prior, with ordinary likelihoods log E[L K_ε]),
        ``log_evidence_se``, ``_df``, ``_trusted``, ``log_kernel_volume`` (subtracted, it makes a log density of the summaries
        at the observed), ``epsilon``, ``kernel``, ``simulations``, ``ended_by``. ``sample_stats`` has ``epsilon``,
        ``acceptance``, ``simulations``, ``points``, ``effective_size``, ``not_finite`` and ``log_evidence`` per stage. Group
        ``estimates`` has weighted means, their standard errors and sds. ``posterior_predictive`` holds a simulated data set
        of each draw, near the observed or not.

    Raises
    ------
    ModelError
        If nothing simulates, a simulator fails (with its parameters), or no data set comes near.

    Warns
    -----
    SamplerWarning
        If the tolerance asked for is not reached, or the effective size is below 100.

    References
    ----------
    Buchholz, A. and Chopin, N. (2019). Improving approximate Bayesian computation via quasi-Monte Carlo. *JCGS* 28(1).

    Examples
    --------
    >>> import numpy as np
    >>> import ppl_backends as pb
    >>> from scipy.stats import norm
    >>> def simulate(parameters, rng):
    ...     return rng.normal(parameters["x"][:, 0], 0.2)
    >>> prior = pb.FunctionTarget(1, lambda x: (0 * x[:, 0], 0 * x), lambda x: (norm.logpdf(x[:, 0]), -x),
    ...                           prior_from_uniform=norm.ppf)
    >>> idata = pb.sample_abc(prior, simulate=simulate, observed=1.0, epsilon=0.1, random_seed=1, progressbar=False)
    >>> bool(abs(idata.posterior["x"].mean() - 0.96) < 0.02)
    True
    """
    problem = make_problem(
        model,
        data=data,
        epsilon=epsilon,
        kernel=kernel,
        simulate=simulate,
        observed=observed,
        summary=summary,
        distance=distance,
        cores=cores,
    )
    if hits is not None and problem.kernel != "uniform":
        raise ModelError("hits= counts data sets within ε: it needs kernel='uniform'")
    check_memory(draws, chains, problem.dim)
    plan = Plan(
        sequential=method != "importance",
        qmc=qmc,
        chains=chains,
        pilot_points=pilot_points,
        points=draws,
        data_sets=data_sets or DATA_SETS,
        adaptive=data_sets is None,
        floor=acceptance_floor,
        hits=hits or 0,
        cap=0 if hits is None else max(max_hit_simulations or CAP * hits, hits),
    )
    return _run(problem, plan, Budget(max_simulations, max_time), executor, adjust, random_seed, progressbar)


def _run(
    problem: AbcProblem,
    plan: Plan,
    budget: Budget,
    executor: Executor | None,
    adjust: str | None,
    random_seed: SeedLike,
    progressbar: bool,
) -> Any:
    """Judge batched simulators, run the stages with their progress shown, and return the result."""
    started = time.perf_counter()
    *rngs, check_rng, result_rng = spawn_generators(random_seed, plan.chains + 3)
    problem.try_batches(prior_points(problem, 2, False, check_rng), check_rng)
    with ChainProgress("ABC", 1, ("stage", "ε", "acceptance", "a second"), enabled=progressbar) as progress:
        steps: list[int] = []

        def report(record: Record, used: int) -> None:
            steps.append(used)
            speed = used / max(time.perf_counter() - started, 1e-9)
            figures = {"ε": record.epsilon, "acceptance": record.acceptance, "a second": speed}
            progress.update(0, 1 - 0.5 ** len(steps), stage=len(steps), **figures)

        result = run_sequential(problem, plan, budget, rngs, executor, report)
        progress.update(0, 1.0)
    return _inference_data(problem, plan, result, adjust, time.perf_counter() - started, result_rng)


def _inference_data(
    problem: AbcProblem,
    plan: Plan,
    result: SequentialResult,
    adjust: str | None,
    seconds: float,
    rng: np.random.Generator,
) -> Any:
    """Resample the last stage chain by chain, and say how far it can be trusted."""
    stage, weights = result.stage, result.weights
    ancestor = np.stack([_resampled(stage.chain == c, weights.weight, plan.points, rng) for c in range(plan.chains)])
    points = stage.x
    if adjust is not None and stage.block.summaries is not None:
        points = adjusted(
            points, stage.block.summaries, problem.observed_summaries, weights.weight, adjust == "heteroscedastic"
        )
    trouble = _distrust(problem, result)
    if trouble:
        warnings.warn(f"sample_abc: {trouble}", SamplerWarning, stacklevel=5)
    groups = {"estimates": _estimates(problem, plan, result, rng), **_predictive(problem, plan, result, ancestor)}
    return build_inference_data(
        problem.target,
        points[ancestor],
        method=f"ABC ({'RQMC' if plan.qmc else 'Monte Carlo'}, {'sequential' if plan.sequential else 'importance'})",
        accuracy="approximate",
        sampling_time=seconds,
        rng=rng,
        attrs={**_attributes(problem, plan, result), "adjusted": adjust or "", "warnings": trouble},
        sample_stats=_sample_stats(result.records) | {"ancestor": (("chain", "draw"), ancestor)},
        extra_groups=groups,
    )


def _resampled(own: Any, weight: Array, draws: int, rng: np.random.Generator) -> Any:
    """Return the points that one chain's draws are copies of; of all chains' points where it has no weight itself."""
    index = np.flatnonzero(own & (weight > 0))
    index = index if len(index) else np.flatnonzero(weight > 0)
    return index[systematic_resampling(weight[index] / weight[index].sum(), draws, rng)]


def _distrust(problem: AbcProblem, result: SequentialResult) -> str:
    """Return what is wrong, with the figure; empty where nothing is."""
    reasons = []
    size = result.weights.effective_size
    if size < SMALLEST_SIZE:
        reasons.append(f"an effective size of {size:.0f} < {SMALLEST_SIZE}: allow more draws= or data_sets=")
    if problem.epsilon is not None and result.epsilon > problem.epsilon:
        reasons.append(
            f"the tolerance asked for, {problem.epsilon:.3g}, is not reached: ε = {result.epsilon:.3g} is the last "
            f"({result.reason})"
        )
    if not result.stage.complete:
        reasons.append("the last stage was stopped by max_simulations= or max_time=; what was done is returned")
    return "; ".join(reasons)


def _attributes(problem: AbcProblem, plan: Plan, result: SequentialResult) -> dict[str, Any]:
    evidence = result.records[-1].evidence
    discrepancies = problem.experiment.discrepancies
    return {
        "log_evidence": evidence.log_evidence,
        "log_evidence_se": evidence.standard_error,
        "log_evidence_df": evidence.df if np.isfinite(evidence.df) else None,
        "log_evidence_se_from": evidence.source,
        "log_evidence_trusted": int(not _distrust(problem, result)),
        "log_kernel_volume": problem.log_kernel_volume(result.epsilon),
        "epsilon": result.epsilon,
        "kernel": problem.kernel,
        "discrepancy": "; ".join(part.label for part in discrepancies),
        "simulations": int(sum(record.simulations for record in result.records)),
        "ended_by": result.reason,
        "n_components": result.n_components,
        "batched": int(all(simulator.at_once for simulator in problem.experiment.simulators)),
        "batches_refused": "; ".join(f"{name}: {reason}" for name, reason in problem.reasons.items()),
        "draw_order": "order of the points, siblings adjacent; not a time series",
    }


def _sample_stats(records: list[Record]) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Return the figures of every stage."""
    names = ("epsilon", "acceptance", "simulations", "points", "effective_size", "not_finite")
    stats: dict[str, tuple[tuple[str, ...], Any]] = {
        name: (("stage",), np.array([getattr(record, name) for record in records])) for name in names
    }
    stats["log_evidence"] = (("stage",), np.array([record.evidence.log_evidence for record in records]))
    stats["log_evidence_se"] = (("stage",), np.array([record.evidence.standard_error for record in records]))
    return stats


def _estimates(
    problem: AbcProblem, plan: Plan, result: SequentialResult, rng: np.random.Generator
) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Return weighted means with their errors, and sds, of every variable: dims (estimate, the model's own)."""
    stage, weights = result.stage, result.weights
    used = np.flatnonzero(weights.weight > 0)
    variables: dict[str, tuple[tuple[str, ...], Any]] = {}
    for name, value in problem.target.constrain(stage.x[used], rng).items():
        if np.iscomplexobj(value):
            continue
        full = np.zeros((len(stage.x), *value.shape[1:]))
        full[used] = value
        mean, error, sd = mean_with_error(stage, weights, full, plan.qmc)
        own = problem.target.dims.get(name) or [""] * mean.ndim
        labels = [label or f"{name}_dim_{axis}" for axis, label in enumerate(own)]
        for suffix, figure in (("mean", mean), ("mean_se", error), ("sd", sd)):
            variables[f"{name}_{suffix}"] = (tuple(labels), figure)
    return variables


def _predictive(problem: AbcProblem, plan: Plan, result: SequentialResult, ancestor: Any) -> dict[str, Any]:
    """Return a data set for each draw, where points have two at least: one that the draw's weight does not depend on."""
    data = result.stage.block.data
    if data is None or plan.data_sets < 2:
        return {}
    variables = {}
    for simulator, each in zip(problem.experiment.simulators, data, strict=True):
        own = problem.target.dims.get(simulator.name) or [""] * len(simulator.shape)
        labels = [label or f"{simulator.name}_dim_{axis}" for axis, label in enumerate(own)]
        variables[simulator.name] = (("chain", "draw", *labels), each[ancestor])
    return {"posterior_predictive": variables}
