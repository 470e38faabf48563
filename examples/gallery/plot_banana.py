"""
A posterior that is not Gaussian
================================

This posterior is curved like a banana. Laplace's Gaussian is at the mode. The efficiency factor of importance sampling
shows that this Gaussian is poor. The draws of SMC from the prior follow the curve.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import logsumexp

import ppl_backends as pb

PRIOR_SD, NOISE = 2.0, 0.5


def log_prior(x):
    """Return the log density of N(0, 2²) in both coordinates, and its gradient."""
    value = -0.5 * (x**2).sum(axis=1) / PRIOR_SD**2 - np.log(2 * np.pi * PRIOR_SD**2)
    return value, -x / PRIOR_SD**2


def log_likelihood(x):
    """Return the log likelihood of the observation 0 of x₂ − x₁² + 1 with noise N(0, 0.5²), and its gradient."""
    residual = x[:, 1] - x[:, 0] ** 2 + 1
    slope = residual / NOISE**2
    value = -0.5 * residual * slope - np.log(NOISE * np.sqrt(2 * np.pi))
    return value, np.stack([2 * x[:, 0] * slope, -slope], axis=1)


def sample_prior(n, rng):
    """Draw from the prior."""
    return PRIOR_SD * rng.standard_normal((n, 2))


target = pb.FunctionTarget(2, log_likelihood, log_prior, sample_prior)
laplace = pb.fit_laplace(target, progressbar=False)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    importance = pb.sample_importance(target, approximation=laplace, random_seed=1, progressbar=False)
smc = pb.sample_smc(target, random_seed=1, progressbar=False)

# %%
# Two dimensions are few enough for the exact evidence by quadrature.

first, second = np.meshgrid(np.linspace(-5, 5, 801), np.linspace(-6, 16, 801))
value = target.log_density(np.column_stack([first.ravel(), second.ravel()])).reshape(first.shape)
exact = logsumexp(value) + np.log((first[0, 1] - first[0, 0]) * (second[1, 0] - second[0, 0]))

print(f"quadrature           {exact:.3f}")
print(f"Laplace              {laplace.log_evidence:.3f}")
for name, idata in (("importance sampling", importance), ("tempering SMC", smc)):
    attrs = idata.posterior.attrs
    print(f"{name:20} {attrs['log_evidence']:.3f}, standard error {attrs['log_evidence_se']:.3f}")
for warning in caught:
    print(f"warning: {warning.message}")

# %%
# The contours are those of the density. Laplace's draws are on the left, SMC's draws on the right.

panels = {
    "Laplace": laplace.sample(1500, np.random.default_rng(1)),
    "tempering SMC": smc.posterior["x"].values.reshape(-1, 2)[::5],
}
figure, axes = plt.subplots(1, 2, figsize=(10, 4.5), sharey=True, layout="constrained")
for axis, (name, points) in zip(axes, panels.items(), strict=True):
    axis.contour(first, second, value, levels=value.max() - np.array([6, 4, 2, 1, 0.25]), colors="0.4", linestyles="-")
    axis.plot(*points.T, ".", markersize=2, alpha=0.5)
    axis.set(title=name, xlabel="$x_1$", xlim=(-3.5, 3.5), ylim=(-4, 7))
axes[0].set_ylabel("$x_2$")
plt.show()
