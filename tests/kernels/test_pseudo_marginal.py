"""Pseudo-marginal steps: exactness on the extended space with broken twins, against quadrature, in blocks, and wrong use."""

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import gammaln, logsumexp

import ppl_backends as pb
from ppl_backends.errors import ModelError, SamplerWarning
from ppl_backends.kernels.adaptation import Adaptation
from ppl_backends.kernels.algorithm import ChainState
from ppl_backends.kernels.pseudo_marginal import EstimatedPoints, LikelihoodEstimator, PseudoMarginal
from ppl_backends.results.inference_data import group

LEVEL = 1e-5
QUIET = {"progressbar": False, "random_seed": 1}
COUNTS = np.array([5, 0, 1])


def log_poisson(mean, z, counts):
    """Log p(y | x, z) of all counts, y_i ~ Poisson(exp(x + z_i)): ``(n,)`` for ``z`` ``(n, 3)``."""
    log_rate = mean[:, None] + z
    return (counts * log_rate - np.exp(log_rate) - gammaln(counts + 1)).sum(axis=1)


def plain(values, rng):
    """Return one draw of the random effects."""
    x = values["x"][:, 0]
    return log_poisson(x, rng.standard_normal((len(x), 3)), COUNTS)


def correlated(values, u):
    return log_poisson(values["x"][:, 0], u, COUNTS)


def standard_normal_prior():
    return pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))


def exact_posterior():
    """Return grid, and cumulated posterior by Gauss–Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.linspace(-5, 5, 2001)
    log_rate = grid[:, None] + nodes
    each = [logsumexp(y * log_rate - np.exp(log_rate), b=weights, axis=1) for y in COUNTS]
    log_post = np.sum(each, axis=0) - 0.5 * grid**2
    mass = np.exp(log_post - logsumexp(log_post))
    return grid, mass


FORMS = {
    "plain": {"log_likelihood_estimate": plain},
    "correlated": {"log_likelihood_estimate": correlated, "n_normals": 3, "correlation": 0.6},
}


@pytest.mark.parametrize("form", FORMS)
def test_moments_and_law_are_exact(form):
    step = pb.steps.PseudoMarginal(**FORMS[form])
    idata = pb.sample_mcmc(standard_normal_prior(), step=step, draws=6000, chains=2, **QUIET)
    x = group(idata, "posterior")["x"].values.ravel()
    grid, mass = exact_posterior()
    mean = mass @ grid
    sd = np.sqrt(mass @ (grid - mean) ** 2)
    # About 1,000 effective draws: standard errors of 0.032 sd and 2.5 per cent.
    assert abs(x.mean() - mean) < 0.15 * sd
    assert abs(x.std() / sd - 1) < 0.11
    assert stats.kstest(x[::12], lambda t: np.interp(t, grid, np.cumsum(mass))).pvalue > LEVEL
    posterior, sample_stats = group(idata, "posterior"), group(idata, "sample_stats")
    assert posterior.attrs["accuracy"] == "exact"
    assert posterior.attrs["n_normals"] == (3 if form == "correlated" else 0)
    assert (sample_stats["approximate"] == 0).all()


# -- invariance: the extended distribution is sampled exactly, and a few steps leave its marginal unchanged ----------------


def invariance(kind, form, n=2500, steps=8, seed=2, n_estimates=2):
    """Return the KS p-value of x after some steps.

    The pair (x, u) with density p(x) φ(u) L̂(x, u), data drawn along with it, is had by hiding the effects that made the
    data in one row of u.
    """
    rng = np.random.default_rng(seed)
    counts = np.zeros(3)
    estimators = {
        "plain": lambda values, rng: log_poisson(values["x"][:, 0], rng.standard_normal((n_estimates, 3)), counts),
        "correlated": lambda values, u: log_poisson(values["x"][:, 0], u, counts),
    }
    options = {**FORMS[form], "log_likelihood_estimate": estimators[form]}
    algorithm = kind(standard_normal_prior(), n_estimates=n_estimates, covariance=[[0.5]], **options)
    tuning = Adaptation.of_covariance([[0.5]], 1, 2.38, 0.2)
    found = np.empty(n)
    for i in range(n):
        x, u = rng.standard_normal(1), rng.standard_normal((n_estimates, 3))
        counts[:] = rng.poisson(np.exp(x + u[rng.integers(n_estimates)]))
        estimate = logsumexp(log_poisson(np.repeat(x, n_estimates), u, counts)) - np.log(n_estimates)
        noise = u[None] if form == "correlated" else None
        points = EstimatedPoints(x[None], -0.5 * x**2, np.array([estimate]), noise, n_estimates, np.nan)
        state = ChainState(points, tuning.parameters)
        for _ in range(steps):
            state, _ = algorithm.step(state, rng, False)
        found[i] = state.x[0, 0]
    return stats.kstest(found, "norm").pvalue


@pytest.mark.parametrize("form", FORMS)
def test_extended_law_is_invariant(form):
    assert invariance(PseudoMarginal, form) > LEVEL


class ForgetfulOfItsEstimate(PseudoMarginal):
    """A broken step that draws a new estimate at the present point every time: Monte Carlo within Metropolis."""

    def step(self, state, rng, tune):
        return super().step(state._replace(population=self.density.fresh(state.population, rng)), rng, tune)


class ShrinkingNumbers(PseudoMarginal):
    """u' = ρu + (1 − ρ)ε does not leave N(0, 1) alone."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        rho = self.density.correlation
        self.density.moved_noise = lambda u, n, rng: rho * u + (1 - rho) * rng.standard_normal(u.shape)


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "form"), [(ForgetfulOfItsEstimate, "plain"), (ShrinkingNumbers, "correlated")])
def test_broken_twins_fail(broken, form):
    assert invariance(broken, form, n=5000) < LEVEL


