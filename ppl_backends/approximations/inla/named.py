"""Hyper-parameters that the user names: all other coordinates of any target with a Hessian are then latent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.linalg import LinAlgError

from ppl_backends.approximations.elsewhere import share_of_another_mode
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.approximations.hyper import written
from ppl_backends.approximations.hyper_draws import Sampler
from ppl_backends.approximations.hyper_modes import dispersed_by_density
from ppl_backends.approximations.inla.conditional import conditional_modes, improved_marginals
from ppl_backends.approximations.inla.copula import GaussianCopula
from ppl_backends.approximations.inla.latent import LatentFit
from ppl_backends.approximations.verdict import POINTS, evidence_seen, judge_gaussian
from ppl_backends.errors import ModelError, PriorSamplingError
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.targets.conditional import ConditionalTarget
from ppl_backends.targets.protocol import Array, BaseTarget

GAIN = 1e-10  # expected gain of a step, in nats, below which the search for the mode given φ stops


class NamedHyperParameters:
    """A target whose coordinates ``index`` are hyper-parameters φ, and all others latent."""

    def __init__(self, target: BaseTarget, index: Any, point: Array, points: int) -> None:
        self.hyper_coordinates = np.asarray(index, dtype=np.intp)
        self.coordinates = np.setdiff1d(np.arange(target.dim), self.hyper_coordinates)
        if not len(self.coordinates):
            raise ModelError(f"{target.label}: hyper= names all {target.dim} coordinates; some have to be latent")
        self.hyper_names = tuple(target.names[j] for j in self.hyper_coordinates)
        self._target, self._point, self._points = target, point, points
        self.start = point[self.hyper_coordinates]

    def log_hyper_prior(self, phi: Array) -> float:
        """Return zero, because the target's density includes the prior."""
        return 0.0

    def fit(self, phi: Array, start: LatentFit | None) -> LatentFit:
        """Return the Laplace approximation given φ."""
        given = self._given(phi)
        theta = self._point[self.coordinates] if start is None else start.mode
        found = conditional_modes(given, theta[None], np.array([-1]), GAIN)
        if not np.isfinite(found.log_integral[0]):
            raise LinAlgError("no mode was found given the hyper-parameters")
        mode = found.x[0]
        cov = np.linalg.inv(-given.hessian(mode[None])[0])
        q = Gaussian.from_covariance(mode, 0.5 * (cov + cov.T))
        log_evidence = float(found.log_integral[0])
        figures = {"newton_gain": 0.0, "laplace_log_evidence": log_evidence}
        return LatentFit(mode, mode, q.sd, np.zeros(len(mode)), q, log_evidence, figures)

    def improved(self, phi: Array, fit: LatentFit) -> LatentFit:
        """Return the moments of improved Laplace marginals given φ, and the evidence from 256 weighted points."""
        given = self._given(phi)
        gaussian = self.fit(phi, fit).precision
        q = GaussianApproximation(gaussian.mean, cholesky=gaussian.factor, names=given.names)
        with np.errstate(all="ignore"):
            improved = improved_marginals(given, q, given.names, np.arange(given.dim), self._points)
        marginals = improved.marginals
        copula = GaussianCopula(q, marginals)
        seen, scores = copula.in_scores(given), copula.scores
        log_evidence = evidence_seen(seen, scores)
        trouble = judge_gaussian(seen, scores.replaced(log_evidence=log_evidence)).trouble
        figures = fit.figures | {
            "evidence_correction": log_evidence - fit.log_evidence,
            "mean_shift": float(np.abs((marginals.mean - q.mean) / marginals.sd).max()),
            "sd_ratio": float(max(marginals.sd / q.sd, key=lambda ratio: abs(np.log(ratio)))),
        }
        trouble = f"by {POINTS} points {trouble}" if trouble else improved.open_end()
        trouble = trouble and f"given {written(self.hyper_names, phi)}, {trouble}"
        moments = marginals.mean, marginals.sd, marginals.skewness
        return LatentFit(fit.mode, *moments, fit.precision, log_evidence, figures, trouble)

    def sampler(self, phi: Array, fit: LatentFit) -> Sampler:
        """Return a function that draws the latent variables given φ: the Gaussian, as wide as the improved marginals."""
        gaussian = self.fit(phi, fit).precision
        wider = fit.sd / gaussian.sd
        return lambda n, rng: fit.mean + gaussian.colour(rng.standard_normal((n, gaussian.dim))) * wider

    def other_mode_share(self, node: Any) -> float:
        """Return the share of another mode of the latent variables, found by climbs, given φ of a node."""
        gaussian = self.fit(node.phi, node.fit).precision
        log_evidence = node.fit.log_evidence
        q = GaussianApproximation(gaussian.mean, cholesky=gaussian.factor, log_evidence=log_evidence)
        return share_of_another_mode(self._given(node.phi), q)

    def refusal(self, phi: Array) -> str:
        """Return what to do if there is no fit at the first φ."""
        return (
            f"given {written(self.hyper_names, phi)} the other coordinates have no mode; "
            "name all scales and no effects in hyper=, or use sample_smc"
        )

    def dispersed(self, n: int, rng: np.random.Generator) -> Array:
        """Return draws of the prior of φ ``(n, p)``; dispersed points if the prior cannot be drawn from."""
        try:
            return self._target.sample_prior(n, rng)[:, self.hyper_coordinates]
        except PriorSamplingError:
            return dispersed_by_density(self.log_hyper_prior, self.start, n, rng)

    def _given(self, phi: Array) -> ConditionalTarget:
        point = self._point.copy()
        point[self.hyper_coordinates] = phi
        return ConditionalTarget(self._target, self.coordinates, point)
