"""
Are the summers getting warmer? A Stan program with evidence, LOO and sensitivity
=================================================================================

**The question.** A biological station at Kilpisjärvi in the far north of Finland has measured the summer temperature
since 1952. Is there a trend? If so, the station adds a climate control to the experiments that it plans, which is
expensive. Before it pays it asks two more things: does the model predict, and does the answer depend on the prior?

The data are those of ``kilpisjarvi_mod`` in `posteriordb <https://github.com/stan-dev/posteriordb>`_: mean temperatures
of June, July and August from 1952 to 2013, measured by the Finnish Meteorological Institute (open data, CC BY 4.0).
"""

import arviz as az
import matplotlib.pyplot as plt
import numpy as np

import ppl_backends as pb

year = np.arange(1952, 2014)
# fmt: off
temperature = np.array([
    8.3, 10.9, 9.4, 8.1, 8.1, 7.7, 8.6, 9.1, 11, 10.1, 7.6, 8.8, 8.3, 7.2, 9.3, 8.8, 7.6, 10.5, 11, 8.9, 11.3, 10, 10.1, 6.4,
    8.2, 8.4, 9.5, 9.9, 10.6, 7.6, 7.7, 8.1, 8.4, 9.7, 9.5, 7.3, 10.3, 9.6, 10.3, 9.8, 9, 9.1, 9.5, 8.7, 9.9, 10.5, 9.4, 9,
    9, 9.7, 11.4, 10.7, 10.1, 10.8, 10.4, 10.3, 8.8, 9.8, 8.8, 10.8, 8.6, 11.1,
])
# fmt: on

# %%
# The program
# -----------
# It is a linear regression like posteriordb's ``kilpisjarvi``, with three differences. Time is in decades from the middle
# of the record, so ``slope`` is in degrees a decade. ``sigma`` has a proper prior, without which there is no evidence.
# ``prior_only`` separates prior and likelihood for the package, and ``log_lik`` has the log likelihood of every year.
# With ``trend`` 0 the program is the model without a trend.

PROGRAM = """
data {
  int<lower=0> N;
  vector[N] decade;
  vector[N] y;
  int<lower=0, upper=1> trend;
  real<lower=0> slope_scale;
  int<lower=0, upper=1> prior_only;
}
parameters {
  real level;
  real slope;
  real<lower=0> sigma;
}
transformed parameters {
  vector[N] mean_y = level + trend * slope * decade;
}
model {
  level ~ normal(10, 5);
  slope ~ normal(0, slope_scale);
  sigma ~ exponential(1);
  if (!prior_only) {
    y ~ normal(mean_y, sigma);
  }
}
generated quantities {
  vector[N] log_lik;
  for (n in 1 : N) {
    log_lik[n] = normal_lpdf(y[n] | mean_y[n], sigma);
  }
}
"""


def data(trend=1, slope_scale=1.0 / 3):
    """Return the data of the program; posteriordb's prior of the slope is a third of a degree a decade."""
    decade = (year - year.mean()) / 10
    return dict(N=62, decade=decade, y=temperature, trend=trend, slope_scale=slope_scale, prior_only=0)


# %%
# The evidence
# ------------
# SMC from the prior fits both models. The program is compiled once, and used with both data sets.

fits = {
    name: pb.sample_smc(PROGRAM, data=data(trend), random_seed=1, progressbar=False, log_likelihood=True)
    for name, trend in (("a trend", 1), ("no trend", 0))
}
table = pb.compare_evidence(fits)
table

# %%
# The pictures have the data with the fitted trend, and the posterior of the trend.

posterior = fits["a trend"].posterior
level, slope = (posterior[name].to_numpy().ravel() for name in ("level", "slope"))
lines = level[:, None] + slope[:, None] * (year - year.mean()) / 10
low, high = np.quantile(lines, [0.025, 0.975], axis=0)
fig, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
axes[0].plot(year, temperature, "o", ms=4, color="0.4", label="summer")
axes[0].plot(year, lines.mean(0), label="posterior mean")
axes[0].fill_between(year, low, high, alpha=0.3, label="95 % interval of the mean")
axes[0].set(xlabel="year", ylabel="temperature, °C", ylim=(5, 12))
axes[0].legend(loc="lower right")
axes[1].hist(slope, 60, density=True, alpha=0.6)
axes[1].axvline(0, color="k", lw=0.8)
axes[1].set(xlabel="trend, °C a decade", ylabel="posterior density")
plt.show()
print(f"trend {slope.mean():.2f} °C a decade, probability that it is positive {np.mean(slope > 0):.3f}")

# %%
# Does it predict?
# ----------------
# Leave-one-out cross-validation asks a different question from the evidence: how well is one year predicted from all
# others? A trend that is small compared with the scatter of single summers improves a prediction only a little.

comparison = az.compare(fits)
comparison

# %%
# Does the answer depend on the prior?
# ------------------------------------
# :func:`~ppl_backends.sensitivity` raises the prior and the likelihood to powers near one, and measures how far each
# posterior moves. A dash in the column ``diagnosis`` means that the prior does not matter.

sensitivity = pb.sensitivity(
    fits["a trend"], PROGRAM, data=data(), var_names=["level", "slope", "sigma"], random_seed=1
)
sensitivity.table.T

# %%

pb.plot_sensitivity(sensitivity)
plt.show()

# %%
# The *posterior* of the trend does not depend on its prior, and the *Bayes factor* does. A wide prior has most of its
# mass at trends of several degrees a decade, which the data exclude, so the evidence falls. The report should contain
# the curve.

scales = np.array([0.05, 0.1, 0.2, 1 / 3, 1.0, 3.0])
without = fits["no trend"].posterior.attrs
factors, errors = [], []
for scale in scales:
    run = pb.sample_smc(PROGRAM, data=data(1, scale), draws=1000, random_seed=1, progressbar=False)
    attrs = run.posterior.attrs
    factors.append(attrs["log_evidence"] - without["log_evidence"])
    errors.append(np.hypot(attrs["log_evidence_se"], without["log_evidence_se"]))

fig, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ax.errorbar(scales, factors, 2 * np.array(errors), fmt="o-", capsize=3, label="estimate and 2 standard errors")
ax.axhline(0, color="k", lw=0.8)
ax.axhline(np.log(10), color="k", lw=0.8, ls=":", label="ten to one for a trend")
ax.set(xscale="log", xlabel="prior standard deviation of the trend, °C a decade", ylabel="log Bayes factor for a trend")
ax.legend(loc="lower center")
plt.show()

# %%
# **The decision.** The trend is 0.2 °C a decade, and positive with a probability of 0.99. The evidence is five to one
# for a trend under posteriordb's prior, and between six to one for and one and a half to one against it under the
# priors of the curve. Leave-one-out prefers the trend too, but only by one standard error, because single summers
# scatter by a degree. The station does not pay for climate control in experiments of a few years, where the trend is
# far below this scatter. It pays for it in experiments that will run for decades.
