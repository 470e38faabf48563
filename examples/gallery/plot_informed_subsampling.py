"""
Informed subsets of the data: AR(2) and probit
==============================================

A chain that uses a thousand of a hundred thousand observations has the wrong posterior if these are chosen at random.
It has nearly the right posterior if their summary statistics are close to those of all observations (Maire, Friel &
Alquier 2019). This page has two examples of that paper: an autoregression of order two, and a probit regression.
"""

# %%
# The autoregression is a regression on two lags, with an unknown scale. Its rows are independent given the parameters,
# which the step checks before it takes a subset. Metropolis on all data gives the reference. ``spread`` is the standard
# deviation, in posterior standard deviations, by which a subset may shift the mode. It is infinite for uniform subsets.
# The likelihood is an exponential family in the sums of squares and products of an observation and its two lags. The
# step finds these six statistics in the model, and chooses subsets by them. A probit has no such statistics, so its
# subsets are chosen by the scores.

import warnings

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy.stats import gaussian_kde

import ppl_backends as pb
from ppl_backends.errors import SamplerWarning
from ppl_backends.targets.factors import Factors, FactorsTarget, Probit

warnings.simplefilter("ignore", SamplerWarning)  # the warnings say that the steps are approximate, and by how much
rng = np.random.default_rng(1)
N, SUBSET = 100_000, 1000
y = np.zeros(N + 2)
for t in range(2, N + 2):
    y[t] = 0.7 * y[t - 1] - 0.3 * y[t - 2] + rng.normal()

with pm.Model() as autoregression:
    theta = pm.Normal("theta", 0, 1, shape=2)
    sigma = pm.HalfNormal("sigma", 2)
    pm.Normal("y", theta[0] * y[1:-1] + theta[1] * y[:-2], sigma, observed=y[2:])


def run(model, names, step, draws, tune=500):
    """Return draws ``(draws, parameters)``."""
    idata = pb.sample_mcmc(model, step=step, draws=draws, tune=tune, chains=1, random_seed=2, progressbar=False)
    return np.concatenate([idata.posterior[name].values.reshape(draws, -1) for name in names], axis=1)


informed = pb.steps.InformedSubsampling(subset=SUBSET, correction=None, swaps=20)
corrected = pb.steps.InformedSubsampling(subset=SUBSET, correction="gradient")
curvature = pb.steps.InformedSubsampling(subset=SUBSET, correction="curvature")
uniform = pb.steps.InformedSubsampling(subset=SUBSET, spread=np.inf, correction=None, swaps=20)
steps = {"informed": informed, "gradient correction": corrected, "curvature correction": curvature, "uniform": uniform}
draws = {"all data": run(autoregression, ["theta", "sigma"], pb.steps.Independent(), 2000)}
draws |= {name: run(autoregression, ["theta", "sigma"], step, 8000) for name, step in steps.items()}


def report(draws):
    """Print errors of means and standard deviations, relative to those of the full data."""
    reference = draws["all data"]
    for name, x in draws.items():
        bias = np.abs(x.mean(axis=0) - reference.mean(axis=0)) / reference.std(axis=0)
        ratio = x.std(axis=0) / reference.std(axis=0)
        print(f"{name:20s} bias {bias.max():5.2f} sd at most, sds × {ratio.min():.2f} to {ratio.max():.2f}")


report(draws)

# %%
# The probit regression has the same size and five coefficients.

design = np.c_[np.ones(N), rng.normal(size=(N, 4))]
labels = design @ np.array([0.2, 0.8, -0.5, 0.3, 0.0]) + rng.normal(size=N) > 0
probit = FactorsTarget(Factors(design, 0.0, Probit(labels), 0.0, 1.0))
probit_draws = {"all data": run(probit, ["theta"], pb.steps.ScalableMetropolis(), 4000)}
probit_draws |= {name: run(probit, ["theta"], step, 8000) for name, step in steps.items()}
report(probit_draws)

# %%
# Uniform subsets give posteriors that are several times too wide. Informed subsets make them wider by the few per cent
# that the spread of 0.3 implies. With the gradient correction they are right to about √(2/1000), four per cent, and with
# the curvature correction they are right up to Monte Carlo error.

figure, axes = plt.subplots(1, 2, figsize=(10, 3.6))
for axis, found, column, label in (
    (axes[0], draws, 0, "first lag"),
    (axes[1], probit_draws, 1, "a probit coefficient"),
):
    centre, sd = found["all data"][:, column].mean(), found["all data"][:, column].std()
    grid = np.linspace(centre - 9 * sd, centre + 9 * sd, 400)
    for name, x in found.items():
        style = {"color": "black", "linewidth": 3, "alpha": 0.4} if name == "all data" else {"linewidth": 1.5}
        axis.plot(grid, gaussian_kde(x[:, column])(grid), label=name, **style)
    axis.set(xlabel=label, yticks=[])
axes[0].legend(frameon=False)
figure.suptitle(f"{SUBSET:,} of {N:,} observations")
figure.tight_layout()
plt.show()
