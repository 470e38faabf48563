"""Plain and correlated particle Metropolis on a long stochastic volatility: effective draws a CPU second.

``python correlated_pmmh.py plain correlated [--rows 2000] [--seeds 1 2 3] [--draws 1000] [--correlation 0.99]
[--particles 64]`` simulates the series and prints a line for each. The last two options are for correlated chains, and
have the package's defaults. Both kinds alternate in one process, so that other work affects both. CPU seconds are those
of the draws that are kept.
"""

import argparse
import time
import warnings

import arviz as az
import numpy as np
import pymc as pm

import ppl_backends as pb
from ppl_backends.kernels.particle.metropolis import ParticleMetropolis

NAMES = ["mu", "rho", "sigma"]
KINDS = {
    "plain": {"correlation": 0.0, "draws": 400, "tune": 250},
    "correlated": {"draws": 1000, "tune": 300},
}


def stochastic_volatility(rows):
    """Return the model on simulated data."""
    rng, (mu, rho, sigma) = np.random.default_rng(11), (-1.0, 0.95, 0.3)
    x, y = mu + sigma / np.sqrt(1 - rho**2) * rng.standard_normal(), np.empty(rows)
    for t in range(rows):
        if t:
            x = mu + rho * (x - mu) + sigma * rng.standard_normal()
        y[t] = np.exp(x / 2) * rng.standard_normal()
    with pm.Model() as model:
        free = {"mu": pm.Normal("mu", 0, 2), "rho": pm.TruncatedNormal("rho", 0, 1, lower=-1, upper=1)}
        free["sigma"] = pm.Deterministic("sigma", pm.InverseGamma("variance", 3, 0.5) ** 0.5)
        pb.StateSpace("y", pb.state_space.stochastic_volatility(), observed=y, **free)
    return model


class Clock:
    """CPU time of the steps that are kept: the algorithm's own step, with the time at the first of them."""

    def __init__(self):
        self.step, self.begun = ParticleMetropolis.step, None

    def __call__(self, algorithm, state, rng, tune):
        """Make a step."""
        if not tune and self.begun is None:
            self.begun = time.process_time()
        return self.step(algorithm, state, rng, tune)


def line(kind, model, seed, **more):
    """Return the line of the table of one run."""
    clock = Clock()
    ParticleMetropolis.step = lambda *arguments: clock(*arguments)
    start = {"mu": -1.0, "rho": 0.95, "variance": 0.09}
    options = {
        "filter": "bootstrap",
        "initvals": start,
        "random_seed": seed,
        "progressbar": False,
        **KINDS[kind],
        **more,
    }
    idata = pb.sample_pmmh(model, **options)
    seconds = time.process_time() - clock.begun
    ParticleMetropolis.step = clock.step
    ess = az.ess(idata, var_names=NAMES)
    rates = ", ".join(f"{float(ess[name]) / seconds:.1f}" for name in NAMES)
    means = ", ".join(f"{float(idata.posterior[name].mean()):.3f}" for name in NAMES)
    size = int(idata.sample_stats["n_particles"][0, -1])
    rhat = float(az.rhat(idata, var_names=NAMES).to_array().max())
    label = f"{kind}, ρ = {more['correlation']}" if "correlation" in more else kind
    return f"| {seed} | {label} | {size} | {seconds:.0f} | {rates} | {rhat:.3f} | {means} |"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--draws", type=int)
    parser.add_argument("--correlation", type=float)
    parser.add_argument("--particles", type=int)
    given = parser.parse_args()
    asked = {"correlation": given.correlation, "n_particles": given.particles}
    moved = {name: value for name, value in asked.items() if value is not None}
    both = {} if given.draws is None else {"draws": given.draws}
    model = stochastic_volatility(given.rows)
    print("| seed | filters | particles | CPU s | effective draws a CPU s of μ, ρ, σ | R-hat | means |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for seed in given.seeds:
        for kind in given.kinds:
            print(line(kind, model, seed, **both, **(moved if kind == "correlated" else {})), flush=True)
