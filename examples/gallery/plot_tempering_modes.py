"""
Two modes by SMC and by parallel tempering
==========================================

The posterior in three dimensions has a wide mode with 30 % of the mass, and a narrow mode with 70 %. Tempering SMC raises
the likelihood to powers from 0 to 1 and passes each power once. At small powers nearly all of the mass is in the wide mode.
A run with few particles may lose the narrow mode and never find it again. The replicas of parallel tempering pass each power
many times.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import logsumexp

import ppl_backends as pb

DIM, PRIOR_SD = 3, 3.0
SHARES, CENTRES, SDS = np.array([0.3, 0.7]), np.array([-2.5, 2.5]), np.array([1.0, 0.3])


def normal(x, centre, sd):
    """Return the log density of a spherical normal, and its slope."""
    z = (x - centre) / sd
    return -0.5 * (z**2).sum(axis=1) - DIM * np.log(sd * np.sqrt(2 * np.pi)), -z / sd


def log_prior(x):
    """Return the log density of the prior, and its slope."""
    return normal(x, 0.0, PRIOR_SD)


def log_likelihood(x):
    """Return the log of the posterior over the prior, and its slope; the log evidence is zero."""
    parts = [normal(x, centre, sd) for centre, sd in zip(CENTRES, SDS, strict=True)]
    values = np.stack([value for value, _ in parts]) + np.log(SHARES)[:, None]
    total = logsumexp(values, axis=0)
    slope = sum(np.exp(v - total)[:, None] * part[1] for v, part in zip(values, parts, strict=True))
    prior, prior_slope = log_prior(x)
    return total - prior, slope - prior_slope


target = pb.FunctionTarget(DIM, log_likelihood, log_prior, lambda n, rng: PRIOR_SD * rng.standard_normal((n, DIM)))


def narrow(idata):
    """Return which draws are in the narrow mode ``(chain, draw)``."""
    return idata.posterior["x"].values.sum(axis=2) > 0


# %%
# There are eight independent runs of SMC with 40 particles each, each with its own ladder, and eight chains of parallel
# tempering, which evaluate the density far more often. The number of particles is small to show the problem. The result of
# SMC is flagged.

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    smc = pb.sample_smc(target, draws=40, chains=8, ess_threshold=0.5, len_chain=None, random_seed=1, progressbar=False)
    tempering = pb.sample_tempering(target, draws=1000, tune=400, chains=8, random_seed=1, progressbar=False)
print(
    f"SMC is {'trusted' if smc.posterior.attrs['log_evidence_trusted'] else 'flagged: ' + smc.posterior.attrs['warnings']}"
)
attrs = tempering.posterior.attrs
print(f"round trips: {attrs['round_trips']}, expected: {attrs['expected_round_trips']:.0f}")
print(f"log evidence: {attrs['log_evidence']:.3f} ± {attrs['log_evidence_se']:.3f}, exact: 0")

# %%
# The left panel has the share of the narrow mode by run, and the dashed line is exact. SMC loses the mode in some runs.
# No chain of tempering loses it, but their shares differ, because each chain changes mode only some dozens of times.
# The middle panel has one chain at β = 1. A replica changes mode only at small β. The right panel has the local
# communication barrier, which is high where the distribution changes most.

figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
for place, idata in enumerate((smc, tempering)):
    shares = narrow(idata).mean(axis=1)
    axes[0].scatter(place + np.linspace(-0.15, 0.15, len(shares)), shares, color=f"C{place}")
axes[0].axhline(SHARES[1], color="0.6", linestyle="--", label="exact share")
axes[0].set(xlim=(-0.5, 1.5), ylim=(-0.03, 1.03), xticks=[0, 1], xticklabels=["SMC", "tempering"])
axes[0].set(title="share of the narrow mode, by run")
axes[0].legend(loc="lower right")
axes[1].plot(tempering.posterior["x"].values[0, :400, 0], color="C1", linewidth=0.8)
axes[1].set(xlabel="scan", title="first coordinate at β = 1")
stats = tempering.sample_stats
axes[2].plot(stats["beta"][1:], stats["local_barrier"][1:], marker="o", markersize=4, color="C1")
axes[2].set(xscale="log", xlabel="β", title="local barrier λ(β)")
plt.show()
