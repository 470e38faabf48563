"""
A random graph, and a simulator that has not equilibrated
=========================================================

The business ties of 16 Florentine families are modelled as an exponential random graph with edges and two-stars. Its
likelihood has a constant that cannot be computed. The exchange algorithm replaces this constant by networks drawn from
the model, and its posterior is only as good as these draws.
"""

import matplotlib.pyplot as plt
import numpy as np

import ppl_backends as pb
from ppl_backends.datasets import load_florentine
from ppl_backends.simulators import ERGM

network = load_florentine()
prior = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1) / 30, -x / 30), names=["edges", "two-stars"])
terms = ["edges", "kstar(2)"]
simulators = {
    "toggles and flips to the complement": ERGM(16, terms, start=network),
    "200 toggles": ERGM(16, terms, start=network, moves="tnt", burn_in=200, complement=False),
}

# %%
# Both runs look converged, and no diagnostic of the chain shows that the second run draws its networks wrongly. The
# comparison of simulations from opposite starts shows it.

draws, checks = {}, {}
for label, graphs in simulators.items():
    target = pb.Unnormalized(simulator=graphs, observed=network, prior=prior)
    idata = pb.sample_mcmc(
        target, step=pb.steps.Exchange(), draws=4000, tune=1000, chains=2, random_seed=1, progressbar=False
    )
    draws[label] = idata.posterior["x"].values.reshape(-1, 2)
    some = draws[label][::800]
    checks[label] = graphs.equilibration(some, np.random.default_rng(1), burn_in=2 ** np.arange(6, 15), replicates=100)
    print(label, checks[label], sep="\n")

# %%
# On the left are the two posteriors, and the exact means and standard deviations (from the density of states). On the
# right is the largest difference between networks simulated from the empty, the complete and the observed graph, in
# standard deviations. It is about two if the networks depend on their starts, and at the level of noise if they do not.
# The dots are the burn-ins in use.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
for (label, x), check, colour in zip(draws.items(), checks.values(), ("C0", "C1"), strict=True):
    left.plot(*x[::2].T, ".", ms=2, alpha=0.35, color=colour)
    left.plot([], [], "o", color=colour, label=label)
    gap = check.gap.max(axis=(0, 2))
    right.plot(check.burn_in, gap, color=colour)
    right.plot(check.in_use, np.interp(np.log(check.in_use), np.log(check.burn_in), gap), "o", ms=9, color=colour)
left.errorbar(-2.256, 0.067, xerr=0.484, yerr=0.105, color="k", lw=2, label="exact mean ± sd")
left.set(xlabel="edges", ylabel="two-stars", title="Posterior")
left.legend(frameon=False)
right.axhline(4 * checks["200 toggles"].noise, color="0.5", ls=":", label="four standard errors")
right.set(xscale="log", ylim=(0, None), xlabel="toggles", title="Largest gap between starts (sd)")
right.legend(frameon=False, loc="lower left")
plt.show()
