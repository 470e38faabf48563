"""
A Gaussian vector inside a rectangle
====================================

This page draws from a correlated Gaussian, given that it lies in a rectangle far from its mean. Rejection sampling
under a tilt gives exact, independent draws. Rejection without a tilt would need millions of proposals.
"""

import matplotlib.pyplot as plt
import numpy as np

import ppl_backends as pb

cov = np.array([[1.0, 0.9], [0.9, 1.0]])
lower, upper = np.array([1.5, -0.5]), np.array([4.0, 1.0])
found = pb.rectangle_probability(cov, lower, upper)
inside = pb.sample_truncated(cov, lower, upper, draws=4000, random_seed=1)
print(
    f"log P = {found.log_p:.4f} ({found.method}); {inside.acceptance:.0%} of the proposals accepted, exact: {inside.exact}"
)

# %%
# The left panel has the draws on the contours of the density. The right panel has an autoregression of 60 steps that
# stays above zero. Its mean is away from the bound, and is lower at the ends, which have only one neighbour.

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
grid = np.linspace(-3, 5, 200)
x, y = np.meshgrid(grid, grid)
density = np.einsum("iab,ij,jab->ab", np.array([x, y]), np.linalg.inv(cov), np.array([x, y]))
left.contour(x, y, np.exp(-0.5 * density), levels=5, colors="0.7", linewidths=1)
left.scatter(*inside.draws[:1500].T, s=3, color="C0", alpha=0.5, linewidths=0)
left.add_patch(plt.Rectangle(lower, *(upper - lower), fill=False, edgecolor="C3"))
left.set(xlim=(-3, 5), ylim=(-3, 3), xlabel="$x_1$", ylabel="$x_2$", title="two variables")

time = np.arange(60)
chain = pb.sample_truncated(0.9 ** np.abs(np.subtract.outer(time, time)), lower=0, draws=2000, random_seed=2)
low, middle, high = np.quantile(chain.draws, [0.05, 0.5, 0.95], axis=0)
right.fill_between(time, low, high, color="C0", alpha=0.2, linewidth=0, label="90 % of the draws")
right.plot(time, middle, color="C0", label="median")
right.plot(time, chain.draws[:4].T, color="0.4", linewidth=0.7)
right.axhline(0, color="C3", linewidth=1)
right.set(xlabel="step", ylabel="$x_t$", title="an autoregression above zero")
right.legend(frameon=False)
plt.show()
