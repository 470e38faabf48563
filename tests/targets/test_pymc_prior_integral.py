"""The integral of PyMC's priors as compiled: what integrates to one, and what does not."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import gammaln

from ppl_backends.errors import PriorSamplingError
from ppl_backends.numerics.student import Student
from ppl_backends.targets import PyMCTarget
from ppl_backends.targets.pymc.masses import NORMALISED
from ppl_backends.targets.pymc.normalizer import _by_bridge

PYMC = int(pm.__version__.split(".")[0])
Interval, log, log_exp_m1, logodds, ordered, Ordered, Chain = (
    getattr(pm.distributions.transforms, name)
    for name in ("Interval", "log", "log_exp_m1", "logodds", "ordered", "Ordered", "Chain")
)
GRAPH = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])

UNIVARIATE = {
    "AsymmetricLaplace": {"kappa": 2, "mu": 1, "b": 1.5},
    "Beta": {"alpha": 2, "beta": 0.7},
    "Cauchy": {"alpha": 1, "beta": 2},
    "ExGaussian": {"mu": 1, "sigma": 1, "nu": 2},
    "Exponential": {"lam": 2},
    "Gamma": {"alpha": 0.7, "beta": 2},
    "Gumbel": {"mu": 1, "beta": 2},
    "HalfCauchy": {"beta": 2},
    "HalfNormal": {"sigma": 2},
    "HalfStudentT": {"nu": 3, "sigma": 2},
    "InverseGamma": {"alpha": 2, "beta": 1.5},
    "Kumaraswamy": {"a": 2, "b": 3},
    "Laplace": {"mu": 1, "b": 2},
    "LogNormal": {"mu": 1, "sigma": 0.7},
    "Logistic": {"mu": 1, "s": 2},
    "Moyal": {"mu": 1, "sigma": 2},
    "Normal": {"mu": 1, "sigma": 2},
    "Pareto": {"alpha": 2, "m": 1.5},
    "Rice": {"nu": 1.5, "sigma": 1},
    "SkewNormal": {"mu": 1, "sigma": 2, "alpha": 3},
    "SkewStudentT": {"a": 3, "b": 2, "mu": 1, "sigma": 2},
    "StudentT": {"nu": 3, "mu": 1, "sigma": 2},
    "Triangular": {"lower": -1, "upper": 3, "c": 0},
    "TruncatedNormal": {"mu": 1, "sigma": 2, "lower": 0, "upper": 2.5},
    "Uniform": {"lower": -1, "upper": 2},
    "VonMises": {"mu": 1, "kappa": 2},
    "Wald": {"mu": 1, "lam": 2},
    "Weibull": {"alpha": 2, "beta": 1.5},
}
SPECIAL = {
    "ChiSquared": lambda: pm.ChiSquared("ChiSquared", 3),
    "LogitNormal": lambda: pm.LogitNormal("LogitNormal", 0.5, 1.2),
    "Mixture": lambda: pm.NormalMixture("Mixture", w=[0.3, 0.7], mu=[-1.0, 2.0], sigma=[1.0, 0.5]),
    "Mixture of two": lambda: pm.Mixture("Mixture of two", [0.3, 0.7], [pm.HalfNormal.dist(1), pm.Gamma.dist(2, 1)]),
    "Truncated": lambda: pm.Truncated("Truncated", pm.Gamma.dist(2, 1), upper=2.5),
    "Truncated below": lambda: pm.Truncated("Truncated below", pm.Normal.dist(1, 1), lower=0.5),
    "derived": lambda: pm.CustomDist("derived", dist=lambda size: pm.math.exp(pm.Normal.dist(0, 1, size=size))),
}
MULTIVARIATE = {
    "Dirichlet": lambda: pm.Dirichlet("Dirichlet", [0.7, 1, 2, 3]),
    "MvNormal": lambda: pm.MvNormal("MvNormal", np.zeros(3), np.eye(3) + 0.5),
    "MvStudentT": lambda: pm.MvStudentT("MvStudentT", nu=4, mu=np.zeros(3), scale=np.eye(3) + 0.5),
    "MatrixNormal": lambda: pm.MatrixNormal(
        "MatrixNormal", mu=np.zeros((2, 2)), rowcov=np.eye(2) + 0.5, colcov=np.eye(2) + 0.3, shape=(2, 2)
    ),
    "KroneckerNormal": lambda: pm.KroneckerNormal(
        "KroneckerNormal", mu=np.zeros(4), covs=[np.eye(2) + 0.5, np.eye(2) + 0.3], shape=4
    ),
    "StickBreakingWeights": lambda: pm.StickBreakingWeights("StickBreakingWeights", alpha=2.0, K=3),
    "ZeroSumNormal": lambda: pm.ZeroSumNormal("ZeroSumNormal", sigma=2, shape=4),
    "RandomWalk": lambda: pm.GaussianRandomWalk(
        "RandomWalk", mu=0.1, sigma=0.5, init_dist=pm.Normal.dist(0, 1), shape=4
    ),
    "AR": lambda: pm.AR("AR", rho=[0.5, 0.2], sigma=0.5, init_dist=pm.Normal.dist(0, 1, shape=2), shape=5),
    "GARCH11": lambda: pm.GARCH11("GARCH11", omega=0.5, alpha_1=0.2, beta_1=0.3, initial_vol=1.0, shape=4),
    "EulerMaruyama": lambda: pm.EulerMaruyama(
        "EulerMaruyama", dt=0.1, sde_fn=lambda x, a: (-a * x, 0.5), sde_pars=(1.0,), init_dist=pm.Normal.dist(), shape=4
    ),
    "CAR": lambda: pm.CAR("CAR", mu=np.arange(4.0), W=GRAPH, alpha=0.7, tau=2.0),
    "LKJ": lambda: pm.LKJCholeskyCov(
        "LKJ", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=3), compute_corr=False
    ),
    "LKJCorr": lambda: pm.LKJCorr("LKJCorr", n=3, eta=2.0),
}


def target_of(make):
    with pm.Model() as model:
        make()
    return PyMCTarget(model)


def test_every_distribution_said_to_be_normalised_is_integrated_here():
    assert set(NORMALISED) <= {*UNIVARIATE, *SPECIAL, *MULTIVARIATE, "Interpolated"}


def assert_each_integrates_to_one(target):
    assert target.log_prior_normalizer == 0.0
    assert target._prior is None  # nothing was drawn for it
    t = np.linspace(-18.0, 18.0, 20_001)
    for name, terms in target._free_terms(np.repeat(np.sinh(t)[:, None], target.dim, axis=1)).items():
        density = np.exp(np.where(np.isfinite(terms), terms, -np.inf)) * np.cosh(t)
        integral = float((density.sum() - 0.5 * (density[0] + density[-1])) * (t[1] - t[0]))
        assert abs(integral - 1.0) < 2e-4, name


def test_univariate_distributions_integrate_to_one():
    def make():
        for name, parameters in UNIVARIATE.items():
            getattr(pm, name)(name, **parameters)
        for special in SPECIAL.values():
            special()

    assert_each_integrates_to_one(target_of(make))


@pytest.mark.filterwarnings("ignore:.*compiled with numba")
def test_an_interpolated_density_integrates_to_one():
    x = np.linspace(-2, 3, 30)
    assert_each_integrates_to_one(target_of(lambda: pm.Interpolated("x", x_points=x, pdf_points=np.exp(-(x**2)))))


QUICK = ("ZeroSumNormal", "CAR", "LKJ")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MULTIVARIATE]
)
def test_multivariate_distributions_integrate_to_what_is_said_of_them(name):
    target = target_of(MULTIVARIATE[name])
    assert not target._masses.unknown
    found = _by_bridge(target.model.free_RVs, target._shapes, target._prior_sampler(), target._free_terms)
    assert found.standard_error < 0.04
    assert abs(found.log_integral - target.log_prior_normalizer) < 4.5 * found.standard_error


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("eta", [0.6, 1.0, 2.0, 5.0])
def test_constants_of_lkj(n, eta):
    k = np.arange(1, n)
    half = 0.5 * (n - 1)
    log_volume = (0.5 * k * np.log(np.pi) + gammaln(eta + half - 0.5 * k) - gammaln(eta + half)).sum()
    for make in (
        lambda: pm.LKJCholeskyCov("x", n=n, eta=eta, sd_dist=pm.HalfNormal.dist(2.0, shape=n), compute_corr=False),
        lambda: pm.LKJCorr("x", n=n, eta=eta),
    ):
        target = target_of(make)
        # PyMC 5 adds the log of the volume that it should subtract
        np.testing.assert_allclose(target.log_prior_normalizer, 2 * log_volume if PYMC < 6 else 0.0, atol=1e-5)
        assert target.log_prior_normalizer_se == 0.0


def test_the_constants_of_lkj_in_two_dimensions():
    assert PYMC >= 6 or [
        round(
            target_of(
                lambda eta=eta: pm.LKJCholeskyCov(
                    "x", n=2, eta=eta, sd_dist=pm.HalfNormal.dist(shape=2), compute_corr=False
                )
            ).log_prior_normalizer,
            3,
        )
        for eta in (1.0, 2.0, 5.0)
    ] == [1.386, 0.575, -0.415]


NORMAL = stats.norm.cdf
EXACT = {
    "log": (lambda: pm.Normal("x", 0, 1, transform=log, initval=1.0), np.log(0.5)),
    "interval": (lambda: pm.Normal("x", 0, 1, transform=Interval(0.5, 2), initval=1), np.log(NORMAL(2) - NORMAL(0.5))),
    "upper end": (lambda: pm.Normal("x", 0, 1, transform=Interval(None, -0.5), initval=-1), np.log(NORMAL(-0.5))),
    "part of a uniform": (
        lambda: pm.Uniform("x", -1, 2, default_transform=None, transform=Interval(0, 1)),
        np.log(1 / 3),
    ),
    "twice": (lambda: pm.HalfNormal("x", 1, transform=log_exp_m1, initval=2.0), np.log(2 * NORMAL(-1))),
    "student": (lambda: pm.StudentT("x", nu=4, mu=1, sigma=2, transform=log, initval=1.0), stats.t.logsf(-0.5, 4)),
    "many": (lambda: pm.Normal("x", 0, 1, shape=20, transform=log, initval=np.ones(20)), 20 * np.log(0.5)),
    "mixture": (
        lambda: pm.NormalMixture("x", w=[0.3, 0.7], mu=[-1.0, 2.0], sigma=[1.0, 0.5], transform=log, initval=1.0),
        np.log(0.3 * NORMAL(-1) + 0.7 * NORMAL(4)),
    ),
    "ordered": (
        lambda: pm.Normal("x", 0, 1, shape=(2, 3), transform=ordered, initval=[[-1.0, 0.0, 1.0]] * 2),
        -2 * gammaln(4),
    ),
    "ordered gamma": (lambda: pm.Gamma("x", 2, 1, shape=3, transform=ordered, initval=[0.1, 0.5, 1.0]), -gammaln(4)),
    "ordered above": (
        lambda: pm.Normal("x", 0, 1, shape=2, transform=Chain([log, ordered]), initval=[0.5, 1.0]),
        np.log(0.25) - gammaln(3),
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_restricting_transforms_with_a_closed_form(name):
    make, truth = EXACT[name]
    target = target_of(make)
    assert target.log_prior_normalizer_se == 0.0
    np.testing.assert_allclose(target.log_prior_normalizer, truth, atol=1e-6)
    x = target.sample_prior(500, np.random.default_rng(0))
    assert np.isfinite(target.evaluate(x).log_prior).all()


def hierarchy():
    mu = pm.Normal("mu")
    pm.Normal("x", mu, 1, shape=3, transform=log, initval=np.ones(3))


def nested():
    mu = pm.Normal("mu", 0, 1, transform=log, initval=1.0)
    pm.Normal("x", mu, 1, transform=log, initval=1.0)


def two_hierarchies():
    for name in "ab":
        mu = pm.Normal(f"mu_{name}")
        pm.Normal(name, mu, 1, shape=2, transform=log, initval=np.ones(2))


ESTIMATED = {
    "ordered": (
        lambda: pm.Normal("x", [0.0, 1.0], 1, transform=ordered, initval=[-1.0, 1.0]),
        np.log(NORMAL(2**-0.5)),
    ),
    "ordered with random locations": (
        lambda: pm.Normal("x", pm.Normal("mu", [0.0, 0.5], 1), 1, transform=ordered, initval=[-1.0, 1.0]),
        np.log(NORMAL(0.25)),
    ),
    "ordered and positive": (
        lambda: pm.Normal("x", 0, 1, shape=3, transform=Ordered(positive=True), initval=[0.1, 0.5, 1.0]),
        3 * np.log(0.5) - gammaln(4),
    ),
    "hierarchy": (hierarchy, np.log(1 / 4)),
    "nested": (nested, np.log(3 / 8)),
    "two hierarchies": (two_hierarchies, 2 * np.log(1 / 3)),
}


@pytest.mark.parametrize("name", ESTIMATED)
def test_restricting_transforms_without_a_closed_form(name):
    make, truth = ESTIMATED[name]
    target = target_of(make)
    found = target.prior_integral
    assert 0 < found.standard_error < 0.006
    assert found.df > 1000
    assert abs(found.log_integral - truth) < 4 * found.standard_error


def test_the_integral_does_not_depend_on_what_was_drawn_before():
    make, _ = ESTIMATED["ordered"]
    fresh, used = target_of(make), target_of(make)
    for seed in range(3):
        used.sample_prior(100, np.random.default_rng(seed))
    assert fresh.prior_integral == used.prior_integral == used.prior_integral


def log_kernel(value, mu, sigma):
    return -0.5 * ((value - mu) / sigma) ** 2 - pt.log(sigma)


def normal_draws(mu, sigma, rng=None, size=None):
    return rng.normal(mu, sigma, size=size)


def kernel_hierarchy():
    mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
    pm.CustomDist("x", mu, sigma, logp=log_kernel, random=normal_draws, shape=5)


@pytest.mark.parametrize(
    ("make", "factors"),
    [
        (lambda: pm.CustomDist("x", 0.0, 1.0, logp=log_kernel, random=normal_draws), 1),
        (lambda: pm.CustomDist("x", 0.0, 1.0, logp=log_kernel, random=normal_draws, shape=6), 6),
        (kernel_hierarchy, 5),
    ],
)
def test_densities_of_the_users_own_are_measured(make, factors):
    found = target_of(make).prior_integral
    assert 0 < found.standard_error < 0.03
    assert abs(found.log_integral - 0.5 * factors * np.log(2 * np.pi)) < 4 * found.standard_error


def test_draws_that_do_not_follow_the_density_are_refused():
    def too_wide(mu, sigma, rng=None, size=None):
        return rng.normal(mu, 1.5 * sigma, size=size)

    target = target_of(lambda: pm.CustomDist("x", 0.0, 1.0, logp=log_kernel, random=too_wide))
    with pytest.raises(PriorSamplingError, match="draws of the prior may not follow it"):
        target.sample_prior(10, np.random.default_rng(0))
    assert np.isnan(target.log_prior_normalizer)


def test_without_draws_the_integral_is_not_known():
    target = target_of(lambda: pm.CustomDist("x", 0.0, 1.0, logp=log_kernel))
    with pytest.raises(PriorSamplingError, match="cannot be sampled"):
        target.sample_prior(10, np.random.default_rng(0))
    assert np.isnan(target.log_prior_normalizer)


@pytest.mark.parametrize("random_strength", [False, True])
def test_draws_of_car_follow_its_density(random_strength):
    def make():
        alpha = pm.Beta("alpha", 2, 2) if random_strength else 0.7
        pm.CAR("x", mu=np.arange(4.0), W=GRAPH, alpha=alpha, tau=2.0)

    target = target_of(make)
    values = target.constrain(target.sample_prior(4000, np.random.default_rng(0)))
    z, alpha = values["x"] - np.arange(4.0), values.get("alpha", np.full(4000, 0.7))
    square = 2.0 * (2.0 * (z**2).sum(axis=1) - alpha * np.einsum("ni,ij,nj->n", z, GRAPH, z))
    assert stats.kstest(square, stats.chi2(4).cdf).pvalue > 1e-5


def test_a_fitted_student_is_normalised_and_finds_its_own_parameters():
    rng = np.random.default_rng(0)
    truth = Student(np.array([1.0, -2.0]), np.array([[1.0, 0.0], [1.5, 0.5]]), 5.0)
    fitted = Student.fit(truth.sample(20_000, rng))
    np.testing.assert_allclose(fitted.location, truth.location, atol=0.05)
    np.testing.assert_allclose(fitted.factor, truth.factor, atol=0.05)
    x = rng.standard_normal((50, 2))
    expected = stats.multivariate_t(truth.location, truth.factor @ truth.factor.T, df=5).logpdf(x)
    np.testing.assert_allclose(truth.log_density(x), expected, rtol=1e-10)
