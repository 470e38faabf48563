"""The tuberculosis model of Tanaka et al. (2006) as Buchholz (2018, section 3.5.3) has it; an extinct outbreak is a miss."""

import numpy as np
from numba import njit

from ppl_backends.datasets import load_tuberculosis
from ppl_backends.targets import FunctionTarget

SIZE, CLUSTERS = load_tuberculosis().T
SAMPLE, POPULATION = int(SIZE @ CLUSTERS), 10_000
OBSERVED = np.array([CLUSTERS.sum() / SAMPLE, 1 - CLUSTERS @ SIZE**2 / SAMPLE**2])


@njit(cache=False)
def _outbreak(alpha, gamma, rng, u, owner):
    """Return genotypes of the bacteria until there are 10⁴ or none; summaries of a sample, or NaN."""
    n, n_types, used = 1, 1, len(u)
    owner[0] = 0
    while 0 < n < POPULATION:
        if used + 2 > len(u):
            u[:] = rng.random(len(u))
            used = 0
        who, what = int(u[used] * n), u[used + 1]
        used += 2
        if what < alpha:
            owner[n] = owner[who]
            n += 1
        elif what < alpha + gamma:
            n -= 1
            owner[who] = owner[n]
        else:
            owner[who] = n_types
            n_types += 1
    if n == 0:
        return np.nan, np.nan
    for i in range(SAMPLE):  # a partial shuffle
        j = i + int(rng.random() * (n - i))
        owner[i], owner[j] = owner[j], owner[i]
    drawn = np.sort(owner[:SAMPLE])
    clusters, squares, run = 1, 0.0, 1
    for i in range(1, SAMPLE):
        if drawn[i] == drawn[i - 1]:
            run += 1
        else:
            squares += run * run
            clusters, run = clusters + 1, 1
    squares += run * run
    return clusters / SAMPLE, 1 - squares / SAMPLE**2


@njit(cache=False)
def _outbreaks(alpha, gamma, rng, out):
    u, owner = rng.random(20_000), np.empty(POPULATION + 1, dtype=np.int64)
    for i in range(len(alpha)):
        out[i, 0], out[i, 1] = _outbreak(alpha[i], gamma[i], rng, u, owner)


def simulate(parameters, rng):
    """Return summaries ``(n, 2)``: clusters and the diversity of a sample."""
    theta = parameters["x"]
    out = np.empty((len(theta), 2))
    _outbreaks(theta[:, 0].copy(), theta[:, 1].copy(), rng, out)
    return out


def prior():
    """Return uniform on the triangle 0 < γ < α, α + γ < 1."""

    def log_prior(x):
        alpha, gamma = x.T
        inside = (gamma > 0) & (gamma < alpha) & (alpha + gamma < 1)
        return np.where(inside, np.log(4.0), -np.inf), np.zeros_like(x)

    def from_uniform(u):
        # The density of γ is 4(1 − 2γ) on (0, ½), and α is uniform on (γ, 1 − γ).
        gamma = 0.5 * (1 - np.sqrt(1 - u[:, 0]))
        return np.column_stack([gamma + u[:, 1] * (1 - 2 * gamma), gamma])

    return FunctionTarget(
        2,
        lambda x: (np.zeros(len(x)), np.zeros_like(x)),
        log_prior,
        lambda n, rng: from_uniform(rng.random((n, 2))),
        names=["alpha", "gamma"],
        prior_from_uniform=from_uniform,
    )
