"""
Filters that grow along a series
================================

:func:`ppl_backends.sample_smc2` gives every parameter value its own particle filter. The estimate of the
likelihood becomes noisier with every row. If the log of the estimate varies by more than 1.5 between filters, all
filters get more particles. The acceptance rate of the moves shows little of this, because it depends on the proposals
too.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import ppl_backends as pb

rng = np.random.default_rng(4)
x = np.empty(150)
x[0] = -1 + rng.standard_normal()
for t in range(1, 150):
    x[t] = -1 + 0.95 * (x[t - 1] + 1) + 0.3 * rng.standard_normal()
y = np.exp(x / 2) * rng.standard_normal(150)

with pm.Model() as model:
    mu, rho = pm.Normal("mu", 0, 2), pm.TruncatedNormal("rho", 0, 1, lower=-1, upper=1)
    variance = pm.InverseGamma("variance", 3, 0.5)
    pb.StateSpace("y", pb.state_space.stochastic_volatility(), mu=mu, rho=rho, sigma=variance**0.5, observed=y)

idata = pb.sample_smc2(model, draws=200, chains=3, filter="bootstrap", random_seed=1, progressbar=False)

# %%
# Rows are added while the effective sample size stays above a half. When N_x increases, nothing else changes, because
# larger filters are drawn around paths from the old ones and need no weights. Two hundred particles are few for an
# evidence, as the last panel shows. The default is four hundred.

pb.plot_smc_run(idata)
plt.show()
