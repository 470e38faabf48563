r"""The evidence by bridges between draws of a posterior γ/Z and normalised densities q that are fitted to other draws.

Chains are cut into quarters. A split puts two quarters on each side. A q fitted to one side is bridged to the draws on
the other side, and vice versa. Two splits are made, and the evidence is the mean of the four bridges.

The error of log Z has three parts.

* Points of q are independent: their part is the sum of their squared terms (Frühwirth-Schnatter 2004).
* A draw contributes −h(x), with h = Zq/(s₁γ + s₂Zq) over its mean, minus one, to all four bridges. Draws of a chain
  are a time series: the sum has the variance n² var(h)/ESS, with ArviZ's effective sample size. The spread between
  chains is used as well (:func:`ppl_backends.smc.evidence.combine_evidence`). Optimal bridges weight the draws by
  their effective number, too.
* h = h₀ + d, where d is the error of q. The error of side A in d is the mean over A of a function that is linear in
  the error of side B, and the error of side B is the same product with A and B exchanged. They do not average out, so
  the variance of d counts twice. Two q's fitted to different draws differ by two independent such errors, so half the
  variance of the difference of their h is that of d.

Pareto k of the terms, and the differences of estimates from reshuffled blocks of the draws, show whether that error
can be trusted (Micaletto and Vehtari 2025, arXiv 2508.14487).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.importance.outside import OutsidePoints
from ppl_backends.marginal_likelihood.draws import Draws
from ppl_backends.numerics.bridge import OptimalBridge, centred_shares, degrees_of_freedom, optimal_bridge
from ppl_backends.numerics.weights import (
    NEGLIGIBLE_TAIL,
    effective_sample_size,
    log_mean_exp,
    normalised_weights,
    pareto_k,
    tail_share,
)
from ppl_backends.results.convergence import effective_draws
from ppl_backends.smc.evidence import combine_evidence, sums_by_lineage
from ppl_backends.targets.integral import combined_error
from ppl_backends.targets.protocol import Array, BaseTarget, Index

_SIDES = np.array([[0, 0, 1, 1], [0, 1, 0, 1]])  # side of each quarter; one row per split

Fit = Callable[[Array], Any]
"""Map from points ``(n, dim)`` to a density with ``sample(n, rng)``, ``log_density(x)`` and ``mean``."""


class Bridged(NamedTuple):
    """An evidence by bridges, and diagnostics.

    ``apart`` is the largest distance of a bridge from the mean of all, in its own standard errors. ``pareto_k`` is the
    largest Pareto k of terms that matter. ``efficiency`` and ``weights_k`` are diagnostics of importance weights at
    the points of q, whose ``importance`` log evidence has the standard error ``importance_se``.
    """

    log_evidence: float
    standard_error: float
    df: float
    chains_disagree: bool
    apart: float
    pareto_k: float
    efficiency: float
    weights_k: float
    importance: float
    importance_se: float
    undefined: float


class _Side(NamedTuple):
    """One bridge: its solution, h at all draws ``(chain, draw)``, and the terms and log weights of its points of q."""

    bridge: OptimalBridge
    own: NDArray[np.bool_]
    h: Array
    terms: Array
    log_weights: Array
    k: float


def bridge_draws(
    draws: Draws, target: BaseTarget, fit: Fit, rng: np.random.Generator, *, mirrored: bool = False
) -> Bridged:
    """Return the evidence by bridges; ``mirrored`` bridges to the mean of γ and its mirror image about the mean of q.

    The mirrored bridge is Meng and Schilling's (2002) Warp-III. It removes the skewness of γ, at twice the evaluations.
    """
    length = draws.log_density.shape[1]
    quarter = (4 * np.arange(length)) // length
    outside = OutsidePoints(draws.x.reshape(draws.n, -1))
    splits = []
    for sides in _SIDES:
        fitted = sides[quarter] == 1
        splits.append([_side(draws, target, fit, where, rng, mirrored, outside) for where in (fitted, ~fitted)])
    return _combined(draws, splits, outside.n_undefined(target))


def _side(
    draws: Draws,
    target: BaseTarget,
    fit: Fit,
    fitted: NDArray[np.bool_],
    rng: np.random.Generator,
    mirrored: bool,
    outside: OutsidePoints,
) -> _Side:
    """Bridge the draws at times that are not ``fitted`` ``(draw,)`` to a density that is fitted to the others."""
    chains, _, dim = draws.x.shape
    q = fit(draws.x[:, fitted].reshape(-1, dim))
    proposed = q.sample(chains * int((~fitted).sum()), rng)
    with np.errstate(all="ignore"):  # far out in the tails
        density = target.log_density(proposed)
        outside.see(proposed, density)
        points, known = draws.x.reshape(-1, dim), draws.log_density.ravel()
        if mirrored:
            known, density = (
                np.logaddexp(own, target.log_density(2 * q.mean - x)) - np.log(2.0)
                for own, x in ((known, points), (density, proposed))
            )
        ratio = (known - q.log_density(points)).reshape(draws.log_density.shape)
        weights = density - q.log_density(proposed)
    return _solved(draws, ratio, ~fitted, np.where(np.isnan(weights), -np.inf, weights))


def _solved(draws: Draws, ratio: Array, own: NDArray[np.bool_], weights: Array) -> _Side:
    """Solve one bridge, first as if the draws were independent, then with their effective sample size for it."""
    here = ratio[:, own]
    found = optimal_bridge(here.ravel(), weights, float(here.size))
    h = _relative(found.at_points(ratio), own)
    variance = here.size * variance_of_mean(h[:, own], _rows(draws.ancestor, own)).mean() / len(h)
    worth = here.size * float(np.clip(h[:, own].var() / variance, 1.0 / here.size, 1.0)) if variance > 0 else here.size
    found = optimal_bridge(here.ravel(), weights, worth, found.log_evidence)
    at_points, at_proposed = found.at_points(ratio), found.at_proposed(weights)
    return _Side(
        found,
        own,
        _relative(at_points, own),
        centred_shares(at_proposed),
        weights,
        max(_heavy_k(at_points[:, own].ravel()), _heavy_k(at_proposed)),
    )


def _relative(logs: Array, own: NDArray[np.bool_]) -> Array:
    """Return terms, given their logs, over their mean at the bridge's own draws, minus one."""
    return np.exp(logs - log_mean_exp(logs[:, own])) - 1.0


