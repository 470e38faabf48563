"""Sensitivity, leave-future-out and calibration against refits: the tables of ``docs/methods/sensitivity.md`` and others.

``python examples/benchmarks/after_fit.py sensitivity|lfo|sbc`` prints one table each, with CPU seconds.
"""

from __future__ import annotations

import sys
import time
import warnings

import numpy as np
import pymc as pm
from scipy.special import logsumexp

import ppl_backends as pb
from ppl_backends.checks.distances import compare
from ppl_backends.checks.moving import cloud_of
from ppl_backends.checks.sensitivity import _components, _Quantities
from ppl_backends.datasets import load_binary_regression
from ppl_backends.marginal_likelihood.draws import convergence_of, read_draws
from ppl_backends.targets.protocol import Evaluation
from ppl_backends.targets.wrapped import WrappedTarget

DRAWS = {"draws": 500, "chains": 2, "progressbar": False}


class Powered(WrappedTarget):
    """A target with one component to a power, as a density of its own."""

    factors = likelihood_factors = observations = None

    def __init__(self, target, component, power):
        super().__init__(target)
        self.component, self.power = _components(target, None)[component], power

    def evaluate(self, x, gradient=False):
        parts = self.target.evaluate(x, gradient)
        value, slope = self.component.evaluate(x, gradient)
        value, slope = (self.power - 1) * value, None if slope is None else (self.power - 1) * slope
        if not gradient:
            return Evaluation(parts.log_prior, parts.log_likelihood + value)
        return Evaluation(
            parts.log_prior,
            parts.log_likelihood + value,
            parts.log_prior_gradient,
            parts.log_likelihood_gradient + slope,
        )

    def tempered(self, power):
        return None


def linear():
    """Return a regression with known noise."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 200))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=200)
        pm.Normal("y", pm.math.dot(X, beta), 1, observed=X @ rng.normal(size=200) + rng.normal(size=400))
    return model, None


def means():
    """Return normal means around a common mean."""
    rng = np.random.default_rng(2)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2)
        theta = pm.Normal("theta", mu, tau, shape=200)
        pm.Normal("y", theta, 1, observed=1 + 2 * rng.normal(size=200) + rng.normal(size=200))
    return model, None


def logistic():
    """Return a logistic regression."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(600, 150))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 0.3, shape=150)
        y = (rng.random(600) < 1 / (1 + np.exp(-X @ rng.normal(size=150) / 8))).astype(int)
        pm.Bernoulli("y", logit_p=pm.math.dot(X, beta), observed=y)
    return model, None


def counts():
    """Return counts with an effect each."""
    rng = np.random.default_rng(4)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
        theta = pm.Normal("theta", mu, tau, shape=200)
        pm.Poisson("y", pm.math.exp(theta), observed=rng.poisson(np.exp(2 + 0.7 * rng.normal(size=200))))
    return model, None


def shares():
    """Return binomial counts with an effect each."""
    rng = np.random.default_rng(7)
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
        theta = pm.Normal("theta", mu, tau, shape=200)
        y = rng.binomial(20, 1 / (1 + np.exp(0.5 - rng.normal(size=200))))
        pm.Binomial("y", n=20, logit_p=theta, observed=y)
    return model, None


def overdispersed():
    """Return negative binomial counts in groups of four, with dispersion to be found."""
    rng = np.random.default_rng(8)
    group = np.repeat(np.arange(200), 4)
    rate = np.exp(1.5 + 0.8 * rng.normal(size=200))[group]
    with pm.Model() as model:
        mu, tau, alpha = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1), pm.HalfNormal("alpha", 10)
        theta = pm.Normal("theta", mu, tau, shape=200)
        y = rng.negative_binomial(5, 5 / (5 + rate))
        pm.NegativeBinomial("y", mu=pm.math.exp(theta[group]), alpha=alpha, observed=y)
    return model, None


