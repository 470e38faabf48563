"""
The error of scrambled nets and of random points
================================================

Importance sampling runs on the Pima data with independent points and with scrambled Sobol nets. The picture has the
root mean squared error of the log evidence over forty repetitions, against the number of points.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression

X, y, *_ = load_binary_regression("pima")
with pm.Model() as model:
    beta = pm.Normal("beta", 0, np.r_[20.0, np.full(X.shape[1] - 1, 5.0)])
    pm.Bernoulli("diabetes", logit_p=X @ beta, observed=y)
target = pb.as_target(model)
laplace = pb.fit_laplace(target, progressbar=False)

REPETITIONS = 40
sizes = 2 ** np.arange(6, 13)


def log_evidences(points, qmc, seed):
    """Return one log evidence per chain; a chain is an independent set of points."""
    idata = pb.sample_importance(
        target, draws=points, chains=REPETITIONS, approximation=laplace, proposal="defensive", qmc=qmc,
        random_seed=seed, progressbar=False,
    )  # fmt: skip
    return idata.sample_stats["log_evidence"].values


truth = pb.sample_importance(
    target, draws=2**15, chains=8, approximation=laplace, proposal="defensive", random_seed=0, progressbar=False
).posterior.attrs["log_evidence"]
errors = {
    name: [np.sqrt(np.mean((log_evidences(n, qmc, seed=7) - truth) ** 2)) for n in sizes.tolist()]
    for name, qmc in (("independent points", False), ("scrambled Sobol nets", True))
}

# %%
# The error of independent points falls with the square root of their number. The error of nets falls faster.

figure, axis = plt.subplots(figsize=(6.5, 4.5), layout="constrained")
for name, error in errors.items():
    axis.plot(sizes, error, "o-", label=name)
axis.plot(sizes, errors["independent points"][0] * (sizes / sizes[0]) ** -0.5, ":", color="0.5", label="n^(-1/2)")
axis.set_xscale("log", base=2)
axis.set_yscale("log")
axis.set(xlabel="points", ylabel="root mean squared error of the log evidence", title="Pima, logit, Gaussian prior")
axis.legend(frameon=False)
plt.show()
