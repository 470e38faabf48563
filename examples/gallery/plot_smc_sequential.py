"""
Evidence as the data come in
============================

:func:`ppl_backends.sample_ibis` adds observations one after the other, and predicts each observation before it is
added. The sums of these log scores are the log evidences of two models at every time, so their difference is the log
Bayes factor at every time. The data are counts whose rate rises slowly. One model has a trend, and the other does not.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import ppl_backends as pb

rng = np.random.default_rng(3)
time = np.linspace(0, 1, 60)
counts = rng.poisson(np.exp(1.0 + 0.9 * time))


def model(n, trend):
    """Return a model of Poisson counts with or without a trend."""
    with pm.Model() as built:
        t, y = pm.Data("t", time[:n]), pm.Data("y", counts[:n])
        level = pm.Normal("level", 0, 2)
        slope = pm.Normal("slope", 0, 1) if trend else 0.0
        pm.Poisson("observed", pm.math.exp(level + slope * t), observed=y)
    return built


options = {"draws": 1000, "random_seed": 1, "progressbar": False}
runs = {name: pb.sample_ibis(model(40, trend), **options) for name, trend in (("constant", False), ("trend", True))}

# %%
# Twenty more counts arrive. ``update_smc`` appends them to the data of the model, and continues from the result.

new = {"t": time[40:], "y": counts[40:]}
runs = {
    name: pb.update_smc(run, model(40, name == "trend"), new, random_seed=2, progressbar=False)
    for name, run in runs.items()
}
for name, run in runs.items():
    attrs = run.posterior.attrs
    print(
        f"{name:9} log evidence {attrs['log_evidence']:.2f} ± {attrs['log_evidence_se']:.2f}, of the new counts "
        f"{attrs['log_evidence_new']:.2f} ± {attrs['log_evidence_new_se']:.2f}"
    )

# %%
# Each chain has its own curve. The evidence for the trend appears when the rate has risen.

scores = {name: run.prequential["log_score"].values.cumsum(axis=1) for name, run in runs.items()}
figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
axes[0].plot(time, counts, "o", markersize=4)
axes[0].set(xlabel="time", title="counts")
axes[1].plot(time, (scores["trend"] - scores["constant"]).T, color="C0", alpha=0.7)
axes[1].axvline(time[40], color="0.6", linestyle=":")
axes[1].axhline(0, color="0.6", linewidth=1)
axes[1].set(xlabel="time", title="log Bayes factor, trend against constant")
plt.show()
