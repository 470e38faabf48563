"""Evidences of single models against integrals, least squares and each other."""

import time

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import cauchy, norm

from ppl_backends.approximations.ep import fit_ep
from ppl_backends.errors import ModelError
from ppl_backends.model_search.evidences.ep import EPEvidence
from ppl_backends.model_search.evidences.gaussian import GaussianEvidence
from ppl_backends.model_search.evidences.laplace import ImportanceEvidence, LaplaceEvidence
from ppl_backends.model_search.evidences.linear import LinearEvidence
from ppl_backends.model_search.evidences.table import make_evidence
from ppl_backends.model_search.evidences.walk_kernels import walk
from ppl_backends.model_search.forms import design_form
from ppl_backends.model_search.space import make_space
from ppl_backends.model_search.switched import switched
from ppl_backends.targets.factors import Factors, Laplace, Logit, Normal, Poisson, Probit, StackedSites, StudentT
from tests.statistics import normal_bound

RNG = np.random.default_rng(5)
X = RNG.standard_normal((80, 4)) * [1.0, 3.0, 0.2, 1.0] + [0.0, 2.0, -1.0, 0.5]
SIGNAL = X[:, 0] - 0.4 * X[:, 1]
NOISY = SIGNAL + 2.0 * RNG.standard_normal(80)
ALL = make_space(tuple("abcd"), np.zeros(4, dtype=bool), None, None, "uniform").all()
rng = np.random.default_rng


def r_squared(columns):
    design = np.column_stack([np.ones(len(X)), X[:, columns]])
    residual = NOISY - design @ np.linalg.lstsq(design, NOISY, rcond=None)[0]
    return 1.0 - residual @ residual / np.sum((NOISY - NOISY.mean()) ** 2)


def test_the_g_prior_gives_the_bayes_factor_of_least_squares():
    n, found = len(X), LinearEvidence(X, NOISY, "g").compute(ALL, rng(0))
    for columns, value in zip(ALL, found, strict=True):
        k, share = columns.sum(), r_squared(columns)
        exact = 0.5 * (n - 1 - k) * np.log1p(n) - 0.5 * (n - 1) * np.log1p(n * (1 - share))
        assert value == pytest.approx(exact, abs=1e-9)


def test_the_hyper_g_prior_is_integrated_over():
    n, found = len(X), LinearEvidence(X, NOISY, "hyper-g").compute(ALL, rng(0))
    for columns, value in zip(ALL[1:], found[1:], strict=True):
        k, share = columns.sum(), r_squared(columns)

        def factor(u, k=k, share=share):  # u = g/(1 + g)
            return 0.5 * (1 - u) ** (0.5 * (k + 3) - 2) * (1 - u * share) ** (-0.5 * (n - 1))

        assert value == pytest.approx(np.log(quad(factor, 0, 1, epsabs=0, epsrel=1e-10, limit=200)[0]), abs=1e-8)
    assert found[0] == 0.0


@pytest.mark.parametrize("prior", ["g", "hyper-g"])
def test_models_without_residuals_have_the_bayes_factor_of_an_r_squared_of_one(prior):
    columns = np.random.default_rng(1).standard_normal((6, 6))
    saturated = LinearEvidence(columns, np.arange(6.0) ** 2, prior)  # n − 1 columns explain any y
    on = np.arange(6) < np.array([[5], [6]])
    np.testing.assert_array_equal(saturated.compute(on, None), [0.0, -np.inf])
    assert np.isfinite(saturated.coefficients(on[0], 1000, rng(0))["coefficients"]).all()
    y = columns[:, 0] - 2 * columns[:, 1]
    if prior == "hyper-g":
        with pytest.raises(ModelError, match="evidence of such a model is infinite"):
            LinearEvidence(columns[:, :3], y, prior)
    else:
        perfect = LinearEvidence(columns[:, :3], y, prior).compute(on[:1, :3] & [True, True, False], None)
        np.testing.assert_allclose(perfect, 0.5 * (6 - 1 - 2) * np.log(7), rtol=1e-12)


