"""States and rows of two numbers: filters, particle Gibbs and SMC² beside the exact Gaussian answer, with missing rows."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.kernels.particle.filters import filter_of
from ppl_backends.kernels.particle.gibbs import ParticleGibbs
from ppl_backends.kernels.streams import Generators
from ppl_backends.kernels.table import make_kernel
from ppl_backends.smc.filters import FilterPath, Growth
from ppl_backends.smc.ibis import run_ibis
from ppl_backends.smc.moves import MoveSettings
from ppl_backends.smc.path import PriorPath
from ppl_backends.smc.sampler import Settings
from ppl_backends.smc.schedule import make_schedule
from ppl_backends.targets.state_space.filter import METHODS, Filter, draw_seeds
from ppl_backends.targets.state_space.kalman import kalman_filter
from tests.state_space.models import repeated
from tests.state_space.toys import target
from tests.statistics import assert_mean_is

A = np.array([[0.8, 0.3], [-0.2, 0.7]])
Q = np.array([[0.3, 0.15], [0.15, 0.2]])
H = np.array([[1.0, 0.0], [0.5, 1.0]])
R = np.diag([0.4, 0.3])
START, SPREAD = np.array([0.5, -0.5]), np.array([[1.0, 0.2], [0.2, 0.8]])
MU = 0.4  # added to both observations; its prior is N(0, 1)
Y = np.array([[0.9, -0.6], [np.nan, np.nan], [1.7, 0.8], [0.2, 1.1], [np.nan, np.nan], [-0.6, 0.5]])
ROWS = len(Y)
RUNS = 2000


def density(rest, covariance):
    """Return the log density of vectors with mean zero."""
    square = jnp.einsum("...i,ij,...j->...", rest, np.linalg.inv(covariance), rest)
    return -0.5 * (square + np.linalg.slogdet(2 * np.pi * covariance)[1])


def propose(p, t, x, y, z):
    """Return draws of a state given the one before and its row, a tenth too wide."""
    mean, covariance = (jnp.broadcast_to(START, z.shape), SPREAD) if x is None else (x @ A.T, Q)
    given = np.linalg.inv(np.linalg.inv(covariance) + H.T @ np.linalg.inv(R) @ H)
    seen = (y - p.mu[..., None]) @ (np.linalg.inv(R) @ H)
    centre = (mean @ np.linalg.inv(covariance) + seen) @ given
    new = centre + z @ np.linalg.cholesky(1.21 * given).T
    return new, density(new - centre, 1.21 * given)


MODEL = pb.StateSpaceModel(
    initial=lambda p, z: START + z @ np.linalg.cholesky(SPREAD).T,
    transition=lambda p, t, x, z: x @ A.T + z @ np.linalg.cholesky(Q).T,
    log_observation=lambda p, t, x, y: density(y - x @ H.T - p.mu[..., None], R),
    log_transition=lambda p, t, x, new: density(new - x @ A.T, Q),
    log_initial=lambda p, x: density(x - START, SPREAD),
    proposal=propose,
    n_normals=2,
)


def exact():
    """Return the log likelihood at ``MU``, the log evidence, mean and sd of the parameter, and the means of the states."""
    means, covariances = [START], [SPREAD]
    for _ in range(ROWS - 1):
        means.append(A @ means[-1])
        covariances.append(A @ covariances[-1] @ A.T + Q)
    of_states = np.zeros((ROWS, 2, ROWS, 2))
    for s in range(ROWS):
        later = covariances[s]
        for t in range(s, ROWS):
            of_states[t, :, s], of_states[s, :, t] = later, later.T
            later = A @ later
    of_states, seen = of_states.reshape(2 * ROWS, 2 * ROWS), ~np.isnan(Y.ravel())
    h, r = np.kron(np.eye(ROWS), H)[seen], np.kron(np.eye(ROWS), R)[np.ix_(seen, seen)]
    mean, y, given_mu = np.ravel(means), Y.ravel()[seen], h @ of_states @ h.T + r
    marginal, rest = given_mu + 1.0, y - h @ mean
    gain = np.linalg.solve(marginal, rest)
    sd = np.sqrt(1 - np.linalg.solve(marginal, np.ones(len(y))).sum())
    return (
        multivariate_normal(h @ mean + MU, given_mu).logpdf(y),
        multivariate_normal(h @ mean, marginal).logpdf(y),
        gain.sum(),
        sd,
        mean + of_states @ h.T @ gain,
    )


LOG_LIKELIHOOD, LOG_EVIDENCE, MEAN, SD, STATES = exact()


def ratios(method, model=MODEL, n_x=16):
    """Return L̂ / L of independent filters."""
    seeds = draw_seeds(np.random.default_rng(1), RUNS)
    found = Filter(model, Y, method=method).run(repeated({"mu": MU}, RUNS), n_x, seeds)
    return np.exp(found - LOG_LIKELIHOOD)[:, None]


def test_the_kalman_filter_knows_the_likelihood():
    matrices = lambda p: (START, SPREAD, A, jnp.zeros(2), Q, H, p.mu * jnp.ones(2), R)  # noqa: E731
    model = pb.state_space.linear_gaussian(matrices, dim=2)
    found = kalman_filter(model, {"mu": np.array([MU])}, Filter(model, Y).rows, ROWS)[0]
    np.testing.assert_allclose(found.sum(), LOG_LIKELIHOOD, rtol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_likelihoods_are_unbiased(method):
    assert_mean_is(ratios(method), 1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda p, t, x, new: density(new - x @ A.T, np.diag(np.diag(Q))),
        lambda p, t, x, new: density(new[..., ::-1] - x @ A.T, Q),
    ],
    ids=["no correlation", "coordinates in the wrong order"],
)
def test_another_density_than_that_of_the_draws_is_refused(wrong):
    with pytest.raises(ModelError, match="log_transition of the state-space model is not"):
        ratios("guided", replace(MODEL, log_transition=wrong))


def gibbs_means(model=MODEL, n_chains=48, n_steps=160, burn_in=40):
    """Return the standardised parameter, its square and the states, averaged over each chain of particle Gibbs."""
    made = target(Y, model)
    algorithm = ParticleGibbs(made, filter_of(made), n_particles=6, covariance=[[0.3 * SD**2]])
    rng = Generators([np.random.default_rng([7, chain]) for chain in range(n_chains)])
    state = algorithm.start(MEAN + SD * np.random.default_rng(1).standard_normal((n_chains, 1)), rng)
    sums = np.zeros((n_chains, 2 + 2 * ROWS))
    for step in range(n_steps):
        state, _ = algorithm.step(state, rng, False)
        if step >= burn_in:
            z = (state.x - MEAN) / SD
            sums += np.concatenate([z, z**2, state.population.path.reshape(n_chains, -1)], axis=1)
    return sums / (n_steps - burn_in)


def test_particle_gibbs_is_exact_with_six_particles():
    assert_mean_is(gibbs_means(), [0.0, 1.0, *STATES])


def smc2(seed, method):
    """Return a run of SMC² with 64 parameters, whose filters grow from four particles."""
    made = target(Y, MODEL)
    growth = Growth(first=4, variance=0.3, above=1.0, most=8)
    path = FilterPath(made, PriorPath(made.rest), filter_of(made, method), growth, "")
    settings = Settings(schedule=make_schedule("ess", 0.5), moves=MoveSettings(2, 2))
    return run_ibis(path, make_kernel("random_walk"), 64, np.random.default_rng([9, seed]), None, settings)


@pytest.mark.parametrize("method", ["bootstrap", pytest.param("guided", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::ppl_backends.errors.SamplerWarning")
def test_smc2_has_the_evidence_and_the_posterior(method):
    runs = [smc2(seed, method) for seed in range(12)]
    assert_mean_is(np.exp([each.log_evidence - LOG_EVIDENCE for each in runs]), 1.0)
    z = [(each.x[:, 0] - MEAN) / SD for each in runs]
    assert_mean_is([[each.mean(), (each**2).mean()] for each in z], [0.0, 1.0], 0.05)
