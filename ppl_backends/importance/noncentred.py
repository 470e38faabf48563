"""Densities fitted to points of a funnel in non-centred coordinates.

The neck of a funnel has much mass in little volume, so no Gaussian or Student t covers it without having most of its
draws elsewhere. Weights of the few draws there do not show what is missing. In the non-centred coordinates that gradients
at points ask for (:mod:`~ppl_backends.kernels.noncentring`) the funnel is nearly Gaussian, and a Gaussian fitted there
reaches into the neck, also if the points do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.errors import ModelError
from ppl_backends.importance.axis_tails import AxisTails
from ppl_backends.importance.proposals import Proposal, StudentMixture, make_proposal
from ppl_backends.importance.tails import cut_weights, is_nearer, with_tails
from ppl_backends.kernels.noncentring import AnyNonCentring, find_noncentring
from ppl_backends.numerics.gaps import modes
from ppl_backends.numerics.gaussian import suffice_for_covariance
from ppl_backends.numerics.weights import effective_sample_size, normalised_weights, systematic_resampling
from ppl_backends.targets.function import FunctionTarget
from ppl_backends.targets.protocol import Array, BaseTarget

# Of the Student t's. A Cauchy tail of the logarithm of a scale makes scales overflow.
_DEGREES_OF_FREEDOM = (4.0,)
_POOR = 0.5  # efficiency factor below which there may be a funnel
_POINTS = 2000  # to which a density is fitted
_MOST_ROUNDS = 4


class NonCentred(NamedTuple):
    """The density of x if z has density ``q``."""

    q: Any
    change: AnyNonCentring
    method: str = "non-centred"
    representation: str = "non-centred"

    @property
    def dim(self) -> int:
        """Return the number of coordinates."""
        return int(self.q.dim)

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw points ``(n, dim)``."""
        return self.change.to_x(self.q.sample(n, rng))

    def log_density(self, x: Array) -> Array:
        """Return the log density at points."""
        z = self.change.to_z(x)
        density: Array = self.q.log_density(z) - self.change.log_determinant(z)
        return density

    def log_density_and_gradient(self, x: Array) -> tuple[Array, Array]:
        """Return the log density ``(n,)`` and its gradient ``(n, dim)``."""
        z = self.change.to_z(x)
        density, gradient = self.q.log_density_and_gradient(z)
        return density - self.change.log_determinant(z), self.change.gradient_in_x(z, gradient)


class NonCentredProposal:
    """A proposal of z as proposal of x."""

    def __init__(self, inner: Proposal, change: AnyNonCentring) -> None:
        self._inner, self._density = inner, NonCentred(inner, change)
        self.n_uniforms, self.stratified = inner.n_uniforms, inner.stratified
        self.log_density = self._density.log_density

    def from_uniform(self, u: Array) -> Array:
        """Return points ``(n, dim)`` from points of the cube ``(n, n_uniforms)``."""
        return self._density.change.to_x(self._inner.from_uniform(u))


class FittedNonCentred(NamedTuple):
    """A Gaussian fitted to points in non-centred coordinates, and its mixture with Student t's if tails need them."""

    gaussian: MixtureApproximation
    tails: StudentMixture | AxisTails | None
    change: AnyNonCentring

    @property
    def proposal(self) -> NonCentredProposal:
        """Return the mixture with Student t's as proposal, or the defensive one."""
        return NonCentredProposal(self.tails or make_proposal("defensive", self.gaussian), self.change)


def fit_noncentred(target: BaseTarget, x: Array, gradient: Array) -> FittedNonCentred | None:
    """Fit to points ``(n, dim)`` with gradients of the target; None if these ask for no change of variables.

    There is none for separated modes either, because the points' shares of them may be wrong.
    """
    if modes(x).any():
        return None
    change = find_noncentring(x, gradient)
    if change is None:
        return None
    z = change.to_z(x)
    try:
        gaussian = MixtureApproximation([1.0], [z.mean(axis=0)], [np.cov(z.T)])
    except ModelError:  # a singular covariance: there are too few points
        return None
    tails = with_tails(_in_z(target, change), gaussian, by_variance=True, degrees=_DEGREES_OF_FREEDOM)
    return FittedNonCentred(gaussian, tails, change)


def _in_z(target: BaseTarget, change: AnyNonCentring) -> FunctionTarget:
    """Return the target's density in the new variables."""

    def density(z: Array) -> tuple[Array, Array]:
        with np.errstate(all="ignore"):  # far out
            given = change.given(z)
            value, gradient = target.log_density_and_gradient(change.to_x(z, given))
            return value + change.log_determinant(z, given), change.gradient(z, gradient, given)

    return FunctionTarget(len(change.effects) + len(change.others), density)


class Weighed(NamedTuple):
    """A proposal, its points ``(n, dim)`` and their log weights ``(n,)``."""

    proposal: Proposal
    x: Array
    log_weights: Array

    @property
    def is_poor(self) -> bool:
        """Return whether the weights vary so much that the points may miss the neck of a funnel."""
        return effective_sample_size(self.log_weights) < _POOR * len(self.x)


def can_be_straightened(target: BaseTarget) -> bool:
    """Return whether a funnel is looked for: the change of variables needs gradients, and a log-concave density has none."""
    return target.has_gradient and not target.is_estimated and not target.log_concave


def straightened(
    target: BaseTarget, first: Weighed, weigh: Callable[[Proposal], Weighed], rng: np.random.Generator
) -> Proposal:
    """Return the nearest of proposals in non-centred coordinates, or the ``first`` proposal if none is clearly nearer.

    None is tried if the first has even weights. Points of all proposals so far are those of their mixture (Cornuet, Marin,
    Mira & Robert 2012), to which the next one is fitted: those of the first hardly reach into a neck, and each reaches
    further.
    """
    found = [first]
    while first.is_poor and len(found) <= _MOST_ROUNDS:
        x, log_weights = _pooled(found)
        cut = cut_weights(log_weights)
        if cut is None or not suffice_for_covariance(int(effective_sample_size(cut)), target.dim):
            break
        some = x[systematic_resampling(normalised_weights(cut)[0], _POINTS, rng)]
        fitted = fit_noncentred(target, some, target.log_density_and_gradient(some)[1])
        if fitted is None:
            break
        found.append(weigh(fitted.proposal))
        if not _last_is_nearer(found):
            return found[-2].proposal
    return found[-1].proposal


def _pooled(found: Sequence[Weighed]) -> tuple[Array, Array]:
    """Return the points of several proposals, and their log weights as points of the mixture of all."""
    x = np.concatenate([one.x for one in found])
    log_target = np.concatenate([one.log_weights + one.proposal.log_density(one.x) for one in found])
    logs = [np.log(len(one.x) / len(x)) + one.proposal.log_density(x) for one in found]
    return x, log_target - np.logaddexp.reduce(logs)


def _last_is_nearer(found: Sequence[Weighed]) -> bool:
    """Return whether the last proposal is clearly nearer to the target than the one before it."""
    x, log_weights = _pooled(found)
    cut = cut_weights(log_weights)
    if cut is None:
        return False
    before, last = (one.proposal.log_density(x) for one in found[-2:])
    return is_nearer(last, before, normalised_weights(cut)[0])
