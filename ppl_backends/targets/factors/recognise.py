"""Recognise known families of sites by values: they are stable in the tails, have closed-form moments, and need no compiler.

A family is a least-squares fit of few basis functions to the sites' values near the origin. It is accepted if it
agrees with them up to where the sites as written lose accuracy; the name of a distribution is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri_exp

from ppl_backends.errors import ModelError
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.targets.factors.families import (
    Laplace,
    Logit,
    NegativeBinomial,
    Normal,
    NormalMixture,
    Poisson,
    Probit,
)
from ppl_backends.targets.factors.sites import SiteFamily
from ppl_backends.targets.factors.student import StudentT
from ppl_backends.targets.protocol import Array

EPSILON = float(np.finfo(float).eps)
SMALLEST_COMPLEMENT = -37.5  # log of the smallest nonzero value of 1 − p

NEAR = np.concatenate([np.linspace(-4, 4, 17) + 0.0625, [0.0]])
FEW = np.array([-3.0, -0.75, 1.25, 0.0])
FAR = np.array([6.0, 9.0, 13.0, 18.0, 25.0, 33.0, 47.0, 70.0, 110.0, 300.0])
FAR = np.concatenate([-FAR[::-1], FAR])
TOLERANCE = 1e-9
AROUND = np.array([-3.0, -1.5, -0.5, 0.0, 0.7, 2.0])  # standard deviations from a component
WIDE, WIDEST = np.array([-2000.0, -1000.0, 1000.0, 2000.0]), np.array([-1e6, 1e6, -1e8, 1e8])


def rounding(log_value: Array) -> Array:
    """Return the rounding error of the log of a probability that may have been computed as 1 − p."""
    log_value = np.where(np.isfinite(log_value), log_value, 0.0)
    return np.where(log_value > SMALLEST_COMPLEMENT, 4 * EPSILON * np.exp(np.minimum(-log_value, 40.0)), 0.0)


class Written:
    """Sites as a model computes them, at the nodes that proposals use."""

    def __init__(self, log_site: Callable[[Array], Array], n: int, nodes: Array) -> None:
        self.log_site, self.n, self.nodes = log_site, n, nodes
        self.near = self.at(nodes)

    def at(self, nodes: Array) -> Array:
        """Return log t ``(k, n)`` at nodes ``(k,)``, or ``(k, n)`` with separate nodes for every site."""
        return self.log_site(np.repeat(nodes[:, None], self.n, axis=1) if nodes.ndim == 1 else nodes)

    @cached_property
    def wide(self) -> Array:
        """Return log t far out."""
        return self.at(WIDE)

    def fit(self, values: Array, functions: Sequence[Callable[[Array], Array]]) -> Array:
        """Return the coefficients ``(len(functions), n)`` of a least-squares fit to values at the nodes."""
        basis = np.stack([f(self.nodes) for f in functions], axis=1)
        return np.asarray(np.linalg.lstsq(basis, values, rcond=None)[0], dtype=np.float64)

    def known_as(self, family: SiteFamily, shift: Array, propose: Propose) -> Recognised:
        """Return a family up to the constants, which are fitted to the values at the last node, the origin."""
        size = 1 + np.abs(self.near).max(axis=0)
        constant = self.near[-1] - family.log_site(np.broadcast_to(shift, self.n)[None])[0]
        return Recognised(family, 1.0, shift, np.where(np.abs(constant) < 1e-11 * size, 0.0, constant), propose)


class Recognised(NamedTuple):
    """A family with ``log t(s) = family(scale · s + shift) + constant`` for every site."""

    family: SiteFamily
    scale: Array | float
    shift: Array
    constant: Array
    propose: Propose  # the function that finds the family
    trials: Array | float = 1.0  # of a binomial site, which sums this number of logs of probabilities
    complement: Array | None = None  # error ε · this · e^(−argument) on the left, where a model computes 1 − p


Propose = Callable[[Written], Recognised | None]


def recognise(log_site: Callable[[Array], Array], n: int, like: Recognised | None = None) -> Recognised | None:
    """Return the known family that all ``n`` sites belong to, or None."""
    written = Written(log_site, n, NEAR if like is None else FEW)
    if not np.isfinite(written.near).all():
        return None
    for propose in PROPOSALS if like is None else (like.propose,):
        proposal = _proposed(propose, written)
        if proposal is not None and agrees(proposal, written.nodes, written.near):
            far = FAR if like is None else np.random.default_rng(0).choice(FAR, size=(1, n))
            return proposal if agrees(proposal, far, written.at(far)) else None
    return None


def _proposed(propose: Propose, written: Written) -> Recognised | None:
    """Return the family that a function proposes; None also if the family refuses the parameters."""
    try:
        with np.errstate(all="ignore"):
            return propose(written)
    except ModelError:  # such as a component of a mixture whose weight is too small for a float
        return None


def agrees(proposal: Recognised, nodes: Array, written: Array) -> bool:
    """Return whether the family has the values as written, wherever those are accurate."""
    with np.errstate(all="ignore"):
        argument = (nodes[:, None] if nodes.ndim == 1 else nodes) * proposal.scale + proposal.shift
        known = proposal.family.log_site(argument) + proposal.constant
        lost = ~np.isfinite(written) & (known < -34 * proposal.trials)  # 1 − p is zero, or exp(s) too large
        complement = 4 * EPSILON * proposal.trials * np.exp(np.minimum(np.abs(argument), 36.0))
        allowed = TOLERANCE * (1 + np.abs(written)) + np.where(
            np.asarray(proposal.trials) > 1, complement, rounding(written)
        )
        if proposal.complement is not None:
            allowed += 4 * EPSILON * proposal.complement * np.exp(np.clip(-argument, 0.0, 40.0)) * (argument < 0)
            lost |= ~np.isfinite(written) & (argument < np.log(proposal.complement) - 34)
        return bool(np.all(lost | (np.abs(known - written) <= allowed)))


def _counts(coefficients: Array) -> Array:
    """Return the coefficients, with those near a whole number rounded to it."""
    whole = np.round(coefficients)
    return np.where(np.abs(coefficients - whole) < 1e-6, whole, coefficients)


def _normal(written: Written) -> Recognised | None:
    """Return −(s − y)²/2σ², from values far out, where normal sites differ most."""
    left, nearer_left, nearer_right, right = written.wide
    square = (left - nearer_left + right - nearer_right) / (2 * (WIDE[3] ** 2 - WIDE[2] ** 2))
    linear = (right - left) / (WIDE[3] - WIDE[0])
    if not np.all(square < 0):
        return None
    return written.known_as(Normal(-0.5 * linear / square, np.sqrt(-0.5 / square)), np.zeros(written.n), _normal)


def _logit(written: Written) -> Recognised | None:
    """Return y s − n log(1 + eˢ)."""
    y, trials = _counts(written.fit(written.near, (np.positive, lambda s: -np.logaddexp(0.0, s), np.ones_like))[:2])
    if not np.all((y >= 0) & (y <= trials) & (trials > 0)):
        return None
    return written.known_as(Logit(y, trials), np.zeros(written.n), _logit)._replace(trials=trials)


def _probit(written: Written) -> Recognised | None:
    """Return log Φ(α s + β), by the line that Φ⁻¹ makes of it."""
    inner = np.abs(written.nodes) < 1.5
    basis = np.stack([written.nodes[inner], np.ones(int(inner.sum()))], axis=1)
    scale, shift = np.linalg.lstsq(basis, np.nan_to_num(ndtri_exp(written.near[inner])), rcond=None)[0]
    sign = np.where(scale < 0, -1.0, 1.0)
    shift = np.where(np.abs(shift) < 1e-12, 0.0, sign * shift)
    return Recognised(Probit(sign), np.abs(scale), shift, np.zeros(len(scale)), _probit)


def _poisson(written: Written) -> Recognised | None:
    """Return y s − E eˢ, with the exposure E as a shift of s."""
    y, exposure, _ = written.fit(written.near, (np.positive, lambda s: -np.exp(s), np.ones_like))
    y = _counts(y)
    if not np.all((y >= 0) & (exposure > 0)):
        return None
    return written.known_as(Poisson(y), np.log(exposure), _poisson)


def _slopes(wide: Array) -> tuple[Array, Array]:
    """Return slopes far out on the left and on the right."""
    return (wide[1] - wide[0]) / (WIDE[1] - WIDE[0]), (wide[3] - wide[2]) / (WIDE[3] - WIDE[2])


def _negative_binomial(written: Written) -> Recognised | None:
    """Return y s − (y + α) log(1 + e^(s − b)): y and −α are the slopes of the tails, which meet at b."""
    wide = written.wide
    if not np.isfinite(wide).all():
        return _negative_binomial_of_counts(written)
    y, alpha = _counts(_slopes(wide)[0]), -_slopes(wide)[1]
    if not np.all((y >= 0) & (alpha > 0) & np.isfinite(alpha)):
        return None
    b = (wide[2] + alpha * WIDE[2] - wide[1] + y * WIDE[1]) / (y + alpha)
    shift = np.log(alpha) - b
    shift = np.where(np.abs(shift) < 1e-11, 0.0, shift)
    return written.known_as(NegativeBinomial(y, alpha), shift, _negative_binomial)


def _negative_binomial_of_counts(written: Written) -> Recognised | None:
    """Return the same where the sites compute 1 − p, which is lost far on the left: y is the count that is nearest there."""
    ends = np.array([-18.0, -16.0, -8.0, 100.0, 200.0])
    left, nearer, middle, right, far_right = written.at(ends)
    y, alpha = np.round((nearer - left) / (ends[1] - ends[0])), (right - far_right) / (ends[4] - ends[3])
    if not np.all((y >= 0) & (alpha > 0) & np.isfinite(alpha) & np.isfinite(y + middle)):
        return None
    # (y + α) · {log(1 + e^(100 − b)) − log(1 + e^(−8 − b))} = rise, of which the first logarithm is 100 − b
    rise = (y * (ends[3] - ends[2]) - (right - middle)) / (y + alpha)
    b = ends[3] - rise
    for _ in range(50):
        b = ends[3] - rise - np.logaddexp(0.0, ends[2] - b)
    shift = np.log(alpha) - b
    shift = np.where(np.abs(shift) < 1e-11, 0.0, shift)
    proposal = written.known_as(NegativeBinomial(y, alpha), shift, _negative_binomial)
    return proposal._replace(complement=(1.0 + y) * (1.0 + alpha))


def _laplace(written: Written) -> Recognised | None:
    """Return −|s − y|/b: two lines, and where they meet."""
    wide = written.wide
    left, right = _slopes(wide)
    if not np.all((left > 0) & (np.abs(left + right) < TOLERANCE * left)):
        return None
    y = (wide[2] - wide[1] + left * WIDE[1] - right * WIDE[2]) / (left - right)
    return written.known_as(Laplace(y, 1 / left), np.zeros(written.n), _laplace)


def _student(written: Written) -> Recognised | None:
    """Return −(ν + 1)/2 log(1 + (s − y)²/νσ²): ν from the tails, then exp(−2 log t/(ν + 1)) is a parabola."""
    wide, near = written.at(WIDEST), written.near
    nu = (wide[0] + wide[1] - wide[2] - wide[3]) / (2 * np.log(WIDEST[3] / WIDEST[1])) - 1
    nu = np.where(np.abs(nu - np.round(nu, 3)) < 1e-7, np.round(nu, 3), nu)
    if not np.all((nu > 0.05) & (nu < 1e3)):
        return None
    square, linear, constant = written.fit(
        np.exp(-2 * (near - near.max(axis=0)) / (nu + 1)), (np.square, np.positive, np.ones_like)
    )
    y = -0.5 * linear / square
    spread = constant / square - y**2
    if not np.all(spread > 0):
        return None
    y = np.where(np.abs(y) < 1e-11, 0.0, y)
    return written.known_as(StudentT(y, nu, np.sqrt(spread / nu)), np.zeros(written.n), _student)


def _normal_mixture(written: Written) -> Recognised | None:
    """Return two normal components: those that dominate on the left and right, or one that dominates on both, and a spike.

    A spike is searched for around the origin, at all widths: far from it only the other component is visible.
    """
    left, right = (_dominant(written, sign) for sign in (-1.0, 1.0))
    if left is None or right is None:
        return None
    if np.all(np.abs(left[1] - right[1]) < 1e-6 * left[2]):
        left = _spike(written, right)
        if left is None:
            return None
    log_weights, means, sds = (np.stack(pair, axis=1) for pair in zip(left, right, strict=True))
    total = np.logaddexp(*log_weights.T)
    means = np.where(np.abs(means) < 1e-9 * sds, 0.0, means)
    family = NormalMixture(np.exp(log_weights - total[:, None]), means, sds)
    proposal = written.known_as(family, np.zeros(written.n), _normal_mixture)
    around = np.concatenate([(means + z * sds).T for z in AROUND])
    return proposal if agrees(proposal, around, written.at(around)) else None


Component = tuple[Array, Array, Array]
"""Log weight, mean and standard deviation of a normal component of every site, each ``(n,)``."""


def _dominant(written: Written, sign: float) -> Component | None:
    """Return the component that dominates far out on one side, first at huge distances, then at a few dozen sds."""
    points = sign * 1e6 * np.array([1.0, 2.0, 3.0])[:, None] * np.ones(written.n)
    for _ in range(3):
        middle, step = points[1], points[2] - points[1]
        low, value, high = written.at(points)
        second, first = (low - 2 * value + high) / step**2, (high - low) / (2 * step)
        if not np.all(np.isfinite(second) & (second < 0)):
            return None
        sd, mean = 1.0 / np.sqrt(-second), middle - first / second
        points = mean + sign * sd * np.array([24.0, 32.0, 40.0])[:, None]
    return value + 0.5 * ((middle - mean) / sd) ** 2 + np.log(sd) + 0.5 * LOG_2PI, mean, sd


def _spike(written: Written, slab: Component) -> Component | None:
    """Return the remaining component at the origin after another is subtracted."""
    log_weight, mean, sd = slab

    def rest(s: Array) -> Array:
        of_slab = log_weight - np.log(sd) - 0.5 * (((s - mean) / sd) ** 2 + LOG_2PI)
        value = written.at(s)
        return value + np.log(-np.expm1(np.minimum(of_slab - value, 0.0)))

    centre = np.zeros(written.n)
    widths = sd * np.logspace(-12, 0, 241)[:, None]
    top = rest(centre[None])[0]
    fall = np.where(np.isnan(found := rest(widths)), -np.inf, found) - top
    width = widths[np.argmax(fall < -0.5, axis=0), np.arange(written.n)]
    for _ in range(3):
        low, value, high = rest(centre + width * np.array([-1.0, 0.0, 1.0])[:, None])
        second, first = (low - 2 * value + high) / width**2, (high - low) / (2 * width)
        if not np.all(np.isfinite(second) & (second < 0)):
            return None
        width, shift = 1.0 / np.sqrt(-second), -first / second
        centre = centre + shift
    value = value + 0.5 * (shift / width) ** 2
    return value + np.log(width) + 0.5 * LOG_2PI, centre, width


PROPOSALS: tuple[Propose, ...] = (
    _normal,
    _logit,
    _probit,
    _poisson,
    _negative_binomial,
    _laplace,
    _student,
    _normal_mixture,
)