def test_a_model_whose_columns_are_dependent_has_no_evidence():
    twice = np.column_stack([X, X[:, 1] + X[:, 2]])
    on = np.array([[1, 1, 0, 0, 1], [0, 1, 1, 0, 1]], dtype=bool)
    found = LinearEvidence(twice, NOISY, "g").compute(on, rng(0))
    assert np.isfinite(found[0])
    assert found[1] == -np.inf


def test_steps_at_the_largest_models_cost_as_much_as_elsewhere():
    """With n − 1 columns every further one is dependent; that takes no new table of all neighbours."""
    n, p = 60, 120
    design = rng(0).standard_normal((n, p))
    form = LinearEvidence(design, design[:, :3].sum(axis=1) + rng(1).standard_normal(n), "g").form

    def seconds(size):
        likely, taken = -10.0 * np.abs(np.arange(p + 1) - size), []
        for _ in range(4):  # the first may compile
            on, share = np.tile(np.arange(p) < size, (10, 1)), np.zeros((10, p))
            clock = time.process_time()
            walk(form, np.arange(p), on, share, 2000, 0.01, likely, rng(2))
            taken.append(time.process_time() - clock)
        assert on.sum(axis=1).max() <= n - 1
        return min(taken[1:])

    assert seconds(n - 1) < 3 * seconds(n - 11)


def test_draws_of_a_linear_model_have_the_moments_of_its_posterior():
    evidence, on, n = LinearEvidence(X, NOISY, "g"), np.array([1, 1, 0, 1], dtype=bool), len(X)
    drawn, shrunk = evidence.coefficients(on, 40_000, rng(1)), n / (n + 1)
    centred = X[:, on] - X[:, on].mean(axis=0)
    least = np.linalg.lstsq(centred, NOISY - NOISY.mean(), rcond=None)[0]
    scale = 0.5 * np.sum((NOISY - NOISY.mean()) ** 2) * (1 - shrunk * r_squared(on))
    cov = shrunk * scale / (0.5 * (n - 1) - 1) * np.linalg.inv(centred.T @ centred)
    error = np.sqrt(np.diag(cov) / 40_000)
    assert np.all(np.abs(drawn["coefficients"][:, on].mean(axis=0) - shrunk * least) < normal_bound() * error)
    np.testing.assert_allclose(np.cov(drawn["coefficients"][:, on].T), cov, atol=0.05 * np.diag(cov).max())
    assert not drawn["coefficients"][:, ~on].any()
    level = drawn["intercept"] + drawn["coefficients"] @ X.mean(axis=0)
    assert abs(level.mean() - NOISY.mean()) < normal_bound() * level.std() / 200


BINARY = (SIGNAL + RNG.standard_normal(80) > 0).astype(float)
COUNTS = RNG.poisson(np.exp(np.clip(0.3 * SIGNAL, -3, 3)))
REGRESSIONS = {
    "logit": Factors(X, 0.1, Logit(BINARY), 0.2, 0.5),
    "probit": Factors(X, 0.0, Probit(BINARY), 0.0, [1.0, 2.0, 0.1, 0.5]),
    "poisson": Factors(X, 0.0, Poisson(COUNTS), 0.0, 1.0),
    "cauchy": Factors(
        np.vstack([X, np.eye(4)]),
        0.0,
        StackedSites([Logit(BINARY), StudentT(np.zeros(4), 1.0, 2.5)]),
        0.0,
        0.0,
        observed=np.arange(84) < 80,
    ),
}


