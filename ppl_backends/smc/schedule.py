"""The ladder of betas, chosen adaptively or given.

By ESS, every temperature is followed by resampling, and the next beta is the one at which the effective sample size of
that step's weights falls to a given share of the particles. By conditional ESS (Zhou, Johansen & Aston 2016) particles
stay weighted, and are resampled only if the weights have become uneven; the step is chosen by the ESS of its weights
*given* the current ones, N(ΣWw)²/ΣWw². With equal weights the two are the same.

**How large the share has to be.** A step that its own particles choose is longer if the sample lacks large weights,
and then the mean weight is too low. So the log evidence of tempering is biased downwards even if the particles mix
perfectly. Let e(t) be the error of the log mean of exp(t·increment). The log ESS of a step Δ is off by 2e(Δ) − e(2Δ),
the step by that over −d log ESS/dΔ, and the log evidence on average by
    E[e'(Δ)·{2e(Δ) − e(2Δ)}] / (−d log ESS/dΔ),

a ratio of moments up to the third of the weights, over N (:func:`adaptation_bias`). It is −2/N for lognormal weights
at an ESS of one half, and a tenth to a half of that for most regressions from their prior. If the increment has an
exponential tail of rate r, it is infinite from Δ = r/3, where the ESS is still 0.87 of the particles; on a path from a
narrow to a wide distribution the ESS is one half at Δ = 0.46 r. (The logarithm adds −V/2, with V the variance of the
mean weight.)

**Chains.** States of one chain are not independent. The variance of the mean weight by sums over chains, divided by
that of independent states, is the number of states per independent state. With few effective states a tail is missed
more often. Particles that then move slowly lag behind at the following temperatures.

So by default a step keeps an ESS of half of the particles if weights are light-tailed and chains mix, and of up to
0.97 otherwise (:func:`share_to_keep`). It is repeated with a shorter length if the next step turns out to need a much
larger share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq

from ppl_backends.errors import ModelError
from ppl_backends.numerics.weights import systematic_resampling
from ppl_backends.smc.core import SMCState
from ppl_backends.targets.protocol import Array, Index

RESAMPLE_BELOW = 0.5  # relative ESS below which particles are resampled, by conditional ESS
_LEAST_SHARE, _LARGEST_SHARE = 0.5, 0.97  # bounds of the relative ESS of a step
_LARGE_BIAS = 1.0  # of a step with an ESS of one half, times the number of particles
_MANY_FOR_ONE = 3.0  # states of a chain per independent particle
_ABRUPT = 8.0  # largest factor by which the relative variance may fall from one step to the next
_CONDITIONAL_SHARE = 0.9  # smallest value of Zhou, Johansen & Aston


def next_beta(increment: Array, beta: float, ess_fraction: float, weights: Array | None = None) -> float:
    """Return the largest β' ≤ 1 whose incremental weights keep an ESS of ``ess_fraction`` of the points.

    Buchholz (2018), equation 5.1 and Algorithm 13. Points outside the support have weight zero at every β' > β, so the
    ESS is relative to the number inside. With ``weights``, normalised, it is conditional on them.
    """
    inside = increment > -np.inf
    finite = increment[inside]
    if not len(finite):
        raise ModelError(
            f"the log likelihood is -inf or NaN at all {len(increment)} particles; check the data against the model's support"
        )
    share = (
        np.full(len(finite), 1.0 / max(len(finite), 1)) if weights is None else weights[inside] / weights[inside].sum()
    )

    def excess(step: float) -> float:
        return _conditional_ess(step * finite, share) - ess_fraction

    longest = 1.0 - beta
    if excess(longest) >= 0:
        return 1.0
    # The step can be many orders of magnitude below one (vague priors): bisect on the log scale.
    shortest = longest
    while excess(shortest) < 0 and shortest > 1e-300:
        shortest *= 1e-3
    log_step = brentq(lambda s: excess(np.exp(s)), np.log(shortest), np.log(min(shortest * 1e3, longest)), xtol=1e-6)
    return min(1.0, beta + float(np.exp(log_step)))


def _conditional_ess(log_weights: Array, share: Array) -> float:
    """Return (ΣWw)²/ΣWw², between 0 and 1."""
    w = np.exp(log_weights - log_weights.max())
    return float((share @ w) ** 2 / (share @ w**2))


def adaptation_bias(increment: Array, step: float) -> float:
    """Return −N times the bias of the log evidence if the ESS of N independent particles chose the step."""
    once, twice = _tilted(increment, step), _tilted(increment, 2.0 * step)
    mean = float((once * increment).mean())
    slope = 2.0 * (float((twice * increment).mean()) - mean)  # −d log ESS/dΔ
    return -float((once * (increment - mean) * (2.0 * once - twice)).mean()) / slope if slope > 0 else 0.0


def share_to_keep(increment: Array, step: float, len_chain: int = 1) -> float:
    """Return the relative ESS that the next step should keep: a half, and more for skewed weights or slow chains.

    With c = max(1, bias)·max(1, states for one / 3)², the relative variance of the weights is at most c⁻². The powers
    are larger than those of first-order theory, because a sample's third moment and sums over few chains both miss a
    tail.
    """
    inside = np.flatnonzero(increment > -np.inf)
    finite = increment[inside]
    excess = max(1.0, adaptation_bias(finite, step) / _LARGE_BIAS)
    if len_chain > 1:
        centred = _tilted(finite, step) - 1.0
        by_chain = np.bincount(inside // len_chain, centred)
        states_for_one = float((by_chain**2).sum()) / max(float((centred**2).sum()), 1e-300)
        excess *= max(1.0, states_for_one / _MANY_FOR_ONE) ** 2
    return float(np.clip(1.0 / (1.0 + excess**-2), _LEAST_SHARE, _LARGEST_SHARE))


def _tilted(increment: Array, step: float) -> Array:
    """Return weights of mean one."""
    weights = np.exp(step * (increment - increment.max()))
    scaled: Array = weights / weights.mean()
    return scaled


@dataclass(frozen=True)
class Schedule:
    """Choice of the next beta: by the ``"ess"``, the conditional ``"cess"``, or as given (``"fixed"``).

    A step keeps the share ``fraction`` (by :func:`share_to_keep` if None) and at least ``asked``; ``len_chain``
    adjacent particles are states of one chain.
    """

    kind: str = "ess"
    fraction: float | None = None
    betas: tuple[float, ...] = ()
    len_chain: int = 1
    last_share: float | None = None
    asked: float = 0.0

    @property
    def least_share(self) -> float:
        """Return the smallest share of particles that a step keeps."""
        if self.fraction is not None:
            return self.fraction
        return _CONDITIONAL_SHARE if self.kind == "cess" else _LEAST_SHARE

    @property
    def is_adaptive(self) -> bool:
        """Return whether the share is chosen from the particles."""
        return self.kind == "ess" and self.fraction is None

    def after(self, run: SMCState) -> Schedule:
        """Return the schedule of the following step."""
        return replace(self, last_share=None if run.ess is None else run.ess / len(run.population.x))

    def within(self) -> Schedule:
        """Return the schedule of a first step that does not start the run."""
        return replace(self, last_share=self.least_share)

    def next(self, increment: Array, beta: float, weights: Array | None = None) -> float:
        """Return the beta after ``beta``, for particles of normalised ``weights`` (None for equal ones).

        The relative variance of the weights at most doubles from step to step, except for a step from the start, which
        may end at 1.
        """
        if self.kind == "fixed":
            return next(given for given in self.betas if given > beta)
        farthest = next_beta(increment, beta, self.least_share, weights)
        if not self.is_adaptive or (self.last_share is None and farthest == 1.0):
            return farthest
        share = share_to_keep(increment, farthest - beta, self.len_chain if beta > 0 else 1)
        if self.last_share is not None:
            share = max(share, 1.0 / (1.0 + 2.0 * (1.0 / self.last_share - 1.0)))
        share = min(max(share, self.asked), _LARGEST_SHARE)
        return farthest if share <= _LEAST_SHARE else next_beta(increment, beta, share)

    def shorter(self, done: SMCState, path: Any) -> Schedule | None:
        """Return the schedule of a step that replaces ``done`` if that kept much less than it should; else None."""
        assert done.ess is not None
        increment, beta = path.ahead(done.population)
        asked = self.share_before(increment, beta, done.ess / max(1, done.n_inside))
        return None if asked is None else replace(self, asked=asked)

    def share_before(self, increment: Array, beta: float, share: float) -> float | None:
        """Return the share that the step to ``beta`` should have kept, if it is much more than ``share``; else None.

        This is so if the next step must have at most an eighth of the relative variance: tails and lags build up
        before the temperature at which they show.
        """
        if not self.is_adaptive or beta == 1.0:
            return None
        farthest = next_beta(increment, beta, self.least_share)
        ahead = share_to_keep(increment, farthest - beta, self.len_chain)
        variance, wanted = 1.0 / share - 1.0, 1.0 / ahead - 1.0
        return 1.0 / (1.0 + float(np.sqrt(variance * wanted))) if wanted < variance / _ABRUPT else None

    def from_start(self) -> Schedule:
        """Return the schedule of a run that draws the start; given betas do not apply to it."""
        return Schedule(fraction=self.fraction) if self.kind == "fixed" else self


@dataclass(frozen=True)
class Resampling:
    """Systematic resampling of ``n`` parents if the ESS of the weights is ``below`` a share of the particles."""

    n: int
    below: float = np.inf

    def __call__(self, weights: Array, is_last: bool, rng: np.random.Generator) -> Index | None:
        """Return the parents, with copies adjacent; None if particles keep their weights."""
        due = is_last or not weights.all() or 1.0 / (weights**2).sum() < self.below * len(weights)
        return systematic_resampling(weights, self.n, rng) if due else None


def make_schedule(schedule: str | Sequence[float], threshold: float | str) -> Schedule:
    """Return the schedule asked for; ``threshold`` is the share of the particles that a step keeps, or ``"auto"``."""
    fraction = None if isinstance(threshold, str) else float(threshold)
    if isinstance(schedule, str):
        return Schedule(schedule, fraction)
    betas = tuple(float(beta) for beta in schedule)
    return Schedule("fixed", fraction, betas if betas[-1] == 1.0 else (*betas, 1.0))
