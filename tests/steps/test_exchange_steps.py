"""Models with an unnormalised observed variable: exchange in ``pm.sample`` and ``sample_mcmc``, and refusals elsewhere."""

import itertools
import warnings

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import logsumexp

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.results.inference_data import group
from ppl_backends.simulators import Ising

QUIET = {"progressbar": False, "random_seed": 1}
ISING = Ising((3, 3))
LATTICE = np.array([[1, 1, -1], [1, 1, 1], [-1, 1, 1]])


def lattice_model():
    """Return a coupling known by its lattice and by a noisy measurement of b ~ N(coupling, 1)."""
    with pm.Model(coords={"term": ["coupling"]}) as model:
        theta = pm.Normal("theta", 0, 1, dims="term")
        pb.Unnormalized("y", theta, simulator=ISING, observed=LATTICE)
        b = pm.Normal("b", theta[0], 1)
        pm.Normal("w", b, 1, observed=1.0)
    return model


@pytest.fixture(scope="module")
def model():
    return lattice_model()


def moments():
    """Return moments of the coupling and of b, on a grid: w | coupling ~ N(coupling, 2)."""
    grid = np.linspace(-3, 4, 1401)
    configurations = np.array(list(itertools.product((-1, 1), repeat=9))).reshape(-1, 3, 3)
    values, counts = np.unique(ISING.statistics(configurations), return_counts=True)
    log_z = logsumexp(grid[:, None] * values + np.log(counts), axis=1)
    log_post = grid * ISING.statistics(LATTICE)[0] - log_z - 0.5 * grid**2 - 0.25 * (1 - grid) ** 2
    mass = np.exp(log_post - logsumexp(log_post))
    mean = mass @ grid
    variance = mass @ (grid - mean) ** 2
    return {"theta": (mean, np.sqrt(variance)), "b": ((mean + 1) / 2, np.sqrt(0.5 + variance / 4))}


def check(idata, slack=0.0):
    for name, (mean, sd) in moments().items():
        draws = group(idata, "posterior")[name].values
        # At least 500 effective draws: standard errors of 0.045 sd and 3.5 per cent.
        assert abs(draws.mean() - mean) < (0.2 + slack) * sd
        assert abs(draws.std() / sd - 1) < 0.17 + slack


@pytest.mark.parametrize("cores", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_block_beside_nuts(model, cores, tmp_path):
    with model:
        step = [pb.steps.Exchange(["theta"]), pm.NUTS([model["b"]])]
        idata = pm.sample(
            step=step, draws=2000, tune=500, chains=2, cores=cores, compute_convergence_checks=False, **QUIET
        )
    check(idata)
    assert group(idata, "posterior")["theta"].dims == ("chain", "draw", "term")
    assert (group(idata, "sample_stats")["approximate"] == 0).all()
    idata.to_netcdf(str(tmp_path / "run.nc"))


@pytest.mark.slow
def test_whole_model_in_both_loops(model):
    with model:
        step = pb.steps.MALAExchange(n_gradient_draws=5)
        first = pm.sample(step=step, draws=2000, tune=500, chains=2, cores=1, compute_convergence_checks=False, **QUIET)
    second = pb.sample_mcmc(
        model, step=pb.steps.MALAExchange(n_gradient_draws=5), draws=2000, tune=500, chains=2, **QUIET
    )
    for idata in (first, second):
        check(idata)
    assert group(second, "posterior").attrs["accuracy"] == "exact"
    assert group(second, "posterior")["theta"].dims == ("chain", "draw", "term")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: pb.steps.NoisyMALAExchange(n_draws=50), marks=pytest.mark.slow),
        lambda: pb.steps.NoisyLangevin(step_size=0.1),
    ],
)
def test_approximate_steps_say_so_once_in_pymc(model, make):
    step_of_langevin = "Langevin" in type(make()).__name__
    n = {"draws": 50, "tune": 50} if step_of_langevin else {"draws": 800, "tune": 400}
    with model, pytest.warns(SamplerWarning, match="is approximate") as caught:
        idata = pm.sample(step=make(), chains=2, cores=1, compute_convergence_checks=False, **n, **QUIET)
    assert sum("is approximate" in str(warning.message) for warning in caught) == 1
    stats = group(idata, "sample_stats")
    assert (stats["approximate"] == 1).all()
    assert np.isfinite(stats["acceptance_error"].values).any()
    if not step_of_langevin:
        check(idata, slack=0.1)


def test_pickling_and_initial_values(model):
    """A copy of a step belongs to the model that is copied with it."""
    with model:
        step = pb.steps.Exchange(covariance=1e-6 * np.eye(2))
    runs = []
    for owner, each in ((model, step), cloudpickle.loads(cloudpickle.dumps((model, step)))):
        options = {"draws": 20, "tune": 0, "chains": 2, "cores": 1, "compute_convergence_checks": False, **QUIET}
        with owner:
            runs.append(group(pm.sample(step=each, initvals={"b": 3.0}, **options), "posterior")["b"].values)
    np.testing.assert_array_equal(*runs)
    assert np.abs(runs[0] - 3.0).max() < 0.1