# -- how many estimates ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*R-hat")  # a short run
def test_number_of_estimates_follows_from_their_variance():
    """Forty observations: a single estimate is hopeless, correlated ones need far fewer."""
    counts = np.random.default_rng(3).poisson(np.exp(0.3 + np.random.default_rng(4).standard_normal(10)))

    def estimate(values, u):
        return log_poisson(values["x"][:, 0], u, counts)

    def independent(values, rng):
        return estimate(values, rng.standard_normal((len(values["x"]), 10)))

    found = {}
    for name, options in {"plain": {}, "correlated": {"n_normals": 10, "correlation": 0.98}}.items():
        step = pb.steps.PseudoMarginal(log_likelihood_estimate=estimate if options else independent, **options)
        idata = pb.sample_mcmc(standard_normal_prior(), step=step, draws=400, tune=450, chains=2, **QUIET)
        found[name] = group(idata, "sample_stats")
    assert found["plain"]["n_estimates"].values.min() > 20
    assert found["correlated"]["n_estimates"].values.max() < found["plain"]["n_estimates"].values.min()
    for stats_of in found.values():
        assert stats_of["estimate_variance"].values.max() < 4.0
        assert float(stats_of["accept"].mean()) > 0.08


def test_hopeless_estimators_warn():
    def wild(values, rng):
        return 30.0 * rng.standard_normal(len(values["x"]))

    algorithm = PseudoMarginal(standard_normal_prior(), log_likelihood_estimate=wild)
    rng = np.random.default_rng(1)
    state = algorithm.start(np.zeros(1), rng)._replace(n_steps=25)
    with pytest.warns(SamplerWarning, match="variance .* with 4096 estimates, so chains will stay"):
        algorithm.step(state, rng, True)


# -- models ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        pm.Deterministic("rate", pm.math.exp(mu))
        b = pm.Normal("b", mu, 1)
        pm.Deterministic("sum", mu + b)
        pm.Normal("w", b, 1, observed=1.0)
    return model


def of_mu(values, rng):
    mu = np.log(values["rate"])
    return log_poisson(mu, rng.standard_normal((len(mu), 3)), COUNTS)


def joint_moments():
    """Return moments of mu and b: w | mu ~ N(mu, 2), and b | mu, w ~ N((mu + w)/2, ½)."""
    grid, mass = exact_posterior()
    mass = mass * np.exp(-0.25 * (1.0 - grid) ** 2)
    mass /= mass.sum()
    mean = mass @ grid
    variance = mass @ (grid - mean) ** 2
    return {"mu": (mean, np.sqrt(variance)), "b": ((mean + 1) / 2, np.sqrt(0.5 + variance / 4))}


