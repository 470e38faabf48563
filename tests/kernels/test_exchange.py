"""Auxiliary-variable steps: exactness against enumeration and by Geweke's test, with broken twins; errors that fall."""

import itertools
import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.special import comb, logsumexp

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.kernels.adaptation import Windows
from ppl_backends.kernels.doubly_intractable import DoublyIntractable
from ppl_backends.kernels.exchange import AuxiliaryPoints, exchange, mala_exchange
from ppl_backends.kernels.protocol import acceptance_probability
from ppl_backends.results.inference_data import group
from ppl_backends.simulators import ERGM, Ising
from tests.statistics import assert_chain_is_right

LEVEL = 1e-5


def normal_prior(dim, sd=1.0):
    return pb.FunctionTarget(
        dim,
        lambda x: (-0.5 * (x**2).sum(1) / sd**2, -x / sd**2),
        sample_prior=lambda n, rng: sd * rng.standard_normal((n, dim)),
    )


ISING = Ising((3, 3))
LATTICE = np.array([[1, 1, -1], [1, 1, 1], [-1, 1, 1]])


def ising_target():
    return pb.Unnormalized(simulator=ISING, observed=LATTICE, prior=normal_prior(1))


def quiet(function, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplerWarning)
        return function(*args, **options)


def run(target, step, draws=5000, seed=1, chains=2, **options):
    idata = quiet(
        pb.sample_mcmc, target, step=step, draws=draws, chains=chains, random_seed=seed, progressbar=False, **options
    )
    return group(idata, "posterior"), group(idata, "sample_stats")


# -- exactness on enumerable models --------------------------------------------------------------------------------------

GRID = np.linspace(-2.5, 3.0, 1101)


def ising_posterior(power=1.0):
    """Return cumulated exact posterior of the coupling on a grid."""
    configurations = np.array(list(itertools.product((-1, 1), repeat=9))).reshape(-1, 3, 3)
    values, counts = np.unique(ISING.statistics(configurations), return_counts=True)
    log_z = logsumexp(GRID[:, None] * values + np.log(counts), axis=1)
    log_f = power * (GRID * ISING.statistics(LATTICE)[0] - log_z) - 0.5 * GRID**2
    mass = np.exp(log_f - logsumexp(log_f))
    return np.cumsum(mass), mass


def total_variation(x, power=1.0, bins=10):
    """Return the total variation distance between draws and the exact posterior, over bins of equal mass."""
    cumulated, _ = ising_posterior(power)
    edges = np.interp(np.arange(1, bins) / bins, cumulated, GRID)
    shares = np.bincount(np.searchsorted(edges, x), minlength=bins) / len(x)
    return 0.5 * np.abs(shares - 1 / bins).sum()


# Ten equal bins: with 1,500 effective draws the mean total variation is 0.030, its standard deviation 0.007.
NOISE = 0.06


@pytest.mark.parametrize("step", [pb.steps.Exchange(), pb.steps.MALAExchange(n_gradient_draws=3)])
def test_exchange_is_exact_on_an_enumerable_lattice(step):
    posterior, sample_stats = run(ising_target(), step)
    assert posterior.attrs["accuracy"] == "exact"
    assert (sample_stats["approximate"] == 0).all()
    assert "acceptance_error" not in sample_stats
    assert total_variation(posterior["x"].values.ravel()) < NOISE


def test_exchange_is_exact_on_enumerable_graphs():
    graphs = ERGM(4, ["edges", "kstar(2)"], moves="enumerate")
    observed = np.array([[0, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]])
    posterior, _ = run(pb.Unnormalized(simulator=graphs, observed=observed, prior=normal_prior(2)), pb.steps.Exchange())
    axis = np.linspace(-4.5, 4.5, 121)
    theta = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log_z = logsumexp(theta @ graphs._enumerated.T, axis=1)
    log_post = theta @ graphs.statistics(observed) - log_z - 0.5 * (theta**2).sum(1)
    mass = np.exp(log_post - logsumexp(log_post))
    mean = mass @ theta
    sd = np.sqrt(mass @ (theta - mean) ** 2)
    assert_chain_is_right(np.concatenate(posterior["x"].values), mean, sd)


