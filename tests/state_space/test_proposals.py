"""The proposal of stochastic volatility at large shocks, beside the likelihood by quadrature; a twin that overshoots."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

import ppl_backends as pb
from ppl_backends.targets.state_space.filter import Filter, draw_seeds
from tests.state_space.models import LOG_2PI, data, repeated
from tests.statistics import assert_mean_is

POINT = {"mu": -1.1, "rho": 0.6, "sigma": 0.8}
Y, RUNS = data("stochastic_volatility", 200), 400
VOLATILITY = pb.state_space.stochastic_volatility()


def by_quadrature(mu, rho, sigma, n=161):
    """Return the log likelihood by the trapezoid rule."""
    sd = sigma / np.sqrt(1 - rho**2)
    x, h = np.linspace(-7 * sd, 7 * sd, n, retstep=True)
    kernel = np.exp(-0.5 * ((x[:, None] - rho * x) / sigma) ** 2) * h / (sigma * np.sqrt(2 * np.pi))
    weight, total = np.exp(-0.5 * (x / sd) ** 2) * h / (sd * np.sqrt(2 * np.pi)), 0.0
    for t, y in enumerate(Y):
        weight = (kernel @ weight if t else weight) * np.exp(-0.5 * (mu + x + y**2 * np.exp(-mu - x) + LOG_2PI))
        total, weight = total + np.log(weight.sum()), weight / weight.sum()
    return total


def ratios(model):
    """Return estimates over the likelihood."""
    values = Filter(model, Y, method="guided").run(
        repeated(POINT, RUNS), 64, draw_seeds(np.random.default_rng(0), RUNS)
    )
    return np.exp(values - by_quadrature(**POINT))


def test_the_guided_filter_sees_large_shocks():
    found = ratios(VOLATILITY)
    assert_mean_is(found[:, None], [1.0])
    assert np.log(found).var() < 0.7


def test_a_step_from_the_mean_of_the_transition_overshoots():
    """Log weights are then tangents' distances too, but far from where the particles are drawn."""

    def propose(p, t, x, y, z):
        sd = p.sigma / (1 - p.rho**2) ** 0.5 if x is None else p.sigma + 0.0 * x
        mean = p.mu if x is None else p.mu + p.rho * (x - p.mu)
        shifted = mean + 0.5 * sd**2 * (y**2 * jnp.exp(-mean) - 1)
        return shifted + sd * z, -0.5 * z**2 - jnp.log(sd) - 0.5 * LOG_2PI

    assert np.log(ratios(replace(VOLATILITY, proposal=propose))).var() > 1.2


def test_the_proposal_is_defined_for_any_row():
    for y in (0.0, 1e-200, 1e100):
        model = Filter(VOLATILITY, np.array([0.3, y, 0.2]), method="guided")
        values = model.run(repeated(POINT, 2), 16, draw_seeds(np.random.default_rng(0), 2))
        assert not np.isnan(values).any()