def check(idata):
    for name, (mean, sd) in joint_moments().items():
        draws = group(idata, "posterior")[name].values
        # At least 500 effective draws: standard errors of 0.045 sd and 3.5 per cent.
        assert abs(draws.mean() - mean) < 0.2 * sd
        assert abs(draws.std() / sd - 1) < 0.17


@pytest.mark.slow
def test_block_beside_nuts_in_two_workers(model, tmp_path):
    with model:
        step = [pb.steps.PseudoMarginal(["mu"], log_likelihood_estimate=of_mu), pm.NUTS([model["b"]])]
        idata = pm.sample(step=step, draws=2500, tune=600, chains=2, cores=2, compute_convergence_checks=False, **QUIET)
    check(idata)
    assert group(idata, "sample_stats")["n_estimates"].values.min() >= 1
    idata.to_netcdf(str(tmp_path / "run.nc"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*R-hat")  # a short run
def test_whole_model_and_pickling(model):
    with model:
        step = pb.steps.PseudoMarginal(log_likelihood_estimate=of_mu)
    options = {"draws": 2500, "chains": 2, **QUIET}
    idata = pb.sample_mcmc(model, step=step, **options)
    check(idata)
    short = {**options, "draws": 30, "tune": 60}
    again = pb.sample_mcmc(model, step=cloudpickle.loads(cloudpickle.dumps(step)), **short)
    first = pb.sample_mcmc(model, step=step, **short)
    np.testing.assert_array_equal(group(again, "posterior")["mu"], group(first, "posterior")["mu"])


class ParticleFilterLike:
    """A user's target with an estimator of its own."""

    dim = 1

    def log_density(self, x):
        return -0.5 * (x**2).sum(axis=1)

    def log_likelihood_estimate(self, x, rng):
        return log_poisson(x[:, 0], rng.standard_normal((len(x), 3)), COUNTS)


def test_target_with_its_own_estimator():
    idata = pb.sample_mcmc(ParticleFilterLike(), step=pb.steps.PseudoMarginal(), draws=3000, chains=2, **QUIET)
    grid, mass = exact_posterior()
    x = group(idata, "posterior")["x"].values
    assert abs(x.mean() - mass @ grid) < 0.2 * x.std()


# -- wrong use -------------------------------------------------------------------------------------------------------------


def estimating(log_likelihood_estimate, **options):
    algorithm = PseudoMarginal(
        standard_normal_prior(), log_likelihood_estimate=log_likelihood_estimate, **{"covariance": [[1.0]], **options}
    )
    rng = np.random.default_rng(1)
    return algorithm.step(algorithm.start(np.zeros(1), rng), rng, False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PseudoMarginal(standard_normal_prior()), "give an unbiased estimator"),
        (lambda: estimating(lambda values, rng: 0.0), r"shape \(\) for 1 points"),
        (lambda: estimating(lambda values, rng: np.full(len(values["x"]), np.nan)), "NaN or"),
        (lambda: estimating(lambda values, rng: np.full(len(values["x"]), -np.inf)), "starting point .* is zero"),
        (lambda: estimating(lambda values, rng: values["y"]), "uses 'y': it gets x"),
        (lambda: estimating(plain, covariance=None), "give covariance="),
        (lambda: pb.steps.PseudoMarginal(n_estimates=0), "n_estimates=0"),
        (lambda: pb.steps.PseudoMarginal(n_estimates="many"), "n_estimates='many'"),
        (lambda: pb.steps.PseudoMarginal(n_normals=0), "n_normals=0"),
        (lambda: pb.steps.PseudoMarginal(correlation=1.0), "correlation=1.0"),
    ],
)
def test_wrong_use(make, message):
    with pytest.raises(ModelError, match=message):
        make()


def test_block_does_not_show_variables_that_other_steps_move(model):
    with model:
        step = pb.steps.PseudoMarginal(["mu"], log_likelihood_estimate=lambda values, rng: values["sum"])
    assert sorted(LikelihoodEstimator(step.target, of_mu, None)._values(np.zeros(1), 2)) == ["mu", "rate"]
    with pytest.raises(ModelError, match="uses 'sum': it gets"):
        step.algorithm.start(np.zeros(1), np.random.default_rng(1))
