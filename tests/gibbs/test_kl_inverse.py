"""The kl-inverse bound: its arithmetic, the moment it rests on with broken twins, its coverage, and what it asks for."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

import ppl_backends as pb
from ppl_backends.errors import ModelError
from ppl_backends.gibbs import GibbsPosterior, TuningRecord, certify, choose_learning_rate, expected_risk, fit_gibbs_vi
from ppl_backends.gibbs.kl_inverse import bernoulli_divergence, kl_inverse, log_moment, tangent
from tests.gibbs.test_certificates import simulate

# VI of losses with jumps is too narrow, and says so
pytestmark = pytest.mark.filterwarnings("ignore:VI. .*weighted points:ppl_backends.errors.ApproximationWarning")


@pytest.fixture(scope="module")
def data():
    return simulate(300, np.random.default_rng(0))


def fitted(data, loss="zero_one", rate=60.0):
    posterior = GibbsPosterior((0.0, 1.0), loss, *data, learning_rate=rate)
    return posterior, fit_gibbs_vi(posterior)


@pytest.mark.parametrize("q", [0.0, 1e-9, 0.03, 0.4, 0.999])
@pytest.mark.parametrize("budget", [1e-6, 0.01, 0.3, 4.0])
def test_the_inverse_is_one(q, budget):
    p = kl_inverse(q, budget)
    assert q <= p <= 1
    assert bernoulli_divergence(q, p) == pytest.approx(budget, rel=1e-5) or p > 1 - 1e-9


def test_limits_of_the_inverse():
    assert kl_inverse(0.0, 0.2) == pytest.approx(1 - np.exp(-0.2))
    assert kl_inverse(1.0, 0.2) == 1.0
    assert kl_inverse(-1e-17, 0.0) == pytest.approx(0.0, abs=1e-9)  # an empirical risk of zero, rounded
    assert kl_inverse(0.3, 0.0) == pytest.approx(0.3)


@pytest.mark.parametrize("m", [1, 2, 50, 500])
def test_moment_is_that_of_binomial_shares_whatever_their_mean(m):
    for p in (0.02, 0.5, 0.9):
        k = np.arange(m + 1)
        terms = stats.binom.logpmf(k, m, p) + [m * bernoulli_divergence(i / m, p) for i in k]
        assert logsumexp(terms) == pytest.approx(log_moment(m), abs=1e-8)
    assert log_moment(m) <= np.log(2 * np.sqrt(m)) + 1e-12
    bounded = np.random.default_rng(1).beta(0.3, 0.7, size=(4000, 20)).mean(axis=1)  # losses between 0 and 1
    moment = np.mean([np.exp(20 * bernoulli_divergence(q, 0.3)) for q in bounded])
    assert moment < np.exp(log_moment(20))


def test_moment_of_pairs_and_its_broken_twin():
    """Scores that order all pairs wrongly, 5 % in one class: a U-statistic whose variance is nearly as large as it can be."""
    n, p = 200, 0.05
    positive = np.arange(n + 1)
    risk = 2 * positive * (n - positive) / (n * (n - 1))
    divergence = np.array([bernoulli_divergence(q, 2 * p * (1 - p)) for q in risk])
    probability = stats.binom.pmf(positive, n, p)
    assert probability @ np.exp(n // 2 * divergence) < np.exp(log_moment(n // 2))
    for twin in (n, n * (n - 1) // 2):  # as if rows, or pairs, were as many independent losses
        assert np.log(np.sum(probability * np.exp(np.minimum(twin * divergence, 600)))) > log_moment(twin)


def test_a_certificate_is_the_inverse_of_its_parts(data):
    posterior, q = fitted(data)
    found = certify(posterior, q, inequality="kl", epsilon=0.1)
    budget = (q.kl + log_moment(300) + np.log(10)) / 300
    assert found.bound == pytest.approx(kl_inverse(q.expected_risk, budget))
    assert found.deviation == pytest.approx(log_moment(300))
    assert found.predictor_bound == pytest.approx(min(1.0, 2 * found.bound))
    assert found.bound < min(certify(posterior, q, epsilon=0.1, sharp=s).bound for s in (False, True))
    assert "log ξ" in str(found)
    assert "the prior was fixed" in str(found)


def test_pairs_count_as_half_the_rows(data):
    posterior, q = fitted(data, "auc")
    found = certify(posterior, q, inequality="kl")
    assert found.bound == pytest.approx(kl_inverse(q.expected_risk, (q.kl + log_moment(150) + np.log(20)) / 150))


def test_pairs_of_the_two_classes(data):
    posterior, q = fitted(data, "auc")
    found = certify(posterior, q, inequality="kl")
    positive = int((data[1] > 0).sum())
    m = min(positive, 300 - positive)
    share = q.expected_risk * 300 * 299 / (2 * positive * (300 - positive))
    assert found.class_bound == pytest.approx(kl_inverse(share, (q.kl + log_moment(m) + np.log(20)) / m))
    assert "Pairs of the two classes" in str(found)
    assert np.isnan(certify(posterior, q).class_bound)
    assert np.isnan(certify(*fitted(data), inequality="kl").class_bound)


def test_moment_of_pairs_of_two_classes_and_its_broken_twin():
    """Twenty rows against a thousand: scores of the twenty are 0 or 2, of the others 1, so that they decide all pairs."""
    few, many, p = 20, 1000, 0.3
    wrong = stats.binom.pmf(np.arange(few + 1), few, p)
    divergence = np.array([bernoulli_divergence(k / few, p) for k in range(few + 1)])
    assert np.log(wrong @ np.exp(few * divergence)) <= log_moment(few) + 1e-9
    for twin in ((few + many) // 2, few * many):
        assert np.log(wrong @ np.exp(np.minimum(twin * divergence, 600))) > log_moment(twin)


def test_the_learning_rate_is_free_and_the_prior_is_not(data):
    posterior, q = fitted(data)
    plain = certify(posterior, q, inequality="kl").bound
    for candidates in (8, None):
        tuned = posterior._tuned(TuningRecord("learning rate", "cross-validation", candidates))
        assert certify(tuned, q, inequality="kl").bound == plain
    grid = posterior._tuned(TuningRecord("prior", "pseudo-evidence", 8))
    budget = (q.kl + log_moment(300) + np.log(8 * 20)) / 300
    assert certify(grid, q, inequality="kl").bound == pytest.approx(kl_inverse(q.expected_risk, budget))
    with pytest.raises(ModelError, match="the prior was chosen on the same data"):
        certify(posterior._tuned(TuningRecord("prior", "pseudo-evidence", None)), q, inequality="kl")
    choice = choose_learning_rate(posterior, [30.0, 60.0, 600.0], method="bound", inequality="kl")
    assert choice.criterion[1] == pytest.approx(plain, abs=5e-3)
    assert certify(choice.posterior, fit_gibbs_vi(choice.posterior), inequality="kl").candidates == 1


@pytest.mark.parametrize("loss", ["zero_one", "auc"])
def test_particles_by_the_evidence_alone(data, loss):
    """Catoni's bound at λ, below that of Hoeffding's lemma at every λ, which has to be paid for in both."""
    posterior, _ = fitted(data, loss, rate=100.0)
    idata = pb.sample_smc(posterior, draws=500, chains=2, random_seed=1, progressbar=False)
    found = certify(posterior, idata, inequality="kl")
    assert found.bound < certify(posterior, idata, sharp=True).bound
    assert found.deviation == 0
    grid = posterior._tuned(TuningRecord("learning rate", "bound", 8))
    assert certify(grid, idata, inequality="kl").bound > found.bound + np.log(8) / 150
    with pytest.raises(ModelError, match="loss= is for Gaussians"):
        certify(posterior, idata, loss="zero_one")


def test_the_tangent_touches_the_inverse():
    q, budget, m = 0.1, 0.05, 200
    p = kl_inverse(q, budget)
    rate = m * np.log(p * (1 - q) / (q * (1 - p)))
    assert tangent(rate * q + m * budget, rate, m) == pytest.approx(p)
    for other in (0.5 * rate, 2 * rate):
        assert tangent(other * q + m * budget, other, m) > p


def test_error_rate_of_a_hinge_fit(data):
    posterior, q = fitted(data, "hinge")
    draws = posterior.with_loss("zero_one").risk(q.sample(4000, np.random.default_rng(1)))
    for options in ({}, {"sharp": True}, {"inequality": "kl"}):
        found = certify(posterior, q, loss="zero_one", **options)
        same = certify(GibbsPosterior((0.0, 1.0), "zero_one", *data, learning_rate=60.0), q, **options)
        assert found.bound == pytest.approx(same.bound)
        assert found.expected_risk == pytest.approx(draws.mean(), abs=0.01)
    assert found.bound < 0.35
    assert found.expected_risk < expected_risk(posterior, q)
    ranking = GibbsPosterior((0.0, 1.0), "auc_hinge", *data, learning_rate=60.0)
    assert certify(ranking, q, loss="auc", inequality="kl").bound < 0.35


def test_refused(data):
    posterior, q = fitted(data)
    with pytest.raises(ModelError, match="the kl-inverse bound has no f"):
        certify(posterior, q, inequality="kl", sharp=True)
    hinge = GibbsPosterior((0.0, 1.0), "hinge", *data, learning_rate=5.0)
    with pytest.raises(ModelError, match="hinge loss is not bounded; loss='zero_one' certifies"):
        certify(hinge, q, inequality="kl", feature_bound=10.0)
    with pytest.raises(ModelError, match="logistic loss is not bounded; loss='zero_one' certifies"):
        certify(GibbsPosterior((0.0, 1.0), "logistic", *data, learning_rate=5.0), q)
    squared = GibbsPosterior((0.0, 1.0), "squared", data[0], data[0][:, 0], learning_rate=5.0)
    with pytest.raises(ModelError, match="binary outcomes"):
        certify(squared, q, loss="zero_one")
