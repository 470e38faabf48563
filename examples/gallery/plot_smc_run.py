"""
How a tempering run went
========================

:func:`ppl_backends.plot_smc_run` draws what a run of :func:`ppl_backends.sample_smc` records at every temperature, and
:func:`ppl_backends.plot_ladder` how the particles narrow on their way to the posterior. The model is the logistic
regression of the Pima data.
"""

import matplotlib.pyplot as plt
import pymc as pm

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression

data = load_binary_regression("pima")
with pm.Model() as model:
    beta = pm.Normal("beta", 0, 5, shape=data.X.shape[1])
    pm.Bernoulli("y", logit_p=data.X @ beta, observed=data.y)

idata = pb.sample_smc(model, draws=1000, random_seed=1, progressbar=False)

# %%
# Each chain finds its own temperatures; that they nearly coincide says that the chains see the same path. Acceptance stays
# near the rate the kernel aims for, and each chain's log evidence, with its own 95 % interval, lies where the band of all
# of them is.

pb.plot_smc_run(idata)
plt.show()

# %%
# A run that cannot be trusted: one random-walk move per temperature is not enough. The chains' evidences are off the
# reference by more than their bars say, and the title of the last panel says what the run itself found.

import warnings  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    short = pb.sample_smc(model, draws=1000, kernel="random_walk", max_moves=1, random_seed=1, progressbar=False)
axes = pb.plot_smc_run(short)
axes[5].axhline(idata.posterior.attrs["log_evidence"], color="C3", linestyle="--")
plt.show()

# %%
# The particles along the ladder, for the first three coefficients.

pb.plot_ladder(idata, ["beta[0]", "beta[1]", "beta[2]"])
plt.show()
