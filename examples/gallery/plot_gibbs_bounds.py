"""
Bounds on the risk along the iterations
=======================================

Variational inference for Gibbs posteriors minimises a PAC-Bayes bound, so every iteration has a valid certificate. The
left panel is for the AUC loss on Pima, and every step uses only ``batch_size`` pairs of rows. The data on the right have
the size of Adult, 32,561 rows and 1.9·10⁸ pairs of the two classes, and take seconds too.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression


def standardise(X):
    """Scale columns to mean 0 and standard deviation 1."""
    return (X - X.mean(axis=0)) / X.std(axis=0)


def adult_size():
    """Simulate correlated predictors and noisy labels of the size of Adult."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(32_561, 14)) + 0.5 * rng.normal(size=(32_561, 1))
    score = X @ rng.normal(size=14) + 2.0 * rng.normal(size=len(X))
    return standardise(X), np.where(score > np.sort(score)[-7842], 1.0, -1.0)


pima = load_binary_regression("pima", scaling="unit")
data = {"Pima": (pima.X[:, 1:], 2.0 * pima.y - 1, 100.0), "size of Adult": (*adult_size(), 1000.0)}

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
for axis, (name, (X, y, rate)) in zip(axes, data.items(), strict=True):
    posterior = pb.GibbsPosterior((0.0, 1.0), "auc", X, y, learning_rate=rate)
    for batch in (1, 10, 50) if name == "Pima" else (50,):
        started = time.perf_counter()
        q = pb.fit_gibbs_vi(
            posterior, family="diagonal", sample_pairs=True, batch_size=batch, n_iterations=2000, random_seed=1
        )
        certificate = pb.certify(posterior, q)
        overhead = certificate.bound - certificate.expected_risk - certificate.kl / rate
        iterations, risk, kl = q.trace.T
        label = f"{batch} pair{'s' * (batch > 1)} a step, {time.perf_counter() - started:.1f} s"
        axis.semilogx(iterations, risk + kl / rate + overhead, label=label)
    pairs = int((y > 0).sum() * (y < 0).sum())
    axis.set(title=f"{name}: {pairs:,} pairs", xlabel="iteration")
    axis.legend()
axes[0].set_ylabel("95 % bound on the AUC risk")
plt.show()

# %%
# The next picture shows the effect of λ for the 0–1 loss on Pima. The mean risk falls with λ, the divergence from the
# prior grows, and the bound is lowest in between. Choosing this λ adds the logarithm of the number of candidates to the
# bound.

X = pima.X
grid = np.geomspace(20, 2000, 12)
posterior = pb.GibbsPosterior((0.0, 1.0), "zero_one", X, 2.0 * pima.y - 1, learning_rate=1.0)
path = pb.gibbs.fit_gibbs_vi_path(posterior, grid)
bounds = [
    pb.certify(posterior.with_learning_rate(rate), q, candidates=len(grid)).bound
    for rate, q in zip(grid, path, strict=True)
]

figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
axis.semilogx(grid, bounds, "o-", label="95 % bound, any of these λ")
axis.semilogx(grid, [q.expected_risk for q in path], "s--", label="empirical risk under q")
axis.set(xlabel="learning rate λ", ylabel="0–1 risk", ylim=(0.15, 0.6), title="Pima, full covariance")
axis.legend()
plt.show()
