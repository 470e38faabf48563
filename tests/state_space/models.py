"""Models with exact likelihoods, and the likelihood itself, written without the package's filters."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

import ppl_backends as pb

DATA = Path(__file__).parent / "data"
LOG_2PI = np.log(2 * np.pi)
LG_POINT = {"rho": 0.9, "sigma_x": 0.5, "sigma_y": 0.5}
SV_POINT = {"mu": -1.0, "rho": 0.95, "sigma": 0.3}


def normal(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - jnp.log(sd) - 0.5 * LOG_2PI


def stationary(p):
    return p.sigma_x / jnp.sqrt(1 - p.rho**2)


def propose(p, t, x, y, z):
    """Return the exact conditional distribution of the state."""
    mean, variance = (0.0, stationary(p) ** 2) if x is None else (p.rho * x, p.sigma_x**2)
    new_variance = 1 / (1 / variance + 1 / p.sigma_y**2)
    new_mean, sd = new_variance * (mean / variance + y / p.sigma_y**2), jnp.sqrt(new_variance)
    return new_mean + sd * z, normal(new_mean + sd * z, new_mean, sd)


LINEAR = pb.StateSpaceModel(
    initial=lambda p, z: stationary(p) * z,
    transition=lambda p, t, x, z: p.rho * x + p.sigma_x * z,
    log_observation=lambda p, t, x, y: normal(y, x, p.sigma_y),
    log_transition=lambda p, t, x, new: normal(new, p.rho * x, p.sigma_x),
    log_initial=lambda p, x: normal(x, 0.0, stationary(p)),
    proposal=propose,
)

VOLATILITY = pb.StateSpaceModel(
    initial=lambda p, z: p.mu + p.sigma / jnp.sqrt(1 - p.rho**2) * z,
    transition=lambda p, t, x, z: p.mu + p.rho * (x - p.mu) + p.sigma * z,
    log_observation=lambda p, t, x, y: -0.5 * (x + y**2 * jnp.exp(-x) + LOG_2PI),
)


def data(name, rows=None):
    return np.loadtxt(DATA / f"{name}.csv", skiprows=1)[:rows]


def repeated(point, n):
    return {name: np.full(n, value) for name, value in point.items()}


def kalman(y, rho=0.9, sigma_x=0.5, sigma_y=0.5):
    """Log likelihood, and filtered means and variances, of LINEAR; missing rows are NaN."""
    mean, variance, total = 0.0, sigma_x**2 / (1 - rho**2), 0.0
    means, variances = [], []
    for t, row in enumerate(y):
        if t:
            mean, variance = rho * mean, rho**2 * variance + sigma_x**2
        if not np.isnan(row):
            s = variance + sigma_y**2
            total += -0.5 * ((row - mean) ** 2 / s + np.log(s) + LOG_2PI)
            mean, variance = mean + variance / s * (row - mean), variance * sigma_y**2 / s
        means.append(mean)
        variances.append(variance)
    return total, np.array(means), np.array(variances)
