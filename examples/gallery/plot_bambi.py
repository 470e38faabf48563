"""
A Bambi model with its evidence
===============================

Bambi writes regressions as formulas. Every call of this package takes its models, and the results have Bambi's names. Which
of three formulas describes diabetes among the women of Pima best?
"""

import bambi as bmb
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression

pima = load_binary_regression("pima")
data = pd.DataFrame(2 * pima.X[:, 1:], columns=list(pima.names[1:])).assign(diabetes=pima.y)
print(list(data.columns))

# %%
# Predictors have standard deviation one. The priors are written down, because an evidence depends on them.

glucose, mass = data.columns[1], data.columns[4]
prior = bmb.Prior("Normal", mu=0, sigma=2)
FORMULAS = {
    "glucose": f"diabetes ~ {glucose}",
    "glucose and mass": f"diabetes ~ {glucose} + {mass}",
    "with interaction": f"diabetes ~ {glucose} * {mass}",
}
models = {
    name: bmb.Model(formula, data, family="bernoulli", priors={"Intercept": prior, "common": prior})
    for name, formula in FORMULAS.items()
}
fits = {name: pb.sample_smc(model, draws=1000, random_seed=1, progressbar=False) for name, model in models.items()}
table = pb.compare_evidence(fits)
table

# %%
# The second formula has the highest evidence, and the interaction does not improve it. The result is InferenceData, so
# its posterior is used as in Bambi.

posterior = fits["glucose and mass"].posterior
fig, axes = plt.subplots(1, 2, figsize=(10, 3.5), layout="constrained")
pb.plot_evidence(table, ax=axes[0])
at = np.linspace(-2, 3, 100)
for level, colour in ((-1, "C0"), (0, "C1"), (1, "C2")):
    eta = posterior["Intercept"].to_numpy().ravel()[:, None] + posterior[glucose].to_numpy().ravel()[:, None] * at
    chance = 1 / (1 + np.exp(-eta - level * posterior[mass].to_numpy().ravel()[:, None]))
    axes[1].fill_between(at, *np.quantile(chance, [0.05, 0.95], axis=0), color=colour, alpha=0.3)
    axes[1].plot(at, chance.mean(0), color=colour, label=f"{level:+d} sd" if level else "mean")
axes[1].set(xlabel=f"{glucose} (standard deviations)", ylabel="P(diabetes)", ylim=(0, 1))
axes[1].legend(title=mass)
plt.show()
