"""``sample_abc``: approximate Bayesian computation with randomised quasi-Monte Carlo points."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.options import array, check_memory, checked, choice, flag, function, instance, integer, none, number
from ppl_backends.progress import ChainProgress
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.simulators.abc.discrepancy import DISTANCES, SUMMARIES
from ppl_backends.simulators.abc.failing import failing_beside
from ppl_backends.simulators.abc.kernels import KERNELS
from ppl_backends.simulators.abc.populations import PopulationStage, run_populations
from ppl_backends.simulators.abc.problem import AbcProblem, make_problem
from ppl_backends.simulators.abc.proposals import fit_prior, prior_start
from ppl_backends.simulators.abc.results import Found, of_populations, of_weighted_points, to_inference_data
from ppl_backends.simulators.abc.sequential import FewPoints, Plan, Record, run_sequential
from ppl_backends.simulators.abc.stages import Budget

__all__ = ["sample_abc"]

DATA_SETS, AT_ONCE = 4, 10  # M for simulators that draw one by one, and for those that draw many per call
CHECKED = 16  # points of the prior at which a model is checked first
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
    method=choice("auto", "importance", "sequential", "smc"),
    observed=none | array(),
    pilot_points=integer(64),
    qmc=flag,
    simulate=none
    | function("a function of parameters and a generator")
    | instance(str, "the name of a generated quantity"),
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
    """Draw from the posterior, and estimate the evidence, of a model that can be simulated but not evaluated.

    Data are simulated at points of adaptive proposals and weighted by their distance from the observed data. The
    result is the ABC posterior, p(θ) E[K_ε(d) | θ] up to a constant. It is wider than the posterior; the difference
    decreases with ε.

    Parameters
    ----------
    model : pymc.Model, Stan model or target, optional
        A model with ``pm.Simulator`` variables, with the function, ``distance``, ``sum_stat`` and ``epsilon`` of PyMC;
        or any model with a prior, together with ``simulate`` and ``observed``. Ordinary likelihoods contribute to the
        weights.
    epsilon : "auto", float or dict
        The last tolerance; that of the joint distance if there are several Simulators, or of each by name. ``"auto"``
        ends at the Simulators' own tolerance if it was set, else when ``acceptance_floor``, ``max_simulations`` or
        ``max_time`` is reached.
    kernel : {"uniform", "gaussian", "laplace", "epanechnikov"}, optional
        K with K(0) = 1. By default a Simulator's own, else ``"uniform"``.
    qmc : bool
        Whether parameters are points of scrambled nets.
    method : {"auto", "sequential", "importance", "smc"}
        ``"importance"`` draws all parameters from the prior. ``"sequential"`` adapts proposals, which are small
        mixtures. ``"smc"`` moves populations along falling tolerances (Del Moral, Doucet & Jasra 2012), for many modes
        and curved posteriors; its evidence is consistent, that of the others is unbiased. ``"auto"`` is sequential,
        and SMC if the proposals find too few points.
    simulate : callable or str, optional
        ``(parameters, rng) -> data``: a function from arrays with a leading axis, by name, to data sets ``(n, ...)``.
        A function of single values is called for one data set after the other, as is one whose batches do not hold
        independent data sets. Or the name of a generated quantity of a Stan program.
    observed : array, optional
    data : dict or path, optional
        Data of a Stan model, or new values of ``pm.Data``.
    summary : {"identity", "sort", "mean", "median"} or callable, optional
        Summary of a data set, or of many ``(n, ...)``.
    distance : {"euclidean", "manhattan"} or callable, optional
        ``(observed summary, simulated summary) -> float``, or the same for many data sets.
    executor : concurrent.futures.Executor, optional
        Runs the simulations of blocks of points; the result is the same.
    cores : int, optional
        Threads for evaluating densities.
    draws, chains : int
        Equally weighted draws kept per chain; a chain is an independent scramble of the next power of two of points,
        plus an eighth of points from the prior.
    data_sets : int, optional
        M, mean number of simulated data sets per point. By default four; ten for a simulator that draws many at once,
        which also has up to 16 times the points in the last stage, for an error of the evidence of 1.5 %; two with
        SMC. With one there is no single-run error and no posterior predictive.
    hits : int, optional
        r, for negative-binomial weights in the last stage: data sets are simulated at a point until r are within ε;
        with SMC, for Lee's (2012) r-hit kernel. It needs the uniform kernel.
    max_hit_simulations : int, optional
        Largest number of data sets of such a point, 100 r by default; the weights remain unbiased.
    pilot_points : int
        Number of points of a stage before the last, in all chains together.
    acceptance_floor : float
        Mean of K (with SMC, acceptance rate of the moves) at which the tolerance stops falling if the last one is not given.
    max_simulations : int, optional
        Largest number of data sets in the whole run; stages before the last use half of them.
    max_time : float, optional
        Seconds after which no further data sets are simulated.
    adjust : {"linear", "heteroscedastic"}, optional
        Regression adjustment of the draws. ``accuracy`` and ``adjusted`` record it; evidence and ``estimates`` are not
        adjusted.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        ``posterior`` with attributes ``log_evidence`` (log E[K_ε] under the prior, with ordinary likelihoods log E[L K_ε]),
        ``log_evidence_se``, ``_df``, ``_trusted``, ``log_kernel_volume`` (the log evidence minus it is a log density
        of the summaries at the observed ones), ``epsilon``, ``kernel``, ``simulations``, ``ended_by``, ``failing`` (share of
        points at and beside the draws at which the simulator fails).
        ``sample_stats`` has ``epsilon``, ``acceptance``, ``simulations``, ``points``, ``effective_size``,
        ``not_finite`` (data sets), ``undefined`` (share of points near the posterior at which the log density is NaN or
        +inf), ``log_evidence`` and ``log_kernel_volume`` per stage, and ``distance`` of the data set by which each draw was
        picked. Group ``estimates`` has weighted means, their standard errors and sds.
        ``posterior_predictive`` holds a simulated data set of each draw, near the observed or not.

    Raises
    ------
    ModelError
        If there is no simulator, a simulator fails (the message has its parameters; chains of SMC that ended before are
        kept, with a warning), or no data set comes near the observed.

    Warns
    -----
    SamplerWarning
        If the tolerance asked for is not reached, the effective size is below 100, or the log density is NaN or +inf near
        the posterior.

    References
    ----------
    Buchholz, A. and Chopin, N. (2019). Improving approximate Bayesian computation via quasi-Monte Carlo. *JCGS* 28(1).
    Del Moral, P., Doucet, A. and Jasra, A. (2012). An adaptive sequential Monte Carlo method for approximate Bayesian
    computation. *Statistics and Computing* 22, 1009–1020.

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
    if max_hit_simulations is not None and max_hit_simulations < (hits or np.inf):
        raise ModelError(
            f"max_hit_simulations={max_hit_simulations} needs hits=, and at least as many data sets as hits"
        )
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
        cap=max_hit_simulations or CAP * (hits or 0),
    )
    budget = Budget(max_simulations, max_time)
    return _run(problem, plan, method, budget, executor, adjust, random_seed, progressbar)


