"""Sensitivity, leave-future-out and calibration against refits: the tables of ``docs/methods/sensitivity.md`` and others.

``python examples/benchmarks/after_fit.py sensitivity|effects|lfo|sbc`` prints one table each, with CPU seconds.
"""

from __future__ import annotations

import sys
import time
import warnings
from functools import partial

import numpy as np
import pymc as pm
from scipy.special import digamma, expit, gammaln, logsumexp

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


def effects(groups, likelihood):
    """Return θ_g ~ N(μ, τ²), with μ ~ N(0, 2²) and half-normal τ, under ``likelihood(θ, more) -> value, slopes``.

    Coordinates are μ, log τ, and one more with a normal prior (log of a dispersion), before the effects.
    """

    def prior(x):
        mu, log_tau, more, theta = x[:, 0], x[:, 1], x[:, 2], x[:, 3:]
        tau = np.exp(log_tau)
        z = (theta - mu[:, None]) / tau[:, None]
        value = -(mu**2) / 8 - tau**2 / 2 + (1 - groups) * log_tau - (z**2).sum(axis=1) / 2 - (more - 2) ** 2 / 2
        slope = np.column_stack(
            [
                -mu / 4 + z.sum(axis=1) / tau,
                -(tau**2) + 1 - groups + (z**2).sum(axis=1),
                2 - more,
                -z / tau[:, None],
            ]
        )
        return value, slope

    def evaluate(x):
        value, more, theta = likelihood(x[:, 3:], x[:, 2])
        return value, np.column_stack([np.zeros((len(x), 2)), more, theta])

    names = ["mu", "log_tau", "log_alpha", *(f"theta[{g}]" for g in range(groups))]
    return pb.FunctionTarget(groups + 3, evaluate, prior, names=names)


def poisson(groups=200):
    """Return Poisson counts, one a group."""
    rng = np.random.default_rng(4)
    y = rng.poisson(np.exp(2 + 0.7 * rng.normal(size=groups)))
    return effects(groups, lambda t, a: ((t * y - np.exp(t)).sum(axis=1), 0 * a, y - np.exp(t)))


def binomial(groups=200):
    """Return binomial counts, one of 20 a group."""
    rng = np.random.default_rng(7)
    y = rng.binomial(20, expit(rng.normal(-0.5, 1, size=groups)))
    return effects(groups, lambda t, a: ((t * y - 20 * np.logaddexp(0, t)).sum(axis=1), 0 * a, y - 20 * expit(t)))


def exponential(groups=200):
    """Return sums of three exponential waiting times a group."""
    rng = np.random.default_rng(6)
    y = rng.exponential(np.exp(0.7 * rng.normal(size=groups)), size=(3, groups)).sum(axis=0)
    return effects(groups, lambda t, a: ((-3 * t - y * np.exp(-t)).sum(axis=1), 0 * a, -3 + y * np.exp(-t)))


def negative_binomial(groups=150):
    """Return negative binomial counts, four a group, with unknown dispersion."""
    rng = np.random.default_rng(8)
    y = rng.negative_binomial(5, 5 / (5 + np.exp(rng.normal(1.5, 0.8, size=groups))), size=(4, groups))

    def likelihood(theta, log_alpha):
        alpha, rate = np.exp(log_alpha)[:, None, None], np.exp(theta)[:, None, :]
        share = (y + alpha) / (rate + alpha)
        value = gammaln(y + alpha) - gammaln(alpha) + alpha * np.log(alpha) + y * np.log(rate)
        value = (value - (y + alpha) * np.log(rate + alpha)).sum(axis=(1, 2))
        in_alpha = digamma(y + alpha) - digamma(alpha) + np.log(alpha) + 1 - np.log(rate + alpha) - share
        return value, (alpha * in_alpha).sum(axis=(1, 2)), (y - rate * share).sum(axis=1)

    return effects(groups, likelihood)


def means(groups=200):
    """Return normal means."""
    rng = np.random.default_rng(2)
    y = rng.normal(1, 5**0.5, size=groups)
    return effects(groups, lambda t, a: (-((y - t) ** 2).sum(axis=1) / 2, 0 * a, y - t))


