"""The problems of the comparison with peers, in a form that needs no modelling language.

Every problem has independent normal priors on a flat vector and a log likelihood for both NumPy and JAX, so that
samplers that take functions can run it. Inverse distribution functions give variables with other priors, which does not
change the evidence. ``models.py`` has the same problems for PyMC.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ppl_backends.datasets import load_binary_regression, load_finpines

HIERARCHICAL_DATA = Path(__file__).parents[3] / "stan_models" / "hierarchical_logit.data.json"
EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
EFFECT_ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
MODE, MODE_SHARES, MODE_SD = 4.0, (0.3, 0.7), 0.7
BIMODAL_DIM, BIMODAL_PRIOR_SD = 4, 3.0


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes
    ----------
    mean, sd : ndarray (dim,)
        Of the normal priors.
    log_likelihood : callable
        ``(xp, special, theta (n, dim)) -> (n,)`` with NumPy or JAX as ``xp`` and its ``scipy.special``.
    values : callable
        ``(special, theta (n, dim)) -> dict`` of the variables of the PyMC model.
    quantities : callable
        ``dict -> (n, k)``: what the posterior means are compared of.
    """

    mean: np.ndarray
    sd: np.ndarray
    log_likelihood: Callable[[Any, Any, Any], Any]
    values: Callable[[Any, Any], dict]
    quantities: Callable[[dict], np.ndarray]

    @property
    def dim(self):
        """Return the number of coordinates."""
        return len(self.mean)


def regression_data(name, half_scale=False):
    """Return the design, with predictors of standard deviation 0.5 if ``half_scale``, and responses."""
    data = load_binary_regression(name)
    design = np.array(data.X, dtype=float)
    if half_scale:
        design[:, 1:] *= 0.5
    return design, np.asarray(data.y, dtype=float)


def wide_prior(dim):
    """Return N(0, 20²) on the intercept, N(0, 5²) on the rest."""
    return np.r_[20.0, np.full(dim - 1, 5.0)]


def logistic(name, half_scale=False, prior_sd=None):
    """Return logistic regression."""
    design, y = regression_data(name, half_scale)
    sd = wide_prior(design.shape[1]) if prior_sd is None else np.full(design.shape[1], prior_sd)
    signed = design * (2 * y - 1)[:, None]

    def log_likelihood(xp, special, theta):
        return -xp.logaddexp(0.0, -theta @ signed.T).sum(axis=1)

    return Problem(np.zeros_like(sd), sd, log_likelihood, lambda special, theta: {"beta": theta}, _beta)


def _beta(values):
    return values["beta"]


def eight_schools():
    """Return Rubin (1981), non-centred; mu ~ N(0, 5²), tau ~ half-Cauchy(5)."""

    def unpack(special, theta):
        tail = special.ndtr(-theta[:, 1])  # tau = 5 tan(π(1 − tail)/2), accurate for large tau
        tau = 5.0 / _tan(theta, 0.5 * np.pi * tail)
        return 5.0 * theta[:, 0], tau, theta[:, 2:]

    def log_likelihood(xp, special, theta):
        mu, tau, trans = unpack(special, theta)
        z = (EFFECTS - mu[:, None] - tau[:, None] * trans) / EFFECT_ERRORS
        return (-0.5 * z**2 - np.log(EFFECT_ERRORS) - 0.5 * np.log(2 * np.pi)).sum(axis=1)

    def values(special, theta):
        return dict(zip(("mu", "tau", "trans"), unpack(special, theta), strict=True))

    def quantities(v):
        effects = v["mu"][:, None] + v["tau"][:, None] * v["trans"]
        return np.column_stack([v["mu"], np.log(v["tau"]), effects])

    return Problem(np.zeros(10), np.ones(10), log_likelihood, values, quantities)


def _tan(like, x):
    """Return tangent by the library that ``like`` is an array of."""
    if isinstance(like, np.ndarray):
        return np.tan(x)
    import jax.numpy as jnp

    return jnp.tan(x)


def hierarchical_data():
    """Return the design, group from zero, and response of the hierarchical logistic regression."""
    data = json.loads(HIERARCHICAL_DATA.read_text())
    return np.array(data["X"]), np.array(data["group"]) - 1, np.array(data["y"], dtype=float), data["J"]


