"""
Three answers to one logistic regression
========================================

This page compares three methods on the Pima data (532 women, seven standardised predictors) with the weakly informative
Cauchy prior. They are Laplace's Gaussian, importance sampling from it, and tempering SMC from the prior.
"""

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression

X, y, names, _ = load_binary_regression("pima")
with pm.Model(coords={"predictor": names}) as model:
    beta = pm.Cauchy("beta", 0, np.where(np.array(names) == "intercept", 10.0, 2.5), dims="predictor")
    pm.Bernoulli("diabetes", logit_p=X @ beta, observed=y)

laplace = pb.fit_laplace(model, progressbar=False)
importance = pb.sample_importance(model, approximation=laplace, random_seed=1, progressbar=False)
smc = pb.sample_smc(model, random_seed=1, progressbar=False)

# %%
# The evidences of the two exact methods agree within their standard errors. Laplace has no standard error, and has a
# bias.

print(f"Laplace              {laplace.log_evidence:.3f}")
for name, idata in (("importance sampling", importance), ("tempering SMC", smc)):
    attrs = idata.posterior.attrs
    print(f"{name:20} {attrs['log_evidence']:.3f}, standard error {attrs['log_evidence_se']:.4f}")

# %%
# ArviZ takes the results.

print(az.summary(smc, kind="stats"))

# %%
# The pictures have the marginal posteriors, with SMC's draws as histograms and Laplace's Gaussian as curves. The
# intercept and the coefficients that the data determine well are close to Gaussian.

figure, axes = plt.subplots(2, 4, figsize=(11, 5), layout="constrained")
for j, axis in enumerate(axes.flat):
    draws = smc.posterior["beta"].values[..., j].ravel()
    grid = np.linspace(*np.quantile(draws, [0.0005, 0.9995]), 200)
    sd = np.sqrt(laplace.cov[j, j])
    axis.hist(draws, bins=60, range=(grid[0], grid[-1]), density=True, alpha=0.45, label="tempering SMC")
    axis.plot(grid, np.exp(-0.5 * ((grid - laplace.mean[j]) / sd) ** 2) / (sd * np.sqrt(2 * np.pi)), label="Laplace")
    axis.set(title=names[j], yticks=[])
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2, frameon=False)
plt.show()
