r"""The evidence once more, from the last particles alone: bridge sampling (Meng & Wong 1996; Gronau et al. 2017).

Tempering adds up the errors of every temperature on the way. Where the path led through a place in which particles moved too
slowly, its evidence is off for good, while the particles at β = 1, moved ever since, can be right. The estimate between them
and draws of a normalised density q is that of :func:`ppl_backends.numerics.bridge.bridge`.

q is a Gaussian, a mixture with one for each separated mode, or one with Student t's where the particles have tails, in
non-centred coordinates where they were moved in such. It is fitted to the *other* chains (to the other half of the particles
of a single one). Errors are those of Frühwirth-Schnatter (2004), with the lineages of the particles in place of their
autocorrelations. The particles of a chain enter its own estimate and, through q, those of the others; to leading order that
is the same product of errors twice, so that their part of the variance is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.errors import ModelError
from ppl_backends.importance.proposals import StudentMixture
from ppl_backends.importance.tails import fit_mixture, is_nearer, student_mixture
from ppl_backends.kernels.metric import metric_from_points
from ppl_backends.kernels.noncentring import NonCentring, find_noncentring
from ppl_backends.numerics.bridge import BridgeEstimate, bridge
from ppl_backends.numerics.gaps import modes
from ppl_backends.smc.evidence import EvidenceEstimate, combine_evidence
from ppl_backends.targets.protocol import Array, Index

_MOST_DRAWS = 1000  # of the density fitted, for each chain


class Sample(NamedTuple):
    """Equally weighted points of the density whose integral is wanted, with its logarithm, not normalised.

    Points whose ``ancestor``, a label below n, is not the same are independent. ``gradient`` is that of the logarithm, where
    a change of variables is to be looked for.
    """

    x: Array
    log_density: Array
    ancestor: Index
    gradient: Array | None = None

    def rows(self, which: slice) -> Sample:
        """Return some of the points."""
        _, ancestor = np.unique(self.ancestor[which], return_inverse=True)
        gradient = None if self.gradient is None else self.gradient[which]
        return Sample(self.x[which], self.log_density[which], ancestor, gradient)


class NonCentred(NamedTuple):
    """The density of x where z has density ``q``."""

    q: MixtureApproximation | StudentMixture
    change: NonCentring

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draw points ``(n, dim)``."""
        return self.change.to_x(self.q.sample(n, rng))[0]

    def log_density(self, x: Array) -> Array:
        """Return the log density at points."""
        z = self.change.to_z(x)
        density: Array = self.q.log_density(z) - self.change.log_determinant(z)
        return density


def bridge_evidence(
    samples: Sequence[Sample], log_density: Callable[[Array], Array], rng: np.random.Generator
) -> EvidenceEstimate | None:
    """Return the log integral of a density of which there are samples, by bridges to what is fitted to the others.

    A single sample is halved. None where points are too few to fit a Gaussian to, for their dimension, or do not vary.
    """
    if len(samples) == 1:
        half = len(samples[0].x) // 2
        samples = [samples[0].rows(slice(half)), samples[0].rows(slice(half, None))]
    dim, found = samples[0].x.shape[1], []
    for k, sample in enumerate(samples):
        others = [other for j, other in enumerate(samples) if j != k]
        # A covariance from n points costs an overlap of about exp(−dim²/4n).
        if dim**2 > 8 * sum(len(other.x) for other in others):
            return None
        with np.errstate(all="ignore"):  # particles in far tails overflow
            estimate = _bridge_to(others, sample, log_density, rng)
        if estimate is None:
            return None
        found.append(estimate)
    return combine_evidence(*np.array(found).T)


def _bridge_to(
    others: Sequence[Sample], sample: Sample, log_density: Callable[[Array], Array], rng: np.random.Generator
) -> BridgeEstimate | None:
    """Return a bridge from the sample to what is fitted to the others."""
    try:
        q = _fitted_to(others)
    except ModelError:
        return None
    proposed = q.sample(min(len(sample.x), _MOST_DRAWS), rng)
    density = log_density(proposed)
    ratio = np.where(np.isnan(density), -np.inf, density) - q.log_density(proposed)
    if not np.any(ratio > -np.inf):
        return None
    return bridge(sample.log_density - q.log_density(sample.x), ratio, sample.ancestor)


def _fitted_to(samples: Sequence[Sample]) -> MixtureApproximation | StudentMixture | NonCentred:
    """Return a density fitted to samples, with a change of variables where they have gradients that ask for one."""
    x = np.concatenate([sample.x for sample in samples])
    gradients = [sample.gradient for sample in samples if sample.gradient is not None]
    change = find_noncentring(x, np.concatenate(gradients)) if gradients else None
    return _fitted(x) if change is None else NonCentred(_fitted(change.to_z(x)), change)


def _fitted(x: Array) -> MixtureApproximation | StudentMixture:
    """Fit a Gaussian to every separated mode of the points, or to a single one with tails a mixture with Student t's."""
    labels = modes(x)
    parts = [x[labels == label] for label in range(labels.max() + 1)]
    covs = [np.atleast_2d(np.cov(part.T)) for part in parts]
    gaussians = MixtureApproximation([len(part) for part in parts], [part.mean(axis=0) for part in parts], covs)
    return gaussians if len(parts) > 1 else _with_tails(x, gaussians) or gaussians


def _with_tails(x: Array, gaussian: MixtureApproximation) -> StudentMixture | None:
    """Fit a mixture with Student t's; None where it is not clearly nearer to the points than a Gaussian."""
    middle = metric_from_points(x)  # from quantiles, which a Cauchy has too
    shares = np.full(len(x), 1.0 / len(x))
    tailed = fit_mixture(student_mixture(GaussianApproximation(middle.mean, cholesky=middle.factor)), x, shares)
    if tailed is None or not is_nearer(tailed.log_density(x), gaussian.log_density(x), shares):
        return None
    return tailed
