"""Gibbs posteriors as targets: densities, relatives, every method on them, and all kinds of priors."""

import pickle
import warnings

import numpy as np
import pytest
from scipy import stats

import ppl_backends as pb
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.gibbs import FunctionLoss, GibbsPosterior, PairLoss, fit_pair_ep, gibbs_potential
from ppl_backends.gibbs.pair_ep import RowDifferences
from ppl_backends.results.inference_data import group
from ppl_backends.targets.power import with_power

QUIET = {"progressbar": False, "random_seed": 1}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    return X, np.sign(X @ [1.0, -1.0] + 0.5 * rng.normal(size=60))


def attrs(idata):
    return group(idata, "posterior").attrs


def draws(idata, name="theta"):
    values = group(idata, "posterior")[name].values
    return values.reshape(-1, *values.shape[2:])


def test_other_rows_keep_a_common_offset_and_need_offsets_of_their_own(data):
    X, y = data
    new, at = {"X": X[:5], "y": y[:5]}, np.zeros((1, 2))
    common = GibbsPosterior((0.0, 1.0), "hinge", X, y, learning_rate=30.0, offset=0.5)
    assert common.with_data(new).risk(at)[0] == pytest.approx(np.mean(1 - 0.5 * y[:5]))
    own = GibbsPosterior((0.0, 1.0), "hinge", X, y, learning_rate=30.0, offset=X[:, 0])
    with pytest.raises(ModelError, match="new data lack 'offset'"):
        own.with_data(new)
    np.testing.assert_array_equal(own.with_data(new | {"offset": X[:5, 0]}).scores(at)[0], X[:5, 0])


def test_scores_at_other_rows_have_the_common_offset_or_their_own(data):
    X, y = data
    common = GibbsPosterior((0.0, 1.0), "hinge", X, y, learning_rate=30.0, offset=0.5)
    own = GibbsPosterior((0.0, 1.0), "hinge", X, y, learning_rate=30.0, offset=X[:, 0])
    theta = np.array([[1.0, -2.0]])
    np.testing.assert_allclose(common.scores(theta, X), common.scores(theta))
    np.testing.assert_allclose(own.scores(theta, X[:5], offset=X[:5, 0]), own.scores(theta)[:, :5])
    with pytest.raises(ModelError, match="new data lack 'offset'"):
        own.scores(theta, X)
    with pytest.raises(ModelError, match=r"X has shape \(2,\); expected \(n, 2\)"):
        common.scores(theta, X[0])


def test_density_is_prior_times_exponential_of_minus_lambda_times_mean_loss(data):
    X, y = data
    posterior = GibbsPosterior((0.5, [1.0, 4.0]), "hinge", X, y, learning_rate=30.0)
    x = np.random.default_rng(1).normal(size=(5, 2))
    risk = np.maximum(1 - y * (x @ X.T), 0).mean(axis=1)
    prior = stats.multivariate_normal([0.5, 0.5], np.diag([1.0, 4.0])).logpdf(x)
    np.testing.assert_allclose(posterior.log_density(x), prior - 30 * risk)
    np.testing.assert_allclose(posterior.risk(x), risk)
    assert posterior.eta == 0.5
    np.testing.assert_allclose(posterior.pointwise_log_likelihood(x)["y"].sum(axis=1), -30 * risk)


@pytest.mark.parametrize("loss", ["hinge", "logistic", "auc_hinge"])
def test_gradients_agree_with_differences(data, loss):
    posterior = GibbsPosterior((0.0, np.array([[1.0, 0.3], [0.3, 2.0]])), loss, *data, learning_rate=30.0)
    x, step = np.random.default_rng(1).normal(size=(3, 2)), 1e-6
    gradient = posterior.log_density_and_gradient(x)[1]
    for j, shift in enumerate(step * np.eye(2)):
        difference = (posterior.log_density(x + shift) - posterior.log_density(x - shift)) / (2 * step)
        np.testing.assert_allclose(gradient[:, j], difference, atol=1e-4)


