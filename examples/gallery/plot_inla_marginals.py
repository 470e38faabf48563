"""
Marginals without sampling
==========================

A logistic regression predicts from two plasma proteins whether the erythrocyte sedimentation rate of 32 people was
raised. The posterior is skewed, with the tails of a Cauchy prior. ``fit_inla`` computes the marginal of a coefficient
by a Laplace approximation of all other coefficients at each of its values. The page compares it with a long run of
NUTS, with EP and with the plain Laplace approximation.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression

X, y, names, _ = load_binary_regression("plasma")
with pm.Model(coords={"predictor": names}) as model:
    beta = pm.Cauchy("beta", 0, [10.0, 2.5, 2.5], dims="predictor")
    pm.Bernoulli("raised", logit_p=X @ beta, observed=y)
    long_run = pm.sample(5000, tune=1000, chains=4, cores=1, random_seed=1, progressbar=False)

inla = pb.fit_inla(model, progressbar=False)
ep = pb.fit_ep(model)

# %%
# The table has means, standard deviations and the 99 % quantile, where a Gaussian has its largest error.

draws = long_run.posterior["beta"].values.reshape(-1, 3)
print(f"{'':18s} {'mean':>24s}   {'sd':>24s}   {'99 %':>24s}")
for label, mean, sd, upper in (
    ("NUTS", draws.mean(axis=0), draws.std(axis=0), np.quantile(draws, 0.99, axis=0)),
    ("INLA", inla.mean, inla.sd, inla.quantile(0.99)),
    *((q.method, q.mean, q.sd, q.mean + 2.326 * q.sd) for q in (ep, inla.gaussian_at_mode)),
):
    print(f"{label:18s} {mean.round(2)!s:>24s}   {sd.round(2)!s:>24s}   {upper.round(2)!s:>24s}")

# %%
# The curves of INLA lie on the histograms.

figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
marginals = inla.marginals()
for j, axis in enumerate(axes):
    low, high = np.quantile(draws[:, j], [0.001, 0.999])
    grid = np.linspace(low, high, 300)
    axis.hist(draws[:, j], bins=60, range=(low, high), density=True, color="0.85", label="NUTS, 20,000 draws")
    for gaussian, style, label in ((inla.gaussian_at_mode, ":", "Laplace"), (ep, "--", "EP")):
        z = (grid - gaussian.mean[j]) / gaussian.sd[j]
        axis.plot(grid, np.exp(-0.5 * z**2) / (gaussian.sd[j] * np.sqrt(2 * np.pi)), style, label=label)
    axis.plot(marginals.grid[j], marginals.density[j], "k", lw=1.2, label="INLA")
    axis.set(title=names[j], yticks=[], xlim=(low, high))
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
plt.show()
