"""Known families among sites, by their values: stable in the tails, with closed-form moments, and nothing to compile.

A family is a least-squares fit of few basis functions to the sites' values near the origin. It is accepted when it
agrees with them out to where the sites as written lose their own accuracy; nothing depends on what a distribution is
called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri_exp

from ppl_backends.targets.factors.families import (
    Laplace,
    Logit,
    NegativeBinomial,
    Normal,
    Poisson,
    Probit,
    StudentT,
)
from ppl_backends.targets.factors.sites import SiteFamily
from ppl_backends.targets.protocol import Array

__all__ = ["EPSILON", "Recognised", "recognise", "rounding"]

EPSILON = float(np.finfo(float).eps)
SMALLEST_COMPLEMENT = -37.5  # log of what 1 − p cannot fall below without being zero

NEAR = np.concatenate([np.linspace(-4, 4, 17) + 0.0625, [0.0]])
FAR = np.array([6.0, 9.0, 13.0, 18.0, 25.0, 33.0, 47.0, 70.0, 110.0, 300.0])
FAR = np.concatenate([-FAR[::-1], FAR])
TOLERANCE = 1e-9
WIDE = np.array([-2000.0, -1000.0, 1000.0, 2000.0, -1e6, 1e6, -1e8, 1e8])


def rounding(log_value: Array) -> Array:
    """Rounding error of the log of a probability that may have been computed as 1 − p."""
    log_value = np.where(np.isfinite(log_value), log_value, 0.0)
    return np.where(log_value > SMALLEST_COMPLEMENT, 4 * EPSILON * np.exp(np.minimum(-log_value, 40.0)), 0.0)


class Recognised(NamedTuple):
    """A family with ``log t(s) = family(scale · s + shift) + constant`` for every site."""

    family: SiteFamily
    scale: Array | float
    shift: Array
    constant: Array
    trials: Array | float = 1.0  # of a binomial site, which sums as many logs of probabilities


def recognise(log_site: Callable[[Array], Array], n: int) -> Recognised | None:
    """The known family that all ``n`` sites belong to, or None.

    Parameters
    ----------
    log_site : callable
        Scalars ``(k, n)`` to log t ``(k, n)``, as the model has it.
    n : int
    """
    near = log_site(np.repeat(NEAR[:, None], n, axis=1))
    if not np.isfinite(near).all():
        return None
    wide = log_site(np.repeat(WIDE[:, None], n, axis=1))
    for propose in PROPOSALS:
        with np.errstate(all="ignore"):
            proposal = propose(near, wide)
        if proposal is not None and _agrees(proposal, NEAR, near):
            far = log_site(np.repeat(FAR[:, None], n, axis=1))
            return proposal if _agrees(proposal, FAR, far) else None
    return None


def _agrees(proposal: Recognised, nodes: Array, written: Array) -> bool:
    """Whether the family has the values as written, wherever those are accurate."""
    with np.errstate(all="ignore"):
        argument = nodes[:, None] * proposal.scale + proposal.shift
        known = proposal.family.log_site(argument) + proposal.constant
        lost = ~np.isfinite(written) & (known < -34 * proposal.trials)  # 1 − p is zero, or exp(s) too large
        complement = 4 * EPSILON * proposal.trials * np.exp(np.minimum(np.abs(argument), 36.0))
        allowed = TOLERANCE * (1 + np.abs(written)) + np.where(
            np.asarray(proposal.trials) > 1, complement, rounding(written)
        )
        return bool(np.all(lost | (np.abs(known - written) <= allowed)))


def _fit(near: Array, functions: Sequence[Callable[[Array], Array]]) -> Array:
    """Coefficients ``(len(functions), n)`` of a least-squares fit."""
    basis = np.stack([f(NEAR) for f in functions], axis=1)
    return np.asarray(np.linalg.lstsq(basis, near, rcond=None)[0], dtype=np.float64)


def _counts(coefficients: Array) -> Array:
    """Coefficients next to a whole number as that number."""
    whole = np.round(coefficients)
    return np.where(np.abs(coefficients - whole) < 1e-6, whole, coefficients)


def _against(family: SiteFamily, shift: Array, near: Array) -> Recognised:
    """A family up to the constants, which are those that fit the values as written at the origin."""
    origin, size = len(NEAR) - 1, 1 + np.abs(near).max(axis=0)
    constant = near[origin] - family.log_site(np.broadcast_to(shift, near.shape[1:])[None])[0]
    return Recognised(family, 1.0, shift, np.where(np.abs(constant) < 1e-11 * size, 0.0, constant))


def _one(s: Array) -> Array:
    return np.ones_like(s)


def _softplus(s: Array) -> Array:
    return np.logaddexp(0.0, s)


def _normal(near: Array, wide: Array) -> Recognised | None:
    """−(s − y)²/2σ²."""
    square, linear, _ = _fit(near, (np.square, lambda s: s, _one))
    if not np.all(square < -1e-12):
        return None
    return _against(Normal(-0.5 * linear / square, np.sqrt(-0.5 / square)), np.zeros(near.shape[1]), near)


def _logit(near: Array, wide: Array) -> Recognised | None:
    """Y s − n log(1 + eˢ)."""
    y, trials = _counts(_fit(near, (lambda s: s, lambda s: -_softplus(s), _one))[:2])
    if not np.all((y >= 0) & (y <= trials) & (trials > 0)):
        return None
    return _against(Logit(y, trials), np.zeros(near.shape[1]), near)._replace(trials=trials)


def _probit(near: Array, wide: Array) -> Recognised | None:
    """Log Φ(α s + β), by the line that Φ⁻¹ makes of it."""
    inner = np.abs(NEAR) < 1.5
    basis = np.stack([NEAR[inner], np.ones(int(inner.sum()))], axis=1)
    scale, shift = np.linalg.lstsq(basis, np.nan_to_num(ndtri_exp(near[inner])), rcond=None)[0]
    sign = np.where(scale < 0, -1.0, 1.0)
    shift = np.where(np.abs(shift) < 1e-12, 0.0, sign * shift)
    return Recognised(Probit(sign), np.abs(scale), shift, np.zeros(len(scale)))


def _poisson(near: Array, wide: Array) -> Recognised | None:
    """Y s − E eˢ, with the exposure E as a shift of s."""
    y, exposure, _ = _fit(near, (lambda s: s, lambda s: -np.exp(s), _one))
    y = _counts(y)
    if not np.all((y >= 0) & (exposure > 0)):
        return None
    return _against(Poisson(y), np.log(exposure), near)


def _slopes(wide: Array) -> tuple[Array, Array]:
    """Slopes far out on the left and on the right."""
    return (wide[1] - wide[0]) / (WIDE[1] - WIDE[0]), (wide[3] - wide[2]) / (WIDE[3] - WIDE[2])


def _negative_binomial(near: Array, wide: Array) -> Recognised | None:
    """Y s − (y + α) log(1 + e^(s − b)): y and −α are the slopes of the tails, which meet at b."""
    y, alpha = _counts(_slopes(wide)[0]), -_slopes(wide)[1]
    if not np.all((y >= 0) & (alpha > 0) & np.isfinite(alpha)):
        return None
    b = (wide[2] + alpha * WIDE[2] - wide[1] + y * WIDE[1]) / (y + alpha)
    shift = np.log(alpha) - b
    return _against(NegativeBinomial(y, alpha), np.where(np.abs(shift) < 1e-11, 0.0, shift), near)


def _laplace(near: Array, wide: Array) -> Recognised | None:
    """−|s − y|/b: two lines, and where they meet."""
    left, right = _slopes(wide)
    if not np.all((left > 0) & (np.abs(left + right) < TOLERANCE * left)):
        return None
    y = (wide[2] - wide[1] + left * WIDE[1] - right * WIDE[2]) / (left - right)
    return _against(Laplace(y, 1 / left), np.zeros(near.shape[1]), near)


def _student(near: Array, wide: Array) -> Recognised | None:
    """−(ν + 1)/2 log(1 + (s − y)²/νσ²): ν from the tails, then exp(−2 log t/(ν + 1)) is a parabola."""
    nu = (wide[4] + wide[5] - wide[6] - wide[7]) / (2 * np.log(WIDE[7] / WIDE[5])) - 1
    nu = np.where(np.abs(nu - np.round(nu, 3)) < 1e-7, np.round(nu, 3), nu)
    if not np.all((nu > 0.05) & (nu < 1e3)):
        return None
    parabola = np.exp(-2 * (near - near.max(axis=0)) / (nu + 1))
    square, linear, constant = _fit(parabola, (np.square, lambda s: s, _one))
    y = -0.5 * linear / square
    spread = constant / square - y**2
    if not np.all(spread > 0):
        return None
    y = np.where(np.abs(y) < 1e-11, 0.0, y)
    return _against(StudentT(y, nu, np.sqrt(spread / nu)), np.zeros(near.shape[1]), near)


PROPOSALS = (_normal, _logit, _probit, _poisson, _negative_binomial, _laplace, _student)
