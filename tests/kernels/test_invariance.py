"""Every exact kernel leaves its target invariant, in every host; a broken twin of each is caught.

Exact draws of a target are moved a few steps, and still follow it. The hosts are a population as sequential Monte Carlo moves
it, :func:`~ppl_backends.sample_mcmc` with as many chains as there are draws, and the step method that PyMC's loop calls.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import logsumexp

import ppl_backends as pb
from ppl_backends.kernels.algorithm import Algorithm
from ppl_backends.kernels.barker import Barker
from ppl_backends.kernels.calibrated import Evaluated, calibrated, independence_sampler
from ppl_backends.kernels.cycle import Cycle
from ppl_backends.kernels.exchange import exchange, mala_exchange
from ppl_backends.kernels.hmc import Hmc
from ppl_backends.kernels.independent import Independent
from ppl_backends.kernels.mala import Mala
from ppl_backends.kernels.metric import SplitMetric
from ppl_backends.kernels.protocol import accept, column
from ppl_backends.kernels.pseudo_marginal import EstimatedPoints, PseudoMarginal
from ppl_backends.kernels.random_walk import RandomWalk
from ppl_backends.kernels.subsampling.exact import RowSampler, Scalable, Tuna
from ppl_backends.kernels.subsampling.kernel import RowsAlgorithm
from ppl_backends.kernels.subsampling.rows import QuadraticLogPrior, SiteRows
from ppl_backends.kernels.table import KERNELS, make_kernel
from ppl_backends.kernels.tuning import StepParameters, Uneven, with_metric
from ppl_backends.numerics.gaussian import Gaussian
from ppl_backends.results.inference_data import group
from ppl_backends.simulators import Ising
from ppl_backends.steps import Step
from ppl_backends.steps.adapter import PyMCStep
from ppl_backends.targets.factors.compiled import LOGIT
from tests.statistics import FALSE_FAILURE

# Kolmogorov–Smirnov level: all figures of this file together fail at the stated rate.
LEVEL = FALSE_FAILURE / 100
STEPS = 3


# -- targets with exact draws ----------------------------------------------------------------------------------------------

SHAPE = 2.0


def gamma_density(x):
    """Return two independent logs of Gamma(2) variables: skewed."""
    return (SHAPE * x - np.exp(x)).sum(axis=1), SHAPE - np.exp(x)


GAMMA = pb.FunctionTarget(2, gamma_density)
Q = pb.GaussianApproximation(np.array([0.4, 0.4]), np.array([[0.81, 0.36], [0.36, 0.65]]))
METRIC = Gaussian(np.array([0.4, 0.4]), np.array([[0.9, 0.0], [0.4, 0.7]]))


def gamma_draws(n, rng):
    return np.log(rng.gamma(SHAPE, size=(n, 2)))


def gamma_cdf(x):
    return stats.gamma.cdf(np.exp(x), SHAPE)


class OnGrid:
    """Draws and the distribution function of a density of one coordinate."""

    def __init__(self, grid, log_density):
        mass = np.exp(log_density - log_density.max())
        trapezia = 0.5 * (mass[1:] + mass[:-1])
        self.grid, self.cumulated = grid, np.concatenate([[0.0], np.cumsum(trapezia)]) / trapezia.sum()

    def draws(self, n, rng):
        return np.interp(rng.random(n), self.cumulated, self.grid)[:, None]

    def cdf(self, x):
        return np.interp(x, self.grid, self.cumulated)


# -- hosts -----------------------------------------------------------------------------------------------------------------


def as_population(algorithm, x, rng):
    """Move all points at once, as sequential Monte Carlo does."""
    population, parameters = algorithm.density.start(x, rng), algorithm.density.parameters().settled()
    for _ in range(STEPS):
        population, _ = algorithm.kernel.step(rng, population, algorithm.density, parameters)
    return population.x


class Bound(Step):
    """A step method of an algorithm that has its target."""

    def __init__(self, vars=None, *, algorithm=None, model=None):
        self.made = algorithm

    def bind(self, target):
        return self.made


def in_sample_mcmc(algorithm, x, rng):
    """Begin a chain at every draw."""
    target = pb.FunctionTarget(x.shape[1], lambda x: (np.zeros(len(x)), np.zeros_like(x)))
    options = {"draws": STEPS, "tune": 0, "chains": len(x), "random_seed": rng, "progressbar": False}
    idata = pb.sample_mcmc(target, step=Bound(algorithm=algorithm), initvals=x, **options)
    return group(idata, "posterior")["x"].values[:, -1].reshape(x.shape)


def in_pymc(algorithm, x, rng):
    """Take every draw as the point that PyMC's loop passes when a chain begins."""
    with pm.Model() as model:
        pm.Flat("x", shape=x.shape[1])
    target = pb.FunctionTarget(x.shape[1], lambda x: (np.zeros(len(x)), np.zeros_like(x)))
    step = PyMCStep(algorithm, target, model.value_vars, {"x": (x.shape[1],)}, np.full(x.shape[1], np.inf))
    found = np.empty_like(x)
    for i, start in enumerate(x):
        step.set_rng(rng)
        step.tune, point = False, {"x": start}
        for _ in range(STEPS):
            point, _ = step.step(point)
        found[i] = point["x"]
    return found