def test_power_is_not_exact_but_near():
    posterior, sample_stats = run(ising_target(), pb.steps.Exchange(power=0.5))
    assert posterior.attrs["accuracy"] == "approximate"
    assert (sample_stats["approximate"] == 1).all()
    assert total_variation(posterior["x"].values.ravel(), power=0.5) < 0.15


# -- Geweke's test: prior, data and a few steps leave the prior ------------------------------------------------------------


def geweke(make, n=2500, steps=4, seed=2):
    """KS p-value: x from its prior, data from the model at x, then posterior steps; x still follows the prior."""
    rng = np.random.default_rng(seed)
    target = ising_target()
    algorithm = make(target)
    x = rng.standard_normal(n)
    data = np.concatenate([ISING.simulate_statistics([theta], 1, rng) for theta in x])
    for i in range(n):
        target.likelihood.observed = data[i : i + 1]
        state = algorithm.start(x[i : i + 1], rng)
        for _ in range(steps):
            state, _ = quiet(algorithm.step, state, rng, False)
        x[i] = state.x[0, 0]
    return stats.kstest(x, "norm").pvalue


SMALL, LARGE = np.array([[0.2]]), np.array([[1.5]])


@pytest.mark.parametrize(
    "make",
    [
        lambda target: exchange(target, covariance=LARGE),
        lambda target: mala_exchange(target, n_gradient_draws=2, covariance=SMALL),
    ],
)
def test_exact_steps_pass(make):
    assert geweke(make) > LEVEL


def draws_at_the_present_point(target):
    """Draw auxiliary data at the wrong end."""
    algorithm = exchange(target, covariance=LARGE)
    density, ratio = algorithm.density, algorithm.density.log_ratio
    rng = np.random.default_rng(0)

    def wrong(points, proposal):
        draws = np.stack([density.model.simulate(x, 1, rng) for x in points.x])
        return ratio(points, replace(proposal, draws=draws))

    algorithm.kernel.log_ratio = wrong
    return algorithm


def mala_accepting_everything(target):
    """Propose Langevin steps without their correction."""
    algorithm = mala_exchange(target, covariance=LARGE)
    algorithm.kernel.log_ratio = lambda points, proposal: np.full(len(points.x), np.inf)
    return algorithm


@pytest.mark.parametrize("broken", [draws_at_the_present_point, mala_accepting_everything])
def test_broken_twins_fail(broken):
    assert geweke(broken) < LEVEL


# -- noisy exchange: the error of the acceptance, and what it bounds -------------------------------------------------------


