"""Independent proposals on {0, 1}^m from nested logistic regressions (Schäfer & Chopin 2013, section 4).

q(γ) = ∏ⱼ q(γⱼ | γ₁, …, γⱼ₋₁), each factor a logistic regression fitted to weighted particles. Bits that are almost
never or almost always on are Bernoulli, and only bits correlated with γⱼ are its predictors. Coefficients are shrunk
to be finite for separated particles. No conditional probability is below one over twice the number of particles, so
that every model can be proposed.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ppl_backends.kernels.protocol import Density, Kernel, KernelInfo, S, accept
from ppl_backends.numerics.jit import jit
from ppl_backends.targets.protocol import Array

MARGIN, CORRELATION = 0.02, 0.075
_NOISE = 3.0  # standard errors of a correlation that counts as zero
_RIDGE = 0.1  # prior precision of a coefficient
_MOST_STEPS, _SETTLED = 12, 1e-2  # Newton steps, and expected gain of another one in nats over all particles
_MOST_PREDICTORS = 20  # of one bit, those most correlated with it


class NestedParameters(NamedTuple):
    """Coefficients ``(m, m)`` below the diagonal, intercepts ``(m,)``, and the least conditional probability."""

    coefficients: Array
    intercepts: Array
    floor: float


class NestedLogistic(Kernel):
    """Independent Metropolis–Hastings from nested logistic regressions."""

    name: ClassVar[str] = "nested_logistic"

    def calibrate(self, x: NDArray[np.bool_], weights: Array) -> NestedParameters:
        """Return the regressions fitted to particles ``(n, m)`` of normalised ``weights``."""
        n, m = x.shape
        worth = 1.0 / float(weights @ weights)  # independent particles, at most
        _, first, which = np.unique(np.packbits(x, axis=1), axis=0, return_index=True, return_inverse=True)
        mass = np.bincount(which.ravel(), weights)
        kept = mass > 0
        rows, mass = x[first[kept]].astype(np.float64), mass[kept]
        mean = mass @ rows
        spread = np.sqrt(np.maximum(mean * (1 - mean), 1e-12))
        centred = rows - mean
        correlation = (centred * mass[:, None]).T @ centred / np.outer(spread, spread)
        inner = (mean > MARGIN) & (mean < 1 - MARGIN)
        least = max(CORRELATION, _NOISE / np.sqrt(worth))
        chosen = (np.abs(correlation) > least) & inner[:, None] & inner & np.tri(m, k=-1, dtype=bool)
        if m > _MOST_PREDICTORS + 1:
            strength = np.where(chosen, np.abs(correlation), 0.0)
            least = np.partition(strength, m - _MOST_PREDICTORS, axis=1)[:, m - _MOST_PREDICTORS]
            chosen &= strength >= least[:, None]
        floor = 0.5 / n
        edge = np.clip(mean, floor, 1 - floor)
        coefficients, intercepts = np.zeros((m, m)), np.log(edge / (1 - edge))
        _fit(np.ascontiguousarray(rows.T), mass * worth, chosen, coefficients, intercepts)
        return NestedParameters(coefficients, intercepts, floor)

    def step(
        self, rng: np.random.Generator, population: S, density: Density[S], parameters: Any
    ) -> tuple[S, KernelInfo]:
        x = np.ascontiguousarray(population.x, dtype=bool)
        proposed, log_q = sample(*parameters, rng.random(x.shape))
        proposal = density(proposed, rng)
        log_ratio = self.log_ratio(population, proposal) + log_probability(*parameters, x) - log_q
        return accept(rng, population, proposal, log_ratio, (proposed != x).sum(axis=1).astype(np.float64))


@jit
def _fit(columns, weights, chosen, coefficients, intercepts):
    """Write ridge logistic regressions of each row of ``columns`` ``(m, n)`` on the ``chosen`` ones, by Newton's method."""
    m, n = columns.shape
    design, p, slope, curvature = np.empty((m + 1, n)), np.empty(n), np.empty(n), np.empty(n)
    for j in range(m):
        predictors = np.flatnonzero(chosen[j])
        k = len(predictors)
        if k == 0:
            continue
        for a in range(k):
            design[a] = columns[predictors[a]]
        design[k] = 1.0
        theta, gradient, hessian = np.zeros(k + 1), np.empty(k + 1), np.empty((k + 1, k + 1))
        theta[k] = intercepts[j]
        for _ in range(_MOST_STEPS):
            for i in range(n):
                s = 0.0
                for a in range(k + 1):
                    s += theta[a] * design[a, i]
                p[i] = 1.0 / (1.0 + math.exp(-s))
                slope[i] = weights[i] * (columns[j, i] - p[i])
                curvature[i] = weights[i] * p[i] * (1.0 - p[i])
            for a in range(k + 1):
                gradient[a] = np.dot(slope, design[a]) - _RIDGE * theta[a]
                weighted = curvature * design[a]
                for b in range(a + 1):
                    hessian[a, b] = hessian[b, a] = np.dot(weighted, design[b])
                hessian[a, a] += _RIDGE
            step = np.linalg.solve(hessian, gradient)
            gain = np.dot(step, gradient)
            length = np.abs(step).max()
            theta += step * min(1.0, 4.0 / length)
            if gain < _SETTLED:
                break
        coefficients[j, predictors] = theta[:k]
        intercepts[j] = theta[k]


@jit
def _probability(coefficients, intercepts, floor, row, j):
    s = intercepts[j]
    for a in range(j):
        if row[a]:
            s += coefficients[j, a]
    p = 1.0 / (1.0 + math.exp(-s))
    return min(max(p, floor), 1.0 - floor)


@jit
def sample(coefficients, intercepts, floor, uniforms):
    """Return a draw for each row of ``uniforms`` ``(n, m)``, and its log probability."""
    n, m = uniforms.shape
    x, log_q = np.zeros((n, m), dtype=np.bool_), np.zeros(n)
    for i in range(n):
        for j in range(m):
            p = _probability(coefficients, intercepts, floor, x[i], j)
            x[i, j] = uniforms[i, j] < p
            log_q[i] += math.log(p if x[i, j] else 1.0 - p)
    return x, log_q


@jit
def log_probability(coefficients, intercepts, floor, x):
    """Return the log probabilities ``(n,)`` of rows ``(n, m)``."""
    log_q = np.zeros(len(x))
    for i in range(len(x)):
        for j in range(x.shape[1]):
            p = _probability(coefficients, intercepts, floor, x[i], j)
            log_q[i] += math.log(p if x[i, j] else 1.0 - p)
    return log_q
