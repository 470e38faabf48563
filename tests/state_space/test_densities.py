"""Densities of states that are not those of the draws are refused, and right ones accepted."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
from jax.scipy.stats import norm

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.targets.state_space.filter import Filter, draw_seeds
from tests.state_space.models import LG_POINT, LINEAR, data, normal, propose

Y = data("linear_gaussian", 20)
POINTS = {name: value * np.array([1.0, 0.8]) for name, value in LG_POINT.items()}


def run(model, points=POINTS, method="bootstrap", y=Y):
    values = Filter(model, y, method=method).run(points, 8, draw_seeds(np.random.default_rng(1), 2))
    assert np.isfinite(values).all()


def density(function):
    return replace(LINEAR, log_transition=function)


@pytest.mark.parametrize(
    "function",
    [
        lambda p, t, x, new: normal(new, p.rho * x, p.sigma_x**2),
        lambda p, t, x, new: normal(new, p.rho * x, 1.3 * p.sigma_x),
        lambda p, t, x, new: normal(new, x, p.sigma_x),
        lambda p, t, x, new: normal(new, p.rho * x + 0.2 * p.sigma_x, p.sigma_x),
        lambda p, t, x, new: normal(x, p.rho * new, p.sigma_x),
        lambda p, t, x, new: jnp.where(t == 10, -0.5 * (new - x) ** 2, normal(new, p.rho * x, p.sigma_x)),
        lambda p, t, x, new: -2 * jnp.log1p((new - p.rho * x) ** 2 / (3 * p.sigma_x**2)),
    ],
)
def test_a_density_of_other_states_is_refused(function):
    with pytest.raises(
        ModelError, match=r"^log_transition of the state-space model is not the log density of what trans"
    ):
        run(density(function))


def test_a_density_up_to_a_constant_serves_smoothing():
    run(density(lambda p, t, x, new: -0.5 * ((new - p.rho * x) / p.sigma_x) ** 2))


@pytest.mark.parametrize("wrong", [lambda p, x: normal(x, 0.5, p.sigma_x), lambda p, x: normal(x, 0.0, p.sigma_x)])
def test_the_density_of_the_first_state_is_compared_too(wrong):
    with pytest.raises(
        ModelError, match=r"^log_initial of the state-space model is not the log density of what initial"
    ):
        run(replace(LINEAR, log_initial=wrong))


TREND = pb.StateSpaceModel(
    n_normals=2,
    initial=lambda p, z: z,
    transition=lambda p, t, x, z: jnp.stack([x[..., 0] + x[..., 1] + 0.3 * z[..., 0], x[..., 1] + p.s * z[..., 1]], -1),
    log_observation=lambda p, t, x, y: normal(y, x[..., 0], 0.5),
    log_transition=lambda p, t, x, new: (
        normal(new[..., 0], x[..., 0] + x[..., 1], 0.3) + normal(new[..., 1], x[..., 1], p.s)
    ),
    log_initial=lambda p, x: normal(x, 0.0, 1.0).sum(axis=-1),
)
SCALES = {"s": np.array([0.2, 0.7])}


@pytest.mark.parametrize(
    "change",
    [
        {"log_transition": lambda p, t, x, new: normal(new[..., 0], x[..., 0] + x[..., 1], 0.3)},
        {"log_transition": lambda p, t, x, new: normal(new, x, jnp.stack([0.3 + 0 * p.s, p.s], -1)).sum(axis=-1)},
        {"log_initial": lambda p, x: normal(x, 0.0, 1.0).mean(axis=-1)},
    ],
)
def test_components_of_a_vector_are_compared(change):
    run(TREND, SCALES)
    with pytest.raises(ModelError, match="is not the log density of what"):
        run(replace(TREND, **change), SCALES)


def model_of(transition, log_transition, initial=lambda p, z: z):
    return pb.StateSpaceModel(
        initial=initial,
        transition=transition,
        log_transition=log_transition,
        log_observation=lambda p, t, x, y: normal(y, x if x.ndim == 2 else x[..., 0], 1.0),
    )


TABLE = jnp.array([[0.8, 0.2], [0.4, 0.6]])


@pytest.mark.parametrize(
    "right",
    [
        model_of(  # two regimes, as an index of a table
            lambda p, t, x, z: jnp.where(norm.cdf(z) < TABLE[x.astype(int), 1], 1.0, 0.0),
            lambda p, t, x, new: jnp.log(TABLE)[x.astype(int), new.astype(int)] + 0 * p.s,
            lambda p, z: jnp.where(z > 0, 1.0, 0.0),
        ),
        model_of(  # positive states
            lambda p, t, x, z: x * jnp.exp(p.s * z),
            lambda p, t, x, new: normal(jnp.log(new), jnp.log(x), p.s) - jnp.log(new),
            lambda p, z: jnp.exp(z),
        ),
        model_of(  # a uniform step
            lambda p, t, x, z: x + p.s * (2 * norm.cdf(z) - 1),
            lambda p, t, x, new: jnp.where(jnp.abs(new - x) <= p.s, -jnp.log(2 * p.s), -jnp.inf),
        ),
        model_of(  # zero or above
            lambda p, t, x, z: jnp.maximum(x + p.s * z, 0.0),
            lambda p, t, x, new: jnp.where(new > 0, normal(new, x, p.s), norm.logcdf(-x / p.s)),
            lambda p, z: jnp.maximum(z, 0.0),
        ),
        model_of(  # the previous state is the second component
            lambda p, t, x, z: jnp.stack([0.5 * x[..., 0] + 0.3 * x[..., 1] + p.s * z, x[..., 0]], -1),
            lambda p, t, x, new: jnp.where(
                new[..., 1] == x[..., 0], normal(new[..., 0], 0.5 * x[..., 0] + 0.3 * x[..., 1], p.s), -jnp.inf
            ),
            lambda p, z: jnp.stack([z, z], -1),
        ),
        model_of(lambda p, t, x, z: x + 1e-11 * p.s * z, lambda p, t, x, new: normal(new, x, 1e-11 * p.s)),
    ],
)
def test_right_densities_of_other_kinds_are_accepted(right):
    run(right, SCALES)


def test_false_alarms_are_rare(monkeypatch):
    """Return the largest differences in standard errors of eight right models; few of about 140 are above 2.5."""
    from ppl_backends.targets.state_space import densities

    found, differs = [], densities._differs

    def recorded(*arguments):
        found.extend(float(said.split(" by ")[1].split()[0]) for said in differs(*arguments))
        return iter(())

    monkeypatch.setattr(densities, "_differs", recorded)
    monkeypatch.setattr(densities, "LARGEST_Z", 2.5)
    rng = np.random.default_rng(1)
    for _ in range(8):
        scales = {"rho": rng.uniform(-0.9, 0.9, 2), "sigma_x": np.exp(rng.normal(size=2)), "sigma_y": np.ones(2)}
        run(LINEAR, scales)
    assert len(found) < 20
    assert max(found, default=0.0) < 5


def chains(model):
    with pm.Model() as made:
        sigma = pm.HalfNormal("sigma", 1)
        pb.StateSpace("y", model, rho=0.9, sigma_x=sigma, sigma_y=0.5, observed=Y)
    return pb.sample_particle_gibbs(made, draws=5, tune=5, chains=2, random_seed=1, progressbar=False)


def test_particle_gibbs_needs_the_factors_that_depend_on_parameters():
    with pytest.raises(ModelError, match=r"^log_transition .* lacks a factor that depends on the parameters"):
        chains(density(lambda p, t, x, new: -0.5 * ((new - p.rho * x) / p.sigma_x) ** 2))
    sd = lambda p: p.sigma_x / jnp.sqrt(1 - p.rho**2)  # noqa: E731
    with pytest.raises(ModelError, match=r"^log_initial .* lacks a factor that depends on the parameters"):
        chains(replace(LINEAR, log_initial=lambda p, x: -0.5 * (x / sd(p)) ** 2))


def test_a_factor_that_is_the_same_for_all_parameters_may_be_left_out_of_particle_gibbs():
    Filter(density(lambda p, t, x, new: normal(new, p.rho * x, p.sigma_x) + 3.0), Y).check_factors(POINTS)


def test_a_proposal_with_another_density_than_its_draws_is_refused():
    run(LINEAR, method="guided")
    run(LINEAR, method="guided", y=Y + 60 * (np.arange(20) == 10))

    def wrong(p, t, x, y, z):
        new, log_q = propose(p, t, x, y, z)
        return new, log_q + jnp.log(p.sigma_x) - 1.0

    with pytest.raises(ModelError, match=r"^proposal of the state-space model: its draws, weighted by log_initial"):
        run(replace(LINEAR, proposal=wrong), method="guided")
    with pytest.raises(
        ModelError, match=r"^proposal of the state-space model: its draws in row 1, weighted by log_trans"
    ):
        run(replace(LINEAR, proposal=wrong, log_initial=None), method="guided")
