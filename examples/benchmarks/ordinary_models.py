"""Posterior means of ordinary PyMC models: ``sample_smc`` and PyMC's NUTS, both at their defaults on one core.

CPU seconds are those of the process without compilation: each sampler has run once on the same model before. The error
is that of the means of one run with four chains, in posterior standard deviations, as root mean square over the
coordinates of all variables. It is estimated from the spread of chains. Seconds × error² is the cost of a given error.

Run: OMP_NUM_THREADS=1 python examples/benchmarks/ordinary_models.py [--runs 2] [NAME ...]      (prints a markdown table)
"""

import argparse
import logging
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor

import ppl_backends as pb
from ppl_backends.datasets import load_binary_regression
from ppl_backends.results.inference_data import group

sys.path.insert(0, str(Path(__file__).parent))
from hostile_models import MODELS as HOSTILE
from hostile_models import ordered_mixture


def counts(n=400, groups=26):
    """Return a non-centred hierarchy of negative binomial counts."""
    rng = np.random.default_rng(4)
    member, x = np.sort(rng.integers(groups, size=n)), rng.standard_normal(n)
    rate = np.exp((1.0 + 0.7 * rng.standard_normal(groups))[member] + 0.4 * x)
    y = rng.poisson(rate * rng.gamma(2.0, 0.5, size=n))
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1)
        tau, alpha = pm.HalfNormal("tau", 1), pm.Exponential("alpha", 0.5)
        z = pm.Normal("z", 0, 1, shape=groups)
        pm.NegativeBinomial("y", mu=pm.math.exp(a + tau * z[member] + b * x), alpha=alpha, observed=y)
    return model


def pima():
    """Return a logistic regression on the Pima data."""
    X, y, *_ = load_binary_regression("pima")
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 5, shape=X.shape[1])
        pm.Bernoulli("y", logit_p=X @ beta, observed=y)
    return model


def ordinal(n=300):
    """Return an ordered logistic regression with four levels."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, 4))
    y = np.digitize(x @ [1.0, -0.5, 0.0, 0.8] + rng.logistic(size=n), [-1.5, 0.0, 1.5])
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, 1, shape=4)
        ordered = pm.distributions.transforms.ordered
        cut = pm.Normal("cut", 0, 3, shape=3, transform=ordered, initval=[-1.0, 0.0, 1.0])
        pm.OrderedLogistic("y", eta=x @ beta, cutpoints=cut, observed=y)
    return model


def epidemic(steps=60):
    """Return an epidemic as a differential equation, solved by Runge-Kutta steps in a scan."""

    def slopes(s, i, b, g):
        return -b * s * i, b * s * i - g * i

    def step(s, i, b, g, h=0.5):
        k1 = slopes(s, i, b, g)
        k2 = slopes(s + h / 2 * k1[0], i + h / 2 * k1[1], b, g)
        k3 = slopes(s + h / 2 * k2[0], i + h / 2 * k2[1], b, g)
        k4 = slopes(s + h * k3[0], i + h * k3[1], b, g)
        return tuple(v + h / 6 * (p + 2 * q + 2 * r + w) for v, p, q, r, w in zip((s, i), k1, k2, k3, k4, strict=True))

    state, path = (0.99, 0.01), []
    for _ in range(steps):
        state = step(*state, 0.9, 0.3)
        path.append(state[1])
    y = np.random.default_rng(3).poisson(500 * np.array(path[3::4]))
    with pm.Model() as model:
        b, g, first = pm.LogNormal("b", 0, 0.5), pm.LogNormal("g", -1, 0.5), pm.Beta("first", 1, 50)
        (_, i), _ = pytensor.scan(step, outputs_info=[1 - first, first], non_sequences=[b, g], n_steps=steps)
        pm.Poisson("y", 500 * pm.math.clip(i[3::4], 1e-9, 1.0), observed=y)
    return model


def zero_inflated(n=250):
    """Return a zero-inflated Poisson regression."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal((n, 3))
    y = rng.poisson(np.exp(0.8 + x @ [0.3, -0.4, 0.1])) * (rng.random(n) < 0.7)
    with pm.Model() as model:
        a, b, psi = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1, shape=3), pm.Beta("psi", 2, 2)
        pm.ZeroInflatedPoisson("y", psi=psi, mu=pm.math.exp(a + x @ b), observed=y)
    return model


def autoregression(n=200):
    """Return an autoregression of order two."""
    rng = np.random.default_rng(8)
    y = np.zeros(n)
    for t in range(2, n):
        y[t] = 0.6 * y[t - 1] + 0.2 * y[t - 2] + rng.standard_normal()
    with pm.Model() as model:
        rho, sigma = pm.Normal("rho", 0, 0.5, shape=3), pm.HalfNormal("sigma", 2)
        start = pm.Normal.dist(0, 5)
        pm.AR("y", rho=rho, sigma=sigma, constant=True, ar_order=2, init_dist=start, observed=y)
    return model


