"""Particle Metropolis: the exact posterior with filters of three particles, and a twin that is not."""

import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from pymc.sampling.parallel import ParallelSamplingError

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.kernels.metric import ChainMetric
from ppl_backends.kernels.particle import metropolis
from ppl_backends.kernels.particle.filters import filter_of
from ppl_backends.kernels.particle.metropolis import FilteredDensity, ParticleMetropolis, grid
from ppl_backends.kernels.streams import Generators
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.results.convergence import effective_draws
from ppl_backends.results.inference_data import as_inference_data, group
from ppl_backends.state_space.pmmh import warn_of_stuck_chains
from ppl_backends.targets.state_space.compiled import CompiledFilter, normals_from
from ppl_backends.targets.state_space.filter import Filter
from ppl_backends.targets.state_space.lattice import lattice_normals
from tests.state_space.toys import MODEL, Y, log_likelihood, posterior, target
from tests.statistics import assert_mean_is

N_CHAINS, N_STEPS, BURN_IN = 48, 500, 100
MEAN, SD, STATES = posterior()


LEARNT = ChainMetric(Gaussian(0.0, np.ones(1)), np.array([[[0.7 * SD]]]), np.array([[MEAN - 0.5 * SD]]))


def chains(correlation=0.0, density=None, n_particles=3, seed=0, metric=None, model=MODEL, sign=None):
    """Return draws (chains, steps) of chains that begin in the posterior, or in the half of it that a sign gives."""
    made = target(model=model)
    algorithm = ParticleMetropolis(
        made, filter_of(made), n_particles=n_particles, correlation=correlation, covariance=[[SD**2]]
    )
    if density is not None:
        algorithm.density.__class__ = density
    rng = Generators([np.random.default_rng([seed, chain]) for chain in range(N_CHAINS)])
    z = np.random.default_rng(seed).standard_normal((N_CHAINS, 1))
    state = algorithm.start(MEAN + SD * (z if sign is None else sign * np.abs(z)), rng)
    if metric is not None:
        state = state._replace(parameters=state.parameters._replace(metric=metric))
    draws = np.empty((N_CHAINS, N_STEPS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplerWarning)  # three particles are few, and the warning says so
        for step in range(N_STEPS):
            state, _ = algorithm.step(state, rng, False)
            draws[:, step] = state.x[:, 0]
    return draws[:, BURN_IN:]


def assert_exact(draws):
    """Mean and square of the standardised draws, with the spread of the chains as their error."""
    z = (draws - MEAN) / SD
    assert_mean_is(np.stack([z.mean(axis=1), (z**2).mean(axis=1)], axis=1), [0.0, 1.0])


class Reestimating(FilteredDensity):
    """A twin that makes a new estimate of the likelihood of the present point for every proposal."""

    def beside(self, points, x, rng):
        vars(points)["estimate"] = self.fresh(points, rng).estimate
        return super().beside(points, x, rng)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_the_posterior_is_exact_with_three_particles(correlation):
    assert_exact(chains(correlation))


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_independent_proposals_leave_the_posterior_as_it_is(correlation):
    assert_exact(chains(correlation, metric=LEARNT))


def ratios(normals, n):
    """Return L̂/L of filters of these normals."""
    filters = CompiledFilter(Filter(MODEL, Y), {"mu": np.zeros(1)})
    found = filters.run_with_normals({"mu": np.full(len(normals), 0.5)}, n, normals)
    return np.exp(found - log_likelihood(0.5))


def lattices(shifts, n):
    return np.stack([lattice_normals(each, n).ravel() for each in shifts])


def test_a_lattice_makes_estimates_precise_and_leaves_them_unbiased():
    rng = np.random.default_rng(1)
    for n in (4, 12):
        lattice = ratios(lattices(rng.standard_normal((3000, len(Y), 2)), n), n)
        assert_mean_is(lattice[:, None], [1.0])
    independent = ratios(rng.standard_normal((3000, len(Y) * (n + 1))), n)
    assert np.log(lattice).var() < np.log(independent).var() / 2


def test_one_shift_of_the_lattice_for_all_rows_is_found_out():
    shifts = np.repeat(np.random.default_rng(1).standard_normal((3000, 1, 2)), len(Y), axis=1)
    with pytest.raises(AssertionError):
        assert_mean_is(ratios(lattices(shifts, 4), 4)[:, None], [1.0])


def test_independent_proposals_that_are_taken_for_symmetric_do_not(monkeypatch):
    monkeypatch.setattr(metropolis, "_log_student", lambda y: np.zeros(len(y)))
    with pytest.raises(AssertionError):
        assert_exact(chains(metric=LEARNT))


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_an_estimate_that_is_not_kept_is_found_out(correlation):
    with pytest.raises(AssertionError):
        assert_exact(chains(correlation, density=Reestimating))


HALF_NORMAL = np.sqrt(2 / np.pi)
ZEROS = {"zero": -np.inf, "no number": np.nan}


def below_the_mean(value):
    """Return the model with a likelihood of zero above the posterior's mean, said by a log density of −inf or NaN."""
    rows = MODEL.log_observation
    return replace(MODEL, log_observation=lambda p, t, x, y: jnp.where(p.mu > MEAN, value, rows(p, t, x, y)))


def assert_half_normal(draws):
    z = (draws - MEAN) / SD
    assert (z <= 0).all()
    assert_mean_is(np.stack([z.mean(axis=1), (z**2).mean(axis=1)], axis=1), [-HALF_NORMAL, 1.0])


@pytest.mark.parametrize("value", ZEROS.values(), ids=ZEROS)
def test_proposals_with_a_likelihood_of_zero_are_refused(value):
    assert_half_normal(chains(model=below_the_mean(value), sign=-1))


class Unrefused(FilteredDensity):
    """A twin for which an estimate of zero says nothing, so that its proposals have the present one."""

    def beside(self, points, x, rng):
        found = super().beside(points, x, rng)
        return replace(found, estimate=np.where(np.isfinite(found.estimate), found.estimate, points.estimate))


def test_zeros_that_are_not_refused_are_found_out():
    with pytest.raises(AssertionError):
        assert_half_normal(chains(density=Unrefused, model=below_the_mean(-np.inf), sign=-1))


def test_proposals_outside_the_support_get_no_filter():
    made = target()
    density = ParticleMetropolis(made, filter_of(made), n_particles=4, covariance=[[SD**2]]).density
    rng = np.random.default_rng(1)
    points, calls, run = density.start(np.full((4, 1), MEAN), rng), [], density.estimator.filter.run_with_normals
    below = lambda x: np.where(x[:, 0] < MEAN, 0.0, -np.inf)  # noqa: E731
    density.target = SimpleNamespace(log_density=below)

    def counted(parameters, *rest):
        calls.append(parameters["mu"])
        return run(parameters, *rest)

    density.estimator.filter.run_with_normals = counted
    found = density.beside(points, MEAN + np.array([[-0.1], [0.1], [-0.2], [0.2]]), rng)
    np.testing.assert_allclose(calls, [[MEAN - 0.1, MEAN - 0.2]])
    assert np.isfinite(found.estimate).tolist() == [True, False, True, False]


def test_numbers_of_particles_are_few():
    assert [grid(n) for n in (1, 4, 5, 7, 13, 100)] == [4, 4, 6, 8, 16, 128]


@pytest.fixture(scope="module")
def run():
    return pb.sample_pmmh(target(), draws=600, tune=300, states=True, random_seed=3, progressbar=False)


def test_filters_are_as_large_as_they_have_to_be(run):
    stats = group(run, "sample_stats")
    assert stats["estimate_variance"].values[0, -1] < 1.5
    assert stats["n_particles"].values[0, -1] in [grid(n) for n in range(1, 257)]
    assert group(run, "posterior").attrs["accuracy"] == "exact"


def test_states_are_those_of_the_posterior(run):
    states = group(run, "posterior")["states"].values
    assert states.shape == (8, 600, len(STATES))
    assert_mean_is(states.mean(axis=1), STATES)


def test_filters_are_replayed_from_their_seeds(run):
    stats, attrs = group(run, "sample_stats"), group(run, "posterior").attrs
    assert attrs["compiled_by"] == "numba"
    n, mu = int(stats["n_particles"][0, 0]), group(run, "posterior")["x"].values[:, -1].reshape(-1)
    normals = normals_from(stats["seed"].values[:, -1].view(np.uint64), len(Y) * (n + 1))
    history = Filter(MODEL, Y).history({"mu": mu}, n, None, normals)
    np.testing.assert_allclose(history.increments.sum(axis=0), stats["estimate"].values[:, -1], rtol=1e-10)


def test_the_same_seed_gives_the_same_draws(run):
    again = pb.sample_pmmh(target(), draws=600, tune=300, correlation=0, random_seed=3, progressbar=False)
    assert np.array_equal(group(again, "posterior")["x"], group(run, "posterior")["x"])


def test_warnings_point_at_the_line_of_the_call():
    options = {
        "draws": 30,
        "tune": 30,
        "correlation": 0,
        "covariance": [[1e-6]],
        "random_seed": 1,
        "progressbar": False,
    }
    with pytest.warns(SamplerWarning, match="R-hat|never moved|has variance") as caught:
        pb.sample_pmmh(target(), n_particles=1, **options)
    assert {warning.filename for warning in caught} == {__file__}
    said = r"estimate has variance \d+\.\d with 1 particles, so .*: use (more|about \d+) particles, or take"
    assert sum(bool(re.search(said, str(warning.message))) for warning in caught) == 1


@pytest.mark.parametrize(("stay", "told"), [(300, True), (5, False)])
def test_chains_that_stay_at_an_estimate_are_told_with_what_helps(stay, told):
    """Chains of an autoregression; one of them stays at one estimate for a while, most of which is a warning's business."""
    rng, draws = np.random.default_rng(1), 1000
    z = rng.standard_normal((4, draws, 1))
    for t in range(1, draws):
        z[:, t] = 0.95 * z[:, t - 1] + 0.3 * z[:, t]
    estimate = rng.standard_normal((4, draws))
    z[0, 100 : 100 + stay], estimate[0, 100 : 100 + stay] = z[0, 100], estimate[0, 100]
    at = ("chain", "draw")
    stats = {"estimate": (at, estimate), "n_particles": (at, np.full((4, draws), 10))}
    stats["estimate_variance"] = (at, np.full((4, draws), 5.0))
    made = as_inference_data({"posterior": xr.Dataset({"x": ((*at, "k"), z)}), "sample_stats": xr.Dataset(stats)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_stuck_chains(made)
    assert len(caught) == told
    match = (
        r"for 300 of 1000 draws \(log estimates of 10 particles have variance 5\.0\): "
        r"use about draws=\d{4} for 400 effective draws, "
    )
    assert not told or re.search(match + r"or n_particles=64$", str(caught[0].message))


def test_a_chain_that_stays_in_a_tail_is_told_although_ranks_mix():
    """One chain is in a far tail once, for 120 draws: the effective number by ranks is large, and that of the mean is not."""
    z = np.random.default_rng(1).standard_normal((8, 1000, 1))
    estimate = np.random.default_rng(2).standard_normal((8, 1000))
    z[0, 100:220], estimate[0, 100:220] = -8.0, 0.0
    at = ("chain", "draw")
    stats = {"estimate": (at, estimate), "n_particles": (at, np.full((8, 1000), 32))}
    stats["estimate_variance"] = (at, np.zeros((8, 1000)))
    made = as_inference_data({"posterior": xr.Dataset({"x": ((*at, "k"), z)}), "sample_stats": xr.Dataset(stats)})
    assert effective_draws(z).min() > 400
    with pytest.warns(
        SamplerWarning, match=r"stayed at one estimate for 120 of 1000 draws .*, or sample_smc2, because"
    ):
        warn_of_stuck_chains(made)


def test_bad_input_is_refused_in_one_line():
    with pytest.raises(ModelError, match=r"no state-space model"):
        pb.sample_pmmh(pb.FunctionTarget(1, lambda x: (-(x[:, 0] ** 2), -2 * x)), progressbar=False)
    with pytest.raises(ModelError, match="correlation=0"):
        pb.sample_pmmh(target(), states=True, correlation=0.9, progressbar=False)


@pytest.mark.parametrize(("step", "cores"), [(pb.steps.ParticleMetropolis, 2), (pb.steps.ParticleGibbs, 1)])
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX runs in this process, for other tests
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_steps_run_in_pm_sample(step, cores):
    options = {"chains": cores, "cores": cores, "draws": 60, "tune": 120, "random_seed": 1, "progressbar": False}
    with pm.Model():
        mu = pm.Normal("mu")
        pb.StateSpace("y", MODEL, mu=mu, observed=Y)
        idata = pm.sample(step=step(n_particles=32), compute_convergence_checks=False, **options)
    assert np.isfinite(idata.posterior["mu"]).all()
    assert all(len(np.unique(chain)) > 2 for chain in idata.posterior["mu"].values)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_particle_gibbs_in_forked_workers_is_refused():
    options = {"chains": 2, "cores": 2, "mp_ctx": "fork", "draws": 5, "tune": 5, "random_seed": 1, "progressbar": False}
    with pm.Model():
        pb.StateSpace("y", MODEL, mu=pm.Normal("mu"), observed=Y)
        with pytest.raises(ParallelSamplingError, match=r"use cores=1 in pm\.sample"):
            pm.sample(step=pb.steps.ParticleGibbs(), compute_convergence_checks=False, **options)


def test_chains_start_apart_where_the_posterior_is_not_small():
    density = ParticleMetropolis(target(), filter_of(target()), n_particles=16).density
    starts = np.array([density.initial_point(np.random.default_rng(seed))[0] for seed in range(40)])
    assert (np.abs(starts - MEAN) < 6 * SD).all()
    assert starts.std() > 0.7 * SD