def test_logistic_loss_at_lambda_n_is_logistic_regression(data):
    X, y = data
    posterior = GibbsPosterior((0.0, 1.0), "logistic", X, y, learning_rate=60.0)
    x = np.random.default_rng(1).normal(size=(4, 2))
    likelihood = stats.bernoulli(1 / (1 + np.exp(-x @ X.T))).logpmf(y > 0).sum(axis=1)
    np.testing.assert_allclose(posterior.evaluate(x).log_likelihood, likelihood)
    laplace = pb.fit_laplace(posterior, progressbar=False)
    np.testing.assert_allclose(laplace.precision, -posterior.hessian(laplace.mean[None])[0], rtol=1e-6)


def test_rates_of_pairs(data):
    X, y = data
    posterior = GibbsPosterior((0.0, 1.0), "auc", X, y, learning_rate=30.0)
    n_pairs = int((y > 0).sum() * (y < 0).sum())
    assert posterior.pair_rate == pytest.approx(30.0 * 2 * n_pairs / (60 * 59))
    factors = posterior.factors
    assert factors.n_sites == n_pairs
    x = np.random.default_rng(1).normal(size=(3, 2))
    np.testing.assert_allclose(factors.log_density(x), posterior.log_density(x))


@pytest.mark.parametrize("loss", ["zero_one", "hinge", "auc"])
def test_smc_ep_and_importance_agree(data, loss):
    posterior = GibbsPosterior((0.0, 1.0), loss, *data, learning_rate=40.0)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="EP: by weighted points"
        )  # sds of losses with jumps are a third too small
        ep = pb.fit_ep(posterior)
    smc = pb.sample_smc(posterior, draws=1000, chains=2, kernel="random_walk", **QUIET)
    assert attrs(smc)["log_evidence_note"].startswith("pseudo-evidence")
    # A wide Gaussian as the proposal: 1 nat of its evidence is ten standard errors.
    proposal = pb.GaussianApproximation(ep.mean, 2.0 * ep.cov)
    importance = pb.sample_importance(posterior, draws=4000, approximation=proposal, chains=2, **QUIET)
    assert attrs(smc)["log_evidence"] == pytest.approx(attrs(importance)["log_evidence"], abs=0.25)
    assert ep.log_evidence == pytest.approx(attrs(importance)["log_evidence"], abs=0.6)
    sd = draws(importance).std(axis=0)
    np.testing.assert_allclose(draws(smc).mean(axis=0), draws(importance).mean(axis=0), atol=0.25 * sd.max())
    np.testing.assert_allclose(ep.mean, draws(importance).mean(axis=0), atol=0.3 * sd.max())


def test_power_is_a_learning_rate(data):
    posterior = GibbsPosterior((0.0, 1.0), "hinge", *data, learning_rate=40.0)
    half = with_power(posterior, 0.5)
    assert half.learning_rate == 20.0
    x = np.random.default_rng(1).normal(size=(3, 2))
    np.testing.assert_allclose(half.evaluate(x).log_likelihood, 0.5 * posterior.evaluate(x).log_likelihood)
    assert pb.fit_ep(half).sd.sum() > pb.fit_ep(posterior).sd.sum()
    tempered = pb.sample_smc(posterior, draws=300, chains=2, power=0.5, **QUIET)
    direct = pb.sample_smc(half, draws=300, chains=2, **QUIET)
    np.testing.assert_array_equal(draws(tempered), draws(direct))


def test_subsets_keep_the_weight_of_an_observation(data):
    posterior = GibbsPosterior((0.0, 1.0), "hinge", *data, learning_rate=40.0)
    part = posterior.subset(np.arange(15))
    assert (part.n, part.learning_rate) == (15, 10.0)
    x = np.ones((1, 2))
    whole = posterior.pointwise_log_likelihood(x)["y"]
    np.testing.assert_allclose(part.evaluate(x).log_likelihood, whole[:, :15].sum(axis=1))


