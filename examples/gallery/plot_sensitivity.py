"""
Is the conclusion the prior's or the data's?
============================================

Five measurements are near 5, and the prior of their mean is centred at 0. If the prior is raised to a power, the
posterior moves in one direction. If the likelihood is raised to a power, it moves in the other. So prior and data
disagree.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import ppl_backends as pb

with pm.Model() as model:
    mu, sigma = pm.Normal("mu", 0, 1), pm.HalfNormal("sigma", 5)
    pm.Normal("y", mu, sigma, observed=np.array([5.2, 4.8, 6.1, 5.5, 4.9]))
idata = pb.sample_smc(model, draws=1000, chains=2, random_seed=1, progressbar=False)
result = pb.sensitivity(idata, model, random_seed=1)
print(result.table.T)

# %%
# The curves of the mean differ between powers, for the prior and for the likelihood.

pb.plot_sensitivity(result)
plt.show()