def test_noisy_exchange_error_falls_and_bounds_the_total_variation():
    """Edges only on four nodes, a grid of θ, uniform proposals: Mitrophanov's bound, with an exact reference chain."""
    graphs = ERGM(4, ["edges"], moves="enumerate")
    grid, m, edges = np.linspace(-2.0, 2.0, 8)[:, None], 6, 2
    observed = np.zeros((4, 4), dtype=int)
    observed[[0, 1, 1, 2], [1, 0, 2, 1]] = 1
    model = DoublyIntractable(pb.Unnormalized(simulator=graphs, observed=observed, prior=normal_prior(1)))
    log_post = grid[:, 0] * edges - m * np.log1p(np.exp(grid[:, 0])) - 0.5 * grid[:, 0] ** 2
    posterior = np.exp(log_post - logsumexp(log_post))
    prior = model.log_prior(grid)
    rng = np.random.default_rng(3)
    n, repeats = len(grid), 300
    exact = np.minimum(1.0, np.exp(log_post[None, :] - log_post[:, None]))
    errors, distances = [], []
    for n_draws in (1, 4, 16, 64):
        accept, error = np.eye(n), np.zeros((n, n))
        for i, j in itertools.permutations(range(n), 2):
            found = [
                model.log_likelihood_ratio(grid[i], grid[j], model.simulate(grid[j], n_draws, rng))
                for _ in range(repeats)
            ]
            estimates = np.minimum(1.0, np.exp(prior[j] - prior[i] + np.array(found)))
            accept[i, j], error[i, j] = estimates.mean(), np.abs(estimates - exact[i, j]).mean()
        errors.append(error.sum(axis=1).max() / n)
        distances.append(0.5 * np.abs(stationary(kernel_of(accept)) - posterior).sum())
    assert (np.diff(errors) < 0).all()
    assert errors[-1] < 0.5 * errors[0]
    assert distances[0] < 0.02  # N = 1 is exact: what is left is the noise of 300 repeats
    kernel, power, constant = kernel_of(exact), np.eye(n), 0.0
    for _ in range(60):  # sum over t of the contraction of the exact kernel after t steps
        constant += 0.5 * max(np.abs(power[i] - power[j]).sum() for i in range(n) for j in range(n))
        power = power @ kernel
    assert (np.array(distances) <= constant * np.array(errors)).all()


def kernel_of(accept):
    """Return the transition matrix of uniform proposals."""
    kernel = accept / len(accept)
    np.fill_diagonal(kernel, 0.0)
    return kernel + np.diag(1.0 - kernel.sum(axis=1))


def stationary(kernel):
    values, vectors = np.linalg.eig(kernel.T)
    vector = np.abs(np.real(vectors[:, np.argmax(np.real(values))]))
    return vector / vector.sum()


def test_independent_ties_have_the_known_constant():
    graphs = ERGM(4, ["edges"], moves="enumerate")
    model = DoublyIntractable(pb.Unnormalized(simulator=graphs, observed=np.zeros((4, 4)), prior=normal_prior(1)))
    rng = np.random.default_rng(4)
    x, t = np.array([-0.5]), np.array([0.3])
    found = model.log_likelihood_ratio(x, t, model.simulate(t, 100_000, rng))
    assert found == pytest.approx(6 * (np.log1p(np.exp(-0.5)) - np.log1p(np.exp(0.3))), abs=0.02)
    assert sum(comb(6, k) for k in range(7)) == 64  # graphs on four nodes


@pytest.mark.parametrize(
    "step", [pb.steps.NoisyExchange(n_draws=20), pb.steps.NoisyMALAExchange(n_draws=20)], ids=["random walk", "mala"]
)
def test_noisy_steps_report_their_error(step):
    with pytest.warns(SamplerWarning, match=r"approximate: the estimated acceptance probabilities are off by 0\.\d\d"):
        idata = pb.sample_mcmc(ising_target(), step=step, draws=4000, chains=2, random_seed=1, progressbar=False)
    posterior, sample_stats = group(idata, "posterior"), group(idata, "sample_stats")
    assert posterior.attrs["accuracy"] == "approximate"
    errors = sample_stats["acceptance_error"].values
    found = errors[np.isfinite(errors)]
    assert 20 <= len(found) <= 60
    assert 0.0 < found.mean() < 0.25
    assert total_variation(posterior["x"].values.ravel()) < NOISE + 0.05


def test_a_run_is_checked_afterwards():
    target, found = ising_target(), []
    steps = [pb.steps.NoisyExchange(n_draws=n) for n in (2, 50)]
    steps += [pb.steps.NoisyLangevin(step_size=size, covariance=[[0.3]]) for size in (1.0, 0.05)]
    for step in steps:
        idata = quiet(pb.sample_mcmc, target, step=step, draws=300, chains=1, random_seed=1, progressbar=False)
        check = pb.steps.check_acceptance(target, idata, step=step, states=60, random_seed=2)
        found.append(check["mean_absolute_error"])
    assert found[1] < 0.6 * found[0]
    assert found[3] < 0.6 * found[2]
    with pytest.raises(ModelError, match="exchange is exact given exact draws"):
        pb.steps.check_acceptance(target, idata, step=pb.steps.Exchange())


