"""Laplace's approximation of evidences, and importance sampling from it, which is unbiased."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaln, logsumexp

from ppl_backends.approximations.noise import normal_noise
from ppl_backends.errors import ModelError
from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.evidences.laplace_kernels import estimate, fit, log_evidences, mean_sites
from ppl_backends.model_search.space import Bits
from ppl_backends.model_search.switched import Compiled, Switched
from ppl_backends.numerics.arrays import for_kernels
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.numerics.weights import systematic_resampling
from ppl_backends.targets.protocol import Array

_NETS, _FEWEST_IN_NETS = 4, 64  # scrambles of an estimate's points, and least number of points for scrambles
_DF = 1.0  # of points in the tails
_FEWEST_DRAWN, _DRAWN = 64, 8  # least number of points for resampled coefficients, and points per draw


class LaplaceEvidence(Evidence):
    """The joint density at its mode times the integral of a Gaussian with its curvature.

    Raises
    ------
    ModelError
        If the family of the likelihood, or a prior, is not compiled.
    """

    name: ClassVar[str] = "laplace"
    exact: ClassVar[bool] = False

    def __init__(self, regression: Switched) -> None:
        super().__init__()
        if regression.compiled is None:
            raise ModelError(
                "evidence='laplace' needs a logit, probit, Poisson or normal likelihood and normal or Student priors; "
                "use evidence='ep' or 'importance_ep'"
            )
        self.regression, self.compiled, self.log_constant = regression, regression.compiled, regression.log_constant
        self.gram, self.right = _least_squares(self.compiled)
        self.laplace = self

    def compute(self, columns: Bits, rng: np.random.Generator) -> Array:
        found = log_evidences(*self.compiled, columns, self.gram, self.right) + self.log_constant
        if np.isnan(found).any():
            failed = np.flatnonzero(columns[np.argmax(np.isnan(found))])
            names = ", ".join(self.regression.factors.names[j] for j in failed)
            raise ModelError(f"evidence='laplace': Newton's method found no mode of the model with {names}; use 'ep'")
        return np.asarray(found)

    def fit(self, columns: Bits) -> tuple[Array, Array]:
        """Return the mode ``(k,)`` of one model, and the lower Cholesky factor of minus the Hessian there."""
        on = np.flatnonzero(columns)
        theta, factor = np.empty(len(on)), np.empty((len(on), len(on)))
        fit(*self.compiled, on, self.gram, self.right, theta, factor, np.empty((4, self.compiled.design.shape[1])))
        return theta, np.tril(factor)

    def coefficients(self, columns: Bits, n: int, rng: np.random.Generator) -> dict[str, Array]:
        mean, factor = self.fit(columns)
        drawn = np.zeros((n, len(columns)))
        noise = solve_triangular(factor, rng.standard_normal((len(mean), n)), lower=True, trans="T")
        drawn[:, columns] = mean + noise.T
        return {"coefficients": drawn}


class Proposal(Protocol):
    """A method that fits a Gaussian to a model."""

    regression: Switched
    laplace: Any
    log_constant: float

    def gain_of_other_modes(self, columns: Bits) -> Array:
        """Return what other modes than the Gaussian's add to the log evidence."""
        ...

    def fit(self, columns: Bits) -> tuple[Array, Array]:
        """Return the mean ``(k,)`` and the lower Cholesky factor of the precision."""
        ...

    def coefficients(self, columns: Bits, n: int, rng: np.random.Generator) -> dict[str, Array]:
        """Return draws of it."""
        ...


