"""
Worths of items from rankings
=============================

Sixty people rank four items. Thurstone's model gives each item a worth, adds noise for each person, and ranks the sums.
The probability of a ranking is that of a rectangle of three Gaussian differences. The rankings are simulated, so the
worths are known. Items a and b are nearly equally good.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import ppl_backends as pb

items, worth = list("abcd"), np.array([0.8, 0.7, -0.3, -1.2])
rng = np.random.default_rng(1)
rankings = np.argsort(-(worth + rng.standard_normal((60, 4))), axis=1)
print("first three:", ["".join(items[i] for i in ranking) for ranking in rankings[:3]])

# %%
# Only differences of worths matter, so worths sum to zero. The posterior is close to a Gaussian, so importance sampling
# from Laplace's approximation is enough.

with pm.Model(coords={"item": items}) as model:
    worths = pm.ZeroSumNormal("worth", 1.0, dims="item")
    pb.ThurstoneRanking("ranking", worths, observed=rankings)
idata = pb.sample_importance(
    model, approximation="laplace", draws=500, chains=4, cores=1, random_seed=1, progressbar=False
)
draws = idata.posterior["worth"].stack(sample=("chain", "draw")).transpose("item", "sample").values
better = (draws[:, None] > draws[None]).mean(axis=-1)
np.fill_diagonal(better, np.nan)

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=1)
left.vlines(range(4), low, high, color="C0", linewidth=2, label="90 % interval")
left.plot(range(4), middle, "o", color="C0", label="median")
left.plot(range(4), worth - worth.mean(), "x", color="C3", markersize=8, label="worth of the simulation")
left.set(xticks=range(4), xticklabels=items, xlabel="item", ylabel="worth less the mean", title="worths")
left.legend(frameon=False)
image = right.imshow(better, vmin=0, vmax=1, cmap="RdBu_r")
for i in range(4):
    for j in range(4):
        if i != j:
            right.text(
                j,
                i,
                f"{better[i, j]:.2f}",
                ha="center",
                va="center",
                color="w" if abs(better[i, j] - 0.5) > 0.3 else "k",
            )
right.set(xticks=range(4), yticks=range(4), xticklabels=items, yticklabels=items, xlabel="than", ylabel="worth more")
right.set_title("posterior probability")
plt.show()