def test_reference_acceptance_agrees_with_the_exact_one():
    """What the noisy run is checked against: at least 20 N draws."""
    density, rng = exchange(ising_target(), n_draws=50).density, np.random.default_rng(5)
    _, mass = ising_posterior()
    x, t = np.array([[GRID[600]]]), np.array([[GRID[640]]])
    here, there = (AuxiliaryPoints(point, -0.5 * point[:, 0] ** 2, None) for point in (x, t))
    found = [
        acceptance_probability(density.log_ratio(here, density.with_reference_draws(there, rng))) for _ in range(20)
    ]
    assert np.mean(found) == pytest.approx(min(1.0, mass[640] / mass[600]), abs=0.02)


@pytest.mark.slow
def test_langevin_bias_shrinks_with_its_step():
    """Posterior sds are inflated by the step: unadjusted Langevin on a Gaussian has variance 1 / (1 − Σ/4)."""
    _, mass = ising_posterior()
    mean = mass @ GRID
    sd = np.sqrt(mass @ (GRID - mean) ** 2)
    target = ising_target()
    errors = []
    for step_size in (1.6, 0.2):
        step = pb.steps.NoisyLangevin(step_size=step_size, n_draws=20, covariance=[[sd**2]])
        posterior, sample_stats = run(target, step, tune=100)
        assert posterior.attrs["accuracy"] == "approximate"
        assert (sample_stats["accept"] == 1).all()
        errors.append((posterior["x"].values.std() / sd - 1, float(sample_stats["acceptance_error"].mean())))
    assert errors[0][0] > 0.2
    assert abs(errors[1][0]) < 0.12
    assert errors[1][1] < errors[0][1]


# -- targets from plain functions -------------------------------------------------------------------------------------------


def poisson_target(**options):
    """Return counts with rate exp(x), as if the constant exp(−n rate) were not known."""
    counts = np.array([3, 0, 1, 2])

    def log_unnormalized(x, data):
        return data.sum(axis=1) * x[0]

    def simulate(x, n, rng):
        return rng.poisson(np.exp(x[0]), size=(n, 4))

    settings = {"log_unnormalized": log_unnormalized, "simulate": simulate, "observed": counts, "exact": True}
    return pb.Unnormalized(prior=normal_prior(1), **{**settings, **options})


@pytest.mark.parametrize("gradient", [None, lambda x, data: data.sum(axis=1, keepdims=True)])
def test_plain_functions(gradient):
    target = poisson_target(gradient=gradient)
    posterior, _ = run(target, pb.steps.MALAExchange())
    grid = np.linspace(-5, 5, 4001)
    log_post = 6 * grid - 4 * np.exp(grid) - 0.5 * grid**2
    mass = np.exp(log_post - logsumexp(log_post))
    mean = mass @ grid
    sd = np.sqrt(mass @ (grid - mean) ** 2)
    assert_chain_is_right(np.concatenate(posterior["x"].values), mean, sd)
    assert target.simulate(np.zeros((3, 1)), np.random.default_rng(1)).shape == (3, 4)


@pytest.mark.filterwarnings("ignore:.*R-hat")  # a short run
def test_undeclared_simulator_is_approximate():
    with pytest.warns(SamplerWarning, match="not declared exact"):
        idata = pb.sample_mcmc(
            poisson_target(exact=False), step=pb.steps.Exchange(), draws=50, tune=50, random_seed=1, progressbar=False
        )
    assert group(idata, "posterior").attrs["accuracy"] == "approximate"
    assert group(idata, "posterior").attrs["simulator_exact"] == 0


