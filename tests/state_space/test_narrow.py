"""Proposals that are narrower than the states given their row: most likelihood estimates are too low, and it is said."""

import warnings
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest

import ppl_backends as pb
from ppl_backends.errors import SamplerWarning
from ppl_backends.kernels.particle.narrow import narrow_proposal
from ppl_backends.results.inference_data import group
from ppl_backends.targets.state_space.filter import Filter
from tests.state_space.models import LG_POINT, LINEAR, SV_POINT, data, kalman, normal, propose, repeated

SAYS = "weights of states from the proposal have Pareto k"
Y = data("linear_gaussian")


def scaled(c):
    """Return the model with a proposal whose standard deviation is ``c`` times the right one."""

    def proposal(p, t, x, y, z):
        mean, _ = propose(p, t, x, y, 0 * z)
        sd = c * (propose(p, t, x, y, 0 * z + 1)[0] - mean)
        return mean + sd * z, normal(mean + sd * z, mean, sd)

    return replace(LINEAR, proposal=proposal)


def model(c, y=Y):
    with pm.Model() as made:
        rho = pm.Uniform("rho", 0.5, 0.95)
        pb.StateSpace("y", scaled(c), rho=rho, sigma_x=0.5, sigma_y=0.5, observed=y)
    return made


def test_the_likelihood_by_a_narrow_proposal_is_too_low_and_has_no_error():
    with pytest.warns(SamplerWarning, match=SAYS):
        found = pb.particle_filter(model(0.4), values={"rho": 0.9}, n_particles=500, chains=4, random_seed=1)
    attrs = group(found, "posterior").attrs
    assert attrs["log_likelihood"] < kalman(Y)[0] - 3
    assert attrs["log_likelihood_se"] == np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = pb.particle_filter(model(1.2), values={"rho": 0.9}, n_particles=500, chains=4, random_seed=1)
    assert SAYS not in group(found, "posterior").attrs["warnings"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ppl_backends.errors.SamplerWarning")
def test_samplers_say_so():
    options = {"random_seed": 1, "progressbar": False}
    with pytest.warns(SamplerWarning, match=SAYS):
        draws = pb.sample_pmmh(model(0.4, Y[:40]), draws=20, tune=20, chains=2, n_particles=16, **options)
    assert SAYS in group(draws, "posterior").attrs["warnings"]
    with pytest.warns(SamplerWarning, match=SAYS):
        found = pb.sample_smc2(model(0.4, Y[:40]), draws=32, chains=2, n_particles=16, max_moves=3, **options)
    attrs = group(found, "posterior").attrs
    assert SAYS in attrs["warnings"]
    assert not attrs["log_evidence_trusted"]


@pytest.mark.parametrize("c", [0.8, 1.0, 1.5])
def test_proposals_that_are_wide_enough_raise_no_alarm(c):
    assert not narrow_proposal(Filter(scaled(c), Y, method="guided"), repeated(LG_POINT, 4))


@pytest.mark.parametrize("sigma", [0.1, 0.3, 0.7])
def test_the_proposal_of_the_volatility_raises_no_alarm(sigma):
    filters = Filter(pb.state_space.stochastic_volatility(), data("stochastic_volatility"), method="guided")
    assert not narrow_proposal(filters, repeated(SV_POINT | {"sigma": sigma}, 4))


def test_missing_rows_and_vector_states_are_looked_at_without_an_alarm():
    assert not narrow_proposal(Filter(LINEAR, np.append(np.nan, Y), method="guided"), repeated(LG_POINT, 4))
    plane = pb.StateSpaceModel(
        initial=lambda p, z: z,
        transition=lambda p, t, x, z: 0.9 * x + 0.4 * z,
        log_observation=lambda p, t, x, y: jnp.sum(normal(y, x, 0.5), axis=-1),
        log_transition=lambda p, t, x, new: jnp.sum(normal(new, 0.9 * x, 0.4), axis=-1),
        proposal=lambda p, t, x, y, z: (
            0.9 * x + p.scale[..., None] * z,
            jnp.sum(normal(0.9 * x + p.scale[..., None] * z, 0.9 * x, p.scale[..., None]), axis=-1),
        ),
        n_normals=2,
    )
    filters = Filter(plane, 0.7 * np.random.default_rng(6).normal(size=(40, 2)), method="guided")
    assert not narrow_proposal(filters, {"scale": np.full(4, 0.4)})
    assert SAYS in narrow_proposal(filters, {"scale": np.full(4, 0.12)})
