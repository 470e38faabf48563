"""Importance sampling from an approximation, with randomised quasi-Monte Carlo points by default.

Points u of the unit cube become points x of the proposal q; the weights w = p(x, y)/q(x) give the evidence as their
mean and posterior expectations as weighted means (Chopin & Ridgway 2017, section 3). If u is a scrambled Sobol net,
the error falls nearly as 1/n instead of 1/√n, but only independent scrambles can estimate it. Therefore a chain is one
scramble, and the spread of the chains gives the standard error of the evidence.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats.qmc import Sobol

from ppl_backends.approximations.given import no_mode_reason
from ppl_backends.approximations.lost_mode import LostMode, lost_mode_reason
from ppl_backends.approximations.missed_modes import find_missed_mode, with_missed_mode
from ppl_backends.approximations.resolve import nearest_start
from ppl_backends.errors import ModelError, SamplerWarning, user_level
from ppl_backends.importance.beyond import LARGEST_MISSED_SHARE, reason_of_more, share_beyond
from ppl_backends.importance.noncentred import Weighed, can_be_straightened, straightened
from ppl_backends.importance.outside import LARGEST_UNDEFINED, share_undefined_near
from ppl_backends.importance.proposals import Proposal, make_proposal
from ppl_backends.importance.tails import PILOT_POINTS, with_tails
from ppl_backends.numerics.arrays import real_parts
from ppl_backends.numerics.nets import INNER_BITS, sobol
from ppl_backends.numerics.weights import (
    FEWEST_INDEPENDENT,
    LARGEST_PARETO_K,
    ImportanceEvidence,
    effective_sample_size,
    ess_of_moments,
    estimate_evidence,
    few_independent,
    heavy_tail,
    normalised_weights,
    pareto_k,
    systematic_resampling,
    tail_share,
)
from ppl_backends.options import approximation as approximation_option
from ppl_backends.options import check_memory, checked, choice, flag
from ppl_backends.progress import ChainProgress
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.results import build_inference_data, dims_of
from ppl_backends.targets.convert import as_target, naming
from ppl_backends.targets.estimated import EstimatedTarget
from ppl_backends.targets.integral import stated_integral
from ppl_backends.targets.power import with_power
from ppl_backends.targets.propriety import improper_note
from ppl_backends.targets.protocol import Array, BaseTarget

# Below this efficiency factor the 95% intervals that weights of lognormal tails report cover less than 93% at n = 2048.
SMALLEST_EFFICIENCY = 0.1
LARGEST_PILOT_K = 0.25
PRIOR_POINTS = 2048
_LONE = 10.0  # nats above the second largest log weight
_MOST_MISSED = 3  # most narrow modes that are added to the proposal, one after the other


class _Chain(NamedTuple):
    """One set of weighted points and the draws resampled from it.

    ``efficiency`` is ESS over n. ``undefined`` is the share of points at which the density is NaN or +inf, among or
    near points with positive weight.
    """

    x: Array
    log_weights: Array
    ancestor: NDArray[np.intp]
    efficiency: float
    pareto_k: float
    log_evidence: float
    undefined: float


@checked(
    approximation=approximation_option("auto", "laplace", "ep", "vi"),
    proposal=choice("auto", "gaussian", "t", "defensive"),
    qmc=flag,
)
def sample_importance(
    model: Any = None,
    *,
    data: Any = None,
    draws: int = 2000,
    chains: int = 8,
    approximation: Any = "auto",
    proposal: str = "auto",
    qmc: bool = True,
    power: float = 1.0,
    power_potentials: bool = False,
    cores: int | None = None,
    random_seed: SeedLike = None,
    progressbar: bool = True,
    log_likelihood: Any = False,
    log_prior: bool = False,
    **target_options: Any,
) -> Any:
    """Estimate posterior and evidence by importance sampling from an approximation.

    Parameters
    ----------
    model : pymc.Model, Stan model or target, optional
        The PyMC model on the context stack by default.
    data : dict or path, optional
        Data of a Stan model.
    draws : int
        Equally weighted draws kept per chain; a chain weighs the next power of two of points (with ``qmc=False``, as
        many points as draws).
    chains : int
        Number of independent scrambles. With one chain the error comes from the weights, and is a conservative bound.
    approximation : {"auto", "laplace", "ep", "vi"} or approximation
        Basis of the proposal. ``"auto"`` is EP if the model has factors, else Laplace at all modes that a search
        from draws of the prior finds. A second search near the points adds narrow modes and, with ``proposal="auto"``, a
        wide mode around them. If the likelihood can only be estimated, as for state-space models, an approximation must be
        given. Each weight then has an unbiased estimate, whose noise is part of the errors.
    proposal : {"auto", "gaussian", "t", "defensive"}
        ``"gaussian"`` is the approximation itself. ``"t"`` is a Student t with 5 degrees of freedom, with the
        approximation's mean, and its covariance as scale. ``"defensive"`` is seven eighths of the first and one eighth
        of the second, which bounds the weights if the posterior's tails are heavier than a Gaussian's. Each of several
        modes has its own t. ``"auto"`` fits a mixture of the approximation with Student t's to a pilot run, and uses
        it if it is clearly nearer to the posterior (attribute ``proposal`` is then ``"tails"``). Otherwise it uses the
        approximation, or the defensive mixture if 4,096 points of the approximation have a Pareto k above ¼: then the
        weights have no fourth moment, which error bars need.
        If the points of that proposal have an efficiency factor below a half, and gradients at them show a funnel, a
        density is fitted to them in non-centred coordinates, and again to its own points while that is clearly nearer
        (attribute ``proposal`` is then ``"non-centred"``).
    qmc : bool
        Whether to use scrambled Sobol points (True) or independent uniform points (False).
    power : float
        α of the tempered posterior p(θ)L(θ)^α; Potentials keep power one unless ``power_potentials``.
    power_potentials : bool
    cores : int, optional
        Threads for evaluating the density; all available by default.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool
    log_likelihood, log_prior : bool
        Whether to store those groups. ``log_likelihood`` may name generated quantities of a Stan program.
    **target_options
        Passed to :func:`ppl_backends.as_target`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        ``posterior`` holds the draws, by systematic resampling: copies of one point are adjacent, in the order of the
        points, so the draws of a chain are not a time series. Its attributes include ``log_evidence``,
        ``log_evidence_se``, ``log_evidence_df``, ``log_evidence_trusted`` (0 if a warning was given), ``proposal``,
        ``efficiency_factor`` and ``pareto_k`` of all points, and ``missed_share``. ``sample_stats`` has the first two
        and ``log_evidence`` per chain, and ``ancestor``, the index of the point that a draw is a copy of. Group
        ``proposal`` has the points in model space and their ``log_weight``.

    Raises
    ------
    ModelError
        If an option is out of range or the density is zero at every point.

    Warns
    -----
    SamplerWarning
        If the evidence and its error cannot be trusted. Reasons are: the efficiency factor is below 0.1; Pareto k is
        above 0.7 with more than 2 % of the weight in that tail; draws of the prior show more than 2 % of the
        posterior's mass in regions without points; the effective sample size of a mean or sd is below 100; the search for
        modes ended while it still found new ones; a search near the points found a narrow mode with more than 1 % of the
        mass that is not in the proposal.

    References
    ----------
    Chopin, N. and Ridgway, J. (2017). Leave Pima Indians alone. *Statistical Science* 32(1), 64–87.

    Cornuet, J.-M., Marin, J.-M., Mira, A. and Robert, C. P. (2012). Adaptive multiple importance sampling. *Scandinavian
    Journal of Statistics* 39(4), 798–812.

    Examples
    --------
    >>> import numpy as np
    >>> from ppl_backends.targets import FunctionTarget
    >>> target = FunctionTarget(2, lambda x: (-0.5 * ((x - 3) ** 2).sum(1), 3 - x))
    >>> idata = sample_importance(target, draws=100, chains=2, random_seed=1, progressbar=False)
    >>> bool(np.isclose(idata.posterior.attrs["log_evidence"], np.log(2 * np.pi)))
    True
    """
    target = with_power(
        as_target(model, data, cores=cores, **naming(log_likelihood), **target_options), power, power_potentials
    )
    check_memory(draws, chains, target.values_per_draw)
    if draws * chains == 1:
        raise ModelError("draws=1, chains=1: one point gives no error of the evidence; increase draws")
    started = time.perf_counter()
    *generators, fit_rng, result_rng, prior_rng, estimate_rng, change_rng = spawn_generators(random_seed, chains + 5)
    given = not isinstance(approximation, str)
    searches = not given and approximation == "auto"
    if not target.likelihood_is_known:
        target = _estimated(target, given, estimate_rng)
    approximation = nearest_start(target, approximation, fit_rng)
    run = partial(_run, target, draws=draws, qmc=qmc, generators=generators, progressbar=progressbar)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # points far out
        for left in reversed(range(1 + (_MOST_MISSED if searches else 0))):
            source, named, results = _weighted(target, approximation, proposal, run, fit_rng, change_rng)
            missed = _missed_mode(target, approximation, source, results, fit_rng)
            if missed is None or left == 0 or (missed.wide and proposal != "auto"):  # a heavy tail is no mode
                break
            approximation = with_missed_mode(approximation, missed)
        evidence = estimate_evidence(np.stack([chain.log_weights for chain in results]), scrambled=qmc)
        points = _weighted_points(target, results, result_rng)
        weights = _figures(target, source, results, evidence.log_evidence, prior_rng) | _poorest_moment(results, points)
        trouble = _distrust(
            weights,
            approximation.diagnostics,
            [
                no_mode_reason(approximation),
                _said_of(missed, target, searches),
                _lone_point(target, results),
                reason_of_more(target, evidence.log_evidence, evidence.standard_error, PRIOR_POINTS, prior_rng),
            ],
        )
    if trouble:
        text = f"importance sampling from the {named} proposal: {trouble}: use sample_smc, which moves the points"
        warnings.warn(text, SamplerWarning, stacklevel=user_level())
    integral = stated_integral(target)
    return build_inference_data(
        target,
        np.stack([chain.x[chain.ancestor] for chain in results]),
        method=f"importance sampling ({'RQMC' if qmc else 'Monte Carlo'})",
        accuracy="approximate" if trouble else "exact",
        sampling_time=time.perf_counter() - started,
        rng=result_rng,
        attrs={
            **_evidence_attributes(evidence, trouble),
            **({} if integral is None else integral.attrs(evidence.log_evidence)),
            "approximation": approximation.method,
            "proposal": named,
            **weights,
            "log_evidence_note": improper_note(target),
            "draw_order": "order of the points, siblings adjacent; not a time series",
        },
        sample_stats=_sample_stats(results),
        extra_groups={"proposal": points},
        log_likelihood=log_likelihood,
        log_prior=log_prior,
        looks_beyond=True,
    )


def _estimated(target: BaseTarget, given: bool, rng: np.random.Generator) -> BaseTarget:
    """Return a target whose likelihood is replaced by estimates if it can only be estimated."""
    if not given:
        raise ModelError(
            f"{target.label}: the likelihood can only be estimated, so no approximation can be fitted: give approximation=, "
            "such as from_draws of a run of sample_pmmh or sample_smc2"
        )
    return EstimatedTarget(target, rng)


def _run(
    target: BaseTarget,
    source: Proposal,
    *,
    draws: int,
    qmc: bool,
    generators: Sequence[np.random.Generator],
    progressbar: bool,
) -> list[_Chain]:
    """Weigh a set of points for each generator."""
    results: list[_Chain] = []
    with ChainProgress("Importance sampling", len(generators), ("EF", "log evidence"), enabled=progressbar) as progress:
        for generator in generators:
            chain = _run_chain(target, source, draws, qmc, generator)
            figures: dict[str, Any] = {"EF": chain.efficiency, "log evidence": f"{chain.log_evidence:.3f}"}
            progress.update(len(results), 1.0, **figures)
            results.append(chain)
    return results


def _weighted(
    target: BaseTarget,
    approximation: Any,
    name: str,
    run: Callable[[Proposal], list[_Chain]],
    fit_rng: np.random.Generator,
    rng: np.random.Generator,
) -> tuple[Proposal, str, list[_Chain]]:
    """Return a proposal, its name and its weighted points; ``"auto"`` may be in non-centred coordinates."""
    source, named = _proposal(target, approximation, name, fit_rng)
    results = run(source)
    if name != "auto" or not can_be_straightened(target):
        return source, named, results

    def weigh(other: Proposal) -> Weighed:
        return Weighed(other, *_weigh(target, other, PILOT_POINTS, True, rng))

    nearer = straightened(target, Weighed(source, *_joined(results)), weigh, rng)
    return (source, named, results) if nearer is source else (nearer, "non-centred", run(nearer))


def _missed_mode(
    target: BaseTarget, approximation: Any, source: Proposal, chains: list[_Chain], rng: np.random.Generator
) -> LostMode | None:
    """Return a narrow mode that the weighted points miss."""

    def weigh(x: Array) -> Array:
        return target.log_density(x) - source.log_density(x)

    return find_missed_mode(target, approximation, *_joined(chains), weigh, len(chains[0].x), rng)


def _joined(chains: Sequence[_Chain]) -> tuple[Array, Array]:
    """Return the points ``(n, dim)`` of all chains, and their log weights ``(n,)``."""
    return np.concatenate([chain.x for chain in chains]), np.concatenate([chain.log_weights for chain in chains])


def _said_of(missed: LostMode | None, target: BaseTarget, searches: bool) -> str:
    """Return the reason for distrust if a mode was missed, else an empty string."""
    if missed is None:
        return ""
    advice = "" if searches else " (approximation='auto' adds such modes)"
    return lost_mode_reason(missed, target.names, advice)


def _proposal(target: BaseTarget, approximation: Any, name: str, rng: np.random.Generator) -> tuple[Proposal, str]:
    """Return the proposal of that name, and its name.

    ``"auto"`` is the mixture with tails if they are needed. Otherwise it is the approximation, or the defensive
    mixture if weights of a pilot set of points have no fourth moment.
    """
    if name == "auto":
        tails = with_tails(target, approximation)
        if tails is not None:
            return tails, "tails"
        _, log_weights = _weigh(target, make_proposal("gaussian", approximation), PILOT_POINTS, True, rng)
        name = "defensive" if pareto_k(log_weights) > LARGEST_PILOT_K else "gaussian"
    return make_proposal(name, approximation), name


def _figures(
    target: BaseTarget, proposal: Proposal, chains: list[_Chain], log_evidence: float, rng: np.random.Generator
) -> dict[str, Any]:
    """Return diagnostics of the proposal from the weights of all chains."""
    log_weights = np.concatenate([chain.log_weights for chain in chains])
    lowest = min(float(proposal.log_density(chain.x).min()) for chain in chains) if target.has_split else np.nan
    return {
        "efficiency_factor": effective_sample_size(log_weights) / log_weights.size,
        "pareto_k": pareto_k(log_weights),
        "tail_share": tail_share(log_weights),
        "missed_share": share_beyond(target, proposal, lowest, log_evidence, PRIOR_POINTS, rng),
        "undefined_share": float(np.mean([chain.undefined for chain in chains])),
    }


def _lone_point(target: BaseTarget, chains: list[_Chain]) -> str:
    """Return a reason for distrust if one point has nearly all the weight, else an empty string.

    Such a point has no mode and no other point near it, so the likelihood may be numerically wrong there.
    """
    points, log_weights = _joined(chains)
    log_weights = np.where(np.isnan(log_weights), -np.inf, log_weights)
    second, highest = np.partition(log_weights, -2)[-2:]
    if not highest - second > _LONE:
        return ""
    x, (low, high) = points[np.argmax(log_weights)], np.quantile(points, [0.16, 0.84], axis=0)
    worst = int(np.argmax(np.abs(x - np.median(points, axis=0)) / np.maximum(high - low, 1e-300)))
    return (
        f"a single point, at `{target.names[worst]}` = {x[worst]:.3g} on the unconstrained scale, has a log weight that is "
        f"{highest - second:.3g} above any other (evaluate the model there: its likelihood may be numerically wrong)"
    )


def _poorest_moment(chains: list[_Chain], points: Mapping[str, tuple[Any, Array]]) -> dict[str, Any]:
    """Return the smallest effective sample size of a mean or sd over variables, and that variable's name.

    ``points`` are the weighted points in model space, where users read means and sds.
    """
    weights = np.concatenate([normalised_weights(chain.log_weights)[0] for chain in chains]) / len(chains)
    n = len(chains[0].x)
    ancestor = np.concatenate([i * n + chain.ancestor for i, chain in enumerate(chains)])
    smallest, of = float("inf"), ""
    for name, (_, value) in points.items():
        x = value.reshape(len(weights), -1)
        if name != "log_weight" and x.size and np.issubdtype(x.dtype, np.number):
            smallest, of = min((smallest, of), (float(ess_of_moments(x, weights, x[ancestor]).min()), name))
    return {"smallest_ess": smallest, "smallest_ess_of": of}


def _weigh(
    target: BaseTarget, proposal: Proposal, points: int, qmc: bool, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return one set of points ``(n, dim)`` of the proposal and their log weights ``(n,)``."""
    x = proposal.from_uniform(_cube(proposal, points, qmc, rng))
    return x, target.log_density(x) - proposal.log_density(x)


