"""Ising and Potts: normalisers and every way of drawing against enumeration."""

import itertools

import numpy as np
import pytest
from scipy import stats

from ppl_backends.errors import ModelError
from ppl_backends.simulators import Ising, Potts

LEVEL = 1e-5


def everything(values, shape):
    """Return all configurations."""
    sites = itertools.product(values, repeat=shape[0] * shape[1])
    return np.array(list(sites), dtype=np.int8).reshape(-1, *shape)


def exact(model, theta, values):
    """Return all configurations with log Z."""
    configurations = everything(values, model.shape)
    energy = model.log_unnormalized(theta, model.statistics(configurations))
    return energy, np.logaddexp.reduce(energy)


@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (4, 1)])
@pytest.mark.parametrize("theta", [[0.4, 0.2], [-0.7, 0.1]])
def test_ising_normaliser(shape, theta):
    model = Ising(shape, field=True)
    assert model.log_normalizer(theta) == pytest.approx(exact(model, theta, (-1, 1))[1], abs=1e-10)


def test_potts_normaliser():
    model = Potts((3, 2), 3)
    assert model.log_normalizer([0.8]) == pytest.approx(exact(model, [0.8], range(3))[1], abs=1e-10)


def p_value(model, theta, values, draws):
    """Return the chi-square of the drawn configurations."""
    energy, log_z = exact(model, theta, values)
    base, sites = len(values), int(np.prod(model.shape))
    digits = (draws.reshape(len(draws), -1).astype(int) - values[0]) // (values[1] - values[0])
    counts = np.bincount(digits @ base ** np.arange(sites)[::-1], minlength=len(energy))
    return stats.chisquare(counts, np.exp(energy - log_z) * len(draws)).pvalue


ISING = [
    ("transfer", (2, 4), False, [0.5, 0.2]),
    ("transfer", (4, 2), False, [-0.5, 0.2]),
    ("cftp", (2, 4), False, [0.4, 0.15]),
    ("cftp", (2, 4), False, [-0.4, 0.3]),
    ("cftp", (2, 4), True, [0.3, 0.0]),
    ("swendsen_wang", (2, 4), True, [0.5, 0.2]),
    ("swendsen_wang", (2, 4), True, [-0.4, 0.2]),
    ("gibbs", (3, 3), False, [-0.3, 0.2]),
]


@pytest.mark.parametrize(("method", "shape", "periodic", "theta"), ISING)
def test_ising_draws(method, shape, periodic, theta):
    model = Ising(shape, field=True, method=method, periodic=periodic, burn_in=30, interval=10)
    assert model.exact == (method in ("transfer", "cftp"))
    n = 10_000 if method == "cftp" else 20_000
    draws = model.simulate(theta, n, np.random.default_rng(1))
    assert p_value(model, theta, (-1, 1), draws) > LEVEL
    wrong = np.add(theta, [0.1, 0.0])
    assert p_value(model, wrong, (-1, 1), draws) < LEVEL


@pytest.mark.parametrize("method", ["transfer", "swendsen_wang", "gibbs"])
def test_potts_draws(method):
    model = Potts((3, 2), 3, method=method)
    draws = model.simulate([0.6], 20_000, np.random.default_rng(2))
    assert p_value(model, [0.6], range(3), draws) > LEVEL
    assert p_value(model, [0.7], range(3), draws) < LEVEL


@pytest.mark.parametrize("model", [Ising((3, 3), field=True), Potts((2, 3), 3)])
def test_statistics_alone_agree_with_configurations(model):
    rng = np.random.default_rng(4)
    theta = [0.3, -0.1][: model.n_parameters]
    alone = model.simulate_statistics(theta, 20_000, rng)
    counted = model.statistics(model.simulate(theta, 20_000, rng))
    error = np.sqrt((alone.var(axis=0) + counted.var(axis=0)) / 20_000)
    assert (np.abs(alone.mean(axis=0) - counted.mean(axis=0)) < 5 * error).all()


def test_perfect_draws_of_a_larger_lattice():
    """Mean interaction is the derivative of log Z."""
    theta, step = 0.35, 1e-4
    model = Ising((10, 10), method="cftp")
    interaction = model.simulate_statistics([theta], 500, np.random.default_rng(3))[:, 0]
    reference = Ising((10, 10), method="transfer")
    slope = (reference.log_normalizer([theta + step]) - reference.log_normalizer([theta - step])) / (2 * step)
    assert abs(interaction.mean() - slope) < 4.5 * interaction.std() / np.sqrt(500)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ising((1, 1)), "at least two sites"),
        (lambda: Ising((20, 20), method="transfer"), "4096 colourings"),
        (lambda: Ising((4, 4), periodic=True, method="transfer"), "free boundaries"),
        (lambda: Potts((4, 4), 3, method="cftp"), "method='cftp'"),
        (lambda: Potts((4, 4), 1), "at least two"),
        (lambda: Potts((1, 4), 128), "at most 127"),
        (lambda: Ising((4, 4), burn_in=0), "at least 1"),
        (lambda: Ising((2, 2)).statistics(np.zeros((2, 2))), "spins"),
        (lambda: Potts((2, 2), 2).statistics(np.full((2, 2), 2)), "colours are"),
        (lambda: Ising((20, 20)).log_normalizer([0.1]), "log Z"),
        (
            lambda: Ising((3, 3), method="cftp", periodic=True).simulate([-0.2], 1, np.random.default_rng()),
            "even sides",
        ),
    ],
)
def test_errors(make, message):
    with pytest.raises(ModelError, match=message):
        make()


def test_a_strong_coupling_does_not_overflow():
    model = Ising((12, 12))
    assert model.log_normalizer([50.0]) == pytest.approx(50.0 * 264 + np.log(2), rel=1e-12)  # two states remain
    drawn = model.simulate([50.0], 64, np.random.default_rng(1)).mean(axis=(1, 2))
    assert set(drawn) == {-1.0, 1.0}


def test_hopeless_coupling_from_the_past_says_so(monkeypatch):
    monkeypatch.setattr("ppl_backends.simulators.lattice._LONGEST_PAST", 10_000)
    with pytest.raises(ModelError, match=r"at beta=2, which is too strong for this lattice: use method='transfer'"):
        Ising((8, 8), method="cftp").simulate([2.0], 1, np.random.default_rng(1))
    with pytest.raises(ModelError, match=r"at beta=-2, .* use method='swendsen_wang', or a prior without such values"):
        Ising((16, 16), method="cftp").simulate([-2.0], 1, np.random.default_rng(1))