HOSTS = {"population": as_population, "sample_mcmc": in_sample_mcmc, "pymc": in_pymc}


# -- kernels and their broken twins ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A kernel on a target."""

    algorithm: Callable[[], Algorithm]
    broken: Callable[[], Algorithm]
    draws: Callable[[int, Any], np.ndarray] = gamma_draws
    cdf: Callable[[np.ndarray], np.ndarray] = gamma_cdf
    n: int = 1500  # that the broken twin fails with
    n_population: int = 20_000


def on_gamma(kernel, scale=1.2):
    return lambda: calibrated(GAMMA, kernel(balanced=False), Q, adapt=False, scale=scale)


class RandomWalkWithDrift(RandomWalk):
    """An asymmetric proposal accepted as if it were symmetric."""

    def step(self, rng, population, density, parameters):
        jump = column(parameters.scale) * (rng.standard_normal(population.x.shape) + 0.8)
        proposal = density(population.x + parameters.metric.colour(jump), rng)
        return accept(rng, population, proposal, self.log_ratio(population, proposal), (jump**2).sum(axis=1))


def everything(points, proposal):
    """Return the ratio of a step that accepts everything."""
    return np.full(len(points.x), np.inf)


class UnadjustedMala(Mala):
    """Langevin without its correction."""

    def __init__(self, **options):
        super().__init__(log_ratio=everything, **options)


class UnadjustedBarker(Barker):
    """The Barker proposal without its correction."""

    def __init__(self, **options):
        super().__init__(log_ratio=everything, **options)


class HmcWithoutLastHalfKick(Hmc):
    """Ends its trajectories with a whole kick, so that they are not reversible, and believes that energies agree."""

    def step(self, rng, population, density, parameters):
        metric, h = parameters.metric, 1.2
        p, ahead = rng.standard_normal(population.x.shape), population
        p = p + 0.5 * h * metric.whiten_gradient(population.gradient)
        for _ in range(2):
            ahead = density(ahead.x + metric.colour(h * p), rng)
            p = p + h * metric.whiten_gradient(ahead.gradient)
        return accept(rng, population, ahead, everything(population, ahead), (p**2).sum(axis=1))


class IndependentWithoutReference(Independent):
    """Leaves out the density that its proposals come from."""

    def step(self, rng, population, density, parameters):
        proposal = density(parameters.metric.place(rng.standard_normal(population.x.shape)), rng)
        return accept(rng, population, proposal, self.log_ratio(population, proposal), np.zeros(len(population.x)))


class CycleOfBrokenParts(Cycle):
    """Its parts are broken."""

    parts = (RandomWalkWithDrift(), IndependentWithoutReference(balanced=False))


class CycleOfChains(Cycle):
    """Parts whose points draw by themselves."""

    parts = (RandomWalk(), Independent(balanced=False))


def forgetful_of_the_reference():
    algorithm = independence_sampler(GAMMA, Q)
    density = algorithm.density.target.log_density
    algorithm.kernel.log_ratio = lambda points, proposal: 0.5 * (density(proposal.x) - density(points.x))
    return algorithm


ISING = Ising((3, 3))
LATTICE = np.array([[1, 1, -1], [1, 1, 1], [-1, 1, 1]])
NORMAL_PRIOR = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))


def ising_target():
    return pb.Unnormalized(simulator=ISING, observed=LATTICE, prior=NORMAL_PRIOR)