def _run_chain(target: BaseTarget, proposal: Proposal, draws: int, qmc: bool, rng: np.random.Generator) -> _Chain:
    """Weigh one set of points and resample it."""
    x, log_weights = _weigh(target, proposal, draws, qmc, rng)
    if not np.isfinite(log_weights).any():
        reason = target.explain(x[0]) or "check the data and the approximation"
        raise ModelError(f"{target.label}: the log density is not finite at any of {len(x)} points; {reason}")
    weights, log_evidence = normalised_weights(log_weights)
    ancestor = systematic_resampling(weights, draws, rng)
    return _Chain(
        x,
        log_weights,
        ancestor,
        effective_sample_size(log_weights) / len(x),
        pareto_k(log_weights),
        log_evidence,
        share_undefined_near(target, x[ancestor], x, log_weights),
    )


def _cube(proposal: Proposal, draws: int, qmc: bool, rng: np.random.Generator) -> Array:
    """Return points of the unit cube: a scrambled Sobol net of the next power of two ≥ ``draws``, or random ones."""
    dim = proposal.n_uniforms
    if not qmc:
        u = rng.random((draws, dim))
        if proposal.stratified:
            u[:, 0] = (np.arange(draws) + u[:, 0]) / draws
        return u
    return scrambled_net(draws, dim, rng)