class _Call(NamedTuple):
    """Arguments that all samplers need."""

    problem: AbcProblem
    plan: Plan
    budget: Budget
    executor: Executor | None
    adjust: str | None
    rngs: list[np.random.Generator]
    result_rng: np.random.Generator
    progress: ChainProgress
    lines: int
    started: float

    def sequential(self, may_give_up: bool) -> Found:
        """Run the stages with a progress bar; switch to populations if proposals find too few points and ``may_give_up``."""
        steps: list[int] = []

        def report(record: Record, used: int) -> None:
            steps.append(used)
            self._show(0, 1 - 0.5 ** len(steps), len(steps), record.epsilon, record.acceptance, used)

        plan = self.plan._replace(may_give_up=may_give_up)
        try:
            result = run_sequential(self.problem, plan, self.budget, self.rngs, self.executor, report)
        except FewPoints:
            return self.populations()
        self.progress.update(0, 1.0)
        return of_weighted_points(self.problem, plan, result, self.adjust, self.result_rng)

    def populations(self) -> Found:
        """Run all chains of SMC with a progress bar."""
        steps = [0] * self.plan.chains

        def report(chain: int, stage: PopulationStage, used: int) -> None:
            steps[chain] += 1
            self._show(chain, 1 - 0.8 ** steps[chain], steps[chain], stage.epsilon, stage.acceptance, used)

        arguments = self.problem, self.plan, self.budget, self.rngs, self.executor, report
        result = run_populations(*arguments, self.adjust is not None)
        for chain in range(len(result.runs)):
            self.progress.update(min(chain, self.lines - 1), 1.0)
        return of_populations(self.problem, self.plan, result, self.adjust, self.result_rng)

    def _show(self, chain: int, done: float, stage: int, epsilon: float, acceptance: float, used: int) -> None:
        speed = used / max(time.perf_counter() - self.started, 1e-9)
        line = min(chain, self.lines - 1)
        self.progress.update(line, done, stage=stage, **{"ε": epsilon, "acceptance": acceptance, "a second": speed})


def _run(
    problem: AbcProblem,
    plan: Plan,
    method: str,
    budget: Budget,
    executor: Executor | None,
    adjust: str | None,
    random_seed: SeedLike,
    progressbar: bool,
) -> Any:
    """Check batched simulators, run the sampler with a progress bar, and return the result."""
    started = time.perf_counter()
    *rngs, check_rng, result_rng = spawn_generators(random_seed, plan.chains + 3)
    fit_prior(problem, check_rng)
    problem.try_batches(prior_start(problem, CHECKED, False, check_rng), check_rng)
    if plan.adaptive and problem.experiment.at_once:
        plan = plan._replace(data_sets=AT_ONCE)
    lines = plan.chains if method == "smc" else 1
    with ChainProgress("ABC", lines, ("stage", "ε", "acceptance", "a second"), enabled=progressbar) as progress:
        call = _Call(problem, plan, budget, executor, adjust, rngs, result_rng, progress, lines, started)
        found = call.populations() if method == "smc" else call.sequential(may_give_up=method == "auto")
    failing = failing_beside(problem, found.draws, budget, result_rng)
    found = found._replace(attrs={**found.attrs, "failing": failing})
    return to_inference_data(problem, found, adjust, time.perf_counter() - started, result_rng)