@pytest.mark.parametrize(
    "method",
    [
        pb.fit_laplace,
        pb.fit_ep,
        lambda target: pb.sample_smc(target, draws=50, progressbar=False),
        lambda target: pb.sample_smc(target, draws=50, initial="laplace", progressbar=False),
        lambda target: pb.sample_smc(target, draws=50, power=0.5, progressbar=False),
        lambda target: pb.sample_importance(target, draws=50, progressbar=False),
        lambda target: pb.sample_mcmc(target, step=pb.steps.RandomWalk(), draws=50, progressbar=False),
    ],
)
def test_every_other_method_refuses(method):
    with pytest.raises(ModelError, match=r"'y' is pb.Unnormalized.*pb\.steps\.Exchange"):
        method(poisson_target())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: poisson_target(simulate=None), "simulate= is missing"),
        (lambda: poisson_target(log_unnormalized=None), "log_unnormalized= is missing"),
        (lambda: poisson_target(observed=None), "needs observed="),
        (lambda: pb.Unnormalized(simulator=ISING, observed=LATTICE), "prior= is missing"),
        (lambda: pb.Unnormalized(simulator=ISING, observed=LATTICE, prior=normal_prior(2)), "2 coordinates"),
        (lambda: poisson_target(logp=len), "give its name first"),
        (lambda: poisson_target(simulator=ISING), "either simulator="),
        (lambda: exchange(normal_prior(1)), "no observed variable is pb.Unnormalized"),
        (lambda: pb.steps.NoisyExchange(n_draws=0), "n_draws=0"),
        (lambda: pb.steps.Exchange(power=-1), "power=-1"),
        (lambda: exchange(ising_target(), covariance=np.eye(2)), r"positive definite \(1, 1\)"),
        (lambda: pb.steps.NoisyLangevin(step_size=0), "step_size=0"),
        (lambda: run(ising_target(), pb.steps.Exchange(), tune=0), "give covariance="),
        (lambda: run(ising_target(), pb.steps.NoisyLangevin(), tune=0), "give covariance="),
        (lambda: run(poisson_target(simulate=lambda x, n, rng: np.zeros(n)), pb.steps.Exchange()), "returned shape"),
        (lambda: run(poisson_target(log_unnormalized=lambda x, y: 0.0), pb.steps.Exchange()), "returned shape"),
    ],
)
def test_wrong_use(make, message):
    with pytest.raises(ModelError, match=message):
        make()


def test_windowed_covariance_forgets_the_way():
    rng = np.random.default_rng(6)
    windows = Windows("dense")
    true = np.array([[2.0, 0.6], [0.6, 0.5]])
    for i in range(700):
        x = np.array([50.0 - i, 0.0]) if i < 90 else rng.multivariate_normal(np.zeros(2), true)
        windows = windows.update(x[None])
    np.testing.assert_allclose(windows.factor[0] @ windows.factor[0].T, true, rtol=0.3, atol=0.1)


def test_draws_that_are_impossible_at_the_point_have_a_reference_acceptance():
    """y ~ U(0, exp(x)): from x = 1 upwards, few of the draws at a proposal are possible at the point."""

    def log_f(x, data):
        return np.where((data <= np.exp(x[0])).all(axis=1), 0.0, -np.inf)

    def simulate(x, n, rng):
        return rng.uniform(0, np.exp(x[0]), (n, 10))

    target = pb.Unnormalized(
        log_unnormalized=log_f, simulate=simulate, observed=np.full(10, 0.01), prior=normal_prior(1), exact=True
    )
    algorithm = exchange(target, n_draws=2, covariance=np.array([[0.01]]))
    estimated, reference = algorithm.acceptance_pairs(np.ones((200, 1)), np.random.default_rng(1))
    missed = estimated == 0
    assert missed.sum() > 20
    assert (reference[missed] > 0).mean() > 0.5
