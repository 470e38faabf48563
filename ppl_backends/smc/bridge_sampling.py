r"""The evidence by bridge sampling from the last particles (Meng & Wong 1996; Gronau et al. 2017).

Tempering adds up the errors of all temperatures. If particles moved too slowly somewhere on the path, its evidence
stays wrong, but the particles at β = 1, which were moved since, can be right.
:func:`ppl_backends.numerics.bridge.bridge` estimates the evidence from them and from draws of a normalised density q.

q is a Gaussian, a mixture with one Gaussian for each separated mode, or a Gaussian with Student t's if the particles
have heavy tails; it is in non-centred coordinates if the particles were moved in these. It is fitted to the *other*
chains (to the other half of the particles of a single chain). If these are few for a covariance, q may also be a
:class:`~ppl_backends.approximations.hierarchical.HierarchicalApproximation`, which has fewer parameters; q is whichever is
higher at particles that it was not fitted to. Most of the error comes from the draws of q. Such a draw costs one
evaluation, and a particle costs hundreds, so the number of draws is a share of the evaluations of the run.

Errors are those of Frühwirth-Schnatter (2004), with the lineages of the particles in place of their autocorrelations. The
particles of a chain enter its own estimate and, through q, those of the others. To leading order both are the same product of
errors, so their part of the variance is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.approximations.hierarchical import HierarchicalApproximation
from ppl_backends.approximations.mixture import MixtureApproximation
from ppl_backends.errors import ModelError
from ppl_backends.importance.noncentred import NonCentred
from ppl_backends.importance.proposals import StudentMixture
from ppl_backends.importance.tails import tails_of_points
from ppl_backends.kernels.noncentring import find_noncentring
from ppl_backends.numerics.bridge import BridgeEstimate, bridge
from ppl_backends.numerics.gaps import modes
from ppl_backends.numerics.gaussian import suffice_for_covariance
from ppl_backends.smc.evidence import EvidenceEstimate, combine_evidence
from ppl_backends.targets.protocol import Array, Index

_BATCH = 1000  # draws of the fitted density for each chain, at most, that are evaluated together
_MOST_BATCHES = 30
_LARGEST_VARIANCE = 1.0  # of a bridge; beyond it few terms make up the evidence, which can be off by many such errors
_SHARE_OF_RUN = 0.1  # of the evaluations of a run's moves, for its bridge


class Sample(NamedTuple):
    """Equally weighted points of the density whose integral is estimated, with its unnormalised logarithm.

    Points are independent if their ``ancestor`` labels, below n, differ. ``gradient`` is the gradient of the logarithm
    if a change of variables is to be searched for.
    """

    x: Array
    log_density: Array
    ancestor: Index
    gradient: Array | None = None

    def rows(self, which: slice | NDArray[np.bool_]) -> Sample:
        """Return some of the points."""
        _, ancestor = np.unique(self.ancestor[which], return_inverse=True)
        gradient = None if self.gradient is None else self.gradient[which]
        return Sample(self.x[which], self.log_density[which], ancestor, gradient)


def affordable_batches(evaluations: float) -> int:
    """Return the number of batches for the bridge of a run that made so many evaluations."""
    return int(np.clip(_SHARE_OF_RUN * evaluations / _BATCH, 1, _MOST_BATCHES))


def bridge_evidence(
    samples: Sequence[Sample], log_density: Callable[[Array], Array], rng: np.random.Generator, batches: int = 1
) -> EvidenceEstimate | None:
    """Return the log integral of a density from samples of it, by bridges to densities fitted to the other samples.

    Each bridge takes so many ``batches`` of draws from the fitted density. A single sample is halved. The result is None if
    points do not vary, if a fitted density does not overlap with them, or if they are in separated modes and too few, for
    their dimension, to fit Gaussians.
    """
    if len(samples) == 1:
        half = len(samples[0].x) // 2
        samples = [samples[0].rows(slice(half)), samples[0].rows(slice(half, None))]
    found = []
    for k, sample in enumerate(samples):
        others = [other for j, other in enumerate(samples) if j != k]
        with np.errstate(all="ignore"):  # particles in far tails overflow
            estimate = _bridge_to(others, sample, log_density, rng, batches)
        if estimate is None:
            return None
        found.append(estimate)
    return combine_evidence(*np.array(found).T)


def _bridge_to(
    others: Sequence[Sample],
    sample: Sample,
    log_density: Callable[[Array], Array],
    rng: np.random.Generator,
    batches: int,
) -> BridgeEstimate | None:
    """Return a bridge from the sample to the density fitted to the others, None without overlap."""
    try:
        q = _fitted_to(others, sample.x)
    except (ModelError, np.linalg.LinAlgError):
        return None
    ratio = np.concatenate([_log_ratios(q, log_density, min(len(sample.x), _BATCH), rng) for _ in range(batches)])
    if not np.any(ratio > -np.inf):
        return None
    found = bridge(sample.log_density - q.log_density(sample.x), ratio, sample.ancestor)
    return found if found.variance <= _LARGEST_VARIANCE else None


def _log_ratios(q: Any, log_density: Callable[[Array], Array], n: int, rng: np.random.Generator) -> Array:
    """Return log γ − log q at draws of q ``(n,)``."""
    proposed = q.sample(n, rng)
    density = log_density(proposed)
    ratios: Array = np.where(np.isnan(density), -np.inf, density) - q.log_density(proposed)
    return ratios


def _fitted_to(samples: Sequence[Sample], points: Array) -> Any:
    """Return a density fitted to samples, with a change of variables if they have gradients that show the need.

    If they are too few for a covariance, it is the one of two densities that is higher at other ``points``.
    """
    x = np.concatenate([sample.x for sample in samples])
    gradients = [sample.gradient for sample in samples if sample.gradient is not None]
    change = find_noncentring(x, np.concatenate(gradients)) if gradients else None
    z = x if change is None else change.to_z(x)
    if suffice_for_covariance(*x.shape):
        found: list[Any] = [_fitted(z)]
    elif modes(z).any():
        raise ModelError("too few points for a covariance in each separated mode")
    else:
        found = [HierarchicalApproximation(z), *([_fitted(z)] if len(x) > x.shape[1] else [])]
    changed = found if change is None else [NonCentred(q, change) for q in found]
    return changed[0] if len(changed) == 1 else max(changed, key=lambda q: q.log_density(points).mean())


def _fitted(x: Array) -> MixtureApproximation | StudentMixture:
    """Fit a Gaussian to every separated mode of the points; for a single mode with heavy tails, mix Student t's in."""
    labels = modes(x)
    parts = [x[labels == label] for label in range(labels.max() + 1)]
    covs = [np.atleast_2d(np.cov(part.T)) for part in parts]
    gaussians = MixtureApproximation([len(part) for part in parts], [part.mean(axis=0) for part in parts], covs)
    tails = tails_of_points(x) if len(parts) == 1 else None
    return gaussians if tails is None else tails.mixture