def scrambled_net(n: int, dim: int, rng: np.random.Generator) -> Array:
    """Return a scrambled Sobol net ``(m, dim)`` of the next power of two m ≥ ``n``."""
    if dim > Sobol.MAXDIM:
        raise ModelError(f"Sobol points have at most {Sobol.MAXDIM} coordinates, and {dim} are needed; use qmc=False")
    return sobol(dim, rng, INNER_BITS).random_base2(int(np.ceil(np.log2(n))))


def _distrust(weights: Mapping[str, Any], figures: Mapping[str, float], known: Sequence[str]) -> str:
    """Return the faults of the weights with their figures, and those already ``known``."""
    efficiency, k, missed = weights["efficiency_factor"], weights["pareto_k"], weights["missed_share"]
    ess, undefined = weights["smallest_ess"], weights["undefined_share"]
    reasons = [reason for reason in known if reason]
    if efficiency < SMALLEST_EFFICIENCY:
        reasons.append(f"efficiency factor {efficiency:.2g} < {SMALLEST_EFFICIENCY}")
    if heavy_tail(k, weights["tail_share"]):
        reasons.append(f"Pareto k {k:.2f} > {LARGEST_PARETO_K}")
    if few_independent(ess):
        reasons.append(
            f"the points are worth {ess:.0f} independent draws, fewer than {FEWEST_INDEPENDENT:.0f}, so the Monte Carlo "
            f"error of the mean or sd of {weights['smallest_ess_of']} is {100 / ess**0.5:.0f} % of the sd (increase draws)"
        )
    if missed is not None and missed > LARGEST_MISSED_SHARE:
        reasons.append(
            f"draws of the prior find {missed:.2g} times this evidence in a region without points, such as another mode"
        )
    if undefined > LARGEST_UNDEFINED:
        reasons.append(f"the log density is NaN or +inf, and counts as zero, at {100 * undefined:.1f} % of the points")
    if not figures.get("search_complete", 1.0):
        reasons.append(f"the search for modes ended while it still found new ones ({figures['modes']:.0f} so far)")
    return f"{' and '.join(reasons)}, so the evidence and its standard error cannot be trusted" if reasons else ""


