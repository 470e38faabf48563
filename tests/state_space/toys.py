"""A series whose posterior, evidence and states are known: y_t ~ N(μ + x_t, 0.5²), x an AR(1), μ ~ N(0, 1)."""

import jax.numpy as jnp
import numpy as np

from ppl_backends.targets.function import FunctionTarget
from ppl_backends.targets.protocol import BaseTarget
from ppl_backends.targets.state_space.model import StateSpaceModel
from ppl_backends.targets.state_space.target import StateSpaceData
from ppl_backends.targets.wrapped import WrappedTarget

COEFFICIENT, NOISE, ROWS = 0.8, 0.5, 12
LOG_2PI = np.log(2 * np.pi)


def log_normal(x, mean, sd):
    return -0.5 * ((x - mean) / sd) ** 2 - jnp.log(sd) - 0.5 * LOG_2PI


MODEL = StateSpaceModel(
    initial=lambda p, z: z,
    transition=lambda p, t, x, z: COEFFICIENT * x + 0.6 * z,
    log_observation=lambda p, t, x, y: log_normal(y, p.mu + x, NOISE),
    log_transition=lambda p, t, x, new: log_normal(new, COEFFICIENT * x, 0.6),
    log_initial=lambda p, x: log_normal(x, 0.0, 1.0),
)


def series(rows=ROWS, seed=5):
    rng = np.random.default_rng(seed)
    x = [rng.standard_normal()]
    for _ in range(rows - 1):
        x.append(COEFFICIENT * x[-1] + 0.6 * rng.standard_normal())
    return 0.7 + np.array(x) + NOISE * rng.standard_normal(rows)


Y = series()


def covariances(rows):
    """Return the covariances of the states and of the data."""
    lag = np.abs(np.subtract.outer(np.arange(rows), np.arange(rows)))
    of_states = COEFFICIENT**lag
    return of_states, of_states + NOISE**2 * np.eye(rows) + 1.0


def log_evidence(y=Y):
    _, marginal = covariances(len(y))
    return -0.5 * (y @ np.linalg.solve(marginal, y) + np.linalg.slogdet(marginal)[1] + len(y) * LOG_2PI)


def log_likelihood(mu, y=Y):
    covariance = covariances(len(y))[1] - 1.0
    rest = y - mu
    return -0.5 * (rest @ np.linalg.solve(covariance, rest) + np.linalg.slogdet(covariance)[1] + len(y) * LOG_2PI)


def posterior(y=Y):
    """Return the mean and sd of μ, and the means of the states."""
    of_states, marginal = covariances(len(y))
    gain = np.linalg.solve(marginal, y)
    sd = np.sqrt(1 - np.linalg.solve(marginal, np.ones(len(y))).sum())
    return gain.sum(), sd, of_states @ gain


class Series(WrappedTarget):
    """A prior with a series whose parameters are its variables."""

    state_space = rest = None
    has_gradient = False

    def __init__(self, rest, model, y):
        super().__init__(rest)
        self.rest = rest
        rows = {"name": "y", "y": y, "dims": ("time",), "covariates": {}}
        self.state_space = StateSpaceData(model=model, parameters_at=self._parameters_at, **rows)

    def _parameters_at(self, x):
        return {"mu": x[:, 0]}


def target(y=Y, model=MODEL) -> BaseTarget:
    def prior(x):
        return -0.5 * x[:, 0] ** 2 - 0.5 * LOG_2PI, -x

    def nothing(x):
        return np.zeros(len(x)), np.zeros_like(x)

    draw = lambda n, rng: rng.standard_normal((n, 1))  # noqa: E731
    return Series(FunctionTarget(1, nothing, prior, sample_prior=draw, names=["mu"]), model, y)