@pytest.mark.parametrize("name", REGRESSIONS)
def test_estimates_around_laplace_agree_with_ep_and_with_laplace(name):
    regression = switched(REGRESSIONS[name], np.ones(4, dtype=bool))
    laplace, ep = LaplaceEvidence(regression), EPEvidence(regression)
    estimates = ImportanceEvidence(laplace, 4096)
    value, variance = estimates.with_variance(ALL, rng(2))
    np.testing.assert_allclose(laplace.compute(ALL, rng(0)), value, atol=0.15)
    np.testing.assert_allclose(ep.compute(ALL, rng(0)), value, atol=0.05)
    assert np.all(variance < 1e-2**2)
    around_ep = ImportanceEvidence(ep, 4096).compute(ALL, rng(3))
    np.testing.assert_allclose(around_ep, value, atol=0.02)


def test_a_gaussian_likelihood_is_its_own_surrogate():
    sites = Normal(NOISY, 1.5)
    regression = switched(Factors(X, 0.3, sites, [0.5, 0.0, -1.0, 2.0], [1.0, 2.0, 0.1, 0.5]), np.ones(4, dtype=bool))
    laplace = LaplaceEvidence(regression)
    theta = rng(3).standard_normal((7, 4))
    surrogate = GaussianEvidence(laplace.compiled, theta, np.ones((7, 4), dtype=bool), laplace.log_constant)
    exact = laplace.compute(ALL, rng(0))
    np.testing.assert_allclose(surrogate.compute(ALL, rng(0)), exact, atol=1e-8)
    corrected = surrogate.corrected(np.arange(4.0), 0.5).compute(ALL, rng(0))
    np.testing.assert_allclose(corrected, exact + 0.5 + ALL @ np.arange(4.0), atol=1e-8)


def test_one_coefficient_by_quadrature_its_prior_going_with_it():
    regression = switched(REGRESSIONS["cauchy"], np.ones(4, dtype=bool))
    on = np.array([[True, False, False, False], [False] * 4])

    def joint(theta):
        return np.exp(Logit(BINARY).log_site((X[:, 0] * theta)[None]).sum() + cauchy.logpdf(theta, 0, 2.5))

    exact = [np.log(quad(joint, -10, 10, epsabs=0, epsrel=1e-9)[0]), len(X) * np.log(0.5)]
    for evidence in (EPEvidence(regression), ImportanceEvidence(LaplaceEvidence(regression), 4096)):
        np.testing.assert_allclose(evidence.compute(on, rng(4)), exact, atol=1e-2)


def test_tails_of_a_cauchy_prior_under_separated_classes_are_covered():
    x, one = np.linspace(-2, 2, 20)[:, None], np.ones((1, 1), dtype=bool)
    sites = StackedSites([Logit((x[:, 0] > 0).astype(float)), StudentT(np.zeros(1), 1.0, 2.5)])
    factors = Factors(np.vstack([x, [[1.0]]]), 0.0, sites, 0.0, 0.0, observed=np.arange(21) < 20)
    laplace = LaplaceEvidence(switched(factors, np.ones(1, dtype=bool)))

    def joint(theta):
        return np.exp(-np.logaddexp(0, -theta * np.abs(x)).sum() + cauchy.logpdf(theta, 0, 2.5))

    exact = np.log(quad(joint, -5, 0)[0] + quad(joint, 0, 50, limit=200)[0] + quad(joint, 50, np.inf)[0])
    estimates = ImportanceEvidence(laplace, 20_000)
    value, variance = estimates.with_variance(one, rng(7))
    assert abs(value[0] - exact) < 4 * variance[0] ** 0.5 + 0.02
    assert variance[0] < 0.05**2
    assert ImportanceEvidence(laplace, 20_000, tails=False).compute(one, rng(7))[0] < exact - 0.3
    drawn = estimates.coefficients(one[0], 2000, rng(8))["coefficients"]
    tail = quad(joint, 20, 50)[0] + quad(joint, 50, np.inf)[0]
    assert abs((drawn > 20).mean() - tail / np.exp(exact)) < 0.06


