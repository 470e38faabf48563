"""Particle filters at fixed parameters: unbiasedness, variance of the log likelihood, particles per CPU second.

Linear Gaussian (100 rows) and stochastic volatility (400 rows), the series of the tests. The exact likelihood is that
of the Kalman filter, and for the volatility that of the trapezoid rule on a fine grid of states. ``python
particle_filters.py [--runs 2000] [--numba] [--series volatility] [--methods sqmc guided] [--size 0]``.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import ppl_backends as pb
from ppl_backends.targets.state_space.compiled import CompiledFilter
from ppl_backends.targets.state_space.filter import Filter, draw_seeds

DATA = Path(__file__).parents[2] / "tests" / "state_space" / "data"
SIZES = {"bootstrap": (100, 1000), "guided": (100, 1000), "auxiliary": (100, 1000), "sqmc": (128, 1024)}


def linear_gaussian():
    """Return model, data, parameters and exact log likelihood."""
    y = np.loadtxt(DATA / "linear_gaussian.csv", skiprows=1)
    return pb.state_space.linear_gaussian(), y, {"rho": 0.9, "sigma_x": 0.5, "sigma_y": 0.5}, -113.29398


def stochastic_volatility():
    """Return the same."""
    y = np.loadtxt(DATA / "stochastic_volatility.csv", skiprows=1)
    return pb.state_space.stochastic_volatility(), y, {"mu": -1.0, "rho": 0.95, "sigma": 0.3}, -383.95637


def row(name, case, method, n_x, runs, rng, by_numba=False):
    """Print one line of the table."""
    model, y, point, exact = case
    parameters = {key: np.full(runs, value) for key, value in point.items()}
    filters = Filter(model, y, method=method)
    filters = CompiledFilter(filters, parameters) if by_numba else filters
    seeds = draw_seeds(rng, runs)
    filters.run(parameters, n_x, seeds)  # compiles the programs of all blocks
    start = time.process_time()
    log_ratio = filters.run(parameters, n_x, seeds) - exact
    speed = runs * n_x * len(y) / (time.process_time() - start) / 1e6
    ratio = np.exp(log_ratio)
    z = (ratio.mean() - 1) / ratio.std(ddof=1) * np.sqrt(runs)
    of, mean = f"{method}, Numba" if by_numba else method, f"{ratio.mean():.4f} ({z:+.1f} se)"
    print(f"| {name} | {of} | {n_x} | {mean} | {log_ratio.var():.5f} | {speed:.1f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--numba", action="store_true", help="the compiled form beside it")
    parser.add_argument("--series", choices=("linear Gaussian", "volatility"))
    parser.add_argument("--methods", nargs="+", choices=SIZES, default=SIZES)
    parser.add_argument("--size", type=int, choices=(0, 1), help="only the smaller or the larger filters")
    given = parser.parse_args()
    runs = given.runs
    rng = np.random.default_rng(1)
    print("| model | method | particles | mean of L̂ / L | variance of log L̂ | M particle-steps per CPU s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, make in (("linear Gaussian", linear_gaussian), ("volatility", stochastic_volatility)):
        if given.series not in (None, name):
            continue
        case = make()
        for method in given.methods:
            for n_x in SIZES[method] if given.size is None else SIZES[method][given.size :][:1]:
                row(name, case, method, n_x, runs, rng)
                if given.numba and method in ("bootstrap", "guided"):
                    row(name, case, method, n_x, runs, rng, by_numba=True)
