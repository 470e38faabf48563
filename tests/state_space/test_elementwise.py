"""Functions that mix particles or points, or draw random numbers of their own, are refused."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.targets.state_space.filter import Filter, draw_seeds
from tests.state_space.models import LG_POINT, LINEAR, VOLATILITY, data, kalman, normal, repeated

Y = data("linear_gaussian", 10)
POINTS = {name: value * np.array([1.0, 0.9, 0.8]) for name, value in LG_POINT.items()}
OWN = np.random.default_rng(1)
ROTATION = jnp.array([[0.9, 0.1], [-0.1, 0.9]])

PLANE = pb.StateSpaceModel(
    initial=lambda p, z: z,
    transition=lambda p, t, x, z: p.rho[..., None] * (x @ ROTATION.T) + p.sigma_x[..., None] * z,
    log_observation=lambda p, t, x, y: normal(y, x[..., 0], p.sigma_y),
    n_normals=2,
)


def run(model, method="bootstrap"):
    return Filter(model, Y, method=method).run(POINTS, 16, draw_seeds(np.random.default_rng(1), 3))


@pytest.mark.parametrize(
    ("part", "function"),
    [
        ("transition", lambda p, t, x, z: p.rho * x.mean() + p.sigma_x * z),
        ("transition", lambda p, t, x, z: p.rho * x[:, :1] + p.sigma_x * z),
        ("transition", lambda p, t, x, z: p.rho[0] * x + p.sigma_x * z),
        ("transition", lambda p, t, x, z: p.rho * x + p.sigma_x * OWN.standard_normal(x.shape)),
        ("initial", lambda p, z: z - z.mean(axis=1, keepdims=True)),
        ("log_observation", lambda p, t, x, y: normal(y, x, p.sigma_y) - normal(y, x, p.sigma_y).max()),
        ("log_transition", lambda p, t, x, new: normal(new, p.rho * x, p.sigma_x) + 0 * new + new.sum()),
        ("log_initial", lambda p, x: normal(x, x.mean(), p.sigma_x)),
    ],
)
def test_functions_that_mix_are_refused_by_name(part, function):
    with pytest.raises(ModelError, match=f"^{part} of the state-space model gives a particle another value"):
        run(replace(LINEAR, **{part: function}))


def test_a_proposal_that_mixes_is_refused_where_it_is_used():
    def propose(p, t, x, y, z):
        mean = 0.0 if x is None else x.mean()
        return mean + z, normal(mean + z, mean, 1.0)

    mixed = replace(LINEAR, proposal=propose)
    assert np.isfinite(run(mixed)).all()
    with pytest.raises(ModelError, match=r"^proposal of the state-space model gives"):
        run(mixed, "guided")


def test_right_functions_of_numbers_and_vectors_are_accepted():
    assert abs(run(LINEAR, "guided")[0] - kalman(Y)[0]) < 3
    assert np.isfinite(run(PLANE)).all()
    parameters = repeated({"mu": -1.0, "rho": 0.95, "sigma": 0.3}, 1)
    seeds = draw_seeds(np.random.default_rng(1), 1)
    for y in (Y, np.r_[np.nan, Y], np.r_[Y[:1], np.nan], Y[:1]):
        assert np.isfinite(Filter(VOLATILITY, y).run(parameters, 16, seeds)).all()


@pytest.mark.parametrize("row", [1, 5, 9])
def test_later_rows_are_looked_at(row):
    def mixes(p, t, x, z):
        return p.rho * jnp.where(t == row, x.mean(), x) + p.sigma_x * z

    with pytest.raises(ModelError, match=r"^transition of the state-space model gives a particle another value"):
        run(replace(LINEAR, transition=mixes))
