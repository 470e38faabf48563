"""The ladder of exponents: chosen as it is climbed, or given.

By ESS every temperature is followed by resampling, and the next exponent is where the effective sample size of the weights of
that one step falls to a share of the particles. By conditional ESS (Zhou, Johansen & Aston 2016) particles stay weighted, and
are resampled only where the weights have become uneven; the step is chosen by its weights' ESS *given* those already there,
N(ΣWw)²/ΣWw². With equal weights the two are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from ppl_backends.errors import ModelError
from ppl_backends.targets.protocol import Array

__all__ = ["Schedule", "make_schedule", "next_exponent"]

_RESAMPLE_BELOW = 0.5


def next_exponent(increment: Array, exponent: float, ess_fraction: float, weights: Array | None = None) -> float:
    """Largest λ' ≤ 1 whose incremental weights exp{(λ' − λ)·increment} keep an ESS of ``ess_fraction`` of the points.

    Buchholz (2018), equation 5.1 and Algorithm 13. Points outside the support have weight zero at every λ' > λ, so the ESS
    is measured against those inside.

    Parameters
    ----------
    increment : ndarray (n,)
    exponent : float
        The present λ.
    ess_fraction : float
    weights : ndarray (n,), optional
        Normalised weights that the points have already; the ESS is then conditional on them.
    """
    inside = increment > -np.inf
    finite = increment[inside]
    share = (
        np.full(len(finite), 1.0 / max(len(finite), 1)) if weights is None else weights[inside] / weights[inside].sum()
    )

    def excess(step: float) -> float:
        return _conditional_ess(step * finite, share) - ess_fraction

    longest = 1.0 - exponent
    if excess(longest) >= 0:
        return 1.0
    # The step can be many orders of magnitude below one (vague priors): bisect on the log scale.
    shortest = longest
    while excess(shortest) < 0 and shortest > 1e-300:
        shortest *= 1e-3
    log_step = brentq(lambda s: excess(np.exp(s)), np.log(shortest), np.log(min(shortest * 1e3, longest)), xtol=1e-6)
    return min(1.0, exponent + float(np.exp(log_step)))


def _conditional_ess(log_weights: Array, share: Array) -> float:
    """(ΣWw)²/ΣWw², between 0 and 1."""
    w = np.exp(log_weights - log_weights.max())
    return float((share @ w) ** 2 / (share @ w**2))


@dataclass(frozen=True)
class Schedule:
    """How the next exponent is found.

    Attributes
    ----------
    kind : {"ess", "cess", "fixed"}
    fraction : float
        Of the particles, which the (conditional) ESS of a step keeps.
    exponents : tuple of float
        Those to visit, where they are given.
    """

    kind: str = "ess"
    fraction: float = 0.5
    exponents: tuple[float, ...] = ()

    def next(self, increment: Array, exponent: float, weights: Array | None) -> float:
        """The exponent after ``exponent``; ``weights`` are normalised, None for equal ones."""
        if self.kind == "fixed":
            return next(given for given in self.exponents if given > exponent)
        return next_exponent(increment, exponent, self.fraction, weights)

    def resamples(self, weights: Array, exponent: float) -> bool:
        """Whether to resample at ``exponent``: always, or by conditional ESS where the ESS is below half, and at the end."""
        if self.kind != "cess" or exponent == 1.0 or not weights.all():
            return True
        return bool(1.0 / (weights**2).sum() < _RESAMPLE_BELOW * len(weights))


def make_schedule(schedule: str | Sequence[float], fraction: float) -> Schedule:
    """The schedule asked for.

    Raises
    ------
    ModelError
        If it is neither a name nor an increasing sequence of exponents in (0, 1].

    Examples
    --------
    >>> make_schedule([0.1, 0.5], 0.5).exponents
    (0.1, 0.5, 1.0)
    """
    if isinstance(schedule, str):
        if schedule not in ("ess", "cess"):
            raise ModelError(f"schedule={schedule!r}: expected 'ess', 'cess' or a sequence of exponents")
        return Schedule(schedule, fraction)
    try:
        exponents = tuple(float(exponent) for exponent in schedule)
    except (TypeError, ValueError):
        exponents = ()
    if not exponents or exponents[0] <= 0 or exponents[-1] > 1 or any(np.diff(exponents) <= 0):
        raise ModelError(f"schedule={schedule!r}: expected 'ess', 'cess' or increasing exponents in (0, 1]")
    return Schedule("fixed", fraction, exponents if exponents[-1] == 1.0 else (*exponents, 1.0))