class ImportanceEvidence(Evidence):
    """The mean weight of a few points of the Gaussian that another method fits: unbiased for any number of points.

    Parameters
    ----------
    proposal : Proposal
    points : int
    tails : bool, optional
        Whether half of the points are from a Cauchy distribution with the Gaussian's mean and factor, and weights
        relative to the mixture of both (Hesterberg 1995). By default this is so if a prior is not normal: the tails of a
        posterior are then not covered by a Gaussian, if the data leave a coefficient open on one side.
    """

    name: ClassVar[str] = "importance"
    exact: ClassVar[bool] = True
    deterministic: ClassVar[bool] = False

    def __init__(self, proposal: Proposal, points: int, tails: bool | None = None) -> None:
        super().__init__()
        self.proposal, self.points = proposal, points
        self.tails = any(map(len, proposal.regression.own)) if tails is None else tails
        self.laplace = proposal.laplace
        self._fitted: dict[bytes, tuple[Array, Array]] = {}

    def compute(self, columns: Bits, rng: np.random.Generator) -> Array:
        return self.with_variance(columns, rng)[0]

    def gain_of_other_modes(self, columns: Bits) -> Array:
        return self.proposal.gain_of_other_modes(columns)

    def with_variance(self, columns: Bits, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the log evidences ``(n,)`` and the relative variances of the estimates (NaN from one point)."""
        logs = np.stack([self._means(row, rng) for row in columns])
        total = logsumexp(logs, axis=1)
        pieces = logs.shape[1]
        shares = np.exp(logs - total[:, None])
        variance = ((shares - 1.0 / pieces) ** 2).sum(axis=1) * pieces / max(pieces - 1, 1)
        found = total - np.log(pieces) + self.proposal.log_constant
        return found, variance if pieces > 1 else np.full(len(columns), np.nan)

    def _means(self, columns: Bits, rng: np.random.Generator) -> Array:
        """Return logs of weights of independent points, or of their means over independent scrambles of a net."""
        k = int(columns.sum())
        if self.points < _FEWEST_IN_NETS:
            return self._log_weights(columns, self._spread(rng.standard_normal((self.points, k)), rng))
        each = [*[self.points // _NETS] * (_NETS - 1), self.points - self.points // _NETS * (_NETS - 1)]
        out = self._log_weights(columns, np.concatenate([self._spread(normal_noise(n, k, rng), rng) for n in each]))
        parts = np.split(out, np.cumsum(each)[:-1])
        return np.array([logsumexp(part) for part in parts]) - np.log(self.points / _NETS)

    def _spread(self, normals: Array, rng: np.random.Generator, independent: bool = False) -> Array:
        """Return points ``(points, k)`` of the proposal, where its Gaussian is standard normal, from normal numbers.

        One half of the points is in the tails, unless they have to be independent; a part of a net is a net.
        """
        if not self.tails:
            return normals
        n = len(normals)
        wide = rng.random(n) < 0.5 if independent else (np.arange(n) < n // 2) ^ (rng.random() < 0.5)
        return normals * np.where(wide, np.sqrt(_DF / rng.chisquare(_DF, size=n)), 1.0)[:, None]

    def _log_weights(self, columns: Bits, points: Array) -> Array:
        """Return log weights of the proposal's points ``(points, k)``."""
        mean, factor = self._fit(columns)
        regression = self.proposal.regression
        if regression.compiled is not None:
            out = np.empty(len(points))
            estimate(*regression.compiled, np.flatnonzero(columns), mean, factor, points, out)
        else:
            theta = mean + solve_triangular(factor, points.T, lower=True, trans="T").T
            log_q = np.log(np.diagonal(factor)).sum() - 0.5 * ((points**2).sum(axis=1) + len(mean) * LOG_2PI)
            out = regression.log_density(columns, theta) - log_q
        if self.tails:
            square, k = (points**2).sum(axis=1), points.shape[1]
            log_ratio = 0.5 * square - 0.5 * (_DF + k) * np.log1p(square / _DF) - 0.5 * k * np.log(0.5 * _DF)
            out += np.log(2.0) - np.logaddexp(0.0, log_ratio + gammaln(0.5 * (_DF + k)) - gammaln(0.5 * _DF))
        return out

    def _fit(self, columns: Bits) -> tuple[Array, Array]:
        """Return the proposal's mean and factor, which are cached."""
        key = np.packbits(columns).tobytes()
        if key not in self._fitted:
            mean, factor = self.proposal.fit(columns)
            self._fitted[key] = for_kernels(mean), for_kernels(factor)
        return self._fitted[key]

    def draw(self, columns: Bits, rng: np.random.Generator) -> tuple[float, Array]:
        """Return an estimate of one model's log evidence from independent points, and one of them, drawn by its weight."""
        points = self._spread(rng.standard_normal((self.points, int(columns.sum()))), rng, independent=True)
        out, theta = self._log_weights(columns, points), np.zeros(len(columns))
        mean, factor = self._fit(columns)
        chosen = points[rng.choice(self.points, p=np.exp(out - logsumexp(out)))]
        theta[columns] = mean + solve_triangular(factor, chosen, lower=True, trans="T")
        return float(logsumexp(out) - np.log(self.points) + self.proposal.log_constant), theta

    def around(self, columns: Bits, theta: Array, rng: np.random.Generator) -> float:
        """Return an estimate of one model's log evidence from ``theta`` and independent points, one fewer than otherwise.

        If θ is from the model's posterior, these points have the distribution of points of which one was drawn by its
        weight, as in particle Gibbs (Andrieu, Doucet & Holenstein 2010).
        """
        mean, factor = self._fit(columns)
        points = self._spread(rng.standard_normal((self.points, len(mean))), rng, independent=True)
        points[0] = factor.T @ (theta[columns] - mean)
        return float(logsumexp(self._log_weights(columns, points)) - np.log(self.points) + self.proposal.log_constant)

    def coefficients(self, columns: Bits, n: int, rng: np.random.Generator) -> dict[str, Array]:
        """Return draws of the proposal, resampled by their weights from several times as many."""
        drawn, k = np.zeros((n, len(columns))), int(columns.sum())
        if k:
            points = self._spread(rng.standard_normal((max(_FEWEST_DRAWN, _DRAWN * n), k)), rng)
            out = self._log_weights(columns, points)
            chosen = points[systematic_resampling(np.exp(out - logsumexp(out)), n, rng)]
            mean, factor = self._fit(columns)
            drawn[:, columns] = mean + solve_triangular(factor, chosen.T, lower=True, trans="T").T
        return {"coefficients": drawn}


def _least_squares(compiled: Compiled) -> tuple[Array, Array]:
    """Return X'WX and X'W(s − b + φ'/W), the weighted least squares around the fit of all columns."""
    design, offset, y, extra, family, _ = compiled
    p, n = design.shape
    theta, work, everything = np.zeros(p), np.empty((4, n)), np.arange(p)
    fit(*compiled, everything, np.eye(p), np.zeros(p), theta, np.empty((p, p)), work)
    s = offset + theta @ design
    _, slope, second = mean_sites(family, s[None], y, extra).T
    return (design * -second) @ design.T, design @ (slope - second * (s - offset))
