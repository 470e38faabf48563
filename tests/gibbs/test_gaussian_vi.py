"""Gaussian VI with exact expectations: optimality, agreement of solvers, annealing, sampled pairs."""

import numpy as np
import pytest
from scipy.optimize import minimize

import ppl_backends as pb
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.gibbs import FunctionLoss, GibbsPosterior, PairLoss, expected_risk, fit_gibbs_vi, fit_gibbs_vi_path

# VI of losses with jumps is too narrow, and says so
pytestmark = pytest.mark.filterwarnings("ignore:VI. .*weighted points:ppl_backends.errors.ApproximationWarning")
FAMILIES = ["isotropic", "diagonal", "dense"]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(70, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 0.5]])
    return X, np.sign(X @ [1.0, -1.0, 0.5] + 0.5 * rng.normal(size=70))


def sampled_elbo(posterior, q, n=200_000):
    x = q.sample(n, np.random.default_rng(0))
    values = posterior.log_density(x) - q.log_density(x)
    return values.mean(), values.std() / n**0.5


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("loss", ["hinge", "logistic", "zero_one", "auc", "auc_hinge"])
def test_elbo_and_risk_are_expectations_under_the_fit(data, loss, family):
    posterior = GibbsPosterior((0.1, [1.0, 2.0, 0.5]), loss, *data, learning_rate=50.0)
    q = fit_gibbs_vi(posterior, family=family)
    assert q.converged or (family == "dense" and not posterior.loss.convex and q.trouble)
    value, error = sampled_elbo(posterior, q, 20_000)
    assert q.elbo == pytest.approx(value, abs=5 * error)
    assert -50 * q.expected_risk - q.kl == pytest.approx(q.elbo)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("loss", ["hinge", "logistic", "auc_hinge"])
def test_gap_bounds_the_distance_from_the_minimum(data, loss, family):
    prior = (0.1, np.array([[1.0, 0.4, 0.0], [0.4, 2.0, 0.1], [0.0, 0.1, 0.5]]))
    posterior = GibbsPosterior(prior, loss, *data, learning_rate=50.0)
    best = fit_gibbs_vi(posterior, family=family, tolerance=1e-7)
    assert best.optimality_gap < 1e-6
    with pytest.warns(pb.errors.ApproximationWarning):
        early = fit_gibbs_vi(posterior, family=family, tolerance=1e-12, max_iterations=2)
    assert 0 < best.elbo - early.elbo <= early.optimality_gap
    if family == "dense":
        again = fit_gibbs_vi(posterior, initial=pb.GaussianApproximation(np.ones(3), 4 * np.eye(3)), tolerance=1e-7)
        assert again.elbo == pytest.approx(best.elbo, abs=1e-6)
        np.testing.assert_allclose(again.cov, best.cov, atol=1e-3)


def test_larger_families_are_nearer(data):
    posterior = GibbsPosterior((0.0, 1.0), "hinge", *data, learning_rate=50.0)
    elbos = [fit_gibbs_vi(posterior, family=family).elbo for family in ("F1", "F2", "F3")]
    assert elbos[0] <= elbos[1] + 1e-4 <= elbos[2] + 2e-4
    assert elbos[2] <= pb.fit_ep(posterior).log_evidence + 0.1


def test_squared_loss_is_solved_exactly(data):
    X, _ = data
    y = X @ [1.0, -1.0, 0.5]
    posterior = GibbsPosterior((0.0, 1.0), "squared", X, y, learning_rate=35.0)
    q = fit_gibbs_vi(posterior, tolerance=1e-9)
    precision = np.eye(3) + X.T @ X
    np.testing.assert_allclose(q.precision, precision, rtol=1e-5)
    np.testing.assert_allclose(q.mean, np.linalg.solve(precision, X.T @ y), rtol=1e-5)
    assert q.elbo == pytest.approx(pb.fit_ep(posterior).log_evidence, abs=1e-5)


def test_annealing_beats_the_mean_of_random_starts(data):
    posterior = GibbsPosterior((0.0, 4.0), "zero_one", *data, learning_rate=200.0)
    annealed = fit_gibbs_vi(posterior)
    rng = np.random.default_rng(1)
    starts = [pb.GaussianApproximation(2 * rng.normal(size=3), 0.2 * np.eye(3)) for _ in range(10)]
    elbos = [fit_gibbs_vi(posterior, initial=start).elbo for start in starts]
    assert annealed.elbo >= np.mean(elbos)
    assert len(annealed.trace) == 12
    np.testing.assert_allclose(annealed.trace[-1], [200.0, annealed.expected_risk, annealed.kl])


def test_a_path_warm_starts_and_agrees_with_single_fits(data):
    posterior = GibbsPosterior((0.0, 1.0), "hinge", *data, learning_rate=1.0)
    fits = fit_gibbs_vi_path(posterior, [10.0, 30.0, 90.0])
    assert [q.posterior.learning_rate for q in fits] == [10.0, 30.0, 90.0]
    alone = fit_gibbs_vi(posterior.with_learning_rate(30.0))
    assert fits[1].elbo == pytest.approx(alone.elbo, abs=2e-4)
    with pytest.raises(ModelError, match="increasing"):
        fit_gibbs_vi_path(posterior, [10.0, 5.0])


