"""
Expectation propagation on a skewed posterior
=============================================

A logistic regression predicts from two plasma proteins whether the erythrocyte sedimentation rate of 32 people was
raised. The data are few and nearly separated, so no Gaussian fits well. ``fit_ep`` finds the factors of the model, and
its marginals are not restricted to Gaussians.
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

ep = pb.fit_ep(model)
laplace = pb.fit_laplace(model, progressbar=False)
exact = pb.sample_importance(model, draws=8000, approximation=ep, random_seed=1, progressbar=False)

# %%
# The evidence of EP is close to that of importance sampling from EP, and a second-order correction removes most of the
# difference. Laplace has a larger error.

attrs = exact.posterior.attrs
print(f"importance sampling  {attrs['log_evidence']:.3f}, standard error {attrs['log_evidence_se']:.4f}")
print(f"EP                   {ep.log_evidence:.3f}, corrected {ep.log_evidence + ep.evidence_correction():.3f}")
print(f"Laplace              {laplace.log_evidence:.3f}")

# %%
# EP predicts every observation from all others. This gives a leave-one-out score without refitting.

print(f"expected log predictive density {ep.loo.elpd:.2f}, standard error {ep.loo.se:.2f}")
print(
    "least expected:",
    np.argsort(ep.loo.log_density)[:3],
    ep.loo.log_density[np.argsort(ep.loo.log_density)[:3]].round(2),
)

# %%
# The pictures have the marginal posteriors: exact draws as histograms, Laplace's and EP's Gaussians, and EP's corrected
# marginals.

marginals = ep.marginals()
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
draws = exact.posterior["beta"].values.reshape(-1, 3)
for j, axis in enumerate(axes):
    low, high = np.quantile(draws[:, j], [0.001, 0.999])
    grid = np.linspace(low, high, 300)
    axis.hist(draws[:, j], bins=60, range=(low, high), density=True, color="0.85", label="exact draws")
    for q, style in ((laplace, ":"), (ep, "--")):
        density = np.exp(-0.5 * ((grid - q.mean[j]) / q.sd[j]) ** 2) / (q.sd[j] * np.sqrt(2 * np.pi))
        axis.plot(grid, density, style, label={"ep": "EP's Gaussian", "laplace": "Laplace"}[q.method])
    axis.plot(marginals.grid[j], marginals.density[j], "k", lw=1.2, label="EP's corrected marginal")
    axis.set(title=names[j], yticks=[], xlim=(low, high))
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
plt.show()