@pytest.mark.slow
def test_functions_in_place_of_a_simulator():
    """Counts with their constant left out."""
    counts = np.array([3, 0, 1, 2])
    with pm.Model() as model:
        rate = pm.Gamma("rate", 1.5, 0.5)
        pb.Unnormalized(
            "y",
            rate,
            logp=lambda value, rate: pt.sum(value) * pt.log(rate),
            random=lambda rate, rng, size: rng.poisson(rate, size=(*size, 4)),
            observed=counts,
            exact=True,
        )
        step = pb.steps.Exchange()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Numba will use object mode")  # PyMC 6, of every CustomDist
            predicted = pm.sample_prior_predictive(50, random_seed=1)
    assert group(predicted, "prior_predictive")["y"].shape[1:] == (50, 4)
    idata = pb.sample_mcmc(model, step=step, draws=4000, chains=2, **QUIET)
    draws = group(idata, "posterior")["rate"].values
    mean, sd = 7.5 / 4.5, 7.5**0.5 / 4.5  # Gamma(1.5 + 6, 0.5 + 4)
    assert abs(draws.mean() - mean) < 0.2 * sd
    assert abs(draws.std() / sd - 1) < 0.2
    with pytest.raises(ModelError, match=r"'y' is pb\.Unnormalized"):
        pb.fit_laplace(model)


# -- everything else refuses -----------------------------------------------------------------------------------------------

METHODS = {
    "as_target": lambda: pb.as_target().log_density(np.zeros((1, 2))),
    "fit_laplace": pb.fit_laplace,
    "fit_ep": pb.fit_ep,
    "fit_vi": pb.fit_vi,
    "sample_importance": lambda: pb.sample_importance(draws=50, progressbar=False),
    "sample_smc": lambda: pb.sample_smc(draws=50, progressbar=False),
    "sample_smc, laplace": lambda: pb.sample_smc(draws=50, initial="laplace", progressbar=False),
    "sample_smc, power": lambda: pb.sample_smc(draws=50, power=0.5, progressbar=False),
    "with_power": lambda: pb.with_power(pb.as_target(), 0.5).log_density(np.zeros((1, 2))),
    "sample_mcmc": lambda: pb.sample_mcmc(progressbar=False),
    "RandomWalk": lambda: pb.steps.RandomWalk(),
    "HMC": lambda: pb.steps.HMC(),
    "MALA": lambda: pb.steps.MALA(["theta"]),
    "Independent": lambda: pb.steps.Independent(),
    "PseudoMarginal": lambda: pb.steps.PseudoMarginal(log_likelihood_estimate=len),
    "InformedSubsampling": lambda: pb.steps.InformedSubsampling(),
    "SubsampledMetropolis": lambda: pb.steps.SubsampledMetropolis(),
    "SubsampledHMC": lambda: pb.steps.SubsampledHMC(),
    "TunaMetropolis": lambda: pb.steps.TunaMetropolis(),
    "ScalableMetropolis": lambda: pb.steps.ScalableMetropolis(),
}


@pytest.mark.parametrize("method", METHODS)
def test_every_other_method_refuses_with_one_line(model, method):
    with model, pytest.raises(ModelError, match=r"'y' is pb\.Unnormalized.*Exchange") as caught:
        METHODS[method]()
    assert "\n" not in str(caught.value)


def test_gradient_based_steps_of_pymc_refuse(model):
    with model, pytest.raises(ModelError, match=r"'y' is pb\.Unnormalized"):
        pm.NUTS()
    with model, pytest.raises(ModelError, match=r"'y' is pb\.Unnormalized"):
        pm.find_MAP(progressbar=False)


def unnormalized(*parameters, **options):
    with pm.Model():
        theta = pm.Normal("theta", shape=1)
        pb.Unnormalized("y", *(parameters or (theta,)), **{"observed": LATTICE, **options})
        return pb.steps.Exchange()


def ordinary():
    with pm.Model():
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1, observed=1.0)
        return pb.steps.Exchange()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (ordinary, "no observed variable of the model is pb.Unnormalized"),
        (lambda: unnormalized(), "'y'.*logp= is missing"),
        (lambda: unnormalized(logp=lambda value, theta: pt.sum(value)), "'y'.*random= is missing"),
        (lambda: unnormalized(simulator=ISING, logp=len), "'y'.*either simulator="),
        (lambda: unnormalized(np.ones((1, 1)), simulator=ISING), "'y'.*one vector"),
        (lambda: unnormalized(simulator=ISING, observed=LATTICE[:2]), "data have shape"),
        (lambda: unnormalized(simulator=ISING, observed=None), "needs observed="),
    ],
)
def test_wrong_models(make, message):
    with pytest.raises(ModelError, match=message):
        make()


def test_a_single_parameter_can_be_a_number():
    drawn = []
    for shape in (1, None):
        with pm.Model() as model:
            pb.Unnormalized("y", pm.Normal("theta", shape=shape), simulator=ISING, observed=LATTICE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SamplerWarning)  # so few draws cannot converge
            idata = pb.sample_mcmc(model, step=pb.steps.Exchange(), draws=20, tune=20, chains=1, **QUIET)
        drawn.append(group(idata, "posterior")["theta"].values.ravel())
    np.testing.assert_array_equal(*drawn)


def test_block_without_a_variable_of_the_likelihood(model):
    with model, pytest.raises(ModelError, match="'y' depends on theta"):
        pb.steps.Exchange(["b"])


def test_draws_that_the_type_of_the_observed_data_would_round_are_refused():
    """Whole numbers as data of a normal: draws cut to whole numbers moved the mean of the posterior by 1.4 of its sds."""

    def drawn(theta, rng, size):
        return rng.normal(theta, 1.0, size=(*size, 8))

    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 10)
        observed = np.array([2, 3, 1, 4, 2, 3, 3, 2])
        pb.Unnormalized("y", theta, logp=lambda y, t: (t * y - 0.5 * y**2).sum(), random=drawn, observed=observed)
    with pytest.raises(ModelError, match="draws float64 that int64, the type of the observed data, would round"):
        pb.sample_mcmc(model, step=pb.steps.Exchange(), draws=50, tune=50, chains=1, **QUIET)
