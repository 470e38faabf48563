"""
A Gaussian process: which kernel?
=================================

A Gaussian process smooths forty noisy measurements of a curve, without a formula for the curve. Its evidence chooses
between kernels, and its posterior of the length scale shows over which distance measurements are informative.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import ppl_backends as pb

rng = np.random.default_rng(3)
x = np.sort(rng.uniform(0, 10, 40))
y = np.sin(1.5 * x) + 0.3 * x + 0.3 * rng.standard_normal(40)
KERNELS = {"smooth": pm.gp.cov.ExpQuad, "rough": pm.gp.cov.Exponential}


def process(kernel):
    """Return the model: scale, length scale and noise are unknown, the curve is integrated out."""
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 3)
        length = pm.InverseGamma("length", 3, 4)
        noise = pm.HalfNormal("noise", 1)
        gp = pm.gp.Marginal(cov_func=scale**2 * KERNELS[kernel](1, length))
        gp.marginal_likelihood("y", x[:, None], y, sigma=noise)
    return model


fits = {name: pb.sample_smc(process(name), draws=500, random_seed=1, progressbar=False) for name in KERNELS}
pb.compare_evidence(fits)

# %%
# Gaussian conditioning gives the curve at new points, averaged over the posterior of the three parameters.

grid = np.linspace(0, 12, 200)
posterior = fits["smooth"].posterior
draws = np.column_stack([posterior[name].to_numpy().ravel()[::10] for name in ("scale", "length", "noise")])
curves = []
for scale, length, noise in draws:
    k = lambda a, b, s=scale, r=length: s**2 * np.exp(-0.5 * ((a[:, None] - b) / r) ** 2)  # noqa: E731
    weights = np.linalg.solve(k(x, x) + noise**2 * np.eye(40), k(x, grid))
    cov = k(grid, grid) - k(grid, x) @ weights + 1e-8 * np.eye(200)
    curves.append(rng.multivariate_normal(weights.T @ y, cov, method="eigh"))

fig, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", width_ratios=[2, 1])
axes[0].fill_between(grid, *np.quantile(curves, [0.05, 0.95], axis=0), color="C0", alpha=0.3, label="90 % band")
axes[0].plot(grid, np.mean(curves, axis=0), color="C0", label="posterior mean")
axes[0].plot(grid, np.sin(1.5 * grid) + 0.3 * grid, "k:", label="truth")
axes[0].plot(x, y, "o", color="k", ms=3)
axes[0].set(xlabel="x", ylabel="y")
axes[0].legend()
axes[1].hist(posterior["length"].to_numpy().ravel(), 40, density=True, color="C0")
axes[1].set(xlabel="length scale", ylabel="posterior density")
plt.show()
