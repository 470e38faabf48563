"""The evidence of expectation propagation, model by model; about 1 ms each, with hundredths of Laplace's error."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular

from ppl_backends.approximations.elsewhere import share_of_another_mode
from ppl_backends.approximations.ep.evidence import log_evidence, working_sites
from ppl_backends.approximations.ep.parallel import EPRun, Options, run_parallel
from ppl_backends.approximations.ep.shards import SiteState
from ppl_backends.approximations.gaussian import GaussianApproximation
from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.evidences.laplace import LaplaceEvidence
from ppl_backends.model_search.space import Bits
from ppl_backends.model_search.switched import Switched
from ppl_backends.targets.factors import Factors
from ppl_backends.targets.factors.factorisation import FactorsTarget
from ppl_backends.targets.protocol import Array

# The evidence is stationary at a fixed point of EP: the remaining change enters squared.
_OPTIONS = Options(tolerance=1e-4)


class EPEvidence(Evidence):
    """exp(c) · normaliser of the Gaussian with all its sites (Ridgway 2015, section 2.3.4)."""

    name: ClassVar[str] = "ep"
    exact: ClassVar[bool] = False

    def __init__(self, regression: Switched) -> None:
        super().__init__()
        self.regression = regression
        self.laplace = LaplaceEvidence(regression) if regression.compiled is not None else None
        self.compiled = regression.compiled
        self.log_constant = 0.0 if self.laplace is None else self.laplace.log_constant
        self._unconverged: set[bytes] = set()

    def compute(self, columns: Bits, rng: np.random.Generator) -> Array:
        return np.array([self._one(row) for row in columns])

    def unconverged(self, columns: Bits) -> NDArray[np.bool_]:
        self(columns, np.random.default_rng(0))  # models that another process evaluated are not known here
        return np.array([np.packbits(row).tobytes() in self._unconverged for row in columns])

    def gain_of_other_modes(self, columns: Bits) -> Array:
        # Compiled likelihoods are log-concave.
        if self.compiled is not None or self.regression.factors.log_concave:
            return np.zeros(len(columns))
        known = self(columns, np.random.default_rng(0))
        return np.array([self._gain(row, value) for row, value in zip(columns, known, strict=True)])

    def _gain(self, columns: Bits, log_evidence: float) -> float:
        if not columns.any():
            return 0.0
        mean, factor = self.fit(columns)
        q = GaussianApproximation(mean, precision=factor @ factor.T, log_evidence=log_evidence)
        share = share_of_another_mode(FactorsTarget(self.regression.take(columns)), q)
        return 0.0 if np.isnan(share) else float(-np.log1p(-min(share, 1 - 1e-15)))

    def _run(self, columns: Bits) -> tuple[Any, EPRun, Any]:
        factors = self.regression.take(columns)
        sites, reduction = working_sites(factors)
        start = self._start(columns, factors) if reduction is None else None
        return factors, run_parallel(sites, _OPTIONS, start), (sites, reduction)

    def _start(self, columns: Bits, factors: Factors) -> SiteState | None:
        """Return sites with the slopes and curvatures at Laplace's mode from compiled functions; None without these."""
        if self.laplace is None or not factors.observed.all():
            return None
        s = factors.predictor(self.laplace.fit(columns)[0][None])[0]
        slope, curvature = factors.sites.derivatives(s[None])
        u = s - factors.predictor(factors.prior.mean[None])[0]
        return SiteState(-curvature[0], slope[0] - curvature[0] * u, np.zeros(len(u), dtype=np.int8))

    def _one(self, columns: Bits) -> float:
        if not columns.any():  # nothing to integrate over
            return self.regression.log_density_of_none
        factors, run, (sites, _) = self._run(columns)
        if not run.converged:
            self._unconverged.add(np.packbits(columns).tobytes())
        return log_evidence(factors.log_constant, sites.prior, run.q, run.final)

    def fit(self, columns: Bits) -> tuple[Array, Array]:
        """Return the mean ``(k,)`` of one model's Gaussian, and the lower Cholesky factor of its precision."""
        if not columns.any():
            return np.empty(0), np.empty((0, 0))
        factors, run, (_, reduction) = self._run(columns)
        if reduction is not None:
            mean, cov = reduction.mean(factors, run.q), reduction.cov(factors, run.q)
        else:
            mean, cov = factors.prior.mean + run.q.mean, run.q.cov
        return mean, cholesky(np.linalg.inv(cov), lower=True)

    def coefficients(self, columns: Bits, n: int, rng: np.random.Generator) -> dict[str, Array]:
        drawn = np.zeros((n, len(columns)))
        if columns.any():
            mean, factor = self.fit(columns)
            noise = solve_triangular(factor, rng.standard_normal((len(mean), n)), lower=True, trans="T")
            drawn[:, columns] = mean + noise.T
        return {"coefficients": drawn}
