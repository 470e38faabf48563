"""Particle marginal Metropolis–Hastings on three series, by this package and by ``particles``.

    python examples/benchmarks/pmmh.py --file pmmh.json
    ENV/bin/python examples/benchmarks/peers/particles_pmmh_worker.py pmmh.json

The first command runs ``sample_pmmh`` (eight chains of 4,000 draws) and writes data, posterior moments and figures. The
second, in an environment of its own, runs the peer on the same data from the posterior mean with the posterior
covariance, and prints both. Compare the effective draws per CPU second.
"""

import argparse
import json
import time
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm

import ppl_backends as pb

SERIES = Path(__file__).parents[2] / "tests" / "state_space" / "data" / "linear_gaussian.csv"


def linear_gaussian():
    """Return an autoregression seen through noise, 100 rows."""
    y = np.loadtxt(SERIES, skiprows=1)
    with pm.Model() as model:
        rho = pm.Uniform("rho", -1, 1)
        scales = {name: pm.Exponential(name, 1) for name in ("sigma_x", "sigma_y")}
        pb.StateSpace("y", pb.state_space.linear_gaussian(), rho=rho, **scales, observed=y)
    return model, y, {"n_particles": 10}


def theta_logistic():
    """Return a population with density dependence, 100 rows; τ₁ and τ₂ are known."""
    rng = np.random.default_rng(3)
    x, y = 0.0, np.empty(100)
    for t in range(100):
        if t:
            x += 0.15 - 0.12 * np.exp(0.1 * x) + 0.35 * rng.standard_normal()
        y[t] = x + 0.3 * rng.standard_normal()
    with pm.Model() as model:
        free = {"tau0": pm.Normal("tau0", 0, 0.5), "sigma_x": pm.Gamma("sigma_x", 2, 2)}
        free |= {"sigma_y": pm.Gamma("sigma_y", 2, 2)}
        pb.StateSpace("y", pb.state_space.theta_logistic(), tau1=0.12, tau2=0.1, **free, observed=y)
    return model, y, {}


def lotka_volterra():
    """Return logs of prey and predators, 50 rows, one Euler step of 0.2 a row."""
    rng = np.random.default_rng(4)
    x, y = 0.1 * rng.standard_normal(2), np.empty((50, 2))
    for t in range(50):
        if t:
            drift = np.array([1 - np.exp(x[1]), np.exp(x[0]) - 1])
            x = x + 0.2 * drift + 0.2 * np.sqrt(0.2) * rng.standard_normal(2)
        y[t] = x + 0.2 * rng.standard_normal(2)
    process = pb.state_space.lotka_volterra(interval=0.2, steps=1)
    with pm.Model() as model:
        free = {"alpha": pm.Gamma("alpha", 2, 2), "gamma": pm.Gamma("gamma", 2, 2), "sigma": pm.Gamma("sigma", 2, 4)}
        known = {"beta": 1.0, "delta": 1.0, "sigma_y": 0.2, "prey": 0.0, "predators": 0.0}
        pb.StateSpace("y", process, **free, **known, observed=y)
    return model, y, {}


SERIES_BY_NAME = {"linear": linear_gaussian, "theta": theta_logistic, "lotka": lotka_volterra}


def measure(name, draws, seed):
    """Run PMMH on one series; return data and figures as JSON takes them."""
    model, y, options = SERIES_BY_NAME[name]()
    target = pb.as_target(model)
    run = {"progressbar": False, **options}
    pb.sample_pmmh(target, draws=10, tune=10, random_seed=seed, **run)  # compiles
    clock = time.process_time()
    idata = pb.sample_pmmh(target, draws=draws, tune=1000, random_seed=seed, **run)
    seconds = time.process_time() - clock
    names = list(idata.posterior.data_vars)
    x = np.stack([idata.posterior[each].values.ravel() for each in names], axis=1)
    summary = az.summary(idata, var_names=names, round_to="none")
    columns = {key: summary[key].tolist() for key in ("mcse_mean", "mcse_sd", "ess_bulk", "r_hat")}
    moments = {"mean": x.mean(axis=0).tolist(), "sd": x.std(axis=0).tolist(), "cov": np.cov(x.T).tolist()}
    return {"names": names, "y": y.tolist(), "seconds": seconds, **moments, **columns}


def main():
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(SERIES_BY_NAME))
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    found = {}
    for name in options.names:
        found[name] = one = measure(name, options.draws, options.seed)
        rates = np.array(one["ess_bulk"]) / one["seconds"]
        print(f"{name}: {one['seconds']:.1f} CPU s, R-hat {max(one['r_hat']):.3f}, ESS a CPU second {rates.round(1)}")
    if options.file:
        options.file.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