def test_observations_by_index_and_weight(data):
    observations = GibbsPosterior((0.0, 1.0), "hinge", *data, learning_rate=40.0).observations
    x = np.random.default_rng(2).normal(size=(3, 2))
    whole = observations.log_likelihood(x)
    own = np.array([[0, 1], [2, 3], [59, 59]])
    np.testing.assert_allclose(observations.log_likelihood(x, own), np.take_along_axis(whole, own, axis=1))
    weights = np.array([0.5, 2.0])
    value, gradient = observations.sum(x, own, weights, gradient=True)
    np.testing.assert_allclose(value, (weights * np.take_along_axis(whole, own, axis=1)).sum(axis=1))
    step = 1e-6
    for j, shift in enumerate(step * np.eye(2)):
        up, down = (observations.sum(x + s, own, weights) for s in (shift, -shift))
        np.testing.assert_allclose(gradient[:, j], (up - down) / (2 * step), atol=1e-5)


def test_functions_of_scores_and_of_values(data):
    X, y = data
    hinge = GibbsPosterior((0.0, 1.0), "hinge", X, y, learning_rate=40.0)
    by_scores = GibbsPosterior((0.0, 1.0), lambda s, y: np.maximum(1 - y * s, 0), X, y, learning_rate=40.0)
    by_values = GibbsPosterior(
        (np.zeros(2), 1.0), lambda values: np.maximum(1 - y * (values["theta"] @ X.T), 0), learning_rate=40.0
    )
    x = np.random.default_rng(1).normal(size=(3, 2))
    np.testing.assert_allclose(by_scores.log_density(x), hinge.log_density(x))
    np.testing.assert_allclose(by_values.log_density(x), hinge.log_density(x))
    assert not by_values.has_gradient
    assert by_values.n == 60
    pairs = GibbsPosterior((0.0, 1.0), PairLoss(FunctionLoss(lambda s, y: np.exp(-s))), X, y, learning_rate=40.0)
    assert pairs.risk(np.zeros((1, 2)))[0] == pytest.approx(pairs.pair_rate / 40.0)


def test_hierarchical_prior_from_pymc_with_named_coefficients(data):
    import pymc as pm

    X, y = data
    with pm.Model() as prior:
        tau = pm.HalfNormal("tau", 1.0)
        pm.Normal("beta", 0.0, tau, shape=2)
    posterior = GibbsPosterior(prior, "zero_one", X, y, learning_rate=40.0)
    x = posterior.sample_prior(4, np.random.default_rng(0))
    beta = posterior.constrain(x)["beta"]
    np.testing.assert_allclose(posterior.risk(x), (y * (beta @ X.T) <= 0).mean(axis=1))
    assert posterior.factors is None
    with pytest.raises(ModelError, match=r"name the 3 coefficients among tau_log__ \(1\), beta \(2\)"):
        GibbsPosterior(prior, "zero_one", np.ones((60, 3)), y, learning_rate=1.0)
    with pytest.raises(ModelError, match="constrained"):
        GibbsPosterior(prior, "zero_one", X[:, :1], y, learning_rate=1.0, coefficients="tau")


def test_expression_of_a_pymc_model_and_the_potential_are_the_same(data):
    import pymc as pm

    X, y = data
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=2)
        losses = pm.math.maximum(0, 1 - y * (X @ beta))
        steps = pm.math.switch(y * (X @ beta) <= 0, 1.0, 0.0)
    by_expression = GibbsPosterior(model, losses, learning_rate=40.0)
    assert not model.potentials
    assert by_expression.n == 60
    by_name = GibbsPosterior((0.0, 1.0), "hinge", X, y, learning_rate=40.0)
    x = np.random.default_rng(1).normal(size=(3, 2))
    np.testing.assert_allclose(by_expression.log_density(x), by_name.log_density(x))
    np.testing.assert_allclose(by_expression.log_density_and_gradient(x)[1], by_name.log_density_and_gradient(x)[1])
    again = by_expression.with_learning_rate(10.0)
    np.testing.assert_allclose(again.evaluate(x).log_likelihood, 0.25 * by_expression.evaluate(x).log_likelihood)
    assert not GibbsPosterior(model, steps, learning_rate=1.0).has_gradient
    with model:
        gibbs_potential(losses, 40.0)
    np.testing.assert_allclose(pb.as_target(model).log_density(x), by_name.log_density(x))
    with pytest.raises(ModelError, match="has a loss in its place"):
        GibbsPosterior(model, losses, learning_rate=1.0)


