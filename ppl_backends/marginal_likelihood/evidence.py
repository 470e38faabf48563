"""``evidence``: the log evidence of a model from the draws of any sampler."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.approximations.lost_mode import lost_mode_reason
from ppl_backends.approximations.without_draws import ADVICE, mode_without_chains
from ppl_backends.errors import PPLBackendsWarning, SamplerWarning, user_level
from ppl_backends.importance.beyond import LARGEST_MISSED_SHARE, reason_of_more, share_beyond
from ppl_backends.importance.outside import LARGEST_UNDEFINED
from ppl_backends.importance.sampling import sample_importance
from ppl_backends.marginal_likelihood.bridging import Bridged, bridge_draws
from ppl_backends.marginal_likelihood.draws import Draws, read_draws
from ppl_backends.marginal_likelihood.necks import Checked, check_draws
from ppl_backends.marginal_likelihood.proposals import FITS, SYMMETRIC, WITH_TAILS, choose_proposal, fit_start
from ppl_backends.marginal_likelihood.result import Evidence
from ppl_backends.numerics.weights import LARGEST_PARETO_K
from ppl_backends.options import checked, choice
from ppl_backends.random import SeedLike, spawn_generators
from ppl_backends.results.inference_data import group
from ppl_backends.smc.sample import sample_smc
from ppl_backends.targets.convert import as_target
from ppl_backends.targets.integral import stated_integral
from ppl_backends.targets.propriety import improper_note
from ppl_backends.targets.protocol import BaseTarget

_DISAGREEMENT = 4.0  # standard errors
_LARGEST_ERROR = 0.25  # largest standard error of a trusted bridge
_PRECISE = 0.02  # standard error below which Warp-III is not tried
# Above this efficiency importance sampling is used, because nets of points are then far more precise than a bridge.
# Its error bars need a fourth moment of the weights.
_EFFICIENT, _FOURTH_MOMENT = 0.3, 0.25
_SECOND_MOMENT = 0.5  # Pareto k up to which weights have a second moment and can be compared with a bridge
_SCRAMBLES = 8
_PROPOSALS = {"warp3": SYMMETRIC, "importance": WITH_TAILS}
_MOST_COORDINATES = 200  # coordinates up to which nets of points are much more precise than random points
_PARTICLES, _RUNS = 1000, 4
_PRIOR_POINTS = 1024
# Independent draws have on average one part in their number beyond all of them, so that one in a hundred sets at most is
# above this over their number.
_MISSED_BY_CHANCE = 100.0


@checked(
    method=choice("auto", "bridge", "warp3", "importance", "smc"),
    proposal=choice("auto", *FITS),
)
def evidence(
    idata: Any,
    model: Any = None,
    *,
    data: Any = None,
    method: str = "auto",
    proposal: str = "auto",
    cores: int | None = None,
    random_seed: SeedLike = None,
    **target_options: Any,
) -> Evidence:
    """Estimate the log evidence of a model from draws of its posterior by any sampler.

    Parameters
    ----------
    idata : arviz.InferenceData, xarray.DataTree, cmdstanpy.CmdStanMCMC or dict
        Draws of ``pm.sample``, nutpie, CmdStanPy, Bambi, NumPyro through ArviZ, or of this package; or arrays ``(chain,
        draw, *shape)`` by name. All parameters of the model are needed, at their constrained values.
    model : pymc.Model, Bambi model, Stan program or target, optional
        Model of the draws; the PyMC model on the context stack by default.
    data : dict or path, optional
        Data of a Stan program.
    method : {"auto", "bridge", "warp3", "importance", "smc"}
        ``"bridge"`` is bridge sampling between the draws and a density fitted to other draws. ``"warp3"`` is the same
        with the mean of the posterior density and its mirror image, at twice the evaluations. ``"importance"`` is
        importance sampling by scrambled nets from a density fitted to all draws. ``"smc"`` is a short run of tempering
        from the Gaussian of the draws. ``"auto"`` is bridge sampling, importance sampling if the weights are even, or
        SMC if the bridge fails and the draws are sound; attribute ``choice`` says why.
    proposal : {"auto", "gaussian", "student", "mixture", "hierarchical"}
        Density fitted to the draws: a Gaussian; a Gaussian mixed with Student t's; a Gaussian for each separated mode;
        or a distribution of each coordinate given earlier ones, for many coordinates, funnels and skewed posteriors.
        ``"auto"`` fits each to the first halves of the chains and uses the one that describes the second halves best.
    cores : int, optional
        Threads for evaluating the density; all available by default.
    random_seed : int or numpy.random.Generator, optional
    **target_options
        Passed to :func:`ppl_backends.as_target`.

    Returns
    -------
    Evidence
        ``log_evidence``, ``log_evidence_se``, ``log_evidence_df``, ``trusted``, ``method``, ``reasons``, ``choice`` and
        ``diagnostics``.

    Raises
    ------
    ModelError
        If a variable is missing or discrete, the draws do not vary or are too few to be split, or the log density is finite
        at less than half of them.

    Warns
    -----
    SamplerWarning
        If the evidence is not trusted: chains disagree or repeat each other, the draws have an effective sample size
        below 100 or end divergent trajectories, the draws are of another model or other data, or diagnostics of the
        bridge are bad.

    References
    ----------
    Gronau, Q. F. et al. (2017). A tutorial on bridge sampling. *Journal of Mathematical Psychology* 81, 80–97.

    Micaletto, G. and Vehtari, A. (2025). Bridge sampling diagnostics. arXiv 2508.14487.

    Examples
    --------
    >>> import numpy as np
    >>> import ppl_backends as pb
    >>> target = pb.FunctionTarget(2, lambda x: (-0.5 * ((x - 3) ** 2).sum(1), 3 - x))
    >>> draws = {"x": 3 + np.random.default_rng(0).standard_normal((4, 500, 2))}
    >>> found = pb.evidence(draws, target, random_seed=1)
    >>> found.trusted, bool(abs(found.log_evidence - np.log(2 * np.pi)) < 0.01)
    (True, True)
    """
    target = as_target(model, data, cores=cores, **target_options)
    draws = read_draws(idata, target, model)
    allowed = _PROPOSALS.get(method, tuple(FITS))
    chosen = choose_proposal(draws.x, proposal, allowed)
    *rngs, check_rng, prior_rng, mode_rng = spawn_generators(random_seed, 7)
    checked_draws = check_draws(draws, target, check_rng, chosen)
    about_draws, moved = checked_draws.reasons, checked_draws.moved
    if moved is not None:
        chosen = choose_proposal(moved.x, proposal, allowed)
    call = _Call(target, draws if moved is None else moved, chosen, checked_draws, *rngs)
    bridged = call.bridge(mirrored=method == "warp3")
    found = call.chosen(method, bridged, bool(about_draws))
    missed = call.missed_share(found.log_evidence, prior_rng)
    reasons = (*about_draws, *found.reasons, *_reason_of_missed(missed, checked_draws.convergence.effective))
    reasons += call.reason_of_mode(found.log_evidence, mode_rng, bool(reasons))
    reasons += call.reason_of_prior(found, prior_rng, bool(reasons))
    if reasons:
        text = f"evidence by {found.method}: {'; '.join(reasons)}; do not trust this evidence"
        warnings.warn(text, SamplerWarning, stacklevel=user_level())
    integral = stated_integral(target)
    return Evidence(
        found.log_evidence,
        found.standard_error,
        found.df,
        not reasons,
        found.method,
        reasons,
        found.choice + checked_draws.why_moved,
        chosen,
        None if integral is None else integral.log_integral,
        0.0 if integral is None else integral.standard_error,
        improper_note(target),
        _diagnostics(draws, checked_draws, bridged, missed),
        target.observed_data,
    )


class _Found(NamedTuple):
    """An estimate with the reasons not to trust it, and why its method was chosen."""

    log_evidence: float
    standard_error: float
    df: float
    method: str
    reasons: tuple[str, ...]
    choice: str


@dataclass(frozen=True)
class _Call:
    """Arguments that all methods of a call share."""

    target: BaseTarget
    draws: Draws
    proposal: str
    checks: Checked
    bridge_rng: np.random.Generator
    warp_rng: np.random.Generator
    importance_rng: np.random.Generator
    smc_rng: np.random.Generator

    @cached_property
    def start(self) -> Any:
        """Return the density fitted to all draws."""
        return fit_start(self.draws.x.reshape(self.draws.n, -1))

    def chosen(self, method: str, bridged: Bridged, draws_are_doubtful: bool) -> _Found:
        """Return the estimate of the named method, or of the one that suits the draws."""
        bridge = _of_bridge(bridged, "warp3" if method == "warp3" else "bridge", "")
        if method in ("bridge", "warp3"):
            return bridge
        if method == "importance":
            return self._importance(bridged, "")
        if method == "smc":
            return self._smc(bridged, "")
        why_even = self._even_weights(bridged)
        if why_even and not bridge.reasons:
            found = self._importance(bridged, why_even)
            if not found.reasons and found.standard_error < bridge.standard_error:
                return found
        # SMC starts from a density that misses what the proposal does not cover, so a bridge of known error is better
        bridge_is_better = self.checks.much_uncovered and bridge.standard_error <= _LARGEST_ERROR
        if bridge.reasons and not (draws_are_doubtful or bridge_is_better) and self.target.has_gradient:
            return self._smc(bridged, f"SMC takes over from the bridge: {bridge.reasons[0]}")
        if bridge.standard_error > _PRECISE and self.proposal in SYMMETRIC:
            warped = _of_bridge(
                self.bridge(mirrored=True),
                "warp3",
                f"a plain bridge has a standard error of {bridge.standard_error:.2g}",
            )
            if not warped.reasons and warped.standard_error < bridge.standard_error:
                return warped
        why = f"importance weights have an efficiency of {bridged.efficiency:.2f} and a Pareto k of {bridged.weights_k:.2f}"
        return bridge._replace(choice=f"bridge sampling: {why}")

    def bridge(self, mirrored: bool) -> Bridged:
        """Return the evidence by bridges."""
        rng = self.warp_rng if mirrored else self.bridge_rng
        found = bridge_draws(self.draws, self.target, FITS[self.proposal], rng, mirrored=mirrored)
        return found._replace(standard_error=float(np.hypot(found.standard_error, self.checks.unsettled)))

    def _even_weights(self, bridged: Bridged) -> str:
        """Return why importance sampling is the better method; empty if it is not."""
        even = bridged.efficiency >= _EFFICIENT and bridged.weights_k <= _FOURTH_MOMENT and self.proposal in WITH_TAILS
        if not even or self.target.dim > _MOST_COORDINATES:
            return ""
        return f"importance sampling: weights of the {self.proposal} proposal have an efficiency of {bridged.efficiency:.2f}"

    def _importance(self, bridged: Bridged, why: str) -> _Found:
        """Return importance sampling from the density fitted to all draws."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PPLBackendsWarning)  # their texts are among the reasons
            result = sample_importance(
                self.target,
                approximation=self.start,
                draws=max(self.draws.n // _SCRAMBLES, 2),
                chains=_SCRAMBLES,
                random_seed=self.importance_rng,
                progressbar=False,
            )
        return self._of_result(result, "importance", bridged, why)

    def _smc(self, bridged: Bridged, why: str) -> _Found:
        """Return tempering from the Gaussian of the draws."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PPLBackendsWarning)
            result = sample_smc(
                self.target,
                initial=self.start,
                draws=_PARTICLES,
                chains=_RUNS,
                random_seed=self.smc_rng,
                progressbar=False,
            )
        return self._of_result(result, "smc", bridged, why)

    def missed_share(self, log_evidence: float, rng: np.random.Generator) -> float:
        """Return the share of the evidence in regions without draws, from draws of the prior; NaN if it is not looked for."""
        target = self.target
        if target.is_estimated or target.dim > _MOST_COORDINATES or not np.isfinite(log_evidence):
            return float("nan")
        lowest = float(self.start.log_density(self.draws.x.reshape(self.draws.n, -1)).min())
        found = share_beyond(target, self.start, lowest, log_evidence, _PRIOR_POINTS, rng)
        return float("nan") if found is None else found

    def reason_of_mode(self, log_evidence: float, rng: np.random.Generator, doubtful: bool) -> tuple[str, ...]:
        """Return the reason for distrust if climbs find a mode without draws; there is no search for an evidence in doubt."""
        if doubtful or not np.isfinite(log_evidence):
            return ()
        target = self.target.with_fixed_batch_size()  # climbs have batches of many sizes
        lost = mode_without_chains(target, self.draws.x.reshape(self.draws.n, -1), rng, log_evidence)
        return () if lost is None else (lost_mode_reason(lost, self.target.names, ADVICE),)

    def reason_of_prior(self, found: _Found, rng: np.random.Generator, doubtful: bool) -> tuple[str, ...]:
        """Return the reason for distrust if draws of the prior give a higher evidence, unless it is in doubt already."""
        if doubtful or self.target.dim > _MOST_COORDINATES:
            return ()
        reason = reason_of_more(self.target, found.log_evidence, found.standard_error, _PRIOR_POINTS, rng)
        return (reason,) if reason else ()

    def _of_result(self, result: Any, method: str, bridged: Bridged, why: str) -> _Found:
        """Return the evidence of a run of this package with reasons for distrust; compare it with a sound bridge."""
        attrs = group(result, "posterior").attrs
        value, error = float(attrs["log_evidence"]), float(attrs["log_evidence_se"])
        reasons: tuple[str, ...] = () if attrs["log_evidence_trusted"] else (str(attrs["warnings"]),)
        apart = abs(value - bridged.log_evidence) / max(float(np.hypot(error, bridged.standard_error)), 1e-9)
        if not _distrust_of_bridge(bridged, compare=False) and apart > _DISAGREEMENT:
            reasons += (f"bridge sampling gives {bridged.log_evidence:.3f}, {apart:.1f} standard errors away",)
        return _Found(value, error, float(attrs.get("log_evidence_df", np.inf)), method, reasons, why)


def _of_bridge(bridged: Bridged, method: str, why: str) -> _Found:
    reasons = tuple(_distrust_of_bridge(bridged))
    return _Found(bridged.log_evidence, bridged.standard_error, bridged.df, method, reasons, why)


def _distrust_of_bridge(bridged: Bridged, compare: bool = True) -> list[str]:
    """Return reasons, each with its figure, not to trust bridges; ``compare`` them with importance sampling by q."""
    reasons = []
    if not bridged.standard_error <= _LARGEST_ERROR:
        reasons.append(f"the bridge's standard error of {bridged.standard_error:.2g} is above {_LARGEST_ERROR}")
    if bridged.pareto_k > LARGEST_PARETO_K:
        reasons.append(f"Pareto k of the bridge's terms is {bridged.pareto_k:.2f}, above {LARGEST_PARETO_K}")
    if bridged.apart > _DISAGREEMENT:
        reasons.append(f"bridges from reshuffled blocks of the draws are {bridged.apart:.1f} standard errors apart")
    if bridged.chains_disagree:
        reasons.append("the chains' parts in the evidence differ by more than their errors explain")
    if bridged.undefined > LARGEST_UNDEFINED:
        reasons.append(
            f"the log density is NaN or +inf, which counts as zero, at {100 * bridged.undefined:.1f} % of the points of the "
            "proposal, among the draws"
        )
    apart = abs(bridged.importance - bridged.log_evidence) / max(
        float(np.hypot(bridged.importance_se, bridged.standard_error)), 1e-9
    )
    if compare and bridged.weights_k <= _SECOND_MOMENT and bridged.efficiency > 0.05 and apart > _DISAGREEMENT:
        reasons.append(
            f"points of the proposal alone give {bridged.importance:.3f}, {apart:.1f} standard errors away: the draws do not "
            "follow this density"
        )
    return reasons


def _reason_of_missed(share: float, effective: float) -> list[str]:
    """Return the reason not to trust draws of so many effective ones that miss a share of the evidence."""
    if not share > max(LARGEST_MISSED_SHARE, _MISSED_BY_CHANCE / effective):
        return []
    return [f"draws of the prior find {share:.2g} times this evidence in a region without draws, such as another mode"]


def _diagnostics(draws: Draws, found: Checked, bridged: Bridged, missed: float) -> dict[str, float]:
    convergence, neck = found.convergence, found.neck
    figures = {
        "rhat": convergence.rhat,
        "effective_draws": convergence.effective,
        "n_divergent": float(draws.divergent),
        "n_repaired": float(draws.repaired),
        "log_density_mismatch": draws.mismatch,
        "bridge": bridged.log_evidence,
        "bridge_se": bridged.standard_error,
        "pareto_k": bridged.pareto_k,
        "blocks_apart": bridged.apart,
        "efficiency": bridged.efficiency,
        "weights_pareto_k": bridged.weights_k,
        "large_energy_errors": float("nan") if neck is None else neck.large_errors,
        "drift": float("nan") if neck is None else neck.drift,
        "neck_growth": float("nan") if neck is None else neck.growth,
        "uncovered": float("nan") if neck is None else neck.uncovered,
        "change_by_moves": float("nan") if neck is None or neck.change is None else neck.change.mean,
        "missed_share": missed,
    }
    return {name: figure for name, figure in figures.items() if not np.isnan(figure)}
