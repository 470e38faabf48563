"""Proposals from smoothed particles: exact, unlike a twin that leaves out their density, and good in two modes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ppl_backends.kernels.independent import Independent
from ppl_backends.kernels.metric import cross_fitted_metric
from ppl_backends.kernels.protocol import KernelParameters
from ppl_backends.kernels.smoothed import TAILS, Mixture, Smoothed, SmoothedCycle
from ppl_backends.numerics.population import Population
from tests.statistics import FALSE_FAILURE

MODES, SD = 2.5, 0.6


@dataclass(frozen=True)
class TwoModes(Population):
    """Points of ½ N(−2.5, 0.6²) + ½ N(2.5, 0.6²) beside a standard normal coordinate."""

    x: Any
    gradient: Any = None

    @property
    def log_density(self):
        modes = np.logaddexp(*(stats.norm.logpdf(self.x[:, 0], at, SD) for at in (-MODES, MODES)))
        return modes - 0.5 * self.x[:, 1] ** 2


def draws(n, rng):
    return np.stack([rng.choice([-MODES, MODES], n) + SD * rng.standard_normal(n), rng.standard_normal(n)], axis=1)


def cdf(x):
    return 0.5 * (stats.norm.cdf(x, -MODES, SD) + stats.norm.cdf(x, MODES, SD))


def moved(kernel, n, seed, steps=8):
    """Return the points after moves of exact draws, and the last acceptance rate."""
    rng = np.random.default_rng(seed)
    state = TwoModes(draws(n, rng))
    parameters = KernelParameters(cross_fitted_metric(state.x), 1.0)
    for _ in range(steps):
        state, info = kernel.step(rng, state, lambda x, rng: TwoModes(x), parameters)
    return state.x, info.acceptance.mean()


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [Smoothed(), SmoothedCycle()], ids=lambda kernel: kernel.name)
def test_exact_draws_stay_exact(kernel):
    x, _ = moved(kernel, 8000, 1)
    assert stats.kstest(x[:, 0], cdf).pvalue > FALSE_FAILURE / 4
    assert stats.kstest(x[:, 1], stats.norm.cdf).pvalue > FALSE_FAILURE / 4


def test_a_proposal_whose_density_is_forgotten_is_found_out(monkeypatch):
    monkeypatch.setattr(Mixture, "log_density", lambda self, y: np.zeros(len(y)))
    x, _ = moved(Smoothed(), 8000, 1)
    assert stats.kstest(x[:, 0], cdf).pvalue < FALSE_FAILURE / 4


def test_two_modes_are_proposed_where_one_normal_distribution_covers_neither():
    assert moved(Smoothed(), 400, 2)[1] > 1.5 * moved(Independent(), 400, 2)[1]


def test_the_density_is_that_of_the_draws():
    y = np.random.default_rng(3).standard_normal((40, 2))
    mixture = Mixture.around(np.concatenate([y, y[:10]]))
    kernels = [stats.multivariate_t(centre, mixture.h**2 * np.eye(2), df=TAILS).pdf(y) for centre in mixture.centres]
    difference = np.log(mixture.weights @ np.array(kernels)) - mixture.log_density(y)
    np.testing.assert_allclose(difference, difference[0], atol=1e-10)
    cov = np.cov(mixture.sample(200_000, np.random.default_rng(4)).T)
    wanted = np.cov(mixture.centres.T, aweights=mixture.weights, ddof=0) + mixture.h**2 * TAILS / (TAILS - 2) * np.eye(
        2
    )
    np.testing.assert_allclose(cov, wanted, atol=0.05)  # seven errors of the variance of such tails


def test_few_points_in_many_dimensions_leave_one_student():
    mixture = Mixture.around(np.random.default_rng(5).standard_normal((4, 30)))
    assert mixture.h == pytest.approx(0.9, abs=0.1)
    assert np.ptp(mixture.centres, axis=0).max() < 0.6 * 4
