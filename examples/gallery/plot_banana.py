"""
What a Gaussian cannot see
==========================

A posterior bent like a banana: Laplace's Gaussian sits at the mode, importance sampling from it says with its
efficiency factor that the Gaussian is poor, and SMC from the same Gaussian follows the bend.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import ppl_backends as pb

BEND, NOISE = 1.0, 0.3


def log_density(x):
    """x₁ ~ N(0, 1), x₂ | x₁ ~ N(x₁², 0.3²); normalised, so the log evidence is 0."""
    residual = x[:, 1] - BEND * x[:, 0] ** 2
    value = -0.5 * x[:, 0] ** 2 - 0.5 * (residual / NOISE) ** 2 - np.log(2 * np.pi * NOISE)
    slope = residual / NOISE**2
    return value, np.stack([-x[:, 0] + 2 * BEND * x[:, 0] * slope, -slope], axis=1)


target = pb.FunctionTarget(2, log_density)
laplace = pb.fit_laplace(target, progressbar=False)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    importance = pb.sample_importance(target, approximation=laplace, random_seed=1, progressbar=False)
smc = pb.sample_smc(target, initial=laplace, random_seed=1, progressbar=False)

# %%
# The exact log evidence is 0.

print(f"Laplace              {laplace.log_evidence:.3f}")
for name, idata in (("importance sampling", importance), ("tempering SMC", smc)):
    attrs = idata.posterior.attrs
    print(f"{name:20} {attrs['log_evidence']:.3f}, standard error {attrs['log_evidence_se']:.3f}")
print(f"efficiency factor    {importance.posterior.attrs['efficiency_factor']:.3f}")
for warning in caught:
    print(f"warning: {warning.message}")

# %%
# Contours of the density; Laplace's draws to the left, SMC's to the right.

first, second = np.meshgrid(np.linspace(-3.5, 3.5, 200), np.linspace(-2, 10, 200))
value = log_density(np.column_stack([first.ravel(), second.ravel()]))[0].reshape(first.shape)
panels = {
    "Laplace": laplace.sample(1500, np.random.default_rng(1)),
    "tempering SMC": smc.posterior["x"].values.reshape(-1, 2)[::5],
}
figure, axes = plt.subplots(1, 2, figsize=(10, 4.5), sharey=True, layout="constrained")
for axis, (name, points) in zip(axes, panels.items(), strict=True):
    axis.contour(first, second, value, levels=value.max() - np.array([6, 4, 2, 1, 0.25]), colors="0.4", linewidths=0.8)
    axis.plot(*points.T, ".", markersize=2, alpha=0.5)
    axis.set(title=name, xlabel="$x_1$", xlim=(-3.5, 3.5), ylim=(-2, 10))
axes[0].set_ylabel("$x_2$")
plt.show()
