"""
Survival times with censoring
=============================

Forty-two children with leukaemia received the drug 6-MP or a placebo (Freireich and others 1963). The time to relapse
is known for 30 of them; the others were in remission when they were last seen. Does the drug help, and does the risk of
a relapse change with time?
"""

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import ppl_backends as pb

drug = [6, 6, 6, 7, 10, 13, 16, 22, 23], [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]  # relapses, last seen without
placebo = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23], []
weeks = np.concatenate([*drug, *placebo]).astype(float)
relapsed = np.repeat([1.0, 0.0, 1.0, 0.0], [len(drug[0]), len(drug[1]), len(placebo[0]), len(placebo[1])])
treated = np.repeat([1.0, 0.0], [21, 21])

# %%
# A Weibull model has the hazard :math:`h(t) = k t^{k-1} e^{-\eta}` with :math:`\eta = k(a + b\,\mathrm{treated})`. A
# relapse contributes log h(t) minus the cumulative hazard, and a censored time contributes minus the cumulative hazard
# alone. With k = 1 the risk is constant.


def weibull(shape=True, effect=True):
    """Return the model; without ``shape`` the hazard is constant, without ``effect`` the drug does nothing."""
    with pm.Model() as model:
        a = pm.Normal("log_scale", 2.5, 1)
        b = pm.Normal("effect", 0, 1) if effect else 0.0
        k = pm.LogNormal("shape", 0, 0.5) if shape else 1.0
        z = k * (np.log(weeks) - a - b * treated)
        log_hazard = pm.math.log(k) + z - np.log(weeks)
        pm.Potential("log_likelihood", (relapsed * log_hazard - pm.math.exp(z)).sum())
    return model


fits = {
    "drug works, risk changes": pb.sample_smc(weibull(), random_seed=1, progressbar=False),
    "drug works, constant risk": pb.sample_smc(weibull(shape=False), random_seed=1, progressbar=False),
    "no effect, risk changes": pb.sample_smc(weibull(effect=False), random_seed=1, progressbar=False),
}
table = pb.compare_evidence(fits)
table

# %%
# The data clearly show an effect, and have little information about the shape. The survival curves of the first model
# show the effect in weeks. Bands are 90 % intervals.

posterior = fits["drug works, risk changes"].posterior
a, b, k = (posterior[name].to_numpy().ravel()[:, None] for name in ("log_scale", "effect", "shape"))
t = np.linspace(0.1, 36, 100)
fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for which, name, colour in ((1, "6-MP", "C0"), (0, "placebo", "C1")):
    curves = np.exp(-np.exp(k * (np.log(t) - a - b * which)))
    ax.fill_between(t, *np.quantile(curves, [0.05, 0.95], axis=0), color=colour, alpha=0.3)
    ax.plot(t, curves.mean(0), color=colour, label=name)
    mine = treated == which
    order = np.lexsort((-relapsed[mine], weeks[mine]))
    kaplan_meier = np.cumprod(1 - relapsed[mine][order] / (21 - np.arange(21)))
    ax.step(np.r_[0, weeks[mine][order]], np.r_[1, kaplan_meier], where="post", color=colour, lw=1, ls=":")
ax.set(xlabel="weeks", ylabel="share without a relapse", ylim=(0, 1))
ax.legend(title="dotted: Kaplan–Meier")
plt.show()

ratio = np.exp(-k * b)
print(
    f"hazard ratio {np.median(ratio):.2f}, 90 % interval {np.quantile(ratio, 0.05):.2f} to {np.quantile(ratio, 0.95):.2f}"
)