def ising_posterior():
    """Return the posterior of the coupling, by enumeration."""
    grid = np.linspace(-4.0, 4.0, 1601)
    spins = 2 * ((np.arange(512)[:, None] >> np.arange(9)) & 1).reshape(-1, 3, 3) - 1
    values, counts = np.unique(ISING.statistics(spins), return_counts=True)
    log_z = logsumexp(grid[:, None] * values + np.log(counts), axis=1)
    return OnGrid(grid, grid * ISING.statistics(LATTICE)[0] - log_z - 0.5 * grid**2)


def exchange_with_draws_at_the_present_point():
    algorithm = exchange(ising_target(), covariance=[[1.0]])
    density, ratio = algorithm.density, algorithm.density.log_ratio
    rng = np.random.default_rng(0)

    def wrong(points, proposal):
        return ratio(points, replace(proposal, draws=np.stack([density.model.simulate(x, 1, rng) for x in points.x])))

    algorithm.kernel.log_ratio = wrong
    return algorithm


def mala_exchange_accepting_everything():
    algorithm = mala_exchange(ising_target(), n_gradient_draws=2, covariance=[[1.0]])
    algorithm.kernel.log_ratio = lambda points, proposal: np.full(len(points.x), np.inf)
    return algorithm


OBSERVED, N_ESTIMATES = 2.0, 2


def pseudo_marginal(broken=False):
    """Return x ~ N(0, 1), z ~ N(0, 1), y ~ N(x + z, 1) with z integrated by two draws, at an extended draw."""

    def log_f(x, z):
        return -0.5 * (OBSERVED - x - z) ** 2

    def estimate(values, u):
        return log_f(values["x"][:, 0], u[:, 0])

    algorithm = PseudoMarginal(
        NORMAL_PRIOR,
        log_likelihood_estimate=estimate,
        n_normals=1,
        n_estimates=N_ESTIMATES,
        correlation=0.5,
        covariance=[[1.0]],
    )

    def start(x, rng):
        u = rng.standard_normal((len(x), N_ESTIMATES, 1))
        u[:, :1] = (0.5 * (OBSERVED - x) + np.sqrt(0.5) * rng.standard_normal(x.shape))[:, None]
        estimates = logsumexp(log_f(x, u[:, :, 0]), axis=1) - np.log(N_ESTIMATES)
        return EstimatedPoints(x, -0.5 * x[:, 0] ** 2, estimates, u, N_ESTIMATES, np.nan)

    algorithm.density.start = start
    if broken:
        algorithm.kernel.log_ratio = lambda points, proposal: proposal.log_rest - points.log_rest
    return algorithm


def normal_draws(n, rng):
    return OBSERVED / 3 + np.sqrt(2 / 3) * rng.standard_normal((n, 1))


def normal_cdf(x):
    return stats.norm.cdf(x, OBSERVED / 3, np.sqrt(2 / 3))


def logistic_rows():
    """Return twelve outcomes on one covariate, with a prior N(0, 1.5²)."""
    rng = np.random.default_rng(5)
    design, y = 2 * rng.normal(size=(12, 1)), rng.integers(0, 2, 12)
    return SiteRows(design, 0.0, y, 1.0, LOGIT, QuadraticLogPrior(0.0, np.zeros(1), -np.eye(1) / 1.5**2))


def logistic_posterior():
    grid, rows = np.linspace(-6.0, 6.0, 4001), logistic_rows()
    s = grid[:, None] * rows.design[:, 0]
    return OnGrid(grid, (s * rows.y - np.logaddexp(0, s)).sum(axis=1) - 0.5 * grid**2 / 1.5**2)


class TrustsItsControlVariates(Scalable):
    """As if the bounds on what they leave were zero, and prior and expansion flatter than they are."""

    def __init__(self, rows, **options):
        super().__init__(rows, **options)
        self.near = self.far = RowSampler(1e-12 * self.far.bounds)
        if self._compiled is not None:
            self._compiled = self._compiled._replace(hessian=0.3 * self._compiled.hessian)


class TunaOfAnotherPrior(Tuna):
    """The prior outside of the minibatch is another one."""

    def at(self, x):
        return replace(super().at(x), known=np.full(1, 4.0 * x[0]))


def on_rows(kernel, **options):
    return lambda: RowsAlgorithm(kernel(logistic_rows(), **options))


POSTERIOR, LOGISTIC = ising_posterior(), logistic_posterior()
ON_ROWS = {"draws": LOGISTIC.draws, "cdf": LOGISTIC.cdf, "n_population": 5000}
ON_LATTICE = {"draws": POSTERIOR.draws, "cdf": POSTERIOR.cdf, "n": 1000, "n_population": 1500}

