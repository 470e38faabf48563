"""Draws of priors at points of the unit cube: the distribution of ``sample_prior``, monotone, or refused with a reason."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats
from scipy.special import log_ndtr
from scipy.stats import ks_2samp, kstest, norm

from ppl_backends.errors import PriorSamplingError
from ppl_backends.targets import FunctionTarget
from ppl_backends.targets.pymc import PyMCTarget
from tests.statistics import FALSE_FAILURE

UNIVARIATE = {
    "Normal": lambda: pm.Normal("x", 1.0, 2.0),
    "HalfNormal": lambda: pm.HalfNormal("x", 2.0),
    "Uniform": lambda: pm.Uniform("x", -1.0, 3.0),
    "Exponential": lambda: pm.Exponential("x", 2.0),
    "Gamma": lambda: pm.Gamma("x", 0.7, 2.0),
    "InverseGamma": lambda: pm.InverseGamma("x", 3.0, 0.5),
    "Beta": lambda: pm.Beta("x", 0.5, 3.0),
    "StudentT": lambda: pm.StudentT("x", nu=3.0, mu=1.0, sigma=2.0),
    "HalfStudentT": lambda: pm.HalfStudentT("x", 3.0, 2.0),
    "Cauchy": lambda: pm.Cauchy("x", 1.0, 2.0),
    "HalfCauchy": lambda: pm.HalfCauchy("x", 2.0),
    "LogNormal": lambda: pm.LogNormal("x", 0.5, 0.7),
    "Laplace": lambda: pm.Laplace("x", 1.0, 2.0),
    "Logistic": lambda: pm.Logistic("x", 1.0, 2.0),
    "Gumbel": lambda: pm.Gumbel("x", 1.0, 2.0),
    "Weibull": lambda: pm.Weibull("x", 1.5, 2.0),
    "Pareto": lambda: pm.Pareto("x", 2.5, 1.0),
    "Triangular": lambda: pm.Triangular("x", lower=0.0, c=0.3, upper=1.0),
    "Kumaraswamy": lambda: pm.Kumaraswamy("x", 2.0, 0.7),
    "TruncatedNormal": lambda: pm.TruncatedNormal("x", 0.0, 1.0, lower=2.0, upper=4.0),
    "TruncatedNormal left": lambda: pm.TruncatedNormal("x", 0.0, 1.0, upper=-3.0),
    "Truncated": lambda: pm.Truncated("x", pm.Gamma.dist(2.0, 1.0), lower=0.5, upper=3.0),
    "Moyal": lambda: pm.Moyal("x", 1.0, 2.0),
}


def hierarchical():
    mu, sigma = pm.Normal("mu", 0, 2), pm.HalfCauchy("sigma", 1)
    pm.Normal("theta", mu, sigma, shape=3)


def correlated():
    pm.MvNormal("x", [1.0, -1.0, 0.0], np.array([[2.0, 1.0, 0.3], [1.0, 1.0, 0.2], [0.3, 0.2, 0.5]]))


def random_covariance():
    mu = pm.Normal("mu", 0, 1, shape=2)
    scale = pm.Gamma("scale", 2.0, 2.0)
    pm.MvNormal("x", mu, pt.eye(2) * scale + 0.5, shape=(3, 2))


def cholesky():
    pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=2))


def mixture():
    pm.Mixture("x", [0.3, 0.7], [pm.Normal.dist(-3, 1), pm.Normal.dist(3, 0.5)])


MULTIVARIATE = {
    "hierarchical": hierarchical,
    "correlated": correlated,
    "random covariance": random_covariance,
    "random walk": lambda: pm.GaussianRandomWalk("x", mu=0.1, sigma=0.5, init_dist=pm.Normal.dist(0, 2), shape=5),
    "autoregression": lambda: pm.AR("x", [0.5, -0.3], sigma=0.5, init_dist=pm.Normal.dist(1, 2), shape=5),
    "dirichlet": lambda: pm.Dirichlet("x", [0.5, 2.0, 1.0, 3.0]),
    "dirichlet rows": lambda: pm.Dirichlet("x", np.array([[0.5, 2.0, 1.0], [3.0, 1.0, 2.0]])),
    "stick breaking": lambda: pm.StickBreakingWeights("x", alpha=2.0, K=4),
    "zero sum": lambda: pm.ZeroSumNormal("x", 1.5, shape=4),
    "lkj": cholesky,
    "mv student": lambda: pm.MvStudentT("x", nu=5, mu=np.zeros(2), scale=np.array([[1.0, 0.5], [0.5, 2.0]])),
    "ordered": lambda: pm.Normal("x", 0, 1, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1, 0, 1]),
    "mixture": mixture,
    "asymmetric laplace": lambda: pm.AsymmetricLaplace("x", kappa=2.0, mu=0.0, b=1.0),
}


def target_of(build):
    with pm.Model() as model:
        build()
    return PyMCTarget(model)


def assert_same_distribution(a, b):
    """Every coordinate, and sums and differences of neighbours, in which a wrong dependence shows."""
    pairs = [(a[:, j], b[:, j]) for j in range(a.shape[1])]
    pairs += [(a[:, j] + s * a[:, j + 1], b[:, j] + s * b[:, j + 1]) for s in (1, -1) for j in range(a.shape[1] - 1)]
    smallest = min(ks_2samp(x, y).pvalue for x, y in pairs)
    assert smallest > FALSE_FAILURE / len(pairs)


@pytest.mark.parametrize("name", [*UNIVARIATE, *MULTIVARIATE])
def test_draws_have_the_distribution_of_the_prior(name):
    target = target_of((UNIVARIATE | MULTIVARIATE)[name])
    rng = np.random.default_rng(1)
    if name == "lkj" and pm.__version__.startswith("6"):  # whose draws are made in a loop
        with pytest.raises(PriorSamplingError, match="inside a loop"):
            target.prior_from_uniform(rng.random((4000, target.dim)))
        return
    x = target.prior_from_uniform(rng.random((4000, target.n_uniforms)))
    assert x.shape == (4000, target.dim)
    assert_same_distribution(x, target.sample_prior(4000, rng))


@pytest.mark.parametrize("name", UNIVARIATE)
def test_draws_increase_in_their_own_uniform(name):
    target = target_of(UNIVARIATE[name])
    assert target.n_uniforms == 1
    draws = target.constrain(target.prior_from_uniform(np.linspace(1e-4, 1 - 1e-4, 500)[:, None]))["x"]
    assert (np.diff(draws) > 0).all()


def test_uniforms_are_used_in_the_order_of_the_graph():
    target = target_of(hierarchical)
    x = target.prior_from_uniform(np.array([[0.5, 0.5, 0.5, 0.5, norm.cdf(1.0)]]))
    np.testing.assert_allclose(target.constrain(x)["theta"], [[0.0, 0.0, 1.0]], atol=1e-9)


def test_corners_of_the_cube_are_finite():
    target = target_of(hierarchical)
    assert np.isfinite(target.prior_from_uniform(np.array([[0.0] * 5, [1.0] * 5]))).all()


def test_a_draw_used_twice_is_drawn_once():
    def build():
        mu = pm.Normal("mu")
        pm.Normal("a", mu, 1e-6)
        pm.Normal("b", mu, 1e-6)

    x = target_of(build).prior_from_uniform(np.random.default_rng(1).random((50, 3)))
    assert np.abs(np.diff(x, axis=1)).max() < 1e-4


REFUSED = {
    "VonMises": lambda: pm.VonMises("x", 0.0, 1.0),
    "GARCH": lambda: pm.GARCH11("x", omega=1.0, alpha_1=0.2, beta_1=0.3, initial_vol=1.0, shape=4),
    "Flat": lambda: pm.Flat("x"),
    "transform": lambda: pm.Normal("x", 0, 1, transform=pm.distributions.transforms.log, initval=1.0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_inverse_is_refused_by_name(name):
    target = target_of(REFUSED[name])
    assert target.n_uniforms is None
    with pytest.raises(PriorSamplingError, match="'x'"):
        target.prior_from_uniform(np.full((1, 1), 0.5))


def test_functions_may_bring_their_own():
    target = FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x), prior_from_uniform=lambda u: norm.ppf(u))
    assert target.n_uniforms == 2
    x = target.prior_from_uniform(np.random.default_rng(1).random((2000, 2)))
    assert kstest(x[:, 0], "norm").pvalue > FALSE_FAILURE
    assert FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x)).n_uniforms is None


TAILS = {  # in which the distribution function of the other side has lost its digits
    "normal": (pm.Normal.dist(0, 1), stats.norm(), 8.0, np.inf),
    "gamma": (pm.Gamma.dist(2, 1), stats.gamma(2), 45.0, np.inf),
    "gamma between": (pm.Gamma.dist(2, 1), stats.gamma(2), 45.0, 46.0),
    "exponential": (pm.Exponential.dist(1), stats.expon(), 50.0, np.inf),
    "exponential left": (pm.Exponential.dist(1), stats.expon(), 0.0, 1e-12),
    "student": (pm.StudentT.dist(nu=8, mu=1, sigma=2), stats.t(8, 1, 2), 1e3, np.inf),
    "student left": (pm.StudentT.dist(nu=8, mu=1, sigma=2), stats.t(8, 1, 2), -np.inf, -1e3),
    "laplace": (pm.Laplace.dist(1, 2), stats.laplace(1, 2), 100.0, np.inf),
    "logistic": (pm.Logistic.dist(1, 2), stats.logistic(1, 2), 100.0, np.inf),
    "cauchy": (pm.Cauchy.dist(1, 2), stats.cauchy(1, 2), 1e17, np.inf),
    "cauchy left": (pm.Cauchy.dist(1, 2), stats.cauchy(1, 2), -np.inf, -1e17),
    "half normal": (pm.HalfNormal.dist(2), stats.halfnorm(0, 2), 20.0, np.inf),
    "half cauchy": (pm.HalfCauchy.dist(2), stats.halfcauchy(0, 2), 1e17, np.inf),
    "weibull": (pm.Weibull.dist(1.5, 2), stats.weibull_min(1.5, scale=2), 30.0, np.inf),
    "log normal": (pm.LogNormal.dist(0.5, 0.7), stats.lognorm(0.7, scale=np.exp(0.5)), 1e4, np.inf),
    "beta": (pm.Beta.dist(2, 9), stats.beta(2, 9), 0.99, 1.0),
    "gumbel": (pm.Gumbel.dist(1, 2), stats.gumbel_r(1, 2), 80.0, np.inf),
    "pareto": (pm.Pareto.dist(2.5, 1), stats.pareto(2.5), 1e8, np.inf),
    "inverse gamma": (pm.InverseGamma.dist(3, 0.5), stats.invgamma(3, scale=0.5), 1e7, np.inf),
    "inverse gamma left": (pm.InverseGamma.dist(3, 0.5), stats.invgamma(3, scale=0.5), 0.0, 0.01),
}
LEVELS = np.array([0.001, 0.1, 0.5, 0.9, 0.999])


def truncated_draws(base, lower, upper):
    target = target_of(lambda: pm.Truncated("x", base, lower=lower, upper=upper))
    return target.constrain(target.prior_from_uniform(LEVELS[:, None]))["x"]


@pytest.mark.filterwarnings("ignore:RandomVariables .* were found in the derived graph")  # PyMC's own, of InverseGamma
@pytest.mark.parametrize("name", TAILS)
def test_truncated_tails_keep_their_digits(name):
    base, truth, lower, upper = TAILS[name]
    x = truncated_draws(base, lower, upper)
    mass = truth.sf if truth.cdf(lower) > 0.5 else truth.cdf
    np.testing.assert_allclose((mass(x) - mass(lower)) / (mass(upper) - mass(lower)), LEVELS, atol=1e-8)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_normal_tail_whose_mass_is_no_floating_point_number(sign):
    bounds = (1 + 80.0, np.inf) if sign > 0 else (-np.inf, 1 - 80.0)
    z = sign * (truncated_draws(pm.Normal.dist(1, 2), *bounds) - 1) / 2
    below = -np.expm1(log_ndtr(-z) - log_ndtr(-40.0))
    np.testing.assert_allclose(below, LEVELS if sign > 0 else 1 - LEVELS, atol=1e-9)


def test_the_lower_bound_of_a_discrete_distribution_is_drawn():
    x = target_of(
        lambda: pm.Truncated("x", pm.Geometric.dist(0.3), lower=3, default_transform=None)
    ).prior_from_uniform(LEVELS[:, None])
    np.testing.assert_array_equal(x[:, 0], stats.geom.ppf(LEVELS, 0.3) + 2)


def test_a_tail_without_a_survival_function_is_refused():
    with pytest.raises(PriorSamplingError, match="100 % of the points have no draw of the prior"):
        truncated_draws(pm.Moyal.dist(1, 2), 200.0, np.inf)