@pytest.mark.parametrize("family", FAMILIES)
def test_sampled_pairs_come_near_all_pairs(data, family):
    posterior = GibbsPosterior((0.0, 1.0), "auc", *data, learning_rate=50.0)
    every = fit_gibbs_vi(posterior, family=family, sample_pairs=False)
    some = fit_gibbs_vi(posterior, family=family, sample_pairs=True, n_iterations=2000, random_seed=1)
    assert some.converged
    assert every.elbo - 0.3 < some.elbo < every.elbo + 0.3
    repeated = fit_gibbs_vi(posterior, family=family, sample_pairs=True, n_iterations=2000, random_seed=1)
    np.testing.assert_array_equal(some.mean, repeated.mean)
    # The trace is of a sample of pairs; its last entry is near the exact risk.
    assert some.trace[-1, 1] == pytest.approx(some.expected_risk, abs=0.01)


def test_pairs_in_blocks_are_all_pairs(data, monkeypatch):
    posterior = GibbsPosterior((0.0, 1.0), "auc", *data, learning_rate=50.0)
    q = fit_gibbs_vi(posterior)
    whole = expected_risk(posterior, q)
    monkeypatch.setattr("ppl_backends.gibbs.gaussian_vi.PAIR_BLOCK", 50)
    assert expected_risk(posterior, q) == pytest.approx(whole, rel=1e-12)
    x = q.sample(20_000, np.random.default_rng(0))
    risks = posterior.risk(x)
    assert whole == pytest.approx(risks.mean(), abs=5 * risks.std() / 20_000**0.5)


def test_functions_as_losses(data):
    softplus = FunctionLoss(lambda s, y: np.logaddexp(0, -y * s), classification=True, convex=True)
    own = fit_gibbs_vi(GibbsPosterior((0.0, 1.0), softplus, *data, learning_rate=50.0))
    named = fit_gibbs_vi(GibbsPosterior((0.0, 1.0), "logistic", *data, learning_rate=50.0))
    np.testing.assert_allclose(own.mean, named.mean, atol=1e-3)
    paired = GibbsPosterior(
        (0.0, 1.0), PairLoss(FunctionLoss(lambda s, y: np.exp(-s), convex=True)), *data, learning_rate=5.0
    )
    q = fit_gibbs_vi(paired)
    value, error = sampled_elbo(paired, q, 5000)
    assert q.elbo == pytest.approx(value, abs=5 * error)


def test_the_optimum_agrees_with_a_direct_search(data):
    posterior = GibbsPosterior((0.0, 1.0), "hinge", *data, learning_rate=50.0)
    q = fit_gibbs_vi(posterior, family="isotropic", tolerance=1e-7)

    def objective(z):
        trial = pb.GaussianApproximation(z[:3], np.exp(2 * z[3]) * np.eye(3))
        kl = 0.5 * (z[:3] @ z[:3] + 3 * np.exp(2 * z[3]) - 3) - 3 * z[3]
        return 50 * expected_risk(posterior, trial) + kl

    found = minimize(
        objective, np.zeros(4), method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-8, "maxiter": 4000}
    )
    assert q.elbo == pytest.approx(-found.fun, abs=1e-5)


def test_what_does_not_apply_is_refused(data):
    with pytest.raises(ModelError, match=r"family=.*: expected .*'dense'"):
        fit_gibbs_vi(GibbsPosterior((0.0, 1.0), "hinge", *data, learning_rate=1.0), family="F4")
    function = GibbsPosterior((np.zeros(2), 1.0), lambda values: values["theta"] ** 2, learning_rate=1.0)
    with pytest.raises(ModelError, match="needs a Gaussian prior and a loss of linear scores"):
        fit_gibbs_vi(function)


@pytest.mark.parametrize("loss", ["zero_one", "hinge"])
def test_converged_says_whether_the_gaussian_has_the_right_width(loss):
    """Against a grid: VI of a loss with jumps is much too narrow, and that of a convex one is not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    X, y = np.column_stack([np.ones(40), x]), np.where(x > 0.1, 1, -1)
    posterior = GibbsPosterior((0.0, 1.0), loss, X, y, learning_rate=400.0)
    q = (fit_gibbs_vi_path(posterior, [400.0]) if loss == "hinge" else [_warned(posterior)])[0]
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 401), np.linspace(0.0, 8.0, 401), indexing="ij"), -1).reshape(-1, 2)
    log_density = posterior.log_density(grid)
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    sd = np.sqrt(weights @ (grid - weights @ grid) ** 2)
    assert q.converged == bool((np.abs(sd / q.sd - 1) < 0.2).all()) == (loss == "hinge")


def _warned(posterior):
    with pytest.warns(
        ApproximationWarning, match=r"VI: by weighted points the standard deviation of theta\[1\] is 1\.7"
    ):
        return fit_gibbs_vi(posterior)


def test_many_coefficients_cannot_be_checked():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 40))
    y = np.sign(X @ rng.normal(size=40))
    with pytest.warns(ApproximationWarning, match="draws, so nothing checks the Gaussian"):
        assert not fit_gibbs_vi(GibbsPosterior((0.0, 1.0), "zero_one", X, y, learning_rate=300.0)).converged
