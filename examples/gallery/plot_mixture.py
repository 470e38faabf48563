"""
How many components? Velocities of galaxies
===========================================

The velocities of 82 galaxies form clusters (Roeder 1990). Each cluster is a component of a mixture of normals. The
evidence says how many components the data support.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import ppl_backends as pb

velocity = np.array(
    """9172 9350 9483 9558 9775 10227 10406 16084 16170 18419 18552 18600 18927 19052 19070 19330 19343 19349 19440 19473
    19529 19541 19547 19663 19846 19856 19863 19914 19918 19973 19989 20166 20175 20179 20196 20215 20221 20415 20629 20795
    20821 20846 20875 20986 21137 21492 21701 21814 21921 21960 22185 22209 22242 22249 22314 22374 22495 22746 22747 22888
    22914 23206 23241 23263 23484 23538 23542 23666 23706 23711 24129 24285 24289 24366 24717 24990 25633 26690 26995 32065
    32789 34279""".split(),
    dtype=float,
)
velocity /= 1000  # in 1,000 km/s


def mixture(k):
    """Return a mixture of ``k`` normal densities with ordered means and one standard deviation."""
    with pm.Model() as model:
        sd = pm.LogNormal("sd", 0, 1)
        if k == 1:
            pm.Normal("velocity", pm.Normal("means", 20, 10), sd, observed=velocity)
        else:
            ordered = pm.distributions.transforms.ordered
            means = pm.Normal("means", 20, 10, shape=k, transform=ordered, initval=np.linspace(10, 30, k))
            weights = pm.Dirichlet("weights", np.ones(k))
            pm.NormalMixture("velocity", weights, means, sd, observed=velocity)
    return model


fits = {
    f"{k} component{'s' * (k > 1)}": pb.sample_smc(mixture(k), draws=500, chains=2, random_seed=1, progressbar=False)
    for k in (1, 2, 3)
}

# %%
# The ordered transform keeps one of the k! orders of the means, so its density integrates to 1/k!.
# ``compare_evidence`` divides by this integral; a difference of the ``log_evidence`` attributes would be off by log k!.

table = pb.compare_evidence(fits)
table

# %%
# The picture has the data and the posterior predictive density of three components.

posterior = fits["3 components"].posterior
means, weights = (posterior[name].to_numpy().reshape(-1, 1, 3) for name in ("means", "weights"))
sds = posterior["sd"].to_numpy().reshape(-1, 1, 1)
grid = np.linspace(5, 38, 300)[:, None]
densities = (weights * np.exp(-0.5 * ((grid - means) / sds) ** 2) / (sds * np.sqrt(2 * np.pi))).sum(-1)

fig, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", width_ratios=[2, 1])
axes[0].hist(velocity, 40, density=True, color="0.8", label="82 galaxies")
axes[0].fill_between(grid[:, 0], *np.quantile(densities, [0.05, 0.95], axis=0), color="C0", alpha=0.3)
axes[0].plot(grid[:, 0], densities.mean(0), color="C0", label="three components, 90 % band")
axes[0].set(xlabel="velocity (1,000 km/s)", ylabel="density", ylim=(0, 0.35))
axes[0].legend(loc="upper right")
pb.plot_evidence(table, ax=axes[1])
plt.show()