def test_pickles(data):
    posterior = GibbsPosterior((0.0, 1.0), "auc", *data, learning_rate=40.0)
    x = np.ones((1, 2))
    assert pickle.loads(pickle.dumps(posterior)).log_density(x) == posterior.log_density(x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"loss": "auc", "y": np.ones(60)}, "one class only"),
        ({"y": np.ones(59)}, "y has shape"),
        ({"y": np.arange(60)}, "binary outcomes"),
        ({"y": np.array(["no", "yes"] * 30)}, "binary outcomes: expected an array of numbers, got text"),
        ({"X": [["a"]] * 60}, "X: expected an array of numbers, got text"),
        ({"prior": (0.0, -1.0)}, "cov must be a positive number"),
        ({"X": None, "y": None}, "needs X and y"),
    ],
)
def test_what_does_not_fit_is_refused(data, arguments, message):
    given = {"prior": (0.0, 1.0), "loss": "zero_one", "X": data[0], "y": data[1], "learning_rate": 1.0} | arguments
    with pytest.raises(ModelError, match=message):
        GibbsPosterior(**given)


def test_steps_have_no_laplace_approximation(data):
    with pytest.raises(ModelError, match="no second derivative"):
        pb.fit_laplace(GibbsPosterior((0.0, 1.0), "zero_one", *data, learning_rate=40.0), progressbar=False)
    with pytest.raises(ModelError, match="needs gradients"):
        pb.sample_smc(GibbsPosterior((0.0, 1.0), "zero_one", *data, learning_rate=40.0), kernel="hmc", **QUIET)


def test_ep_of_pairs_in_pieces_is_ep_of_all_pairs(data, monkeypatch):
    posterior = GibbsPosterior((0.0, 1.0), "auc", *data, learning_rate=40.0)
    monkeypatch.setattr("ppl_backends.gibbs.pair_ep.SHARD_PAIRS", 500)
    with pytest.warns(ApproximationWarning, match="by weighted points"):
        pieces, whole = fit_pair_ep(posterior), pb.fit_ep(posterior)
    np.testing.assert_allclose(pieces.mean, whole.mean, atol=1e-5)
    assert pieces.log_evidence == pytest.approx(whole.log_evidence, abs=1e-5)


def test_differences_of_rows_are_the_design_of_pairs():
    rng = np.random.default_rng(2)
    above, below = rng.normal(size=(4, 3)) + 5, rng.normal(size=(6, 3)) + 5
    below[1] = above[2]
    pairs, root = RowDifferences(above, below), np.tril(rng.normal(size=(3, 3)))
    dense, weights = (above[:, None] - below).reshape(-1, 3), rng.normal(size=24)
    theta = rng.normal(size=3)
    np.testing.assert_allclose(pairs @ theta, dense @ theta, atol=1e-12)
    np.testing.assert_allclose(pairs.T @ weights, dense.T @ weights, atol=1e-12)
    np.testing.assert_allclose(pairs.gram(weights), dense.T @ (dense * weights[:, None]), atol=1e-12)
    np.testing.assert_allclose(pairs.row_variances(root.T), ((dense @ root.T) ** 2).sum(axis=1), atol=1e-12)
    assert pairs.row_variances(root.T)[2 * 6 + 1] == 0


def test_a_prior_with_potentials_is_refused(data):
    import pymc as pm

    with pm.Model() as prior:
        theta = pm.Normal("theta", 0, 1, shape=2)
        pm.Potential("penalty", -(theta**2).sum())
    with pytest.raises(ModelError, match="the prior has Potentials"):
        GibbsPosterior(prior, "hinge", *data, learning_rate=30.0)