def _evidence_attributes(evidence: ImportanceEvidence, trouble: str) -> dict[str, Any]:
    return {
        "log_evidence": evidence.log_evidence,
        "log_evidence_se": evidence.standard_error,
        "log_evidence_df": None if np.isnan(evidence.df) else evidence.df,
        "log_evidence_se_from": evidence.source,
        "log_evidence_trusted": int(not trouble),
        "warnings": trouble,
    }


def _sample_stats(chains: list[_Chain]) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Return figures per chain, and the ancestor of every draw."""
    return {
        "efficiency_factor": (("chain",), np.array([chain.efficiency for chain in chains])),
        "pareto_k": (("chain",), np.array([chain.pareto_k for chain in chains])),
        "log_evidence": (("chain",), np.array([chain.log_evidence for chain in chains])),
        "ancestor": (("chain", "draw"), np.stack([chain.ancestor for chain in chains])),
    }


def _weighted_points(
    target: BaseTarget, chains: list[_Chain], rng: np.random.Generator
) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Return the points in model space and their log weights, with dims (chain, point, the model's own)."""
    n = len(chains[0].x)
    variables: dict[str, tuple[tuple[str, ...], Any]] = {
        "log_weight": (("chain", "point"), np.stack([chain.log_weights for chain in chains]))
    }
    for name, values in target.constrain(np.concatenate([chain.x for chain in chains]), rng).items():
        value = real_parts(values)
        own = dims_of(name, value.ndim - 1, target.dims)
        variables[name] = (("chain", "point", *own), value.reshape(len(chains), n, *value.shape[1:]))
    return variables
