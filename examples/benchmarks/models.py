"""The models of the benchmarks in PyMC form, with the priors that the tables name."""

import numpy as np
import pymc as pm

from ppl_backends.datasets import load_binary_regression


def logistic_regression(name, half_scale=False, prior_sd=None):
    """Logistic regression; ``prior_sd`` None is N(0, 20²) on the intercept and N(0, 5²) on the rest."""
    data = load_binary_regression(name)
    design = np.array(data.X, dtype=float)
    if half_scale:
        design[:, 1:] *= 0.5
    sd = np.r_[20.0, np.full(design.shape[1] - 1, 5.0)] if prior_sd is None else prior_sd
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, sd, shape=design.shape[1])
        pm.Bernoulli("y", logit_p=design @ beta, observed=np.asarray(data.y, dtype=int))
    return model


MODELS = {
    "Pima": lambda: logistic_regression("pima"),
    "Sonar-I": lambda: logistic_regression("sonar", prior_sd=1.0),
    "Sonar-5": lambda: logistic_regression("sonar", half_scale=True),
    "Musk-I": lambda: logistic_regression("musk", prior_sd=1.0),
}
