r"""Shares of separated modes and the evidence, from a bridge in every mode.

Particles seldom cross between separated modes, so the number in each is decided where the modes separate: tempering
counts the lineages that came into each, and with n of them the share s of a mode has a standard error of √{s(1−s)/n} at
least. Within a mode particles mix. Let the modes' regions, those in which the Gaussian fitted to a mode is denser than the
others, be Rₖ. Then

    Z = Σₖ Zₖ,   Zₖ = ∫_{Rₖ} γ,   sₖ = Zₖ / Z,

and a bridge from the particles in Rₖ gives Zₖ whatever their number is. Particles are resampled within each run
so that every mode has its share sₖ. If few lineages are in a mode, particles can be spread over the modes and moved before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from ppl_backends.numerics.gaps import modes_along_axes
from ppl_backends.numerics.gaussian import Gaussian, suffice_for_covariance
from ppl_backends.numerics.population import concatenate
from ppl_backends.numerics.weights import systematic_resampling
from ppl_backends.smc.bridge_sampling import Sample, bridge_evidence
from ppl_backends.smc.evidence import Columns, EvidenceEstimate, variance_of_means
from ppl_backends.smc.records import SMCResult
from ppl_backends.targets.protocol import Array, Index

_SMALLEST_SHARE = 0.02  # of the particles of all runs in a mode; a smaller one stays in the region of another
_SMALLEST_SPREAD = 0.005  # and of one to which particles are spread
_BY_CHANCE = 3.0  # lineages expected in a mode, below which a run may have none
_FEWEST, _LEAST = 50, 10  # particles of a run in a mode for a bridge, and those that can be resampled
_PRECISE = 0.05  # largest standard error of the log evidence
_PRECISE_SHARE = 0.018  # and of a share; that of two equal modes whose log evidences have a standard error of 0.05


@dataclass(frozen=True)
class ModeEvidences:
    """The sum of the modes' evidences, their ``shares`` ``(modes,)`` in it, and which mode each point is in.

    ``errors`` ``(modes,)`` are standard errors of the modes' log evidences, which are independent. ``labels`` has an array
    ``(n,)`` for every sample.
    """

    evidence: EvidenceEstimate
    shares: Array
    errors: Array
    labels: Sequence[Index]

    def resampled(self, sample: int, rng: np.random.Generator) -> Index:
        """Return which particles of a sample ``(n,)`` give every mode its share, siblings adjacent."""
        labels = self.labels[sample]
        weights = (self.shares / np.bincount(labels, minlength=len(self.shares)))[labels]
        by_mode = np.argsort(labels, kind="stable")  # so that the number in each mode is right but for rounding
        return np.sort(by_mode[systematic_resampling(weights[by_mode], len(labels), rng)])

    def take(self, rows: Sequence[Index]) -> ModeEvidences:
        """Return the same for other points, chosen by ``rows`` of every sample."""
        return replace(self, labels=[own[chosen] for own, chosen in zip(self.labels, rows, strict=True)])

    def variance_of_means(self, samples: Columns) -> Array:
        """Return the variance of means of columns over all samples, in which modes have their shares.

        Lineages are independent within a mode. They do not decide its share, whose error is that of the bridges.
        """
        values, labels = np.concatenate([value for value, _ in samples]), np.concatenate(self.labels)
        means = np.zeros((len(self.shares), values.shape[1]))
        present = np.unique(labels)  # those with a share of no whole particle are left out
        for mode in present:
            means[mode] = values[labels == mode].mean(axis=0)
        within = [
            (value - means[own], len(self.shares) * ancestor + own)
            for (value, ancestor), own in zip(samples, self.labels, strict=True)
        ]
        shares, away = self.shares[present], means[present]
        weights = (shares * self.errors[present])[:, None]
        between: Array = ((weights * (away - shares @ away / shares.sum())) ** 2).sum(axis=0)
        return variance_of_means(within) + between


def evidences_by_mode(
    samples: Sequence[Sample], log_density: Callable[[Array], Array], rng: np.random.Generator, batches: int = 1
) -> ModeEvidences | None:
    """Return the evidence of every separated mode of equally weighted points of a density.

    None for a single mode, for one with too few points of a sample or for a covariance, and if the sum or a share is not
    precise. Samples with few points in a mode have no part in its bridge. ``batches`` are those of all bridges of a sample.
    """
    x = np.concatenate([sample.x for sample in samples])
    found = modes_along_axes(x, _SMALLEST_SHARE)
    if not found.any() or not suffice_for_covariance(np.bincount(found).min(), x.shape[1]):
        return None
    gaussians = [_gaussian(x[found == label]) for label in range(found.max() + 1)]
    labels = [_region(sample.x, gaussians) for sample in samples]
    held = np.stack([np.bincount(each, minlength=len(gaussians)) for each in labels])
    if held.min() < _LEAST:
        return None
    estimates = []
    for mode in range(len(gaussians)):
        own = [
            sample.rows(each == mode)
            for sample, each, n in zip(samples, labels, held[:, mode], strict=True)
            if n >= _FEWEST
        ]
        if len(own) < min(2, len(samples)):
            return None
        within = _within(log_density, gaussians, mode)
        estimate = bridge_evidence(own, within, rng, max(1, batches // len(gaussians)))
        if estimate is None or estimate.runs_disagree:
            return None
        estimates.append(estimate)
    return _sum_of(estimates, labels)


def modes_of_runs(runs: Sequence[SMCResult]) -> Index:
    """Return the mode ``(runs · n,)`` of every particle of all runs, also of small modes; all zero for a single one."""
    return modes_along_axes(np.concatenate([run.x for run in runs]), _SMALLEST_SPREAD)


def runs_lack_a_mode(runs: Sequence[SMCResult], labels: Index) -> bool:
    """Return whether several runs have lost a mode that others found, or one did that has too many lineages in others.

    If runs lose modes at random, all of them may have lost another one. ``labels`` are the modes of their particles.
    """
    if not labels.any():
        return False
    held = np.stack([np.bincount(own, minlength=labels.max() + 1) for own in np.split(labels, len(runs))])
    lineages = np.array([run.stages[-1].n_lineages for run in runs])
    lost = (held == 0) & (held.sum(axis=0) / held.sum() * lineages[:, None] > _BY_CHANCE)
    return bool(lost.any() or np.count_nonzero(held, axis=0).min() < max(2, len(runs) - 1))


def spread_over_modes(runs: Sequence[SMCResult], labels: Index, rng: np.random.Generator) -> list[SMCResult]:
    """Return runs that have many particles in every mode, also in those that are small or that other runs have found.

    The particles do not represent the posterior until they are resampled by evidences of the modes. ``labels`` are the
    modes of all particles.
    """
    n, population = len(runs[0].x), concatenate([run.population for run in runs])
    shares = np.bincount(labels) / len(labels)
    wanted = np.maximum(shares, 0.5 / len(shares))
    spread = []
    for k, run in enumerate(runs):
        weights = np.zeros(len(labels))
        own = np.arange(len(labels)) // n == k
        for mode, share in enumerate(wanted / wanted.sum()):
            there = labels == mode
            from_own = np.count_nonzero(there & own) >= _FEWEST
            rows = there & own if from_own else there
            weights[rows] = share / np.count_nonzero(rows)
        chosen = np.sort(systematic_resampling(weights, n, rng))
        spread.append(replace(run, population=population.take(chosen), lineage=run.lineage.resampled(chosen % n)))
    return spread


def _sum_of(estimates: Sequence[EvidenceEstimate], labels: Sequence[Index]) -> ModeEvidences | None:
    """Return the sum of the modes' evidences and their shares, None if one of these is not precise."""
    logs, errors, df = (np.array([getattr(one, key) for one in estimates]) for key in _FIGURES)
    total = float(logsumexp(logs))
    shares = np.exp(logs - total)
    parts = (shares * errors) ** 2
    of_shares = shares * np.sqrt((1.0 - 2.0 * shares) * errors**2 + parts.sum())  # by the delta method
    if not (parts.sum() ** 0.5 <= _PRECISE and of_shares.max() <= _PRECISE_SHARE):
        return None
    combined = float(parts.sum() ** 2 / np.maximum((parts**2 / df).sum(), 1e-300))
    evidence = EvidenceEstimate(total, float(parts.sum() ** 0.5), combined, False, float("nan"))
    return ModeEvidences(evidence, shares, errors, labels)


_FIGURES = ("log_evidence", "standard_error", "df")


def _gaussian(x: Array) -> Gaussian:
    cov = np.atleast_2d(np.cov(x.T))
    return Gaussian.from_covariance(x.mean(axis=0), cov + 1e-9 * np.diag(np.diag(cov)))


def _region(x: Array, gaussians: Sequence[Gaussian]) -> Index:
    """Return which of the Gaussians is the densest at points ``(n,)``."""
    return np.argmax([gaussian.log_density(x) for gaussian in gaussians], axis=0)


def _within(
    log_density: Callable[[Array], Array], gaussians: Sequence[Gaussian], mode: int
) -> Callable[[Array], Array]:
    """Return the log density in the region of a mode, −inf elsewhere."""
    return lambda x: np.where(_region(x, gaussians) == mode, log_density(x), -np.inf)
