"""Gain of scrambled Sobol points over random ones in importance sampling (Chopin & Ridgway 2017, table 1).

Probit regressions with the prior N(0, 20²) on the intercept and N(0, 5²) on the other coefficients, predictors scaled
to standard deviation 0.5. The approximation is Laplace's; EF and Pareto k are those of its Gaussian, the gains those of
the default proposal: ratios of mean squared errors over replicates of equal size, for the evidence and for the
posterior means (the smallest and the median over coefficients).

Run: python examples/benchmarks/importance_rqmc.py [replicates] [points]
"""

import sys
import warnings

import numpy as np
from scipy.special import log_ndtr

from ppl_backends.approximations import fit_laplace
from ppl_backends.datasets import load_binary_regression
from ppl_backends.errors import SamplerWarning
from ppl_backends.importance import sample_importance
from ppl_backends.results.inference_data import group
from ppl_backends.targets import FunctionTarget

DATA_SETS = ("pima", "breast_wisconsin", "plasma", "heart", "australian")


def probit_regression(name):
    """The posterior as a batched NumPy function."""
    data = load_binary_regression(name)
    design = np.where(data.y == 1, 1.0, -1.0)[:, None] * data.X
    sd = np.r_[20.0, np.full(design.shape[1] - 1, 5.0)]

    def log_likelihood(x):
        s = x @ design.T
        value = log_ndtr(s)
        return value.sum(1), np.exp(-0.5 * s**2 - 0.5 * np.log(2 * np.pi) - value) @ design

    def log_prior(x):
        return (-0.5 * (x / sd) ** 2 - 0.5 * np.log(2 * np.pi) - np.log(sd)).sum(1), -x / sd**2

    return FunctionTarget(design.shape[1], log_likelihood, log_prior)


def replicates(target, approximation, points, count, qmc):
    """Evidence (relative to the first) and posterior means of ``count`` independent sets of ``points``."""
    options = {"draws": points, "chains": count, "qmc": qmc, "approximation": approximation, "progressbar": False}
    idata = sample_importance(target, random_seed=1 + qmc, **options)
    proposal, attrs = group(idata, "proposal"), group(idata, "posterior").attrs
    log_weight = proposal["log_weight"].values
    weight = np.exp(log_weight - attrs["log_evidence"])
    means = np.einsum("cn,cnd->cd", weight, proposal["x"].values) / weight.sum(1)[:, None]
    return weight.mean(1), means, attrs


def main(count=64, points=2048):
    """Print the table."""
    warnings.simplefilter("ignore", SamplerWarning)
    print(f"{count} replicates of {points} points; gain = MSE of Monte Carlo / MSE of RQMC")
    header = f"{'data set':18}{'n':>5}{'p':>4}{'EF %':>7}{'k':>6}  {'proposal':10}{'log evidence':>14}{'se':>9}"
    print(f"{header}{'gain evidence':>15}{'gain means: min':>17}{'median':>8}")
    for name in DATA_SETS:
        target = probit_regression(name)
        approximation = fit_laplace(target, progressbar=False)
        gaussian = group(
            sample_importance(
                target, approximation=approximation, proposal="gaussian", chains=count, random_seed=0, progressbar=False
            ),
            "posterior",
        ).attrs
        evidence, means, attrs = replicates(target, approximation, points, count, qmc=True)
        random_evidence, random_means, _ = replicates(target, approximation, points, count, qmc=False)
        gain_means = random_means.var(0) / means.var(0)
        n = len(load_binary_regression(name).y)
        print(
            f"{name:18}{n:5}{target.dim:4}{100 * gaussian['efficiency_factor']:7.1f}{gaussian['pareto_k']:6.2f}"
            f"  {attrs['proposal']:10}"
            f"{attrs['log_evidence']:14.4f}{attrs['log_evidence_se']:9.5f}"
            f"{random_evidence.var() / evidence.var():15.1f}{gain_means.min():17.1f}{np.median(gain_means):8.1f}"
        )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
