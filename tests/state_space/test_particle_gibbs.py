"""Particle Gibbs: the exact posterior of parameter and states with four particles, and twins that are wrong."""

import re
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from scipy.signal import lfilter

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.kernels.particle.filters import filter_of
from ppl_backends.kernels.particle.gibbs import ParticleGibbs, PathDensity
from ppl_backends.kernels.streams import Generators
from ppl_backends.results.inference_data import group
from ppl_backends.state_space.particle_gibbs import warn_of_slow_chains
from tests.state_space.toys import MODEL, NOISE, Series, Y, covariances, posterior, target
from tests.statistics import assert_mean_is

N_CHAINS, N_STEPS, BURN_IN = 48, 400, 60
pytestmark = pytest.mark.filterwarnings("ignore::ppl_backends.errors.SamplerWarning")
MEAN, SD, STATES = posterior()


def chains(density=PathDensity):
    """Return standardised parameters, their squares and states, averaged over each chain."""
    algorithm = ParticleGibbs(target(), filter_of(target()), n_particles=4, covariance=[[0.3 * SD**2]])
    algorithm.density.__class__ = density
    rng = Generators([np.random.default_rng([7, chain]) for chain in range(N_CHAINS)])
    state = algorithm.start(MEAN + SD * np.random.default_rng(1).standard_normal((N_CHAINS, 1)), rng)
    sums = np.zeros((N_CHAINS, 2 + len(STATES)))
    for step in range(N_STEPS):
        state, _ = algorithm.step(state, rng, False)
        if step >= BURN_IN:
            z = (state.x - MEAN) / SD
            sums += np.concatenate([z, z**2, state.population.path], axis=1)
    return sums / (N_STEPS - BURN_IN)


class WithoutWeights(PathDensity):
    """A twin whose backward sampling leaves out the weights of the filter."""

    def history(self, *arguments):
        found = super().history(*arguments)
        return found._replace(log_weights=np.zeros_like(found.log_weights))


class Unconditional(PathDensity):
    """A twin whose filters are not conditional on the present path."""

    def history(self, values, path, seeds):
        return self.filter.history(values, self.n_particles, seeds)


def assert_exact(means):
    assert_mean_is(means, [0.0, 1.0, *STATES])


def test_the_posterior_is_exact_with_four_particles():
    assert_exact(chains())


@pytest.mark.slow
@pytest.mark.parametrize("twin", [WithoutWeights, Unconditional])
def test_twins_are_found_out(twin):
    with pytest.raises(AssertionError):
        assert_exact(chains(twin))


class StalePath(PathDensity):
    """A twin whose parameters move given the path of the sweep before the last."""

    before = None

    def beside(self, points, x, rng):
        path = points.path if self.before is None else self.before
        return replace(points, x=x, log_rest=self.rest.log_density(x), complete=self._complete(x, path))

    def renewed(self, points, rng):
        self.before = points.path
        return replace(super().renewed(points, rng), complete=self._complete(points.x, points.path))


class StaleDensity(PathDensity):
    """A twin that keeps the density of the current point given the old path."""

    def renewed(self, points, rng):
        return replace(super().renewed(points, rng), complete=points.complete)


def joint_moments(density=PathDensity, n=8000, n_sweeps=20):
    """Return products of parameter and states of three rows, after sweeps with two particles from draws of the posterior.

    Each is less its exact mean. The parameter alone and the states alone may be right if they do not belong together.
    """
    y, rng = Y[:3], np.random.default_rng(2)
    of_states, marginal = covariances(3)
    prior = np.block([[np.eye(1), np.zeros((1, 3))], [np.zeros((3, 1)), of_states]])
    seen = np.vstack([np.ones(3), of_states])  # covariances of parameter and states with the data
    covariance = prior - seen @ np.linalg.solve(marginal, seen.T)
    mean = seen @ np.linalg.solve(marginal, y)
    drawn = rng.multivariate_normal(mean, covariance, n)
    made = target(y)
    algorithm = ParticleGibbs(made, filter_of(made), n_particles=2, covariance=[[1 / (1 + 3 / NOISE**2)]])
    algorithm.density.__class__ = density
    state = algorithm.start(drawn[:, :1], rng)
    state = state._replace(population=algorithm.density.with_path(drawn[:, :1], drawn[:, 1:]))
    for _ in range(n_sweeps):
        state, _ = algorithm.step(state, rng, False)
    e = np.concatenate([state.x, state.population.path], axis=1) - mean
    return (e[:, :, None] * e[:, None, :] - covariance).reshape(n, 16)[:, [0, 1, 2, 3, 5, 10, 15]]


def test_parameter_and_states_belong_together():
    assert_mean_is(joint_moments(), np.zeros(7))


@pytest.mark.parametrize("twin", [StalePath, StaleDensity])
def test_a_parameter_that_moves_given_a_stale_path_is_found_out(twin):
    with pytest.raises(AssertionError):
        assert_mean_is(joint_moments(twin), np.zeros(7))


def test_states_are_kept_on_request_and_renewed():
    made = target()
    made.state_space = replace(made.state_space, dims=("week",))
    idata = pb.sample_particle_gibbs(
        made, draws=60, tune=60, chains=2, states=True, random_seed=1, progressbar=False, initvals=np.full(1, MEAN)
    )
    assert dict(group(idata, "posterior")["states"].sizes) == {"chain": 2, "draw": 60, "week": len(Y)}
    assert group(idata, "sample_stats")["renewed_first"].mean() > 0.5
    assert "states" not in group(idata, "sample_stats")


def test_a_model_without_densities_is_refused():
    bare = Series(target().rest, replace(MODEL, log_initial=None), Y)
    with pytest.raises(ModelError, match="log_initial="):
        pb.sample_particle_gibbs(bare, progressbar=False)


@pytest.mark.parametrize(("correlation", "slow"), [(0.99, True), (0.9, False)])
def test_few_effective_draws_of_a_parameter_are_named(correlation, slow):
    # draws of an autoregression are worth (1 − φ)/(1 + φ) independent ones each: 80 or 842 of 16,000
    noise = np.random.default_rng(1).standard_normal((8, 2000))
    draws = lfilter([1], [1, -correlation], noise)
    posterior = xr.Dataset({"sigma": (("chain", "draw"), draws), "mu": (("chain", "draw"), noise)})
    idata = {"posterior": posterior.assign_attrs(warnings="")}
    if slow:
        with pytest.warns(SamplerWarning, match="the effective sample size of sigma is .* of 16000 draws"):
            warn_of_slow_chains(idata)
        worth = float(re.search(r"of sigma is (\d+)", idata["posterior"].attrs["warnings"])[1])
        assert 40 < worth < 160
    else:
        warn_of_slow_chains(idata)
        assert not idata["posterior"].attrs["warnings"]
