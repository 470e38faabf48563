"""
Is the method calibrated?
=========================

The left column has ranks of true values among draws of expectation propagation, for a logistic regression with 30
observations. The right column is for a broken method, whose draws are too close to the mean. A calibrated method has
ranks inside the grey bands.
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import ppl_backends as pb

x = np.linspace(-2, 2, 30)
with pm.Model() as model:
    beta = pm.Normal("beta", 0, 1, shape=2)
    pm.Bernoulli("y", logit_p=beta[0] + beta[1] * x, observed=np.zeros(30, dtype=int))


def narrow(target, n, rng):
    """Return draws that are too near to the mean."""
    q = pb.fit_ep(target, progressbar=False)
    return q.mean + 0.6 * (q.sample(n, rng) - q.mean)


options = {"n": 400, "random_seed": 1, "progressbar": False}
figure, axes = plt.subplots(2, 2, figsize=(7, 5.5), layout="constrained")
for column, method in zip(axes.T, ("ep", narrow), strict=True):
    pb.plot_sbc(pb.sbc(model, method=method, **options), ["beta[1]"], axes=column)
axes[0, 0].set_title("expectation propagation")
axes[0, 1].set_title("a method that is too narrow")
plt.show()
