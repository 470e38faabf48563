"""Faults of a variational fit: of the optimiser, of the Gaussian by weights of fresh points, and mass beside it."""

from __future__ import annotations

from typing import Any

from ppl_backends.approximations.elsewhere import judge_elsewhere
from ppl_backends.approximations.profile import fault_in_model_space, marginal_along
from ppl_backends.approximations.variational.elbo import BoundEstimate
from ppl_backends.approximations.verdict import doubtful_coordinate, judge_moments, judge_weights, weighted_along
from ppl_backends.numerics.weights import LARGEST_PARETO_K, heavy_tail
from ppl_backends.targets.protocol import BaseTarget


def faults(q: Any, fit: Any, bound: BoundEstimate, tolerance: float) -> list[str]:
    """Return the faults of the fit, with figures."""
    said = []
    if bound.outside > 0:
        said.append(
            f"the posterior density is zero at {bound.outside:.2%} of the Gaussian's points, so there is no lower bound: use "
            "sample_smc"
        )
    if not fit.converged:
        said.append(
            f"not converged: means or log scales still change by {fit.change:.2g} (tolerance {tolerance:g}) and the bound "
            f"of the sample is off by {abs(q.diagnostics['optimism']):.2g} with {fit.draws} points: increase max_draws or "
            "max_iterations, or use annealing="
        )
    contradicted = _contradicted(bound)
    if contradicted:
        said.append(
            f"{contradicted}, so the Gaussian is far from the posterior and its standard deviations may be too small: use "
            "sample_smc, which can start from it (initial=)"
        )
    moments = judge_weights(q, bound.points, bound.log_weights) if not said and q.family == "dense" else ""
    if moments:
        said.append(
            f"by weights of its points {moments}: use sample_importance or sample_smc, which can start from it (initial=)"
        )
    return said


def faults_of_width(target: BaseTarget, q: Any, bound: BoundEstimate) -> list[str]:
    """Return the fault of a dense Gaussian along the coordinate that weights of its points doubt most, if it has one.

    If it has none, the fault of a skewed variable in model space.
    """
    shift, ratio = weighted_along(q, bound.points, bound.log_weights)
    doubted = doubtful_coordinate(shift, ratio)
    marginal = None if doubted is None else marginal_along(target, q, doubted)
    said = "" if marginal is None else judge_moments(*marginal.own_moments, q.names[doubted])
    said = said or fault_in_model_space(target, q, shift, ratio)
    advice = "use sample_importance or sample_smc, which can start from it (initial=)"
    return [f"by Laplace's method for the other coordinates {said}: {advice}"] if said else []


def _contradicted(bound: BoundEstimate) -> str:
    """Return why the weights of fresh points show that the Gaussian is far from the posterior; empty if they do not."""
    if heavy_tail(bound.pareto_k, bound.tail_share):
        return f"Pareto k {bound.pareto_k:.2f} > {LARGEST_PARETO_K}"
    if bound.distance > 1:
        return f"the Gaussian is {bound.distance:.2g} standard deviations off (root mean square over the coordinates)"
    return ""


def faults_elsewhere(target: BaseTarget, q: Any) -> tuple[list[str], dict[str, float]]:
    """Return the fault of mass that a dense Gaussian does not cover, if there is one, and the shares of that mass."""
    trouble, figures = judge_elsewhere(target, q.replaced(log_evidence=q.elbo))
    said = f"{trouble}: use sample_importance or sample_smc(initial='auto'), which start from all modes"
    return [said] if trouble else [], figures
