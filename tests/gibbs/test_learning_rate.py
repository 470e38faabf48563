"""Choosing λ and the scale of the prior."""

from functools import partial

import numpy as np
import pytest
from scipy.special import logsumexp

import ppl_backends as pb
from ppl_backends.approximations.ep import fit_ep
from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.gibbs import (
    GibbsPosterior,
    certify,
    choose_learning_rate,
    choose_prior_scale,
    fit_gibbs_vi,
    learning_rate,
)
from ppl_backends.gibbs.learning_rate import _cavity, _known_k
from ppl_backends.numerics.weights import effective_sample_size
from ppl_backends.smc.ladder import Reweighted

GRID = [4.0, 20.0, 100.0]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    return X, np.sign(X @ [1.0, -1.0] + 1.0 * rng.normal(size=100))


@pytest.fixture(scope="module")
def hinge(data):
    return GibbsPosterior((0.0, 1.0), "hinge", *data, learning_rate=1.0)


def test_cavities_reweighting_and_refits_agree(hinge):
    by = {fit: choose_learning_rate(hinge, GRID, fit=fit, random_seed=1) for fit in ("vi", "ep", "smc")}
    for choice in by.values():
        assert choice.learning_rate in GRID
        assert choice.posterior.learning_rate == choice.learning_rate
        assert choice.posterior.tuning[-1].candidates == 3
        # One of the hundred observations near the boundary or two may change sides.
        np.testing.assert_allclose(choice.criterion, by["vi"].criterion, atol=0.031)
    assert (by["smc"].pareto_k < 1).all()


def test_a_pareto_k_that_cannot_be_fitted_is_good_for_even_weights_only():
    def found(log_weight, k):
        log_weight = log_weight - logsumexp(log_weight)
        return Reweighted(np.zeros((100, 2)), log_weight, k, effective_sample_size(log_weight), 0.0, np.ones(1))

    even, uneven = np.zeros(100), np.r_[np.zeros(99), 10.0]
    assert [_known_k(found(even, k)) for k in (np.nan, 0.3)] == [0.0, 0.3]
    assert [_known_k(found(uneven, k)) for k in (np.nan, np.inf, 0.3)] == [np.inf, np.inf, 0.3]


def test_a_cavity_is_the_fit_without_its_sites(data):
    """With Gaussian sites EP is exact, and so is removing them."""
    X, y = data
    posterior = GibbsPosterior((0.3, 2.0), "squared", X, y, learning_rate=50.0)
    fold = np.arange(0, 100, 5)
    cavity = _cavity(fit_ep(posterior), np.isin(np.arange(100), fold))
    refit = fit_ep(posterior.subset(np.setdiff1d(np.arange(100), fold)))
    np.testing.assert_allclose(cavity.mean, refit.mean, atol=1e-8)
    np.testing.assert_allclose(cavity.cov, refit.cov, atol=1e-8)


def test_pairs_are_left_out_with_their_observations(data):
    posterior = GibbsPosterior((0.0, 1.0), "auc", *data, learning_rate=1.0)
    ep, vi = (choose_learning_rate(posterior, GRID, fit=fit, random_seed=1) for fit in ("ep", "vi"))
    np.testing.assert_allclose(ep.criterion, vi.criterion, atol=0.02)


def test_annealing_stops_where_the_bound_rises(data):
    posterior = GibbsPosterior((0.0, 1.0), "zero_one", *data, learning_rate=1.0)
    grid = [5.0, 20.0, 40.0, 80.0, 160.0, 320.0]
    for options in ({}, {"sharp": True}, {"inequality": "kl"}):
        whole = choose_learning_rate(posterior, grid, method="bound", **options).criterion
        rises = np.flatnonzero(np.diff(whole) > 0)
        last = rises[0] + 2 if len(rises) else len(grid)
        found = choose_learning_rate(posterior, grid, method="annealing", **options)
        np.testing.assert_allclose(found.criterion[:last], whole[:last], atol=2e-3)
        assert np.isinf(found.criterion[last:]).all()
        assert found.posterior.tuning[-1].candidates == len(grid)
    assert choose_learning_rate(posterior, grid, method="annealing", fit="ep").learning_rate in grid


def test_constants_of_the_theory(data):
    X, y = data
    single = GibbsPosterior("theory", "zero_one", X, y, learning_rate="theory")
    assert single.learning_rate == pytest.approx(np.sqrt(200))
    np.testing.assert_allclose(single.gaussian_prior.covariance, np.eye(2) / 2)
    pairs = GibbsPosterior("theory", "auc", X, y, learning_rate="theory")
    assert pairs.learning_rate == pytest.approx(np.sqrt(99))
    np.testing.assert_allclose(pairs.gaussian_prior.covariance, np.eye(2))
    assert single.with_learning_rate(3.0).with_learning_rate("theory").learning_rate == single.learning_rate
    assert certify(single, fit_gibbs_vi(single)).candidates == 1
    with pytest.raises(ModelError, match="learning_rate='theory': the hinge loss is not bounded"):
        GibbsPosterior("theory", "hinge", X, y, learning_rate="theory")
    with pytest.raises(ModelError, match="learning_rate='thery': expected a number above 0"):
        GibbsPosterior("theory", "auc", X, y, learning_rate="thery")


