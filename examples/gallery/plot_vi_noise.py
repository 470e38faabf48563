"""
Quasi-random noise for variational inference
============================================

Gradients of the evidence lower bound are averages over noise. With scrambled Sobol points in place of random points
their variance falls nearly as 1/N² instead of 1/N (Buchholz, Wenzel & Mandt 2018). Stochastic ascent on growing samples
then converges at the square of the rate.
"""

import matplotlib.pyplot as plt
import numpy as np

import ppl_backends as pb
from ppl_backends.approximations.noise import normal_noise
from ppl_backends.datasets import load_binary_regression

data = load_binary_regression("pima")
signed = data.X * (2 * data.y - 1)[:, None]


def log_density(theta):
    """Return the log of a logistic likelihood times an N(0, I) prior, without constants, and its gradient."""
    s = theta @ signed.T
    return -np.logaddexp(0, -s).sum(axis=1) - 0.5 * (theta**2).sum(axis=1), (1 / (1 + np.exp(s))) @ signed - theta


target = pb.FunctionTarget(signed.shape[1], log_density)
q = pb.fit_vi(target, family="dense", random_seed=1, progressbar=False)

# %%
# The left panel has the variance of the gradient in the means at the fit, from 50 draws each. The right panel has steps
# of constant length towards N(0, I) in two dimensions, with samples that grow from 1 to 20,000. The gap is the maximum
# of the bound minus the bound.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
sizes = 2 ** np.arange(2, 12)
for qmc, label in ((False, "random"), (True, "scrambled Sobol")):
    rng = np.random.default_rng(0)
    variances = []
    for n in sizes:
        draws = [
            target.log_density_and_gradient(q.place(normal_noise(n, q.dim, rng, qmc)))[1].mean(axis=0)
            for _ in range(50)
        ]
        variances.append(np.var(draws, axis=0).sum())
    left.loglog(sizes, variances, "o-", label=label)

    growth = np.geomspace(1, 20_000, 1500).astype(int)
    mean, gaps = np.array([0.1, 0.1]), []
    for n in growth:
        mean = mean - 0.01 * (mean + normal_noise(n, 2, rng, qmc).mean(axis=0))
        gaps.append(0.5 * mean @ mean)
    right.semilogy(gaps, label=label, linewidth=0.8)
left.set(xlabel="points N", ylabel="variance of the gradient", title="logistic regression, Pima")
right.set(xlabel="iteration", ylabel="gap of the bound", title="growing samples")
left.legend()
plt.show()
