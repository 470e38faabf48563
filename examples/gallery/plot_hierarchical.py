"""
A hierarchical model: batting averages
======================================

Eighteen baseball players were at bat 45 times each in the spring of 1970 (Efron and Morris 1975). How well does each of
them hit? The raw average of 45 attempts is noisy, and a hierarchical model pulls it towards the mean of all players.
The averages over the rest of the season show which estimate was closer.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import ppl_backends as pb

hits = np.array([18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7])
rest = [0.346, 0.298, 0.276, 0.222, 0.273, 0.270, 0.263, 0.210, 0.269, 0.230, 0.264, 0.256, 0.303, 0.264, 0.226, 0.286]
rest = np.array([*rest, 0.316, 0.200])  # averages over the rest of the season


def players(hierarchical):
    """Return the model with a common spread of abilities, or with one ability for all players."""
    with pm.Model(coords={"player": np.arange(18)}) as model:
        mean = pm.Normal("mean", -1, 1)
        ability = mean
        if hierarchical:
            spread = pm.HalfNormal("spread", 0.5)
            z = pm.Normal("z", 0, 1, dims="player")
            ability = mean + spread * z
        pm.Deterministic("average", pm.math.sigmoid(ability) * np.ones(18), dims="player")
        pm.Binomial("hits", 45, logit_p=ability * np.ones(18), observed=hits, dims="player")
    return model


varied = pb.sample_smc(players(True), random_seed=1, progressbar=False)
alike = pb.sample_smc(players(False), random_seed=1, progressbar=False)

# %%
# Do the players differ at all? The evidence of "all alike" is higher, because 45 attempts are too few to show a
# difference. The hierarchical model includes both cases, because its posterior of the spread includes values near zero.

pb.compare_evidence({"players differ": varied, "all alike": alike})

# %%
# The posterior means (dots) lie between the raw averages (crosses) and the common mean. They are closer to the averages
# of the rest of the season (circles).

draws = varied.posterior["average"].to_numpy().reshape(-1, 18)
estimate = draws.mean(0)
low, high = np.quantile(draws, [0.05, 0.95], axis=0)
rows = np.arange(18)
fig, ax = plt.subplots(figsize=(7, 5), layout="constrained")
ax.hlines(rows, low, high, color="C0", alpha=0.4, label="90 % interval")
ax.plot(estimate, rows, "o", color="C0", label="hierarchical estimate")
ax.plot(hits / 45, rows, "x", color="C1", label="45 attempts")
ax.plot(rest, rows, "o", mfc="none", color="k", label="rest of the season")
ax.invert_yaxis()
ax.set(xlabel="batting average", ylabel="player", yticks=rows, yticklabels=rows + 1)
ax.legend()
plt.show()

# %%
# These are the squared errors, summed over players:

print(f"45 attempts:           {np.sum((hits / 45 - rest) ** 2):.3f}")
print(f"hierarchical estimate: {np.sum((estimate - rest) ** 2):.3f}")