def regression(kind, n, d, scale):
    """Return a regression with coefficients N(0, scale²)."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, d))
    eta = scale * X @ rng.normal(size=d)
    noise = {"normal": rng.normal(size=n), "student": rng.standard_t(4, size=n), "logistic": rng.logistic(size=n)}[kind]
    y = (eta + noise > 0).astype(float) if kind == "logistic" else eta + noise

    def likelihood(x):
        s = x @ X.T
        if kind == "logistic":
            return (s * y - np.logaddexp(0, s)).sum(axis=1), (y - expit(s)) @ X
        r = y - s
        if kind == "normal":
            return -(r**2).sum(axis=1) / 2, r @ X
        return -2.5 * np.log1p(r**2 / 4).sum(axis=1), (5 * r / (4 + r**2)) @ X

    return pb.FunctionTarget(d, likelihood, lambda x: (-(x**2).sum(axis=1) / (2 * scale**2), -x / scale**2))


MODELS = {
    "200 Poisson effects": poisson,
    "200 binomial effects": binomial,
    "200 exponential effects": exponential,
    "150 negative binomial effects, dispersion": negative_binomial,
    "logistic regression, 200 coefficients": partial(regression, "logistic", 800, 200, 0.2),
    "Student t regression, 200 coefficients": partial(regression, "student", 400, 200, 1.0),
    "200 normal means": means,
    "normal regression, 200 coefficients": partial(regression, "normal", 400, 200, 1.0),
}


def independent(log_likelihood, gradient, prior_mean, prior_sd):
    """Return independent effects, whose posterior is known on a grid: target, draws, and moments under a power."""

    def prior(x):
        z = (x - prior_mean) / prior_sd
        return -(z**2).sum(axis=1) / 2, -z / prior_sd

    def mass(power):
        grid = prior_mean + prior_sd * np.linspace(-6, 6, 4001)
        at = np.broadcast_to(grid[:, None], (4001, EFFECTS))
        log = power * log_likelihood(at) - ((at - prior_mean) / prior_sd) ** 2 / 2
        weight = np.exp(log - log.max(axis=0))
        return grid, weight / weight.sum(axis=0)

    def moments(power):
        grid, weight = mass(power)
        mean = grid @ weight
        return mean, np.sqrt((grid**2) @ weight - mean**2)

    def draws(n, rng):
        grid, weight = mass(1.0)
        cdf = np.cumsum(weight, axis=0) - weight / 2
        return np.stack([np.interp(rng.random(n), cdf[:, j], grid) for j in range(EFFECTS)], axis=1)

    target = pb.FunctionTarget(EFFECTS, lambda x: (log_likelihood(x).sum(axis=1), gradient(x)), prior)
    return target, draws, moments


EFFECTS = 300


def of_counts():
    """Return Poisson counts with an effect each."""
    y = np.random.default_rng(4).poisson(np.exp(2 + 0.7 * np.random.default_rng(5).normal(size=EFFECTS)))
    return independent(lambda t: t * y - np.exp(t), lambda t: y - np.exp(t), 2.0, 0.7)


def of_shares():
    """Return binomial counts, one of 10 an effect."""
    y = np.random.default_rng(4).binomial(10, expit(np.random.default_rng(5).normal(-1, 1, size=EFFECTS)))
    return independent(lambda t: t * y - 10 * np.logaddexp(0, t), lambda t: y - 10 * expit(t), -1.0, 1.0)


def of_waiting():
    """Return sums of two exponential waiting times an effect."""
    y = np.random.default_rng(4).gamma(2, np.exp(np.random.default_rng(5).normal(size=EFFECTS)))
    return independent(lambda t: -2 * t - y * np.exp(-t), lambda t: -2 + y * np.exp(-t), 0.0, 1.0)


def of_overdispersed():
    """Return three negative binomial counts of dispersion 3 an effect."""
    rate = np.exp(1.5 + 0.8 * np.random.default_rng(5).normal(size=EFFECTS))
    y = np.random.default_rng(4).negative_binomial(3, 3 / (3 + rate), size=(3, EFFECTS)).sum(axis=0)
    return independent(
        lambda t: y * t - (y + 9) * np.log(3 + np.exp(t)), lambda t: y - (y + 9) * expit(t - np.log(3)), 1.5, 0.8
    )


INDEPENDENT = {
    "300 Poisson effects": of_counts,
    "300 binomial effects": of_shares,
    "300 exponential effects": of_waiting,
    "300 negative binomial effects": of_overdispersed,
}


def effects_exactly():
    """Compare powers 0.8 and 1.25 of the likelihood with quadrature, coordinate by coordinate; draws are exact too."""
    print("model | power | k | |z| mean: largest, share > 2 | |z| sd | largest |sd / exact - 1| | of weights | CPU s")
    for name, make in INDEPENDENT.items():
        target, draw, exact = make()
        found = {"x": draw(2000, np.random.default_rng(1)).reshape(2, 1000, EFFECTS)}
        clock = time.process_time()
        result = pb.sensitivity(found, target, random_seed=2)
        seconds = time.process_time() - clock
        weighted = pb.sensitivity(found, target, method="weights", random_seed=2)
        for power in (0.8, 1.25):
            mean, sd = exact(power)
            shown = []
            for source in (result, weighted):
                ours = source.moments.sel(component="likelihood", power=power)
                z = abs(ours["mean"].values - mean) / ours["mean_se"].values
                z_sd = abs(ours["sd"].values - sd) / ours["sd_se"].values
                off = abs(ours["sd"].values / sd - 1).max()
                shown.append(
                    f"{z.max():.1f}, {np.mean(z > 2):.2f} | {z_sd.max():.1f}, {np.mean(z_sd > 2):.2f} | {off:.2f}"
                )
            k, how = result.sources.loc[("likelihood", power), ["pareto_k", "source"]]
            print(f"{name} | {power} | {k:.2f} ({how}) | {shown[0]} | {shown[1]} | {seconds:.1f}", flush=True)


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
        target = make()
        idata = pb.sample_smc(target, initial="laplace", random_seed=1, **DRAWS)
        clock = time.process_time()
        result = pb.sensitivity(idata, target, random_seed=2)
        seconds = time.process_time() - clock
        weighted = pb.sensitivity(idata, target, method="weights", random_seed=2)
        component = result.sources["pareto_k"].unstack("power").max(axis=1).drop("prior", errors="ignore").idxmax()
        names = list(target.parameter_names) or ["x"]
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
    for part in sys.argv[1:] or ("sensitivity", "effects", "lfo", "sbc"):
        {"sensitivity": sensitivity, "effects": effects_exactly, "lfo": lfo, "sbc": sbc}[part]()