def test_a_prior_that_is_not_normalised_leaves_with_what_it_integrates_to():
    half = StackedSites([Logit(BINARY), Laplace(np.zeros(4), 1.5)])
    rows, observed = np.vstack([X, np.eye(4)]), np.arange(84) < 80
    regression = switched(Factors(rows, 0.0, half, 0.0, 1.0, observed=observed), np.ones(4, dtype=bool))
    integral = quad(lambda t: np.exp(-abs(t) / 1.5) / 3 * norm.pdf(t), -np.inf, np.inf)[0]
    np.testing.assert_allclose(regression.log_integral, np.log(integral), atol=1e-6)
    without = regression.take(np.array([True, True, True, False]))
    assert without.log_constant == pytest.approx(np.log(integral))
    assert fit_ep(without).log_evidence < 0
    with pytest.raises(ModelError, match="evidence='laplace' needs"):
        LaplaceEvidence(regression)


def test_the_mean_of_estimates_is_the_evidence_whatever_the_number_of_points():
    regression = switched(REGRESSIONS["logit"], np.ones(4, dtype=bool))
    exact = ImportanceEvidence(LaplaceEvidence(regression), 8192).compute(ALL[-1:], rng(5))[0]
    single = ImportanceEvidence(LaplaceEvidence(regression), 1).compute(np.repeat(ALL[-1:], 20_000, axis=0), rng(6))
    assert single.std() > 0.05
    ratio = np.exp(single - exact)
    assert abs(ratio.mean() - 1) < normal_bound() * ratio.std() / 20_000**0.5


@pytest.mark.parametrize(("family", "link"), [("binomial", "logit"), ("binomial", "probit"), ("poisson", "log")])
def test_columns_of_a_form_have_normal_priors_and_an_intercept(family, link):
    form = design_form(X, COUNTS if family == "poisson" else BINARY, family, link, [1.0, 2.0, 3.0, 4.0], None)
    assert form.names == ("intercept", "x0", "x1", "x2", "x3")
    np.testing.assert_allclose(form.regression.factors.prior.precision, [1 / 400, 1, 1 / 4, 1 / 9, 1 / 16])
    assert form.always.tolist() == [True, False, False, False, False]


def test_flat_and_correlated_priors_are_refused_by_name():
    precision = np.eye(4)
    precision[0, 2] = precision[2, 0] = 0.5
    with pytest.raises(ModelError, match=r"theta\[0\] and theta\[2\] are correlated"):
        switched(Factors(X, 0.0, Logit(BINARY), 0.0, precision), np.ones(4, dtype=bool))
    with pytest.raises(ModelError, match=r"theta\[1\]: its prior is flat"):
        switched(Factors(X, 0.0, Logit(BINARY), 0.0, [1, 0, 1, 1]), np.arange(4) == 1)
    shared = np.vstack([X, [[0, 1, 1, 0]]])
    sites = StackedSites([Logit(BINARY), StudentT(0.0, 1.0, 1.0)])
    with pytest.raises(ModelError, match=r"theta\[1\]: its prior depends on other parameters"):
        switched(Factors(shared, 0.0, sites, 0.0, 1.0, observed=np.arange(81) < 80), np.ones(4, dtype=bool))


def test_known_evidences_are_kept():
    evidence = LaplaceEvidence(switched(REGRESSIONS["logit"], np.ones(4, dtype=bool)))
    first = evidence(ALL, rng(0))
    evidence.compute = None
    np.testing.assert_array_equal(evidence(ALL[::-1], rng(0)), first[::-1])
    assert logsumexp(first) < 0


@pytest.mark.parametrize(("rows", "columns", "name"), [(200, 12, "ep"), (10_000, 12, "laplace"), (10_000, 8, "ep")])
def test_ep_is_chosen_if_all_models_take_a_minute_at_most(rows, columns, name):
    """A model of 10,000 rows and six columns takes EP 0.02 s, so 2^12 of them take more than a minute."""
    rng = np.random.default_rng(1)
    form = design_form(rng.standard_normal((rows, columns)), rng.integers(0, 2, rows), "binomial", "logit", None, None)
    assert make_evidence("auto", form, columns, True, 100).name == name
