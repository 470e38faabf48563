"""
Which predictors of diabetes are needed?
========================================

Seven predictors give 128 probit regressions. Their evidences and prior probabilities give the probability that a
predictor belongs in the model. The left panel enumerates all models, with evidences by expectation propagation. The
right panel uses SMC over models, with unbiased estimates of the evidence from a single importance point each.
"""

import matplotlib.pyplot as plt

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression

X, y, names, _ = load_binary_regression("pima")
options = {"X": X, "y": y, "link": "probit", "random_seed": 1, "progressbar": False}
every = pb.select_variables(**options)
search = pb.select_variables(**options, method="smc", evidence="importance_laplace", points=1)

# %%
# The 95 % bars are the Monte Carlo error of the search. The enumeration has no such error. Two predictors have low
# inclusion probabilities, and that of a third is below one half.

fig, both = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
for axes, idata, title in zip(both, (every, search), ("all models, EP", "SMC, one point a model"), strict=True):
    pb.plot_inclusion(idata, axes=axes)
    axes.set_title(title)
both[0].set_yticks(range(len(names))[::-1], names)
plt.show()