def robust():
    """Return a regression with Student t noise."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(400, 200))
    with pm.Model() as model:
        beta, sigma = pm.Normal("beta", 0, 1, shape=200), pm.HalfNormal("sigma", 1)
        y = X @ rng.normal(size=200) + rng.standard_t(4, size=400)
        pm.StudentT("y", nu=4, mu=pm.math.dot(X, beta), sigma=sigma, observed=y)
    return model, None


def waiting():
    """Return exponential waiting times in groups of three, as a Stan program."""
    rng = np.random.default_rng(6)
    group = np.repeat(np.arange(200), 3)
    y = rng.exponential(np.exp(0.7 * rng.normal(size=200))[group])
    program = """data { int N; int G; array[N] int g; vector[N] y; }
    parameters { real mu; real<lower=0> tau; vector[G] theta; }
    model { mu ~ normal(0, 2); tau ~ normal(0, 1); theta ~ normal(mu, tau); y ~ exponential(exp(-theta[g])); }"""
    return program, {"N": 600, "G": 200, "g": (group + 1).tolist(), "y": y.tolist()}


MODELS = {
    "200 Poisson effects": counts,
    "200 binomial effects": shares,
    "200 exponential effects in Stan": waiting,
    "200 negative binomial effects": overdispersed,
    "200 normal means, centred": means,
    "linear regression, 200 coefficients": linear,
    "robust regression, 200 coefficients": robust,
    "logistic regression, 150 coefficients": logistic,
}


def moments_of(idata, target, names):
    """Return means and sds of the quantities with their standard errors."""
    found = read_draws(idata, target)
    cloud = cloud_of(found, convergence_of(found, target.names).effective)
    sample = (_Quantities(target, names)(cloud.x), np.full(len(cloud.x), 1 / len(cloud.x)), cloud.unit)
    compared = compare(sample, {}, cloud.n_units, 200, np.random.default_rng(0))
    return [getattr(compared, name)[None] for name in ("mean", "sd", "mean_se", "sd_se")]


def sensitivity():
    """Compare posteriors at powers 0.8 and 1.25 with refits, for the component whose weights have the largest k."""
    print("model | component | power | k | quantities | |z| mean: largest, share > 2 | |z| sd | of weights | CPU s")
    for name, make in MODELS.items():
        program, data = make()
        target = pb.as_target(program, data, cores=1)
        idata = pb.sample_smc(target, initial="laplace", random_seed=1, **DRAWS)
        clock = time.process_time()
        result = pb.sensitivity(idata, target, random_seed=2)
        seconds = time.process_time() - clock
        weighted = pb.sensitivity(idata, target, method="weights", random_seed=2)
        component = result.sources["pareto_k"].unstack("power").max(axis=1).drop("prior", errors="ignore").idxmax()
        names = list(target.parameter_names)
        for power in (0.8, 1.25):
            refit = pb.sample_smc(Powered(target, component, power), initial="laplace", random_seed=3, **DRAWS)
            mean, sd, mean_se, sd_se = moments_of(refit, target, names)
            zs = []
            for source in (result, weighted):
                ours = source.moments.sel(component=component, power=power)
                zs.append(abs(ours["mean"].values - mean) / np.hypot(ours["mean_se"].values, mean_se))
                zs.append(abs(ours["sd"].values - sd) / np.hypot(ours["sd_se"].values, sd_se))
            k, how = result.sources.loc[(component, power), ["pareto_k", "source"]]
            shown = [f"{z.max():.1f}, {np.mean(z > 2):.2f}" for z in zs]
            print(
                f"{name} | {component} | {power} | {k:.2f} ({how}) | {len(mean)} | {shown[0]} | {shown[1]} | "
                f"mean {shown[2]}, sd {shown[3]} | {seconds:.1f}",
                flush=True,
            )


def series():
    """Return three time series."""
    rng = np.random.default_rng(0)
    y = np.zeros(60)
    for t in range(1, 60):
        y[t] = 0.7 * y[t - 1] + rng.normal()
    with pm.Model() as autoregression:
        phi, sigma = pm.Normal("phi", 0, 1), pm.HalfNormal("sigma", 2)
        pm.Normal("y", phi * y[:-1], sigma, observed=y[1:])
    heavy = np.cumsum(rng.standard_t(3, size=60))
    with pm.Model() as walk:
        nu, sigma = pm.Gamma("nu", 2, 0.1), pm.HalfNormal("sigma", 2)
        pm.StudentT("y", nu=nu, mu=heavy[:-1], sigma=sigma, observed=heavy[1:])
    t = np.arange(60)
    with pm.Model() as seasonal:
        beta = pm.Normal("beta", 0, 2, shape=4)
        X = np.stack([np.ones(60), t / 60, np.sin(t / 2), np.cos(t / 2)], axis=1)
        rate = pm.math.exp(pm.math.dot(X, beta))
        pm.Poisson("y", rate, observed=rng.poisson(np.exp(X @ [1.0, 0.8, 0.5, -0.3])))
    return {"AR(1)": autoregression, "random walk, Student t": walk, "seasonal counts": seasonal}


def lfo():
    """Compare one sequential run with a fit of its own for every row."""
    from ppl_backends.targets.first_rows import FirstRows

    print(
        "series | predictions | elpd (Monte Carlo error) | se | exact refits | difference / se | fits | CPU s: lfo, refits"
    )
    for name, model in series().items():
        target = pb.as_target(model, cores=1)
        clock = time.process_time()
        result = pb.lfo(target, draws=1000, chains=2, random_seed=1, progressbar=False)
        seconds, clock = time.process_time() - clock, time.process_time()
        exact = []
        for t in result.pointwise["observation"].values:
            fit = pb.sample_smc(FirstRows(target, int(t)), draws=1000, chains=1, random_seed=int(t), progressbar=False)
            posterior = {str(k): v.values[0] for k, v in fit["posterior"].data_vars.items()}
            density = target.observations.log_likelihood(target.unconstrain(posterior), np.array([int(t)]))[:, 0]
            exact.append(logsumexp(density) - np.log(len(density)))
        difference = result.elpd - np.sum(exact)
        print(
            f"{name} | {len(exact)} | {result.elpd:.2f} ({result.mcse:.3f}) | {result.se:.2f} | {np.sum(exact):.2f} | "
            f"{difference / result.se:.4f} | {result.n_fits} | {seconds:.1f}, {time.process_time() - clock:.1f}",
            flush=True,
        )


def pima(link):
    """Return a regression on the Pima data."""
    X, y, *_ = load_binary_regression("pima")
    with pm.Model() as model:
        eta = pm.math.dot(X, pm.Normal("beta", 0, 1, shape=X.shape[1]))
        if link == "logit":
            pm.Bernoulli("y", logit_p=eta, observed=y.astype(int))
        else:
            pm.Bernoulli("y", p=pm.math.invprobit(eta), observed=y.astype(int))
    return model


def sbc():
    """Calibrate EP on the Pima regressions, and SMC on a small model, each beside a twin that is too narrow."""
    print(
        "model, method | simulations | smallest p of chi2, of ECDF (Bonferroni) | coverage of 0.9 | calibrated | CPU s"
    )

    def narrow(target, n, rng):
        q = pb.fit_ep(target, progressbar=False)
        return q.mean + 0.8 * (q.sample(n, rng) - q.mean)

    for link in ("probit", "logit"):
        for method in ("ep", narrow):
            show(f"Pima {link}", pb.sbc(pima(link), method=method, n=1000, random_seed=1, progressbar=False))
    with pm.Model() as small:
        mu, s = pm.Normal("mu", 0, 1), pm.HalfNormal("s", 1)
        pm.Normal("y", mu, s, observed=np.zeros(8))
    show("normal, unknown mean and sd", pb.sbc(small, method="smc", n=500, random_seed=1, progressbar=False))


def show(name, result):
    """Print a row."""
    table, k = result.table, len(result.labels)
    print(
        f"{name}, {result.method} | {len(result.ranks)} | {result.p_value:.2g}, {min(1, k * table['p_ecdf'].min()):.2g} | "
        f"{table['coverage_0.9'].min():.3f} to {table['coverage_0.9'].max():.3f} | {result.calibrated} | "
        f"{result.cpu_seconds:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for part in sys.argv[1:] or ("sensitivity", "lfo", "sbc"):
        {"sensitivity": sensitivity, "lfo": lfo, "sbc": sbc}[part]()
