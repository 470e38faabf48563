"""EP of a pair loss with spikes and slabs: inclusion probabilities against those of all models."""

import itertools
import re
import warnings

import numpy as np
import pytest

from ppl_backends.errors import ApproximationWarning, ModelError
from ppl_backends.gibbs import GibbsPosterior, SpikeSlab, fit_pair_ep, fit_pair_ep_path, inclusion_probabilities
from ppl_backends.gibbs.pair_ep import _checked_inclusion
from ppl_backends.gibbs.spike_check import judged
from ppl_backends.numerics.differences import central_differences


def posterior(seed, prior):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, 3))
    y = np.sign(X @ [1.0, 0.3, -0.5] + 0.8 * rng.normal(size=60))
    return GibbsPosterior(prior, "auc", X, y, learning_rate=60.0)


def exact_inclusion(given):
    """Return inclusions for Dirac spikes, by the evidences of all models except the empty one, which orders nothing."""
    rng = np.random.default_rng(0)
    models = np.array(list(itertools.product([0, 1], repeat=3))[1:])
    evidence = [np.exp(-given.learning_rate * given.risk(rng.normal(size=(4000, 3)) * on)).mean() for on in models]
    return np.array(evidence) @ models / np.sum(evidence)


def test_no_climbs_look_for_an_improper_posterior_under_spikes_and_slabs(monkeypatch):
    """Each step of a climb passes over all pairs; on the DNA data the climbs took minutes of processor time."""
    monkeypatch.setattr("ppl_backends.approximations.ep.fit.endless_climb", lambda target: pytest.fail("it climbed"))
    assert fit_pair_ep(posterior(1, SpikeSlab(3))).converged


@pytest.mark.parametrize("seed", [1, 3])
def test_inclusion_probabilities_are_near_those_of_all_models(seed):
    given = posterior(seed, SpikeSlab(3))
    fit = fit_pair_ep(given)
    assert fit.converged
    exact = exact_inclusion(given)  # by Monte Carlo, to about 0.02
    assert np.ptp(exact) > 0.3
    np.testing.assert_allclose(inclusion_probabilities(fit), exact, atol=0.1)
    np.testing.assert_allclose(inclusion_probabilities(fit, points=20_000, random_seed=1), exact, atol=0.05)
    assert fit.diagnostics["inclusion_shift"] == pytest.approx(
        np.abs(inclusion_probabilities(fit) - exact).max(), abs=0.06
    )


def test_inclusion_probabilities_that_are_off_or_not_checked_are_told():
    given = posterior(1, SpikeSlab(3))
    fit = fit_pair_ep(given)
    assert judged(fit, inclusion_probabilities(fit)).converged
    off = judged(fit, inclusion_probabilities(fit) - [0.0, 0.2, 0.0])
    assert not off.converged
    assert re.fullmatch(
        r"the inclusion probability of theta\[1\] is 0\.\d\d, and by 8192 weighted .* ± 0\.0\d", off.trouble
    )
    blurred = fit.replaced(target=given.with_learning_rate(6000.0))
    with pytest.warns(
        ApproximationWarning, match="inclusion probabilities are not checked: 8192 weighted points are worth"
    ):
        assert not _checked_inclusion(blurred).converged


def test_widths_of_narrow_spikes_do_not_matter():
    found = [inclusion_probabilities(fit_pair_ep(posterior(1, SpikeSlab(3, spike=width)))) for width in (1e-4, 1e-6)]
    np.testing.assert_allclose(*found, atol=1e-3)


def test_a_path_of_widths_ends_where_one_fit_does():
    given = posterior(1, SpikeSlab(3))
    path, alone = fit_pair_ep_path(given, [0.1, 0.01, 1e-3, 1e-4, 1e-6]), fit_pair_ep(given)
    assert [fit.target.prior.spike for fit in path] == [0.1, 0.01, 1e-3, 1e-4, 1e-6]
    shares = np.array([inclusion_probabilities(fit) for fit in path])
    np.testing.assert_allclose(shares[-1], inclusion_probabilities(alone), atol=1e-4)
    assert np.abs(shares[0] - shares[-1]).max() > 0.02
    np.testing.assert_allclose(path[-1].mean, alone.mean, atol=1e-4)


def test_prior_is_a_density_with_its_gradient_and_draws():
    prior, rng = SpikeSlab(2, inclusion=0.3, slab=2.0, spike=0.1), np.random.default_rng(1)
    grid = np.linspace(-20.0, 20.0, 100_001)
    one = SpikeSlab(1, inclusion=0.3, slab=2.0, spike=0.1)
    assert np.exp(one.log_density(grid[:, None])).sum() * (grid[1] - grid[0]) == pytest.approx(1.0, abs=1e-6)
    x = rng.normal(size=(4, 2))
    differences = np.stack([central_differences(prior.log_density, row[None])[0].ravel() for row in x])
    np.testing.assert_allclose(prior.log_density_and_gradient(x)[1], differences, rtol=1e-4, atol=1e-4)
    drawn = prior.sample_prior(20_000, rng)
    second, fourth = 0.3 * 4.0 + 0.7 * 0.01, 3 * (0.3 * 16.0 + 0.7 * 1e-4)
    error = np.sqrt((fourth - second**2) / drawn.size)
    assert abs((drawn**2).mean() - second) < 4.5 * error


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SpikeSlab(2, spike=2.0), "must be below slab"),
        (lambda: SpikeSlab(2, inclusion=1.0), "inclusion=1.0"),
        (lambda: fit_pair_ep_path(posterior(1, (0.0, 1.0)), [0.1]), "expected a SpikeSlab prior"),
        (lambda: fit_pair_ep_path(posterior(1, SpikeSlab(3)), [0.1, 0.2]), "expected decreasing numbers"),
        (lambda: inclusion_probabilities(fit_pair_ep(posterior(1, (0.0, 1.0)))), "with a SpikeSlab prior"),
    ],
)
def test_wrong_use(make, message):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="EP: by weighted points")
        with pytest.raises(ModelError, match=message):
            make()
