"""
The tempering ladder against quadrature
=======================================

From the prior, SMC passes through posteriors whose likelihood is raised to a power λ. This page has one parameter, so
quadrature gives the truth at each λ. The prior is θ ~ N(0, 3²), and the likelihood has two bumps of unequal weight.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import logsumexp

import ppl_backends as pb

CENTRES, SD, LOG_SHARES = np.array([-3.0, 4.0]), 0.4, np.log([0.3, 0.7])


def log_prior(x):
    """Return the log of the normal density with standard deviation 3, and its slope."""
    return -0.5 * (x[:, 0] / 3) ** 2 - np.log(3 * np.sqrt(2 * np.pi)), -x / 9


def log_likelihood(x):
    """Return the log of a mixture of two bumps, and its slope."""
    terms = LOG_SHARES - 0.5 * ((x - CENTRES) / SD) ** 2
    value = logsumexp(terms, axis=1)
    share = np.exp(terms - value[:, None])
    return value, (share * (CENTRES - x) / SD**2).sum(axis=1, keepdims=True)


target = pb.FunctionTarget(
    1, log_likelihood, log_prior, lambda n, rng: 3 * rng.standard_normal((n, 1)), names=["theta"]
)
idata = pb.sample_smc(target, draws=1000, ess_threshold=0.9, random_seed=2, progressbar=False)

# %%
# A fine grid of θ gives the exact evidence and mean at every λ.

theta = np.linspace(-15, 15, 20001)[:, None]
width = theta[1, 0] - theta[0, 0]
powers = np.geomspace(1e-3, 1, 100)
log_joint = log_prior(theta)[0] + powers[:, None] * log_likelihood(theta)[0]
exact_log_evidence = logsumexp(log_joint, axis=1) + np.log(width)
exact_mean = np.exp(log_joint - logsumexp(log_joint, axis=1, keepdims=True)) @ theta[:, 0]

# %%
# Each chain finds its own ladder, and all of them lie on the curve. The default keeps half of the effective sample size
# at each stage and needs three stages here. This run keeps nine tenths, which makes the ladder finer.

stats = idata.sample_stats
figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
for chain in range(stats.sizes["chain"]):
    ladder = stats.isel(chain=chain)
    style = {"marker": "o", "linestyle": "none", "markersize": 4, "alpha": 0.7, "color": "C0"}
    axes[0].plot(ladder["beta"], ladder["log_marginal_likelihood"], **style)
    axes[1].plot(ladder["beta"], ladder["ladder_mean"][:, 0], **style)
axes[0].plot(powers, exact_log_evidence, color="C1", zorder=0)
axes[0].set(xscale="log", xlabel="λ", title="log evidence")
axes[1].plot(powers, exact_mean, color="C1", zorder=0)
axes[1].set(xscale="log", xlabel="λ", title="posterior mean of θ")
draws = idata.posterior["x"].values.ravel()
axes[2].hist(draws, bins=80, density=True, alpha=0.45, label="particles at λ = 1")
axes[2].plot(theta[:, 0], np.exp(log_joint[-1] - exact_log_evidence[-1]), color="C1", label="quadrature")
axes[2].set(xlim=(-6, 7), xlabel="θ", yticks=[])
axes[2].legend(frameon=False, fontsize="small")
plt.show()
