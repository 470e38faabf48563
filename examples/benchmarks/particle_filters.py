"""Particle filters at fixed parameters: unbiasedness, variance of the log likelihood, particles per CPU second.

Linear Gaussian (100 rows) and stochastic volatility (400 rows), data simulated here. The exact likelihood is the Kalman
filter's, and for the volatility that of a fine grid of states. ``python particle_filters.py [--runs 2000]``.
"""

import argparse
import time

import numpy as np

import ppl_backends as pb
from ppl_backends.targets.state_space.compiled import CompiledFilter
from ppl_backends.targets.state_space.filter import Filter, draw_seeds

SIZES = {"bootstrap": (100, 1000), "guided": (100, 1000), "auxiliary": (100, 1000), "sqmc": (128, 1024)}


def linear_gaussian(rng):
    """Return model, data, parameters and exact log likelihood."""
    rho, sd = 0.9, 0.5
    x = sd / np.sqrt(1 - rho**2) * rng.standard_normal()
    y, mean, variance, exact = np.empty(100), 0.0, sd**2 / (1 - rho**2), 0.0
    for t in range(100):
        if t:
            x = rho * x + sd * rng.standard_normal()
            mean, variance = rho * mean, rho**2 * variance + sd**2
        y[t] = x + sd * rng.standard_normal()
        total = variance + sd**2
        exact -= 0.5 * ((y[t] - mean) ** 2 / total + np.log(2 * np.pi * total))
        mean, variance = mean + variance / total * (y[t] - mean), variance * sd**2 / total
    return pb.state_space.linear_gaussian(), y, {"rho": rho, "sigma_x": sd, "sigma_y": sd}, exact


def stochastic_volatility(rng):
    """Return the same; the grid has steps of sigma / 2."""
    mu, rho, sigma = -1.0, 0.95, 0.3
    stationary = sigma / np.sqrt(1 - rho**2)
    x, y = mu + stationary * rng.standard_normal(), np.empty(400)
    grid = mu + np.arange(-8 * stationary, 8 * stationary, sigma / 2)
    moves = np.exp(-0.5 * ((grid - mu - rho * (grid[:, None] - mu)) / sigma) ** 2) / np.sqrt(2 * np.pi) / 2
    density, exact = np.exp(-0.5 * ((grid - mu) / stationary) ** 2) / np.sqrt(2 * np.pi) * sigma / 2 / stationary, 0.0
    for t in range(400):
        if t:
            x = mu + rho * (x - mu) + sigma * rng.standard_normal()
            density = density @ moves
        y[t] = np.exp(x / 2) * rng.standard_normal()
        density = density * np.exp(-0.5 * (grid + y[t] ** 2 * np.exp(-grid))) / np.sqrt(2 * np.pi)
        exact, density = exact + np.log(density.sum()), density / density.sum()
    return pb.state_space.stochastic_volatility(), y, {"mu": mu, "rho": rho, "sigma": sigma}, exact


def row(name, case, method, n_x, runs, rng, by_numba=False):
    """Print one line of the table."""
    model, y, point, exact = case
    parameters = {key: np.full(runs, value) for key, value in point.items()}
    filters = Filter(model, y, method=method)
    filters = CompiledFilter(filters, parameters) if by_numba else filters
    filters.run(parameters, n_x, draw_seeds(rng, runs))  # compiles
    seeds, start = draw_seeds(rng, runs), time.process_time()
    log_ratio = filters.run(parameters, n_x, seeds) - exact
    speed = runs * n_x * len(y) / (time.process_time() - start) / 1e6
    ratio = np.exp(log_ratio)
    z = (ratio.mean() - 1) / ratio.std(ddof=1) * np.sqrt(runs)
    of, mean = f"{method}, Numba" if by_numba else method, f"{ratio.mean():.4f} ({z:+.1f} se)"
    print(f"| {name} | {of} | {n_x} | {mean} | {log_ratio.var():.5f} | {speed:.1f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2000)
    runs = parser.parse_args().runs
    rng = np.random.default_rng(1)
    print("| model | method | particles | mean of L̂ / L | variance of log L̂ | M particle-steps per CPU s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, make in (("linear Gaussian", linear_gaussian), ("volatility", stochastic_volatility)):
        case = make(rng)
        for method, sizes in SIZES.items():
            for n_x in sizes:
                row(name, case, method, n_x, runs, rng)
                if method in ("bootstrap", "guided"):
                    row(name, case, method, n_x, runs, rng, by_numba=True)
