"""``fit_ep``: expectation propagation for any model whose factors are known."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from ppl_backends.approximations.ep.budget import at_most
from ppl_backends.approximations.ep.evidence import log_evidence, working_sites
from ppl_backends.approximations.ep.hyper import EPMixture, integrate
from ppl_backends.approximations.ep.own_errors import checked_by_itself
from ppl_backends.approximations.ep.parallel import EPRun, Options, Sites, run_parallel, run_sequential
from ppl_backends.approximations.ep.reduction import Reduction
from ppl_backends.approximations.ep.result import EPApproximation, leave_one_out, leave_out_normal
from ppl_backends.approximations.ep.sharded_target import ShardedTarget
from ppl_backends.approximations.ep.shards import ArrayShard, EPSites, SiteState
from ppl_backends.approximations.laplace import endless_climb
from ppl_backends.errors import ApproximationWarning, ModelError, user_level
from ppl_backends.numerics.gaussian import MAX_DENSE_DIM, Gaussian
from ppl_backends.options import checked, choice, instance, integer, none, number
from ppl_backends.random import SeedLike
from ppl_backends.targets.blocks import threads_worth_having
from ppl_backends.targets.factors.factorisation import Factors, FactorsTarget
from ppl_backends.targets.factors.families import NormalMixture
from ppl_backends.targets.factors.prior import GaussianPrior
from ppl_backends.targets.factors.sites import STUDENT, Fraction, SiteFamily
from ppl_backends.targets.protocol import BaseTarget

SCHEDULES = {"parallel": run_parallel, "sequential": run_sequential}


@checked(
    fraction=number(above=0) | number(below=0) | choice(STUDENT),
    schedule=choice(*SCHEDULES),
    damping=number(above=0, at_most=1),
    tolerance=number(above=0),
    max_sweeps=integer(1),
    initial=none | instance(EPApproximation, "the EPApproximation that fit_ep returned"),
    n_shards=integer(1),
)
def fit_ep(
    model: Any = None,
    *,
    data: Any = None,
    fraction: Fraction = 1.0,
    schedule: str = "parallel",
    damping: float = 1.0,
    tolerance: float = 1e-6,
    max_sweeps: int = 200,
    initial: EPApproximation | None = None,
    executor: Executor | None = None,
    n_shards: int = 1,
    random_seed: SeedLike = None,
    progressbar: bool = True,
    **target_options: Any,
) -> EPApproximation | EPMixture:
    """Fit a Gaussian by expectation propagation: its sites match the moments of the factors that they replace.

    Hyper-parameters that the factors depend on (scales, dispersions, length-scales; at most six) are integrated over: EP
    runs at every point of a design of them, and the Gaussians are mixed; see
    :mod:`ppl_backends.approximations.ep.hyper`.

    Parameters
    ----------
    model : Factors, pymc.Model, Stan model or target, optional
        The PyMC model on the context stack by default.
    data : dict or path, optional
        Data of a Stan model.
    fraction : float or "student"
        η of power (fractional) EP. Smaller values converge better for sites that are not log-concave, and approach
        variational Bayes as η → 0. ``"student"`` is −2/(ν + 1) for Student sites, which makes their moments
        polynomials, and 1 for all others; if all of them have the same ν, that number does the same. A negative η adds
        the site to its cavity.
    schedule : {"parallel", "sequential"}
        ``"parallel"`` updates all sites from the same Gaussian, with one Cholesky per sweep; ``"sequential"`` updates
        one at a time.
    damping : float
        Largest step, in (0, 1]; it is halved if the run does not settle.
    tolerance : float
        Relative change of the site parameters at which to stop.
    max_sweeps : int
    initial : EPApproximation, optional
        A fit of the same sites, e.g. at neighbouring hyper-parameters, for a model without any that are integrated over.
        Default: the curvature near the mode.
    executor : concurrent.futures.Executor, optional
        Runs the shards of a sweep; this process by default.
    n_shards : int
        Number of pieces into which the sites are cut. The result does not depend on it.
    random_seed, progressbar
        Accepted for uniformity, without effect: EP draws nothing and takes milliseconds.
    **target_options
        Passed to :func:`ppl_backends.as_target`.

    Returns
    -------
    EPApproximation
        With ``log_evidence``, ``sites``, ``loo`` and :meth:`~EPApproximation.marginals`. If there are
        hyper-parameters, the result is a mixture over all coordinates, and its ``hyper.summary`` describes the
        integration.

    Raises
    ------
    ModelError
        If the model has no known factors, or the prior is improper along a direction that no site covers.

    Warns
    -----
    ApproximationWarning
        If EP did not converge, with its last change, or the posterior is improper, or by weighted points a standard
        deviation is off by more than 20 %, a mean by 0.2 standard deviations or the log evidence by 0.5, or there is
        another mode with more than 1 % of the mass; ``converged`` is then False. If sites with several modes interact, such
        as spikes and slabs of correlated predictors. If EP's estimate of its own error exceeds 10 % for a standard
        deviation (15 % given one predictor or coordinate, 20 % at hyper-parameters away from their mode), or 0.02 for a
        component's probability.

    References
    ----------
    Minka (2001), Expectation propagation for approximate Bayesian inference. Chopin & Ridgway (2017), Leave Pima Indians
    alone, section 3.4. Jylänki, Vanhatalo & Vehtari (2011), Robust Gaussian process regression with a Student-t likelihood.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import Factors, Probit, fit_ep
    >>> X = np.array([[1.0, -0.5], [1.0, 0.3], [1.0, 1.2]])
    >>> q = fit_ep(Factors(X, 0.0, Probit([0, 1, 1]), prior_mean=0.0, prior_precision=0.25))
    >>> q.converged, round(q.log_evidence, 3)
    (True, -2.115)
    """
    options = Options(fraction, damping, tolerance, max_sweeps)
    factors, target = _factors_of(model, data, target_options)
    result = _fitted(factors, target, options, schedule, initial, executor, n_shards)
    if isinstance(result, EPMixture):
        _warn_mixture(result)
        return checked_by_itself(result)
    _warn(result)
    return checked_by_itself(result)


def fixed_point(target: BaseTarget, calls: float = np.inf) -> EPApproximation | EPMixture:
    """Fit EP without estimates of its own errors and without warnings: ``converged`` says that the iteration did.

    Raises
    ------
    BudgetSpentError
        If EP needs more evaluations of sites than so many calls of the cheapest rule.
    """
    with warnings.catch_warnings(), at_most(calls):
        warnings.simplefilter("ignore", ApproximationWarning)
        factors, target = _factors_of(target, None, {})
        return _fitted(factors, target, Options())


def _fitted(
    factors: Any,
    target: BaseTarget,
    options: Options,
    schedule: str = "parallel",
    initial: EPApproximation | None = None,
    executor: Executor | None = None,
    n_shards: int = 1,
) -> EPApproximation | EPMixture:
    """Run EP for given factors, or integrate over the hyper-parameters of others."""

    def fit(factors: Factors, start: EPApproximation | None, target: BaseTarget | None = None) -> EPApproximation:
        _check_fraction(options.power, factors.sites)
        state = None if start is None else _state_of(start, factors.n_sites)
        with threads_worth_having(factors.n_sites * min(factors.dim, factors.n_sites) ** 2):
            sites, reduction = working_sites(factors, n_shards, executor)
            run = SCHEDULES[schedule](sites, options, state)
            return _approximation(run, sites, reduction, factors, target or FactorsTarget(factors), options)

    if isinstance(factors, Factors):
        given = fit(factors, initial, target)
        if given.diagnostics["failed_sites"]:
            target.check_possible()
        return _known_improper(given, factors.prior.proper, target)
    if initial is not None:
        raise ModelError(f"{target.label}: initial= is for models without hyper-parameters, which are integrated over")
    try:
        mixture = integrate(factors, target, fit)
    except ModelError:
        target.check_possible()
        raise
    if not mixture.converged:
        target.check_possible()
    return mixture


@checked(
    dim=integer(1),
    log_constant=number(),
    fraction=number(above=0) | choice(STUDENT),
    damping=number(above=0, at_most=1),
    tolerance=number(above=0),
    max_sweeps=integer(1),
    initial=none | instance(EPApproximation, "the EPApproximation that fit_ep_sharded returned"),
)
def fit_ep_sharded(
    shards: Sequence[Any],
    prior_mean: Any,
    prior_precision: Any,
    *,
    dim: int,
    log_constant: float = 0.0,
    executor: Executor | None = None,
    fraction: Fraction = 1.0,
    damping: float = 1.0,
    tolerance: float = 1e-6,
    max_sweeps: int = 200,
    names: Sequence[str] | None = None,
    initial: EPApproximation | None = None,
) -> EPApproximation:
    """Run EP for data that do not fit in memory: a sweep is a map over shards, each read by its worker.

    Parameters
    ----------
    shards : sequence of FileShard or ArrayShard
    prior_mean, prior_precision : as for :class:`Factors`
    dim : int
        Columns of the design.
    executor : concurrent.futures.Executor, optional
        Processes, or Dask's executor; by default one shard at a time in this process.
    log_constant, fraction, damping, tolerance, max_sweeps, names, initial
        As for :func:`fit_ep` and :class:`Factors`.

    Returns
    -------
    EPApproximation
        Its ``factors`` is None; all sites count as observations.

    Warns
    -----
    ApproximationWarning
        If EP did not converge, with its last change, or the posterior is improper; ``converged`` is then False. Under an
        improper prior this is found by climbs, each step of which is one more pass over the shards.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.approximations.ep import ArrayShard, Logit, fit_ep_sharded
    >>> rng = np.random.default_rng(1)
    >>> X, y = rng.normal(size=(100, 2)), rng.integers(0, 2, 100)
    >>> shards = [ArrayShard(X[k::2], np.zeros(50), Logit(y[k::2])) for k in range(2)]
    >>> q = fit_ep_sharded(shards, 0.0, 1.0, dim=2)
    >>> q.converged, q.mean.shape
    (True, (2,))
    """
    options = Options(fraction, damping, tolerance, max_sweeps)
    prior = GaussianPrior(prior_mean, prior_precision, dim)
    sites = Sites(shards, prior, executor)
    run = run_parallel(sites, options, None if initial is None else _state_of(initial, sites.n_sites))
    labels = tuple(names) if names is not None else tuple(f"theta[{j}]" for j in range(dim))
    q = Gaussian.from_covariance(prior.mean + run.q.mean, run.q.cov)
    result = _assemble(run, sites, options, q, log_constant, names=labels)
    proper = prior.proper or any(_bounds(shard, dim) for shard in shards)
    result = _known_improper(result, proper, ShardedTarget(sites, log_constant, labels))
    _warn(result)
    return result


def _known_improper(q: EPApproximation, proper: bool, target: BaseTarget) -> EPApproximation:
    """Return the fit, marked as not converged if the posterior is improper; its sites can converge even then."""
    endless = None if proper else endless_climb(target)
    return q if endless is None else q.replaced(converged=False, trouble=endless.trouble)


def _bounds(shard: Any, dim: int) -> bool:
    """Return whether a shard is a proper prior: mixtures of normal densities in all directions, as spikes and slabs."""
    if not (isinstance(shard, ArrayShard) and isinstance(shard.sites, NormalMixture)):
        return False
    return isinstance(shard.design, np.ndarray) and np.linalg.matrix_rank(shard.design) == dim


def _check_fraction(fraction: Fraction, sites: SiteFamily) -> None:
    """Refuse a negative fraction other than the one that Student sites have."""
    if isinstance(fraction, str) or fraction > 0:
        return
    power = np.asarray(sites.fractions(fraction))
    if not np.any(power < 0):
        raise ModelError(f"fraction={fraction:g}: only Student sites have a fraction below 0, and the model has none")
    if not np.allclose(power[power < 0], fraction):
        raise ModelError(
            f"fraction={fraction:g}: below 0 it must be −2/(ν + 1), which is {power.min():g} here; use fraction='student'"
        )


def _factors_of(model: Any, data: Any, target_options: dict[str, Any]) -> tuple[Any, BaseTarget]:
    """Return the factors of a model, as a function of hyper-parameters if it has any, and the target of its own space."""
    if isinstance(model, Factors):
        return model, FactorsTarget(model)
    if not isinstance(model, BaseTarget):
        from ppl_backends.targets.convert import as_target

        model = as_target(model, data, **target_options)
    try:
        factors = model.factors
        if factors is not None and not len(factors.hyper_names):
            factors = factors.at()
    except ModelError:
        model.check_possible()
        raise
    if factors is None:
        raise ModelError(
            f"{model.label}: no factors with one linear predictor each are known, so EP does not apply; "
            "use fit_laplace or sample_smc"
        )
    return factors, model


def _state_of(start: EPApproximation, n_sites: int) -> SiteState:
    if len(start.sites.tau) != n_sites:
        raise ModelError(f"start has {len(start.sites.tau)} sites, the model {n_sites}")
    return SiteState(start.sites.tau, start.sites.nu, start.sites.level)


def _approximation(
    run: EPRun, sites: Sites, reduction: Reduction | None, factors: Factors, target: BaseTarget, options: Options
) -> EPApproximation:
    """Return the result on θ, with the evidence and the leave-one-out densities of the observed sites.

    Sites with auxiliary variables have none: several of them share an observation.
    """
    if reduction is None:
        q = Gaussian.from_covariance(factors.prior.mean + run.q.mean, run.q.cov)
    elif factors.dim <= MAX_DENSE_DIM:
        q = Gaussian.from_covariance(reduction.mean(factors, run.q), reduction.cov(factors, run.q))
    else:
        q = Gaussian(reduction.mean(factors, run.q), np.sqrt(reduction.variances(factors, run.q)))
    if factors.n_auxiliary:
        kept = factors.dim - factors.n_auxiliary
        margin = Gaussian.from_covariance(q.mean[:kept], q.cov[:kept, :kept])
        found = _assemble(run, sites, options, margin, factors.log_constant, names=target.names, target=target)
        return found.replaced(loo=leave_one_out(np.empty(0)))
    return _assemble(run, sites, options, q, factors.log_constant, factors=factors, names=target.names, target=target)


def _assemble(
    run: EPRun,
    sites: Sites,
    options: Options,
    q: Gaussian,
    log_constant: float,
    *,
    factors: Factors | None = None,
    names: Sequence[str],
    target: BaseTarget | None = None,
) -> EPApproximation:
    """Return the Gaussian with its sites and evidence; without factors, all sites count as observations."""
    final = run.final
    whole = final if options.power == 1.0 else sites.sweep(run.state, run.q, 1.0, check=True)
    held_out = np.where(whole.failed, -np.inf, whole.log_z)
    if factors is not None:
        held_out = held_out[factors.observed]
        if factors.normal_rows is not None:
            design, offset, family, log_scale = factors.normal_rows
            normal = log_scale + leave_out_normal(design, offset, family.y, family.sd, q)
            held_out = np.concatenate([held_out, normal])
    return EPApproximation(
        q.mean,
        cholesky=q.factor,
        names=names,
        target=target,
        method="ep",
        converged=run.converged,
        log_evidence=log_evidence(log_constant, sites.prior, run.q, final),
        diagnostics={
            "sweeps": float(run.sweeps),
            "change": run.change,
            "damping": run.damping,
            "failed_sites": float(final.failed.sum()),
        },
        power=options.power,
        factors=factors,
        sites=EPSites(
            run.state.tau,
            run.state.nu,
            np.where(final.failed, -np.inf, final.log_z),
            final.cavity_mean,
            final.cavity_variance,
            final.mean,
            final.variance,
            run.state.level,
            final.failed,
        ),
        loo=leave_one_out(held_out),
    )


def _warn_mixture(result: EPMixture) -> None:
    if not result.converged:
        instead = "fraction=0.5 or sample_smc" if "EP runs" in result.trouble else "sample_smc"
        warnings.warn(
            f"{result.hyper.summary}; {result.trouble}: use {instead}", ApproximationWarning, stacklevel=user_level()
        )


def _warn(result: EPApproximation) -> None:
    if result.trouble:
        warnings.warn(f"EP: {result.trouble}", ApproximationWarning, stacklevel=user_level())
    elif not result.converged:
        figures = result.diagnostics
        warnings.warn(
            f"EP did not converge in {int(figures['sweeps'])} sweeps: relative change {figures['change']:.2g}, "
            f"{int(figures['failed_sites'])} failed sites: use fraction=0.5, schedule='sequential' or sample_smc",
            ApproximationWarning,
            stacklevel=user_level(),
        )
