"""Gibbs on an extended target (Ridgway 2015, section 1.3.2, Algorithm 2): particle Gibbs where rows are independent.

His example: y_i is a difference of two Poisson(λ) counts, λ ~ Γ(1, 1), and the latent count X_i is drawn from Poisson(λ) many
times over. Given an index k among the draws λ is moved with X^k alone, and the other draws are made again. Here
every row has an index of its own.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln, ndtr
from scipy.special import logsumexp
from scipy.stats import skellam

import ppl_backends as pb
from ppl_backends.kernels.particle.filters import filter_of
from ppl_backends.kernels.particle.gibbs import ParticleGibbs, PathDensity
from ppl_backends.kernels.streams import Generators
from tests.statistics import assert_mean_is

N_CHAINS, N_STEPS, BURN_IN = 48, 200, 30
Y = np.random.default_rng(2).poisson(1.5, (8, 2)) @ [1, -1]


def log_poisson(count, level):
    return jnp.where(count >= 0, count * level - jnp.exp(level) - gammaln(jnp.maximum(count, 0.0) + 1.0), -jnp.inf)


def drawn(p, z):
    counts = jnp.arange(40.0)
    below = jnp.cumsum(jnp.exp(log_poisson(counts, p.level)), axis=-1)
    return jnp.sum(below < ndtr(z)[..., None], axis=-1).astype(jnp.float64)


DIFFERENCE = pb.StateSpaceModel(
    initial=drawn,
    transition=lambda p, t, x, z: drawn(p, z),
    log_observation=lambda p, t, x, y: log_poisson(y + x, p.level[..., 0]),
    log_transition=lambda p, t, x, new: log_poisson(new, p.level[..., 0]),
    log_initial=lambda p, x: log_poisson(x, p.level[..., 0]),
)


def posterior():
    """Return the mean and sd of log λ by quadrature of the exact likelihood."""
    level = np.linspace(-4, 3, 2001)
    log_density = level - np.exp(level)
    log_density += skellam.logpmf(Y[:, None], np.exp(level), np.exp(level)).sum(axis=0)
    weights = np.exp(log_density - logsumexp(log_density))
    mean = weights @ level
    return mean, np.sqrt(weights @ (level - mean) ** 2)


MEAN, SD = posterior()


def moments(density):
    """Return means of standardised draws and of their squares of every chain."""
    prior = pb.FunctionTarget(1, lambda x: (x[:, 0] - np.exp(x[:, 0]), 1 - np.exp(x)))
    target = pb.with_state_space(prior, DIFFERENCE, parameters={"level": "x"}, observed=Y)
    algorithm = ParticleGibbs(target, filter_of(target), n_particles=2, covariance=[[SD**2]])
    algorithm.density.__class__ = density
    rng = Generators([np.random.default_rng([3, chain]) for chain in range(N_CHAINS)])
    state = algorithm.start(MEAN + SD * np.random.default_rng(1).standard_normal((N_CHAINS, 1)), rng)
    z = np.empty((N_STEPS, N_CHAINS))
    for step in range(N_STEPS):
        state, _ = algorithm.step(state, rng, False)
        z[step] = (state.x[:, 0] - MEAN) / SD
    return np.stack([z[BURN_IN:].mean(axis=0), (z[BURN_IN:] ** 2).mean(axis=0)], axis=1)


@pytest.mark.slow
def test_the_posterior_of_the_level_is_exact_with_two_draws():
    assert_mean_is(moments(PathDensity), [0.0, 1.0])


class EveryDrawAnew(PathDensity):
    """A twin that keeps no draw, although the index was chosen among the old ones."""

    def history(self, values, path, seeds):
        return self.filter.history(values, self.n_particles, seeds)


@pytest.mark.slow
def test_a_sampler_that_keeps_no_draw_is_found_out():
    with pytest.raises(AssertionError), np.errstate(invalid="ignore"):  # its paths may be impossible
        assert_mean_is(moments(EveryDrawAnew), [0.0, 1.0])
