"""
How a tempering run went
========================

:func:`ppl_backends.plot_smc_run` draws the figures that :func:`ppl_backends.sample_smc` records at every temperature.
:func:`ppl_backends.plot_ladder` draws the distribution of the particles at every temperature. The model is the logistic
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
# Each line is a chain. Each chain finds its own temperatures; here they nearly coincide. The effective sample size is that
# of the weights, before resampling. The acceptance rate stays near the target of the kernel, 0.9 for HMC. The step of the
# kernel is in standard deviations of the particles. The last panel has the log evidence of each chain by tempering with its
# 95 % interval, and the band is the interval that the run reports.

pb.plot_smc_run(idata)
plt.show()

# %%
# This run cannot be trusted, because one random-walk move per temperature is not enough. The evidences of the chains miss the
# reference value (dashed) by more than their intervals. The title of the last panel gives the verdict of the run.

import warnings  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    short = pb.sample_smc(model, draws=1000, kernel="random_walk", max_moves=1, random_seed=1, progressbar=False)
axes = pb.plot_smc_run(short)
axes[5].axhline(idata.posterior.attrs["log_evidence"], color="C3", linestyle="--")
plt.show()

# %%
# The picture has the particles along the ladder, for the first three coefficients.

pb.plot_ladder(idata, ["beta[0]", "beta[1]", "beta[2]"])
plt.show()