def hierarchical():
    """Return logistic regression with intercepts and slopes of 20 groups, non-centred; tau ~ half-normal(1)."""
    X, group, y, groups = hierarchical_data()
    p = X.shape[1]
    signed = X * (2 * y - 1)[:, None]

    def unpack(special, theta):
        tau = -special.ndtri(0.5 * special.ndtr(theta[:, p : 2 * p]))
        return theta[:, :p], tau, theta[:, 2 * p :].reshape(-1, groups, p)

    def log_likelihood(xp, special, theta):
        beta, tau, z = unpack(special, theta)
        gamma = beta[:, None] + tau[:, None] * z
        return -xp.logaddexp(0.0, -(gamma[:, group] * signed).sum(axis=2)).sum(axis=1)

    def values(special, theta):
        return dict(zip(("beta", "tau", "z"), unpack(special, theta), strict=True))

    def quantities(v):
        gamma = v["beta"][:, None] + v["tau"][:, None] * v["z"]
        return np.column_stack([v["beta"], np.log(v["tau"]), gamma.reshape(len(gamma), -1)])

    dim = 2 * p + groups * p
    sd = np.r_[np.full(p, 2.5), np.ones(dim - p)]
    return Problem(np.zeros(dim), sd, log_likelihood, values, quantities)


def cox_data(cells):
    """Counts on the grid, mean and Cholesky factor of the log intensity (Møller, Syversveen & Waagepetersen 1998)."""
    variance, length = 1.91, 1.0 / 33.0
    points = load_finpines()
    counts, *_ = np.histogram2d(points[:, 0], points[:, 1], bins=cells, range=[[0, 1], [0, 1]])
    axis = np.arange(cells)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    distance = np.linalg.norm(grid[:, None] - grid, axis=2)
    covariance = variance * np.exp(-distance / (cells * length))
    return counts.ravel(), np.log(len(points)) - 0.5 * variance, np.linalg.cholesky(covariance)


def cox(cells):
    """Log-Gaussian Cox process of the Finnish pines on a square grid, whitened; Poisson counts with all constants."""
    from scipy.special import gammaln

    counts, mean, factor = cox_data(cells)
    area = 1.0 / len(counts)
    constant = (counts * np.log(area) - gammaln(counts + 1)).sum()

    def log_likelihood(xp, special, theta):
        field = mean + theta @ factor.T
        return field @ counts - area * xp.exp(field).sum(axis=1) + constant

    dim = len(counts)
    return Problem(
        np.zeros(dim),
        np.ones(dim),
        log_likelihood,
        lambda special, theta: {"z": theta},
        lambda v: mean + v["z"] @ factor.T,
    )


def bimodal():
    """Return prior N(0, 9 I) times a mixture of two Gaussians with masses 0.3 and 0.7 at ±4."""

    def log_likelihood(xp, special, theta):
        up, down = (
            np.log(share) - 0.5 * ((theta - c) ** 2).sum(axis=1) / MODE_SD**2
            for share, c in zip(MODE_SHARES, (MODE, -MODE), strict=True)
        )
        return xp.logaddexp(up, down)

    sd = np.full(BIMODAL_DIM, BIMODAL_PRIOR_SD)
    return Problem(np.zeros_like(sd), sd, log_likelihood, lambda special, theta: {"x": theta}, lambda v: v["x"])


def bimodal_truth():
    """Return exact log evidence, mean and sd."""
    total = MODE_SD**2 + BIMODAL_PRIOR_SD**2
    shrink = BIMODAL_PRIOR_SD**2 / total
    each = 0.5 * BIMODAL_DIM * np.log(MODE_SD**2 / total) - 0.5 * BIMODAL_DIM * MODE**2 / total
    mean = (MODE_SHARES[0] - MODE_SHARES[1]) * shrink * MODE
    second = (shrink * MODE) ** 2 + MODE_SD**2 * shrink
    return {
        "log_evidence": each,
        "log_evidence_se": 0.0,
        "mean": [mean] * BIMODAL_DIM,
        "sd": [(second - mean**2) ** 0.5] * BIMODAL_DIM,
    }


PROBLEMS = {
    "Pima": lambda: logistic("pima"),
    "German": lambda: logistic("german_credit", prior_sd=1.0),
    "Sonar-I": lambda: logistic("sonar", prior_sd=1.0),
    "Sonar-5": lambda: logistic("sonar", half_scale=True),
    "Musk-I": lambda: logistic("musk", prior_sd=1.0),
    "EightSchools": eight_schools,
    "Hierarchical": hierarchical,
    "Cox-400": lambda: cox(20),
    "Bimodal": bimodal,
}