def test_the_bound_pays_for_the_grid(data):
    posterior = GibbsPosterior((0.0, 1.0), "zero_one", *data, learning_rate=1.0)
    choice = choose_learning_rate(posterior, GRID, method="bound", epsilon=0.1)
    final = certify(choice.posterior, fit_gibbs_vi(choice.posterior), epsilon=0.1)
    assert final.candidates == 3
    assert final.bound == pytest.approx(choice.criterion.min(), abs=1e-3)
    with pytest.raises(ModelError, match="hinge loss is not bounded"):
        choose_learning_rate(GibbsPosterior((0.0, 1.0), "hinge", *data, learning_rate=1.0), GRID, method="bound")


def test_safe_bayes_prefers_small_rates_for_noise(hinge, data):
    rng = np.random.default_rng(3)
    noise = GibbsPosterior((0.0, 1.0), "hinge", data[0], rng.choice([-1.0, 1.0], 100), learning_rate=1.0)
    grid = [1.0, 20.0, 400.0]
    on_noise = choose_learning_rate(noise, grid, method="safe-bayes", random_seed=1)
    on_signal = choose_learning_rate(hinge, grid, method="safe-bayes", random_seed=1)
    assert on_noise.learning_rate <= on_signal.learning_rate
    assert on_signal.learning_rate > 1.0
    with pytest.raises(ModelError, match="use cross-validation for pair losses"):
        choose_learning_rate(GibbsPosterior((0.0, 1.0), "auc", *data, learning_rate=1.0), GRID, method="safe-bayes")


def test_pseudo_evidence_finds_the_scale_of_the_prior(data):
    rng = np.random.default_rng(4)
    X, d = rng.normal(size=(400, 40)), 40
    theta = 0.5 * rng.normal(size=d)
    y = X @ theta + rng.normal(size=400)  # λ = n/2 makes the squared loss the likelihood of this noise
    posterior = GibbsPosterior((0.0, 1.0), "squared", X, y, learning_rate=200.0)
    found = choose_prior_scale(posterior)
    assert found.scale == pytest.approx(0.5, rel=0.4)
    q = pb.GaussianApproximation(np.zeros(2), np.eye(2))
    zero_one = GibbsPosterior((0.0, 1.0), "zero_one", *data, learning_rate=20.0)
    with pytest.warns(ApproximationWarning, match="by weighted points"), pytest.warns(match="the same at all scales"):
        chosen = choose_prior_scale(zero_one).posterior
    with pytest.raises(ModelError, match="chosen on the same data by pseudo-evidence"):
        certify(chosen, q)
    grid = choose_prior_scale(posterior, [0.1, 0.5, 2.5], fit="vi")
    assert grid.scale == 0.5
    assert grid.posterior.tuning[-1].candidates == 3


def test_a_loss_of_directions_chooses_no_scale(data):
    posterior = GibbsPosterior((0.0, 1.0), "auc", *data, learning_rate=10.0)
    with pytest.warns(ApproximationWarning, match="the pseudo-evidence is the same at all scales"):
        choose_prior_scale(posterior, [0.01, 1.0])


def test_options_are_checked(hinge):
    with pytest.raises(ModelError, match="increasing numbers above 0"):
        choose_learning_rate(hinge, [2.0, 1.0])
    with pytest.raises(ModelError, match="option of method='bound'"):
        choose_learning_rate(hinge, GRID, epsilon=0.1)
    with pytest.raises(ModelError, match="SMC gives cross-validation"):
        choose_learning_rate(hinge, GRID, method="bound", fit="smc")
    with pytest.raises(ModelError, match="folds=1"):
        choose_learning_rate(hinge, GRID, folds=1)


def test_folds_of_pairs_need_a_row_of_each_class(data):
    X, _ = data
    few = GibbsPosterior((0.0, 1.0), "auc", X, np.where(np.arange(100) < 3, 1.0, -1.0), learning_rate=1.0)
    with pytest.raises(ModelError, match="folds=5: the smaller class has 3 rows, and every fold needs one"):
        choose_learning_rate(few, GRID, random_seed=1)
    assert np.isfinite(choose_learning_rate(few, GRID, folds=3, random_seed=1).criterion).all()


@pytest.mark.parametrize("scales", [[-1.0, 2.0], [0.0, 1.0], [[1.0, 2.0]], []])
def test_scales_of_a_prior_are_positive_numbers(hinge, scales):
    with pytest.raises(ModelError, match="expected a list of positive numbers"):
        choose_prior_scale(hinge, scales)


def test_a_choice_from_unfinished_fits_warns(hinge, monkeypatch):
    unfinished = partial(learning_rate.fits_along, max_iterations=1)
    monkeypatch.setattr(learning_rate, "fits_along", unfinished)
    for method in ("cross-validation", "safe-bayes"):
        with pytest.warns(
            ApproximationWarning, match=r"^\d+ of the fits by variational inference at the chosen learning"
        ):
            choose_learning_rate(hinge, [400.0, 4000.0], method=method, random_seed=1)