def item_response(people=100, items=20):
    """Return a two-parameter item response model, 140 coordinates."""
    rng = np.random.default_rng(1)
    ability, difficulty = rng.standard_normal((people, 1)), rng.standard_normal(items)
    discrimination = np.exp(0.4 * rng.standard_normal(items))
    right = rng.random((people, items)) < 1 / (1 + np.exp(-discrimination * (ability - difficulty)))
    with pm.Model() as model:
        theta, b = pm.Normal("theta", 0, 1, shape=people), pm.Normal("b", 0, 1.5, shape=items)
        a = pm.LogNormal("a", 0, 0.5, shape=items)
        pm.Bernoulli("y", logit_p=a * (theta[:, None] - b), observed=right.astype(int))
    return model


def walk(n=200, knots=40):
    """Return a spline whose coefficients are a random walk."""
    rng = np.random.default_rng(2)
    x = np.sort(rng.random(n))
    y = np.sin(6 * x) + 0.5 * x + 0.3 * rng.standard_normal(n)
    with pm.Model() as model:
        sd, sigma = pm.HalfNormal("sd", 1), pm.HalfNormal("sigma", 1)
        level = pm.GaussianRandomWalk("level", sigma=sd, init_dist=pm.Normal.dist(0, 2), shape=knots)
        pm.Normal("y", level[np.minimum((x * knots).astype(int), knots - 1)], sigma, observed=y)
    return model


THREE = [-3.0, 0.0, 3.0]
MODELS = {
    "mixture of three ordered normals, 300 rows": lambda: ordered_mixture(3, THREE, 300, 1),
    "the same data, four normals": lambda: ordered_mixture(4, THREE, 300, 1),
    "negative binomial hierarchy, 400 rows": counts,
    "logistic regression, Pima": pima,
    "ordered logistic regression": ordinal,
    "epidemic, differential equation": epidemic,
    "zero-inflated Poisson regression": zero_inflated,
    "autoregression": autoregression,
    "random walk, 40 knots": walk,
    "item response, two parameters": item_response,
    **{
        name: HOSTILE[name]
        for name in ("eight schools, non-centred", "group effect", "Student regression", "random intercepts")
    },
}


def ours(model, runs):
    """Return CPU seconds of a run, and the chains' means and standard deviations of all variables, ``(chains, dim)``."""
    target = pb.as_target(model)

    def run(seed, chains):
        return pb.sample_smc(target, chains=chains, random_seed=seed, progressbar=False)

    run(0, 1)
    return _timed(model, lambda seed: run(seed, 4), runs)


def nuts(model, runs):
    """Return the same by PyMC's NUTS: four chains of 1,000 draws after 1,000 of tuning."""
    options = {"chains": 4, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
    with model:
        pm.sample(1, tune=1, **options)
        clock = time.process_time()
        pm.sample(1, tune=1, **options)
        compiling = time.process_time() - clock
        seconds, *moments = _timed(model, lambda seed: pm.sample(random_seed=seed, **options), runs)
    return seconds - compiling, *moments


def _timed(model, sample, runs):
    clock = time.process_time()
    posteriors = [group(sample(seed), "posterior") for seed in range(1, runs + 1)]
    seconds = (time.process_time() - clock) / runs
    draws = [
        np.concatenate([np.asarray(p[rv.name]).reshape(*p[rv.name].shape[:2], -1) for rv in model.free_RVs], axis=2)
        for p in posteriors
    ]
    every = np.concatenate(draws)
    return seconds, every.mean(axis=1), every.std(axis=(0, 1))


def error(means, sd):
    """Return the root mean square error of the mean of four chains."""
    return float(np.sqrt((means.var(axis=0, ddof=1) / 4 / sd**2).mean()))


def main():
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--runs", type=int, default=2)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("pymc").setLevel(logging.ERROR)
    print("| model | CPU s: ours | NUTS | error of means: ours | NUTS | s × error², ours / NUTS | means differ by |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    ratios = []
    for name in given.names or MODELS:
        model = MODELS[name]()
        (s, means, sd), (t, others, other_sd) = ours(model, given.runs), nuts(model, given.runs)
        e, f = error(means, sd), error(others, other_sd)
        ratios.append(s * e**2 / (t * f**2))
        apart = np.abs(means.mean(axis=0) - others.mean(axis=0)) / sd
        figures = f"{s:.1f} | {t:.1f} | {e:.4f} | {f:.4f} | {ratios[-1]:.2f} | {apart.max():.3f} sd"
        print(f"| {name} | {figures} |", flush=True)
    print(f"\nGeometric mean of the ratios: {np.exp(np.mean(np.log(ratios))):.2f}")


if __name__ == "__main__":
    main()
