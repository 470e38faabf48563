"""
Tuberculosis without a likelihood
=================================

A bacterium divides at rate α, dies at rate γ and mutates at rate 1 − α − γ. The data are the genotypes of 473 patients
of an outbreak in San Francisco, summarised by their number and their diversity. The likelihood cannot be evaluated, but
outbreaks are easy to simulate (Tanaka et al. 2006). :func:`ppl_backends.sample_abc` finds the rates whose outbreaks
look like the observed one.
"""

import matplotlib.pyplot as plt
import numpy as np
from numba import njit

import ppl_backends as pb
from ppl_backends.datasets import load_tuberculosis

size, clusters = load_tuberculosis().T  # patients of a genotype, and the number of such genotypes
SAMPLE, POPULATION = int(size @ clusters), 10_000
observed = np.array([clusters.sum() / SAMPLE, 1 - clusters @ size**2 / SAMPLE**2])


@njit
def outbreaks(alpha, gamma, rng, out):
    """Compute the number of genotypes in a sample over its size, and their diversity; NaN if the outbreak dies out."""
    owner = np.empty(POPULATION + 1, dtype=np.int64)
    for i in range(len(alpha)):
        n, types = 1, 1
        owner[0] = 0
        while 0 < n < POPULATION:
            who, what = int(rng.random() * n), rng.random()
            if what < alpha[i]:
                owner[n] = owner[who]
                n += 1
            elif what < alpha[i] + gamma[i]:
                n -= 1
                owner[who] = owner[n]
            else:
                owner[who] = types
                types += 1
        if n == 0:
            out[i] = np.nan
            continue
        counts = np.zeros(types)
        for j in range(SAMPLE):  # a partial shuffle
            k = j + int(rng.random() * (n - j))
            owner[j], owner[k] = owner[k], owner[j]
            counts[owner[j]] += 1
        out[i, 0], out[i, 1] = (counts > 0).sum() / SAMPLE, 1 - (counts**2).sum() / SAMPLE**2


def simulate(parameters, rng):
    """Return the summaries of one outbreak for each row."""
    out = np.empty((len(parameters["alpha"]), 2))
    outbreaks(parameters["alpha"], parameters["gamma"], rng, out)
    return out


# %%
# The prior is uniform where births outnumber deaths. Here γ has the density 4(1 − 2γ) on (0, ½), and α is uniform on
# (γ, 1 − γ). Nets of quasi-random points need only inverse distribution functions.

import pymc as pm  # noqa: E402

with pm.Model() as prior:
    share = pm.Beta("share", 1, 2)
    gamma = pm.Deterministic("gamma", share / 2)
    position = pm.Uniform("position", 0, 1)
    pm.Deterministic("alpha", gamma + position * (1 - 2 * gamma))

idata = pb.sample_abc(
    prior,
    simulate=simulate,
    observed=observed,
    epsilon=0.01,
    data_sets=4,
    pilot_points=512,
    draws=1024,
    max_simulations=60_000,
    random_seed=1,
    progressbar=False,
)
idata.posterior.attrs["simulations"]

# %%
# As the tolerance falls, the proposals concentrate around the posterior. The last panel has the density of the observed
# summaries, as every stage estimates it. It increases while ε is large compared with the spread of outbreaks, and is
# constant for smaller ε.

pb.plot_abc_run(idata)
plt.show()

# %%
# The data determine the birth rate well, and the death rate poorly: the genotypes contain information about the number
# of mutations for each birth that lasts.

draws = idata.posterior
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.plot(draws["alpha"].values.ravel(), draws["gamma"].values.ravel(), ".", markersize=2, alpha=0.4)
left.set(xlabel="α, births", ylabel="γ, deaths", xlim=(0.4, 1.0), ylim=(0.0, 0.5))
left.fill_between([0.5, 1.0], [0.5, 0.0], [0.5, 0.5], color="0.9")
left.annotate("outside the prior", (0.8, 0.38), ha="center", fontsize="small")
predicted = idata["posterior_predictive"]["y"].values.reshape(-1, 2)
right.plot(*predicted.T, ".", markersize=2, alpha=0.4, label="outbreaks of the posterior")
right.plot(*observed, "k+", markersize=14, label="observed")
right.set(xlabel="genotypes / patients", ylabel="diversity", ylim=(0.9, 1.0))
right.legend(loc="lower right", fontsize="small")
plt.show()
