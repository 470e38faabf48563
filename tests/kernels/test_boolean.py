"""Kernels on {0, 1}^m leave their target invariant, and broken twins do not."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from scipy.stats import chisquare

from ppl_backends.kernels.boolean.add_delete_swap import AddDeleteSwap
from ppl_backends.kernels.boolean.nested_logistic import NestedLogistic, log_probability, sample
from ppl_backends.numerics.population import Population

CORNERS = np.array(list(product([False, True], repeat=4)))
SCORES = np.random.default_rng(3).normal(0, 1.5, 16)
TARGET = np.exp(SCORES) / np.exp(SCORES).sum()
CODES = 2 ** np.arange(3, -1, -1)
N, LEVEL = 40_000, 1e-5


@dataclass(frozen=True)
class Corners(Population):
    log_density: np.ndarray


def density(x, rng):
    return Corners(x, SCORES[x @ CODES])


def draws(seed):
    rng = np.random.default_rng(seed)
    return density(CORNERS[rng.choice(16, N, p=TARGET)], rng), rng


def agrees(population):
    counts = np.bincount(population.x @ CODES, minlength=16)
    return chisquare(counts, TARGET * N).pvalue > LEVEL


def fitted(x):
    """Return a proposal fitted to few particles, so that it is a poor one."""
    return NestedLogistic().calibrate(x[:60], np.full(60, 1 / 60))


class Forgets(NestedLogistic):
    """Leaves the proposal's density out of the ratio."""

    def step(self, rng, population, density, parameters):
        proposed, _ = sample(*parameters, rng.random(population.x.shape))
        proposal = density(proposed, rng)
        accepted = np.log(rng.random(len(proposed))) < proposal.log_density - population.log_density
        return population.where(accepted, proposal), None


class SwitchesOnMore(AddDeleteSwap):
    """Proposes to switch on twice as often as off, and does not say so."""

    def step(self, rng, population, density, parameters=None):
        n = len(population.x)
        bit = rng.integers(4, size=n)
        x = population.x.copy()
        rows = np.arange(n)
        x[rows, bit] ^= ~x[rows, bit] | (rng.random(n) < 0.5)
        proposal = density(x, rng)
        accepted = np.log(rng.random(n)) < proposal.log_density - population.log_density
        return population.where(accepted, proposal), None


@pytest.mark.parametrize(
    ("kernel", "exact"),
    [(NestedLogistic(), True), (Forgets(), False), (AddDeleteSwap(), True), (SwitchesOnMore(), False)],
    ids=lambda value: type(value).__name__,
)
def test_kernels_leave_their_target_invariant_and_broken_twins_do_not(kernel, exact):
    population, rng = draws(1)
    parameters = fitted(population.x) if isinstance(kernel, NestedLogistic) else None
    for _ in range(8):
        population, _ = kernel.step(rng, population, density, parameters)
    assert agrees(population) == exact
    np.testing.assert_array_equal(population.log_density, SCORES[population.x @ CODES])


def test_every_model_can_be_proposed_even_where_bits_separate_the_particles():
    x = CORNERS[[0, 0, 3, 3, 3, 15]]
    parameters = NestedLogistic().calibrate(x, np.full(6, 1 / 6))
    log_q = log_probability(*parameters, CORNERS)
    assert np.exp(log_q).sum() == pytest.approx(1.0)
    assert log_q.min() > 4 * np.log(1 / 12) - 1e-9


def test_proposals_follow_the_probabilities_that_are_computed_of_them():
    parameters = fitted(draws(2)[0].x)
    drawn, log_q = sample(*parameters, np.random.default_rng(3).random((N, 4)))
    np.testing.assert_allclose(log_q, log_probability(*parameters, drawn))
    expected = N * np.exp(log_probability(*parameters, CORNERS))
    assert chisquare(np.bincount(drawn @ CODES, minlength=16), expected).pvalue > LEVEL


def test_regressions_learn_the_correlations_of_the_particles():
    population, _ = draws(4)
    parameters = NestedLogistic().calibrate(population.x, np.full(N, 1 / N))
    drawn, _ = sample(*parameters, np.random.default_rng(5).random((N, 4)))
    np.testing.assert_allclose(np.corrcoef(drawn.T), np.corrcoef(population.x.T), atol=0.05)
