"""Losses against their definitions, their sites against numerical integrals, and risks of pairs against all pairs."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from ppl_backends.errors import ModelError
from ppl_backends.gibbs import FunctionLoss, Hinge, Logistic, PairLoss, Quantile, Squared, ZeroOne, auc_risk
from ppl_backends.gibbs.auc import auc_hinge_risk, pair_risk
from ppl_backends.gibbs.losses import resolve_loss

LOSSES = [ZeroOne(), Hinge(), Logistic(), Squared(), Quantile(0.5, 2.0), Quantile(0.8)]
MEAN, VARIANCE = np.array([0.4, -1.3, 2.5, 1.0]), np.array([0.5, 2.0, 1.0, 0.01])


def outcomes(loss):
    return np.array([1.0, -1.0, -1.0, 1.0]) if loss.classification else np.array([0.2, -2.0, 3.0, 1.1])


def integrate(function, mean, variance, kinks):
    sd = np.sqrt(variance)
    inside = [k for k in kinks if abs(k - mean) < 10 * sd]
    value, _ = quad(
        lambda s: function(s) * norm.pdf(s, mean, sd), mean - 10 * sd, mean + 10 * sd, points=inside, limit=200
    )
    return value


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_expected_losses_are_integrals_and_their_derivatives_differences(loss):
    y = outcomes(loss)
    found = loss.expectation(MEAN, VARIANCE, y)
    for k in range(4):
        label = y[k : k + 1]
        value = integrate(
            lambda s, label=label: loss.value(np.array([s]), label)[0], MEAN[k], VARIANCE[k], [0.0, label[0]]
        )
        assert found.value[k] == pytest.approx(value, abs=1e-6)
    step = 1e-4
    up, down = (loss.expectation(MEAN + shift, VARIANCE, y) for shift in (step, -step))
    np.testing.assert_allclose(found.slope, (up.value - down.value) / (2 * step), atol=1e-5)
    np.testing.assert_allclose(found.curvature, (up.slope - down.slope) / (2 * step), atol=1e-5)
    more, less = (loss.expectation(MEAN, VARIANCE * (1 + shift), y) for shift in (step, -step))
    np.testing.assert_allclose(0.5 * found.curvature, (more.value - less.value) / (2 * step * VARIANCE), atol=1e-5)


@pytest.mark.parametrize("loss", [ZeroOne(), Hinge(), Squared(), Quantile(0.8)], ids=lambda loss: loss.name)
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_sites_have_the_moments_of_the_tilted_density(loss, power):
    y, weight = outcomes(loss), 1.7
    sites = loss.sites(y, weight)
    np.testing.assert_allclose(sites.log_site(MEAN[None])[0], -weight * loss.value(MEAN, y), atol=1e-12)
    found = sites.tilted(MEAN, VARIANCE, power)
    for k in range(4):
        label = y[k : k + 1]
        moments = [
            integrate(
                lambda s, label=label, j=j: s**j * np.exp(-power * weight * loss.value(np.array([s]), label)[0]),
                MEAN[k],
                VARIANCE[k],
                [0.0, label[0]],
            )
            for j in range(3)
        ]
        mean = moments[1] / moments[0]
        assert found.log_z[k] == pytest.approx(np.log(moments[0]), abs=1e-7)
        assert found.mean[k] == pytest.approx(mean, abs=1e-6)
        assert found.variance[k] == pytest.approx(moments[2] / moments[0] - mean**2, abs=1e-6)


def all_pairs(scores, positive, loss):
    n = len(positive)
    total = sum(loss(scores[i] - scores[j]) for i in np.flatnonzero(positive) for j in np.flatnonzero(~positive))
    return 2 * total / (n * (n - 1))


def test_auc_risk_is_the_mean_over_ordered_pairs_with_ties_halved():
    rng = np.random.default_rng(0)
    positive = np.array([True, False, False, True, True, False, True])
    scores = np.concatenate([rng.normal(size=(5, 7)), rng.integers(0, 3, size=(5, 7)), np.zeros((1, 7))])
    expected = [all_pairs(row, positive, lambda d: (d < 0) + 0.5 * (d == 0)) for row in scores]
    np.testing.assert_allclose(auc_risk(scores, positive), expected)


def test_auc_hinge_risk_and_gradient_agree_with_all_pairs():
    rng = np.random.default_rng(1)
    positive = rng.random(12) < 0.4
    scores = rng.normal(size=(4, 12))
    value, slope = auc_hinge_risk(scores, positive, gradient=True)
    np.testing.assert_allclose(value, [all_pairs(row, positive, lambda d: max(1 - d, 0.0)) for row in scores])
    by_pairs = pair_risk(scores, positive, Hinge(), gradient=True)
    np.testing.assert_allclose(value, by_pairs[0])
    np.testing.assert_allclose(slope, by_pairs[1])


def test_a_function_becomes_a_loss_with_expectations():
    ramp = FunctionLoss(lambda s, y: np.tanh(s - y) ** 2)
    found = ramp.expectation(MEAN, VARIANCE, np.zeros(4))
    expected = [integrate(lambda s: np.tanh(s) ** 2, m, v, []) for m, v in zip(MEAN, VARIANCE, strict=True)]
    np.testing.assert_allclose(found.value, expected, atol=1e-3)
    exact = FunctionLoss(lambda s, y: (s - y) ** 2).expectation(MEAN, VARIANCE, np.zeros(4))
    np.testing.assert_allclose(exact.slope, 2 * MEAN, atol=1e-9)
    np.testing.assert_allclose(exact.curvature, 2.0, atol=1e-9)


def test_losses_have_names():
    assert isinstance(resolve_loss("auc"), PairLoss)
    assert resolve_loss("absolute").value(np.zeros(1), np.array([2.0]))[0] == 2.0
    with pytest.raises(ModelError, match="expected one of zero_one, hinge"):
        resolve_loss("brier")
    with pytest.raises(ModelError, match="between 0 and 1"):
        Quantile(1.0)


@pytest.mark.parametrize(
    ("scores", "positive", "said"),
    [
        ("junk", np.array([True, False]), "expected an array of numbers"),
        (np.zeros(3), np.array([True, False, True]), "expected \\(k, n\\)"),
        (np.zeros((1, 3)), [1, 0, 1], "expected bool"),
        (np.zeros((1, 3)), np.array([True, False]), "expected bool"),
        (np.array([[0.0, np.nan]]), np.array([True, False]), "NaN"),
    ],
)
def test_junk_for_the_auc_risk_is_refused_in_one_line(scores, positive, said):
    with pytest.raises(ModelError, match=said) as caught:
        auc_risk(scores, positive)
    assert "\n" not in str(caught.value)