def _rows(labels: Index | None, own: NDArray[np.bool_]) -> Index | None:
    return None if labels is None else labels[:, own]


def _heavy_k(logs: Array) -> float:
    """Return Pareto k of terms given their logs; 0 if the largest terms hold a negligible share of the sum."""
    return pareto_k(logs) if tail_share(logs) > NEGLIGIBLE_TAIL else 0.0


def variance_of_mean(h: Array, ancestor: Index | None) -> Array:
    """Return variances ``(chain,)`` of the means of centred time series ``(chain, draw)``, or of labelled draws."""
    chains, length = h.shape
    if ancestor is not None:
        return np.array([(sums_by_lineage(h[[c]].T, ancestor[c]) ** 2).sum() for c in range(chains)]) / length**2
    worth = np.array([effective_draws(h[[c], :, None], "mean")[0] for c in range(chains)])
    return h.var(axis=1) / worth


def _combined(draws: Draws, splits: list[list[_Side]], undefined: float) -> Bridged:
    """Return the mean of all bridges with its error."""
    sides = [side for split in splits for side in split]
    estimates = np.array([side.bridge.log_evidence for side in sides])
    log_evidence = float(log_mean_exp(estimates))
    h = np.zeros_like(draws.log_density)
    for side in sides:
        h[:, side.own] -= side.h[:, side.own] / len(splits)
    within = variance_of_mean(h, draws.ancestor)
    df = np.array([_df_of_chain(row, variance) for row, variance in zip(h, within, strict=True)])
    chains = combine_evidence(log_evidence + h.mean(axis=1), within, df)
    # For every split, add once more the errors of its two fits; their mean over splits has a smaller variance.
    twice = np.mean([_variance_of_fits(one, other, draws.ancestor) for one, other in splits])
    twice *= (len(splits) + 1) / (2 * len(splits)) / len(h)
    terms = np.concatenate([side.terms for side in sides]) / len(sides)
    errors = [np.hypot(chains.standard_error, twice**0.5), float((terms**2).sum() ** 0.5)]
    error, total_df = combined_error(errors, [chains.df, float(degrees_of_freedom(terms))])
    own_errors = [
        np.sqrt(
            variance_of_mean(side.h[:, side.own], _rows(draws.ancestor, side.own)).mean() / len(h)
            + (side.terms**2).sum()
        )
        for side in sides
    ]
    weights = np.concatenate([side.log_weights for side in sides])
    shares, importance = normalised_weights(weights)
    return Bridged(
        log_evidence,
        error,
        total_df,
        chains.runs_disagree,
        float(np.max(np.abs(estimates - log_evidence) / np.maximum(own_errors, 1e-9))),
        max(side.k for side in sides),
        effective_sample_size(weights) / len(weights),
        pareto_k(weights),
        importance,
        float(np.sqrt(((shares - 1.0 / len(shares)) ** 2).sum())),
        undefined / len(weights),
    )


def _df_of_chain(h: Array, variance: float) -> float:
    """Return degrees of freedom of the variance of the mean of a series, from blocks of its autocorrelation length."""
    length = len(h)
    memory = length * variance / max(float(h.var()), 1e-300)  # draws per effective draw
    n_blocks = int(np.clip(length / max(1.0, 2.0 * memory), 2, length))
    sums = np.array([part.sum() for part in np.array_split(h, n_blocks)])
    return float(degrees_of_freedom(sums))


def _variance_of_fits(one: _Side, other: _Side, ancestor: Index | None) -> float:
    """Return the variance of a chain's mean of d: half the variance of the difference of two fits.

    On each side one of the fits used the draws, which shifts its mean. Therefore each is centred separately.
    """
    halves = []
    for side in (one, other):
        difference = (one.h - other.h)[:, side.own]
        centred = difference - difference.mean(axis=1, keepdims=True)
        halves.append(variance_of_mean(centred, _rows(ancestor, side.own)).mean())
    return 0.5 * 0.5 * float(np.mean(halves))
