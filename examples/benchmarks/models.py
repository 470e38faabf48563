"""The models of the benchmarks in PyMC, with the priors of the tables."""

import numpy as np
import pymc as pm
from peers import problems


def logistic_regression(name, half_scale=False, prior_sd=None):
    """Return logistic regression; ``prior_sd`` None is N(0, 20²) on the intercept and N(0, 5²) on the rest."""
    design, y = problems.regression_data(name, half_scale)
    sd = problems.wide_prior(design.shape[1]) if prior_sd is None else prior_sd
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, sd, shape=design.shape[1])
        pm.Bernoulli("y", logit_p=design @ beta, observed=y.astype(int))
    return model


def eight_schools():
    """Return non-centred, as posteriordb's reference has it."""
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        trans = pm.Normal("trans", 0, 1, shape=8)
        pm.Normal("y", mu + tau * trans, problems.EFFECT_ERRORS, observed=problems.EFFECTS)
    return model


def hierarchical_regression():
    """Return logistic regression whose intercept and slope vary between 20 groups, non-centred."""
    X, group, y, groups = problems.hierarchical_data()
    with pm.Model() as model:
        beta, tau = pm.Normal("beta", 0, 2.5, shape=2), pm.HalfNormal("tau", 1, shape=2)
        z = pm.Normal("z", 0, 1, shape=(groups, 2))
        pm.Bernoulli("y", logit_p=(X * (beta + tau * z)[group]).sum(axis=1), observed=y.astype(int))
    return model


def cox_process(cells):
    """Return the log-Gaussian Cox process of the Finnish pines on a square grid, whitened."""
    counts, mean, factor = problems.cox_data(cells)
    with pm.Model() as model:
        z = pm.Normal("z", 0, 1, shape=len(counts))
        field = mean + pm.math.dot(factor, z)
        pm.Poisson("y", pm.math.exp(field) / len(counts), observed=counts.astype(int))
    return model


def bimodal():
    """Return two separated modes of unequal mass."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, problems.BIMODAL_PRIOR_SD, shape=problems.BIMODAL_DIM)
        terms = [
            np.log(share) - 0.5 * ((x - centre) ** 2).sum() / problems.MODE_SD**2
            for share, centre in zip(problems.MODE_SHARES, (problems.MODE, -problems.MODE), strict=True)
        ]
        pm.Potential("two_modes", pm.math.logaddexp(*terms))
    return model


MODELS = {
    "Pima": lambda: logistic_regression("pima"),
    "German": lambda: logistic_regression("german_credit", prior_sd=1.0),
    "Sonar-I": lambda: logistic_regression("sonar", prior_sd=1.0),
    "Sonar-5": lambda: logistic_regression("sonar", half_scale=True),
    "Musk-I": lambda: logistic_regression("musk", prior_sd=1.0),
    "EightSchools": eight_schools,
    "Hierarchical": hierarchical_regression,
    "Cox-400": lambda: cox_process(20),
    "Bimodal": bimodal,
}
