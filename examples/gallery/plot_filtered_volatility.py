"""
Filtered and smoothed volatility
================================

The data are returns of 300 days whose log variance is an autoregression, with two weeks of missing data. The filter
estimates the volatility of a day from the days up to it, and the smoother from all days.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import ppl_backends as pb

rng = np.random.default_rng(4)
mu, rho, sigma = -1.0, 0.95, 0.3
x = np.empty(300)
x[0] = mu + sigma / np.sqrt(1 - rho**2) * rng.standard_normal()
for t in range(1, 300):
    x[t] = mu + rho * (x[t - 1] - mu) + sigma * rng.standard_normal()
y = np.exp(x / 2) * rng.standard_normal(300)
y[150:164] = np.nan

with pm.Model(coords={"day": np.arange(300)}) as model:
    pb.StateSpace(
        "y",
        pb.state_space.stochastic_volatility(),
        mu=pm.Normal("mu", 0, 2),
        rho=pm.Uniform("rho", -1, 1),
        sigma=pm.HalfNormal("sigma", 1),
        observed=y,
        dims="day",
    )

values = {"mu": mu, "rho": rho, "sigma": sigma}
found = pb.particle_filter(model, values=values, n_particles=500, forecast=20, random_seed=1)

# %%
# Eight filters give the log likelihood and its error.

attrs = found.posterior.attrs
print(f"log likelihood {attrs['log_likelihood']:.2f}, standard error {attrs['log_likelihood_se']:.2f}")
print(f"variance of one filter's log likelihood {attrs['log_likelihood_variance']:.3f}")

# %%
# Bands are 90 % intervals of the volatility, exp(x/2). The filter's bands are wider where data are missing, and in the
# forecast. The smoother's bands are narrower, and widest in the middle of the gap.

day = np.arange(300)
states = found.posterior["states"].values.reshape(-1, 300)
smooth = np.exp(np.quantile(states, [0.05, 0.5, 0.95], axis=0) / 2)
band = np.exp(found["filtered"]["quantile"].sel(level=[0.05, 0.5, 0.95]).values / 2)
ahead = np.exp(found["forecast"]["quantile"].sel(level=[0.05, 0.5, 0.95]).values / 2)

figure, axes = plt.subplots(2, 1, figsize=(8, 6), sharex=True, sharey=True, layout="constrained")
axes[0].fill_between(day, band[:, 0], band[:, 2], color="C0", alpha=0.3, label="filtered, 90 %")
axes[0].plot(day, band[:, 1], color="C0")
axes[0].fill_between(
    day[-1] + 1 + np.arange(20), ahead[:, 0], ahead[:, 2], color="C1", alpha=0.3, label="forecast, 90 %"
)
axes[0].plot(day[-1] + 1 + np.arange(20), ahead[:, 1], color="C1")
axes[1].fill_between(day, smooth[0], smooth[2], color="C2", alpha=0.3, label="smoothed, 90 %")
axes[1].plot(day, smooth[1], color="C2")
for axis in axes:
    axis.plot(day, np.exp(x / 2), color="black", linewidth=0.8, label="true volatility")
    axis.axvspan(150, 163, color="gray", alpha=0.2, linewidth=0)
    axis.set(ylabel="volatility", ylim=(0, 3.6))
    axis.legend(loc="upper left", ncols=3)
axes[1].set_xlabel("day (no data in the gray stretch)")
plt.show()
