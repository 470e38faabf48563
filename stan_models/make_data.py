"""Write the data files of this folder: ``python stan_models/make_data.py``.

Real data come from :mod:`ppl_backends.datasets`, or stand here as a table; the rest is drawn from the models with a
fixed seed, at the values named below.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ppl_backends.datasets import load_binary_regression, load_finpines

FOLDER = Path(__file__).parent


def binary_regression(name: str, prior: str) -> dict[str, Any]:
    """A binary regression set with the prior scales of Chopin & Ridgway (2017)."""
    X, y, *_ = load_binary_regression(name)
    scale = {"gaussian": (20.0, 5.0), "cauchy": (10.0, 2.5)}[prior]
    n, p = X.shape
    return {"N": n, "P": p, "X": X.round(4), "y": y, "prior_scale": [scale[0], *[scale[1]] * (p - 1)]}


def eight_schools() -> dict[str, Any]:
    """Rubin (1981)."""
    return {"J": 8, "y": [28, 8, -3, 7, -1, 1, 18, 12], "sigma": [15, 10, 16, 11, 9, 11, 10, 18]}


def hierarchical_logit(rng: np.random.Generator) -> dict[str, Any]:
    """300 responses in 20 groups; beta = (-0.5, 1), tau = (0.8, 0.5), correlation 0.4."""
    n, groups = 300, 20
    covariance = np.array([[0.64, 0.16], [0.16, 0.25]])
    gamma = rng.multivariate_normal([-0.5, 1.0], covariance, size=groups)
    group = np.sort(rng.integers(groups, size=n))
    X = np.column_stack([np.ones(n), rng.normal(size=n).round(3)])
    y = rng.random(n) < 1 / (1 + np.exp(-(X * gamma[group]).sum(axis=1)))
    return {"N": n, "J": groups, "P": 2, "group": group + 1, "X": X, "y": y.astype(int)}


def poisson_regression(rng: np.random.Generator, groups: int = 0) -> dict[str, Any]:
    """120 counts; beta = (0.5, -0.4, 0.3), exposures between 0.5 and 2, tau = 0.5 where there are groups."""
    n = 120
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 2)).round(3)])
    log_exposure = np.log(rng.uniform(0.5, 2.0, size=n)).round(3)
    eta = log_exposure + X @ [0.5, -0.4, 0.3]
    data: dict[str, Any] = {"N": n, "P": 3, "X": X, "log_exposure": log_exposure, "prior_sd": 2.5}
    if groups:
        group = np.arange(n) % groups
        eta = eta + 0.5 * rng.normal(size=groups)[group]
        data |= {"J": groups, "group": group + 1}
    return {**data, "y": rng.poisson(np.exp(eta))}


def log_gaussian_cox(cells: int = 16) -> dict[str, Any]:
    """The 126 Finnish pine saplings, with the mean, deviation and range of Christensen, Roberts & Rosenthal (2005)."""
    points = load_finpines()
    counts, *_ = np.histogram2d(*points.T, bins=cells, range=[[0, 1], [0, 1]])
    variance = 1.91
    mean = np.log(len(points)) - variance / 2
    return {"G": cells, "y": counts.astype(int).ravel(), "mu": mean, "sigma": np.sqrt(variance), "beta": 1 / 33}


def stochastic_volatility(rng: np.random.Generator) -> dict[str, Any]:
    """200 returns; mu = -1, phi = 0.95, sigma = 0.25."""
    h = np.empty(200)
    h[0] = -1 + 0.25 / np.sqrt(1 - 0.95**2) * rng.normal()
    for t in range(1, len(h)):
        h[t] = -1 + 0.95 * (h[t - 1] + 1) + 0.25 * rng.normal()
    return {"T": len(h), "y": (np.exp(h / 2) * rng.normal(size=len(h))).round(4)}


def lotka_volterra() -> dict[str, Any]:
    """Pelts traded by the Hudson's Bay Company 1900-1920, in thousands; hares and lynxes."""
    hares = "30 47.2 70.2 77.4 36.3 20.6 18.1 21.4 22 25.4 27.1 40.3 57 76.6 52.3 19.5 11.2 7.6 14.6 16.2 24.7"
    lynxes = "4 6.1 9.8 35.2 59.4 41.7 19 13 8.3 9.1 7.4 8 12.3 19.5 45.7 51.1 29.7 15.8 9.7 10.1 8.6"
    pelts = np.column_stack([np.array(hares.split(), float), np.array(lynxes.split(), float)])
    return {"N": 20, "ts": np.arange(1.0, 21.0), "y": pelts[1:], "y_init": pelts[0]}


def finite_mixture(rng: np.random.Generator) -> dict[str, Any]:
    """200 draws of 0.3 N(-2, 1) + 0.5 N(1, 0.7^2) + 0.2 N(4, 0.5^2)."""
    component = rng.choice(3, size=200, p=[0.3, 0.5, 0.2])
    y = np.array([-2.0, 1.0, 4.0])[component] + np.array([1.0, 0.7, 0.5])[component] * rng.normal(size=200)
    return {"N": 200, "K": 3, "y": y.round(4)}


def all_data() -> dict[str, dict[str, Any]]:
    """Program → data."""
    streams = [np.random.default_rng(seed) for seed in np.random.SeedSequence(20).spawn(5)]
    data = {f"probit_{prior}": binary_regression("plasma", prior) for prior in ("gaussian", "cauchy")}
    data |= {f"logit_{prior}": binary_regression("pima", prior) for prior in ("gaussian", "cauchy")}
    data |= {f"eight_schools_{form}": eight_schools() for form in ("centered", "noncentered")}
    data |= {
        "hierarchical_logit": hierarchical_logit(streams[0]),
        "poisson_regression": poisson_regression(streams[1]),
        "poisson_random_effects": poisson_regression(streams[2], groups=15),
        "log_gaussian_cox": log_gaussian_cox(),
        "stochastic_volatility": stochastic_volatility(streams[3]),
        "lotka_volterra": lotka_volterra(),
        "finite_mixture": finite_mixture(streams[4]),
    }
    return {name: {**values, "prior_only": 0} for name, values in data.items()}


def main() -> None:
    """Write ``name.data.json`` for every program."""
    for name, values in all_data().items():
        plain = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in values.items()}
        (FOLDER / f"{name}.data.json").write_text(json.dumps(plain, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
