"""The autocorrelation of particles with their earlier positions, within modes."""

import numpy as np
import pytest

from ppl_backends.numerics.gaps import modes
from ppl_backends.smc.mixing import WeightAutocorrelation, correlation_left

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("n", [100, 1000, 4000])
@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, n: rng.standard_normal((n, 20)),
        lambda rng, n: rng.standard_cauchy((n, 5)),
        lambda rng, n: rng.exponential(size=(n, 5)),
        lambda rng, n: rng.uniform(size=(n, 5)),
    ],
    ids=["normal", "Cauchy", "exponential", "uniform"],
)
def test_one_mode_is_not_taken_for_several(draw, n):
    found = [modes(draw(np.random.default_rng(seed), n)).max() for seed in range(50 if n < 2000 else 10)]
    assert max(found) == 0


def test_separated_modes_are_told_apart_whatever_their_shares():
    centres = np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0], [0.0, 0.0, 12.0]])
    which = RNG.choice(3, size=2000, p=[0.2, 0.5, 0.3])
    labels = modes(centres[which] + RNG.standard_normal((2000, 3)))
    assert labels.max() == 2
    assert all(len(set(labels[which == k])) == 1 for k in range(3))


def test_strays_between_modes_do_not_hide_them():
    which = RNG.random(8000) < 0.3
    x = np.where(which, -5.0, 5.0)[:, None] + RNG.standard_normal((8000, 1))
    x[:8] = np.linspace(-1.0, 1.0, 8)[:, None]
    labels = modes(x)
    assert labels.max() == 1
    assert abs(np.mean(labels == which) - 0.5) > 0.499


def test_memory_is_within_modes():
    which = RNG.integers(0, 2, size=2000)
    centres = np.where(which, 10.0, -10.0)[:, None]
    before, after = centres + RNG.standard_normal((2, 2000, 1))
    labels = modes(before)
    assert correlation_left(before, after, 0 * labels) > 0.8
    assert correlation_left(before, after, labels) < 0.1
    assert correlation_left(before, before + 0.1, labels) > 0.9


def test_rounding_errors_of_a_constant_likelihood_are_no_memory():
    constant = -0.9189385332046727 + 1e-16 * RNG.integers(-1, 2, size=1000)
    assert WeightAutocorrelation(constant, 1.0, np.zeros(1000, dtype=np.intp)).left(constant) == 0.0


def test_points_without_support_are_compared_with_the_others():
    increment = np.random.default_rng(0).normal(size=1000)
    increment[::3] = -np.inf
    assert np.isclose(WeightAutocorrelation(increment, 0.2, np.zeros(1000, dtype=np.intp)).left(increment), 1.0)