CASES = {
    "random_walk": Case(on_gamma(RandomWalk), on_gamma(RandomWalkWithDrift)),
    "mala": Case(on_gamma(Mala), on_gamma(UnadjustedMala, 1.5)),
    "barker": Case(on_gamma(Barker, 1.6), on_gamma(UnadjustedBarker, 1.6)),
    "hmc": Case(on_gamma(Hmc, 0.9), on_gamma(HmcWithoutLastHalfKick)),
    "hmc of a length": Case(
        lambda: calibrated(GAMMA, Hmc(1.5, balanced=False), Q, adapt=False, scale=0.8),
        on_gamma(HmcWithoutLastHalfKick),
    ),
    "independent": Case(on_gamma(Independent), on_gamma(IndependentWithoutReference)),
    "independent from q": Case(lambda: independence_sampler(GAMMA, Q), forgetful_of_the_reference),
    "mixed": Case(on_gamma(CycleOfChains), on_gamma(CycleOfBrokenParts)),
    "exchange": Case(
        lambda: exchange(ising_target(), covariance=[[1.0]]), exchange_with_draws_at_the_present_point, **ON_LATTICE
    ),
    "MALA exchange": Case(
        lambda: mala_exchange(ising_target(), n_gradient_draws=2, covariance=[[0.3]]),
        mala_exchange_accepting_everything,
        **ON_LATTICE,
    ),
    "pseudo-marginal": Case(
        pseudo_marginal, lambda: pseudo_marginal(broken=True), normal_draws, normal_cdf, n_population=5000
    ),
    "scalable": Case(on_rows(Scalable, steps=3), on_rows(TrustsItsControlVariates, steps=3), **ON_ROWS),
    "scalable, independent": Case(
        on_rows(Scalable, independent=True, steps=3),
        on_rows(TrustsItsControlVariates, independent=True, steps=3),
        **ON_ROWS,
    ),
    "tuna": Case(on_rows(Tuna, chi=0.1, scale=1.5), on_rows(TunaOfAnotherPrior, chi=0.1, scale=1.5), **ON_ROWS),
}


def p_value(case, algorithm, host):
    """Return the smaller p-value of the coordinates after a few steps."""
    rng = np.random.default_rng(1)
    x = HOSTS[host](algorithm, case.draws(case.n_population if host == "population" else case.n, rng), rng)
    return min(stats.kstest(case.cdf(column), "uniform").pvalue for column in x.T)


@pytest.mark.filterwarnings("ignore:.*R-hat", "ignore:.*ever moved")  # three draws a chain
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", CASES)
def test_exact_kernels_leave_their_targets_invariant(name, host):
    assert p_value(CASES[name], CASES[name].algorithm(), host) > LEVEL


@pytest.mark.filterwarnings("ignore:.*R-hat", "ignore:.*ever moved")
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", CASES)
def test_broken_twins_are_caught(name, host):
    assert p_value(CASES[name], CASES[name].broken(), host) < LEVEL


# -- what the parameters of sequential Monte Carlo can be ------------------------------------------------------------------


def density(x, rng):
    return Evaluated(x, *gamma_density(x))


SPLIT = SplitMetric(METRIC, Gaussian(np.zeros(2), np.ones(2)))
RNG = np.random.default_rng(2)
N = 20_000
CHOICES = {
    "one step": 0.9,
    "uneven steps": Uneven(0.9),
    "each its own": StepParameters(RNG.uniform(0.1, 1.2, N), RNG.integers(1, 8, N)),
}


@pytest.mark.parametrize("metric", [METRIC, SPLIT], ids=["common", "split"])
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_of_the_table_are_exact_with_every_kind_of_parameters(name, choice, metric):
    kernel, rng = make_kernel(name), np.random.default_rng(3)
    population = density(gamma_draws(N, rng), rng)
    for _ in range(STEPS):
        parameters = with_metric(CHOICES[choice], metric, N, rng)
        population, _ = kernel.step(rng, population, density, parameters)
    assert min(stats.kstest(gamma_cdf(column), "uniform").pvalue for column in population.x.T) > LEVEL


def test_every_kernel_of_the_table_is_a_case():
    assert set(KERNELS) <= set(CASES)
    assert all(kernel.exact for kernel in KERNELS.values())
